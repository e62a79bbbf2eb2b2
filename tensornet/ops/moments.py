"""Moments: the mean and mean square of elements, and how functions change them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias


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
