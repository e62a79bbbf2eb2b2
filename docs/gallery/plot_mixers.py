"""
Mixers, gates and experts
=========================

Layers that mix positions and channels, gate them, or choose which weights an input meets.
"""

import torch
import torch.nn.functional as F
from against import check

import tensornet as tn

# %%
# MLP-Mixer
# ---------
# `MLP-Mixer <https://arxiv.org/abs/2105.01601>`_, Tolstikhin et al. 2021, eq. 1, without norms: a product
# over positions, then one over channels.

mixer = tn.layer(
    """
    h[b,m,c] = gelu(x[b,n,c] * W1[m,n])
    z[b,n,c] = x + h[b,m,c] * W2[n,m]
    f[b,n,f] = gelu(z[b,n,c] * W3[f,c])
    y[b,n,c] = z + f[b,n,f] * W4[c,f]
    """,
    inputs="x", n=5, c=4, m=6, f=7,
)


def mixer_by_hand(x, W1, W2, W3, W4):
    z = x + F.linear(F.gelu(F.linear(x.transpose(1, 2), W1)), W2).transpose(1, 2)
    return z + F.linear(F.gelu(F.linear(z, W3)), W4)


check(mixer, mixer_by_hand, x=(2, 5, 4))

# %%
# Spatial gating unit (gMLP)
# --------------------------
# `Pay Attention to MLPs <https://arxiv.org/abs/2105.08050>`_, Liu et al. 2021, section 2: one half of the
# channels, mixed over positions, gates the other.

gmlp = tn.layer(
    """
    z[b,n,p,d] = gelu(x[b,n,c] * U[p,d,c])
    g[b,n,d]   = W[n,m] * z[b,m,1,d] + u[n]
    y[b,n,c]   = x[b,n,c] + z[b,n,0,d] * g[b,n,d] * V[c,d]
    """,
    inputs="x", c=4, p=2, d=3, n=5, m=5,
)


def gmlp_by_hand(x, U, W, u, V):
    z = F.gelu(F.linear(x, U.flatten(0, 1)))
    a, g = z.chunk(2, -1)
    return x + F.linear(a * (W @ g + u[:, None]), V)


check(gmlp, gmlp_by_hand, x=(2, 5, 4))

# %%
# Gated linear units (SwiGLU)
# ---------------------------
# `GLU Variants Improve Transformer <https://arxiv.org/abs/2002.05202>`_, Shazeer 2020, eq. 6.

swiglu = tn.layer(
    """
    w[b,f] = x[b,i] * W[f,i]
    v[b,f] = x[b,i] * V[f,i]
    y[b,o] = silu(w) * v * Z[o,f]
    """,
    inputs="x", i=4, f=6, o=4,
)


def swiglu_by_hand(x, W, V, Z):
    return F.linear(F.silu(F.linear(x, W)) * F.linear(x, V), Z)


check(swiglu, swiglu_by_hand, x=(3, 4))

# %%
# Highway
# -------
# `Highway Networks <https://arxiv.org/abs/1505.00387>`_, Srivastava et al. 2015, eq. 3.

highway = tn.layer(
    """
    h[b,c] = tanh(x[b,i] * H[c,i] + uh[c])
    t[b,c] = sigmoid(x[b,i] * T[c,i] + ut[c])
    y[b,c] = h * t + x[b,c] * (1 - t)
    """,
    inputs="x", i=4, c=4,
)


def highway_by_hand(x, H, uh, T, ut):
    t = torch.sigmoid(F.linear(x, T, ut))
    return torch.lerp(x, torch.tanh(F.linear(x, H, uh)), t)


check(highway, highway_by_hand, x=(3, 4))

# %%
# Maxout
# ------
# `Maxout Networks <https://arxiv.org/abs/1302.4389>`_, Goodfellow et al. 2013, section 2: the largest of k
# affine maps.

maxout = tn.layer("y[b,o] = max[k](x[b,i] * W[o,k,i] + u[o,k])", inputs="x", i=4, o=3, k=5)


def maxout_by_hand(x, W, u):
    return F.linear(x, W.flatten(0, 1), u.flatten()).unflatten(1, (3, 5)).amax(-1)


check(maxout, maxout_by_hand, x=(3, 4))

# %%
# Feature-wise modulation (FiLM)
# ------------------------------
# `FiLM <https://arxiv.org/abs/1709.07871>`_, Perez et al. 2017, eq. 2.

film = tn.layer(
    """
    f[b,p,c]   = z[b,k] * W[p,c,k] + u[p,c]
    y[b,c,h,w] = f[b,0,c] * x[b,c,h,w] + f[b,1,c]
    """,
    inputs="x z", p=2, k=5, c=3,
)


def film_by_hand(x, z, W, u):
    gamma, beta = F.linear(z, W.flatten(0, 1), u.flatten()).chunk(2, -1)
    return gamma[..., None, None] * x + beta[..., None, None]


check(film, film_by_hand, x=(2, 3, 4, 5), z=(2, 5))

# %%
# Root mean square norm
# ---------------------
# `Root Mean Square Layer Normalization <https://arxiv.org/abs/1910.07467>`_, Zhang and Sennrich 2019, eq. 4.

rms = tn.layer("y[b,c] = x[b,c] / sqrt(mean[c](x[b,c] ** 2) + 1e-6) * g[c]", inputs="x", c=6)


def rms_by_hand(x, g):
    return F.rms_norm(x, (6,), g, eps=1e-6)


check(rms, rms_by_hand, x=(3, 6))

# %%
# Batch normalisation, in training
# --------------------------------
# `Batch Normalization <https://arxiv.org/abs/1502.03167>`_, Ioffe and Szegedy 2015: the statistics are those of the
# batch, over all axes but the channel. In inference, with stored statistics ``m`` and ``v``, it is
# ``(x - m[c]) / sqrt(v[c] + 1e-5) * g[c] + u[c]``.

batch_norm = tn.layer("y[b,c,h,w] = normalize[b,h,w](x[b,c,h,w]) * g[c] + u[c]", inputs="x", c=3)


def batch_norm_by_hand(x, g, u):
    return F.batch_norm(x, None, None, g, u, training=True)


check(batch_norm, batch_norm_by_hand, x=(4, 3, 5, 6))

# %%
# Layer norm from the condition (AdaLN)
# -------------------------------------
# `Scalable Diffusion Models with Transformers <https://arxiv.org/abs/2212.09748>`_, Peebles and Xie 2022.

adaptive = tn.layer(
    """
    m[b,p,c] = silu(z[b,k]) * W[p,c,k] + u[p,c]
    y[b,n,c] = x[b,n,c] + m[b,2,c] * (normalize[c](x[b,n,c]) * (1 + m[b,0,c]) + m[b,1,c])
    """,
    inputs="x z", p=3, k=5, c=6,
)


def adaptive_by_hand(x, z, W, u):
    scale, shift, gate = F.linear(F.silu(z), W.flatten(0, 1), u.flatten())[:, None].chunk(3, -1)
    return x + gate * (F.layer_norm(x, (6,)) * (1 + scale) + shift)


check(adaptive, adaptive_by_hand, x=(2, 4, 6), z=(2, 5))

# %%
# Mixture of experts, one of them for each token
# ----------------------------------------------
# `Switch Transformers <https://arxiv.org/abs/2101.03961>`_, Fedus et al. 2021, eq. 1 and 2, without its
# capacity.

switch = tn.layer(
    """
    p[t,e] = softmax[e](x[t,i] * R[e,i])
    n[t]   = argmax[e](p[t,e])
    h[t,f] = relu(x[t,i] * W1[n[t],f,i])
    y[t,o] = p[t,n[t]] * h[t,f] * W2[n[t],o,f]
    W1[e,f,i]: parameter
    W2[e,o,f]: parameter
    """,
    inputs="x", e=3, i=4, f=5, o=4,
)


def switch_by_hand(x, R, W1, W2):
    p = F.linear(x, R).softmax(-1)
    made = []
    for token, weights in zip(x, p, strict=True):
        best = int(weights.argmax())
        made.append(weights[best] * W2[best] @ F.relu(W1[best] @ token))
    return torch.stack(made)


check(switch, switch_by_hand, x=(7, 4))

# %%
# Mixture of experts, the best k
# ------------------------------
# `Mixtral of Experts <https://arxiv.org/abs/2401.04088>`_, Jiang et al. 2024: weights of the best k alone
# pass the softmax.

mixture = tn.layer(
    """
    s[t,e] = x[t,i] * R[e,i]
    n[t,k] = top[e,k](s)
    p[t,k] = softmax[k](s[t,n[t,k]])
    g[t,k,f] = x[t,i] * W1[n[t,k],f,i]
    h[t,k,f] = x[t,i] * W3[n[t,k],f,i]
    y[t,o] = p[t,k] * silu(g) * h * W2[n[t,k],o,f]
    W1[e,f,i]: parameter
    W3[e,f,i]: parameter
    W2[e,o,f]: parameter
    """,
    inputs="x", e=4, k=2, i=4, f=5, o=4,
)


def mixture_by_hand(x, R, W1, W3, W2):
    scores, best = F.linear(x, R).topk(2)
    made = torch.zeros_like(x)
    for t, (weights, experts) in enumerate(zip(scores.softmax(-1), best.tolist(), strict=True)):
        for weight, e in zip(weights, experts, strict=True):
            made[t] += weight * (W2[e] @ (F.silu(W1[e] @ x[t]) * (W3[e] @ x[t])))
    return made


check(mixture, mixture_by_hand, x=(7, 4))

# %%
# Soft mixture of experts
# -----------------------
# `From Sparse to Soft Mixtures of Experts <https://arxiv.org/abs/2308.00951>`_, Puigcerver et al. 2023: each
# expert sees p averages of all tokens.

soft = tn.layer(
    """
    s[b,t,e,p] = x[b,t,c] * P[e,p,c]
    z[b,e,p,c] = softmax[t](s) * x[b,t,c]
    h[b,e,p,f] = relu(z[b,e,p,c] * W1[e,f,c])
    k[b,e,p,c] = h[b,e,p,f] * W2[e,c,f]
    y[b,t,c]   = softmax[e,p](s[b,t,e,p]) * k[b,e,p,c]
    """,
    inputs="x", e=3, p=2, c=4, f=5,
)


def soft_by_hand(x, P, W1, W2):
    s = F.linear(x, P.flatten(0, 1))
    z = s.softmax(1).transpose(1, 2) @ x
    experts = zip(z.unflatten(1, (3, 2)).unbind(1), W1, W2, strict=True)
    k = torch.cat([F.linear(F.relu(F.linear(each, up)), down) for each, up, down in experts], 1)
    return s.softmax(-1) @ k


check(soft, soft_by_hand, x=(2, 7, 4))

# %%
# Product-key memory
# ------------------
# `Large Memory Layers with Product Keys <https://arxiv.org/abs/1907.05242>`_, Lample et al. 2019, section
# 3.1, for one head: the best k of n² keys, found among the best k of each half.

memory = tn.layer(
    """
    s[b,g,n]   = q[b,(g,d)] * K[g,n,d]
    i[b,g,k]   = top[n,k](s)
    c[b,(u,v)] = s[b,0,i[b,0,u]] + s[b,1,i[b,1,v]]
    j[b,w]     = top[m,w](c[b,m])
    y[b,o]     = softmax[w](c[b,j[b,w]]) * V[i[b,0,j[b,w] // k],i[b,1,j[b,w] % k],o]
    V[n,l:4,o]: parameter
    """,
    inputs="q", g=2, d=3, n=4, k=2, u=2, v=2, w=2, o=3,
)


def memory_by_hand(q, K, V):
    halves = torch.einsum("bgd,gnd->gbn", q.unflatten(1, (2, 3)), K)
    scores = (halves[0][:, :, None] + halves[1][:, None]).flatten(1)
    best = scores.topk(2)
    return torch.einsum("bw,bwo->bo", best.values.softmax(-1), V.flatten(0, 1)[best.indices])


check(memory, memory_by_hand, q=(5, 6))
