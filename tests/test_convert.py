"""Models against `transformers` and torch: random weights, masks, odd sizes; float32 and float64."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import tensornet as tn
from tensornet import models

transformers = pytest.importorskip("transformers")
logging.getLogger("transformers").setLevel(logging.ERROR)

DTYPES = [torch.float32, torch.float64]
BOUND = {torch.float32: 1e-5, torch.float64: 1e-9}
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"
)


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def randomized(model: Any, dtype: torch.dtype) -> Any:
    """Evaluated, and random everywhere, norms and biases too."""
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3 if parameter.ndim > 1 else 0.5)
    return model.to(dtype).eval()


def same(found: Any, expected: torch.Tensor, bound: float | None = None) -> None:
    scale = max(1.0, float(expected.abs().max()))
    assert found.shape == expected.shape
    assert float((found - expected).abs().max()) / scale < (bound or BOUND[expected.dtype])


def run(converted: tuple[tn.Graph, dict[str, Any]], *inputs: Any) -> Any:
    graph, parameters = converted
    return tn.compile(graph, backend="torch")(parameters, *inputs)


# ---------------------------------------------------------------------------- ViT

VIT = {"hidden_size": 12, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 20}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "changes",
    [
        {"image_size": 32, "patch_size": 8},
        {"image_size": (24, 40), "patch_size": 8, "num_channels": 1},
        {
            "image_size": 15,
            "patch_size": 5,
            "hidden_act": "gelu_new",
            "qkv_bias": False,
            "layer_norm_eps": 1e-6,
        },
    ],
)
def test_vit(dtype: torch.dtype, changes: dict[str, Any]) -> None:
    config = transformers.ViTConfig(**VIT, **changes, attn_implementation="sdpa")
    model = randomized(transformers.ViTModel(config), dtype)
    side = config.image_size if isinstance(config.image_size, tuple) else (config.image_size,) * 2
    x = torch.randn(3, config.num_channels, *side, dtype=dtype)
    same(run(models.from_transformers(model), x), model(x).last_hidden_state)


@pytest.mark.parametrize("dtype", DTYPES)
def test_vit_classifies(dtype: torch.dtype) -> None:
    config = transformers.ViTConfig(**VIT, image_size=16, patch_size=4, num_labels=7)
    model = randomized(transformers.ViTForImageClassification(config), dtype)
    x = torch.randn(2, 3, 16, 16, dtype=dtype)
    graph, parameters = models.from_transformers(model)
    same(run((graph, parameters), x), model(x).logits)
    numbers = tn.to_backend(parameters, "numpy")
    on_numpy = tn.compile(graph, backend="numpy")(numbers, x.numpy())
    same(torch.tensor(on_numpy), model(x).logits)


# ---------------------------------------------------------------------------- Perceiver


def perceiver_config(**changes: Any) -> Any:
    settings = {"num_latents": 7, "d_latents": 12, "num_blocks": 2, "num_self_attends_per_block": 3}
    settings |= {
        "num_self_attention_heads": 4,
        "num_cross_attention_heads": 1,
        "image_size": 9,
        "num_labels": 5,
    }
    settings |= {"self_attention_widening_factor": 2, "cross_attention_widening_factor": 3}
    return transformers.PerceiverConfig(**{**settings, **changes})


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", ["kv", "q"])
def test_perceiver_reads_an_array(dtype: torch.dtype, shape: str) -> None:
    config = perceiver_config(
        d_model=10, num_cross_attention_heads=2, cross_attention_shape_for_attention=shape
    )
    model = randomized(transformers.PerceiverModel(config), dtype)
    x, keep = torch.randn(2, 11, 10, dtype=dtype), torch.ones(2, 11)
    keep[1, 6:] = 0
    same(run(models.from_transformers(model), x), model(inputs=x).last_hidden_state)
    masked = models.from_transformers(model, mask=True)
    same(run(masked, x, keep), model(inputs=x, attention_mask=keep).last_hidden_state)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["Fourier", "Learned", "ConvProcessing"])
def test_perceiver_classifies_images(dtype: torch.dtype, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.perceiver import modeling_perceiver as reference

    def exact(index_dims: Any, output_range: Any = (-1.0, 1.0), device: Any = None) -> torch.Tensor:
        """Positions in the working type; the reference rounds them to float32."""
        axes = [torch.linspace(*output_range, steps, dtype=dtype) for steps in index_dims]
        return torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1)

    monkeypatch.setattr(reference, "build_linear_positions", exact)
    before = torch.get_default_dtype()
    config = perceiver_config(image_size=22 if kind == "ConvProcessing" else 9)
    model = randomized(getattr(transformers, f"PerceiverForImageClassification{kind}")(config), dtype)
    if kind == "ConvProcessing":
        norm = model.perceiver.input_preprocessor.convnet.batchnorm
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
    x = torch.randn(2, 3, config.image_size, config.image_size, dtype=dtype)
    torch.set_default_dtype(dtype)  # frequencies, too
    try:
        expected = model(inputs=x).logits
    finally:
        torch.set_default_dtype(before)
    same(run(models.from_transformers(model), x), expected)


# ---------------------------------------------------------------------------- XLNet

XLNET = {"vocab_size": 29, "d_model": 12, "n_layer": 3, "n_head": 3, "d_inner": 20, "dropout": 0.0}


@pytest.fixture
def exact_sinusoids(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference rounds its sinusoids to float32; in float64 they stay exact, and two streams run."""
    if dtype == torch.float64:
        monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)


def xlnet_inputs(dtype: torch.dtype) -> dict[str, Any]:
    permuted = torch.rand(2, 7, 7) < 0.5
    targets = torch.tensor([[1, 4, 6], [0, 3, 5]])
    keep = torch.ones(2, 7)
    keep[1, 5:] = 0
    return {
        "ids": torch.randint(0, 29, (2, 7)),
        "segment": torch.randint(0, 3, (2, 7)),
        "keep": keep,
        "hidden": permuted.to(dtype),
        "see": ~permuted,
        "targets": targets,
        "mapping": torch.nn.functional.one_hot(targets, 7).to(dtype),
        "memories": [torch.randn(5, 2, 12, dtype=dtype) for _ in range(3)],
    }


@pytest.mark.parametrize("dtype", DTYPES)
def test_xlnet_content_stream(exact_sinusoids: None, dtype: torch.dtype) -> None:
    model, x = (
        randomized(transformers.XLNetModel(transformers.XLNetConfig(**XLNET)), dtype),
        xlnet_inputs(dtype),
    )
    ids = x["ids"]
    converted: Callable[..., Any] = lambda **changes: models.from_transformers(model, **changes)  # noqa: E731
    same(run(converted(), ids), model(ids).last_hidden_state)
    same(
        run(converted(segments=True), ids, x["segment"]),
        model(ids, token_type_ids=x["segment"]).last_hidden_state,
    )
    same(
        run(converted(mask="padding"), ids, x["keep"]), model(ids, attention_mask=x["keep"]).last_hidden_state
    )
    both = converted(mask=("permutation", "padding"), segments=True)
    expected = model(ids, perm_mask=x["hidden"], attention_mask=x["keep"], token_type_ids=x["segment"])
    same(run(both, ids, x["see"], x["keep"], x["segment"]), expected.last_hidden_state)


@pytest.mark.parametrize("dtype", DTYPES)
def test_xlnet_memory(exact_sinusoids: None, dtype: torch.dtype) -> None:
    model, x = (
        randomized(transformers.XLNetModel(transformers.XLNetConfig(**XLNET)), dtype),
        xlnet_inputs(dtype),
    )
    ours = models.from_transformers(model, memory=True, segments=True, mask="padding")
    memories = [each.transpose(0, 1).contiguous() for each in x["memories"]]
    y, *inner = run(ours, x["ids"], x["keep"], x["segment"], *memories)
    expected = model(
        x["ids"], token_type_ids=x["segment"], attention_mask=x["keep"], mems=x["memories"], use_mems=True
    )
    same(y, expected.last_hidden_state)
    for before, after, theirs in zip(memories, inner, expected.mems, strict=True):
        same(torch.cat([before, after], 1), theirs.transpose(0, 1))


@pytest.mark.parametrize("mask", [None, "permutation", ("permutation", "padding")])
@pytest.mark.parametrize("memory", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_xlnet_two_streams(exact_sinusoids: None, mask: Any, memory: bool, dtype: torch.dtype) -> None:
    x = xlnet_inputs(dtype)
    model = randomized(transformers.XLNetModel(transformers.XLNetConfig(**XLNET)), dtype)
    ours = models.from_transformers(model, two_streams=True, mask=mask, segments=True, memory=memory)
    given = [x["see"]] if mask else []
    given += [x["keep"]] if mask and len(mask) == 2 else []
    masks = {"perm_mask": x["hidden"]} if mask else {}
    masks |= {"attention_mask": x["keep"]} if len(given) == 2 else {}
    masks |= {"mems": x["memories"], "use_mems": True} if memory else {}
    stored = [each.transpose(0, 1).contiguous() for each in x["memories"]] if memory else []
    found = run(ours, x["ids"], x["targets"], *given, x["segment"], *stored)
    expected = model(x["ids"], target_mapping=x["mapping"], token_type_ids=x["segment"], **masks)
    same(found[0] if memory else found, expected.last_hidden_state)


def test_xlnet_where_nothing_may_be_seen() -> None:
    """The reference lets such a row attend to all keys alike, and a content stream still sees itself."""
    x = xlnet_inputs(torch.float32)
    model = randomized(transformers.XLNetModel(transformers.XLNetConfig(**XLNET)), torch.float32)
    ours = models.from_transformers(model, two_streams=True, mask="permutation")
    nothing = torch.ones(2, 7, 7)
    expected = model(x["ids"], perm_mask=nothing, target_mapping=x["mapping"]).last_hidden_state
    same(run(ours, x["ids"], x["targets"], 1 - nothing), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["XLNetLMHeadModel", "XLNetForSequenceClassification"])
@pytest.mark.parametrize("attention", ["bi", "uni"])
def test_xlnet_heads(exact_sinusoids: None, dtype: torch.dtype, kind: str, attention: str) -> None:
    config = transformers.XLNetConfig(**XLNET, attn_type=attention, num_labels=4)
    model = randomized(getattr(transformers, kind)(config), dtype)
    ids = torch.randint(0, 29, (2, 9))
    same(run(models.from_transformers(model), ids), model(ids).logits)


# ---------------------------------------------------------------------------- Transformer


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"scale_embedding": True, "activation_function": "swish"},
        {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 23, "tie_word_embeddings": False},
    ],
)
def test_marian(dtype: torch.dtype, changes: dict[str, Any]) -> None:
    settings = {"vocab_size": 31, "d_model": 12, "encoder_layers": 2, "decoder_layers": 3, "pad_token_id": 0}
    settings |= {"encoder_attention_heads": 3, "decoder_attention_heads": 3, "encoder_ffn_dim": 20}
    settings |= {"decoder_ffn_dim": 20, "max_position_embeddings": 16, "eos_token_id": 1}
    settings |= {"forced_eos_token_id": 1, "decoder_start_token_id": 0}
    model = transformers.MarianMTModel(transformers.MarianConfig(**{**settings, **changes}))
    table = model.model.encoder.embed_positions.weight.clone()
    model = randomized(model, dtype)
    for side in (model.model.encoder, model.model.decoder):
        side.embed_positions.weight.copy_(table)  # sinusoids, which the reference holds as weights
    model.final_logits_bias.normal_()
    source, target, keep = torch.randint(2, 23, (3, 9)), torch.randint(2, 23, (3, 7)), torch.ones(3, 9)
    keep[1, 5:] = 0
    bound = 1e-5 if dtype == torch.float32 else 1e-6  # its sinusoids are rounded to float32
    expected = model(input_ids=source, decoder_input_ids=target).logits
    same(run(models.from_torch(model), source, target), expected, bound)
    expected = model(input_ids=source, decoder_input_ids=target, attention_mask=keep).logits
    ours = models.from_transformers(model, padding=True)
    same(run(ours, source, target, keep, torch.ones(3, 7)), expected, bound)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("changes", [{}, {"norm_first": True, "activation": "gelu"}, {"bias": False}])
def test_torch_transformer(dtype: torch.dtype, changes: dict[str, Any]) -> None:
    model = randomized(torch.nn.Transformer(12, 3, 2, 3, 20, batch_first=True, **changes), dtype)
    source, target = torch.randn(3, 9, 12, dtype=dtype), torch.randn(3, 7, 12, dtype=dtype)
    ahead = torch.ones(7, 7, dtype=torch.bool).triu(1)
    same(run(models.from_torch(model), source, target), model(source, target, tgt_mask=ahead))
    keep, own = torch.ones(3, 9, dtype=torch.bool), torch.ones(3, 7, dtype=torch.bool)
    keep[0, 4:], own[2, 3:] = False, False
    masks = {"src_key_padding_mask": ~keep, "tgt_key_padding_mask": ~own, "memory_key_padding_mask": ~keep}
    expected = model(source, target, tgt_mask=ahead, **masks)
    same(run(models.from_torch(model, padding=True), source, target, keep, own), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("changes", [{}, {"kdim": 5, "vdim": 7}, {"bias": False}])
def test_multihead_attention(dtype: torch.dtype, changes: dict[str, Any]) -> None:
    module = randomized(torch.nn.MultiheadAttention(12, 3, batch_first=True, **changes), dtype)
    q, k, v = (
        torch.randn(2, n, width, dtype=dtype) for n, width in ((5, 12), (8, module.kdim), (8, module.vdim))
    )
    same(run(models.from_torch(module), q, k, v), module(q, k, v)[0])
    keep = torch.rand(2, 8) < 0.7
    keep[:, 0] = True
    ours = models.from_torch(module, mask="padding")
    same(run(ours, q, k, v, keep), module(q, k, v, key_padding_mask=~keep)[0])


# ---------------------------------------------------------------------------- what is refused


def test_what_cannot_be_converted_says_so() -> None:
    with pytest.raises(
        tn.ShapeError, match=r"a Linear cannot be converted(?s:.*)there is MultiheadAttention"
    ):
        models.from_torch(torch.nn.Linear(2, 2))
    with pytest.raises(tn.ShapeError, match=r"a dict cannot be converted(?s:.*)ViTModel"):
        models.from_transformers({})
    config = transformers.XLNetConfig(**XLNET, attn_type="uni", same_length=True)
    with pytest.raises(tn.ShapeError, match=r"same_length is not supported"):
        models.from_transformers(transformers.XLNetModel(config))
    config = transformers.ViTConfig(**VIT, image_size=8, patch_size=4, hidden_act="sigmoid")
    with pytest.raises(tn.ShapeError, match=r"the activation 'sigmoid' is not supported"):
        models.from_transformers(transformers.ViTModel(config))


def test_parameters_have_the_shapes_of_the_graph() -> None:
    model = transformers.ViTModel(transformers.ViTConfig(**VIT, image_size=8, patch_size=4))
    graph, parameters = models.from_transformers(model)
    expected = {name: array.shape for name, array in tn.init(graph).items()}
    assert {name: tuple(array.shape) for name, array in parameters.items()} == expected
    module = tn.module(graph)
    assert not module.load_state_dict(parameters).missing_keys
    assert np.isfinite(module(torch.zeros(1, 3, 8, 8)).numpy()).all()
