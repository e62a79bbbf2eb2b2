"""All suites, one table each: what `make bench` runs."""

from . import attention, contractions, linear, models
from .report import run

run(contractions.TCL, contractions.CONTRACTIONS, linear.SUITE, attention.SUITE, models.SUITE)
