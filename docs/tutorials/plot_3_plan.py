"""
Read a plan
===========

A plan says in which order the tensors of a layer are multiplied, with which layouts, in how much memory, and where the
time goes. Times on this page are of built-in constants; on your machine the device is measured once.
"""

import numpy as np

import tensornet as tn

# %%
# The order
# ---------
# A tensor contraction layer is a product of four tensors: X ×₁U ×₂V ×₃W. The edges of its picture are the axes
# that are summed, and the open legs those of the result.

layer = tn.layer(
    "y[b,p,q,r] = x[b,i,j,k] * U[p,i] * V[q,j] * W[r,k]",
    inputs="x", i=4, j=4, k=3, p=4, q=4, r=6,
)
tn.draw(layer)

# %%
# There are 15 ways to multiply them two at a time. The plan for a batch of 100,352:

plan = tn.plan(layer, b=100_352, backend="torch")
plan

# %%
# Each row is a step: one call of the library. The bar is its expected time beside that of the longest step.
# Below are the costs of the whole, and those of two other orders. *As written* goes from left to right. *Fewest
# FLOPs* is what most tools look for. Here it is not the fastest: the plan multiplies the small factors first
# and does one wide product, with seven times the FLOPs in less time, since the large tensor is read once.

for row in plan.alternatives:
    print(f"{row.name}: {row.flops / plan.flops:.2f}× the FLOPs, {row.seconds / plan.seconds:.2f}× the time")

# %%
# The order depends on the sizes. For one image, each factor is multiplied in turn. For a thousand, two are
# joined first, and for a hundred thousand all three:

for batch in (1, 1_000, 100_352):
    steps = tn.plan(layer, b=batch, backend="torch").steps
    print(f"b={batch:,}:", "; ".join(str(step.equation) for step in steps))

# %%
# The layouts
# -----------
# An entry in parentheses, ``t[(b,i),q]``, is two axes side by side in memory, read as one. The planner chooses
# the order of the axes of each intermediate so that the next step reads it as a matrix without a copy. Where a
# copy is worth its time it is a step of its own. The code is plain:

print(plan.code)

# %%
# Where the time goes
# -------------------
# A step has its FLOPs, its bytes and its expected seconds. Work over traffic tells what bounds it: a product
# that does few operations for each byte waits for memory. Here one step has all of the time: to be faster, look
# there.

for step in plan.steps:
    print(f"{step.flops / step.bytes:6.1f} FLOP a byte  {step.seconds / plan.seconds:4.0%}  {step.equation}")

# %%
# A kernel of the library takes the place of several steps where it is faster. Attention has four equations and
# a mask; its plan has one step for all of them:

attention = tn.layer(
    """
    s[b,h,i,j] = q[b,h,i,d] * k[b,h,j,d] / sqrt(d)
    a[b,h,i,j] = softmax[j](where(index(j) <= index(i), s, -inf))
    y[b,h,i,e] = a * v[b,h,j,e]
    """,
    inputs="q k v",
)
shapes = dict(b=4, h=8, i=512, j=512, d=64, e=64)
tn.plan(attention, backend="torch", **shapes)

# %%
# NumPy has no such kernel, so there each equation is a step, and the scores lie in memory:

whole = tn.plan(attention, backend="numpy", **shapes)
whole

# %%
# Memory
# ------
# ``peak_memory`` is the most bytes that are alive at once. A limit makes the plan fit: the attention is computed in
# pieces, with the same result.

limit = whole.peak_memory // 3
pieces = tn.plan(attention, backend="numpy", memory_limit=limit, **shapes)
print(f"{whole.peak_memory / 1e6:.0f} MB whole, {pieces.peak_memory / 1e6:.0f} MB in pieces")
assert pieces.peak_memory <= limit

arrays = [np.random.default_rng(n).standard_normal((4, 8, 512, 64)).astype("float32") for n in range(3)]
one = tn.compile(attention, backend="numpy")({}, *arrays)
other = tn.compile(attention, backend="numpy", memory_limit=limit)({}, *arrays)
assert np.allclose(one, other, atol=1e-5)

# %%
# A plan of training
# ------------------
# With ``training=True`` the plan has the backward pass too, and says what the forward pass keeps for it.

both = tn.plan(layer, b=100_352, backend="torch", training=True)
print(both)
for name, size in both.kept:
    print(f"{name or 'around calls'}: {size / 1e3:.2f} kB")
