"""Models that the ONNX standard rules out: what loads and runs models has to reject them."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradspec.conformance.model.problem import DTYPES, INPUTS, Call, Problem, Shape
from gradspec.conformance.targets.onnx.layers import JudgedNode

_NOT_NEGATIVE = "pads are greater than or equal to 0"
_CHANNELS = "X has W.shape[1] * group channels"
_LESS = "output_padding is less than the stride or the dilation"
_OPERATORS = {
    "Conv": "conv",
    "ConvTranspose": "conv_transpose",
    "MaxPool": "max_pool",
    "AveragePool": "avg_pool",
}


def _row(rule: str, kind: str, *shapes: Shape, dtype: str = "f32", **attributes: Any) -> tuple[str, Call, JudgedNode]:
    """What the standard says, and a node on zeros of these shapes."""
    op = _OPERATORS[kind]
    missing = (None,) * (len(INPUTS[op]) - len(shapes))
    problem = Problem(op, len(shapes[0]) - 2, (*shapes, *missing), {}, dtype)
    call = Call(problem, "value", (*(np.zeros(shape, DTYPES[dtype]) for shape in shapes), *missing))
    return f"{kind} in the standard: {rule}", call, JudgedNode(kind, ("y",), attributes)


ROWS = (
    _row(_CHANNELS, "Conv", (1, 3, 5), (2, 2, 3)),
    _row(_CHANNELS, "Conv", (1, 4, 5), (2, 4, 3), group=2),
    _row("W.shape[0] is a multiple of group", "Conv", (1, 4, 5), (3, 2, 3), group=2),
    _row("B has size M", "Conv", (1, 2, 5), (3, 2, 3), (2,)),
    _row(_NOT_NEGATIVE, "Conv", (1, 2, 9), (3, 2, 3), pads=[-1, 0]),
    _row("X has W.shape[0] channels", "ConvTranspose", (1, 3, 5), (2, 2, 3)),
    _row(_LESS, "ConvTranspose", (1, 2, 5), (2, 2, 3), output_padding=[3]),
    _row("kernel_shape is required", "MaxPool", (1, 3, 5)),
    _row("kernel_shape has one size per axis", "MaxPool", (1, 3, 5), kernel_shape=[2, 2]),
    _row(_NOT_NEGATIVE, "MaxPool", (1, 3, 5), kernel_shape=[2], pads=[-1, 0]),
    _row("X is a tensor of floats", "AveragePool", (1, 3, 5), dtype="i8", kernel_shape=[2]),
)
