"""Hypothesis strategies: random blocks of equations, valid by construction, and random expressions.

`blocks()` writes lines while it keeps track of every tensor's axes, so that each axis on the right
is either on the left or stands where the Einstein rule can sum it. Arrays for a block are made
from the writer's own record of shapes, not from the library's.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

import tensornet as tn

__all__ = ["SUMMED_ALONE", "Block", "blocks", "expression_texts", "position_texts"]

SUMMED_ALONE = "ignore:the axis .* is summed, and nothing else has it:tensornet.TensornetWarning"
"""For tests of random programs, which mean such sums."""

POOL = ("b", "h", "i", "j", "k", "d")
"""The axes of a block, each of one size throughout it."""

OPERATORS = ("+", "-", "*", "/", "**", "<", "<=", ">", ">=", "==", "!=", "&", "|")

INTEGERS = ("bool", "uint8", "int8", "int16", "int32", "int64")

Text = tuple[str, tuple[str, ...]]
"""An expression and the axes of its value."""


@dataclass(frozen=True)
class Block:
    """A random program in the equation language.

    Attributes:
        text: the equations.
        inputs: what `inputs=` takes.
        outputs: the results that no line reads.
        sizes: the sizes to give to `tn.layer`; empty in a block of open sizes.
        input_shapes: name and shape of each input, in order.
        parameter_shapes: name and shape of each parameter.
        index_bounds: the inputs that hold positions, and how many positions there are.
        dtypes: the inputs that hold integers or truth values, and of which element type.
    """

    text: str
    inputs: str
    outputs: tuple[str, ...]
    sizes: tuple[tuple[str, int], ...]
    input_shapes: tuple[tuple[str, tuple[int, ...]], ...]
    parameter_shapes: tuple[tuple[str, tuple[int, ...]], ...]
    index_bounds: tuple[tuple[str, int], ...]
    dtypes: tuple[tuple[str, str], ...] = ()

    def graph(self) -> tn.Graph:
        """The block as a graph."""
        return tn.layer(self.text, inputs=self.inputs, outputs=self.outputs, **dict(self.sizes))

    def arrays(self, seed: int = 0) -> tuple[np.ndarray[Any, Any], ...]:
        """Random arrays for the inputs, in order: numbers in [-1, 1], integers near 0, or positions."""
        bounds, dtypes = dict(self.index_bounds), dict(self.dtypes)
        random = np.random.default_rng(seed)

        def array(name: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
            if name in bounds:
                return random.integers(0, bounds[name], shape, dtype=dtypes.get(name, "int64"))
            if name in dtypes:
                return random.integers(0, 2, shape).astype(dtypes[name])
            return random.uniform(-1, 1, shape)

        return tuple(array(name, shape) for name, shape in self.input_shapes)

    def parameters(self, seed: int = 1) -> dict[str, np.ndarray[Any, Any]]:
        """Random arrays in [-1, 1] for the parameters, by name."""
        random = np.random.default_rng(seed)
        return {name: random.uniform(-1, 1, shape) for name, shape in self.parameter_shapes}


@dataclass
class _Tensor:
    """A tensor of the block: each dimension is the axes it was made of; `...` adds leading ones."""

    name: str
    kind: str  # "input", "parameter", "index" or "result"
    dims: tuple[tuple[str, ...], ...]
    declared: bool = True
    new: bool = False
    lead: bool = False


class _Writer:
    """Writes lines one after another; remembers tensors, sizes and the axes it made."""

    def __init__(self, draw: Callable[[Any], Any], open_sizes: bool) -> None:
        self.draw = draw
        self.open = open_sizes
        self.sizes = {axis: draw(st.integers(1, 4)) for axis in POOL}
        self.tensors: list[_Tensor] = []
        self.bounds: dict[str, int] = {}
        self.lead_shape: tuple[int, ...] = ()
        self.lines: list[str] = []

    # ---- choices

    def one_of(self, options: Sequence[Any]) -> Any:
        return options[0] if len(options) == 1 else self.draw(st.sampled_from(options))

    def chance(self, percent: int) -> bool:
        return bool(self.draw(st.integers(0, 99)) >= 100 - percent)

    def subset(self, axes: Sequence[str], least: int, most: int) -> tuple[str, ...]:
        size = self.draw(st.integers(min(least, len(axes)), min(most, len(axes))))
        return tuple(self.draw(st.permutations(axes))[:size])

    def size(self, axes: Sequence[str]) -> int:
        return int(np.prod([self.sizes[axis] for axis in axes], dtype=int))

    def made_axis(self, size: int) -> str:
        """A new axis that only lines which name it know: its size is never given."""
        name = f"r{len(self.sizes) - len(POOL)}"
        self.sizes[name] = size
        return name

    # ---- tensors

    def add(self, kind: str, dims: tuple[tuple[str, ...], ...], **flags: bool) -> _Tensor:
        letter = {"input": "x", "parameter": "W", "index": "t", "result": "y"}[kind]
        tensor = _Tensor(f"{letter}{len(self.tensors)}", kind, dims, **flags)
        self.tensors.append(tensor)
        return tensor

    def new_tensor(self, axes: Sequence[str]) -> _Tensor:
        first = not any(tensor.kind == "input" for tensor in self.tensors)
        kind = "input" if first or self.chance(35) else "parameter"
        chosen = list(self.subset(axes, 1 if first else 0, 3))
        kind = kind if chosen else "input"  # a number that nothing declares may not stand everywhere
        dims: list[tuple[str, ...]] = [(axis,) for axis in chosen]
        if len(dims) > 2 and self.chance(15):
            dims = [(chosen[0], chosen[1]), *dims[2:]]
        declared = kind == "input" and (not dims or self.chance(50))
        return self.add(kind, tuple(dims), declared=declared, new=True)

    def index_tensor(self, axes: Sequence[str], positions: int, least: int = 0) -> str:
        """An input of integers below `positions` with at least so many axes, as it is read."""
        known = [
            t for t in self.tensors if self.bounds.get(t.name) == positions and _flat(t.dims) <= set(axes)
        ]
        known = [tensor for tensor in known if len(tensor.dims) >= least]
        if known and self.chance(50):
            tensor = self.one_of(known)
        else:
            tensor = self.add("index", tuple((axis,) for axis in self.subset(axes, least, 2)))
            self.bounds[tensor.name] = positions
        return _written(tensor.name, [_entry(dim) for dim in tensor.dims])

    def ref(self, within: Sequence[str] | None) -> Text:
        """A tensor and how it is read; under axes of `within` only, if that is given."""
        usable = [tensor for tensor in self.tensors if tensor.kind != "index" and not tensor.lead]
        if not usable or self.chance(45):
            tensor = self.new_tensor(POOL if within is None else tuple(within))
            return _written(tensor.name, [_entry(dim) for dim in tensor.dims]), _listed(tensor.dims)
        tensor = self.one_of(usable)
        if tensor.new:
            if within is not None and not _flat(tensor.dims) <= set(within):
                return self.literal(), ()
            return _written(tensor.name, [_entry(dim) for dim in tensor.dims]), _listed(tensor.dims)
        if (within is None or _flat(tensor.dims) <= set(within)) and self.chance(30):
            return tensor.name, _listed(tensor.dims)  # a bare name
        entries, axes = [], []
        for dim in tensor.dims:
            entry, read = self.entry(dim, within, len(tensor.dims) == 1)
            entries.append(entry)
            axes.extend(read)
        return _written(tensor.name, entries), tuple(dict.fromkeys(axes))

    def entry(self, dim: tuple[str, ...], within: Sequence[str] | None, alone: bool) -> Text:
        """What stands in brackets for one dimension; no composite where it stands alone."""
        options: list[Text] = [(_entry(dim), dim)] * 6
        size = self.size(dim)
        options.append(("0", ()))
        if not self.open:
            options.append((f"{-size}", ()))
            options += [(axis, (axis,)) for axis in POOL if self.sizes[axis] == size]
            pairs = [(a, b) for a in POOL for b in POOL if a < b and self.size((a, b)) == size and not alone]
            options += [(_entry(pair), pair) for pair in pairs[:2]]
        fitting = [option for option in options if within is None or set(option[1]) <= set(within)]
        axes = POOL if within is None else tuple(within)
        if axes and self.chance(12):
            index = self.index_tensor(axes, size, least=1)
            return index, tuple(axis for axis in self.sizes if re.search(rf"\b{axis}\b", index))
        return self.one_of(fitting)  # type: ignore[no-any-return]

    # ---- expressions

    def literal(self) -> str:
        return str(self.one_of(["2", "0.5", "3", "1.25", "pi"]))

    def scalar(self) -> str:
        """A positive number: a literal, or a size that some tensor fixes."""
        fixed = (
            [a for t in self.tensors for dim in t.dims for a in dim if a in POOL] if self.open else list(POOL)
        )
        if not fixed or self.chance(40):
            return self.literal()
        return str(self.one_of(["sqrt({})", "{}", "{}**2", "(1 + {})"])).format(
            self.one_of(sorted(set(fixed)))
        )

    def expression(self, within: Sequence[str], depth: int, direct: bool) -> Text:
        """A sum of terms; `direct` where a lone tensor may lose axes."""
        text, axes = self.term(within, depth, direct)
        for _ in range(self.one_of([0, 0, 0, 1, 1, 2])):
            term, more = self.term(within, depth, direct)
            text, axes = f"{text} {self.one_of('+-')} {term}", _joined(axes, more)
        return text, axes

    def term(self, within: Sequence[str], depth: int, direct: bool) -> Text:
        kind = self.one_of(["ref", "product", "product", "call", "call"] if depth > 0 else ["ref", "product"])
        if kind == "ref":
            text, axes = self.ref(None if direct else within)
            kept = tuple(axis for axis in axes if axis in within)
            return self.told(text, set(axes).difference(kept)), kept
        return self.product(within, depth, direct) if kind == "product" else self.call(within, depth)

    def told(self, text: str, lost: set[str]) -> str:
        """A tensor as it is read: a leaf by no bare name where an axis is lost that nothing else names."""
        tensor = next((t for t in self.tensors if t.name == text), None)
        if tensor is None or tensor.kind == "result" or not _flat(tensor.dims) & lost:
            return text
        return _written(text, [_entry(dim) for dim in tensor.dims])

    def product(self, within: Sequence[str], depth: int, direct: bool) -> Text:
        """Tensors under any axes, then functions of what is kept or held by those tensors.

        Inside a function (not `direct`) an axis is summed only where two tensors hold it.
        """
        factors, axes, counts = [], (), Counter[str]()
        for _ in range(self.one_of([1, 2, 2, 3])):
            text, more = self.ref(None)
            factors.append(text)
            axes = _joined(axes, more)
            counts.update(more)
        alone = tuple(axis for axis in axes if axis not in within and counts[axis] == 1)
        if alone and not direct:
            factors.append(self.add("parameter", tuple((axis,) for axis in alone), new=True).name)
            factors[-1] += f"[{','.join(alone)}]"
        else:
            factors = [self.told(factor, set(alone)) for factor in factors]
        if len(factors) == 1 or self.chance(15):
            factors.insert(0, self.scalar())
        inner, held = _joined(tuple(within), axes), set[str]()
        for _ in range(self.one_of([0, 0, 1]) if depth > 0 else 0):
            text, more = self.factor(inner, depth - 1)
            factors.insert(self.draw(st.integers(0, len(factors))), text)
            axes, held = _joined(axes, more), held | self.mentioned(text)
        text = " * ".join(factors)
        if self.chance(15):
            text += f" / {self.scalar()}"
        if self.chance(10):
            divisor, more = self.ref(inner)
            text, axes = f"{text} / (1 + abs({divisor}))", _joined(axes, more)
        summed = [axis for axis in axes if axis not in within]
        if held & set(summed):  # inside the factor it could be summed as well: written out, it is not
            text = f"sum[{','.join(summed)}]({text})"
        return self.one_of(["", "", "", "-"]) + text, tuple(axis for axis in axes if axis in within)

    def mentioned(self, text: str) -> set[str]:
        """The axes written in an expression, and those of every tensor in it."""
        words = set(re.findall(r"\w+", text))
        return words & set(self.sizes) | {a for t in self.tensors if t.name in words for a in _flat(t.dims)}

    def factor(self, within: Sequence[str], depth: int) -> Text:
        if self.chance(60):
            return self.call(within, depth)
        text, axes = self.expression(within, depth, False)
        return f"({text})", axes

    def call(self, within: Sequence[str], depth: int) -> Text:
        kinds = [self.pointwise, self.pointwise, self.over_axis, self.reduction, self.comparison, self.shift]
        if len(within) > 1:
            kinds.append(self.masked)
        if within:
            kinds.append(self.onehot)
        return self.one_of(kinds)(within, depth)  # type: ignore[no-any-return]

    def pointwise(self, within: Sequence[str], depth: int) -> Text:
        text, axes = self.expression(within, depth - 1, False)
        forms = [
            "gelu({})",
            "tanh({})",
            "exp(-abs({}))",
            "exp(tanh({}))",
            "sqrt(abs({}))",
            "sigmoid({})",
            "({})**2",
        ]
        return self.one_of(forms).format(text), axes

    def over_axis(self, within: Sequence[str], depth: int) -> Text:
        text, axes = self.expression(within, depth - 1, False)
        if not axes:
            return f"tanh({text})", axes
        axis = self.one_of(axes)
        if self.chance(20):
            return f"recur[{axis}](tanh({text}), 0.5, start=1, back={self.one_of([0, 1])})", axes
        return f"{self.one_of(['softmax', 'normalize', 'log_softmax'])}[{axis}]({text})", axes

    def reduction(self, within: Sequence[str], depth: int) -> Text:
        over = self.one_of(POOL)
        text, axes = self.expression(_joined(tuple(within), (over,)), depth - 1, False)
        if over not in axes:
            return f"gelu({text})", axes
        function = self.one_of(["mean", "sum", "max", "var"])
        return f"{function}[{over}]({text})", tuple(axis for axis in axes if axis != over)

    def closed(self, within: Sequence[str]) -> Text:
        """An expression that sums nothing: what may stand beside others in one call."""
        text, axes = self.ref(within)
        kind = self.one_of(["ref", "ref", "map", "product", "sum"])
        if kind == "ref":
            return text, axes
        if kind == "map":
            return f"tanh({text})", axes
        other, more = self.ref(within)
        return f"{text} {'*' if kind == 'product' else '+'} {other}", _joined(axes, more)

    def comparison(self, within: Sequence[str], depth: int) -> Text:
        (a, first), (b, second) = self.closed(within), self.closed(within)
        if self.chance(50):
            return f"{self.one_of(['maximum', 'minimum'])}({a}, {b})", _joined(first, second)
        (c, third), (d, fourth) = self.closed(within), self.closed(within)
        axes = _joined(_joined(first, second), _joined(third, fourth))
        return f"where({a} {self.one_of(['<', '>='])} {b}, {c}, {d})", axes

    def masked(self, within: Sequence[str], depth: int) -> Text:
        """Causal attention weights: softmax of scores whose later positions are -inf."""
        i, j = self.draw(st.permutations(tuple(within)))[:2]
        text, axes = self.closed(within)
        return f"softmax[{j}](where(index({i}) >= index({j}), {text}, -inf))", _joined((i, j), axes)

    def shift(self, within: Sequence[str], depth: int) -> Text:
        text, axes = self.closed(within)
        if not axes:
            return f"tanh({text})", axes
        return f"roll({text}, {self.one_of(axes)}={self.one_of(['1', '-1', '-2', '3'])})", axes

    def onehot(self, within: Sequence[str], depth: int) -> Text:
        positions = self.one_of(tuple(within))
        rest = tuple(axis for axis in within if axis != positions)
        index = self.index_tensor(rest, self.sizes[positions])
        axes = tuple(axis for axis in rest if re.search(rf"\b{axis}\b", index))
        return f"onehot[{positions}]({index})", (*axes, positions)

    # ---- lines

    def line(self) -> None:
        readable = [
            tensor for tensor in self.tensors if tensor.kind != "index" and tensor.dims and not tensor.lead
        ]
        kinds = ["plain"] * 6 + (["padded", "joined", "leading"] if readable else [])
        kind = "leading" if any(tensor.lead for tensor in self.tensors) else self.one_of(kinds)
        if kind == "plain":
            self.define(*self.expression(self.subset(POOL, 0, 4), 2, True))
        elif kind == "leading":
            self.leading()
        else:
            self.remade(self.one_of(readable), kind)
        for tensor in self.tensors:
            tensor.new = False

    def define(self, text: str, axes: tuple[str, ...]) -> None:
        left = list(self.draw(st.permutations(axes))) if axes else []
        dims: list[tuple[str, ...]] = [(axis,) for axis in left]
        if len(dims) > 2 and self.chance(15):
            dims = [*dims[:-2], (left[-2], left[-1])]
        result = self.add("result", tuple(dims))
        self.lines.append(f"{_written(result.name, [_entry(dim) for dim in dims])} = {text}")

    def remade(self, tensor: _Tensor, kind: str) -> None:
        """A line that makes an axis anew, longer than it was: by padding or by joining."""
        at = self.draw(st.integers(0, len(tensor.dims) - 1))
        others = [dim for number, dim in enumerate(tensor.dims) if number != at]
        before, after = self.draw(st.integers(0, 2)), self.draw(st.integers(0, 2))
        size = self.size(tensor.dims[at])
        axis = self.made_axis(size + before + after if kind == "padded" else 2 * size)
        entries = [axis if number == at else _entry(dim) for number, dim in enumerate(tensor.dims)]
        read = _written(tensor.name, entries)
        if kind == "padded":
            value = self.one_of(["", ", value=1", ", value=-0.5"])
            text = f"pad({read}, {axis}=({before},{after}){value})"
        else:
            text = f"concat[{axis}]({read}, {self.one_of([read, f'tanh({read})', f'2 * {read}'])})"
        wrapped = self.one_of(["{}", "{}", "gelu({})", "2 * {} + 1"]).format(text)
        self.define(wrapped, tuple(dict.fromkeys((*_listed(tuple(others)), axis))))

    def leading(self) -> None:
        """A layer on the last axis of a tensor, whatever stands before it."""
        tensors = [
            t for t in self.tensors if t.lead or (t.kind == "result" and t.dims and len(t.dims[-1]) == 1)
        ]
        if not tensors:
            self.lead_shape = tuple(self.draw(st.lists(st.integers(1, 3), max_size=3)))
            tensors = [self.add("input", ((self.one_of(POOL),),), declared=False, lead=True)]
        tensor = self.one_of(tensors)
        (axis,) = tensor.dims[-1]
        out = self.one_of([each for each in POOL if each not in _flat(tensor.dims)] or [self.made_axis(2)])
        if out not in POOL:  # all the axes are taken: keep the last one
            out = axis
        weight = self.add("parameter", ((out,), (axis,)) if out != axis else ((axis,),))
        bias = self.add("parameter", ((out,),))
        product = f"{tensor.name}[...,{axis}] * {_written(weight.name, [_entry(dim) for dim in weight.dims])}"
        text = self.one_of(["{} + {}", "gelu({} + {})", "softmax[{o}]({} * {})"])
        result = self.add("result", (*(() if tensor.lead else tensor.dims[:-1]), (out,)), lead=tensor.lead)
        self.lines.append(f"{result.name}[...,{out}] = " + text.format(product, f"{bias.name}[{out}]", o=out))

    # ---- the block

    def block(self) -> Block:
        for _ in range(self.draw(st.integers(1, 5))):
            self.line()
        text = "\n".join(self.lines)
        inputs = [tensor for tensor in self.tensors if tensor.kind in ("input", "index")]
        shown = " ".join(self.declaration(tensor) for tensor in inputs)
        named = set(re.findall(r"\w+", re.sub(r"\w+(?=\()", "", f"{text} {shown}")))
        given = () if self.open else tuple((axis, self.sizes[axis]) for axis in POOL if axis in named)
        parameters = [tensor for tensor in self.tensors if tensor.kind == "parameter"]
        bounds = tuple(self.bounds.items())
        dtypes = tuple((tensor.name, self.dtype(tensor)) for tensor in inputs if self.dtype(tensor))
        shapes = (self.shapes(inputs), self.shapes(parameters))
        return Block(text, shown, self.unread(), given, *shapes, bounds, dtypes)

    def dtype(self, tensor: _Tensor) -> str:
        """The integer type of an input, if it holds integers: one in four does, and every index."""
        number = int(tensor.name[1:])
        if tensor.kind == "index":
            return INTEGERS[1 + number % 5]
        return INTEGERS[number // 4 % 6] if number % 4 == 1 else ""

    def unread(self) -> tuple[str, ...]:
        rights = " ".join(line.partition(" = ")[2] for line in self.lines)
        results = [tensor.name for tensor in self.tensors if tensor.kind == "result"]
        return tuple(name for name in results if not re.search(rf"\b{name}\b", rights))

    def declaration(self, tensor: _Tensor) -> str:
        if not tensor.declared:
            return tensor.name
        return f"{tensor.name}[{','.join(_entry(dim) for dim in tensor.dims) or '()'}]"

    def shapes(self, tensors: Sequence[_Tensor]) -> tuple[tuple[str, tuple[int, ...]], ...]:
        def shape(tensor: _Tensor) -> tuple[int, ...]:
            return (*(self.lead_shape if tensor.lead else ()), *(self.size(dim) for dim in tensor.dims))

        return tuple((tensor.name, shape(tensor)) for tensor in tensors)


def _entry(dim: tuple[str, ...]) -> str:
    return dim[0] if len(dim) == 1 else f"({','.join(dim)})"


def _written(name: str, entries: Sequence[str]) -> str:
    return f"{name}[{','.join(entries)}]" if entries else name


def _listed(dims: tuple[tuple[str, ...], ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(axis for dim in dims for axis in dim))


def _flat(dims: tuple[tuple[str, ...], ...]) -> set[str]:
    return {axis for dim in dims for axis in dim}


def _joined(first: tuple[str, ...], second: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*first, *second)))


@st.composite
def blocks(draw: Callable[[Any], Any], open_sizes: bool = False) -> Block:
    """Random blocks of one to five equations, valid by construction.

    Args:
        open_sizes: give no sizes, so that arrays decide them.
    """
    return _Writer(draw, open_sizes).block()


def expression_texts(depth: int = 4) -> st.SearchStrategy[str]:
    """Right sides in the grammar, with every operator and number; what they mean is not looked at."""
    numbers = st.one_of(
        st.integers(0, 10**20).map(str),
        st.floats(0, 1e300, allow_nan=False).map(repr),
        st.sampled_from(["inf", "pi", "1e999", "2j", "0.5j", "1_000", "0x1f"]),
    )
    tensors = st.sampled_from(
        [
            "q",
            "x[b,i]",
            "E[t[b,i],c]",
            "Q[(h,d),e]",
            "z[b,0]",
            "z[-1,c]",
            "w[...,i]",
            "blocks.0.W[i,j]",
            "x[(h,),i]",
        ]
    )

    def larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        pairs = st.tuples(inner, st.sampled_from(OPERATORS), inner)
        calls = [
            "gelu({})",
            "softmax[j](x[b,j] * ({}))",
            "sum[i](x[b,i] * ({}))",
            "roll({}, i=-1)",
            "abs(-({}))",
        ]
        return st.one_of(
            pairs.map(lambda each: f"({each[0]}) {each[1]} ({each[2]})"),
            st.tuples(st.sampled_from("-+~"), inner).map(lambda each: f"{each[0]}({each[1]})"),
            st.tuples(st.sampled_from(calls), inner).map(lambda each: each[0].format(each[1])),
            st.tuples(inner, inner).map(lambda each: f"maximum({each[0]}, {each[1]})"),
            st.tuples(inner, inner).map(lambda each: f"where(index(i) >= index(j), {each[0]}, {each[1]})"),
            inner.map(lambda each: f"pad({each}, i=(1,2), value=0.5)"),
        )

    return st.recursive(st.one_of(numbers, tensors), larger, max_leaves=2**depth)


def position_texts() -> st.SearchStrategy[str]:
    """Expressions of positions along i and j: whole numbers, and reals made of them.

    Sums and comparisons are of whole numbers alone, so that the value hangs on no rounding.
    """
    places = st.sampled_from(["index(i)", "index(j)"])
    whole = st.recursive(
        st.one_of(places, places, st.integers(0, 300).map(str)), _larger_positions, max_leaves=5
    )
    divisors = st.integers(1, 129)
    reals = [
        st.tuples(whole, divisors).map(lambda each: f"({each[0]}) / {each[1]}"),
        st.tuples(places, divisors).map(lambda each: f"sin({each[0]} / {each[1]})"),
        st.tuples(places, divisors).map(lambda each: f"exp(-{each[0]} / {each[1]}) * {each[0]}"),
        st.tuples(whole, whole, places).map(
            lambda each: f"where({each[0]} < {each[1]}, 0.5, sqrt({each[2]}))"
        ),
    ]
    return st.one_of(whole, whole, *reals)


def _larger_positions(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pairs = st.tuples(inner, st.sampled_from("+-*"), inner).map(
        lambda each: f"({each[0]} {each[1]} {each[2]})"
    )
    calls = [
        "abs({} - {})",
        "maximum({}, {})",
        "minimum({}, {})",
        "where({} < {}, index(i), 2)",
        "roll({} - {} + index(j), j=1)",
    ]
    called = st.tuples(st.sampled_from(calls), inner, inner).map(lambda each: each[0].format(*each[1:]))
    floors = st.tuples(inner, st.integers(1, 129)).map(lambda each: f"floor({each[0]} / {each[1]})")
    truths = st.tuples(inner, inner).map(lambda each: f"(({each[0]} >= {each[1]}) + index(j))")
    return st.one_of(pairs, called, floors, truths)
