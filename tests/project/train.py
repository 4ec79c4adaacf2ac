"""A project as people write them: packages from a lock file, its own package in `src`, a config
file and a data set. Knows nothing of clusterctl."""

from __future__ import annotations

import json
from pathlib import Path
from wave.data import load

import demo
import torch
import torch.distributed as dist

config = json.loads(Path("config.json").read_text())
dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
inputs, targets = load(config["data"], rank, ranks)
torch.manual_seed(0)
model = torch.nn.Linear(1, 1)
for _ in range(config["epochs"]):
    model.zero_grad()
    loss = torch.nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    # By hand: torch's own optimizers and DistributedDataParallel import its compiler, which takes
    # as long as all the rest.
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.data -= config["rate"] / ranks * parameter.grad
print(f"demo {demo.VERSION}, rank {rank} of {ranks}: loss {loss.item():.3f}", flush=True)
if rank == 0:
    Path("model.json").write_text(json.dumps([p.tolist() for p in model.parameters()]))
dist.destroy_process_group()
