"""Lowering of function calls: each as its record says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..contraction.pairs import Layout, flatten, view_order
from ..graph.element_types import of_number
from ..graph.shape_inference import Scope, scalar_size, scope_inside, size_expression
from ..language.expression import (
    Call,
    Contraction,
    Expression,
    Literal,
    Ref,
    axes_of_index,
    is_scalar,
    option_axes,
    scalar_value,
)
from ..language.patterns import pattern_of
from ..ops.attention import HIDDEN, HIDDEN_IN_HALF
from ..ops.pointwise import WHERE
from ..ops.table import FUNCTIONS, Element, Function
from .contractions import Contracting
from .values import Entry, Operand, Value

__all__ = ["Calling"]


class Calling(Contracting):
    """Makes the steps of calls."""

    def call(self, call: Call, scope: Scope, wanted: Layout | None) -> Value:
        function = FUNCTIONS[call.function]
        if function.lowered is not None:
            return function.lowered(self, call, scope)
        if function.means:
            return self.kernel(call, scope)
        match function.axes:
            case "none" if function.rounds:
                return self.rounded(call, scope, wanted)
            case "none" if function.converts is not None and len(call.arguments) == 1:
                return self.convert(self.lower(call.arguments[0], scope, wanted), function.converts)
            case "none":
                return self.pointwise(call, scope, wanted)
            case "kept" | "removed" | "exchanged":
                return self.over_axes(call, scope, wanted)
            case "made":
                return self.made(call, [self.lower(each, scope, None) for each in call.arguments], scope)
            case "joined":
                return self.joined(call, scope)
            case "moved":
                return self.moved(call, scope)

    def kernel(self, call: Call, scope: Scope) -> Value:
        """A kernel of the user's own: each operand with a dimension for each axis of the kernel's equation."""
        function = FUNCTIONS[call.function]
        pattern = pattern_of(function.means[0])
        scope = self.within(call, scope)
        values = [self.lower(each, scope, None) for each in call.arguments]
        element, result = function.meeting([each.element for each in values])
        values = [self.convert(each, element) for each in values]
        groups = pattern.groups([each.layout for each in values])
        parts = [[groups[axis] for axis in axes_of_index(ref.index)] for ref in pattern.tensors]
        values = [
            each
            if view_order(each.layout, tuple(part)) is not None
            else self.reorder(each, flatten(tuple(part)))
            for each, part in zip(values, parts, strict=True)
        ]
        sizes = {axis: size for each in values for axis, size in each.sizes.items()}
        grouped = (groups[axis] for axis in pattern.left)
        left = tuple(group[0] if len(group) == 1 else group for group in grouped if group)
        return self.emit(
            left, replace(call, arguments=tuple(each.ref for each in values)), values, sizes, result
        )

    # ---- element by element

    def pointwise(self, call: Call, scope: Scope, wanted: Layout | None) -> Value:
        normed = self._normed(call, scope)
        if normed is not None:
            return normed
        function = FUNCTIONS[call.function]
        split = function.conditions
        conditions = [
            Operand(self.convert(self.lower(each, scope, wanted), Element.TRUTH))
            for each in call.arguments[:split]
        ]
        hidden = self._hidden(call, conditions, scope, wanted)
        if hidden is not None:
            return hidden
        adds = call.function == "add"
        operands = [self.operand(each, scope, wanted, adds) for each in call.arguments[split:]]
        if function.converts is Element.TRUTH and _is_truth(operands):
            assert operands[0].value is not None
            return operands[0].value
        if adds:
            operands = self._exact_together(operands)
            biased = self._biased(operands) if len(operands) == 2 else None
            if biased is not None:
                return biased
        taken = self._taken(call.function, operands) if len(operands) == 1 else None
        if taken is not None:
            return taken
        call = replace(call, options=self.numbers(call, scope))
        return self.combine(
            _rule(call), lambda *each: replace(call, arguments=each), operands, conditions, wanted
        )

    def _hidden(
        self, call: Call, conditions: list[Operand], scope: Scope, wanted: Layout | None
    ) -> Value | None:
        """`where(see, P, -1e30)` as a sum with 0 and -1e30, which takes a tenth of choosing and is the same.

        Where `see` is the same at every call, so that the numbers are made once, and P a parameter: of other
        tensors nobody knows that they are finite.
        """
        match call:
            case Call(WHERE.name, (_, Ref() as hides, Literal() as number)) if hides.name in self.parameters:
                value = scalar_value(number)
            case _:
                return None
        if not isinstance(value, int | float) or value > (HIDDEN if self.itemsize > 2 else HIDDEN_IN_HALF):
            return None
        if not all(each.value is not None and each.value.ref.name in self.still for each in conditions):
            return None
        choices = [Operand(None, (Literal(0),)), Operand(None, (number,))]
        table = self.combine(WHERE, lambda *each: Call(WHERE.name, each), choices, conditions, wanted)
        bias = self.lower(hides, scope, wanted)
        axes = {*table.layout, *bias.layout}
        order = tuple(axis for axis in wanted or self._order(axes, [table, bias]) if axis in axes)
        near = self.reorder(bias, tuple(axis for axis in order if axis in bias.layout))
        operands = [Operand(near), Operand(table)]
        return self.combine(FUNCTIONS["add"], lambda *each: Call("add", each), operands, (), order)

    def numbers(self, call: Call, scope: Scope) -> tuple[tuple[str, tuple[Expression, ...]], ...]:
        """The options of a call, with the sizes that they speak of put in."""
        return tuple((name, tuple(self.scalar(v, scope) for v in values)) for name, values in call.options)

    def _normed(self, call: Call, scope: Scope) -> Value | None:
        """`gain[c] * normalize[c](x) + bias[c]` as one step, which most libraries have."""
        match call:
            case Call(
                "add", (Contraction(factors, ()), Ref() as bias) | (Ref() as bias, Contraction(factors, ()))
            ) if len(factors) == 2:
                gain = next((each for each in factors if isinstance(each, Ref)), None)
                norm = next((each for each in factors if isinstance(each, Call)), None)
            case _:
                return None
        if gain is None or norm is None or not FUNCTIONS[norm.function].affine or len(norm.axes) != 1:
            return None
        if gain.index != norm.axes or bias.index != norm.axes:
            return None
        value = self.lower(norm.arguments[0], self.inner(norm.arguments[0], scope), None)
        affine = [self.read(each, scope) for each in (gain, bias)]
        element = max(Element.WIDE, value.element, *(each.element for each in affine))
        value, *affine = [self.convert(each, element) for each in (value, *affine)]
        return self._apply(norm, value, norm.axes, False, scope, element, affine)

    # ---- over axes

    def over_axes(self, call: Call, scope: Scope, wanted: Layout | None) -> Value:
        function = FUNCTIONS[call.function]
        over, reduces = function.runs_over(call.axes), bool(function.leaves_out(call.axes))
        asked = None if reduces else wanted
        value = self.lower(call.arguments[0], self.inner(call.arguments[0], scope), asked)
        element, result = function.meeting([value.element])
        value = self.convert(value, element)
        axes = tuple(axis for axis in value.layout if axis in over)
        if function.one_by_one and len(axes) > 1:
            for axis in axes:
                value = self._apply(replace(call, axes=(axis,)), value, (axis,), True, scope, result)
            return value
        if not reduces and len(axes) > 1:
            rest = tuple(axis for axis in value.layout if axis not in axes)
            value = self.reorder(value, (*rest, axes))
        call = replace(call, axes=(*axes, *function.makes(call.axes)))
        return self._apply(call, value, axes, reduces, scope, result)

    def _apply(
        self,
        call: Call,
        value: Value,
        axes: tuple[str, ...],
        reduces: bool,
        scope: Scope,
        result: Element,
        more: Sequence[Value] = (),
    ) -> Value:
        if not reduces:
            value = self._innermost(value, axes, FUNCTIONS[call.function])
        index = value.left
        whole = all(any(axis == entry for entry in index) for axis in axes) or axes in index
        left: tuple[Entry, ...] = index if whole else value.layout
        made = FUNCTIONS[call.function].makes(call.axes)
        if reduces:
            parts = (made if entry in axes or entry == axes else (entry,) for entry in left)
            left = tuple(each for part in parts for each in part)
        given = (value.ref, *(each.ref for each in more))
        right = replace(call, arguments=given, options=self.numbers(call, scope))
        sizes = {**value.sizes, **{axis: scope[axis] for axis in made}}
        return self.emit(left, right, [value, *more], sizes, result)

    def _innermost(self, value: Value, axes: tuple[str, ...], function: Function) -> Value:
        """The value with the axes that a function runs along innermost, copied so where that is faster."""
        order = (*(axis for axis in value.layout if axis not in axes), *axes)
        if value.layout == order:
            return value
        written = self.itemsize * self.count(value.sizes, value.layout)
        inside, as_it_is = (
            function.seconds(self.profile, 2 * written, written, inner) for inner in (True, False)
        )
        return self.reorder(value, order) if self.copied(value, order) + inside < as_it_is else value

    # ---- axes made, joined and moved along

    def made(self, call: Call, values: Sequence[Value], scope: Scope) -> Value:
        """Operands at hand, with the axis that the call makes."""
        (axis,) = call.axes
        _, result = FUNCTIONS[call.function].meeting([each.element for each in values])
        left = (*(name for each in values for name in each.layout), axis)
        right = replace(call, arguments=tuple(each.ref for each in values))
        return self.emit(left, right, values, {axis: scope[axis]}, result)

    def joined(self, call: Call, scope: Scope) -> Value:
        """Operands one after another along an axis, which one without it is 1 long."""
        axis = call.axes[0]
        values = [self._ungrouped(self.lower(part, self.inner(part, scope), None)) for part in call.arguments]
        element, result = FUNCTIONS[call.function].meeting([each.element for each in values])
        values = [self.convert(each, element) for each in values]
        left = self._order({axis, *(name for each in values for name in each.layout)}, values)
        sizes = {name: size for each in values for name, size in each.sizes.items()}
        sizes[axis] = scope_inside(call, self.graph.named, self.graph.bound)[axis]
        right = replace(call, arguments=tuple(each.ref for each in values))
        return self.emit(left, right, values, sizes, result)

    def moved(self, call: Call, scope: Scope) -> Value:
        """The same axes, with the elements moved along some of them."""
        function, argument = FUNCTIONS[call.function], call.arguments[0]
        inside = self.inner(argument, scope)
        value = self._ungrouped(self.lower(argument, inside, None))
        sizes = dict(value.sizes)
        options: list[tuple[str, tuple[Expression, ...]]] = []
        filling: list[Element] = []
        for name, values in call.options:
            numbers = tuple(self.scalar(each, inside) for each in values)
            if name not in option_axes(call):
                filling += [of_number(each) for each in numbers]
            elif function.resized is not None:
                amounts = [self.open(scalar_size(each, inside)) for each in numbers]
                sizes[name] = function.resized(sizes[name], *amounts)
                numbers = tuple(map(size_expression, amounts))
            options.append((name, numbers))
        value = self.convert(value, function.meeting([value.element], filling)[0])
        right = replace(call, arguments=(value.ref,), options=tuple(options))
        return self.emit(value.layout, right, [value], sizes, value.element)


def _is_truth(operands: Sequence[Operand]) -> bool:
    """Whether these are a truth value and 0, compared."""
    first, second = operands
    truth = first.value is not None and first.value.element is Element.TRUTH
    return truth and second.value is None and scalar_value(second.before[0]) == 0


def _rule(call: Call) -> Function:
    """The record by which the operands of a pointwise function meet."""
    function = FUNCTIONS[call.function]
    if function.keeps_whole is None:
        return function
    return function.beside([scalar_value(each) if is_scalar(each) else None for each in call.arguments])
