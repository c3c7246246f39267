import torch
from torch import nn


class Model(nn.Module):
    """No weights, any shape."""

    def forward(self, x):
        return torch.log1p(torch.exp(x)) ** 2


rows = 32
width = 48


def get_inputs():
    return [torch.rand(rows, width)]


def get_init_inputs():
    return []
