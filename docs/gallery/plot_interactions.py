"""
Fusion and interactions
=======================

Scores of pairs and triples: products of features, of modalities, of entities and relations.
"""

import torch
import torch.nn.functional as F
from against import check

import tensornet as tn

# %%
# Factorization machine
# ---------------------
# `Factorization Machines <https://doi.org/10.1109/ICDM.2010.127>`_, Rendle 2010, eq. 1. All pairs, in linear
# time.

machine = tn.layer(
    """
    p[b,k] = x[b,i] * V[i,k]
    n[b,k] = x[b,i] ** 2 * V[i,k] ** 2
    y[b]   = w0 + x[b,i] * w[i] + sum[k](p[b,k] ** 2 - n[b,k]) / 2
    w0[()]: parameter
    """,
    inputs="x", i=6, k=3,
)


def machine_by_hand(x, V, w0, w):
    pairs = torch.combinations(torch.arange(6))
    y = w0 + x @ w
    for i, j in pairs.tolist():
        y = y + (V[i] @ V[j]) * x[:, i] * x[:, j]
    return y


check(machine, machine_by_hand, x=(5, 6))

# %%
# Cross layer of low rank
# -----------------------
# `DCN V2 <https://arxiv.org/abs/2008.13535>`_, Wang et al. 2020: features are multiplied by the first ones
# again.

cross = tn.layer(
    "y[b,o] = z[b,o] * (x[b,i] * V[r,i] * U[o,r] + u[o]) + x[b,o]",
    inputs="z x", i=6, o=6, r=2,
)


def cross_by_hand(z, x, V, U, u):
    return z * F.linear(F.linear(x, V), U, u) + x


check(cross, cross_by_hand, z=(5, 6), x=(5, 6))

# %%
# Neural tensor network
# ---------------------
# `Reasoning With Neural Tensor Networks for Knowledge Base Completion
# <https://papers.nips.cc/paper/5028-reasoning-with-neural-tensor-networks-for-knowledge-base-completion>`_,
# Socher et al. 2013, eq. 1.

reasoning = tn.layer(
    "y[b] = w[k] * tanh(l[b,i] * W[k,i,j] * r[b,j] + l[b,i] * V[k,i] + r[b,j] * U[k,j] + u[k])",
    inputs="l r", i=4, j=4, k=3,
)


def reasoning_by_hand(l, r, w, W, V, U, u):
    return torch.tanh(F.bilinear(l, r, W) + l @ V.T + r @ U.T + u) @ w


check(reasoning, reasoning_by_hand, l=(5, 4), r=(5, 4))

# %%
# Low-rank bilinear pooling
# -------------------------
# `Hadamard Product for Low-rank Bilinear Pooling <https://arxiv.org/abs/1610.04325>`_, Kim et al. 2016, eq.
# 6.

bilinear = tn.layer(
    """
    u[b,r] = x[b,i] * U[r,i]
    v[b,r] = z[b,j] * V[r,j]
    y[b,o] = tanh(u) * tanh(v) * P[o,r] + p[o]
    """,
    inputs="x z", i=4, j=5, r=3, o=6,
)


def bilinear_by_hand(x, z, U, V, P, p):
    return F.linear(torch.tanh(x @ U.T) * torch.tanh(z @ V.T), P, p)


check(bilinear, bilinear_by_hand, x=(3, 4), z=(3, 5))

# %%
# Tucker fusion (MUTAN)
# ---------------------
# `MUTAN <https://arxiv.org/abs/1705.06676>`_, Ben-younes et al. 2017: the tensor between question, image and
# answer in Tucker form, with slices of low rank.

mutan = tn.layer(
    """
    q[b,t] = tanh(x[b,i] * Wq[t,i])
    v[b,s] = tanh(z[b,j] * Wv[s,j])
    y[b,o] = q[b,t] * M[r,t,k] * v[b,s] * N[r,s,k] * O[o,k]
    """,
    inputs="x z", i=4, j=5, t=3, s=2, r=2, k=3, o=6,
)


def mutan_by_hand(x, z, Wq, Wv, M, N, O):
    q, v = torch.tanh(x @ Wq.T), torch.tanh(z @ Wv.T)
    return sum((q @ M[r]) * (v @ N[r]) for r in range(2)) @ O.T


check(mutan, mutan_by_hand, x=(3, 4), z=(3, 5))

# %%
# Tensor fusion
# -------------
# `Tensor Fusion Network for Multimodal Sentiment Analysis <https://arxiv.org/abs/1707.07250>`_, Zadeh et al.
# 2017: the outer product of three modalities, each with a one in front, which is never made.

fusion = tn.layer(
    """
    l[b,i] = pad(x[b,i], i=(1,0), value=1)
    a[b,j] = pad(y[b,j], j=(1,0), value=1)
    v[b,k] = pad(z[b,k], k=(1,0), value=1)
    s[b,o] = l[b,i] * a[b,j] * v[b,k] * W[o,i,j,k]
    W[o:2,i:4,j:3,k:5]: parameter
    """,
    inputs="x[b,m] y[b,n] z[b,p]", m=3, n=2, p=4,
)


def fusion_by_hand(x, y, z, W):
    x, y, z = (F.pad(each, (1, 0), value=1.0) for each in (x, y, z))
    outer = x[:, :, None, None] * y[:, None, :, None] * z[:, None, None]
    return outer.flatten(1) @ W.flatten(1).T


check(fusion, fusion_by_hand, x=(3, 3), y=(3, 2), z=(3, 4))

# %%
# DistMult
# --------
# `Embedding Entities and Relations <https://arxiv.org/abs/1412.6575>`_, Yang et al. 2014: a diagonal form for
# each relation.

distmult = tn.layer(
    "y[n] = E[h[n],d] * R[r[n],d] * E[t[n],d]\nE[e:9,d:4]: parameter\nR[k:3,d]: parameter", inputs="h r t"
)


def distmult_by_hand(h, r, t, E, R):
    return (E[h] * R[r] * E[t]).sum(-1)


check(distmult, distmult_by_hand, h=[0, 8, 3], r=[2, 0, 1], t=[5, 5, 1])

# %%
# ComplEx
# -------
# `Complex Embeddings for Simple Link Prediction <https://arxiv.org/abs/1606.06357>`_, Trouillon et al. 2016:
# the real part of a complex product; the second axis holds real and imaginary parts.

complex_form = tn.layer(
    """
    y[n] = E[h[n],0,d] * R[r[n],0,d] * E[t[n],0,d] + E[h[n],1,d] * R[r[n],0,d] * E[t[n],1,d] \
        + E[h[n],0,d] * R[r[n],1,d] * E[t[n],1,d] - E[h[n],1,d] * R[r[n],1,d] * E[t[n],0,d]
    E[e:9,p:2,d:4]: parameter
    R[k:3,p:2,d]: parameter
    """,
    inputs="h r t",
)


def complex_by_hand(h, r, t, E, R):
    E, R = torch.complex(E[:, 0], E[:, 1]), torch.complex(R[:, 0], R[:, 1])
    return (E[h] * R[r] * E[t].conj()).sum(-1).real


check(complex_form, complex_by_hand, h=[0, 8, 3], r=[2, 0, 1], t=[5, 5, 1])

# %%
# TuckER
# ------
# `TuckER <https://arxiv.org/abs/1901.09590>`_, Balažević et al. 2019, scored against all entities.

tucker = tn.layer(
    """
    y[n,e] = E[h[n],i] * R[r[n],j] * W[j,i,k] * E[e,k]
    E[e:9,i:4]: parameter
    R[m:3,j:2]: parameter
    """,
    inputs="h r", k=4,
)


def tucker_by_hand(h, r, E, R, W):
    maps = torch.einsum("nj,jik->nik", R[r], W)
    return torch.bmm(E[h][:, None], maps)[:, 0] @ E.T


check(tucker, tucker_by_hand, h=[0, 8, 3], r=[2, 0, 1])

# %%
# Contrastive loss (InfoNCE)
# --------------------------
# `Learning Transferable Visual Models From Natural Language Supervision <https://arxiv.org/abs/2103.00020>`_,
# Radford et al. 2021, figure 3: both directions, with a learned temperature.

contrast = tn.layer(
    """
    u[n,d] = x[n,d] / norm[d](x[n,d])
    v[m,d] = z[m,d] / norm[d](z[m,d])
    s[n,m] = exp(t) * u[n,d] * v[m,d]
    p[n,m] = log_softmax[m](s)
    q[n,m] = log_softmax[n](s)
    loss   = -mean[n](p[n,n] + q[n,n]) / 2
    t[()]: parameter
    """,
    inputs="x z",
)


def contrast_by_hand(x, z, t):
    s = t.exp() * F.normalize(x, dim=-1) @ F.normalize(z, dim=-1).T
    labels = torch.arange(len(x))
    return (F.cross_entropy(s, labels) + F.cross_entropy(s.T, labels)) / 2


check(contrast, contrast_by_hand, x=(5, 4), z=(5, 4))
