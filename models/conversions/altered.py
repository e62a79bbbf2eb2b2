"""Detects manual changes of a model, since conversion reads only its class, configuration and parameters."""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Mapping
from types import BuiltinFunctionType, FunctionType
from typing import Any

from tensornet.errors import ShapeError

from .names import check_derived

READ = re.compile(
    r"^(eps|variance_epsilon|act|act_fn|activation_fn|activation_function|intermediate_act_fn|transform_act_fn)$"
)
"""Attributes of the parts of a model that converters read; they may differ from the configuration."""

HARMLESS = re.compile(
    r"^(_.*|training|gradient_checkpointing|name_or_path|warnings_issued|num_labels|padding_idx|layer_idx"
    r"|loss_type|chunk_size_feed_forward|p|.*drop.*|(in|out)_features|num_embeddings|embedding_dim|vocab_size"
    r"|sparse|scale_grad_by_freq|generation_config)$"
)
"""Attributes that the outputs of a model in evaluation mode do not depend on."""

IDLE = re.compile(r"Drop(out|Path)|^Identity$")
"""Classes of modules that do nothing in evaluation mode."""

HOOKS = {"_forward_pre_hooks": "a hook before its forward()", "_forward_hooks": "a hook after its forward()"}


def check_unaltered(model: Any, base: type) -> None:
    """Raises an error if a model may compute something else than its class and configuration define.

    Args:
        model: the model.
        base: its class in torch or transformers.

    Raises:
        ShapeError: a part has a hook, or a method, class or setting that differs.
    """
    for path, part in model.named_modules():
        _check_hooks(path or base.__name__, part)
        _check_methods(path or base.__name__, part)
    if base.__module__.startswith("transformers."):
        twin = _twin(model, base)
        given = inspect.signature(base).parameters  # converters read parts that the constructor was given
        handed = {name for name in model._modules if name in given and getattr(twin, name, None) is None}
        twin = _twin(model, base, **{name: getattr(model, name) for name in handed}) if handed else twin
        _check_parts(model, twin, base, handed)


def _check_hooks(path: str, part: Any) -> None:
    """Raises an error if a part has a hook, except those of transformers that record outputs or enable gradients."""
    for attribute, what in HOOKS.items():
        for hook in getattr(part, attribute).values():
            function = getattr(hook, "func", hook)
            if not str(getattr(function, "__module__", "")).startswith("transformers."):
                name = getattr(function, "__qualname__", type(function).__name__)
                raise ShapeError(
                    f"'{path}' has {what}, '{name}', which may change what it computes",
                    fix="remove the hook, and write what it does as a layer",
                )


def _check_methods(path: str, part: Any) -> None:
    kind = type(part)
    for name, value in vars(part).items():
        own = getattr(kind, name, None)
        if callable(value) and callable(own) and getattr(value, "__func__", value) is not own:
            raise ShapeError(
                f"'{path}' has a {name}() other than {kind.__name__} has, and may compute something else",
                fix=f"take it away (del module.{name}), and write the rest as a layer",
            )


def _twin(model: Any, base: Any, **handed: Any) -> Any:
    """A model with the same configuration and the parts in `handed`, on the meta device, without values."""
    device = next(model.parameters()).device
    with type(device)("meta"):
        return base(copy.deepcopy(model.config), **handed)


def _check_parts(model: Any, twin: Any, base: type, handed: set[str]) -> None:
    """Compares the modules of a model with those of its twin, without the parts in `handed`.

    Raises:
        ShapeError: the class or a setting of one differs, or a module is where the twin has none.
    """
    twins = dict(twin.named_modules(remove_duplicate=False))
    for path, part in model.named_modules(remove_duplicate=False):
        above, _, last = path.rpartition(".")
        if path.partition(".")[0] in handed or any(map(READ.match, path.split("."))):
            continue
        other, parent = twins.get(path), twins.get(above)
        if other is None:
            contained = type(parent).__module__ == "torch.nn.modules.container"
            if contained or (parent is not None and getattr(parent, last, part) is None):
                raise _differs(path, f"a {type(part).__name__}", base, "none")
        elif not (IDLE.search(type(part).__name__) and IDLE.search(type(other).__name__)):
            _check_part(part, other, base, path)


def _check_part(part: Any, twin: Any, base: type, path: str) -> None:
    """Raises an error if a module has another class or other settings than its twin."""
    kind, expected = type(part), type(twin)
    if not issubclass(kind, expected):
        raise _differs(path, f"a {kind.__name__}", base, f"a {expected.__name__}")
    check_derived(kind, kind.__mro__[: kind.__mro__.index(expected)], expected)
    clamp = getattr(twin, "set_shift_and_window_size", None)  # which Swin calls when it first runs
    if clamp is not None and (part.window_size, part.shift_size) != (twin.window_size, twin.shift_size):
        clamp(twin.input_resolution)
    for name, value in vars(part).items():
        wanted = getattr(twin, name, value)
        if not (READ.match(name) or HARMLESS.match(name) or _alike(value, wanted)):
            raise _differs(f"{path}.{name}".lstrip("."), _shown(value), base, _shown(wanted))


def _alike(value: Any, expected: Any) -> bool:
    """Whether two settings are equal. A value that cannot be compared counts as equal."""
    if hasattr(expected, "to_diff_dict"):
        return value is expected or _plain_config(value) == _plain_config(expected)
    if isinstance(expected, FunctionType | BuiltinFunctionType | type):
        return bool(getattr(value, "__qualname__", value) == expected.__qualname__)
    plain = (bool, int, float, str, tuple, list, type(None))
    return not (isinstance(value, plain) and isinstance(expected, plain)) or value == expected


def _plain_config(config: Any) -> Mapping[str, Any]:
    found = config.to_dict()
    return {name: each for name, each in found.items() if not HARMLESS.match(name)}


def _shown(value: Any) -> str:
    if hasattr(value, "to_diff_dict"):
        return "a configuration of its own"
    return getattr(value, "__qualname__", None) or repr(value)


def _differs(path: str, found: str, base: type, expected: str) -> ShapeError:
    return ShapeError(
        f"'{path}' is {found}, where a {base.__name__} of this configuration has {expected}",
        fix="convert the model as its class and its configuration make it, and write the change as a layer",
    )
