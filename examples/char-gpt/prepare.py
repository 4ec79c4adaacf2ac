"""Writes the data set: sentences of a small grammar, and the characters that occur in them."""

import json
import random
from pathlib import Path

import numpy as np

WHO, DOES, WHAT = ("the cat", "a dog", "my friend"), ("sees", "likes", "finds"), ("fish", "trees")

random.seed(0)
text = "".join(
    f"{random.choice(WHO)} {random.choice(DOES)} {random.choice(WHAT)}.\n" for _ in range(4000)
)
letters = sorted(set(text))
folder = Path(__file__).parent / "data"
folder.mkdir(exist_ok=True)
np.array([letters.index(letter) for letter in text], dtype=np.uint8).tofile(folder / "train.bin")
(folder / "letters.json").write_text(json.dumps(letters))
print(f"{len(text)} characters in {folder}")
