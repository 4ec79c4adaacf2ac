"""Trains the model of model.py on all processes of the job."""

import argparse
import json
import os
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from model import CharGpt
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

HERE = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    config = json.loads(parser.parse_args().config.read_text())
    on_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if on_gpu else "gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    device = torch.device(f"cuda:{os.environ['LOCAL_RANK']}" if on_gpu else "cpu")

    letters = json.loads((HERE / "data/letters.json").read_text())
    text = torch.from_numpy(np.fromfile(HERE / "data/train.bin", dtype=np.uint8)).long()
    torch.manual_seed(0)
    sizes = {key: config[key] for key in ("context", "width", "heads", "layers")}
    model = CharGpt(len(letters), **sizes).to(device)
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["rate"])

    torch.manual_seed(rank + 1)  # every process sees other sentences
    for step in range(config["steps"]):
        starts = torch.randint(len(text) - config["context"] - 1, (config["batch"],))
        pieces = torch.stack([text[s : s + config["context"] + 1] for s in starts]).to(device)
        loss = cross_entropy(parallel(pieces[:, :-1]).flatten(0, 1), pieces[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and (step + 1) % 10 == 0:
            print(f"step {step + 1}: loss {loss.item():.2f} on {ranks} processes", flush=True)
    if rank == 0:
        torch.save(model.state_dict(), "char-gpt.pt")
        written = model.eval().write([letters.index("t")], 20)
        print("sample:", json.dumps("".join(letters[number] for number in written)), flush=True)
    del parallel  # it keeps the process group, and must not end it after the next line
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
