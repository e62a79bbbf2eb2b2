"""
Recurrent cells and state spaces
================================

``h[b,t-1,p]`` reads a position earlier. What does not recur leaves the loop. LSTM and GRU run by torch's kernels.
"""

import torch
import torch.nn.functional as F
from against import check

import tensornet as tn

# %%
# LSTM
# ----
# `Long Short-Term Memory <https://www.bioinf.jku.at/publications/older/2604.pdf>`_, Hochreiter and
# Schmidhuber 1997, with the forget gate of Gers et al. 2000. The gates are an axis ``g``.

lstm = tn.layer(
    """
    z[b,t,g,o] = x[b,t,i] * W[g,o,i] + h[b,t-1,p] * U[g,o,p] + u[g,o]
    c[b,t,o]   = sigmoid(z[b,t,1,o]) * c[b,t-1,o] + sigmoid(z[b,t,0,o]) * tanh(z[b,t,2,o])
    h[b,t,o]   = sigmoid(z[b,t,3,o]) * tanh(c[b,t,o])
    """,
    inputs="x", g=4, i=3, o=5,
)


def lstm_by_hand(x, W, U, u):
    cell = torch.nn.LSTM(3, 5, batch_first=True).double()
    weights = dict(
        weight_ih_l0=W.flatten(0, 1),
        weight_hh_l0=U.flatten(0, 1),
        bias_ih_l0=u.flatten(),
        bias_hh_l0=0 * u.flatten(),
    )
    return torch.func.functional_call(cell, weights, (x,))[0].detach()


check(lstm, lstm_by_hand, x=(2, 6, 3))

# %%
# LSTM with peepholes
# -------------------
# `Recurrent Nets that Time and Count <https://doi.org/10.1109/IJCNN.2000.861302>`_, Gers and Schmidhuber
# 2000: gates see the cell.

peepholes = tn.layer(
    """
    z[b,t,g,o] = x[b,t,i] * W[g,o,i] + h[b,t-1,p] * U[g,o,p] + u[g,o]
    f[b,t,o]   = sigmoid(z[b,t,1,o] + P[1,o] * c[b,t-1,o])
    c[b,t,o]   = f * c[b,t-1,o] + sigmoid(z[b,t,0,o] + P[0,o] * c[b,t-1,o]) * tanh(z[b,t,2,o])
    h[b,t,o]   = sigmoid(z[b,t,3,o] + P[2,o] * c[b,t,o]) * tanh(c[b,t,o])
    P[n:3,o]: parameter
    """,
    inputs="x", g=4, i=3, o=5,
)


def peepholes_by_hand(x, W, U, u, P):
    h = c = torch.zeros(x.shape[0], 5, dtype=x.dtype)
    made = []
    for t in range(x.shape[1]):
        i, f, n, o = (x[:, t] @ W[g].T + h @ U[g].T + u[g] for g in range(4))
        c = torch.sigmoid(f + P[1] * c) * c + torch.sigmoid(i + P[0] * c) * n.tanh()
        h = torch.sigmoid(o + P[2] * c) * c.tanh()
        made.append(h)
    return torch.stack(made, 1)


check(peepholes, peepholes_by_hand, x=(2, 6, 3))

# %%
# GRU
# ---
# `Learning Phrase Representations <https://arxiv.org/abs/1406.1078>`_, Cho et al. 2014, in torch's form, in
# which the reset gate stands after the product.

gru = tn.layer(
    """
    z[b,t,g,o] = x[b,t,i] * W[g,o,i] + u[g,o]
    k[b,t,g,o] = h[b,t-1,p] * U[g,o,p] + v[g,o]
    r[b,t,o]   = sigmoid(z[b,t,0,o] + k[b,t,0,o])
    s[b,t,o]   = sigmoid(z[b,t,1,o] + k[b,t,1,o])
    n[b,t,o]   = tanh(z[b,t,2,o] + r * k[b,t,2,o])
    h[b,t,o]   = (1 - s) * n + s * h[b,t-1,o]
    """,
    inputs="x", g=3, i=3, o=5,
)


def gru_by_hand(x, W, U, u, v):
    cell = torch.nn.GRU(3, 5, batch_first=True).double()
    weights = dict(
        weight_ih_l0=W.flatten(0, 1),
        weight_hh_l0=U.flatten(0, 1),
        bias_ih_l0=u.flatten(),
        bias_hh_l0=v.flatten(),
    )
    return torch.func.functional_call(cell, weights, (x,))[0].detach()


check(gru, gru_by_hand, x=(2, 6, 3))

# %%
# Both ways
# ---------
# `Bidirectional Recurrent Neural Networks <https://doi.org/10.1109/78.650093>`_, Schuster and Paliwal 1997:
# ``l[b,t+1,p]`` goes from the end to the front, and ``stack`` puts the two states side by side.

both = tn.layer(
    """
    r[b,t,o]     = tanh(x[b,t,i] * W[o,i] + r[b,t-1,p] * U[o,p] + u[o])
    l[b,t,o]     = tanh(x[b,t,i] * V[o,i] + l[b,t+1,p] * R[o,p] + v[o])
    y[b,t,(s,o)] = stack[s](r[b,t,o], l[b,t,o])
    """,
    inputs="x", i=3, o=5,
)


def both_by_hand(x, W, U, u, V, R, v):
    cell = torch.nn.RNN(3, 5, batch_first=True, bidirectional=True).double()
    there = dict(weight_ih_l0=W, weight_hh_l0=U, bias_ih_l0=u, bias_hh_l0=0 * u)
    back = dict(weight_ih_l0=V, weight_hh_l0=R, bias_ih_l0=v, bias_hh_l0=0 * v)
    weights = there | {f"{name}_reverse": each for name, each in back.items()}
    return torch.func.functional_call(cell, weights, (x,))[0].detach()


check(both, both_by_hand, x=(2, 6, 3))

# %%
# Minimal gated unit
# ------------------
# `Minimal Gated Unit <https://arxiv.org/abs/1603.09420>`_, Zhou et al. 2016: one gate.

minimal = tn.layer(
    """
    f[b,t,o] = sigmoid(x[b,t,i] * Wf[o,i] + h[b,t-1,p] * Uf[o,p] + uf[o])
    n[b,t,o] = tanh(x[b,t,i] * W[o,i] + f[b,t,p] * h[b,t-1,p] * U[o,p] + u[o])
    h[b,t,o] = (1 - f) * h[b,t-1,o] + f * n
    """,
    inputs="x", i=3, o=5,
)


def minimal_by_hand(x, Wf, Uf, uf, W, U, u):
    h = torch.zeros(x.shape[0], 5, dtype=x.dtype)
    made = []
    for t in range(x.shape[1]):
        f = torch.sigmoid(x[:, t] @ Wf.T + h @ Uf.T + uf)
        h = (1 - f) * h + f * torch.tanh(x[:, t] @ W.T + (f * h) @ U.T + u)
        made.append(h)
    return torch.stack(made, 1)


check(minimal, minimal_by_hand, x=(2, 6, 3))

# %%
# minGRU
# ------
# `Were RNNs All We Needed? <https://arxiv.org/abs/2410.01201>`_, Feng et al. 2024: gates do not see the
# state, so that the recurrence is linear.

min_gru = tn.layer(
    """
    z[b,t,o] = sigmoid(x[b,t,i] * Wz[o,i] + uz[o])
    n[b,t,o] = x[b,t,i] * Wh[o,i] + uh[o]
    h[b,t,o] = (1 - z) * h[b,t-1,o] + z * n
    """,
    inputs="x", i=3, o=5,
)


def min_gru_by_hand(x, Wz, uz, Wh, uh):
    z, n = torch.sigmoid(F.linear(x, Wz, uz)), F.linear(x, Wh, uh)
    h = torch.zeros_like(n[:, 0])
    made = [h := (1 - z[:, t]) * h + z[:, t] * n[:, t] for t in range(x.shape[1])]
    return torch.stack(made, 1)


check(min_gru, min_gru_by_hand, x=(2, 6, 3))

# %%
# Simple recurrent unit
# ---------------------
# `Simple Recurrent Units for Highly Parallelizable Recurrence <https://arxiv.org/abs/1709.02755>`_, Lei et
# al. 2017, without the scaling factor.

sru = tn.layer(
    """
    z[b,t,g,o] = x[b,t,i] * W[g,o,i]
    f[b,t,o]   = sigmoid(z[b,t,1,o] + vf[o] * c[b,t-1,o] + uf[o])
    c[b,t,o]   = f * c[b,t-1,o] + (1 - f) * z[b,t,0,o]
    r[b,t,o]   = sigmoid(z[b,t,2,o] + vr[o] * c[b,t-1,o] + ur[o])
    h[b,t,o]   = r * c[b,t,o] + (1 - r) * x[b,t,o]
    """,
    inputs="x", g=3, i=5, o=5,
)


def sru_by_hand(x, W, vf, uf, vr, ur):
    c = torch.zeros_like(x[:, 0])
    made = []
    for t in range(x.shape[1]):
        n, f, r = (x[:, t] @ W[g].T for g in range(3))
        f, r = torch.sigmoid(f + vf * c + uf), torch.sigmoid(r + vr * c + ur)
        c = f * c + (1 - f) * n
        made.append(r * c + (1 - r) * x[:, t])
    return torch.stack(made, 1)


check(sru, sru_by_hand, x=(2, 6, 5))

# %%
# Quasi-recurrent network
# -----------------------
# `Quasi-Recurrent Neural Networks <https://arxiv.org/abs/1611.01576>`_, Bradbury et al. 2016: a causal
# convolution of two positions, and fo-pooling.

qrnn = tn.layer(
    """
    w[b,t,i]   = pad(x[b,t,i], t=(1,0))
    z[b,t,g,o] = w[b,t+k,i] * W[g,o,i,k]
    c[b,t,o]   = sigmoid(z[b,t,1,o]) * c[b,t-1,o] + (1 - sigmoid(z[b,t,1,o])) * tanh(z[b,t,0,o])
    h[b,t,o]   = sigmoid(z[b,t,2,o]) * c
    """,
    inputs="x", g=3, i=3, o=5, k=2,
)


def qrnn_by_hand(x, W):
    z = F.conv1d(F.pad(x.transpose(1, 2), (1, 0)), W.flatten(0, 1)).unflatten(1, (3, 5))
    n, f, o = z[:, 0].tanh(), z[:, 1].sigmoid(), z[:, 2].sigmoid()
    c = torch.zeros_like(n[..., 0])
    made = [o[..., t] * (c := f[..., t] * c + (1 - f[..., t]) * n[..., t]) for t in range(x.shape[1])]
    return torch.stack(made, 1)


check(qrnn, qrnn_by_hand, x=(2, 6, 3))

# %%
# Independently recurrent network
# -------------------------------
# `IndRNN <https://arxiv.org/abs/1803.04831>`_, Li et al. 2018: each unit sees its own past alone.

indrnn = tn.layer(
    "h[b,t,o] = relu(x[b,t,i] * W[o,i] + r[o] * h[b,t-1,o] + u[o])",
    inputs="x", i=3, o=5,
)


def indrnn_by_hand(x, W, r, u):
    z = F.linear(x, W, u)
    h = torch.zeros_like(z[:, 0])
    return torch.stack([h := F.relu(z[:, t] + r * h) for t in range(x.shape[1])], 1)


check(indrnn, indrnn_by_hand, x=(2, 6, 3))

# %%
# Recurrence in a tensor train
# ----------------------------
# `Tensor-Train Recurrent Neural Networks for Video Classification <https://arxiv.org/abs/1707.01786>`_, Yang
# et al. 2017: the matrix from a wide input to the state is a tensor train.

tensor_train = tn.layer(
    """
    z[b,t,p,q] = x[b,t,i,j] * G[p,i,r] * H[r,q,j]
    h[b,t,p,q] = tanh(z + h[b,t-1,m,n] * U[p,q,m,n])
    """,
    inputs="x", i=6, j=8, p=2, q=3, r=4,
)


def tensor_train_by_hand(x, G, H, U):
    W = torch.einsum("pir,rqj->pqij", G, H).reshape(6, 48)
    z, h = x.flatten(2) @ W.T, torch.zeros(x.shape[0], 6, dtype=x.dtype)
    made = [h := torch.tanh(z[:, t] + h @ U.reshape(6, 6).T) for t in range(x.shape[1])]
    return torch.stack(made, 1).unflatten(-1, (2, 3))


check(tensor_train, tensor_train_by_hand, x=(2, 5, 6, 8))

# %%
# Diagonal state space
# --------------------
# `On the Parameterization and Initialization of Diagonal State Space Models <https://arxiv.org/abs/2206.11893>`_,
# Gu et al. 2022, with real states, discretised by a zero-order hold: a linear recurrence of n states for each
# channel.

diagonal = tn.layer(
    """
    a[c,n]     = -exp(l[c,n])
    s[b,t,c,n] = exp(a * exp(d[c])) * s[b,t-1,c,n] + (exp(a * exp(d[c])) - 1) / a * B[c,n] * x[b,t,c]
    y[b,t,c]   = C[c,n] * s[b,t,c,n] + D[c] * x[b,t,c]
    """,
    inputs="x", c=3, n=4,
)


def diagonal_by_hand(x, l, d, B, C, D):
    a = -l.exp()
    decay = torch.exp(a * d.exp()[:, None])
    s = torch.zeros(x.shape[0], 3, 4, dtype=x.dtype)
    made = []
    for t in range(x.shape[1]):
        s = decay * s + (decay - 1) / a * B * x[:, t, :, None]
        made.append((C * s).sum(-1) + D * x[:, t])
    return torch.stack(made, 1)


check(diagonal, diagonal_by_hand, x=(2, 6, 3))

# %%
# Selective state space (Mamba)
# -----------------------------
# `Mamba <https://arxiv.org/abs/2312.00752>`_, Gu and Dao 2023, algorithm 2: step, input and output maps
# depend on the position.

mamba = tn.layer(
    """
    d[b,t,c]   = softplus(x[b,t,k] * Wd[c,k] + ud[c])
    B[b,t,n]   = x[b,t,k] * Wb[n,k]
    C[b,t,n]   = x[b,t,k] * Wc[n,k]
    s[b,t,c,n] = exp(-d[b,t,c] * exp(l[c,n])) * s[b,t-1,c,n] + d[b,t,c] * B[b,t,n] * x[b,t,c]
    y[b,t,c]   = C[b,t,n] * s[b,t,c,n] + D[c] * x[b,t,c]
    """,
    inputs="x", k=3, c=3, n=4,
)


def mamba_by_hand(x, Wd, ud, Wb, Wc, l, D):
    d, B, C = F.softplus(F.linear(x, Wd, ud)), x @ Wb.T, x @ Wc.T
    s = torch.zeros(x.shape[0], 3, 4, dtype=x.dtype)
    made = []
    for t in range(x.shape[1]):
        s = torch.exp(-d[:, t, :, None] * l.exp()) * s + (d[:, t] * x[:, t])[..., None] * B[:, t, None]
        made.append((s * C[:, t, None]).sum(-1) + D * x[:, t])
    return torch.stack(made, 1)


check(mamba, mamba_by_hand, x=(2, 6, 3))

# %%
# Retention
# ---------
# `Retentive Network <https://arxiv.org/abs/2307.08621>`_, Sun et al. 2023, eq. 6 against eq. 5: the
# recurrence here, the parallel form by hand.

retention = tn.layer(
    """
    s[b,t,h,d,e] = g[h] * s[b,t-1,h,d,e] + k[b,t,h,d] * v[b,t,h,e]
    y[b,t,h,e]   = q[b,t,h,d] * s[b,t,h,d,e]
    """,
    inputs="q k v", h=2,
)


def retention_by_hand(q, k, v, g):
    at = torch.arange(q.shape[1])
    distance = at[:, None] - at[None, :]
    decay = torch.where(distance >= 0, g[:, None, None] ** distance.clamp(min=0), 0.0)
    return torch.einsum("bthd,bshd,hts,bshe->bthe", q, k, decay, v)


check(retention, retention_by_hand, given={"g": [0.9, 0.5]}, q=(2, 6, 2, 3), k=(2, 6, 2, 3), v=(2, 6, 2, 4))

# %%
# Gated linear attention
# ----------------------
# `Gated Linear Attention Transformers <https://arxiv.org/abs/2312.06635>`_, Yang et al. 2023: each channel of
# the keys forgets at a pace that depends on the position.

gated = tn.layer(
    """
    a[b,t,d]   = sigmoid(x[b,t,c] * W[d,c] + u[d])
    s[b,t,d,e] = a[b,t,d] * s[b,t-1,d,e] + k[b,t,d] * v[b,t,e]
    y[b,t,e]   = q[b,t,d] * s[b,t,d,e]
    """,
    inputs="x q k v", c=3, d=4,
)


def gated_by_hand(x, q, k, v, W, u):
    a = torch.sigmoid(F.linear(x, W, u))
    s = torch.zeros(x.shape[0], 4, v.shape[-1], dtype=x.dtype)
    made = []
    for t in range(x.shape[1]):
        s = a[:, t, :, None] * s + k[:, t, :, None] * v[:, t, None]
        made.append(torch.einsum("bd,bde->be", q[:, t], s))
    return torch.stack(made, 1)


check(gated, gated_by_hand, x=(2, 6, 3), q=(2, 6, 4), k=(2, 6, 4), v=(2, 6, 5))

# %%
# Delta rule
# ----------
# `Linear Transformers Are Secretly Fast Weight Programmers <https://arxiv.org/abs/2102.11174>`_, Schlag et
# al. 2021: the value that a key has is replaced, not added to.

delta = tn.layer(
    """
    o[b,t,e]   = k[b,t,d] * s[b,t-1,d,e]
    s[b,t,d,e] = s[b,t-1,d,e] + sigmoid(r[b,t]) * k[b,t,d] * (v[b,t,e] - o[b,t,e])
    y[b,t,e]   = q[b,t,d] * s[b,t,d,e]
    """,
    inputs="q k v r",
)


def delta_by_hand(q, k, v, r):
    s = torch.zeros(q.shape[0], q.shape[2], v.shape[2], dtype=q.dtype)
    made = []
    for t in range(q.shape[1]):
        old = torch.einsum("bd,bde->be", k[:, t], s)
        s = s + torch.einsum("b,bd,be->bde", r[:, t].sigmoid(), k[:, t], v[:, t] - old)
        made.append(torch.einsum("bd,bde->be", q[:, t], s))
    return torch.stack(made, 1)


check(delta, delta_by_hand, q=(2, 6, 3), k=(2, 6, 3), v=(2, 6, 4), r=(2, 6))

# %%
# Convolutional LSTM
# ------------------
# `Convolutional LSTM Network <https://arxiv.org/abs/1506.04214>`_, Shi et al. 2015, eq. 3, in one dimension and without
# peepholes: input and state are read in windows of three.

convolutional = tn.layer(
    """
    z[b,t,c,i]   = pad(x[b,t,c,i], i=(1,1))
    p[b,t,q,i]   = pad(h[b,t-1,q,i], i=(1,1))
    s[b,t,g,o,i] = z[b,t,c,i+u] * W[g,o,c,u] + p[b,t,q,i+u] * R[g,o,q,u] + w[g,o]
    k[b,t,o,i]   = sigmoid(s[b,t,1,o,i]) * k[b,t-1,o,i] + sigmoid(s[b,t,0,o,i]) * tanh(s[b,t,3,o,i])
    h[b,t,o,i]   = sigmoid(s[b,t,2,o,i]) * tanh(k[b,t,o,i])
    """,
    inputs="x", c=3, o=4, q=4, g=4, u=3,
)


def convolutional_by_hand(x, W, R, w):
    h = c = torch.zeros(2, 4, 9, dtype=x.dtype)
    made = []
    for one in x.unbind(1):
        s = F.conv1d(one, W.flatten(0, 1), w.flatten(), padding=1) + F.conv1d(h, R.flatten(0, 1), padding=1)
        i, f, o, g = s.unflatten(1, (4, 4)).unbind(1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        made.append(h)
    return torch.stack(made, 1)


check(convolutional, convolutional_by_hand, x=(2, 5, 3, 9))
