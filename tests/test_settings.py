"""Every setting of every model: a wrong one is an error that names it, never a crash."""

from __future__ import annotations

import ast
import contextlib
import math
from typing import Any

import numpy as np
import pytest
import sympy

import tensornet as tn
from tensornet import models

from .conftest import table

pytestmark = pytest.mark.filterwarnings("ignore::tensornet.TensornetWarning")  # ranks that do not come out

SMALL: dict[str, dict[str, Any]] = {
    name: {key: ast.literal_eval(value) for key, _, value in (each.partition("=") for each in settings)}
    for name, *settings in table("small_models.txt")
}
PRESETS = [name for name in models.names() if name not in SMALL]
BASES = (
    *("tensor_swin", "perceiver", "transformer", "swin", "vit", "xlnet"),
    *("bert", "clip_text", "clip_vision", "deit", "gpt2", "llama"),
)

WRONG: list[Any] = [
    *(0, -1, -2.0, math.nan, math.inf, 1j, "", "D/", "a b", b"x", object, {}, {1, 2}),
    *((), (1,), (-1, 2), (1, 2, 3), ("a", 2), (None,), ((),), ((1, 2), 3), np.ones((2, 2)), sympy.oo),
    sympy.Rational(9, 2),
]
MORE: list[Any] = [
    *(10**30, None, True, 1, 3, 0.5, "x", "D", "b", "relu", "1/2", "x[i]"),
    *((0, 1), (2, 3), (0.5, 2), ((2, 1, 1), (1, 2)), [2]),
    *({"a": 1}, len, np.ones(2), np.ones((2, 2), int), np.float32(0.1), np.int64(2)),
    *(sympy.Symbol("D"), sympy.nan, sympy.Integer(2)),
]


def survive(name: str, small: dict[str, Any], values: list[Any]) -> None:
    for setting in models.settings(name):
        for value in values:
            with contextlib.suppress(tn.TensornetError):
                assert isinstance(models.create(name, **{**small, setting: value}), tn.Graph)


def test_all_functions_are_here() -> None:
    assert {name for name in models.names() if hasattr(models, name)} == set(SMALL)


@pytest.mark.parametrize("name", SMALL)
def test_a_wrong_setting_is_an_error_of_ours(name: str) -> None:
    assert isinstance(models.create(name, **SMALL[name]), tn.Graph)
    survive(name, SMALL[name], WRONG)


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_more_wrong_settings(name: str) -> None:
    survive(name, SMALL[name], MORE)


@pytest.mark.parametrize("name", PRESETS)
def test_a_wrong_setting_of_a_preset(name: str) -> None:
    base = next(each for each in BASES if name.startswith(each))
    survive(name, SMALL[base], [object, (None,)])


def test_numbers_of_any_library_and_lists() -> None:
    expected = models.tcl((4, 4), (2, 3))
    assert models.tcl([np.int64(4), sympy.Integer(4)], np.array([2, 3])) == expected
    assert models.attention(np.int32(4), np.int64(2), dropout=np.float32(0.5)) == models.attention(
        4, 2, dropout=0.5
    )
    assert models.tcl((4, 4), 1.0) != models.tcl((4, 4), 1)
