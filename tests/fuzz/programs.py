"""Models of layers whose names collide against their layers one by one; `differential.survey` has programs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import sympy

import tensornet as tn
from tensornet.graph.argument_shapes import sizes_from_shapes
from tensornet.graph.graph import inlined

from ..conftest import those_of
from . import SilentChangeError, Trial

_AXES = "bijnhd"


# ---------------------------------------------------------------------------- models


def compositions(trial: Trial) -> None:
    """A model of a few layers, all with the same few names for their axes, against running them one by one."""
    random = trial.random
    shape = [random.choice((1, 2, 3, 4, 6)) for _ in range(random.randint(1, 4))]
    x = np.random.default_rng(random.randrange(2**32)).standard_normal(shape)
    layers: list[tn.Graph] = []
    parameters: dict[str, Any] = {}
    value: Any = x
    for number in range(random.randint(2, 5)):
        if value.ndim > 5 or not value.size:
            break
        layer = _layer(trial, value.shape)
        trial.note(layer)
        sizes = sizes_from_shapes(layer, layer.inputs, [value.shape])
        own = tn.init(
            layer, seed=number, dtype="float64", **{name: sizes[name] for name in sizes if name != "lead"}
        )
        value = tn.compile(layer)(own, value)
        layers.append(layer)
        parameters |= {f"s{number}.{name}": array for name, array in own.items()}
    axes = random.sample(_AXES, len(shape))
    bound = {axis: size for axis, size in zip(axes, shape, strict=True) if trial.chance(0.5)}
    trial.note(f"x[{','.join(axes)}] {shape}, bound {bound}")
    model = _model(trial, layers, axes, bound)
    sized = model.bind(**sizes_from_shapes(model, model.inputs, [x.shape]))
    scopes = ("one", random.choice(("one", "two")))
    read = f"x[{','.join(axes)}]"
    twice = tn.model(lambda x: tuple(model(x, scope=each) for each in scopes), inputs=read, **bound)
    parameters |= {f"{scope}.{name}": each for scope in scopes for name, each in parameters.items()}
    for each in (model, model.flat, sized, sized.flat, twice):
        again = tn.layer(str(each))
        if again != each or hash(again) != hash(each) or tn.Graph.from_json(each.to_json()) != each:
            raise SilentChangeError("it reads back as another graph")
        if again.flat != each.flat:
            raise SilentChangeError("it reads back as another graph once all calls are written out")
        _agrees(again, parameters, x, value)
    some = inlined(twice, lambda call: trial.chance(0.5))
    if {leaf.name for leaf in some.leaves} != {leaf.name for leaf in twice.leaves}:
        raise SilentChangeError("it has other leaves where some calls are written out")
    _agrees(some, parameters, x, value)
    if trial.chance(0.2):
        _counts(twice)


def _agrees(graph: tn.Graph, parameters: Mapping[str, Any], x: Any, value: Any) -> None:
    """Each result of a graph has this value."""
    found = tn.compile(graph)(those_of(graph, parameters), x)
    for each in found if isinstance(found, tuple) else (found,):
        if each.shape != value.shape or not np.allclose(each, value, rtol=1e-8, atol=1e-9):
            told = f"the model gives {np.ravel(each)[:4]}, its layers {np.ravel(value)[:4]}"
            raise SilentChangeError(told)


def _counts(graph: tn.Graph) -> None:
    """Formulas, numbers and starts are those of all equations."""
    flat, sizes = graph.flat, dict.fromkeys(graph.open_sizes, 3)
    for formula in (tn.parameter_formula, functools.partial(tn.flop_formula, naive=True)):
        one, two = (formula(each).subs(dict(each.bound)).subs(dict(each.bound)) for each in (graph, flat))
        if sympy.expand(one - two) != 0:
            raise SilentChangeError("a formula is not that of all equations")
    if tn.parameter_table(graph) != tn.parameter_table(flat):
        raise SilentChangeError("the table of parameters is not that of all equations")
    if tn.flop_count(graph, naive=True, **sizes) != tn.flop_count(flat, naive=True, **sizes):
        raise SilentChangeError("the FLOPs are not those of all equations")
    names = {size.name for size in tn.flop_formula(graph).free_symbols}
    if not isinstance(tn.flop_count(graph, **sizes), int) or not names <= {*graph.bound, *graph.open_sizes}:
        raise SilentChangeError("a formula speaks of sizes that the graph has not")
    starts, others = tn.init(graph, seed=1, **sizes), tn.init(flat, seed=1, **sizes)
    if starts.keys() != others.keys() or any((starts[name] != others[name]).any() for name in starts):
        raise SilentChangeError("parameters start at other numbers than those of all equations")


def _model(
    trial: Trial, layers: Sequence[tn.Graph], axes: Sequence[str], bound: Mapping[str, int]
) -> tn.Graph:
    """A model of the layers; some of them may stand in a block of their own."""
    cut, others = trial.random.randrange(len(layers)), trial.random.sample(_AXES, len(axes))

    def chain(first: int, last: int) -> Callable[[Any], Any]:
        def forward(tensor: Any) -> Any:
            for number in range(first, last):
                tensor = layers[number](tensor, scope=f"s{number}")
            return tensor

        return forward

    if not cut:
        return tn.model(chain(0, len(layers)), inputs=f"x[{','.join(axes)}]", **bound)
    inner = tn.model(chain(0, cut), inputs=f"x[{','.join(others)}]")
    outer = chain(cut, len(layers))
    return tn.model(lambda x: outer(inner(x)), inputs=f"x[{','.join(axes)}]", **bound)


def _layer(trial: Trial, shape: Sequence[int]) -> tn.Graph:
    """A random layer for an input of this shape."""
    random = trial.random
    axes = random.sample(_AXES, len(shape))
    at = random.randrange(len(axes)) if axes else 0
    free = [name for name in _AXES + "kmp" if name not in axes]
    own, new = axes[at] if axes else "", random.choice(free)
    name = random.choice("xq")
    read = f"{name}[{','.join(axes) or '()'}]"
    tensor = read if axes else name
    swapped = ",".join(new if axis == own else axis for axis in axes)
    left = f"[{','.join(axes)}]" if axes else ""
    rest = ",".join(axis for axis in axes if axis != own)
    divisors = [each for each in range(1, shape[at] + 1) if shape[at] % each == 0] if axes else [1]
    other = random.choice([each for each in free if each != new])
    options = [(f"y{left} = tanh({tensor})", {}), (f"y{left} = 2 * {tensor} + 1", {})]
    if axes:
        size = {own: shape[at]} if trial.chance(0.5) else {}
        split = ",".join(f"({new},{other})" if axis == own else axis for axis in axes)
        options += [
            (f"y[{swapped}] = {tensor} * W[{new},{own}]", {new: random.randint(1, 4), **size}),
            (f"y[{swapped}] = {tensor} * W[{new},{own}] / sqrt({own})", {new: random.randint(1, 4)}),
            (f"y{left} = g[{own}] * normalize[{own}]({tensor}) + s[{own}]", size),
            (f"y{left} = {tensor} * (1 + index({own})) / {own}", size),
            (f"y{left} = roll({tensor}, {own}=1)", size),
            (f"y{left} = pad({tensor}, {own}=(1,0))", {}),
            (f"y{left} = softmax[{own}]({tensor}) + {tensor} * u[{own}]", size),
            (
                f"y[{split.replace('(', '').replace(')', '')}] = {name}[{split}]",
                {new: random.choice(divisors)},
            ),
            (f"y[{','.join(random.sample(axes, len(axes)))}] = {tensor} - u[{own}]", {}),
            (f"y[...,{new}] = gelu({name}[...,{axes[-1]}] * W[{new},{axes[-1]}] + c[{new}])", {new: 2}),
            (
                f"r[{new}] = {shape[at]} - 1 - index({new})\n"
                f"y[{swapped}] = {name}[{','.join(f'r[{new}]' if axis == own else axis for axis in axes)}]",
                {new: random.randint(1, shape[at])},
            ),
        ]
        options += _at_positions(name, axes, own, (new, other))
        if rest:
            options.append((f"y[{rest}] = mean[{own}]({tensor})", size))
            options.append((f"y[{rest}] = max[{own}]({tensor}) * {tensor.replace(own, '0')}", size))
    text, sizes = random.choice(options)
    inputs = name if "..." in text else read
    return tn.layer(text, inputs=inputs, **sizes)


def _at_positions(
    name: str, axes: Sequence[str], own: str, free: tuple[str, str]
) -> list[tuple[str, dict[str, int]]]:
    """Layers that read an axis at positions, or write it there."""
    new, other = free

    def at(entry: str) -> str:
        return ",".join(entry if axis == own else axis for axis in axes)

    whole = f"{name}[{at(own)}]"
    return [
        (f"y[{at(new)}] = {name}[{at(f'{new}+{other}')}] * W[{other}]", {other: 2}),
        (f"y[{at(new)}] = sum[{other}]({name}[{at(f'2*{new}+{other}')}])", {new: 2}),
        (f"y[{at(new)}] = sum[{other}]({name}[{at(f'{new}+{other}')}])", {other: 2}),
        (f"y[{at(new)}] = {name}[{at(f'{new}+1')}] * {other}", {other: 3}),
        (f"{other}: 2\ny[{at(new)}] = {name}[{at(f'{new}+{other}')}]", {}),
        (f"y[{at(new)}] = sum[{own}]({whole}) * index({new}) + {new}", {new: 2}),
        (f"y[{at(f'({new},{own})')}] = {whole} * W[{new}]", {new: 2}),
        (f"y[{at(own)}] = {name}[{at('1:')}]", {}),
        (f"h[{at(own)}] = 0.5 * h[{at(f'{own}-1')}] + {whole}", {}),
        (f"y[{at(new)}] = 0\ny[{at(f'index({own})//2')}] += {whole}", {new: 4}),
        (f"y[{at(own)}] = {whole} * {name}[{at(new)}] * W[{new},{own}]", {}),
    ]
