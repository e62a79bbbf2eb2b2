"""Models against `transformers` and torch: random weights, masks, odd sizes; float32 and float64."""

from __future__ import annotations

import copy
import functools
import logging
from typing import Any

import numpy as np
import pytest
import torch

import tensornet as tn
from tensornet import models

from .conftest import exact_perceiver, randomized, rows, sampled

transformers = pytest.importorskip("transformers")
logging.getLogger("transformers").setLevel(logging.ERROR)

DTYPES = sampled([torch.float32, torch.float64], [torch.float64])
BOUND = {torch.float32: 1e-5, torch.float64: 1e-9}
pytestmark = [
    pytest.mark.usefixtures("without_gradients"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]


def same(found: Any, expected: torch.Tensor, bound: float | None = None) -> None:
    scale = max(1.0, float(expected.abs().max()))
    assert found.shape == expected.shape
    assert float((found - expected).abs().max()) / scale < (bound or BOUND[expected.dtype])


def run(converted: tuple[tn.Graph, dict[str, Any]], *inputs: Any) -> Any:
    """The model of ours on the same inputs; a mask of numbers is of the type of the weights, as all are."""
    graph, parameters = converted
    dtype = next(each.dtype for each in parameters.values() if each.is_floating_point())
    given = [each.to(dtype) if each.is_floating_point() else each for each in inputs]
    return tn.compile(graph, backend="torch")(parameters, *given)


def tensor(outputs: Any) -> torch.Tensor:
    """The first of the outputs of a reference that is one."""
    if isinstance(outputs, torch.Tensor):
        return outputs
    outputs = outputs if isinstance(outputs, tuple) else outputs.to_tuple()
    return next(each for each in outputs if isinstance(each, torch.Tensor))


def agrees(model: Any, expected: Any, *given: Any, bound: float | None = None, **changes: Any) -> None:
    """Converted with these changes the model gives, for what ours is given, what the reference does."""
    convert = models.from_torch if type(model).__module__.startswith("torch.") else models.from_transformers
    same(run(convert(model, **changes), *given), tensor(expected), bound)


VIT = {"hidden_size": 12, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 20}


# ---------------------------------------------------------------------------- Perceiver


PERCEIVER = {
    "num_latents": 7,
    "d_latents": 12,
    "num_blocks": 2,
    "num_self_attends_per_block": 3,
    "num_labels": 5,
}
PERCEIVER |= {"self_attention_widening_factor": 2, "cross_attention_widening_factor": 3}
PERCEIVER |= {"num_self_attention_heads": 4, "num_cross_attention_heads": 1, "image_size": 9}


def perceiver_config(**changes: Any) -> Any:
    return transformers.PerceiverConfig(**{**PERCEIVER, **changes})


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", ["kv", "q"])
def test_perceiver_reads_an_array(dtype: torch.dtype, shape: str) -> None:
    config = perceiver_config(
        d_model=10, num_cross_attention_heads=2, cross_attention_shape_for_attention=shape
    )
    model = randomized(transformers.PerceiverModel(config), dtype)
    x, keep = torch.randn(2, 11, 10, dtype=dtype), torch.ones(2, 11)
    keep[1, 6:] = 0
    agrees(model, model(inputs=x), x)
    agrees(model, model(inputs=x, attention_mask=keep), x, keep, mask=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["Fourier", "Learned", "ConvProcessing"])
def test_perceiver_classifies_images(dtype: torch.dtype, kind: str) -> None:
    config = perceiver_config(image_size=22 if kind == "ConvProcessing" else 9)
    model = randomized(getattr(transformers, f"PerceiverForImageClassification{kind}")(config), dtype)
    if kind == "ConvProcessing":
        norm = model.perceiver.input_preprocessor.convnet.batchnorm
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
    x = torch.randn(2, 3, config.image_size, config.image_size, dtype=dtype)
    with exact_perceiver(dtype):
        expected = model(inputs=x).logits
    agrees(model, expected, x)


# ---------------------------------------------------------------------------- XLNet

XLNET = {"vocab_size": 29, "d_model": 12, "n_layer": 3, "n_head": 3, "d_inner": 20, "dropout": 0.0}


@pytest.fixture
def exact_sinusoids(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference rounds its sinusoids to float32; in float64 they stay exact, and two streams run."""
    if dtype == torch.float64:
        monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)


def xlnet(dtype: torch.dtype, kind: str = "Model", **changes: Any) -> Any:
    model = getattr(transformers, f"XLNet{kind}")
    return randomized(model(transformers.XLNetConfig(**XLNET, **changes)), dtype)


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
    model, x = xlnet(dtype), xlnet_inputs(dtype)
    ids, segment, keep = x["ids"], x["segment"], x["keep"]
    agrees(model, model(ids), ids)
    agrees(model, model(ids, token_type_ids=segment), ids, segment, segments=True)
    agrees(model, model(ids, attention_mask=keep), ids, keep, mask="padding")
    expected = model(ids, perm_mask=x["hidden"], attention_mask=keep, token_type_ids=segment)
    changes = {"mask": ("permutation", "padding"), "segments": True}
    agrees(model, expected, ids, x["see"], keep, segment, **changes)


DISTANCES = [{}, {"clamp_len": 3}, {"bi_data": True}, {"clamp_len": 1, "bi_data": True, "attn_type": "uni"}]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("changes", DISTANCES)
def test_xlnet_memory(exact_sinusoids: None, dtype: torch.dtype, changes: dict[str, Any]) -> None:
    model, x = xlnet(dtype, **changes), xlnet_inputs(dtype)
    masks = (
        {} if "attn_type" in changes else {"attention_mask": x["keep"]}
    )  # beside which the reference fails
    ours = models.from_transformers(model, memory=True, segments=True, mask="padding" if masks else None)
    memories = [each.transpose(0, 1).contiguous() for each in x["memories"]]
    y, *inner = run(ours, x["ids"], *masks.values(), x["segment"], *memories)
    expected = model(x["ids"], token_type_ids=x["segment"], mems=x["memories"], use_mems=True, **masks)
    same(y, expected.last_hidden_state)
    for before, after, theirs in zip(memories, inner, expected.mems, strict=True):
        same(torch.cat([before, after], 1), theirs.transpose(0, 1))


@pytest.mark.parametrize("mask", [None, "permutation", ("permutation", "padding")])
@pytest.mark.parametrize("memory", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_xlnet_two_streams(exact_sinusoids: None, mask: Any, memory: bool, dtype: torch.dtype) -> None:
    model, x = xlnet(dtype), xlnet_inputs(dtype)
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
    model, x = xlnet(torch.float32), xlnet_inputs(torch.float32)
    nothing = torch.ones(2, 7, 7)
    expected = model(x["ids"], perm_mask=nothing, target_mapping=x["mapping"])
    agrees(model, expected, x["ids"], x["targets"], 1 - nothing, two_streams=True, mask="permutation")


# ---------------------------------------------------------------------------- Transformer


def sides(heads: int, width: int) -> dict[str, int]:
    """The settings of Marian that its encoder and its decoder have alike."""
    settings = {"attention_heads": heads, "ffn_dim": width}
    return {f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in settings.items()}


MARIAN = {**sides(2, 6), "d_model": 4, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 13}
MARIAN |= {"max_position_embeddings": 16, "decoder_start_token_id": 0}
MARIAN |= {"pad_token_id": 0, "eos_token_id": 1, "forced_eos_token_id": 1}
WIDER = {**sides(3, 20), "d_model": 12, "encoder_layers": 2, "decoder_layers": 3, "vocab_size": 31}
APART = {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 23, "tie_word_embeddings": False}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("changes", [{}, {"scale_embedding": True, "activation_function": "swish"}, APART])
def test_marian(dtype: torch.dtype, changes: dict[str, Any]) -> None:
    model = transformers.MarianMTModel(transformers.MarianConfig(**{**MARIAN, **WIDER, **changes}))
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
    expected = model(input_ids=source, decoder_input_ids=target, attention_mask=keep)
    agrees(model, expected, source, target, keep, torch.ones(3, 7), bound=bound, padding=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("changes", [{}, {"norm_first": True, "activation": "gelu"}, {"bias": False}])
def test_torch_transformer(dtype: torch.dtype, changes: dict[str, Any]) -> None:
    model = randomized(torch.nn.Transformer(12, 3, 2, 3, 20, batch_first=True, **changes), dtype)
    source, target = torch.randn(3, 9, 12, dtype=dtype), torch.randn(3, 7, 12, dtype=dtype)
    ahead = torch.ones(7, 7, dtype=torch.bool).triu(1)
    agrees(model, model(source, target, tgt_mask=ahead), source, target)
    keep, own = torch.ones(3, 9, dtype=torch.bool), torch.ones(3, 7, dtype=torch.bool)
    keep[0, 4:], own[2, 3:] = False, False
    masks = {"src_key_padding_mask": ~keep, "tgt_key_padding_mask": ~own, "memory_key_padding_mask": ~keep}
    agrees(model, model(source, target, tgt_mask=ahead, **masks), source, target, keep, own, padding=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("changes", [{}, {"kdim": 5, "vdim": 7}, {"bias": False}])
def test_multihead_attention(dtype: torch.dtype, changes: dict[str, Any]) -> None:
    module = randomized(torch.nn.MultiheadAttention(12, 3, batch_first=True, **changes), dtype)
    q, k, v = (
        torch.randn(2, n, width, dtype=dtype) for n, width in ((5, 12), (8, module.kdim), (8, module.vdim))
    )
    agrees(module, module(q, k, v), q, k, v)
    keep = torch.rand(2, 8) < 0.7
    keep[:, 0] = True
    agrees(module, module(q, k, v, key_padding_mask=~keep), q, k, v, keep, mask="padding")


# ---------------------------------------------------------------------------- every field

IMAGE = {**VIT, "num_hidden_layers": 1, "image_size": 8, "patch_size": 4}
TEXT = {**VIT, "num_hidden_layers": 1, "vocab_size": 13, "max_position_embeddings": 8}
ONE_LAYER: dict[str, tuple[str, dict[str, Any]]] = {
    kind: (told.split()[0], eval(told.partition(" ")[2])) for kind, told in rows("one_layer.txt")
}
WORDS = "relu gelu_new gelu_10 quick_gelu silu q uni first mean identity cls_index"


def others(value: Any) -> list[Any]:
    """What a field could be besides."""
    match value:
        case bool():
            return [not value]
        case int():
            return [2 * value, value + 1, 0]
        case float():
            return [2 * value + 0.25]
        case str():
            return [word for word in WORDS.split() if word != value]
        case list() | tuple():
            return [[2 * each if isinstance(each, int) else each for each in value], [*value, *value[-1:]]]
        case _:
            return [True, 2, 0.5]


def reference(
    kind: str, fields: dict[str, Any], dtype: torch.dtype = torch.float64
) -> tuple[Any, list[torch.Tensor], torch.Tensor]:
    """A model of the reference with these fields, inputs, and its outputs."""
    config = ONE_LAYER[kind][0]
    model = getattr(transformers, kind)(getattr(transformers, f"{config}Config")(**fields))
    tables = {name: table.clone() for name, table in model.named_parameters() if not table.requires_grad}
    torch.manual_seed(1)
    model = randomized(model, dtype)
    for name, table in tables.items():
        model.get_parameter(name).copy_(table)
    kept = model.state_dict()
    for name, buffer in model.named_buffers():
        buffer += torch.randn_like(buffer) if name in kept and buffer.is_floating_point() else 0
    inputs = [
        each.to(dtype) if each.is_floating_point() else each for each in inputs_of(config, model.config)
    ]
    return model, inputs, tensor(model(*inputs))


def inputs_of(config: str, fields: Any) -> list[torch.Tensor]:
    torch.manual_seed(2)
    if config in ("ViT", "DeiT", "CLIPVision", "Swin") or (config == "Perceiver" and fields.image_size == 3):
        side = fields.image_size
        shape = tuple(side) if isinstance(side, list | tuple) else (side, side)
        channels = fields.num_channels if config != "Perceiver" else 3
        return [torch.randn(2, channels, *shape, dtype=torch.float64)]
    if config == "Perceiver":
        return [torch.randn(2, 5, fields.d_model, dtype=torch.float64)]
    words = torch.randint(0, 11, (2, 6))
    return [words, torch.ones_like(words), words[:, :4]] if config == "Marian" else [words]


PICTURES = {**VIT, "image_size": 16, "patch_size": 4, "num_labels": 7}
NARROW = {**VIT, "image_size": (24, 40), "patch_size": 8, "num_channels": 1, "attn_implementation": "sdpa"}
PLAIN = {**NARROW, "image_size": 15, "patch_size": 5, "hidden_act": "gelu_new", "qkv_bias": False}
WORDS_OF = {**XLNET, "num_labels": 4}
WINDOWS = {
    "patch_size": 4,
    "embed_dim": 8,
    "depths": [2, 2],
    "num_heads": [2, 4],
    "window_size": 4,
    "num_labels": 5,
}
ODD = {"image_size": 37, "layer_norm_eps": 0.3, "window_size": 3, "qkv_bias": False, "mlp_ratio": 2.5}
DEEPER = {"image_size": 64, "depths": [2, 1, 2], "num_heads": [2, 2, 4], "attn_implementation": "sdpa"}
AGREE: list[tuple[str, dict[str, Any]]] = [
    *((kind, {**WINDOWS, **each}) for kind in ("SwinModel", "SwinForImageClassification")
      for each in ({"image_size": 32}, {"image_size": (50, 70)}, ODD, DEEPER)),
    ("ViTModel", {**NARROW, "image_size": 32, "num_channels": 3}),
    ("ViTModel", NARROW),
    ("ViTModel", {**PLAIN, "num_channels": 3, "layer_norm_eps": 1e-6}),
    ("ViTForImageClassification", PICTURES),
    *((f"XLNet{kind}", {**WORDS_OF, "attn_type": each})
      for kind in ("LMHeadModel", "ForSequenceClassification") for each in ("bi", "uni")),
]  # fmt: skip


@pytest.mark.parametrize("dtype", BOUND)
@pytest.mark.parametrize(("kind", "fields"), AGREE)
def test_models_agree(exact_sinusoids: None, dtype: torch.dtype, kind: str, fields: dict[str, Any]) -> None:
    model, inputs, expected = reference(kind, fields, dtype)
    graph, parameters = models.from_transformers(model)
    same(run((graph, parameters), *inputs), expected)
    numbers = tn.to_backend(parameters, "numpy")
    on_numpy = tn.compile(graph, backend="numpy")(numbers, *[each.numpy() for each in inputs])
    same(torch.tensor(on_numpy), expected)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64])
@pytest.mark.parametrize("kind", ONE_LAYER)
def test_every_value_of_every_field_counts(exact_sinusoids: None, dtype: torch.dtype, kind: str) -> None:
    assert counted(kind) > 40


BOUNDS = {"Marian": 1e-6, "Llama": 1e-5}
"""Of references that round sinusoids, or norms, to float32."""


def counted(kind: str) -> int:
    """How many changed fields the reference runs with; each is compared."""
    fields, tried = ONE_LAYER[kind][1], 0
    model, inputs, expected = reference(kind, fields)
    graph, parameters = models.from_transformers(model)
    same(run((graph, parameters), *ours(kind, inputs)), expected, BOUNDS.get(ONE_LAYER[kind][0], 1e-9))
    for field, value in model.config.to_dict().items():
        for changed in others(value):
            try:
                theirs, inputs, outputs = reference(kind, {**fields, field: changed})
            except Exception:  # whatever the reference itself cannot be
                continue
            tried += 1
            try:
                converted = models.from_transformers(theirs)
            except tn.TensornetError:
                continue
            if converted[0] != graph or not torch.equal(outputs, expected):  # weights are the same
                same(run(converted, *ours(kind, inputs)), outputs, BOUNDS.get(ONE_LAYER[kind][0], 1e-9))
    return tried


def ours(kind: str, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Our inputs of theirs: Marian's has a mask between its words."""
    return inputs[::2] if "Marian" in kind else inputs


# ---------------------------------------------------------------------------- parts of torch


GELU_TANH = functools.partial(torch.nn.functional.gelu, approximate="tanh")


def stacks(**changes: Any) -> dict[str, Any]:
    """Each class of torch.nn that is a Transformer or a part of one."""
    settings = {"dropout": 0.0, "batch_first": True, **changes}
    encoder = torch.nn.TransformerEncoderLayer(12, 3, 20, **settings)
    decoder = torch.nn.TransformerDecoderLayer(12, 3, 20, **settings)
    return {
        "Transformer": torch.nn.Transformer(12, 3, 1, 2, 20, **settings),
        "TransformerEncoderLayer": encoder,
        "TransformerDecoderLayer": decoder,
        "TransformerEncoder": torch.nn.TransformerEncoder(encoder, 2, enable_nested_tensor=False),
        "TransformerDecoder": torch.nn.TransformerDecoder(
            decoder, 2, torch.nn.LayerNorm(12, bias=settings.get("bias", True))
        ),
    }


@pytest.mark.parametrize(
    ("causal", "changes"), [(False, {}), (True, {"bias": False, "norm_first": True, "activation": GELU_TANH})]
)
@pytest.mark.parametrize("kind", ["", "Encoder", "EncoderLayer", "Decoder", "DecoderLayer"])
def test_stacks_and_layers_of_torch(kind: str, causal: bool, changes: dict[str, Any]) -> None:
    model = randomized(stacks(**changes)[f"Transformer{kind}"], torch.float64)
    source, target = torch.randn(2, 5, 12, dtype=torch.float64), torch.randn(2, 4, 12, dtype=torch.float64)
    converted = models.from_torch(model, causal=causal)
    ahead = torch.ones(5, 5, dtype=torch.bool).triu(1) if causal else None
    if kind.startswith("Encoder"):
        masks = {"src_mask" if kind.endswith("Layer") else "mask": ahead}
        same(run(converted, source), model(source, **masks))
    else:
        masks = {"tgt_mask": ahead[:4, :4] if causal else None}
        given = (source, target) if not kind else (target, source)
        same(run(converted, *given), model(*given, **masks))
    assert tn.parameter_count(converted[0]) == sum(each.numel() for each in model.parameters())


def test_a_decoder_is_causal_and_an_encoder_is_not_by_default() -> None:
    for kind, module in stacks().items():
        assert models.from_torch(module)[0] == models.from_torch(module, causal="Encoder" not in kind)[0]


def test_dropout_of_torch_is_carried() -> None:
    module = stacks(dropout=0.25)["TransformerEncoder"]
    assert models.from_torch(module)[0] == models.from_torch(module, dropout=0.25)[0]
    graph, _ = models.from_torch(module, dropout=0.0)
    assert "dropout" not in str(graph)


def test_what_differs_in_its_parameters_alone_is_carried() -> None:
    module = randomized(torch.nn.Transformer(12, 3, 1, 2, 20, 0.0, batch_first=True), torch.float64)
    module.decoder.layers[0].linear2.bias = torch.nn.Parameter(torch.ones(12))
    x, ahead = torch.randn(2, 4, 12, dtype=torch.float64), torch.ones(4, 4, dtype=torch.bool).triu(1)
    agrees(module.double(), module(x, x, tgt_mask=ahead), x, x)


class Same(torch.nn.TransformerEncoderLayer):
    def extra_repr(self) -> str:
        return "the same"


def test_classes_derived_from_those_of_torch() -> None:
    x = torch.randn(2, 4, 12, dtype=torch.float64)
    module = randomized(Same(12, 3, 20, batch_first=True), torch.float64)
    same(run(models.from_torch(module), x), module(x))
    stack = randomized(torch.nn.TransformerEncoder(module, 2, enable_nested_tensor=False), torch.float64)
    same(run(models.from_torch(stack), x), stack(x))


def test_a_function_is_known_by_its_values() -> None:
    exact = torch.nn.TransformerEncoderLayer(12, 3, 20, activation=lambda x: x * torch.sigmoid(x))
    assert "silu(" in str(models.from_torch(exact)[0])


# ---------------------------------------------------------------------------- counts

COUNTED: dict[str, tuple[dict[str, Any], str]] = {
    "ViTModel": ({}, "pooler"),
    "SwinModel": ({}, "pooler"),
    "XLNetModel": ({"segments": True, "two_streams": True, "mask": "permutation"}, ""),
    "XLNetLMHeadModel": ({"segments": True, "two_streams": True, "mask": "permutation"}, ""),
    "XLNetForSequenceClassification": ({"segments": True}, "mask_emb"),
}


@pytest.mark.parametrize("kind", [*ONE_LAYER, "PerceiverForImageClassificationConvProcessing"])
def test_parameters_are_theirs_and_no_more(kind: str) -> None:
    """All that the reference trains, but for a pooler or a vector that its outputs do not depend on."""
    config, fields = ONE_LAYER.get(kind, ("Perceiver", {**ONE_LAYER["PerceiverModel"][1], "image_size": 22}))
    fields = {**fields, "num_cross_attention_heads": 1} if config == "Perceiver" else fields
    model = getattr(transformers, kind)(getattr(transformers, f"{config}Config")(**fields))
    changes, unused = COUNTED.get(kind, ({}, "none"))
    graph, parameters = models.from_transformers(model, **changes)
    trained = {name: each for name, each in model.named_parameters() if each.requires_grad}
    expected = sum(each.numel() for name, each in trained.items() if unused not in name or not unused)
    assert tn.parameter_count(graph) == sum(each.numel() for each in parameters.values()) == expected


def test_a_buffer_is_a_constant() -> None:
    model, inputs, expected = reference("MarianMTModel", MARIAN)
    graph, parameters = models.from_transformers(model)
    assert "head.bias" not in parameters
    (bias,) = [leaf for leaf in graph.constants if leaf.name == "head.bias"]
    np.testing.assert_array_equal(bias.value.array(), model.final_logits_bias[0].numpy())
    read_back = tn.Graph.from_json(graph.to_json())
    same(run((read_back, parameters), *ours("MarianMTModel", inputs)), expected, 1e-6)


# ---------------------------------------------------------------------------- altered by hand


def made(kind: str) -> Any:
    """A model as its class and its configuration make it."""
    config, fields = ONE_LAYER[kind]
    return getattr(transformers, kind)(getattr(transformers, f"{config}Config")(**fields)).eval()


def doubled(module: Any, args: Any, *result: Any) -> Any:
    return (2 * args[0], *args[1:]) if not result else result[0]


def test_what_was_altered_by_hand_and_is_as_it_was_converts() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    module[0].register_forward_hook(doubled).remove()
    models.from_torch(module)


@pytest.mark.filterwarnings("ignore")  # of transformers
@pytest.mark.parametrize("kind", ONE_LAYER)
def test_models_as_they_are_used_convert(kind: str, tmp_path: Any) -> None:
    """What is not part of what a model computes is no reason to refuse it."""
    model = made(kind)
    graph, _ = models.from_transformers(model)
    model(
        *[
            each.float() if each.is_floating_point() else each
            for each in inputs_of(ONE_LAYER[kind][0], model.config)
        ]
    )
    model.train().requires_grad_(False)
    if model.supports_gradient_checkpointing:
        model.gradient_checkpointing_enable()
    if model.get_input_embeddings() is not None and "Perceiver" not in kind:
        model.enable_input_require_grads()
    model.config.output_hidden_states = True
    assert models.from_transformers(model)[0] == graph
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    assert models.from_transformers(again)[0] == graph
    if not kind.startswith(("Marian", "Llama")):  # these round tables of positions, or of frequencies
        models.from_transformers(copy.deepcopy(again).bfloat16())


def test_embeddings_of_another_size_convert() -> None:
    for kind in ("BertForMaskedLM", "GPT2LMHeadModel", "LlamaForCausalLM", "XLNetLMHeadModel"):
        model = made(kind)
        model.resize_token_embeddings(17)
        _, parameters = models.from_transformers(model)
        assert len(parameters["embedding.E"]) == 17


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64])
@pytest.mark.parametrize("kind", ONE_LAYER)
def test_every_attribute_of_every_part_counts(exact_sinusoids: None, dtype: torch.dtype, kind: str) -> None:
    """Each number, truth or word that a part holds is another in turn: the same outputs, or an error of ours."""
    model, inputs, expected = reference(kind, ONE_LAYER[kind][1])
    bound = BOUNDS.get(ONE_LAYER[kind][0], 1e-9)
    graph, _ = models.from_transformers(model)
    seen: set[Any] = set()
    for path, part in model.named_modules():
        for name, value in list(vars(part).items()):
            kinds = {
                bool: lambda x: not x,
                int: lambda x: 2 * x + 1,
                float: lambda x: 2 * x + 1,
                str: lambda x: "q",
            }
            if name.startswith("_") or name == "training" or type(value) not in kinds:
                continue
            if (type(part), name) in seen:
                continue
            seen.add((type(part), name))
            other = copy.deepcopy(model)
            setattr(other.get_submodule(path), name, kinds[type(value)](value))  # type: ignore[no-untyped-call]
            try:
                outputs = tensor(other(*inputs))
                converted = models.from_transformers(other)
            except Exception:  # refused, or nothing that the reference runs with
                continue
            if converted[0] != graph or not torch.equal(outputs, expected):
                same(run(converted, *ours(kind, inputs)), outputs, bound)
    assert len(seen) > 10


@pytest.mark.parametrize(("image", "stages"), [(16, ["stage1", "stage2"]), (14, ["stage2"])])
def test_a_swin_backbone(image: int, stages: list[str]) -> None:
    """Its windows are shifted where one holds the whole grid, too."""
    fields = {**ONE_LAYER["SwinModel"][1], "image_size": image, "depths": [2, 2], "window_size": 3}
    config = transformers.SwinConfig(**fields, out_features=stages, layer_norm_eps=0.1)
    model = randomized(transformers.SwinBackbone(config), torch.float64)
    x = torch.randn(2, 3, image, image, dtype=torch.float64)
    graph, parameters = models.from_transformers(model)
    found = run((graph, parameters), x)
    found = found if isinstance(found, tuple) else (found,)
    for ours, theirs in zip(found, model(x).feature_maps, strict=True):
        same(ours, theirs)


# ---------------------------------------------------------------------------- changes


def test_attention_takes_changes() -> None:
    assert models.from_torch(torch.nn.MultiheadAttention(8, 2), dim=8)[0].parameters


def test_a_larger_image_after_resizing_positions() -> None:
    """As the error for `image=` says; the reference does the same when it interpolates."""
    model, *_ = reference("ViTModel", ONE_LAYER["ViTModel"][1])
    x = torch.randn(2, 3, 12, 16, dtype=torch.float64)
    expected = model(x, interpolate_pos_encoding=True).last_hidden_state
    resize = tn.compile(models.resize_positions((2, 2), (3, 4), convention="bicubic"), backend="torch")
    resized = resize({}, model.embeddings.position_embeddings[0])
    model.embeddings.position_embeddings = torch.nn.Parameter(resized[None])
    same(run(models.from_transformers(model, image=(12, 16)), x), expected)
