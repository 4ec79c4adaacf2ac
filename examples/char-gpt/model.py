"""A transformer that predicts the next character."""

import torch
from torch import nn


class CharGpt(nn.Module):
    def __init__(self, letters: int, context: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.context = context
        self.letter, self.place = nn.Embedding(letters, width), nn.Embedding(context, width)
        block = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True)
        self.blocks = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, letters)

    def forward(self, letters: torch.Tensor) -> torch.Tensor:
        length = letters.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=letters.device)
        found = self.letter(letters) + self.place(torch.arange(length, device=letters.device))
        return self.head(self.blocks(found, mask=mask, is_causal=True))

    @torch.no_grad()
    def write(self, letters: list[int], count: int) -> list[int]:
        device = self.head.weight.device
        for _ in range(count):
            seen = torch.tensor([letters[-self.context :]], device=device)
            letters = [*letters, int(self(seen)[0, -1].argmax())]
        return letters
