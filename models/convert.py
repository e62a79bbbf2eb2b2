"""Models of other libraries as graphs and parameters: Hugging Face `transformers`, and torch itself.

A model is known by the name of its class, its configuration becomes settings, and each of our
parameters is found under the name it has there (`#` stands for the number of a layer).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import tensornet as tn
from tensornet.errors import ShapeError
from tensornet.sizes import evaluate

from .conversions import TORCH, TRANSFORMERS, Converter, Names

__all__ = ["from_torch", "from_transformers"]

Parameters = dict[str, Any]


def from_transformers(model: Any, **changes: Any) -> tuple[tn.Graph, Parameters]:
    """The graph and the parameters of a Hugging Face model, with the same outputs.

    | class | input | output |
    |---|---|---|
    | ViTModel | pixel_values[b, C, H, W] | last_hidden_state |
    | ViTForImageClassification | the same | logits |
    | SwinModel, SwinForImageClassification | pixel_values[b, C, H, W] | last_hidden_state, logits |
    | PerceiverModel | inputs[b, M, C], tokens or images | last_hidden_state; with a decoder logits |
    | PerceiverForImageClassificationFourier, …Learned, …ConvProcessing | inputs[b, C, H, W] | logits |
    | PerceiverForMaskedLM, PerceiverForSequenceClassification | inputs[b, M] of tokens | logits |
    | XLNetModel | input_ids[b, n] | last_hidden_state |
    | XLNetLMHeadModel, XLNetForSequenceClassification | the same | logits |
    | MarianMTModel | input_ids[b, m], decoder_input_ids[b, n] | logits |

    Args:
        model: a model of one of these classes, in evaluation mode.
        **changes: settings of our model that the configuration does not fix, such as
            `two_streams=True, mask="permutation", segments=True, memory=True` for XLNet, whose
            masks are nonzero where something may be seen, or `mask=True` for the Perceiver and
            `padding=True` for Marian. With causal attention (`attn_type="uni"`) our query stream never
            sees its own token; theirs does unless a permutation mask forbids it.

    Returns:
        The graph, and name to parameter: the model's own tensors, detached and in the shapes of the
        graph; `tensornet.to_backend` moves them to another library.

    Raises:
        ShapeError: the class or its configuration is not supported.

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
    | torch.nn.MultiheadAttention | query, key, value[b, n, width] | attn_output |
    | torch.nn.Transformer | src[b, m, D], tgt[b, n, D] | as with `tgt_mask` causal |
    | MarianMTModel (transformers) | input_ids[b, m], decoder_input_ids[b, n] | logits |

    The batch comes first in our graphs, whatever `batch_first` says.

    Args:
        module: a module of one of these classes, in evaluation mode.
        **changes: settings of our model besides: `padding=True` for the masks of a Transformer,
            `mask=` and `weights=` for attention.

    Returns:
        The graph, and name to parameter, as `from_transformers` returns them.

    Raises:
        ShapeError: the class or its settings are not supported.

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
    name = type(model).__name__
    if name not in known:
        raise ShapeError(f"a {name} cannot be converted", fix=f"there is {', '.join(known)}")
    graph, names = known[name](model, dict(changes))
    state = {key: value.detach() for key, value in model.state_dict().items()}
    return graph, {leaf.name: _parameter(graph, leaf, names, state) for leaf in graph.parameters}


def _parameter(graph: tn.Graph, leaf: Any, names: Names, state: Mapping[str, Any]) -> Any:
    """The tensor that one of our parameters is there; `key|n` is the n-th third of stacked projections."""
    numbers = re.findall(r"(?<=\.)\d+(?=\.)", leaf.name)
    theirs = names[re.sub(r"(?<=\.)\d+(?=\.)", "#", leaf.name)]
    if callable(theirs):
        return theirs(state)
    key, _, third = theirs.partition("|")
    for number in numbers[len(numbers) - key.count("#") :]:
        key = key.replace("#", number, 1)
    shape = tuple(evaluate(size, graph.bound) for size in leaf.shape)
    if key not in state and key.endswith("bias"):  # modules of torch may go without
        like = next(iter(state.values()))
        return like.new_zeros(shape)
    if key not in state:
        raise ShapeError(
            f"the model has no '{key}', where '{leaf.name}' should be",
            fix="the names are those of transformers 5; save the model with it again",
        )
    found = state[key]
    if third:
        size = found.shape[0] // 3
        found = found[int(third) * size : (int(third) + 1) * size]
    if found.numel() != math.prod(shape):
        raise ShapeError(
            f"'{key}' is {tuple(found.shape)}, where '{leaf.name}' should be {shape}",
            fix="convert a model whose sizes fit its inputs, such as a window no larger than the grid",
        )
    return found.reshape(shape)
