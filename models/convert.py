"""Conversion of models of Hugging Face `transformers` and of torch into graphs and parameters.

The class of a model selects its converter, and its configuration becomes settings. Each of our parameters is
looked up by its name in the other library (`#` is the number of a layer).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import tensornet.api as tn
from tensornet.errors import ShapeError
from tensornet.graph.graph import Graph
from tensornet.graph.leaves import Constant
from tensornet.sizes import evaluate

from .conversions.altered import check_unaltered
from .conversions.images import IMAGES
from .conversions.names import Converter, Made, known_base, resolved
from .conversions.texts import TEXTS
from .conversions.torch_modules import MODULES

TRANSFORMERS: dict[str, Converter] = {**IMAGES, **TEXTS}
"""Converters by the class of `transformers`."""

TORCH: dict[str, Converter] = {
    **MODULES,
    **{kind: converter for kind, converter in TEXTS.items() if kind.startswith("Marian")},
}
"""Converters by the class of torch."""

UNREAD = re.compile(
    r"pooler\.|mask_token$|mask_emb$|seg_embed$|r_s_bias$|(embed_positions|shared)\.weight$|^swin\.layernorm\."
    r"|^post_layernorm\."
)
"""Parameters that only optional outputs depend on, and tables that we compute."""

Parameters = dict[str, Any]


def from_transformers(model: Any, **changes: Any) -> tuple[tn.Graph, Parameters]:
    """The graph and the parameters of a Hugging Face model, with the same outputs.

    | class | input | output |
    |---|---|---|
    | ViTModel | pixel_values[b, C, H, W] | last_hidden_state |
    | ViTForImageClassification | the same | logits |
    | DeiTModel, DeiTForImageClassification, …WithTeacher | the same | last_hidden_state, logits |
    | CLIPVisionModel, …WithProjection | the same | last_hidden_state, image_embeds |
    | CLIPTextModel, …WithProjection | input_ids[b, n] | last_hidden_state, text_embeds |
    | SwinModel, SwinForImageClassification | pixel_values[b, C, H, W] | last_hidden_state, logits |
    | SwinBackbone, of stages after the stem | the same | feature_maps |
    | PerceiverModel | inputs[b, M, C], tokens or images | last_hidden_state; with a decoder logits |
    | PerceiverForImageClassificationFourier, …Learned, …ConvProcessing | inputs[b, C, H, W] | logits |
    | PerceiverForMaskedLM, PerceiverForSequenceClassification | inputs[b, M] of tokens | logits |
    | BertModel | input_ids[b, n] | last_hidden_state |
    | BertForMaskedLM, …ForSequenceClassification, …ForTokenClassification | the same | logits |
    | GPT2Model, LlamaModel | the same | last_hidden_state |
    | GPT2LMHeadModel, LlamaForCausalLM | the same | logits |
    | XLNetModel | input_ids[b, n] | last_hidden_state |
    | XLNetLMHeadModel, XLNetForSequenceClassification | the same | logits |
    | MarianModel | input_ids[b, m], decoder_input_ids[b, n] | last_hidden_state |
    | MarianMTModel | the same | logits |

    Args:
        model: a model of one of these classes, or of a derived class that computes the same. The
            graph is that of `model.eval()`; give `dropout=` to train with dropout (all but Perceiver).
        **changes: settings of our model that the configuration does not fix, such as
            `two_streams=True, mask="permutation", segments=True, memory=True` for XLNet, whose
            masks are nonzero at positions that may be seen; `mask=True` for the Perceiver; `padding=True` for
            Marian, BERT, GPT-2, Llama and the text encoder of CLIP; `segments=True` for BERT; `past=True` for GPT-2
            and Llama, to decode step by step from stored keys and values. With causal attention
            (`attn_type="uni"`) XLNet's query stream never sees its own token here; in `transformers` it does
            unless a permutation mask forbids it.

    Returns:
        The graph, and a dictionary from names to parameters. These are the model's own tensors, detached and in
        the shapes of the graph; transposed weights (GPT-2) are copied. `tensornet.to_backend` moves them to
        another library. Buffers of the model become constants of the graph.

    Raises:
        ShapeError: the class, its configuration or a setting is not supported.

    Example:
        >>> from transformers import ViTConfig, ViTModel
        >>> config = ViTConfig(
        ...     hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=32
        ... )
        >>> graph, parameters = from_transformers(ViTModel(config))
        >>> parameters["blocks.0.attention.Wq"].shape
        torch.Size([8, 8])
    """
    return _converted(model, TRANSFORMERS, changes)


def from_torch(module: Any, **changes: Any) -> tuple[tn.Graph, Parameters]:
    """The graph and the parameters of a module of torch, with the same outputs.

    | class | inputs | output |
    |---|---|---|
    | torch.nn.Linear, LayerNorm, RMSNorm, activations, Dropout | x[…, width] | the same |
    | torch.nn.Embedding | t[…] | the same |
    | torch.nn.Conv1d to 3d, BatchNorm, MaxPool, AvgPool | x[b, C, …] | the same; norms as when evaluating |
    | torch.nn.Sequential of all these, Flatten, Softmax, encoders of Transformers | of the first | of the last |
    | torch.nn.MultiheadAttention | query, key, value[b, n, width] | attn_output |
    | torch.nn.Transformer | src[b, m, D], tgt[b, n, D] | as with `tgt_mask` causal |
    | torch.nn.TransformerEncoder, …EncoderLayer | src[b, m, D] | as without `mask` |
    | torch.nn.TransformerDecoder, …DecoderLayer | tgt[b, n, D], memory[b, m, D] | as with `tgt_mask` causal |
    | torch.nn.RNN, LSTM, GRU | x[b, t, i] | output; with `states=True` from h0 (and c0), and the last ones |
    | MarianModel, MarianMTModel (transformers) | input_ids[b, m], decoder_input_ids[b, n] | as there |

    The batch axis comes first in our graphs, for any value of `batch_first`.

    Args:
        module: a module of one of these classes, or of a derived class that computes the same.
        **changes: further settings of our model: `padding=True` for the masks of a Transformer, `causal=` for
            whether its attention is causal, `mask=` and `weights=` for attention, `dropout=` if the module has
            several rates. `inputs="x[b,c:3,i:32,j:32]"` declares the input of a Sequential whose layers do not
            determine it; it is x[b, c] if they begin with a Linear.

    Returns:
        The graph and the parameters by name, as `from_transformers` returns them.

    Raises:
        ShapeError: the class, its settings or a change of them is not supported.

    Example:
        >>> import torch
        >>> graph, parameters = from_torch(torch.nn.MultiheadAttention(8, 2))
        >>> parameters["Wk"].shape
        torch.Size([8, 8])
    """
    return _converted(module, TORCH, changes)


def _converted(
    model: Any, known: Mapping[str, Converter], changes: Mapping[str, Any]
) -> tuple[tn.Graph, Parameters]:
    base = known_base(model, known)
    name = base.__name__
    graph, names = known[name](model, dict(changes))
    made = resolved(graph, names, name, changes)
    state = {key: value.detach() for key, value in model.state_dict().items()}
    found = {leaf.name: _parameter(graph, leaf, made[leaf.name], state) for leaf in graph.parameters}
    trained = dict(model.named_parameters(remove_duplicate=False))
    _check_ties(made, trained)
    read = {id(trained[key]) for each in made.values() for key in each.keys if key in trained}
    for key, parameter in trained.items() if not changes else ():
        if id(parameter) not in read and not UNREAD.search(key):
            raise ShapeError(
                f"the model has '{key}', which is no part of the {name} known here",
                fix="take away what was added to the model, or merge it into its weights, as of adapters",
            )
    check_unaltered(model, base)
    fixed = {each: found.pop(each) for each in made if not any(key in trained for key in made[each].keys)}
    return _with_constants(graph, fixed), found


def _parameter(graph: tn.Graph, leaf: Any, theirs: Made, state: Mapping[str, Any]) -> Any:
    for key in theirs.keys:
        if key not in state:
            raise ShapeError(
                f"the model has no '{key}', where '{leaf.name}' should be",
                fix="convert a model whose parts are those of its class in torch, or in transformers 5.9",
            )
    found = theirs.make(*(state[key] for key in theirs.keys))
    shape = tuple(evaluate(size, graph.bound) for size in leaf.shape)
    if found.numel() != math.prod(shape):
        raise ShapeError(
            f"'{theirs.keys[0]}' is {tuple(found.shape)}, where '{leaf.name}' should be {shape}",
            fix=theirs.fix,
        )
    return found.reshape(shape)


def _check_ties(made: Mapping[str, Made], trained: Mapping[str, Any]) -> None:
    """Raises an error if two of our parameters are one in the model, since training would separate them."""
    seen: dict[Any, str] = {}
    for ours, each in made.items():
        same = (*(id(trained.get(key, key)) for key in each.keys), each.make)
        if seen.setdefault(same, ours) != ours:
            raise ShapeError(
                f"'{seen[same]}' and '{ours}' are one parameter there, and two here",
                fix="convert a copy whose layers have parameters of their own",
            )


def _with_constants(graph: Graph, values: Mapping[str, Any]) -> Graph:
    """The graph with the parameters named in `values` turned into constants, for the buffers of a model."""
    leaves = tuple(
        replace(
            leaf,
            kind="constant",
            start=None,
            value=Constant.of(values[leaf.name].double(), leaf.name),
        )
        if leaf.name in values
        else leaf
        for leaf in graph.leaves
    )
    return replace(graph, leaves=leaves) if values else graph
