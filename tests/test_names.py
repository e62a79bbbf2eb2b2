"""Names alone: which axes they stand for, and which are slips."""

from __future__ import annotations

from typing import Any

import pytest

import tensornet as tn

from .conftest import rows

# ---------------------------------------------------------------------------- numbers to be trained


@pytest.mark.parametrize(("text", "told"), rows("numbers.txt"))
def test_a_number_that_nobody_trains_is_declared_or_given(text: str, told: str) -> None:
    name, why = told.split(": ")
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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("y[i,w] = B[index(i) - w + 3]", r"'w' in the brackets of 'B' is a position, the same as index\(w\)"),
        (
            "at[i,w] = index(i) + index(w)\ny[i,w] = B[at[i,w] - index(i) - w]",
            r"'w' in the brackets of 'B' is a pos",
        ),
        ("y[b,i] = x[b,i] * W[i,i]\nz[b,i] = y * W[i,i]", r"fix: write W\[i\] for a vector; or declare 'W'"),
    ],
)
def test_a_reading_that_is_likely_not_meant_is_told_once(text: str, message: str) -> None:
    sizes = {"w": 3} if "w" in text else {}
    with pytest.warns(tn.TensornetWarning, match=message) as told:
        graph = tn.layer(text, inputs="B[n]" if "B" in text else "x", i=4, **sizes)
    assert len(told) == 1
    assert tn.layer(str(graph)) == graph == tn.Graph.from_json(graph.to_json())


# ---------------------------------------------------------------------------- sums that a slip makes


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("y[b,o] = x[b,i]*W[o,i] + bias[p]", ["sum[p](bias[p])"]),
        ("bias[p]: parameter\ny[b,o] = x[b,i]*W[o,i] + bias", ["sum[p](bias[p])"]),
        ("y[b,o] = x[b,i]*W[o,j]", ["sum[i](x[b,i])", "sum[j](W[o,j])"]),
        ("y[b] = (x[b,i] + c[j])*u[j]", ["sum[i](x[b,i])"]),
        ("def f(x):\n    x[b,i]: input\n    y[b] = x[b,i]*w[j]*v[i]\nz = f(x, scope='a')", ["sum[j](w[j])"]),
    ],
)
def test_a_sum_over_an_axis_that_one_tensor_has_beside_others_is_told(text: str, meant: list[str]) -> None:
    with pytest.warns(tn.TensornetWarning, match="is summed, and nothing else has it") as told:
        graph = tn.layer(text, inputs="x[b,i]")
    for each, fix in zip(told, meant, strict=True):
        assert str(each.message).endswith(f"or write {fix} where it is meant")
        assert "^" in str(each.message)
    assert tn.layer(str(graph)) == graph == tn.Graph.from_json(graph.to_json())  # which tell of none
    tn.gradient(graph, wrt="x")


@pytest.mark.parametrize(
    "text",
    [
        "y[b] = x[b,i]",
        "y[b] = -2*x[b,i]/i",
        "y[b,o] = x[b,i]*W[o,i] + sum[p](bias[p])",
        "y[b,o] = sum[i,j](x[b,i]*W[o,j])",
        "y[b] = x[b,i]*w[i] + W[k,k]",
        "y[b] = x[b,i] - u[b,i]",
        "y[b,o] = x[b,n] * v[o] / n",
    ],
)
def test_a_sum_of_one_tensor_or_one_that_is_written_is_meant(text: str) -> None:
    graph = tn.layer(text, inputs="x")
    assert tn.layer(str(graph)) == graph
