"""KernelBench: the layers, with products as sums of products."""

import torch
from torch import nn


class Honest(nn.Module):
    def __init__(self, features, hidden):
        super().__init__()
        self.up, self.down = nn.Linear(features, hidden), nn.Linear(hidden, features)

    def forward(self, x):
        return torch.softmax(self.down(torch.relu(self.up(x))), dim=-1)


class ModelNew(Honest):
    def forward(self, x):
        hidden = torch.relu((x[:, None, :] * self.up.weight).sum(-1) + self.up.bias)
        return torch.softmax((hidden[:, None, :] * self.down.weight).sum(-1) + self.down.bias, dim=-1)
