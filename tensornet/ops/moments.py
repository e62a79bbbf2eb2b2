"""Moments: the mean and mean square of elements, and how functions change them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

__all__ = ["STANDARD", "UNKNOWN", "Known", "Moments", "Rule", "average", "extreme"]


@dataclass(frozen=True)
class Moments:
    """The mean and the mean square of the elements of a tensor."""

    mean: float
    square: float

    @property
    def variance(self) -> float:
        """What the mean leaves of the mean square."""
        return max(0.0, self.square - self.mean**2)

    def rounded(self) -> Moments:
        """Those to four digits, so that what was integrated once need not be again."""
        return Moments(float(f"{self.mean:.4g}"), float(f"{self.square:.4g}"))


STANDARD = Moments(0.0, 1.0)
UNKNOWN = Moments(math.nan, math.nan)


@dataclass(frozen=True)
class Known:
    """What a rule goes by.

    Attributes:
        operands: the moments of each operand.
        tensors: the numbers of those operands that are tensors.
        count: the positions along the axes that the function names.
    """

    operands: tuple[Moments, ...]
    tensors: tuple[int, ...]
    count: float


Rule: TypeAlias = Callable[[Known], "Moments | None"]
"""The moments of what a function gives; nothing where its value on numbers tells them better."""


def average(found: Sequence[Moments]) -> Moments:
    """Those of elements of which each operand gives the same share."""
    if not found:
        return STANDARD
    return Moments(
        sum(each.mean for each in found) / len(found), sum(each.square for each in found) / len(found)
    )


def extreme(moments: Moments, count: float, sign: int) -> Moments:
    """Those of the largest of `count` normal numbers: √(2 ln n) deviations above the mean, nearly."""
    reach = math.sqrt(2 * math.log(count))
    mean = moments.mean + sign * reach * math.sqrt(moments.variance)
    return Moments(mean, mean**2 + moments.variance / (1 + reach**2))
