"""Writes points near a plane: three inputs and a target in each line."""

from pathlib import Path

import numpy as np

random = np.random.default_rng(0)
inputs = random.normal(size=(2000, 3))
targets = inputs @ [2.0, -1.0, 0.5] + 3.0 + random.normal(0, 0.1, 2000)
path = Path(__file__).parent / "data" / "points.csv"
path.parent.mkdir(exist_ok=True)
np.savetxt(path, np.column_stack([inputs, targets]), delimiter=",", header="a,b,c,target")
print(f"{len(inputs)} points in {path}")
