"""The result type of converters, and names of parameters that several models have in common."""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import tensornet.api as tn
from tensornet.errors import ShapeError

from ..blocks import ACTIVATIONS, activated


@dataclass(frozen=True)
class Made:
    """How `make` computes one of our parameters from their tensors `keys`; `fix` is for an error if sizes differ."""

    keys: tuple[str, ...]
    make: Callable[..., Any] = lambda tensor: tensor
    fix: str = "convert a model whose sizes fit its inputs, such as a window no larger than the grid"


Names = dict[str, "str | Made"]
"""Our names of parameters to their names, or to a function of their tensors."""

Converted = tuple[tn.Graph, Names]
"""A graph, and where its parameters come from."""

Converter = Callable[[Any, dict[str, Any]], Converted]


def known_class(model: Any, known: Iterable[str], path: str = "") -> str:
    """The name of the class of torch or transformers that computes the same as `model`.

    Args:
        model: the model, or a module of one.
        known: the names of the supported classes.
        path: the path of the module in a model.

    Raises:
        ShapeError: there is none, or a derived class computes something else.
    """
    return known_base(model, known, path).__name__


def known_base(model: Any, known: Iterable[str], path: str = "") -> type:
    """The class whose name `known_class` returns."""
    for number, kind in enumerate(type(model).__mro__):
        if kind.__name__ in known and kind.__module__.partition(".")[0] in ("torch", "transformers"):
            check_derived(type(model), type(model).__mro__[:number], kind)
            return kind
    what = f"'{path}', a {type(model).__name__}," if path else f"a {type(model).__name__}"
    raise ShapeError(f"{what} cannot be converted", fix=f"there is {', '.join(known)}")


def check_derived(model: type, derived: Iterable[type], base: type) -> None:
    """Raises an error if a class derived from `base` redefines one of its methods."""
    for name in {name for each in derived for name in vars(each)} - _HARMLESS:
        if callable(getattr(base, name, None)) and not name.startswith("__"):
            raise ShapeError(
                f"{model.__name__} has a {name}() other than {base.__name__} has, and may compute something else",
                fix=f"convert a {base.__name__}, and write the rest as a layer",
            )


_HARMLESS = {"extra_repr", "reset_parameters", "_reset_parameters", "_init_weights", "train", "eval"}


def resolved(graph: tn.Graph, names: Names, model: str, changes: Mapping[str, Any]) -> dict[str, Made]:
    """The source of each parameter of a graph, with numbers of layers in place of `#`.

    Args:
        graph: the graph.
        names: our names to theirs.
        model: the name of the model in an error.
        changes: the settings that were changed.

    Raises:
        ShapeError: a parameter has no name in `names`.
    """
    return {leaf.name: _theirs(leaf.name, names, model, changes) for leaf in graph.parameters}


def _theirs(ours: str, names: Names, model: str, changes: Mapping[str, Any]) -> Made:
    """The source of one of our parameters."""
    numbered = r"(?<=\.)\d+(?=\.)"
    pattern = ours if ours in names else re.sub(numbered, "#", ours)
    if pattern not in names:
        given = ", ".join(f"{name}={value!r}" for name, value in changes.items())
        raise ShapeError(f"a {model} has nothing to be our '{ours}'", fix=f"leave out some of {given}")
    made = names[pattern]
    made = Made((made,)) if isinstance(made, str) else made
    numbers = re.findall(numbered, ours)

    def numbered_key(key: str) -> str:
        for number in numbers[len(numbers) - key.count("#") :]:
            key = key.replace("#", number, 1)
        return key

    return replace(made, keys=tuple(numbered_key(key) for key in made.keys))


ENCODER = {
    "dim": "hidden_size",
    "depth": "num_hidden_layers",
    "heads": "num_attention_heads",
    "hidden": "intermediate_size",
}
"""Our settings of a Transformer, and what most configurations call them."""


def configured(model: Any, known: Mapping[str, str], *activations: str, **more: str) -> dict[str, Any]:
    """The settings that the configuration of a model holds under other names.

    Args:
        model: the model.
        known: our names to theirs.
        *activations: the attributes of modules that hold the activation. If there are any, it and ε are told too.
        **more: further names.
    """
    found = {ours: getattr(model.config, theirs) for ours, theirs in {**known, **more}.items()}
    return found | (
        {"activation": activation_of(model, *activations), "eps": eps_of(model)} if activations else {}
    )


PARTS: dict[str, tuple[tuple[str, str], ...]] = {
    "norm": ((".gain", "weight"), (".bias", "bias")),
    "linear": ((".W", "weight"), (".bias", "bias")),
    "mlp": tuple((f".{kind}{n}", key) for n in "123" for kind, key in (("W", "weight"), ("b", "bias"))),
    "attention": tuple(
        (f".{kind}{n}", key) for n in "qkvo" for kind, key in (("W", "weight"), ("b", "bias"))
    ),
}
"""The parameters of each kind of part, ours and theirs. An MLP has two or three layers, an attention four."""


def table(text: str, prefix: str = "") -> Names:
    r"""Our names of parameters to theirs, from a table.

    A line is `is ours theirs` for one parameter, or `kind ours theirs` for the parts of a norm or a linear layer. For
    a kind with several layers, `theirs` is what their names begin with, and the rest follows.

    Args:
        text: the table.
        prefix: what all their names begin with.

    Example:
        >>> table("is E embed.weight\nnorm last ln_f", "model.")
        {'E': 'model.embed.weight', 'last.gain': 'model.ln_f.weight', 'last.bias': 'model.ln_f.bias'}
    """
    found: Names = {}
    for kind, ours, theirs, *layers in (line.split() for line in text.splitlines() if line.strip()):
        if kind == "is":
            found[ours] = prefix + theirs
            continue
        paths = [theirs + each for each in layers or [""] for _ in range(2)]
        for path, (name, key) in zip(paths, PARTS[kind], strict=False):
            found[ours + name] = f"{prefix}{path}.{key}"
    return found


def part_of(*keys: str, number: int = 0, count: int = 3, axis: int = 0, turned: bool = False) -> Made:
    """A part of a stack of weights, or the sum of such parts of several stacks.

    Args:
        keys: their names of the stacks.
        number, count: the part, and how many there are.
        axis: the dimension along which they are stacked.
        turned: whether the part is transposed; it is copied then, since products with strided rows are slower.
    """

    def part(*stacks: Any) -> Any:
        found = functools.reduce(operator.add, (stack.chunk(count, axis)[number] for stack in stacks))
        return found.T.contiguous() if turned else found

    return Made(keys, part)


def stacked_names(ours: str, theirs: str, width: bool = False) -> Names:
    """The names of an attention of torch. q, k and v share one array, unless `width`: their inputs differ in width."""
    found: Names = {f"{ours}Wo": f"{theirs}out_proj.weight", f"{ours}bo": f"{theirs}out_proj.bias"}
    for number, part in enumerate("qkv"):
        found[f"{ours}b{part}"] = part_of(f"{theirs}in_proj_bias", number=number)
        stacked = part_of(f"{theirs}in_proj_weight", number=number)
        found[f"{ours}W{part}"] = f"{theirs}{part}_proj_weight" if width else stacked
    return found


def alike(what: str, found: Mapping[str, Any]) -> Any:
    """The common value of all modules, given the value of each by its path.

    Raises:
        ShapeError: two values differ.
    """
    (first, value), *others = found.items()
    for path, other in others:
        if other != value:
            raise ShapeError(
                f"{what} differs: {value!r} in '{first}', {other!r} in '{path}'",
                fix="convert a model whose layers are alike",
            )
    return value


def eps_of(model: Any, where: str = "") -> float:
    """The common ε of all norms whose paths match `where`."""
    norms = {path: each for path, each in model.named_modules() if type(each).__name__ == "LayerNorm"}
    found = {path: each.eps for path, each in norms.items() if re.search(where, path)}
    return float(alike("eps", found)) if found else 1e-5


def activation_of(model: Any, *attributes: str) -> str:
    """Our name of the activation that all modules have in the given attributes."""
    like = next(model.parameters()).new_empty(0).double()
    names: Names = {
        path: _recognized(getattr(each, attribute), path or type(model).__name__, like)
        for path, each in model.named_modules()
        for attribute in attributes
        if hasattr(each, attribute)
    }
    return str(alike("activation", names)) if names else ACTIVATIONS[0]


def _recognized(function: Any, path: str, like: Any) -> str:
    """Our name of a function, found by comparing values, since its own name is not reliable.

    Raises:
        ShapeError: none of our activations has these values.
    """
    points = like.new_tensor([step / 8 for step in range(-160, 161)])
    values = function(points)
    for name in ACTIVATIONS:
        ours = _pointwise(name)({}, points)
        if values.shape == ours.shape and float((values - ours).abs().max()) < 1e-8:
            return name
    label = getattr(function, "__name__", type(function).__name__)
    raise ShapeError(
        f"the activation '{label}' of '{path}' is not supported", fix=f"there is {', '.join(ACTIVATIONS)}"
    )


@functools.cache
def _pointwise(name: str) -> Any:
    return tn.compile(tn.layer(f"y[i] = {activated(name, 'x[i]')}", inputs="x"), backend="torch")


def refuse(condition: bool, what: str) -> None:
    if condition:
        raise ShapeError(f"{what} is not supported", fix="convert a model without it")
