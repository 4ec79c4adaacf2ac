"""Shards a model with FSDP2, as https://docs.pytorch.org/tutorials/intermediate/FSDP_tutorial.html
has it."""

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
torch.manual_seed(0)
mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
for layer in model:
    if isinstance(layer, torch.nn.Linear):
        fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
x = torch.randn(16, 4, generator=torch.Generator().manual_seed(dist.get_rank()))
losses = []
for _ in range(20):
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
mine = model[0].weight.to_local().numel()
print(
    f"{dist.get_rank()} of {dist.get_world_size()}: {mine} of {model[0].weight.numel()} weights,"
    f" falls: {losses[-1] < losses[0]}"
)
dist.destroy_process_group()
