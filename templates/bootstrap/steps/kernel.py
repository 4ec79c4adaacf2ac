import importlib.util

if importlib.util.find_spec("torch"):
    import torch

    ones = torch.ones(8, device="cuda")
    assert float((ones + ones).sum()) == 16
