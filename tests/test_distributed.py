"""A module over several processes, divided or copied by torch: the losses and parameters of one process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import tensornet as tn

SCRIPT = """
import sys
import torch
import tensornet as tn
from torch import distributed
from torch.distributed.fsdp import fully_shard

distributed.init_process_group("gloo")
rank, count = distributed.get_rank(), distributed.get_world_size()
module, alone = (tn.module(tn.models.vit(16, 4, 32, 3, 4, 64, 10), seed=0) for _ in range(2))
if sys.argv[1] == "divided":
    mesh = distributed.init_device_mesh("cpu", (count,))
    for block in module.blocks:
        fully_shard(block, mesh=mesh)
    whole = fully_shard(module, mesh=mesh)
    held = sum(each.to_local().numel() for each in module.parameters())
    assert held < 0.6 * sum(each.numel() for each in alone.parameters())
else:
    whole = torch.nn.parallel.DistributedDataParallel(module)
draw = torch.Generator().manual_seed(0)
x, goal = torch.randn(6, 3, 16, 16, generator=draw), torch.randn(6, 10, generator=draw)


def trained(model, x, goal, scale):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(4):
        optimizer.zero_grad()
        loss = (model(x) - goal).square().sum() * scale
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        optimizer.step()
    return loss.detach()


loss = trained(whole, x[rank::count], goal[rank::count], count / len(x))
distributed.all_reduce(loss)
torch.testing.assert_close(loss / count, trained(alone, x, goal, 1 / len(x)), rtol=1e-5, atol=1e-6)
expected = alone.state_dict()
for name, each in module.state_dict().items():
    found = each.full_tensor() if sys.argv[1] == "divided" else each
    torch.testing.assert_close(found, expected[name], rtol=1e-4, atol=1e-5)
distributed.destroy_process_group()
"""


PAGE = Path(__file__).parents[1] / "docs" / "guides" / "distributed.md"
GUIDE = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["copied", "divided"])
def test_two_processes_train_as_one(how: str, tmp_path: Path) -> None:
    """`DistributedDataParallel`, and `fully_shard` block by block, with gloo on the CPU."""
    run_on_two(SCRIPT, tmp_path, how)


@pytest.mark.slow
@pytest.mark.parametrize("script", GUIDE, ids=["copied", "divided", "sharded"])
def test_what_the_scripts_of_the_guide_train_is_a_module_of_one_process(script: str, tmp_path: Path) -> None:
    run_on_two(script, tmp_path)
    module = tn.module(tn.models.vit(16, 4, 32, 2, 2, 64, 10))
    before = module.state_dict()["head.W"].clone()
    module.load_state_dict(torch.load(tmp_path / "trained.pt"))
    assert not torch.equal(module.state_dict()["head.W"], before)


def run_on_two(script: str, folder: Path, *arguments: str) -> None:
    """Runs a script on two processes."""
    (folder / "script.py").write_text(script, encoding="utf-8")
    root = str(Path(__file__).parents[1])
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*command, "script.py", *arguments], cwd=folder,
        capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TENSORNET_CALIBRATE": "0", "PYTHONPATH": root},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
