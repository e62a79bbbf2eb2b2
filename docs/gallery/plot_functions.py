"""
Fourier, Kolmogorov and Arnold
==============================

Layers whose weights multiply waves, splines and polynomials of their inputs.
"""

import numpy as np
import torch
import torch.nn.functional as F
from against import check

import tensornet as tn

# %%
# Fourier mixing (FNet)
# ---------------------
# `FNet <https://arxiv.org/abs/2105.03824>`_, Lee-Thorp et al. 2021, eq. 3: the real part of a transform along
# positions and channels; the angles are equations of positions.

fnet = tn.layer(
    """
    p[n,m]   = 2 * pi * index(n) * index(m) / n
    q[c,d]   = 2 * pi * index(c) * index(d) / c
    y[b,m,d] = x[b,n,c] * cos(p[n,m]) * cos(q[c,d]) - x[b,n,c] * sin(p[n,m]) * sin(q[c,d])
    """,
    inputs="x", n=6, m=6, c=5, d=5,
)


def fnet_by_hand(x):
    return torch.fft.fft2(x).real


check(fnet, fnet_by_hand, x=(2, 6, 5))

# %%
# Fourier neural operator
# -----------------------
# `Fourier Neural Operator <https://arxiv.org/abs/2010.08895>`_, Li et al. 2020: channels are mixed at each of
# the lowest k frequencies. Complex numbers are an axis of two.

operator = tn.layer(
    """
    a[n,k]     = 2 * pi * index(n) * index(k) / n
    r[b,k,i]   = x[b,n,i] * cos(a[n,k])
    s[b,k,i]   = -x[b,n,i] * sin(a[n,k])
    u[b,k,o]   = r[b,k,i] * R[k,i,o,0] - s[b,k,i] * R[k,i,o,1]
    v[b,k,o]   = r[b,k,i] * R[k,i,o,1] + s[b,k,i] * R[k,i,o,0]
    w[k]       = where(index(k) == 0, 1, 2) / n
    y[b,n,o]   = w[k] * u[b,k,o] * cos(a[n,k]) - w[k] * v[b,k,o] * sin(a[n,k]) + x[b,n,i] * W[o,i]
    R[k,i,o,p:2]: parameter
    """,
    inputs="x", n=8, k=3, i=2, o=4,
)


def operator_by_hand(x, R, W):
    waves = torch.fft.rfft(x, dim=1)
    mixed = torch.zeros(x.shape[0], waves.shape[1], 4, dtype=waves.dtype)
    mixed[:, :3] = torch.einsum("bki,kio->bko", waves[:, :3], torch.view_as_complex(R))
    return torch.fft.irfft(mixed, n=8, dim=1) + x @ W.T


check(operator, operator_by_hand, x=(2, 8, 2))

# %%
# Random Fourier features
# -----------------------
# `Fourier Features Let Networks Learn High Frequency Functions in Low Dimensional Domains
# <https://arxiv.org/abs/2006.10739>`_,
# Tancik et al. 2020.

features = tn.layer(
    """
    a[b,m]     = 2 * pi * x[b,d] * w[m,d]
    y[b,(p,m)] = stack[p](cos(a), sin(a))
    """,
    inputs="x w",
)


def features_by_hand(x, w):
    a = 2 * torch.pi * x @ w.T
    return torch.cat([a.cos(), a.sin()], -1)


check(features, features_by_hand, x=(5, 3), w=(4, 3))

# %%
# Sinusoidal representation (SIREN)
# ---------------------------------
# `Implicit Neural Representations with Periodic Activation Functions <https://arxiv.org/abs/2006.09661>`_,
# Sitzmann et al. 2020, two layers.

siren = tn.layer(
    """
    h[b,f] = sin(30 * (x[b,i] * W1[f,i] + u1[f]))
    y[b,o] = sin(30 * (h[b,f] * W2[o,f] + u2[o]))
    """,
    inputs="x", i=2, f=6, o=3,
)


def siren_by_hand(x, W1, u1, W2, u2):
    return torch.sin(30 * F.linear(torch.sin(30 * F.linear(x, W1, u1)), W2, u2))


check(siren, siren_by_hand, x=(5, 2))

# %%
# Kolmogorov–Arnold network with radial functions
# -----------------------------------------------
# `Kolmogorov-Arnold Networks are Radial Basis Function Networks <https://arxiv.org/abs/2405.06721>`_, Li
# 2024: each edge has a function of its own, a sum of bumps.

radial = tn.layer(
    """
    r[b,i,g] = exp(-((x[b,i] - 4 * index(g) / (g - 1) + 2) * (g - 1) / 4) ** 2)
    y[b,o]   = r[b,i,g] * C[o,i,g] + silu(x[b,i]) * W[o,i]
    """,
    inputs="x", i=3, g=5, o=4,
)


def radial_by_hand(x, C, W):
    grid = torch.linspace(-2, 2, 5, dtype=x.dtype)
    bumps = torch.exp(-((x[..., None] - grid) ** 2))
    return torch.einsum("big,oig->bo", bumps, C) + F.linear(F.silu(x), W)


check(radial, radial_by_hand, x=(6, 3))

# %%
# Kolmogorov–Arnold network with Chebyshev polynomials
# ----------------------------------------------------
# `Chebyshev Polynomial-Based Kolmogorov-Arnold Networks <https://arxiv.org/abs/2405.07200>`_, Sidharth et al.
# 2024: the polynomials as a recurrence along their degree.

chebyshev = tn.layer(
    """
    t[b,i]    = tanh(x[b,i])
    T[b,-1,i] = t[b,i]
    T[b,-2,i] = 2 * t[b,i] ** 2 - 1
    T[b,n,i]  = 2 * t[b,i] * T[b,n-1,i] - T[b,n-2,i]
    y[b,o]    = T[b,n,i] * C[o,i,n]
    """,
    inputs="x", i=3, n=4, o=2,
)


def chebyshev_by_hand(x, C):
    angles = torch.acos(torch.tanh(x))
    terms = torch.stack([torch.cos(n * angles) for n in range(4)], -1)
    return torch.einsum("bin,oin->bo", terms, C)


check(chebyshev, chebyshev_by_hand, x=(6, 3))

# %%
# Gaussian mixture density
# ------------------------
# `Mixture Density Networks <https://publications.aston.ac.uk/id/eprint/373/>`_, Bishop 1994: the loss of a
# mixture of k normal densities.

density = tn.layer(
    """
    l[b,k] = log_softmax[k](x[b,i] * P[k,i])
    m[b,k] = x[b,i] * M[k,i]
    s[b,k] = x[b,i] * S[k,i]
    d[b,k] = l - s - ((t[b] - m) / exp(s)) ** 2 / 2 - log(2 * pi) / 2
    loss   = -mean[b](logsumexp[k](d))
    """,
    inputs="x t", i=3, k=4,
)


def density_by_hand(x, t, P, M, S):
    D = torch.distributions
    parts = D.Normal(x @ M.T, (x @ S.T).exp())
    return -D.MixtureSameFamily(D.Categorical(logits=x @ P.T), parts).log_prob(t).mean()


check(density, density_by_hand, x=(6, 3), t=(6,))

# %%
# Positions as waves
# ------------------
# `Attention Is All You Need <https://arxiv.org/abs/1706.03762>`_, Vaswani et al. 2017, section 3.5.

waves = tn.layer(
    """
    a[n,f]     = index(n) / 10000 ** (index(f) / f)
    p[n,(f,s)] = stack[s](sin(a[n,f]), cos(a[n,f]))
    y[b,n,c]   = x[b,n,c] + p[n,c]
    """,
    inputs="x", n=5, f=3, s=2,
)


def waves_by_hand(x):
    angles = np.arange(5)[:, None] / 10000 ** (np.arange(6) // 2 * 2 / 6)
    return x + torch.from_numpy(np.where(np.arange(6) % 2, np.cos(angles), np.sin(angles)))


check(waves, waves_by_hand, x=(2, 5, 6))
