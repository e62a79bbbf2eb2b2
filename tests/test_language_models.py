"""BERT, GPT-2, Llama, CLIP and DeiT: against `transformers`, step by step, on all backends; what they are made of."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
import sympy
import torch

import tensornet as tn
from tensornet import models
from tensornet.protocol import load_backend
from tensornet.sizes import evaluate

from .conftest import randomized, rows, sampled
from .test_convert import BOUND, same

transformers = pytest.importorskip("transformers")
logging.getLogger("transformers").setLevel(logging.ERROR)

pytestmark = [
    pytest.mark.usefixtures("without_gradients"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]

IMAGE = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 20}
IMAGE |= {"image_size": 16, "patch_size": 4}
TEXT = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 20}
TEXT |= {"vocab_size": 31, "max_position_embeddings": 12}
GPT2 = {"n_embd": 12, "n_layer": 2, "n_head": 3, "vocab_size": 31, "n_positions": 40}
LLAMA = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
LLAMA |= {"intermediate_size": 20, "vocab_size": 31}
LONGER = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0}
LONGER |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 64}
OWN = {"head_dim": 8, "num_key_value_heads": 4, "hidden_act": "gelu"}
OWN |= {"attention_bias": True, "mlp_bias": True}

ROWS = [(kind, *told.split(" ", 2)) for kind, told in rows("transformers.txt")]
NO_ENDS = {"bos_token_id": None, "eos_token_id": None}
FIELDS = {"DeiT": IMAGE, "CLIPVision": IMAGE, "CLIPText": TEXT, "Bert": TEXT, "GPT2": GPT2, "Llama": LLAMA}


@pytest.fixture(autouse=True)
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Norms and turns of the reference in the working type; it rounds them to float32."""
    from transformers.models.llama import modeling_llama as reference

    def norm(self: Any, x: torch.Tensor) -> torch.Tensor:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)

    def turn(self: Any, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        width = 2 * len(self.inv_freq)
        plain = self.config.rope_parameters["rope_theta"] ** -(
            torch.arange(0, width, 2, dtype=x.dtype) / width
        )
        usual = self.config.rope_parameters["rope_type"] == "default"
        angle = position_ids[..., None] * (plain if usual else self.inv_freq.to(x.dtype))
        angle = torch.cat((angle, angle), -1)
        return angle.cos(), angle.sin()

    monkeypatch.setattr(reference.LlamaRMSNorm, "forward", norm)
    monkeypatch.setattr(reference.LlamaRotaryEmbedding, "forward", turn)


def theirs(kind: str, dtype: torch.dtype = torch.float64, **changes: Any) -> Any:
    """A model of the reference, evaluated, and random everywhere, norms and biases too."""
    family = next(family for name, family, _, _ in ROWS if name == kind)
    ends = {"CLIPText": {"eos_token_id": 30}, "GPT2": NO_ENDS, "Llama": NO_ENDS}.get(family, {})
    fields = {**FIELDS[family], **ends, **changes}
    return randomized(getattr(transformers, kind)(getattr(transformers, f"{family}Config")(**fields)), dtype)


def words() -> torch.Tensor:
    """Three texts, the end of each somewhere else."""
    found = torch.randint(3, 30, (3, 9))
    for row, at in enumerate((4, 8, 2)):
        found[row, at] = 30
    return found


def run(converted: tuple[tn.Graph, dict[str, Any]], *inputs: Any) -> Any:
    return tn.compile(converted[0], backend="torch")(converted[1], *inputs)


@pytest.mark.parametrize("dtype", sampled(BOUND, [torch.float64]))
@pytest.mark.parametrize(("kind", "family", "output", "fields"), ROWS)
def test_outputs_are_theirs(kind: str, family: str, output: str, fields: str, dtype: torch.dtype) -> None:
    changes = eval(fields)
    model = theirs(kind, dtype, **changes)
    x = torch.randn(2, 3, 16, 16, dtype=dtype) if FIELDS[family] is IMAGE else words()
    converted = models.from_transformers(model)
    scaled = "rope_parameters" in changes  # frequencies of the reference are rounded to float32
    same(run(converted, x), getattr(model(x), output), 1e-5 if scaled else None)
    read = {name: each for name, each in model.named_parameters() if not name.startswith(("pooler", "post_"))}
    assert tn.parameter_count(converted[0]) == sum(each.numel() for each in read.values())


@pytest.mark.parametrize("kind", ["BertModel", "CLIPTextModel", "GPT2LMHeadModel", "LlamaForCausalLM"])
def test_tokens_that_are_not_there(kind: str) -> None:
    model, t, keep = theirs(kind), words(), torch.ones(3, 9)
    keep[1, 5:], keep[2, 3:] = 0, 0
    found = run(models.from_transformers(model, padding=True), t, keep.double())
    same(found[keep != 0], model(t, attention_mask=keep)[0][keep != 0])


def test_segments() -> None:
    model, t = theirs("BertForMaskedLM"), words()
    segment, keep = torch.randint(0, 2, (3, 9)), torch.ones(3, 9)
    keep[1, 5:] = 0
    ours = models.from_transformers(model, segments=True, padding=True)
    expected = model(t, token_type_ids=segment, attention_mask=keep).logits
    same(run(ours, t, keep.double(), segment), expected)
    pooled = models.from_transformers(theirs("BertModel"), head="pooled")
    assert run(pooled, t).shape == (3, 12)


# ---------------------------------------------------------------------------- writing


def nothing(graph: tn.Graph, batch: int) -> list[np.ndarray[Any, Any]]:
    """Stored keys and values of no tokens."""
    known = {**graph.bound, "b": batch, "past": 0}
    stored = [leaf.shape for leaf in graph.inputs if "past" in map(str, leaf.shape)]
    return [np.zeros([evaluate(size, known) for size in shape]) for shape in stored]


def written(graph: tn.Graph, parameters: Any, tokens: np.ndarray[Any, Any], count: int, backend: str) -> Any:
    """The most likely tokens one after another, from stored keys and values that are empty at first."""
    library = load_backend(backend)
    step, given = tn.compile(graph, backend=backend), tn.to_backend(parameters, backend)
    stored, found = [library.asarray(each) for each in nothing(graph, len(tokens))], []
    for _ in range(count):
        logits, *stored = step(given, library.asarray(tokens), *stored)
        tokens = library.numpy(logits)[:, -1:].argmax(-1)
        found.append(tokens)
    return np.concatenate(found, 1)


@pytest.mark.parametrize(
    ("kind", "changes", "backend"),
    [
        ("GPT2LMHeadModel", {}, "torch"),
        ("LlamaForCausalLM", {}, "torch"),
        ("LlamaForCausalLM", {"rope_parameters": LONGER, **OWN}, "numpy"),
        pytest.param("LlamaForCausalLM", {}, "jax", marks=pytest.mark.slow),
    ],
)
def test_twenty_tokens_are_those_of_the_reference(kind: str, changes: dict[str, Any], backend: str) -> None:
    model, t = theirs(kind, **changes), words()[:, :5]
    expected = model.generate(t, max_new_tokens=20, do_sample=False, pad_token_id=0)[:, 5:]
    found = written(*models.from_transformers(model, past=True), t.numpy(), 20, backend)
    np.testing.assert_array_equal(found, expected.numpy())


@pytest.mark.parametrize("kind", ["GPT2LMHeadModel", "LlamaForCausalLM"])
def test_steps_with_tokens_that_are_not_there_make_the_whole(kind: str) -> None:
    model, t, keep = theirs(kind), words(), torch.ones(3, 9, dtype=torch.float64)
    keep[0, :2], keep[2, 4] = 0, 0
    expected = run(models.from_transformers(model, padding=True), t, keep)
    graph, parameters = models.from_transformers(model, padding=True, past=True)
    step, found, at = tn.compile(graph, backend="torch"), [], 0
    stored = [torch.tensor(each) for each in nothing(graph, 3)]
    for count in (4, 1, 3, 1):
        at += count
        logits, *stored = step(parameters, t[:, at - count : at], keep[:, :at], *stored)
        found.append(logits)
    same(torch.cat(found, 1)[keep != 0], expected[keep != 0])


# ---------------------------------------------------------------------------- what they are made of


def test_formulas_stay_symbolic() -> None:
    graph = models.llama("V", "D", 2, "h", "F", groups="G", past=True, padding=True)
    D, F, G, V, h = sympy.symbols("D F G V h")
    expected = 2 * V * D + 2 * (2 * D**2 + 2 * D**2 * G / h + 3 * D * F + 2 * D) + D
    assert sympy.expand(tn.parameter_formula(graph) - expected) == 0
    known = {"V": 11, "D": 24, "h": 6, "F": 10, "G": 2}
    assert tn.parameter_formula(graph).subs(known) == tn.parameter_count(
        models.llama(11, 24, 2, 6, 10, groups=2)
    )


@pytest.mark.parametrize("neighbours", [False, True])
def test_turned_products_hang_on_distance_alone(neighbours: bool) -> None:
    """And are turns of the complex plane, as eq. 13 of the paper has them."""
    rng, turn = np.random.default_rng(0), models.rotary_embedding(6, base=100.0, neighbours=neighbours)
    q, k = (np.broadcast_to(rng.standard_normal(6), (9, 6)) for _ in range(2))
    f = tn.compile(turn)
    scores = f({}, q) @ f({}, k).T
    for distance in range(-8, 9):
        assert np.ptp(np.diagonal(scores, distance)) < 1e-12
    pairs = q.reshape(9, 3, 2) if neighbours else q.reshape(9, 2, 3).swapaxes(1, 2)
    plane = (pairs[..., 0] + 1j * pairs[..., 1]) * np.exp(
        1j * np.arange(9)[:, None] * 100.0 ** -(np.arange(3) / 3)
    )
    turned = np.stack([plane.real, plane.imag], -1)
    turned = turned.reshape(9, 6) if neighbours else turned.swapaxes(1, 2).reshape(9, 6)
    np.testing.assert_allclose(f({}, q), turned, atol=1e-12)


@pytest.mark.parametrize("weights", ["soft", "signed"])
@pytest.mark.parametrize("groups", [1, 2, 3, 6])
def test_attention_in_groups_is_attention_with_keys_repeated(groups: int, weights: str) -> None:
    settings: dict[str, Any] = {"mask": "causal", "weights": weights}
    ours, plain = models.attention(12, 6, groups=groups, **settings), models.attention(12, 6, **settings)
    rng = np.random.default_rng(0)
    p = {name: rng.standard_normal(each.shape) for name, each in tn.init(ours).items()}
    x = rng.standard_normal((2, 5, 12))
    repeated = {
        name: each.reshape(groups, 2, -1).repeat(6 // groups, 0).reshape(plain_leaf.shape)
        if name[1] in "kv"
        else each
        for (name, each), plain_leaf in zip(p.items(), tn.init(plain).values(), strict=True)
    }
    for backend in ("numpy", "torch"):
        library = load_backend(backend)
        f = tn.compile(ours, backend=backend)
        found = library.numpy(f(tn.to_backend(p, backend), library.asarray(x)))
        np.testing.assert_allclose(found, tn.compile(plain)(repeated, x), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
    "graph",
    [
        models.attention(256, 8, mask="causal"),
        models.attention(256, 8, groups=2, mask="causal", rotary=10000.0),
        models.attention(256, 8, groups=1, rotary=10000.0, mask="padding"),
    ],
)
def test_torch_attends_by_its_kernel(graph: tn.Graph) -> None:
    plan = tn.plan(graph, backend="torch", compare=False, **dict.fromkeys(graph.open_sizes, 256))
    assert "scaled_dot_product_attention" in plan.code


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("order", ["b,h,m,i,d", "b,i,h,m,d", "m,i,b,h,d"])
def test_grouped_heads_look_back_by_the_kernel(order: str, frozen: bool) -> None:
    """Heads of queries that share keys and values, of which a query sees what is not after it, lie as they like."""
    text = f"""
    q[{order}] = x[b,i,c] * Wq[h,m,d,c]
    s[b,h,m,i,j] = q[{order}] * k[b,h,j,d] / sqrt(d)
    a[b,h,m,i,j] = softmax[j](where(index(i) >= index(j), s, -1e30))
    y[b,i,h,m,f] = a * v[b,h,j,f]
    """
    inputs = ["x[b,i,c]"] if not frozen else ["t[b,i]"]
    if frozen:  # of tokens, so that every number is made of constants
        text = text.replace("x[b,i,c]", "E[t[b,i],c]").replace("k[b,h,j,d]", "E[t[b,j],c] * Wk[h,d,c]")
        text = text.replace("v[b,h,j,f]", "V[t[b,j],h,f]")
    else:
        inputs += ["k[b,h,j,d]", "v[b,h,j,f]"]
    sizes = {"b": 2, "i": 96, "h": 2, "m": 3, "d": 32, "f": 32, "c": 16}
    graph = tn.layer(text, inputs=inputs, **sizes, **({} if frozen else {"j": 96}))
    graph = graph.bind(E0=11, V0=11) if frozen else graph
    p = tn.init(graph, seed=0, dtype="float64")
    r = np.random.default_rng(1)
    shapes = [(2, 96, 16), (2, 2, 96, 32), (2, 2, 96, 32)]
    given = [r.integers(0, 11, (2, 96))] if frozen else list(map(r.standard_normal, shapes))
    expected = tn.compile(graph)(p, *given)
    torch = load_backend("torch")
    run = tn.freeze(graph, p) if frozen else graph
    plan = tn.plan(run, backend="torch", compare=False)
    assert "is_causal=True, enable_gqa=True" in plan.code
    f = tn.compile(run, backend="torch")
    found = f({} if frozen else tn.to_backend(p, "torch"), *map(torch.asarray, given))
    np.testing.assert_allclose(torch.numpy(found), expected, rtol=1e-5 if frozen else 1e-9, atol=1e-6)


def test_a_language_model_is_compressed() -> None:
    """Weights of rank 3 become factors of rank 3, and give what they gave."""
    model, t = theirs("LlamaForCausalLM"), words()
    for layer in model.model.layers:
        layer.mlp.up_proj.weight.copy_(torch.randn(20, 3).double() @ torch.randn(3, 16).double())
    graph, parameters = models.from_transformers(model)
    small = tn.compress(graph, parameters, error=1e-6, include="layers.*.mlp.W3")
    same(run((small.model, small.params), t), model(t).logits, 1e-6)
    assert tn.parameter_count(graph) - tn.parameter_count(small.model) == 2 * (20 * 16 - 3 * (20 + 16))
