"""Calls for which PyTorch's documentation promises an error."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import Any

from gradspec.conformance.model.problem import Shape
from gradspec.conformance.model.target import Promise
from gradspec.conformance.targets.program import applied, promised

ERRORS = (RuntimeError, ValueError, TypeError)
DOCUMENTATION = "https://docs.pytorch.org/docs/stable/generated/torch.nn."
_HALF = "padding is at least 0 and at most half of the kernel"
_APART = "dilation is greater than 0"
_DIVISIBLE = "input and output channels are divisible by groups"
_SAME = 'padding="same" is not for strides other than 1'
_AS_MANY = "there are as many columns as windows on the output"
_ROW, _PLANE, _SPACE = (1, 4, 4), (1, 4, 4, 4), (1, 4, 4, 4, 4)

MISTAKES: tuple[tuple[str, str, tuple[Shape, ...], dict[str, Any], str, str], ...] = (
    ("max_pool", "max_pool1d", (_ROW,), {"kernel_size": 2, "padding": 2}, "functional.max_pool1d", _HALF),
    ("max_pool", "max_pool2d", (_PLANE,), {"kernel_size": 2, "padding": 2}, "functional.max_pool2d", _HALF),
    ("max_pool", "max_pool2d", (_PLANE,), {"kernel_size": 2, "padding": -1}, "functional.max_pool2d", _HALF),
    ("max_pool", "max_pool3d", (_SPACE,), {"kernel_size": 2, "padding": 2}, "functional.max_pool3d", _HALF),
    ("max_pool", "max_pool2d", (_PLANE,), {"kernel_size": 2, "dilation": 0}, "functional.max_pool2d", _APART),
    ("avg_pool", "avg_pool2d", (_PLANE,), {"kernel_size": 3, "padding": 2}, "functional.avg_pool2d", _HALF),
    ("conv", "conv2d", (_PLANE, (3, 2, 2, 2)), {"groups": 2}, "Conv2d", _DIVISIBLE),
    ("conv", "conv3d", (_SPACE, (3, 1, 2, 2, 2)), {"groups": 3}, "Conv3d", _DIVISIBLE),
    ("conv", "conv2d", (_PLANE, (2, 4, 2, 2)), {"padding": "same", "stride": 2}, "functional.conv2d", _SAME),
    ("conv_transpose", "conv_transpose2d", (_PLANE, (4, 1, 2, 2)), {"groups": 3}, "ConvTranspose2d", _DIVISIBLE),
    ("fold", "fold", ((1, 8, 8),), {"output_size": (4, 4), "kernel_size": 2}, "Fold", _AS_MANY),
)
"""Our operator, the function, tensors of ones of these shapes, settings, and what which page says of them."""


def promises() -> list[Promise]:
    """Every one of them.

    >>> print(promises()[1].source)
    import torch
    <BLANKLINE>
    print(torch.nn.functional.max_pool2d(torch.ones((1, 4, 4, 4)), kernel_size=2, padding=2))
    <BLANKLINE>
    """
    return [_promise(*mistake) for mistake in MISTAKES]


def _promise(op: str, name: str, shapes: tuple[Shape, ...], settings: dict[str, Any], page: str, words: str) -> Promise:
    ones = (applied("torch.ones", shape) for shape in shapes)
    call, said = applied(f"torch.nn.functional.{name}", *ones, **settings), f"{words} ({DOCUMENTATION}{page}.html)"
    made = promised(op, call, lambda: {"torch": import_module("torch")}, "import torch", said, *ERRORS)
    return replace(made, source=made.source + "\n")
