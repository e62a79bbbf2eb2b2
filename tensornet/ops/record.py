"""The operation record: everything that the library knows about a function.

`Lowering` and `Writer` are the interface to the folders above: records may not import lowering or code generation, so
these are protocols. `Moments` are the mean and mean square of elements, which functions change.
"""

from __future__ import annotations

import functools
import math
import re
import string
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, TypeAlias

from ..dtypes import Element as Element
from ..sizes import product
from ..syntax import Call, Expression, Ref
from ..syntax import axes_in as axes_in
from ..syntax import names_in as names_in

Entry: TypeAlias = "str | tuple[str, ...]"
"""A dimension: an axis, or a composite of several."""

Left: TypeAlias = "tuple[Entry, ...]"
"""The order in memory of the result of a step."""

Reached: TypeAlias = "tuple[tuple[str, int], tuple[str, int], int]"
"""An axis with its stride in positions, a second axis (or an empty name) with its stride, and the first position."""


def entry_of(axes: tuple[str, ...]) -> Entry:
    """The dimension with these axes: a single axis, or a composite."""
    return axes[0] if len(axes) == 1 else axes


def left_of(groups: Iterable[tuple[str, ...]]) -> Left:
    """The left side of a step whose result has one dimension for each group of axes that is not empty."""
    return tuple(entry_of(group) for group in groups if group)


def common(
    axes: Iterable[str], *others: Collection[str], but: Iterable[Collection[str]] = ()
) -> tuple[str, ...]:
    """The axes that all others have too, and none of those in `but`, in the order of the first."""
    return tuple(
        axis
        for axis in axes
        if all(axis in each for each in others) and not any(axis in each for each in but)
    )


def roles(signature: str, layouts: Sequence[Collection[str]]) -> dict[str, tuple[str, ...]]:
    """The axes of each letter of a signature: those that exactly the operands with the letter have.

    In `"sid sjd sjf"` a query, a key and a value share the axes `s`, and `d` are the axes of query and key alone.
    """
    words = signature.split()
    axes = dict.fromkeys(axis for each in layouts for axis in each)
    holders = {axis: [axis in each for each in layouts] for axis in axes}
    letters = dict.fromkeys("".join(words))
    own = {letter: [letter in word for word in words] for letter in letters}
    return {letter: tuple(axis for axis in axes if holders[axis] == own[letter]) for letter in letters}


@dataclass(frozen=True)
class Value:
    """A tensor during lowering: how it is read, the symbolic sizes of its axes, the kind of its elements."""

    ref: Ref
    sizes: Mapping[str, Any]
    element: Element

    @functools.cached_property
    def layout(self) -> tuple[str, ...]:
        """Its axes in the order in memory."""
        return self.ref.layout

    @property
    def left(self) -> Left:
        """The left side of a step whose result has the layout of this tensor."""
        return self.ref.index  # type: ignore[return-value]


def sizes_of(values: Iterable[Value]) -> dict[str, Any]:
    """The sizes of all axes of some tensors."""
    return {axis: size for each in values for axis, size in each.sizes.items()}


def extent(sizes: Mapping[str, Any], axes: Iterable[str]) -> Any:
    """The number of positions along some axes, symbolic in open sizes."""
    return product(sizes[axis] for axis in axes)


class Lowering(Protocol):
    """The part of lowering that records with their own `lowered` rule call; see `lowering.lower`."""

    @property
    def profile(self) -> Any:
        """The constants of the device; see `device.cost_model.DeviceProfile`."""

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""

    def size(self, axis: str) -> Any:
        """The size of an axis of the call."""

    def new_axis(self) -> str:
        """A new axis that does not occur in the call."""

    def lower(self, expression: Expression, wanted: tuple[str, ...] | None = None) -> Value:
        """The value of an expression, whose steps this emits; `wanted` is the preferred order in memory."""

    def applied(self, function: str, values: Sequence[Value]) -> Value:
        """A pointwise function of lowered tensors, converted to the element types that it requires."""

    def convert(self, value: Value, element: Element) -> Value:
        """The value with its elements converted to another kind."""

    def offers(self, value: Value, groups: Sequence[tuple[str, ...]]) -> bool:
        """Whether a value has a dimension for each group, the last innermost, without a copy."""

    def grouped(self, value: Value, groups: Sequence[tuple[str, ...]]) -> Value:
        """The value with a dimension for those axes of each group that it has, copied where it does not offer them."""

    def count(self, *groups: Iterable[str]) -> int:
        """The number of positions along the axes of some groups, at the planned sizes."""

    def number(self, size: Any) -> int:
        """The planned value of a size."""

    def reached(self, expression: Expression) -> Reached:
        """The positions that an expression gives, as a sum of two scaled axes, or of one."""

    def is_even(self, expression: Expression, axes: tuple[str, ...]) -> bool:
        """Whether an expression gives positions at even distances, one for each position along an axis."""

    def raised(self, expression: Expression, least: float) -> Expression:
        """An expression in which numbers below `least` are replaced by it."""

    def emit(
        self,
        left: Left,
        right: Call,
        operands: Sequence[Value],
        element: Element,
        *,
        seconds: float | None = None,
        flops: Any = 0,
    ) -> Value:
        """Adds a step and returns its result."""


def numeric(lowering: Lowering, values: Sequence[Value]) -> list[Value]:
    """The values in one type of numbers, of at least float32."""
    element = max([Element.WIDE, *(each.element for each in values)])
    return [lowering.convert(each, element) for each in values]


class Writer(Protocol):
    """The part of code generation that records with their own `spelled` rule call; see `codegen.context`."""

    def op(self, template: str, *operands: str, **details: str) -> str:
        """The source of one operation, from the backend's template of that name."""

    def render(self, expression: Expression, left: Left) -> str:
        """An operand, or a pointwise expression of operands, aligned to the result."""

    def view(self, ref: Ref, groups: Sequence[tuple[str, ...]], *, ones: bool = False) -> str:
        """An operand with one dimension for each group; an empty group gets one of size 1 with `ones`, else none."""

    def broadcast(self, ref: Ref, groups: Sequence[tuple[str, ...]]) -> str:
        """An operand with one dimension for each group: of size 1 if it has none of the group's axes, else full."""

    def extent(self, axes: Sequence[str]) -> str:
        """The number of positions along some axes."""

    def reshaped(self, text: str, left: Left) -> str:
        """A result with one dimension for each entry of the left side."""

    def looked(self, text: str, name: str, axis: str) -> str:
        """The positions in a tensor of some name, after a check that they are within an axis."""

    def atomic(self, ref: Ref) -> str:
        """An operand with one dimension for each axis, in the order in memory."""

    def reached(self, expression: Expression) -> Reached:
        """The positions that an expression gives, as a sum of two scaled axes, or of one."""

    def options(self, call: Call) -> dict[str, str]:
        """The options of a function from its call, or their defaults from its record."""

    def scalar(self, expression: Expression) -> str:
        """The source of a number."""

    def number(self, expression: Expression) -> str:
        """The source of a number as a tensor."""

    def integer(self, expression: Expression) -> int:
        """The value of a known whole number; raises an EquationError otherwise."""

    def value(self, expression: Expression) -> Any:
        """The value of a number; None for a tensor, or while a size in it is open."""


@dataclass(frozen=True)
class Moments:
    """The mean and the mean square of the elements of a tensor."""

    mean: float
    square: float

    @property
    def variance(self) -> float:
        """The mean square less the square of the mean, at least 0."""
        return max(0.0, self.square - self.mean**2)

    def rounded(self) -> Moments:
        """The moments to four digits, so that equal ones share one numerical integration."""
        return Moments(float(f"{self.mean:.4g}"), float(f"{self.square:.4g}"))


STANDARD = Moments(0.0, 1.0)
UNKNOWN = Moments(math.nan, math.nan)


@dataclass(frozen=True)
class Known:
    """The arguments of a rule.

    Attributes:
        operands: the moments of each operand.
        tensors: the indices of the operands that are tensors.
        count: the number of positions along the axes that the function names.
    """

    operands: tuple[Moments, ...]
    tensors: tuple[int, ...]
    count: float


Rule: TypeAlias = Callable[[Known], "Moments | None"]
"""The moments of the result of a function; None where its value on numbers gives a better estimate."""


def average(found: Sequence[Moments]) -> Moments:
    """The moments of a mixture to which each operand contributes the same share of elements."""
    if not found:
        return STANDARD
    return Moments(
        sum(each.mean for each in found) / len(found), sum(each.square for each in found) / len(found)
    )


def extreme(moments: Moments, count: float, sign: int) -> Moments:
    """The moments of the largest (`sign` 1) or smallest (−1) of `count` normal numbers.

    It is about √(2 ln n) standard deviations from the mean.
    """
    reach = math.sqrt(2 * math.log(count))
    mean = moments.mean + sign * reach * math.sqrt(moments.variance)
    return Moments(mean, mean**2 + moments.variance / (1 + reach**2))


Axes: TypeAlias = Literal["none", "kept", "removed", "exchanged", "made", "joined", "moved"]
Kind: TypeAlias = Literal["pointwise", "axis", "reduction", "structure"]
Yield: TypeAlias = Literal["truth", "position", "same", "real", "number", "own"]

KINDS: Mapping[Axes, Kind] = {
    "none": "pointwise",
    "kept": "axis",
    "removed": "reduction",
    "exchanged": "reduction",
}

OPERANDS = "abcdefhiklmopqrstuvwxz"
"""The names of operands in derivatives; `g`, `j`, `n` and `y` have other meanings there."""


@dataclass(frozen=True)
class KernelEquation:
    """An equation that a kernel computes.

    Attributes:
        text: the equation. Its tensors match any part of a program, names without axes match numbers, and each
            axis matches all axes that occur in the same tensors.
        operands: the operands of the kernel as expressions of those names; by default the tensors in textual order.
        partial: the tensors that may lack some of their axes.
        options: the options of the call.
        axes: the axes of the call, as named in the text; by default those that the left side lacks.
        holds: whether the kernel computes the same with the matched numbers.
        needs: what programs in which it is looked for must have; see `ir.rewriting.Program.features`.
        fits: whether it may pay, given the program's axes for each axis of the text, and those of the first operand.
        called: the functions that the text calls, and its tensors with axes.
    """

    text: str
    operands: tuple[str, ...] = ()
    partial: tuple[str, ...] = ()
    options: tuple[tuple[str, float], ...] = ()
    axes: tuple[str, ...] = ()
    holds: Callable[[Mapping[str, Any]], bool] = field(default=lambda numbers: True, compare=False)
    needs: tuple[str, ...] = ()
    fits: Callable[[Mapping[str, Sequence[str]], Sequence[str]], bool] = field(
        default=lambda groups, first: True, compare=False
    )
    called: frozenset[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "called", frozenset(re.findall(r"\w+(?=[\[(])", self.text)))


SHOWN = ((-1.0, 0.5, 2.0), (2.0, 0.5, 1.0), (3.0, 0.0, 1.0))
"""The operands of a generated example, in order; functions that require positive numbers start at the second."""


@dataclass(frozen=True)
class Example:
    """A layer that demonstrates a function.

    Attributes:
        equation: its equations.
        given: the inputs by name, as numbers in nested tuples, in the order of the call; and sizes, as integers.
    """

    equation: str
    given: tuple[tuple[str, Any], ...]

    @staticmethod
    def of(equation: str, **given: Any) -> Example:
        """An example with its tensors and sizes as keywords; by default it has the tensor `a` of generated ones."""
        return Example(equation, tuple(given.items()) or (("a", SHOWN[0]),))


@dataclass(frozen=True)
class Function:
    """One function of the equation language.

    Each backend has a table of templates with the source of the function under the same name. A template uses `{0}`,
    `{1}`, … for the operands, `{axis}` and `{axes}` for the dimensions of the axes, the names of options and amounts,
    `{dtype}` for the working type, and `{positions}` for 0, 1, 2, … along the axis.

    Attributes:
        name: its name in equations.
        formula: its definition in the list of functions.

        axes: its effect on axes.
            "none": nothing, it maps elements (operands align by axis name), as `gelu(a)` does;
            "kept": runs over the axes in brackets and keeps them, as `softmax[j](a)`;
            "removed": runs over the axes in brackets and removes them, as `mean[j](a)`;
            "exchanged": runs over the first of two axes in brackets and removes it; adds the second, with the size
            declared for its name, as `top[j,k](a)`;
            "made": adds the axis in brackets, with the size declared for its name, as `onehot[j](a)`; without
            operands the axis takes the place of the operand, as in `index(i)`;
            "joined": gives the axis in brackets the sum of its sizes in all operands, as `concat[j](a, b)`;
            an operand without the axis counts as size 1;
            "moved": moves elements along the axes that keywords name, as `roll(a, i=1)`.
        arity: the fewest and the most operands.
        operands: the names of its operands in equations, if these are not `a`, `b`, …; a call may give them by name.
        options: numbers that follow the operands, each in its place or by its name, with their defaults.
        amounts: the values in the keyword of an axis, `("before", "after")` for `pad(a, i=(1, 2))`.
        infix: the operator sign it is written with, `a + b` or `~a`.
        latex: its LaTeX form around the arguments `{0}` and `{1}`, if that is not a name with parentheses.
        written: its form in equations, if it does not follow from axes and arity.
        twin: the pointwise function that does to its operands what this does along an axis.
        example: a layer that demonstrates it, if none follows from its form; see `shown`.
        elsewhere: its names in other libraries, in lower case and without `_`.

        resized: the size of an axis that a keyword names, computed from its previous size and the amounts.
        in_sizes: its name in expressions for sizes, if these may use it.
        needs_position: whether it selects elements along its axes, so that there must be at least one position.
        one_by_one: whether it runs over several axes one after another.
        ordered: whether its result depends on the order of positions; it runs along one axis then.
        anew: whether it joins operands along a new axis, which no operand may have.

        yields: the elements of the result for exact operands: "truth" values (`less`); a "position", whatever the
            operands are (`argmax`); the "same" as the operands (`maximum`: integers stay integers); "real" numbers
            (`exp`, which takes only these); a "number" of the working type (`onehot`); or its "own", which only the
            user knows who registered the function.
        takes: how it treats operands that are truth values: as "numbers"; "truths" converts all operands to truth
            values; "any" leaves them as they are.
        conditions: the number of leading operands that are truth values, whatever the others are.
        keeps_whole: whether it keeps integers although it yields reals otherwise, given the values of the operands
            that are numbers, None for the others.
        converts: the kind of elements that it converts to, for a function that does nothing else; the conversion
            to truth values takes a second operand, 0.
        rounds: the operator that divides integers with the same rounding; the function leaves integers unchanged.
        complex: whether complex operands are "taken"; "refused", because it compares elements or is defined for
            real numbers only; or "measured", with real numbers as the result.

        expansion: its definition by other functions, in the equation language, with the operands `a`, `b`, …, the
            options, the axis `j` that it runs over and the number `n` of its positions. Kernel selection treats the
            function and its expansion alike.
        fused: whether it is one pass where its expansion takes several; it then replaces its expansion like a kernel.

        scalar: its value on Python numbers.
        number: that value as Python source with `{0}`, `{1}`, …, for numbers that depend on open sizes.
        derivative: the gradient of each operand in the equation language, with the operands `a`, `b`, `c`, …, the
            result `y` and the cotangent `g` of the result; the last text serves all further operands. Empty if there
            is none. It holds for real numbers; at a kink it is a value between the two slopes.
        sums_to_one: whether its value sums to 1 along its axes.
        pools: the kernel that computes it over windows.
        averages: whether it is the sum along its axes, divided by the number of their positions.
        at: its value at position `p` along the axis that it adds, from the operand `a`, in the equation language.
        selects: for a function that is 0 at all positions of that axis but one, that position, computed from the
            operand `a`; any position if `a` gives none of the `n`.
        scatters: for such a function, the kernel that sums products of it with other tensors over axes of `a`.
        moments: its rule for the mean and mean square, if neither its expansion nor its value on numbers gives them.
        positive: whether it requires positive numbers.
        root: whether it is a root. Roots are taken of sizes and small constants, so a lone number under one is not
            trained.
        carries: whether its results have the scale of its operands; functions of structure need not declare it.
        random: whether its result differs each time.
        trains: whether it differs between training and evaluation.
        exchanges: whether its result depends on the device of a mesh that runs it.
        drawn: for a random function, the function that computes the same from a mask and its operands; the mask is
            where the random function of ones is not 0.

        passes: its time in units of reading the operand and writing the result once: if its axes are the innermost
            in memory, and if not. For a function with conditions: if these follow from positions, so that processors
            predict them, and if not.
        workspace: its working memory as a multiple of the bytes of its result, in the same two cases; for a function
            that moves elements, along one axis and for each further axis.
        works_in: the axes of each temporary tensor of a step, given the call and the axes of the result.
        tile: the most numbers that it holds in working memory, if it computes its intermediates in pieces.
        looks: whether a call of it is only a view of its operand, without a copy.
        computes: for a kernel, the equations that it computes; nobody writes it, the planner replaces them by it.
        placed: whether a rewrite inserts the kernel, because no pattern expresses what it computes.
        through: the axes besides its own along which positions depend on one another, given the operands' axes.
        affine: whether `g[j] * f[j](a) + u[j]` is one step, with the template `f_affine`.
        lowered: its lowering to steps, if the default does not suffice.
        spelled: the source of a step of it, if a template alone does not give it.
        implementations: the user's own implementations, by the name of the backend.
    """

    name: str
    formula: str

    axes: Axes = "none"
    arity: tuple[int, int] = (1, 1)
    operands: tuple[str, ...] = ()
    options: tuple[tuple[str, float], ...] = ()
    amounts: tuple[str, ...] = ()
    infix: str = ""
    written: str = ""
    latex: str = ""
    twin: str = ""
    example: Example | None = None
    elsewhere: tuple[str, ...] = ()

    resized: Callable[..., Any] | None = field(default=None, compare=False)
    in_sizes: str = ""
    needs_position: bool = False
    one_by_one: bool = False
    ordered: bool = False
    anew: bool = False

    yields: Yield = "own"
    takes: Literal["numbers", "truths", "any"] = "numbers"
    conditions: int = 0
    keeps_whole: Callable[..., bool] | None = field(default=None, compare=False)
    converts: Element | None = None
    rounds: str = ""
    complex: Literal["taken", "refused", "measured"] = "taken"

    expansion: str = ""
    fused: bool = False

    scalar: Callable[..., Any] | None = field(default=None, compare=False)
    number: str = ""
    derivative: tuple[str, ...] = ()
    sums_to_one: bool = False
    pools: str = ""
    averages: bool = False
    at: str = ""
    selects: str = ""
    scatters: str = ""
    moments: Rule | None = field(default=None, compare=False)
    positive: bool = False
    root: bool = False
    carries: bool = False
    random: bool = False
    trains: bool = False
    exchanges: bool = False
    drawn: str = ""

    passes: tuple[float, float] = (1.0, 1.0)
    workspace: tuple[float, float] = (0.0, 0.0)
    works_in: Callable[[Call, Sequence[str]], Iterable[Sequence[str]]] | None = field(
        default=None, compare=False
    )
    tile: int = 0
    looks: Callable[[Call], bool] | None = field(default=None, compare=False)
    computes: tuple[KernelEquation, ...] = ()
    placed: bool = False
    through: Callable[[Sequence[tuple[str, ...]]], tuple[str, ...]] | None = field(
        default=None, compare=False
    )
    affine: bool = False
    lowered: Callable[[Lowering, Call], Value] | None = field(default=None, compare=False)
    spelled: Callable[[Writer, Call, Left], str] | None = field(default=None, compare=False)
    implementations: tuple[tuple[str, Callable[..., Any]], ...] = field(default=(), compare=False)

    @property
    def kind(self) -> Kind:
        """Its kind by its effect on axes; `structure` moves elements or adds axes."""
        return KINDS.get(self.axes, "structure")

    def runs_over(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        """The axes in brackets that its operands have and that it runs over."""
        match self.axes:
            case "kept" | "removed":
                return axes
            case "exchanged":
                return axes[:1]
        return ()

    def leaves_out(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        """The axes in brackets that its result lacks."""
        return () if self.axes == "kept" else self.runs_over(axes)

    def makes(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        """The axes in brackets that it adds, with the sizes declared for their names."""
        match self.axes:
            case "made":
                return axes
            case "exchanged":
                return axes[1:]
        return ()

    @property
    def is_kernel(self) -> bool:
        """Whether it replaces equations and is never written by users."""
        return bool(self.computes) or self.placed

    @functools.cached_property
    def recognised(self) -> tuple[KernelEquation, ...]:
        """The equations that it may replace."""
        if not self.fused:
            return self.computes
        text = re.sub(r"\ba\b", "a[b,j]", self.expansion)
        return (KernelEquation(f"y[b,j] = {text}", axes=("j",)),)

    @property
    def takes_axes(self) -> bool:
        """Whether the function is written with axes in brackets, as `softmax[j](s)`."""
        return self.axes not in ("none", "moved") and not self.of_axis_alone

    @property
    def takes_one_axis(self) -> bool:
        """Whether it is written with exactly one axis."""
        return self.axes in ("made", "joined") or (self.ordered and self.axes != "exchanged")

    @property
    def of_axis_alone(self) -> bool:
        """Whether it has no operands: `index(i)`."""
        return self.arity[1] == 0

    @property
    def form(self) -> str:
        """How an equation writes it: `softmax[j](a)`, `a + b`, `where(condition, a, b)`."""
        options = (f"{name}={value:g}" for name, value in self.options)
        axes = "[j,k]" if self.axes == "exchanged" else "[j]" if self.takes_axes else ""
        operands = self.operands or string.ascii_lowercase[: self.arity[0]]
        return self.written or self._applied([*operands, *options], axes)

    @property
    def shown(self) -> Example:
        """A layer that demonstrates the function."""
        if self.example is not None:
            return self.example
        axis = "i" if self.axes == "none" else "j"
        names = string.ascii_lowercase[: max(self.arity[0], 2 if self.arity[1] > self.arity[0] else 1)]
        text = self._applied([f"{name}[{axis}]" for name in names], "[j]" if self.takes_axes else "")
        left = "y" if self.axes == "removed" else f"y[{axis}]"
        given = SHOWN[1:] if self.positive else SHOWN
        return Example(f"{left} = {text}", tuple(zip(names, given, strict=False)))

    def _applied(self, operands: Sequence[str], axes: str) -> str:
        """The text of its application to operands."""
        if self.infix:
            return f" {self.infix} ".join(operands) if len(operands) > 1 else f"{self.infix}{operands[0]}"
        return f"{self.name}{axes}({', '.join(operands)})"

    # ---- elements

    def meeting(self, tensors: Sequence[Element], numbers: Sequence[Element] = ()) -> tuple[Element, Element]:
        """The element types that the operands are converted to, and that of the result.

        Args:
            tensors: the element types of the operands that are tensors.
            numbers: those of the operands that are numbers, which adapt to tensors of the working type.
        """
        top = max((*tensors, *numbers), default=Element.TRUTH)
        whole = max(top, Element.WHOLE)
        match self.yields:
            case "truth":
                return (Element.TRUTH if self.takes == "truths" else _compared(tensors, whole)), Element.TRUTH
            case "position":
                return whole, Element.WHOLE
            case "same" if self.takes == "any" and top is Element.TRUTH:
                return top, top
            case "same":
                return whole, whole
            case "real":
                return max(top, Element.WIDE), max(top, Element.WIDE)
            case "number":
                return whole, Element.NUMBER
        return top, Element.NUMBER if top is Element.NUMBER else Element.WIDE

    def gradient(self, operand: int) -> str:
        """The gradient of one operand, in the equation language; see `derivative`."""
        return self.derivative[min(operand, len(self.derivative) - 1)]

    def beside(self, values: Sequence[Any]) -> Function:
        """The record for operands with these values, None for tensors: a small power keeps integers."""
        keeps = self.keeps_whole is not None and self.keeps_whole(*values)
        return replace(self, yields="same") if keeps else self

    def element(
        self, found: Sequence[Element], values: Callable[[], Sequence[Any]], filling: Sequence[Element] = ()
    ) -> Element:
        """The element type of the result.

        Args:
            found: the element types of the operands.
            values: returns the values of the operands that are numbers, None for the others.
            filling: the element types of the numbers that fill positions without an operand.
        """
        if self.rounds:
            return max(Element.WHOLE, *found)
        if self.converts is not None and len(found) == 1:
            return self.converts
        function = self if self.keeps_whole is None else self.beside(values())
        return function.meeting(found[function.conditions :], filling)[1]

    # ---- cost

    @property
    def is_repeatable(self) -> bool:
        """Whether every call gives the same result, on any device: no random draw, no collective, and no function of
        the user, which may vary."""
        return not self.trains and not self.exchanges and not self.implementations

    def is_look(self, call: Call) -> bool:
        """Whether a call of it is only a view of its operand."""
        return self.looks is not None and self.looks(call)

    def seconds(self, device: Any, moved: float, written: float, inner: bool) -> float:
        """The expected time of a step.

        Args:
            device: the constants of the device; see `device.cost_model.DeviceProfile`.
            moved: bytes read and written.
            written: bytes of the result.
            inner: whether its axes are the innermost in memory, or its conditions follow from positions.
        """
        return float(device.computed(moved, written, self.passes[0 if inner else 1]))


placed_kernel = functools.partial(Function, axes="removed", yields="number", placed=True)
"""The record of a kernel that a rewrite inserts."""


def _compared(tensors: Sequence[Element], whole: Element) -> Element:
    """The type of a comparison; positions and numbers of the working type are compared in a type that holds both."""
    return Element.WIDE if whole is Element.NUMBER and any(each.is_exact for each in tensors) else whole
