"""Fits a line with Accelerate, as https://huggingface.co/docs/accelerate/quicktour has it."""

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(cpu=True)
x = torch.linspace(-1, 1, 32).reshape(-1, 1)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(x, 3 * x), batch_size=8, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for _ in range(20):
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        accelerator.backward(loss)
        optimizer.step()
slopes = accelerator.gather(accelerator.unwrap_model(model).weight.detach().reshape(1))
assert slopes.min() == slopes.max()
print(
    f"{accelerator.process_index} of {accelerator.num_processes}: {slopes[0].item() > 1.5},"
    f" {accelerator.mixed_precision}"
)
accelerator.end_training()
