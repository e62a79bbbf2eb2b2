"""The study: classifiers, dense and tensorized, trained by one recipe and compared.

examples → every row of a task × every optimizer → accuracy against parameters

- `digits`: multi-layer classifiers of 1,797 images of 8×8 pixels.
- `text`: Transformers on the sentiment of movie reviews.
- `thesis`: Swin and the tensorized Swin Transformer on MNIST, CIFAR-10, Tiny ImageNet, or the digits.
- the user's own examples, from a file, a data set or a function, in `digits` (of any shape) or `thesis` (images).
- a TOML file: the user's own rows, budgets, seeds and recipe; `tensornet study --help` has an example.
"""

from __future__ import annotations

from .digits import STUDY, Row
from .jobs import Dask, Processes
from .results import Epoch, RunResult, load_trained
from .run import results_folder, run_study
from .task import Recipe

__all__ = ["Dask", "Epoch", "Processes", "Recipe", "Row", "RunResult", "STUDY"]
__all__ += ["load_trained", "results_folder", "run_study"]
