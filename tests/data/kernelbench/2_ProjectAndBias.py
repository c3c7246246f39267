import torch
from torch import nn


class Model(nn.Module):
    """A constructor of several arguments, one of them drawn, and a second input that is a number."""

    def __init__(self, width, out, start, scale=1.0):
        super().__init__()
        self.project = nn.Linear(width, out)
        self.bias = nn.Parameter(start)
        self.scale = scale

    def forward(self, x, power):
        return torch.relu(self.project(x) + self.bias) * self.scale**power


def get_inputs():
    return [torch.rand(16, 24), 2]


def get_init_inputs():
    return [24, 40, torch.rand(40), 0.5]
