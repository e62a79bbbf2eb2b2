"""Detects manual changes of a model, since conversion reads only its class, configuration and parameters."""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Iterator, Mapping
from types import BuiltinFunctionType, FunctionType
from typing import Any

from tensornet.errors import ShapeError

from .names import check_derived

__all__ = ["check_unaltered"]

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
        handed = _handed(model, twin, base)
        twin = _twin(model, base, **{name: getattr(model, name) for name in handed}) if handed else twin
        _check_parts(model, twin, base, "", handed)


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


def _handed(model: Any, twin: Any, base: type) -> set[str]:
    """The parts that were passed to the constructor of the model; converters read them, not the configuration."""
    given = inspect.signature(base).parameters
    return {name for name in model._modules if name in given and getattr(twin, name, None) is None}


def _check_parts(part: Any, twin: Any, base: type, path: str, skipped: set[str]) -> None:
    """Compares two modules and their submodules, and raises an error if they differ."""
    if not _same_class(path, part, twin, base):
        return
    _clamp(part, twin)
    for name, value in _settings(part, twin):
        expected = getattr(twin, name, value)
        if not _alike(value, expected):
            raise _differs(f"{path}{name}", _shown(value), base, _shown(expected))
    expected_parts = {name: each for name, each in twin._modules.items() if each is not None}
    contained = type(twin).__module__ == "torch.nn.modules.container"
    for name, each in part._modules.items():
        replaces = contained or getattr(twin, name, part) is None
        if name in skipped or READ.match(name) or each is None:
            continue
        if name in expected_parts:
            _check_parts(each, expected_parts[name], base, f"{path}{name}.", set())
        elif replaces:
            raise _differs(f"{path}{name}", f"a {type(each).__name__}", base, "none")


def _same_class(path: str, part: Any, twin: Any, base: type) -> bool:
    """Whether the contents of two modules need a comparison: not if both do nothing in evaluation mode.

    Raises:
        ShapeError: their classes compute different things.
    """
    kind, expected = type(part), type(twin)
    if IDLE.search(kind.__name__) and IDLE.search(expected.__name__):
        return False
    if not issubclass(kind, expected):
        raise _differs(path[:-1], f"a {kind.__name__}", base, f"a {expected.__name__}")
    check_derived(kind, kind.__mro__[: kind.__mro__.index(expected)], expected)
    return True


def _clamp(part: Any, twin: Any) -> None:
    """Limits the windows of a twin to the size of the grid, as Swin does when it first runs."""
    clamp = getattr(twin, "set_shift_and_window_size", None)
    if clamp is not None and (part.window_size, part.shift_size) != (twin.window_size, twin.shift_size):
        clamp(twin.input_resolution)


def _settings(part: Any, twin: Any) -> Iterator[tuple[str, Any]]:
    for name, value in vars(part).items():
        if not READ.match(name) and not HARMLESS.match(name):
            yield name, value


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
