"""
From an equation to a trained layer
===================================

We write the attention of `Attention Is All You Need <https://arxiv.org/abs/1706.03762>`_ (Vaswani et al. 2017) as
equations, look at its cost, hold it against plain torch, and train it on handwritten digits.
"""

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits

import tensornet as tn

# %%
# The equations
# -------------
# A digit is an image of 8 × 8. We read it as a sequence of 8 rows ``i`` with 8 pixels ``c`` each. The rows are
# embedded in ``e``, attend to one another with heads ``h``, and their mean is classified.
#
# An axis that is not on the left is summed, where it is no axis of a function. The same tensor is read twice,
# with ``i`` for the rows that ask and ``j`` for those that answer. ``x`` is an input; each other name that no
# line defines is a parameter.

equations = """
z[b,i,e]   = x[b,i,c] * E[e,c] + P[i,e]
q[b,i,h,d] = z[b,i,e] * Wq[h,d,e]
k[b,j,h,d] = z[b,j,e] * Wk[h,d,e]
v[b,j,h,d] = z[b,j,e] * Wv[h,d,e]
a[b,h,i,j] = softmax[j](q * k / sqrt(d))
m[b,i,e]   = z[b,i,e] + a * v * Wo[e,h,d]
y[b,o]     = mean[i](gelu(m[b,i,e] * V[f,e])) * W[o,f] + u[o]
"""
sizes = dict(i=8, c=8, e=16, h=2, d=8, f=32, o=10)
layer = tn.layer(equations, inputs="x", **sizes)
layer

# %%
# A picture shows which tensor is read where, and with which axes. ``tn.draw(layer, "layer.pdf")`` writes it for
# a paper; the ending may be ``.svg``, ``.png``, ``.dot`` or ``.mmd`` (Mermaid) as well.

tn.draw(layer)

# %%
# The cost
# --------
# Formulas are in the names of the axes. Work is that of the order of contractions that the planner finds.

print("parameters:", tn.parameter_formula(layer), "=", tn.parameter_count(layer))
print("FLOPs:     ", tn.flop_formula(layer))

# %%
# The check
# ---------
# Is it the attention of the paper? Plain torch computes the same:

params = tn.init(layer, seed=0)
x = np.random.default_rng(0).standard_normal((5, 8, 8)).astype("float32")
y = tn.compile(layer, backend="numpy")(params, x)

p = {name: torch.tensor(each) for name, each in params.items()}
z = torch.tensor(x) @ p["E"].T + p["P"]
q, k, v = (torch.einsum("bie,hde->bhid", z, p[name]) for name in ("Wq", "Wk", "Wv"))
m = z + torch.einsum("bhid,ehd->bie", F.scaled_dot_product_attention(q, k, v), p["Wo"])
by_hand = F.gelu(m @ p["V"].T).mean(1) @ p["W"].T + p["u"]
apart = float(np.abs(y - by_hand.numpy()).max())
print(f"largest difference: {apart:.1e}")
assert apart < 1e-5

# %%
# Training
# --------
# ``tn.module`` makes a ``torch.nn.Module``. Initial values follow from the equations: each result varies
# about as much as the input.

digits = load_digits()
images, labels = torch.tensor(digits.images / 16 - 0.3).float(), torch.tensor(digits.target)
torch.manual_seed(0)
train, test = torch.randperm(len(images)).split([1497, 300])


def trained(layer):
    module = tn.module(layer, seed=0)
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.02)
    for _ in range(40):
        for batch in train[torch.randperm(len(train))].split(500):
            loss = F.cross_entropy(module(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    right = (module(images[test]).argmax(-1) == labels[test]).float().mean()
    return module, float(right)


module, right = trained(layer)
print(f"{right:.1%} of the digits that it has not seen, with {tn.parameter_count(layer):,} parameters")
assert right > 0.9

# %%
# Another idea
# ------------
# To try an idea is to change a line. Let each head learn how far apart rows attend, as in T5 and Swin: a bias
# ``R`` for each distance. In brackets, a position may be computed.

relative = tn.layer(
    equations.replace("sqrt(d))", "sqrt(d) + R[h,j-i+7])"),
    inputs="x",
    **sizes,
)
_, again = trained(relative)
print(f"{again:.1%}, with {tn.parameter_count(relative):,} parameters")
assert again > 0.9

# %%
# A factorized weight is one more line, too. The kernel ``V`` as a product of two small ones:

factors = tn.layer(equations.replace("V[f,e]", "A[f,r] * B[r,e]"), inputs="x", r=8, **sizes)
_, small = trained(factors)
print(f"{small:.1%}, with {tn.parameter_count(factors):,} parameters")
assert small > 0.9

# %%
# Elsewhere
# ---------
# The same layer runs on NumPy, JAX and CuPy. Parameters move between them by their names:

arrays = tn.to_backend(dict(module.state_dict()), "numpy")
y = tn.compile(layer, backend="numpy")(arrays, images[test].numpy())
assert (y.argmax(-1) == module(images[test]).argmax(-1).numpy()).mean() > 0.99
