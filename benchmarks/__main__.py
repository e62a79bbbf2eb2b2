"""All suites, one table each: what `make bench` runs."""

from . import (
    attention,
    calls,
    contractions,
    convolution,
    linear,
    mixture,
    models,
    pairwise,
    recurrent,
    tensor_swin,
)
from .report import run

run(
    calls.SUITE,
    contractions.TCL,
    contractions.CONTRACTIONS,
    linear.SUITE,
    attention.SUITE,
    mixture.SUITE,
    pairwise.SUITE,
    recurrent.SUITE,
    convolution.SUITE,
    models.SUITE,
    tensor_swin.SUITE,
)
