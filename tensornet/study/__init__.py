"""The study: classifiers of handwritten digits, dense and tensorized, trained and compared.

digits (1,797 images, 8×8) → one recipe × every row of `STUDY` → accuracy against parameters
"""

from __future__ import annotations

from .rows import STUDY, Row
from .run import run_study
from .training import Epoch, RunResult

__all__ = ["Epoch", "Row", "RunResult", "STUDY", "run_study"]
