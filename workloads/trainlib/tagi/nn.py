"""What cuTAGI's `pytagi.nn` has of networks, under its names:

from trainlib.tagi.nn import DDPConfig, DDPSequential, Linear, ReLU, Sequential

config = DDPConfig(device_ids=[0, 1], backend="nccl", rank=rank, world_size=world)
model = DDPSequential(Sequential(Linear(1, 16), ReLU(), Linear(16, 2)), config, average=True)
"""

from trainlib.tagi.layers import Linear as Linear
from trainlib.tagi.layers import ReLU as ReLU
from trainlib.tagi.layers import Sequential as Sequential
from trainlib.tagi.parallel import DDPConfig as DDPConfig
from trainlib.tagi.parallel import DDPSequential as DDPSequential
