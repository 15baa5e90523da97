"""The same problem in the format of KernelBench."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, features, hidden):
        super().__init__()
        self.up, self.down = nn.Linear(features, hidden), nn.Linear(hidden, features)

    def forward(self, x):
        return torch.softmax(self.down(torch.relu(self.up(x))), dim=-1)


batch_size, features, hidden = 8, 16, 32


def get_inputs():
    return [torch.rand(batch_size, features)]


def get_init_inputs():
    return [features, hidden]
