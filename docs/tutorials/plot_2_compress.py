"""
Compress a trained network
==========================

We train a network, replace its weights by factors under a budget, and see what that costs in accuracy, in parameters
and in time.
"""

import copy

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits

import tensornet as tn

# %%
# The network
# -----------
# Any ``torch.nn.Module`` will do. This one has three linear layers, and far more parameters than the task needs.

digits = load_digits()
images, labels = torch.tensor(digits.data / 16 - 0.3).float(), torch.tensor(digits.target)
torch.manual_seed(0)
train, test = torch.randperm(len(images)).split([1297, 500])


def fit(network, epochs):
    optimizer = torch.optim.AdamW(network.parameters(), lr=2e-3)
    for _ in range(epochs):
        for batch in train[torch.randperm(len(train))].split(100):
            loss = F.cross_entropy(network(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return network


def right(network):
    with torch.no_grad():
        return float((network(images[test]).argmax(-1) == labels[test]).float().mean())


network = fit(
    torch.nn.Sequential(
        torch.nn.Linear(64, 256),
        torch.nn.GELU(),
        torch.nn.Linear(256, 256),
        torch.nn.GELU(),
        torch.nn.Linear(256, 10),
    ),
    epochs=10,
)
print(f"dense: {right(network):.1%}, {sum(each.numel() for each in network.parameters()):,} parameters")
assert right(network) > 0.9

# %%
# One budget
# ----------
# ``tn.compress`` spreads a budget over all weights. It tries several forms and ranks for each, and takes those
# that lose the least for what they save. The table says what each weight got, and why.

small = tn.compress(network, parameters=0.2)
small

# %%
# The loss is that of the weights. What counts is the loss in what they compute: with ``calibrate`` it is measured on
# inputs of each layer, here those of 500 digits.

print(f"by the weights: {right(small.model):.1%}")
calibrated = tn.compress(network, parameters=0.2, calibrate=[images[train[:500]]])
print(f"by what they compute: {right(calibrated.model):.1%}")

# %%
# What it costs
# -------------
# The network stays a ``torch.nn.Module``, so a few epochs of training follow where accuracy was lost. Here is the
# accuracy at four budgets, at once and after four epochs:

budgets = (0.3, 0.15, 0.1, 0.07)
found = []
for budget in budgets:
    less = tn.compress(network, parameters=budget, calibrate=[images[train[:500]]])
    before = right(less.model)
    after = right(fit(copy.deepcopy(less.model), epochs=4))
    found.append((less.allocation.parameters[1], before, after))
    print(f"{budget:4.0%}: {found[-1][0]:7,} parameters, {before:.1%} at once, {after:.1%} after four epochs")
assert found[1][2] > 0.9

# %%

counts, before, after = zip(*found, strict=True)
figure, axes = plt.subplots(figsize=(5, 3), layout="constrained")
axes.plot(counts, before, "o--", label="at once")
axes.plot(counts, after, "o-", label="after four epochs")
axes.axhline(right(network), color="gray", linewidth=1, label="dense")
axes.set(xscale="log", xlabel="parameters", ylabel="digits recognized")
axes.legend()

# %%
# In time
# -------
# Fewer parameters are not always less time: a small product has to be read and written, too. The budget may be time
# itself, as expected on this device, or FLOPs. For one weight, ``tn.sweep`` compares forms and ranks in one table:


def layer(form, rank):
    return tn.models.linear((16, 16), (16, 16), factorization=form, rank=rank)


dense = tn.models.linear([256], [256])
tn.sweep(layer, over={"form": ["tt", "cp"], "rank": [0.05, 0.2]}, baseline=dense, lead=256, rounds=3)

# %%
# Keep it
# -------
# A compressed network is one file, with the equations of its factors, and is read back into a new network of the same
# code.

import tempfile
from pathlib import Path

with tempfile.TemporaryDirectory() as folder:
    path = calibrated.save(Path(folder) / "small.safetensors")
    again = tn.load_compressed(path, copy.deepcopy(network))
    print(f"{path.stat().st_size:,} bytes; {right(again.model):.1%}")
assert right(again.model) == right(calibrated.model)
