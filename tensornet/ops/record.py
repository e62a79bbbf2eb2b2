"""The operation record: all that any part of the library knows of a function."""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from ..dtypes import Element
from ..nodes import Call
from .moments import Rule
from .protocols import Device, Left, Lowering, Value, Writer

__all__ = ["OPERANDS", "Axes", "Element", "Function", "KernelEquation"]

Axes: TypeAlias = Literal["none", "kept", "removed", "exchanged", "made", "joined", "moved"]
Kind: TypeAlias = Literal["pointwise", "axis", "reduction", "structure"]
Yield: TypeAlias = Literal["truth", "position", "same", "real", "number", "own"]

OPERANDS = "abcdefhiklmopqrstuvwxz"
"""What derivatives call the operands of a function; `g`, `j`, `n` and `y` mean something else there."""


@dataclass(frozen=True)
class KernelEquation:
    """An equation that a kernel computes.

    Attributes:
        text: the equation. Its tensors stand for any part of a program, names without axes for numbers, and
            each axis for all axes that occur in the same tensors.
        operands: what the kernel takes, of those names; the tensors in the order of the text if nothing is said.
        partial: the tensors that may lack some of their axes.
        options: the options that it is called with.
        axes: the axes of the text that it is called with; those that the left side lacks if nothing is said.
        holds: whether the numbers are such that the kernel computes the same.
    """

    text: str
    operands: tuple[str, ...] = ()
    partial: tuple[str, ...] = ()
    options: tuple[tuple[str, float], ...] = ()
    axes: tuple[str, ...] = ()
    holds: Callable[[Mapping[str, Any]], bool] = field(default=lambda numbers: True, compare=False)


@dataclass(frozen=True)
class Example:
    """A layer that shows what a function does.

    Attributes:
        equation: its equations.
        given: the tensors that go in, by name, as numbers in nested tuples, in the order of the call; and sizes,
            as whole numbers.
    """

    equation: str
    given: tuple[tuple[str, Any], ...]

    @staticmethod
    def of(equation: str, **given: Any) -> Example:
        """One with its tensors and sizes by name."""
        return Example(equation, tuple(given.items()))


SHOWN = ((-1.0, 0.5, 2.0), (2.0, 0.5, 1.0), (3.0, 0.0, 1.0))
"""What goes into an example that nobody wrote, operand by operand; of what asks for positive numbers the second."""


@dataclass(frozen=True)
class Function:
    """One function of the equation language.

    How a backend spells it is in that backend's table of templates under the same name; a template
    speaks of the operands as `{0}`, `{1}`, …, of the dimensions of the axes as `{axis}` and `{axes}`,
    of the options and amounts by their names, of the working type as `{dtype}`, and as `{positions}` of
    0, 1, 2, … along the axis.

    Attributes:
        name: how an equation calls it.
        formula: what it is, for the list of functions.

        axes: what it does to the axes.
            "none": nothing, it maps elements (operands align by axis name), as `gelu(a)` does;
            "kept": runs over those in brackets and keeps them, as `softmax[j](a)`;
            "removed": runs over them and leaves none, as `mean[j](a)`;
            "exchanged": runs over the first of the two in brackets and leaves none of it; the second it makes, as
            long as its name says, as `top[j,k](a)`;
            "made": adds the one it names, as long as its name says, as `onehot[j](a)`; where there is
            no operand the axis stands in its place, as in `index(i)`;
            "joined": makes the one in brackets anew, as long as those of all operands, as `concat[j](a, b)`;
            an operand without it is 1 long;
            "moved": moves elements along those that keywords name, as `roll(a, i=1)`.
        arity: the fewest and the most operands.
        options: keywords that take a number, and what they are if not given.
        amounts: what the keyword of an axis takes, `("before", "after")` for `pad(a, i=(1, 2))`.
        infix: the sign it is written with, `a + b` or `~a`.
        latex: how LaTeX writes it around its argument, `{0}`, where that is no name with parentheses.
        written: how an equation writes it, where axes and arity do not tell.
        twin: the pointwise function that does to its operands what this does along an axis.
        example: a layer that shows it, where its form does not tell one; see `shown`.
        elsewhere: what other libraries call it, in small letters and without `_`.

        resized: the size of an axis that a keyword names, of its size before and the amounts.
        in_sizes: what a size calls it, where the sizes of axes may be made with it.
        needs_position: whether it takes one of the elements along its axes, so that there must be one.
        one_by_one: whether it runs over several axes one after another.
        ordered: whether what it does hangs on the order of positions, so that it runs along one axis.
        anew: whether no operand may have the axis that it joins them along.

        yields: what comes out of exact operands: truth values (`less`), positions, whatever goes in (`argmax`),
            the same as went in (`maximum`: integers stay integers), reals (`exp`, which takes nothing else),
            numbers of the working type (`onehot`), or what only the user knows who registered the function.
        takes: what becomes of operands that are truth values: they are counted as "numbers"; all
            operands become "truths"; or "any" are taken as they are.
        conditions: how many of the operands, the first, are truth values whatever the others are.
        keeps_whole: whether it keeps integers where it else yields reals, of the values of the operands that
            are numbers, None for the others.
        converts: the elements that it turns all others into, where it is no more than that; the one to
            truth values takes a second operand, 0.
        rounds: the sign that divides integers and rounds as it does; it leaves integers alone.
        complex: whether complex operands are "taken", "refused" since it asks which is the larger or is
            defined for real numbers only, or "measured", with real numbers as the result.

        expansion: what it is in other functions, in the equation language: of the operands `a`, `b`, …, the options,
            the axis `j` that it runs over and the number `n` of its positions. Programs that say either are alike to
            who looks for kernels.
        fused: whether it is one pass where its expansion takes several, and so takes its place like a kernel.

        scalar: its value on Python numbers.
        number: that value as Python source of `{0}`, `{1}`, …, for numbers that speak of open sizes.
        derivative: for each operand, the gradient that it gets, in the equation language, of the operands
            `a`, `b`, `c`, …, the result `y` and the gradient `g` that comes in; the last text serves all further
            operands. Nothing where there is none to be written. Of real numbers; where a function has a
            kink, what lies between its slopes there.
        sums_to_one: whether its value sums to 1 along its axes.
        pools: the kernel that does it in windows.
        averages: whether it is the sum along its axes, divided by how many positions these have.
        at: what is at a position `p` along the axis that it makes, of the operand `a`, in the equation language.
        selects: where it is 0 at all positions of that axis but one: this one, of the operand `a`, or where that
            tells none of the `n` positions any of them.
        scatters: and there, the kernel that sums products of it with other tensors over axes of `a`.
        moments: its rule for the mean and the mean square, where no expansion and no value on numbers tells them.
        positive: whether it is asked of positive numbers.
        root: whether it is a root: of sizes and small constants, so that nobody trains a number alone under it.
        carries: whether elements that go in come out on their scale, though nothing is moved.
        random: whether it gives something else each time.
        trains: whether it does something else in training.
        drawn: for what is random, the function that does the same of where what it makes of ones is not 0, and of
            its operands.

        passes: how often the operand is read and the result written, as time goes, where its axes are the
            innermost in memory, and where others are; of what has conditions, where these follow from positions, so
            that processors foresee them, and where they do not.
        workspace: how many times the bytes of its result it works in, in either case; of what moves elements, along
            one axis and for each more.
        works_in: the axes of each tensor that a step of it makes besides its result, of the call and of the axes of
            that.
        tile: in so many numbers it works at most, where it goes through what it makes piece by piece.
        looks: whether a call of it is no more than another look at its operand, nothing moved.
        computes: the equations that it computes, for a kernel: nobody writes it, the planner puts it in their place.
        placed: whether a rewrite does so, for a kernel that computes what no pattern says.
        through: the axes besides its own along which its positions hang together, told of those of its operands.
        affine: whether `g[j] * f[j](a) + u[j]` is one step, spelled by the template `f_affine`.
        lowered: how it becomes steps, where that takes more than one.
        spelled: how a step of it becomes source, where no template says it all.
        implementations: the user's own, by the name of the backend.
    """

    name: str
    formula: str

    axes: Axes = "none"
    arity: tuple[int, int] = (1, 1)
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
        """What it does to axes in one word: `structure` moves elements, or makes places for them."""
        match self.axes:
            case "none":
                return "pointwise"
            case "kept":
                return "axis"
            case "removed" | "exchanged":
                return "reduction"
        return "structure"

    def runs_over(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        """Those of the axes in brackets that its operands have, and that it runs over."""
        match self.axes:
            case "kept" | "removed":
                return axes
            case "exchanged":
                return axes[:1]
        return ()

    def leaves_out(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        """Those of the axes in brackets that its value has not."""
        return () if self.axes == "kept" else self.runs_over(axes)

    def makes(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        """Those of the axes in brackets that are as long as their names say."""
        match self.axes:
            case "made":
                return axes
            case "exchanged":
                return axes[1:]
        return ()

    @property
    def is_kernel(self) -> bool:
        """Whether nobody writes it: it takes the place of equations."""
        return bool(self.computes) or self.placed

    @property
    def recognised(self) -> tuple[KernelEquation, ...]:
        """The equations in the place of which it may stand."""
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
        """Whether it is written with one axis and no more."""
        return self.axes in ("made", "joined") or (self.ordered and self.axes != "exchanged")

    @property
    def of_axis_alone(self) -> bool:
        """Whether it has no operands: `index(i)`."""
        return self.arity[1] == 0

    @property
    def form(self) -> str:
        """How an equation writes it: `softmax[j](a)`, `a + b`, `where(condition, a, b)`."""
        operands = string.ascii_lowercase[: self.arity[0]]
        if self.written:
            return self.written
        if self.infix:
            return f" {self.infix} ".join(operands) if len(operands) > 1 else f"{self.infix}a"
        arguments = [*operands, *(f"{name}={value:g}" for name, value in self.options)]
        axes = "[j,k]" if self.axes == "exchanged" else "[j]" if self.takes_axes else ""
        return f"{self.name}{axes}({', '.join(arguments)})"

    @property
    def shown(self) -> Example:
        """A layer that shows what it does."""
        if self.example is not None:
            return self.example
        axis = "i" if self.axes == "none" else "j"
        names = string.ascii_lowercase[: max(self.arity[0], 2 if self.arity[1] > self.arity[0] else 1)]
        operands = [f"{name}[{axis}]" for name in names]
        given = SHOWN[1:] if self.positive else SHOWN
        if self.infix:
            text = f" {self.infix} ".join(operands) if len(operands) > 1 else f"{self.infix}{operands[0]}"
        else:
            text = f"{self.name}{'[j]' if self.takes_axes else ''}({', '.join(operands)})"
        left = "y" if self.axes == "removed" else f"y[{axis}]"
        return Example(f"{left} = {text}", tuple(zip(names, given, strict=False)))

    # ---- elements

    def meeting(self, tensors: Sequence[Element], numbers: Sequence[Element] = ()) -> tuple[Element, Element]:
        """What the operands become, and what the result is.

        Args:
            tensors: the elements of the operands that are tensors.
            numbers: those of the ones that are numbers, which give way to tensors of the working type.
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
        """What one of the operands gets, in the equation language; see `derivative`."""
        return self.derivative[min(operand, len(self.derivative) - 1)]

    def beside(self, values: Sequence[Any]) -> Function:
        """The record where some operands are numbers, None for the others: a small power keeps integers."""
        keeps = self.keeps_whole is not None and self.keeps_whole(*values)
        return replace(self, yields="same") if keeps else self

    def element(
        self, found: Sequence[Element], values: Callable[[], Sequence[Any]], filling: Sequence[Element] = ()
    ) -> Element:
        """What the elements of the result are.

        Args:
            found: those of the operands.
            values: gives the operands that are numbers, None for the others.
            filling: those of the numbers that stand where no operand does.
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
        """Whether it gives the same each time: no draw, and none of the user's own, of which nobody knows."""
        return not self.trains and not self.implementations

    def is_look(self, call: Call) -> bool:
        """Whether a call of it is no more than another look at its operand."""
        return self.looks is not None and self.looks(call)

    def seconds(self, device: Device, moved: float, written: float, inner: bool) -> float:
        """The expected time of a step.

        Args:
            device: the constants of the device.
            moved: bytes read and written.
            written: bytes of the result.
            inner: whether the axes it runs over are the innermost in memory, or its conditions follow from positions.
        """
        return device.computed(moved, written, self.passes[0 if inner else 1])


def _compared(tensors: Sequence[Element], whole: Element) -> Element:
    """Positions are compared with numbers of the working type in a type that holds both."""
    return Element.WIDE if whole is Element.NUMBER and any(each.is_exact for each in tensors) else whole
