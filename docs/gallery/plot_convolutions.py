"""
Convolutions and what is in their place
=======================================

``x[b,c,p+u,q+v]`` is a window. A kernel in factors is a chain of smaller convolutions, which the planner finds.
"""

import torch
import torch.nn.functional as F
from against import check

import tensornet as tn

# %%
# Strided, dilated, grouped
# -------------------------
# `ImageNet Classification with Deep Convolutional Neural Networks
# <https://papers.nips.cc/paper/4824-imagenet-classification-with-deep-convolutional-neural-networks>`_,
# Krizhevsky et al. 2012 (groups);
# `Multi-Scale Context Aggregation by Dilated Convolutions <https://arxiv.org/abs/1511.07122>`_, Yu and Koltun
# 2015.

strided = tn.layer(
    "y[b,(g,o),p,q] = x[b,(g,c),2*p+3*u,2*q+3*v] * K[g,o,c,u,v] + k[(g,o)]",
    inputs="x", g=2, c=2, o=3, u=3, v=3,
)


def strided_by_hand(x, K, k):
    return F.conv2d(x, K.flatten(0, 1), k, stride=2, dilation=3, groups=2)


check(strided, strided_by_hand, x=(2, 4, 11, 12))

# %%
# Depthwise separable convolution
# -------------------------------
# `MobileNets <https://arxiv.org/abs/1704.04861>`_, Howard et al. 2017.

separable = tn.layer(
    """
    z[b,c,h,w] = pad(x[b,c,h,w], h=(1,1), w=(1,1))
    d[b,c,p,q] = z[b,c,p+u,q+v] * D[c,u,v]
    y[b,o,p,q] = relu(d) * P[o,c]
    """,
    inputs="x", c=3, o=5, u=3, v=3,
)


def separable_by_hand(x, D, P):
    d = F.conv2d(x, D[:, None], padding=1, groups=3)
    return F.conv2d(F.relu(d), P[:, :, None, None])


check(separable, separable_by_hand, x=(2, 3, 6, 7))

# %%
# Kernel in CP form
# -----------------
# `Speeding-up Convolutional Neural Networks Using Fine-tuned CP-Decomposition <https://arxiv.org/abs/1412.6553>`_,
# Lebedev et al. 2014.

cp = tn.layer(
    "y[b,o,p,q] = x[b,c,p+u,q+v] * A[o,r] * B[c,r] * C[u,r] * D[v,r]",
    inputs="x", c=3, o=4, u=3, v=3, r=5,
)


def cp_by_hand(x, A, B, C, D):
    return F.conv2d(x, torch.einsum("or,cr,ur,vr->ocuv", A, B, C, D))


check(cp, cp_by_hand, x=(2, 3, 6, 7))

# %%
# Kernel in Tucker-2 form
# -----------------------
# `Compression of Deep Convolutional Neural Networks for Fast and Low Power Mobile Applications
# <https://arxiv.org/abs/1511.06530>`_,
# Kim et al. 2015.

tucker = tn.layer(
    "y[b,o,p,q] = x[b,c,p+u,q+v] * I[r,c] * G[s,r,u,v] * O[o,s]",
    inputs="x", c=4, o=5, u=3, v=3, r=2, s=3,
)


def tucker_by_hand(x, I, G, O):
    x = F.conv2d(x, I[:, :, None, None])
    return F.conv2d(F.conv2d(x, G), O[:, :, None, None])


check(tucker, tucker_by_hand, x=(2, 4, 6, 7))

# %%
# Kernel in a tensor train
# ------------------------
# `Ultimate Tensorization <https://arxiv.org/abs/1611.03214>`_, Garipov et al. 2016: channels in parts.

tensor_train = tn.layer(
    "y[b,(o,n),p,q] = x[b,(c,m),p+u,q+v] * G[u,v,r] * H[r,o,c,s] * K[s,n,m]",
    inputs="x", c=2, m=2, o=3, n=2, u=3, v=3, r=3, s=2,
)


def tensor_train_by_hand(x, G, H, K):
    kernel = torch.einsum("uvr,rocs,snm->oncmuv", G, H, K).reshape(6, 4, 3, 3)
    return F.conv2d(x, kernel)


check(tensor_train, tensor_train_by_hand, x=(2, 4, 6, 7))

# %%
# Kernel in separable directions
# ------------------------------
# `Rethinking the Inception Architecture <https://arxiv.org/abs/1512.00567>`_, Szegedy et al. 2015, section
# 3.2: a column, then a row.

directions = tn.layer(
    "y[b,o,p,q] = x[b,c,p+u,q+v] * C[r,c,u] * R[o,r,v]",
    inputs="x", c=3, o=4, r=2, u=5, v=5,
)


def directions_by_hand(x, C, R):
    return F.conv2d(F.conv2d(x, C[..., None]), R[:, :, None])


check(directions, directions_by_hand, x=(2, 3, 8, 9))

# %%
# Transposed convolution
# ----------------------
# `Deconvolutional Networks <https://doi.org/10.1109/CVPR.2010.5539957>`_, Zeiler et al. 2010: each position
# adds a patch. It is the derivative of a convolution, so ``tn.gradient`` writes it.

strides = tn.layer(
    "y[b,o,p,q] = x[b,c,2*p+u,2*q+v] * K[o,c,u,v]",
    inputs="x[b,c,h,w] K", h=9, w=9, c=3, o=4, u=3, v=3,
)
transposed = tn.gradient(strides, wrt="x")


def transposed_by_hand(**given):
    return F.conv_transpose2d(given["y.grad"], given["K"], stride=2)


check(transposed, transposed_by_hand, x=(2, 3, 9, 9), **{"K": (4, 3, 3, 3), "y.grad": (2, 4, 4, 4)})

# %%
# Lightweight convolution
# -----------------------
# `Pay Less Attention with Lightweight and Dynamic Convolutions <https://arxiv.org/abs/1901.10430>`_, Wu et
# al. 2019: depthwise along time, with normalised weights that heads of channels share.

lightweight = tn.layer(
    """
    z[b,t,h,d]   = pad(x[b,t,(h,d)], t=(2,0))
    y[b,t,(h,d)] = z[b,t+k,h,d] * softmax[k](W[h,k])
    """,
    inputs="x", h=2, d=3, k=3,
)


def lightweight_by_hand(x, W):
    kernel = W.softmax(-1).repeat_interleave(3, 0)[:, None]
    return F.conv1d(F.pad(x.transpose(1, 2), (2, 0)), kernel, groups=6).transpose(1, 2)


check(lightweight, lightweight_by_hand, x=(2, 7, 6))

# %%
# Dynamic convolution
# -------------------
# The same paper, eq. 5: weights are computed at each position.

dynamic = tn.layer(
    """
    w[b,t,h,k]   = x[b,t,c] * W[h,k,c]
    z[b,t,h,d]   = pad(x[b,t,(h,d)], t=(2,0))
    y[b,t,(h,d)] = z[b,t+k,h,d] * softmax[k](w[b,t,h,k])
    """,
    inputs="x", h=2, d=3, k=3, c=6,
)


def dynamic_by_hand(x, W):
    w = torch.einsum("btc,hkc->bthk", x, W).softmax(-1)
    z = F.pad(x, (0, 0, 2, 0)).unfold(1, 3, 1).unflatten(2, (2, 3))  # b t h d k
    return torch.einsum("bthk,bthdk->bthd", w, z).flatten(2)


check(dynamic, dynamic_by_hand, x=(2, 7, 6))

# %%
# Involution
# ----------
# `Involution <https://arxiv.org/abs/2103.06255>`_, Li et al. 2021: a kernel for each position, which channels
# of a group share.

involution = tn.layer(
    """
    f[b,p,q,r]     = relu(x[b,c,p,q] * W0[r,c])
    k[b,g,u,v,p,q] = f[b,p,q,r] * W1[g,u,v,r]
    z[b,c,h,w]     = pad(x[b,c,h,w], h=(1,1), w=(1,1))
    y[b,(g,d),p,q] = k[b,g,u,v,p,q] * z[b,(g,d),p+u,q+v]
    """,
    inputs="x", g=2, d=2, c=4, r=3, u=3, v=3,
)


def involution_by_hand(x, W0, W1):
    f = F.relu(torch.einsum("bchw,rc->brhw", x, W0))
    k = torch.einsum("brhw,guvr->bguvhw", f, W1).flatten(2, 3)
    z = F.unfold(x, 3, padding=1).unflatten(1, (2, 2, 9)).unflatten(-1, x.shape[2:])
    return torch.einsum("bgkhw,bgdkhw->bgdhw", k, z).flatten(1, 2)


check(involution, involution_by_hand, x=(2, 4, 5, 6))

# %%
# Coordinates as channels
# -----------------------
# `CoordConv <https://arxiv.org/abs/1807.03247>`_, Liu et al. 2018, section 3: positions stand beside the
# channels.

coordinates = tn.layer(
    """
    i[b,h,w]   = repeat[b](repeat[w](2 * index(h) / (h - 1) - 1))
    j[b,h,w]   = repeat[b](repeat[h](2 * index(w) / (w - 1) - 1))
    z[b,c,h,w] = concat[c](x[b,c,h,w], stack[c](i, j))
    y[b,o,p,q] = z[b,c,p+u,q+v] * K[o,c,u,v]
    """,
    inputs="x[b,n,h,w]", n=3, o=4, u=3, v=3,
)


def coordinates_by_hand(x, K):
    rows, columns = (torch.linspace(-1, 1, n, dtype=x.dtype) for n in x.shape[2:])
    grid = torch.stack(torch.meshgrid(rows, columns, indexing="ij")).expand(x.shape[0], -1, -1, -1)
    return F.conv2d(torch.cat([x, grid], 1), K)


check(coordinates, coordinates_by_hand, x=(2, 3, 5, 6))

# %%
# Gated dilated convolution (WaveNet)
# -----------------------------------
# `WaveNet <https://arxiv.org/abs/1609.03499>`_, van den Oord et al. 2016, eq. 2, with the residual of figure
# 4.

wavenet = tn.layer(
    """
    z[b,t,c] = pad(x[b,t,c], t=(4,0))
    f[b,t,o] = z[b,t+4*k,c] * Wf[o,c,k]
    g[b,t,o] = z[b,t+4*k,c] * Wg[o,c,k]
    y[b,t,c] = x[b,t,c] + tanh(f[b,t,o]) * sigmoid(g[b,t,o]) * R[c,o]
    """,
    inputs="x", c=3, o=5, k=2,
)


def wavenet_by_hand(x, Wf, Wg, R):
    z = F.pad(x.transpose(1, 2), (4, 0))
    f, g = (F.conv1d(z, W, dilation=4) for W in (Wf, Wg))
    return x + F.linear((f.tanh() * g.sigmoid()).transpose(1, 2), R)


check(wavenet, wavenet_by_hand, x=(2, 9, 3))

# %%
# Squeeze and excitation
# ----------------------
# `Squeeze-and-Excitation Networks <https://arxiv.org/abs/1709.01507>`_, Hu et al. 2017.

excitation = tn.layer(
    """
    s[b,r]     = relu(mean[h,w](x[b,c,h,w]) * W1[r,c])
    y[b,c,h,w] = x[b,c,h,w] * sigmoid(s[b,r] * W2[c,r])
    """,
    inputs="x", c=6, r=2,
)


def excitation_by_hand(x, W1, W2):
    s = F.relu(x.mean((2, 3)) @ W1.T)
    return x * torch.sigmoid(s @ W2.T)[:, :, None, None]


check(excitation, excitation_by_hand, x=(2, 6, 4, 5))

# %%
# Channel shuffle
# ---------------
# `ShuffleNet <https://arxiv.org/abs/1707.01083>`_, Zhang et al. 2017: an order of axes.

shuffle = tn.layer("y[b,(c,g),h,w] = x[b,(g,c),h,w]", inputs="x", g=3)


def shuffle_by_hand(x):
    return F.channel_shuffle(x, 3)


check(shuffle, shuffle_by_hand, x=(2, 6, 4, 5))

# %%
# Sampling at computed positions (spatial transformer)
# ----------------------------------------------------
# `Spatial Transformer Networks <https://arxiv.org/abs/1506.02025>`_, Jaderberg et al. 2015. ``p`` and ``q``
# are where each pixel of the result is read. Bilinear interpolation is a product with two hat functions, such as
# ``relu(1 - abs(q - index(h)))``. Outside of the image it reads 0, and the positions have gradients.

transformer = tn.layer(
    """
    a[b,k,l]   = z[b,m] * A[k,l,m] + B[k,l]
    s[i]       = 2 * index(i) / (i - 1) - 1
    t[j]       = 2 * index(j) / (j - 1) - 1
    p[b,i,j]   = (a[b,0,0] * t[j] + a[b,0,1] * s[i] + a[b,0,2] + 1) / 2 * (w - 1)
    q[b,i,j]   = (a[b,1,0] * t[j] + a[b,1,1] * s[i] + a[b,1,2] + 1) / 2 * (h - 1)
    y[b,c,i,j] = x[b,c,h,w] * relu(1 - abs(q[b,i,j] - index(h))) * relu(1 - abs(p[b,i,j] - index(w)))
    """,
    inputs="x z", i=5, j=6, k=2, l=3, m=4,
)


def transformer_by_hand(x, z, A, B):
    grid = F.affine_grid(torch.einsum("bm,klm->bkl", z, A) + B, (2, 1, 5, 6), align_corners=True)
    return F.grid_sample(x, grid, align_corners=True)


check(transformer, transformer_by_hand, x=(2, 3, 7, 8), z=(2, 4))

# %%
# Aggregation around words (NetVLAD)
# ----------------------------------
# `NetVLAD <https://arxiv.org/abs/1511.07247>`_, Arandjelović et al. 2015, before its normalisation.

vlad = tn.layer(
    """
    a[b,n,k] = softmax[k](x[b,n,d] * W[k,d] + u[k])
    y[b,k,d] = a[b,n,k] * (x[b,n,d] - C[k,d])
    """,
    inputs="x", k=3, d=4,
)


def vlad_by_hand(x, W, u, C):
    a = F.linear(x, W, u).softmax(-1)
    return torch.einsum("bnk,bnkd->bkd", a, x[:, :, None] - C)


check(vlad, vlad_by_hand, x=(2, 7, 4))
