"""Initializers by name: `W[o,i]: parameter(std=0.02)`, `init={"W": "orthogonal"}`."""

from __future__ import annotations

__all__ = ["NAMED", "STARTS", "WORDS"]

STARTS = {
    "std": "normal numbers of this deviation",
    "value": "this number everywhere",
    "identity": "this number where an input meets the output that it is, 0 elsewhere",
    "near_identity": "the identity times this number, with normal numbers of a hundredth beside it",
    "orthogonal": "rows, or columns where there are fewer, that are orthogonal and this long",
    "kaiming": "normal numbers of the deviation √(2 / inputs), times this number",
    "xavier": "normal numbers of the deviation √(2 / (inputs + outputs)), times this number",
}
"""What `parameter(kind=number)` says. Inputs are the positions along the axes that are summed where the parameter
is read and come with data or with a factor before it, outputs those along its other axes but those that come with
data and are kept: for each position along these it is a matrix of its own."""

NAMED = {
    "zeros": ("value", 0.0),
    "ones": ("value", 1.0),
    "identity": ("identity", 1.0),
    "near_identity": ("near_identity", 1.0),
    "orthogonal": ("orthogonal", 1.0),
    "kaiming": ("kaiming", 1.0),
    "xavier": ("xavier", 1.0),
}
"""The starts that have a name in `init=`."""

WORDS = ", ".join(map(repr, NAMED))
"""Those names, as a message lists them."""
