"""Masked attention of PyTorch, imported and compiled."""

from collections.abc import Callable
from math import inf
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import gradspec as gs

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # PyTorch's, about its own code

CAUSAL = torch.triu(torch.ones(6, 6, dtype=torch.bool), 1)


def padded(x: Tensor, lengths: Tensor) -> Tensor:
    """Self-attention of sequences of different lengths: the mask is made of integers in the graph."""
    places = torch.arange(x.shape[1])
    is_there = places < lengths[:, None]
    scores = (x @ x.mT).masked_fill(~(is_there[:, None] & (places[:, None] >= places)), -inf)
    return torch.softmax(scores, -1) @ x * is_there[..., None].to(x.dtype)


ATTENTION: dict[str, tuple[Callable[[], nn.Module], Callable[..., Any], tuple[Tensor, ...]]] = {
    "multi-head": (
        lambda: nn.MultiheadAttention(8, 2, batch_first=True),
        lambda m, x: m(x, x, x, attn_mask=CAUSAL, need_weights=False)[0],
        (torch.randn(2, 6, 8),),
    ),
    "key padding": (
        lambda: nn.MultiheadAttention(8, 2, batch_first=True),
        lambda m, x, hidden: m(x, x, x, key_padding_mask=hidden)[0],
        (torch.randn(2, 6, 8), torch.arange(6).expand(2, 6) > 3),
    ),
    "encoder layer": (
        lambda: nn.TransformerEncoderLayer(8, 2, 12, batch_first=True),
        lambda m, x: m(x, src_mask=CAUSAL),
        (torch.randn(2, 6, 8),),
    ),
    "lengths": (nn.Identity, lambda m, x, lengths: padded(x, lengths), (torch.randn(2, 6, 8), torch.tensor([3, 6]))),
}


class Around(nn.Module):
    def __init__(self, inner: nn.Module, call: Callable[..., Any]) -> None:
        super().__init__()
        self.inner, self.call = inner, call

    def forward(self, *given: Tensor) -> Any:
        return self.call(self.inner, *given)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ATTENTION)
def test_masked_attention_is_compiled_throughout(name):
    """Values are PyTorch's, and no step of them or of their gradients is left to NumPy."""
    make, call, inputs = ATTENTION[name]
    module = Around(make(), call).eval()
    graph = gs.from_torch(module, *inputs)
    compiled = gs.compile(graph)
    for plan in (compiled.plan, gs.compile(graph.vjp()).plan):
        assert [step.nodes for step in plan.steps if step.task is None and step.view is None] == []
    np.testing.assert_allclose(compiled(*(x.numpy() for x in inputs)), module(*inputs).detach(), rtol=1e-4, atol=1e-6)


def test_a_query_that_sees_nothing_gets_zero():
    seen = torch.tensor([[0.0, -inf], [-inf, -inf]], dtype=torch.float64)
    module = Around(nn.Identity(), lambda m, x: nn.functional.scaled_dot_product_attention(x, x, x, seen))
    x = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    expected = module(x)
    value, pulled = gs.from_torch(module, x).vjp()(x.detach(), torch.ones_like(x))
    np.testing.assert_allclose(value, expected.detach(), rtol=1e-13)
    np.testing.assert_allclose(pulled, *torch.autograd.grad(expected.sum(), x), rtol=1e-13)
    assert not value[1].any()
