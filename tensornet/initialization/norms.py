"""Norms in gain propagation: tensors divided by the root of their own mean square.

    x / sqrt(mean[c](x * x) + eps)      (x - mean[c](x)) / sqrt(var[c](x) + eps)      v / sqrt(sum[i](v * v))

What is divided and what divides it hang together: their moments taken one by one tell nothing of the
quotient, and the square tells it exactly. A root is known by what it does to numbers, however it is written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ..errors import EquationError
from ..graph.algebra import function_of_one, put
from ..language.expression import (
    Call,
    Contraction,
    Expression,
    Literal,
    Ref,
    is_scalar,
    references,
    rename,
    scalar_value,
    subexpressions,
)
from ..ops.reduce import VAR
from ..ops.table import FUNCTIONS

__all__ = ["Norm", "norms_in"]

Look = Callable[[Ref], "Expression | None"]
"""What the line of a tensor says, if that is read as it was defined."""


@dataclass(frozen=True)
class Norm:
    """Factors of a product that are divided by the root of their own mean square.

    Attributes:
        divided: the factors above.
        factor: the one that divides them.
        root: the same, with what lines of their own say in it.
        square: what in it the root is of.
        summed: the axes over which that is the sum of squares; none if it is their mean.
    """

    divided: tuple[Expression, ...]
    factor: Expression
    root: Expression
    square: Expression
    summed: tuple[str, ...]

    def times(self, square: float) -> float:
        """What divides, where the square is a number.

        Raises:
            EquationError: it is no number there.
        """
        value = scalar_value(put(self.root, self.square, Literal(square)), lambda axis: 1)
        return float(value) if isinstance(value, int | float) else math.nan

    def is_root(self, square: float) -> bool:
        """Whether it goes as one over a root, near a number."""
        try:
            slope = math.log(self.times(1.1 * square) / self.times(square)) / math.log(1.1)
        except (EquationError, ArithmeticError, ValueError):
            return False
        return abs(slope + 0.5) < 0.1


@dataclass(frozen=True)
class _Square:
    """A mean or a sum of squares: of which factors, over which axes; or of what is left of one without its mean."""

    of: tuple[Expression, ...]
    axes: tuple[str, ...]
    is_sum: bool = False
    centred: bool = False


def norms_in(factors: Sequence[Expression], look: Look) -> Iterator[Norm]:
    """What may be norms in a product, each factor in one of them."""
    taken: set[int] = set()
    for factor in factors:
        found = next(_norms(factor, factors, look), None)
        parts = set() if found is None else {id(factor), *map(id, found.divided)}
        if found is not None and not taken & parts:
            taken |= parts
            yield found


def _norms(factor: Expression, factors: Sequence[Expression], look: Look) -> Iterator[Norm]:
    for root in _opened(factor, look):
        for part in subexpressions(root):
            if part is root or not is_scalar(put(root, part, Literal(1.0))):
                continue
            for square in _squares(part):
                divided = _divided(square, [each for each in factors if each is not factor], look)
                if divided:
                    yield Norm(divided, factor, root, part, square.axes if square.is_sum else ())


def _opened(factor: Expression, look: Look) -> Iterator[Expression]:
    """A factor; and with the lines that it reads in their place, as long as it maps one tensor."""
    yield factor
    while (one := function_of_one(factor)) is not None and (line := look(one)) is not None:
        factor = put(factor, one, line)
        yield factor


def _squares(part: Expression) -> Iterator[_Square]:
    match part:
        case Contraction(factors, summed) if summed:
            yield from (_Square(of, summed, is_sum=True) for of in _halves(factors))
        case Call(function, (inner,), axes) if FUNCTIONS[function].averages:
            factors = inner.factors if isinstance(inner, Contraction) and not inner.summed else (inner,)
            yield from (_Square(of, axes) for of in _halves(factors))
        case Call(VAR.name, (inner,), axes):
            yield _Square((inner,), axes, centred=True)


def _halves(factors: Sequence[Expression]) -> Iterator[tuple[Expression, ...]]:
    """The factors whose square some factors are: each stands there twice, or squared."""
    left, half = list(factors), list[Expression]()
    while left:
        one = left.pop(0)
        if one in left:
            left.remove(one)
            half.append(one)
        elif (base := _base(one)) is not None:
            half += base.factors if isinstance(base, Contraction) and not base.summed else (base,)
        else:
            return
    yield tuple(half)


def _base(power: Expression) -> Expression | None:
    """What an expression is the square of, by what it does to numbers."""
    match power:
        case Call(function, (base, *rest)) if FUNCTIONS[function].scalar and all(map(is_scalar, rest)):
            numbers = (scalar_value(Call(function, (Literal(at), *rest))) for at in (-2.0, 3.0))
            return base if tuple(numbers) == (4.0, 9.0) else None
    return None


def _divided(square: _Square, others: Sequence[Expression], look: Look) -> tuple[Expression, ...]:
    """The factors of a product that a square is made of; none if some of them are not there."""
    found: list[Expression] = []
    for one in square.of:
        left = (each for each in others if all(each is not part for part in found))
        if square.centred:
            same = (each for each in left if _is_centred(each, one, square.axes, look))
        else:
            same = (each for each in left if _is_alike(each, one, square.axes))
        if (each := next(same, None)) is None:
            return ()
        found.append(each)
    return tuple(found)


def _is_alike(one: Expression, other: Expression, axes: tuple[str, ...]) -> bool:
    """Whether expressions are the same, whatever the second calls some axes."""
    pairs = zip(references(one), references(other), strict=False)
    names = {
        inner: outer
        for a, b in pairs
        for outer, inner in zip(a.index, b.index, strict=False)
        if isinstance(inner, str) and inner in axes and isinstance(outer, str)
    }
    return one == (rename(other, names) if names else other)


def _is_centred(one: Expression, of: Expression, axes: tuple[str, ...], look: Look) -> bool:
    """Whether an expression is another without its mean over some axes."""
    match one:
        case Call("add", (a, b)):
            return any(
                _is_mean(away, of, axes, look) and _is_alike(kept, of, axes)
                for kept, away in ((a, b), (b, a))
            )
    return False


def _is_mean(away: Expression, of: Expression, axes: tuple[str, ...], look: Look) -> bool:
    """Whether an expression takes away the mean of another over some axes."""
    if (
        not isinstance(away, Contraction)
        or away.summed
        or away.factors[:1] != (Literal(-1),)
        or len(away.factors) != 2
    ):
        return False
    mean = away.factors[1]
    while isinstance(mean, Ref) and (line := look(mean)) is not None:
        mean = line
    match mean:
        case Call(function, (inner,), over) if FUNCTIONS[function].averages:
            return inner == of and over == axes
    return False
