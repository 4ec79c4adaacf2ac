"""Training on all processes of the job."""

import argparse
import json
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from digits import data, model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--epochs", type=int, help="instead of those of the configuration")
    given = parser.parse_args()
    config = json.loads(given.config.read_text())
    on_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if on_gpu else "gloo")
    device = torch.device(f"cuda:{os.environ['LOCAL_RANK']}" if on_gpu else "cpu")

    torch.manual_seed(0)
    network = model.make(config["channels"]).to(device)
    parallel = DistributedDataParallel(network)
    optimizer = torch.optim.Adam(network.parameters(), lr=config["rate"])
    images = data.load("train")
    sampler: DistributedSampler = DistributedSampler(images)
    for epoch in range(given.epochs or config["epochs"]):
        sampler.set_epoch(epoch)
        for inputs, labels in DataLoader(images, config["batch"], sampler=sampler):
            loss = cross_entropy(parallel(inputs.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    if dist.get_rank() == 0:
        inputs, labels = data.load("test").tensors
        with torch.no_grad():
            right = (network(inputs.to(device)).argmax(1).cpu() == labels).float().mean().item()
        print(f"accuracy {right:.2f} after training on {dist.get_world_size()} processes")
        torch.save(network.state_dict(), "digits.pt")
    del parallel  # it keeps the process group, and must not end it after the next line
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
