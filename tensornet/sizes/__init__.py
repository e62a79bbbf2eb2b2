"""Symbolic sizes of axes: whole numbers, and polynomials in open sizes in a normal form.

In: names of axes, texts and sympy expressions. Out: sizes that are equal if their formulas are; their source code.
"""

from .formats import *  # noqa: F403
from .polynomial import *  # noqa: F403
