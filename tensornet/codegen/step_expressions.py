"""Code generation of steps: the right side of a line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..contraction.pairs import Arrangement, flatten, view_order
from ..device.heap import MAPPED
from ..device.model import packed_with
from ..dtypes import itemsize
from ..errors import BackendError
from ..language.expression import (
    Call,
    Contraction,
    Expression,
    Index,
    Ref,
    axes_of_index,
    free_axes,
    is_scalar,
    is_told,
    option_axes,
    show,
)
from ..language.patterns import pattern_of
from ..ops.structure import is_inside
from ..ops.table import FUNCTIONS, Element
from ..planning.steps import Multiplied, Step
from ..sizes import evaluate, product
from .expressions import tuple_source
from .index_expressions import Gathering

__all__ = ["Stepping"]


class Stepping(Gathering):
    """Spells steps: products, copies, functions along axes, and pointwise expressions."""

    element = Element.NUMBER  # of the step being written

    def step(self, step: Step) -> str:
        """The right side of the line for one step."""
        equation = step.equation
        self.sizes = {axis.name: axis.size for axis in step.axes}
        self.element = step.element
        text = self._step(step, equation.left)
        self.shapes[equation.name] = self.entry_sizes(equation.left)
        return text

    def _step(self, step: Step, left: tuple[Any, ...]) -> str:
        if step.arrangement is not None and (product := step.multiplied) is not None:
            return self.pair(product, step.arrangement, left)
        match step.equation.right:
            case Call(_, terms) if step.into:
                return self.overwriting(terms, step.into, left)
            case Contraction((Ref() as ref,), summed) if summed:
                return self.op(
                    "sum", self.atomic(ref), axes=tuple_source([str(n) for n in _positions(ref, summed)])
                )
            case Ref() as ref if _is_plain(ref):
                return self.copy(ref, [(entry,) if isinstance(entry, str) else entry for entry in left])
            case Ref() as ref:
                text, given_back = self.special(ref, left), {each.value.name for each in self.plan.results}
                own = step.equation.name in given_back and any(map(_overlaps, ref.index))
                return self.op("contiguous", text) if own else text
            case Call(function) as call if FUNCTIONS[function].axes != "none":
                return self.along(call, left)
            case expression if is_scalar(expression):
                return self.number(expression)
            case expression:
                return self.render(expression, left)

    def overwriting(self, terms: Sequence[Expression], into: str, left: tuple[Any, ...]) -> str:
        """A sum that is written into one of its terms."""
        at = next(n for n, term in enumerate(terms) if isinstance(term, Ref) and term.name == into)
        text = self.render(terms[at], left)
        for term in (*terms[:at], *terms[at + 1 :]):
            other = self.render(term, left)
            less = other.startswith("-")
            text = self.op("subtracted" if less else "added", text, other[1:] if less else other)
        return text

    def copy(self, ref: Ref, groups: Sequence[tuple[str, ...]]) -> str:
        """An operand with one dimension for each group, lying in memory in their order."""
        text, layout = self.view(ref, groups), axes_of_index(ref.index)
        merged = view_order(layout, tuple(groups)) is None and any(len(group) > 1 for group in groups)
        turned = None if merged else self.turned(ref, flatten(tuple(groups)))
        if turned is not None:
            return self.op(
                "reshape", self.op("contiguous", turned), shape=self._grouped(groups, self.label_sizes(ref))
            )
        return text if merged or layout == flatten(tuple(groups)) else self.op("contiguous", text)

    def number(self, expression: Expression) -> str:
        """A number as a tensor."""
        dtype = self.element_dtype(self.element)
        return self.op("scalar", self.scalar(expression), dtype=dtype, like=self.first())

    # ---- products

    def pair(self, product: Multiplied, way: Arrangement, left: tuple[Any, ...]) -> str:
        a, b = product.a, product.b
        if way.kind == "multiply":
            return f"{self.aligned(a, left)} * {self.aligned(b, left)}"
        if way.kind == "linear":
            return self.linear(product, way)
        if way.kind == "dot":
            groups = [way.batch, way.summed]
            return self.op("vecdot", self.view(a, groups), self.view(b, groups))
        first, second, rows, columns = (
            (b, a, way.columns, way.rows) if way.swapped else (a, b, way.rows, way.columns)
        )
        one = self._matrix(first, way.batch, rows, way.summed)
        two = self._matrix(second, way.batch, way.summed, columns)
        whole = self.element is Element.WHOLE and "whole_matmul" in self.backend.templates
        text = self.op("whole_matmul" if whole else self._sized("matmul", left, way.packed), one, two)
        if way.added:
            return self.op("sum", text, axes="(0,)")
        if way.batch and not (rows and columns):
            text = self.op("reshape", text, shape=self.shape(self.entry_sizes(left)))
        return text

    def linear(self, product: Multiplied, way: Arrangement) -> str:
        """The product of a tensor with a matrix, what is added to each row, and a function of each element."""
        *rows, columns = way.result
        first, second = (product.b, product.a) if way.swapped else (product.a, product.b)
        given = [self.view(first, [*rows, way.summed]), self.view(second, [columns, way.summed])]
        given += [self.view(product.bias, [columns])] if product.bias is not None else []
        kernel = packed_with(product.then) if product.then else self._sized("linear", way.result, way.packed)
        return self.op(kernel, ", ".join(given))

    def _sized(self, template: str, left: tuple[Any, ...], packed: bool) -> str:
        """How a product is spelled: another way where its matrices are laid out anew for it, and where its result
        is so large that memory for it is new each time."""
        if packed:
            return f"packed_{template}"
        large = f"large_{template}"
        if large not in self.backend.templates or not self.plan.device.startswith("cpu"):
            return template
        sizes = dict(self.plan.sizes)
        elements = product(evaluate(size, sizes) for size in self.entry_sizes(left))
        return large if elements * itemsize(self.plan.dtype) > MAPPED else template

    def _matrix(
        self, ref: Ref, batch: tuple[str, ...], outer: tuple[str, ...], inner: tuple[str, ...]
    ) -> str:
        layout = axes_of_index(ref.index)
        own = tuple(axis for axis in batch if axis in layout)
        groups = [own, outer, inner]
        ones = any(batch and not groups[n] for n in (1, 2))
        if own or not batch:
            text = self.view(ref, groups, ones)
            scattered = (
                own and layout[-len(own) :] == own and (outer or inner)
            )  # every matrix would be copied
            return self.op("contiguous", text) if scattered else text
        matrix = self.view(ref, [outer, inner], ones)
        shape = [product(self.sizes[axis] for axis in group) for group in (batch, outer, inner)]
        return self.op("broadcast", matrix, shape=self.shape(shape))

    # ---- functions along axes

    def along(self, call: Call, left: tuple[Any, ...]) -> str:
        """A step of a function that does something to axes."""
        function = FUNCTIONS[call.function]
        if function.spelled is not None:
            return function.spelled(self, call, left)
        if function.means:
            return self.kernel(call, left)
        match function.axes:
            case "made":
                return self.made(call)
            case "joined":
                return self.joined(call, left)
            case "moved":
                return self.moved(call)
        return self.over_axes(call, left)

    def kernel(self, call: Call, left: tuple[Any, ...]) -> str:
        """A kernel of the user's own, of operands with a dimension for each axis of its equation."""
        self._check_registered(call.function, dict(FUNCTIONS[call.function].implementations))
        pattern = pattern_of(FUNCTIONS[call.function].means[0])
        refs = [ref for ref in call.arguments if isinstance(ref, Ref)]
        groups = pattern.groups([axes_of_index(ref.index) for ref in refs])
        given = []
        for ref, tensor in zip(refs, pattern.tensors, strict=True):
            own = [groups[axis] for axis in axes_of_index(tensor.index)]
            given.append(self.view(ref, own, any(not group for group in own)))
        numbers = [f"{name}={text}" for name, text in self.options(call).items()]
        text = f'functions["{call.function}"]({", ".join([*given, *numbers])})'
        return text if all(groups[axis] for axis in pattern.left) else self.reshaped(text, left)

    def over_axes(self, call: Call, left: tuple[Any, ...]) -> str:
        """A function along dimensions of its operand."""
        ref, *affine = call.arguments
        assert isinstance(ref, Ref)
        function = FUNCTIONS[call.function]
        over, made = function.runs_over(call.axes), function.makes(call.axes)
        own = [axis for axis in over if axis in ref.index]
        if over in ref.index:
            text, at = self.names[ref.name], [ref.index.index(over)]
        elif len(own) == len(over):
            text, at = self.names[ref.name], [ref.index.index(axis) for axis in own]
        else:
            text, at = self.atomic(ref), _positions(ref, over)
        axes = tuple_source([str(n) for n in at])
        details = self.options(call)
        if affine:
            others = [self.atomic(each) for each in affine if isinstance(each, Ref)]
            return self.op(f"{call.function}_affine", text, *others, axis=str(at[0]), **details)
        implementations = dict(FUNCTIONS[call.function].implementations)
        if implementations:
            self._check_registered(call.function, implementations)
            return f'functions["{call.function}"]({text}, {at[0]})'
        if self.asks(call.function, "positions"):
            details["positions"] = self._positions_at(at[0], len(left), self.sizes_of(over))
        if made:
            details["size"] = self.extent(made)
        return self.op(call.function, text, axis=str(at[0]), axes=axes, **details)

    def sizes_of(self, axes: Sequence[str]) -> Any:
        return product(self.sizes[axis] for axis in axes)

    def _positions_at(self, at: int, rank: int, size: Any) -> str:
        """0, 1, 2, … along one of the dimensions of a tensor."""
        shape = tuple_source([self.size(size)] + ["1"] * (rank - at - 1))
        places = self.positions(size)
        return self.op("reshape", places, shape=shape) if rank - at > 1 else places

    def made(self, call: Call) -> str:
        """Positions along the axis that the call makes, or what is compared with them."""
        operands = [self.atomic(each) for each in call.arguments if isinstance(each, Ref)]
        if is_inside(call):
            (told,) = call.arguments
            assert isinstance(told, Ref)
            operands = [self.looked(operands[0], told.name, call.axes[0])]
        return self.op(call.function, *operands, positions=self.positions(self.sizes[call.axes[0]]))

    def moved(self, call: Call) -> str:
        """Elements moved along the axes that keywords name."""
        (ref,) = call.arguments
        assert isinstance(ref, Ref)
        named = [(name, values) for name, values in call.options if name in option_axes(call)]
        details = self.options(call)
        for n, amount in enumerate(FUNCTIONS[call.function].amounts):
            details[amount] = tuple_source([str(self.integer(values[n])) for _, values in named])
        at = _positions(ref, [name for name, _ in named])
        axes = tuple_source([str(n) for n in at])
        return self.op(call.function, self.atomic(ref), axes=axes, **details)

    def joined(self, call: Call, left: tuple[Any, ...]) -> str:
        """Operands as large as the result, but for the axis along which they follow one another."""
        axis, parts = call.axes[0], []
        at = left.index(axis)
        for ref in call.arguments:
            assert isinstance(ref, Ref)
            own = self.label_sizes(ref)
            full = [own.get(name, 1 if name == axis else self.sizes[name]) for name in left]
            text = self.aligned(ref, left) if ref.index else self.names[ref.name]
            if set(axes_of_index(ref.index)) | {axis} != set(left):
                text = self.op("broadcast", text, shape=self.shape(full))
            elif axis not in own:
                text = self.op("reshape", text, shape=self.shape(full))
            parts.append(text)
        return self.op(call.function, ", ".join(parts), axis=str(at))

    # ---- pointwise expressions

    def render(self, expression: Expression, left: tuple[Any, ...]) -> str:
        """A pointwise expression over operands aligned to the result."""
        match expression:
            case Ref():
                return self.aligned(expression, left)
            case _ if is_scalar(expression):
                return self.scalar(expression)
            case Contraction(factors, ()):
                return self.product(factors, lambda factor: self.render(factor, left))
            case Call("add", arguments):
                return self._sum([self.render(each, left) for each in arguments])
            case Call(function, (Contraction(factors, ()),)) if FUNCTIONS[function].rounds:
                by = FUNCTIONS[function].rounds
                return self.product(factors, lambda factor: self.render(factor, left), by=by)
            case Call(function) if (spelled := FUNCTIONS[function].spelled) is not None:
                return spelled(self, expression, left)
            case Call(function, arguments):
                operands = [self.render(each, left) for each in arguments]
                if FUNCTIONS[function].random and is_scalar(
                    arguments[0]
                ):  # what draws for each element needs one
                    operands[0] = self.number(arguments[0])
                return self.call(function, operands, self.options(expression))
        raise AssertionError(show(expression))

    def _sum(self, terms: list[str]) -> str:
        text = terms[0]
        for term in terms[1:]:
            text += f" - {term[1:]}" if term.startswith("-") else f" + {term}"
        return text

    def call(self, function: str, operands: list[str], options: Mapping[str, str]) -> str:
        row = FUNCTIONS[function]
        if row.implementations:
            self._check_registered(function, dict(row.implementations))
            return f'functions["{function}"]({", ".join(operands)})'
        if function in self.backend.templates:
            return self.op(function, *operands, **options)
        if row.infix and len(operands) == 2:
            return f"{_operand(operands[0])} {row.infix} {_operand(operands[1])}"
        if row.infix:
            return f"{row.infix}{_operand(operands[0])}"
        return self.op(function, *operands)

    def _check_registered(self, function: str, implementations: Mapping[str, Any]) -> None:
        if self.backend.name not in implementations:
            raise BackendError(
                f"'{function}' is registered for {', '.join(implementations)}, not for {self.backend.name}",
                fix=f"tensornet.register('{function}', {self.backend.name}=...)",
            )


def _is_plain(ref: Ref) -> bool:
    flat = [name for entry in ref.index for name in ((entry,) if not isinstance(entry, tuple) else entry)]
    return all(isinstance(name, str) for name in flat) and len(flat) == len(set(flat))


def _positions(ref: Ref, axes: Sequence[str]) -> list[int]:
    layout = axes_of_index(ref.index)
    return [layout.index(axis) for axis in axes]


def _operand(text: str) -> str:
    """An operand of an infix sign: a negative number or a compound one in parentheses."""
    return f"({text})" if text.startswith("-") or (" " in text and not text.endswith(")")) else text


def _overlaps(entry: Index) -> bool:
    """Whether an entry reads windows, which lie in the same memory."""
    return is_told(entry) and not isinstance(entry, Ref) and len(free_axes(entry)) > 1
