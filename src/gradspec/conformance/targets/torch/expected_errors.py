"""Calls for which PyTorch's documentation states an error."""

from __future__ import annotations

from typing import Any

from gradspec.conformance.model.problem import Shape
from gradspec.conformance.targets.program import ErrorRow, applied

ERRORS = (RuntimeError, ValueError, TypeError)
DOCUMENTATION = "https://docs.pytorch.org/docs/stable/generated/torch.nn."
_HALF = "padding is at least 0 and at most half of the kernel"
_APART = "dilation is greater than 0"
_DIVISIBLE = "input and output channels are divisible by groups"
_SAME = 'padding="same" is not for strides other than 1'
_AS_MANY = "there are as many columns as windows on the output"
_LINE, _PLANE, _SPACE = (1, 4, 4), (1, 4, 4, 4), (1, 4, 4, 4, 4)


def _row(op: str, name: str, page: str, rule: str, *shapes: Shape, **settings: Any) -> ErrorRow:
    """A call of a function on tensors of ones, and what which page says of it."""
    call = applied(f"torch.nn.functional.{name}", *(applied("torch.ones", shape) for shape in shapes), **settings)
    return ErrorRow(op, f"{rule} ({DOCUMENTATION}{page}.html)", call, ERRORS)


ROWS = (
    _row("max_pool", "max_pool1d", "functional.max_pool1d", _HALF, _LINE, kernel_size=2, padding=2),
    _row("max_pool", "max_pool2d", "functional.max_pool2d", _HALF, _PLANE, kernel_size=2, padding=2),
    _row("max_pool", "max_pool2d", "functional.max_pool2d", _HALF, _PLANE, kernel_size=2, padding=-1),
    _row("max_pool", "max_pool3d", "functional.max_pool3d", _HALF, _SPACE, kernel_size=2, padding=2),
    _row("max_pool", "max_pool2d", "functional.max_pool2d", _APART, _PLANE, kernel_size=2, dilation=0),
    _row("avg_pool", "avg_pool2d", "functional.avg_pool2d", _HALF, _PLANE, kernel_size=3, padding=2),
    _row("conv", "conv2d", "Conv2d", _DIVISIBLE, _PLANE, (3, 2, 2, 2), groups=2),
    _row("conv", "conv3d", "Conv3d", _DIVISIBLE, _SPACE, (3, 1, 2, 2, 2), groups=3),
    _row("conv", "conv2d", "functional.conv2d", _SAME, _PLANE, (2, 4, 2, 2), padding="same", stride=2),
    _row("conv_transpose", "conv_transpose2d", "ConvTranspose2d", _DIVISIBLE, _PLANE, (4, 1, 2, 2), groups=3),
    _row("fold", "fold", "Fold", _AS_MANY, (1, 8, 8), output_size=(4, 4), kernel_size=2),
)
