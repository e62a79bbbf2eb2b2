"""
Tensor networks and factorized layers
=====================================

A weight in factors is an equation with more tensors. The planner finds the order, or multiplies the factors first.
"""

import torch
import torch.nn.functional as F
from against import check

import tensornet as tn

# %%
# Tensor contraction layer
# ------------------------
# `Tensor Contraction Layers for Parsimonious Deep Nets <https://arxiv.org/abs/1706.00439>`_, Kossaifi et al.
# 2017: a product along each mode.

contraction = tn.layer(
    "y[b,p,q,r] = x[b,i,j,k] * U[p,i] * V[q,j] * W[r,k]",
    inputs="x", i=4, j=4, k=3, p=2, q=3, r=2,
)


def contraction_by_hand(x, U, V, W):
    x = torch.tensordot(x, U, dims=([1], [1]))
    x = torch.tensordot(x, V, dims=([1], [1]))
    return torch.tensordot(x, W, dims=([1], [1]))


check(contraction, contraction_by_hand, x=(2, 4, 4, 3))

# %%
# Tensor regression layer
# -----------------------
# `Tensor Regression Networks <https://arxiv.org/abs/1707.08308>`_, Kossaifi et al. 2020: the weight from a
# tensor to classes in Tucker form.

regression = tn.layer(
    "y[b,o] = x[b,i,j] * G[p,q,r] * U[i,p] * V[j,q] * O[o,r] + u[o]",
    inputs="x", i=4, j=5, o=6, p=2, q=3, r=4,
)


def regression_by_hand(x, G, U, V, O, u):
    weight = torch.einsum("pqr,ip,jq,or->oij", G, U, V, O)
    return F.linear(x.flatten(1), weight.flatten(1), u)


check(regression, regression_by_hand, x=(2, 4, 5))

# %%
# Linear layer in CP form
# -----------------------
# `Speeding-up Convolutional Neural Networks Using Fine-tuned CP-Decomposition <https://arxiv.org/abs/1412.6553>`_,
# Lebedev et al. 2014, here of the matrix of a linear layer.

cp = tn.layer(
    "y[b,(o,p)] = x[b,(i,j)] * A[o,r] * B[p,r] * C[i,r] * D[j,r]",
    inputs="x", i=3, j=4, o=2, p=5, r=6,
)


def cp_by_hand(x, A, B, C, D):
    weight = sum(torch.kron(torch.outer(A[:, r], C[:, r]), torch.outer(B[:, r], D[:, r])) for r in range(6))
    return x @ weight.T


check(cp, cp_by_hand, x=(2, 12))

# %%
# Tensor-train matrix
# -------------------
# `Tensorizing Neural Networks <https://arxiv.org/abs/1509.06569>`_, Novikov et al. 2015.

tensor_train = tn.layer(
    "y[b,(o,p,q)] = x[b,(i,j,k)] * G[o,i,r] * H[r,p,j,s] * K[s,q,k]",
    inputs="x", i=3, j=2, k=4, o=2, p=3, q=2, r=3, s=2,
)


def tensor_train_by_hand(x, G, H, K):
    x = x.unflatten(1, (3, 2, 4))
    x = torch.tensordot(x, K, dims=([3], [2]))  # b i j s q
    x = torch.tensordot(x, H, dims=([2, 3], [2, 3]))  # b i q r p
    return torch.tensordot(x, G, dims=([1, 3], [1, 2])).permute(0, 3, 2, 1).flatten(1)


check(tensor_train, tensor_train_by_hand, x=(2, 24))

# %%
# Tensor ring
# -----------
# `Wide Compression: Tensor Ring Nets <https://arxiv.org/abs/1802.09052>`_, Wang et al. 2018: a train whose
# ends meet.

ring = tn.layer(
    "y[b,(o,p)] = x[b,(i,j)] * G[z,o,r] * H[r,p,s] * K[s,i,t] * L[t,j,z]",
    inputs="x", i=3, j=4, o=2, p=5, r=2, s=3, t=2, z=3,
)


def ring_by_hand(x, G, H, K, L):
    weight = torch.zeros(2, 5, 3, 4, dtype=x.dtype)
    for at in torch.cartesian_prod(*map(torch.arange, weight.shape)).tolist():
        o, p, i, j = at
        weight[o, p, i, j] = torch.trace(G[:, o] @ H[:, p] @ K[:, i] @ L[:, j])
    return x @ weight.reshape(10, 12).T


check(ring, ring_by_hand, x=(2, 12))

# %%
# Hierarchical Tucker
# -------------------
# `A New Scheme for the Tensor Representation <https://doi.org/10.1007/s00041-009-9094-9>`_, Hackbusch and
# Kühn 2009: a binary tree of small tensors.

tree = tn.layer(
    """
    y[b,(o,p)] = x[b,(i,j)] * A[i,k] * B[j,l] * C[o,m] * D[p,n] * E[k,l,s] * F[m,n,t] * G[s,t]
    """,
    inputs="x", i=4, j=3, o=3, p=4, k=2, l=2, m=3, n=2, s=3, t=2,
)


def tree_by_hand(x, A, B, C, D, E, F, G):
    inputs = (torch.kron(A, B) @ E.flatten(0, 1)).T  # s, (i j)
    outputs = torch.kron(C, D) @ F.flatten(0, 1)  # (o p), t
    return x @ inputs.T @ G @ outputs.T


check(tree, tree_by_hand, x=(2, 12))

# %%
# Block-term decomposition
# ------------------------
# `Learning Compact Recurrent Neural Networks with Block-Term Tensor Decomposition <https://arxiv.org/abs/1712.05134>`_,
# Ye et al. 2018: a sum of n Tucker terms, which is an axis.

block_term = tn.layer(
    "y[b,(o,p)] = x[b,(i,j)] * G[n,r,s] * A[n,o,i,r] * B[n,p,j,s]",
    inputs="x", i=3, j=4, o=2, p=3, n=2, r=2, s=3,
)


def block_term_by_hand(x, G, A, B):
    terms = (torch.einsum("rs,oir,pjs->opij", G[n], A[n], B[n]) for n in range(2))
    return x @ sum(terms).reshape(6, 12).T


check(block_term, block_term_by_hand, x=(2, 12))

# %%
# Kronecker sums (hypercomplex multiplication)
# --------------------------------------------
# `Beyond Fully-Connected Layers with Quaternions <https://arxiv.org/abs/2102.08597>`_, Zhang et al. 2021, eq.
# 5: a sum of n Kronecker products, which learns the rules of the algebra.

hypercomplex = tn.layer(
    "y[b,(m,o)] = x[b,(k,i)] * A[n,m,k] * S[n,o,i] + u[(m,o)]",
    inputs="x", n=4, m=4, k=4, i=3, o=2,
)


def hypercomplex_by_hand(x, A, S, u):
    return F.linear(x, sum(torch.kron(A[n], S[n]) for n in range(4)), u)


check(hypercomplex, hypercomplex_by_hand, x=(2, 12))

# %%
# Monarch matrix
# --------------
# `Monarch <https://arxiv.org/abs/2204.00595>`_, Dao et al. 2022: two block-diagonal matrices, and a
# permutation between them that is an order of axes.

monarch = tn.layer(
    "y[b,(o,m)] = x[b,(k,i)] * R[k,m,i] * L[m,o,k]",
    inputs="x", k=4, i=3, m=3, o=5,
)


def monarch_by_hand(x, R, L):
    x = torch.block_diag(*R) @ x.T  # k blocks of (m, i)
    x = x.unflatten(0, (4, 3)).transpose(0, 1).flatten(0, 1)
    x = torch.block_diag(*L) @ x
    return x.unflatten(0, (3, 5)).transpose(0, 1).flatten(0, 1).T


check(monarch, monarch_by_hand, x=(2, 12))

# %%
# Low-rank adaptation
# -------------------
# `LoRA <https://arxiv.org/abs/2106.09685>`_, Hu et al. 2021, eq. 3.

lora = tn.layer(
    "y[b,o] = x[b,i] * (W[o,i] + 16 / r * B[o,r] * A[r,i])",
    inputs="x", i=6, o=5, r=2,
)


def lora_by_hand(x, W, A, B):
    return F.linear(x, W) + 16 / 2 * F.linear(F.linear(x, A), B)


check(lora, lora_by_hand, x=(2, 6))

# %%
# Weight-decomposed adaptation
# ----------------------------
# `DoRA <https://arxiv.org/abs/2402.09353>`_, Liu et al. 2024, eq. 5: a magnitude for each output, and a
# direction that LoRA changes.

dora = tn.layer(
    """
    V[o,i] = W[o,i] + B[o,r] * A[r,i]
    y[b,o] = x[b,i] * V * m[o] / norm[i](V)
    """,
    inputs="x", i=6, o=5, r=2,
)


def dora_by_hand(x, W, A, B, m):
    return F.linear(x, m[:, None] * F.normalize(W + B @ A, dim=1))


check(dora, dora_by_hand, x=(2, 6))

# %%
# Embedding in a tensor train
# ---------------------------
# `Tensorized Embedding Layers <https://arxiv.org/abs/1901.10787>`_, Hrinchuk et al. 2019, section 3: a row of
# the table is read through the digits of its number.

embedding = tn.layer(
    """
    y[b,t,(p,q,r)] = G[n[b,t] // 12,p,k] * H[k,n[b,t] // 4 % 3,q,l] * K[l,n[b,t] % 4,r]
    G[u:5,p,k]: parameter
    H[k,v:3,q,l]: parameter
    K[l,w:4,r]: parameter
    """,
    inputs="n", p=2, q=2, r=3, k=3, l=2,
)


def embedding_by_hand(n, G, H, K):
    table = torch.einsum("upk,kvql,lwr->uvwpqr", G, H, K).reshape(60, 12)
    return F.embedding(n, table)


check(embedding, embedding_by_hand, n=[[0, 59, 7], [12, 30, 4]])

# %%
# Matrix product state as a classifier
# ------------------------------------
# `Supervised Learning with Quantum-Inspired Tensor Networks <https://arxiv.org/abs/1605.05775>`_, Stoudenmire
# and Schwab 2016: pixels as vectors of two, a chain of tensors, and the class on the last one.

mps = tn.layer(
    """
    p[b,n,s] = stack[s](cos(pi / 2 * x[b,n]), sin(pi / 2 * x[b,n]))
    m[b,n,l,r] = p[b,n,s] * A[n,l,s,r]
    y[b,o] = m[b,0,0,i] * m[b,1,i,j] * m[b,2,j,k] * m[b,3,k,l] * O[l,o]
    """,
    inputs="x", n=4, l=3, r=3, i=3, o=2,
)


def mps_by_hand(x, A, O):
    p = torch.stack([torch.cos(torch.pi / 2 * x), torch.sin(torch.pi / 2 * x)], -1)
    row = torch.einsum("bs,sr->br", p[:, 0], A[0, 0])
    for n in range(1, 4):
        row = torch.einsum("bl,bs,lsr->br", row, p[:, n], A[n])
    return row @ O


check(mps, mps_by_hand, x=(5, 4))

# %%
# Projected entangled pairs on a grid
# -----------------------------------
# `Supervised Learning with Projected Entangled Pair States <https://arxiv.org/abs/2009.09932>`_, Cheng et al.
# 2021: a grid of tensors, here 2 × 3, contracted exactly.

peps = tn.layer(
    """
    y[b,o] = x[b,0,s] * A[s,i,k] * x[b,1,t] * B[t,i,j,l] * x[b,2,u] * C[u,j,m] \
        * x[b,3,v] * D[v,k,n] * x[b,4,w] * E[w,n,l,p,o] * x[b,5,z] * F[z,p,m]
    """,
    inputs="x", o=2, s=2, t=2, u=2, v=2, w=2, z=2, i=2, j=3, k=2, l=3, m=2, n=2, p=3,
)


def peps_by_hand(x, A, B, C, D, E, F):
    above = torch.einsum("sik,tijl,ujm->stuklm", A, B, C)
    below = torch.einsum("vkn,wnlpo,zpm->vwzklmo", D, E, F)
    whole = torch.einsum("stuklm,vwzklmo->stuvwzo", above, below)
    return torch.einsum("stuvwzo,bs,bt,bu,bv,bw,bz->bo", whole, *x.unbind(1))


check(peps, peps_by_hand, x=(3, 6, 2))
