"""
Graphs, capsules and slots
==========================

Neighbours are an adjacency matrix or a list of edges; routing is a block that is called again.
"""

import torch
import torch.nn.functional as F
from against import check

import tensornet as tn

EDGES = {"s": [0, 1, 2, 2, 4, 3], "t": [1, 0, 1, 3, 3, 4]}

# %%
# Graph convolution
# -----------------
# `Semi-Supervised Classification with Graph Convolutional Networks <https://arxiv.org/abs/1609.02907>`_, Kipf
# and Welling 2016, eq. 2. ``a`` is the adjacency matrix with a one at each node itself.

convolution = tn.layer(
    """
    d[n]   = rsqrt(sum[m](a[n,m]))
    y[n,o] = d[n] * a[n,m] * d[m] * x[m,i] * W[o,i]
    """,
    inputs="x a", i=4, o=3,
)
A = torch.eye(5, dtype=torch.float64)
A[[0, 1, 2, 3, 4, 2], [1, 0, 3, 2, 1, 4]] = 1


def convolution_by_hand(x, a, W):
    degrees = a.sum(1)
    return a / (degrees[:, None] * degrees).sqrt() @ F.linear(x, W)


check(convolution, convolution_by_hand, x=(5, 4), a=A.numpy())

# %%
# Graph attention
# ---------------
# `Graph Attention Networks <https://arxiv.org/abs/1710.10903>`_, Veličković et al. 2017, eq. 3 and 5.

attention = tn.layer(
    """
    z[n,h,o]   = x[n,i] * W[h,o,i]
    l[n,h]     = z[n,h,o] * L[h,o]
    r[n,h]     = z[n,h,o] * R[h,o]
    e[h,n,m]   = leaky_relu(l[n,h] + r[m,h], slope=0.2)
    p[h,n,m]   = softmax[m](where(a[n,m] > 0, e[h,n,m], -inf))
    y[n,(h,o)] = elu(p[h,n,m] * z[m,h,o])
    """,
    inputs="x a", i=4, h=2, o=3,
)


def attention_by_hand(x, a, W, L, R):
    heads = []
    for weight, left, right in zip(W, L, R, strict=True):
        z = x @ weight.T
        e = F.leaky_relu((z @ left)[:, None] + (z @ right)[None], 0.2)
        heads.append(F.elu(e.masked_fill(a == 0, -torch.inf).softmax(-1) @ z))
    return torch.cat(heads, -1)


check(attention, attention_by_hand, x=(5, 4), a=A.numpy())

# %%
# Message passing over edges
# --------------------------
# `Neural Message Passing for Quantum Chemistry <https://arxiv.org/abs/1704.01212>`_, Gilmer et al. 2017, eq.
# 1 and 2: messages from ``s[e]`` are added at ``t[e]``.

messages = tn.layer(
    """
    g[e,o]     = relu(x[s[e],i] * M[o,i] + f[e,k] * E[o,k])
    m[n,o]     = 0
    m[t[e],o] += g[e,o]
    y[n,o]     = tanh(x[n,i] * U[o,i] + m[n,p] * V[o,p])
    """,
    inputs="x s t f", i=4, o=3, k=2, n=5, p=3,
)


def messages_by_hand(x, s, t, f, M, E, U, V):
    g = F.relu(x[s] @ M.T + f @ E.T)
    m = torch.zeros(5, 3, dtype=x.dtype).index_add(0, t, g)
    return torch.tanh(x @ U.T + m @ V.T)


check(messages, messages_by_hand, x=(5, 4), f=(6, 2), **EDGES)

# %%
# Graph isomorphism
# -----------------
# `How Powerful are Graph Neural Networks? <https://arxiv.org/abs/1810.00826>`_, Xu et al. 2018, eq. 4.1.

isomorphism = tn.layer(
    """
    m[n,i]     = 0
    m[t[e],i] += x[s[e],i]
    h[n,f]     = relu(((1 + c) * x[n,i] + m[n,i]) * W1[f,i] + u1[f])
    y[n,o]     = h[n,f] * W2[o,f] + u2[o]
    c[()]: parameter
    """,
    inputs="x s t", i=4, f=6, o=3, n=5,
)


def isomorphism_by_hand(x, s, t, c, W1, u1, W2, u2):
    m = torch.zeros_like(x).index_add(0, t, x[s])
    return F.linear(F.relu(F.linear((1 + c) * x + m, W1, u1)), W2, u2)


check(isomorphism, isomorphism_by_hand, x=(5, 4), **EDGES)

# %%
# Mean of neighbours (GraphSAGE)
# ------------------------------
# `Inductive Representation Learning on Large Graphs <https://arxiv.org/abs/1706.02216>`_, Hamilton et al.
# 2017, algorithm 1.

sage = tn.layer(
    """
    c[n]       = 0
    c[t[e]]   += 1
    m[n,i]     = 0
    m[t[e],i] += x[s[e],i]
    h[n,o]     = relu(x[n,i] * W[o,i] + m[n,i] / maximum(c[n], 1) * V[o,i])
    y[n,o]     = h[n,o] / maximum(norm[o](h[n,o]), 1e-12)
    """,
    inputs="x s t", i=4, o=3, n=5,
)


def sage_by_hand(x, s, t, W, V):
    means = torch.stack([x[s[t == n]].mean(0) if (t == n).any() else 0 * x[0] for n in range(5)])
    return F.normalize(F.relu(x @ W.T + means @ V.T), dim=-1)


check(sage, sage_by_hand, x=(5, 4), **EDGES)

# %%
# Polynomials of the Laplacian (ChebNet)
# --------------------------------------
# `Convolutional Neural Networks on Graphs with Fast Localized Spectral Filtering <https://arxiv.org/abs/1606.09375>`_,
# Defferrard et al. 2016: the recurrence of Chebyshev's polynomials is one of the language.

chebyshev = tn.layer(
    """
    T[-1,n,i] = x[n,i]
    T[-2,n,i] = l[n,m] * x[m,i]
    T[k,n,i]  = 2 * l[n,m] * T[k-1,m,i] - T[k-2,n,i]
    y[n,o]    = T[k,n,i] * W[k,o,i]
    """,
    inputs="x l", k=4, i=3, o=2,
)


def chebyshev_by_hand(x, l, W):
    terms = [l @ x, x]
    for _ in range(4):
        terms.append(2 * l @ terms[-1] - terms[-2])
    return sum(each @ weight.T for each, weight in zip(terms[2:], W, strict=True))


check(chebyshev, chebyshev_by_hand, x=(5, 3), l=(5, 5))

# %%
# Equivariant messages (EGNN)
# ---------------------------
# `E(n) Equivariant Graph Neural Networks <https://arxiv.org/abs/2102.09844>`_, Satorras et al. 2021, eq. 3 to
# 6: only distances enter the messages, and positions move along differences.

equivariant = tn.layer(
    """
    d[n,m]   = sum[k]((p[n,k] - p[m,k]) ** 2)
    g[n,m,o] = silu(h[n,i] * Wl[o,i] + h[m,i] * Wr[o,i] + d[n,m] * w[o])
    q[n,k]   = p[n,k] + (p[n,k] - p[m,k]) * g[n,m,o] * C[o]
    y[n,f]   = h[n,i] * U[f,i] + sum[m](g[n,m,o]) * V[f,o]
    """,
    inputs="h p", outputs="y q", i=4, o=3, f=4,
)


def equivariant_by_hand(h, p, Wl, Wr, w, C, U, V):
    apart = p[:, None] - p[None]
    g = F.silu((h @ Wl.T)[:, None] + (h @ Wr.T)[None] + apart.square().sum(-1, keepdim=True) * w)
    return h @ U.T + g.sum(1) @ V.T, p + (apart * (g @ C)[..., None]).sum(1)


check(equivariant, equivariant_by_hand, h=(5, 4), p=(5, 3))

# %%
# Triangle updates (AlphaFold)
# ----------------------------
# `Highly accurate protein structure prediction with AlphaFold <https://doi.org/10.1038/s41586-021-03819-2>`_,
# Jumper et al. 2021, supplement, algorithm 11: an edge learns of the two others of each triangle.

triangle = tn.layer(
    """
    z[i,j,c]   = normalize[c](x[i,j,c])
    a[i,j,h]   = z[i,j,c] * Wa[h,c]
    b[i,j,h]   = z[i,j,c] * Wb[h,c]
    ga[i,j,h]  = sigmoid(z[i,j,c] * Ga[h,c])
    gb[i,j,h]  = sigmoid(z[i,j,c] * Gb[h,c])
    g[i,j,c]   = sigmoid(z[i,j,d] * G[c,d])
    t[i,j,h]   = ga[i,k,h] * a[i,k,h] * gb[j,k,h] * b[j,k,h]
    y[i,j,c]   = g * normalize[h](t) * O[c,h]
    """,
    inputs="x", c=4, d=4, h=3,
)


def triangle_by_hand(x, Wa, Wb, Ga, Gb, G, O):
    z = F.layer_norm(x, (4,))
    a, b = torch.sigmoid(z @ Ga.T) * (z @ Wa.T), torch.sigmoid(z @ Gb.T) * (z @ Wb.T)
    t = (a.permute(2, 0, 1) @ b.permute(2, 1, 0)).permute(1, 2, 0)
    return torch.sigmoid(z @ G.T) * F.linear(F.layer_norm(t, (3,)), O)


check(triangle, triangle_by_hand, x=(5, 5, 4))

# %%
# Capsules
# --------
# `Dynamic Routing Between Capsules <https://arxiv.org/abs/1710.09829>`_, Sabour et al. 2017, procedure 1, two
# rounds: ``route`` is a block that is called for each.

capsules = tn.layer(
    """
    u[b,i,d]: input
    p[b,i,j,e] = W[i,j,e,d] * u[b,i,d]
    l[b,i,j]   = 0 * p[b,i,j,0]
    def squash(s):
        s[b,j,e]: input
        n[b,j]   = sum[e](s[b,j,e] ** 2)
        v[b,j,e] = s[b,j,e] * sqrt(n[b,j]) / (1 + n[b,j])
    s0[b,j,e]  = softmax[j](l[b,i,j]) * p[b,i,j,e]
    v0 = squash(s0, scope="first")
    k[b,i,j]   = l[b,i,j] + p[b,i,j,e] * v0[b,j,e]
    s1[b,j,e]  = softmax[j](k[b,i,j]) * p[b,i,j,e]
    v1 = squash(s1, scope="second")
    """,
    i=4, j=3, d=2, e=5,
)


def capsules_by_hand(u, W):
    p = torch.einsum("ijed,bid->bije", W, u)
    logits = torch.zeros(p.shape[:3], dtype=u.dtype)
    for _ in range(2):
        s = (logits.softmax(-1)[..., None] * p).sum(1)
        n = s.square().sum(-1, keepdim=True)
        v = n / (1 + n) * s / n.sqrt()
        logits = logits + (p * v[:, None]).sum(-1)
    return v


check(capsules, capsules_by_hand, u=(2, 4, 2))

# %%
# Slot attention
# --------------
# `Object-Centric Learning with Slot Attention <https://arxiv.org/abs/2006.15055>`_, Locatello et al. 2020,
# algorithm 1, one round without its GRU: slots compete for the inputs.

slots = tn.layer(
    """
    k[b,n,d] = normalize[c](x[b,n,c]) * K[d,c]
    v[b,n,d] = normalize[c](x[b,n,c]) * V[d,c]
    q[b,m,d] = normalize[e](s[b,m,e]) * Q[d,e]
    r[b,n,m] = k[b,n,d] * q[b,m,d] / sqrt(d)
    a[b,n,m] = softmax[m](r) + 1e-8
    y[b,m,d] = a[b,n,m] * v[b,n,d] / sum[n](a[b,n,m])
    """,
    inputs="x s", c=5, d=4, e=3,
)


def slots_by_hand(x, s, K, V, Q):
    x, s = F.layer_norm(x, (5,)), F.layer_norm(s, (3,))
    a = (x @ K.T @ (s @ Q.T).transpose(1, 2) / 2).softmax(-1) + 1e-8
    return (a / a.sum(1, keepdim=True)).transpose(1, 2) @ (x @ V.T)


check(slots, slots_by_hand, x=(2, 6, 5), s=(2, 3, 3))
