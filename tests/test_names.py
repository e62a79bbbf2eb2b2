"""Names alone: which axes they stand for, and which are slips."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensornet as tn

# ---------------------------------------------------------------------------- the axes of a bare name


@pytest.mark.parametrize(
    ("text", "name", "axis"),
    [
        ("h[b,c] = x[b,k]*W[c,k]\ny[b,c] = h + D[c]*x", "x", "k"),
        ("h[b,c] = x[b,k]*W[c,k]\ny[b,c] = h + x", "x", "k"),
        ("y[b,c] = x[b,k]*W[c,k] + x*w[c]", "x", "k"),
        ("h[...,c] = x[...,k]*W[c,k]\ny[...,c] = h + D[c]*x", "x", "k"),
    ],
)
def test_a_bare_name_that_no_line_defines_loses_no_axis_alone(text: str, name: str, axis: str) -> None:
    with pytest.raises(
        tn.EquationError, match=rf"'{name}' stands for {name}\[.*\] here, .*, and '{axis}' is neither"
    ):
        tn.layer(text, inputs="x")


@pytest.mark.parametrize(
    ("text", "einsum"),
    [
        ("h[b,i] = 2*x[b,i]\ny[b] = h*q", "bi,bi->b"),
        ("h[b,i] = 2*x[b,i]\ny[b] = h*q[b,j]", "bi,bj->b"),
        ("h[b,i] = 2*x[b,i]\ny[b,j] = h*q[j,i]", "bi,ji->bj"),
        ("h[b,i] = 2*x[b,i]\ny[b] = sum[i](h)*q[b,j]", "bi,bj->b"),
        ("h[b,i] = 2*x[b,i]\ny[b] = h[b,i]*q[b,j]", "bi,bj->b"),
    ],
)
def test_a_sum_that_another_factor_or_the_text_tells_of_is_read(text: str, einsum: str) -> None:
    generator = np.random.default_rng(0)
    x, q = generator.standard_normal((2, 3, 3))
    found = tn.compile(tn.layer(text, inputs="x[b,i] q[b,i]" if text.endswith("h*q") else "x q"))({}, x, q)
    np.testing.assert_allclose(found, 2 * np.einsum(einsum, x, q), rtol=1e-12)


def test_a_bare_name_has_the_axes_that_its_own_line_reads_it_with() -> None:
    """Seo et al. (2016), bidirectional attention flow, equation 1."""
    text = "s[b,i,j] = x[b,i,c]*u[c] + q[b,j,c]*v[c] + x*q*w[c]"
    graph = tn.layer(text, inputs="x q")
    generator = np.random.default_rng(0)
    x, q = generator.standard_normal((2, 5, 4)), generator.standard_normal((2, 3, 4))
    p = {name: generator.standard_normal(4) for name in "uvw"}
    expected = (x @ p["u"])[:, :, None] + (q @ p["v"])[:, None] + np.einsum("bic,bjc,c->bij", x, q, p["w"])
    np.testing.assert_allclose(tn.compile(graph)(p, x, q), expected, rtol=1e-12)


@pytest.mark.parametrize(
    "text", ["s[b,i,j] = x[b,i,c]*x[b,j,c] + x", "y[b,i] = x[b,0,i] + x", "y[b,t] = x[b,t+u]*w[u] + x"]
)
def test_a_bare_name_that_its_line_reads_in_several_ways_is_refused(text: str) -> None:
    with pytest.raises(tn.EquationError, match="which axes the bare name 'x' stands for is open"):
        tn.layer(text, inputs="x")


# ---------------------------------------------------------------------------- numbers to be trained


@pytest.mark.parametrize(
    ("text", "name", "why"),
    [
        ("y[b,i] = x[b,i] / sqrt(dim)", "dim", "under a root"),
        ("y[b,i] = x[b,i] / sqrt(mean[i](x**2) + eps)", "eps", "under a root"),
        ("y[b,i] = x[b,i] * (index(i) + lenght)", "lenght", "added to positions"),
        ("y[b,i] = x[b,i] * (2*index(i) - start)", "start", "added to positions"),
        ("y[b,i] = x[b,i] * (index(i) // heads)", "heads", "no gradient reaches"),
        ("y[b,i] = where(index(i) < n, x[b,i], 0)", "n", "no gradient reaches"),
        ("y[b,i] = where(mask, x[b,i], 0)", "mask", "no gradient reaches"),
    ],
)
def test_a_number_that_nobody_trains_is_declared_or_given(text: str, name: str, why: str) -> None:
    message = rf"'{name}' is no axis, size or tensor here, .*: .*{why}(?s:.*)give {name}=… if it is a size"
    with pytest.raises(tn.EquationError, match=message):
        tn.layer(text, inputs="x")
    sizes: dict[str, Any] = {name: 3}
    assert name in str(tn.layer(text, inputs="x", **sizes))
    declared = tn.layer(f"{name}[()]: parameter\n{text}", inputs="x")
    assert [leaf.name for leaf in declared.parameters] == [name]
    assert [leaf.name for leaf in tn.layer(text, inputs="x", init={name: 3.0}).parameters] == [name]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("y[b,i] = x[b,i] + tanh(alpha)*x", "alpha"),
        ("y[b,i] = x[b,i] * exp(-m*index(i))", "m"),
        ("y[b,i] = where(index(i) > 0, x[b,i], c)", "c"),
        ("y[b,i] = x[b,i]*scale1 + sqrt(x**2 * exp(t))", "scale1 t"),
        ("y[b,i] = q_scale*x[b,i]*k_scale[i]*scale1*scale2[i]", "q_scale k_scale scale1 scale2"),
    ],
)
def test_other_numbers_are_trained(text: str, names: str) -> None:
    assert [leaf.name for leaf in tn.layer(text, inputs="x").parameters] == names.split()


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("y[b,length] = x[b,length] * lenght", "length"),
        ("h[b,i] = W_query[i]*x[b,i]\ny[b,i] = h * W_qeury", "W_query"),
    ],
)
def test_a_number_whose_name_is_a_slip_of_another_is_told(text: str, meant: str) -> None:
    with pytest.warns(
        tn.TensornetWarning, match=rf"is read as a number to be trained: did you mean '{meant}'\?"
    ):
        tn.layer(text, inputs="x")


def test_operands_that_are_joined_share_the_axis() -> None:
    with pytest.raises(
        tn.EquationError, match=r"K\[b,n,g\] has no axis 'j'.*\n(?s:.*)fix: write K\[b,j,g\]: each"
    ):
        tn.layer("y[b,j,g] = concat[j](K[b,n,g], k[b,t,g])", inputs="K k")
    graph = tn.layer("y[b,j,g] = concat[j](K[b,j,g], k[b,j,g])", inputs="K k")
    long, short = np.ones((1, 3, 2)), np.zeros((1, 2, 2))
    assert np.array_equal(tn.compile(graph)({}, long, short), np.concatenate([long, short], 1))
