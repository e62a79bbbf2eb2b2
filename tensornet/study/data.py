"""The digits: 1,797 real images of 8×8 pixels that come with scikit-learn, split and standardised."""

from __future__ import annotations

from typing import Any

from tensornet.errors import TensornetError

from .libraries import library
from .task import Examples

__all__ = ["TEST_IMAGES", "load_digits", "split_digits"]

TEST_IMAGES = 450
"""Images held out; the other 1,347 train."""


ABOUT = "the 1,797 digits of scikit-learn (8×8 pixels), 450 of them, every class in proportion, held out"


def load_digits(seed: int, data: str | None = None) -> Examples:
    """The digits, split by `seed` with every class in proportion.

    Pixels are standardised by the mean and standard deviation of all training pixels together:
    some pixels are never inked, so one by one they have no deviation to divide by.

    Args:
        seed: decides the split.
        data: nothing; the digits come with scikit-learn.

    Raises:
        BackendError: scikit-learn or PyTorch is missing.
        TensornetError: a place of data is given.
    """
    if data is not None:
        raise TensornetError(f"the digits come with scikit-learn, not from {data}", fix="leave --data out")
    torch = library("torch")
    train, train_labels, test, test_labels = split_digits(seed)
    mean, deviation = float(train.mean()), float(train.std())
    return Examples(
        (torch.tensor((train - mean) / deviation, dtype=torch.float32),),
        torch.tensor(train_labels, dtype=torch.int64),
        (torch.tensor((test - mean) / deviation, dtype=torch.float32),),
        torch.tensor(test_labels, dtype=torch.int64),
        ABOUT,
        {},
    )


def split_digits(seed: int) -> tuple[Any, Any, Any, Any]:
    """Images (n, 8, 8) from 0 to 16 and labels for training, then both for the test."""
    bunch = library("sklearn.datasets").load_digits()
    split = library("sklearn.model_selection").train_test_split
    train, test, train_labels, test_labels = split(
        bunch.images, bunch.target, test_size=TEST_IMAGES, stratify=bunch.target, random_state=seed
    )
    return train, train_labels, test, test_labels
