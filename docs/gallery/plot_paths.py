"""
Sums over paths
===============

A score over all paths or alignments is a recurrence in logarithms. A path that is not allowed counts ``-inf``, and
gets a gradient of 0.
"""

import numpy as np
import torch
import torch.nn.functional as F
from against import check

import tensornet as tn

# %%
# Conditional random field
# ------------------------
# `Conditional Random Fields <https://repository.upenn.edu/handle/20.500.14332/6188>`_, Lafferty et al. 2001, of a
# chain: the log-likelihood of labels ``s``. ``s[b,:-1]`` and ``s[b,1:]`` are the neighbouring pairs (t, t+1), and each
# reads the table ``A``; the sum over all paths is a recurrence.

field = tn.layer(
    """
    e[b]      = sum[t,k](onehot[k](s[b,t]) * x[b,t,k])
    p[b]      = sum[t](A[s[b,:-1],s[b,1:]])
    a[b,-1,k] = x[b,0,k]
    a[b,u,k]  = x[b,u+1,k] + logsumexp[j](a[b,u-1,j] + A[j,k])
    y[b]      = e + p - logsumexp[k](a[b,-1,k])
    """,
    inputs="x[b,t,k] s[b,t]", k=4,
)


def field_by_hand(x, s, A):
    made = []
    for scores, labels in zip(x, s, strict=True):
        paths = torch.cartesian_prod(*[torch.arange(4)] * 5)
        of_all = scores[torch.arange(5), paths].sum(1) + A[paths[:, :-1], paths[:, 1:]].sum(1)
        own = scores[torch.arange(5), labels].sum() + A[labels[:-1], labels[1:]].sum()
        made.append(own - of_all.logsumexp(0))
    return torch.stack(made)


check(field, field_by_hand, x=(2, 5, 4), s=[[0, 3, 3, 1, 2], [2, 2, 0, 1, 1]])

# %%
# Connectionist temporal classification (CTC)
# -------------------------------------------
# `Connectionist Temporal Classification <https://doi.org/10.1145/1143844.1143891>`_, Graves et al. 2006: minus the
# log-likelihood of labels ``s``. ``l`` has a blank (0) around each label. A path stays, goes one further, or jumps over
# a blank between two different labels: ``k`` counts these steps, and ``c`` forbids the others.

ctc = tn.layer(
    """
    e[b,(u,p)] = stack[p](0 * s[b,u], s[b,u])
    l[b,n]     = pad(e[b,n], n=(0,1))
    m[b,n]     = pad(l[b,n], n=(2,0))
    c[b,n,k]   = where((index(k) > 0) | ((l != 0) & (l != m[b,:-2])), 0, -inf)
    a[b,-1,n]  = where(index(n) == 0, 0, -inf)
    q[b,t,n]   = pad(a[b,t-1,n], n=(2,0), value=-inf)
    a[b,t,n]   = x[b,t,l[b,n]] + logsumexp[k](q[b,t,n+k] + c[b,n,k])
    y[b]       = -logsumexp[o](stack[o](a[b,-1,-1], a[b,-1,-2]))
    """,
    inputs="x[b,t,v] s[b,u]", k=3,
)


def ctc_by_hand(x, s):
    steps, labels = torch.full((2,), 8), torch.full((2,), 3)
    return F.ctc_loss(x.transpose(0, 1), s, steps, labels, blank=0, reduction="none")


check(
    ctc,
    ctc_by_hand,
    x=np.log(np.random.default_rng(0).dirichlet(np.ones(4), size=(2, 8))),
    s=[[1, 1, 3], [2, 1, 2]],
)

# %%
# Soft dynamic time warping
# -------------------------
# `Soft-DTW <https://arxiv.org/abs/1703.01541>`_, Cuturi and Blondel 2017, with γ = 1: a recurrence along two axes.
# ``where`` selects the corner, at which every alignment starts.

warping = tn.layer(
    """
    d[b,i,j]  = sum[c]((x[b,i,c] - z[b,j,c]) ** 2)
    r[b,-1,j] = -inf
    r[b,i,-1] = -inf
    s[b,i,j]  = logsumexp[k](stack[k](r[b,i-1,j-1], r[b,i-1,j], r[b,i,j-1]))
    r[b,i,j]  = where(index(i) + index(j) == 0, 0, s) - d
    y[b]      = -r[b,-1,-1]
    """,
    inputs="x z",
)


def warping_by_hand(x, z):
    d = torch.cdist(x, z) ** 2
    r = torch.full((2, 6, 7), torch.inf, dtype=x.dtype)
    r[:, 0, 0] = 0
    for i in range(5):
        for j in range(6):
            before = torch.stack([r[:, i, j], r[:, i, j + 1], r[:, i + 1, j]])
            r[:, i + 1, j + 1] = d[:, i, j] - torch.logsumexp(-before, 0)
    return r[:, -1, -1]


check(warping, warping_by_hand, x=(2, 5, 3), z=(2, 6, 3))
