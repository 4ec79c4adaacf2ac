"""Fits a line with Lightning, as https://lightning.ai/docs/pytorch/stable/starter/introduction.html
and https://lightning.ai/docs/pytorch/stable/clouds/cluster_intermediate_1.html have it."""

import os
import warnings

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Line(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 1)

    def training_step(self, batch, index):
        x, y = batch
        return nn.functional.mse_loss(self.layer(x), y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


warnings.simplefilter("ignore")
x = torch.linspace(-1, 1, 32).reshape(-1, 1)
here = int(os.environ["LOCAL_WORLD_SIZE"])
trainer = L.Trainer(
    accelerator="cpu",
    devices=here,
    num_nodes=int(os.environ["WORLD_SIZE"]) // here,
    strategy="ddp",
    max_epochs=10,
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    default_root_dir="checkpoints",
)
model = Line()
trainer.fit(model, DataLoader(TensorDataset(x, 3 * x), batch_size=8))
print(f"{trainer.global_rank} of {trainer.world_size}: {model.layer.weight.item() > 1.5}")
