"""Every kind of input, by name, and how many of it a full run makes."""

from __future__ import annotations

from . import Target, calls, names, programs, texts

TARGETS = {
    each.name: each
    for each in (
        Target("texts", texts.attempt, 100_000),
        Target("compositions", programs.compositions, 2_000),
        Target("einsum", calls.einsum, 5_000),
        Target("arrays", calls.arrays, 10_000),
        Target("names", names.attempt, 2_000),
    )
}
