"""The digits: 1,797 real images of 8×8 pixels that come with scikit-learn, split and standardised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .libraries import library

__all__ = ["TEST_IMAGES", "Digits", "load_digits"]

TEST_IMAGES = 450
"""Images held out; the other 1,347 train."""


@dataclass(frozen=True)
class Digits:
    """Images as float32 tensors of shape (n, 8, 8) and labels as int64 tensors of shape (n,)."""

    train_images: Any
    train_labels: Any
    test_images: Any
    test_labels: Any


def load_digits(seed: int) -> Digits:
    """The digits, split by `seed` with every class in proportion.

    Pixels are standardised by the mean and standard deviation of all training pixels together:
    some pixels are never inked, so one by one they have no deviation to divide by.

    Raises:
        BackendError: scikit-learn or PyTorch is missing.
    """
    torch = library("torch")
    bunch = library("sklearn.datasets").load_digits()
    split = library("sklearn.model_selection").train_test_split
    train, test, train_labels, test_labels = split(
        bunch.images, bunch.target, test_size=TEST_IMAGES, stratify=bunch.target, random_state=seed
    )
    mean, deviation = float(train.mean()), float(train.std())
    return Digits(
        torch.tensor((train - mean) / deviation, dtype=torch.float32),
        torch.tensor(train_labels, dtype=torch.int64),
        torch.tensor((test - mean) / deviation, dtype=torch.float32),
        torch.tensor(test_labels, dtype=torch.int64),
    )
