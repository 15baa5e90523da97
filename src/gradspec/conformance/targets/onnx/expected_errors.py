"""Models that the ONNX standard rules out: what loads and runs models has to turn them down."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gradspec.conformance.model.problem import DTYPES, INPUTS, Call, Problem, Shape
from gradspec.conformance.model.target import Promise
from gradspec.conformance.targets.onnx.layers import JudgedNode

_NOT_NEGATIVE = "pads are greater than or equal to 0"
_CHANNELS = "X has W.shape[1] * group channels"
_LESS = "output_padding is less than the stride or the dilation"

MISTAKES: tuple[tuple[str, str, str, tuple[Shape, ...], dict[str, Any]], ...] = (
    (_CHANNELS, "conv", "Conv", ((1, 3, 5), (2, 2, 3)), {}),
    (_CHANNELS, "conv", "Conv", ((1, 4, 5), (2, 4, 3)), {"group": 2}),
    ("W.shape[0] is a multiple of group", "conv", "Conv", ((1, 4, 5), (3, 2, 3)), {"group": 2}),
    ("B has size M", "conv", "Conv", ((1, 2, 5), (3, 2, 3), (2,)), {}),
    (_NOT_NEGATIVE, "conv", "Conv", ((1, 2, 9), (3, 2, 3)), {"pads": [-1, 0]}),
    ("X has W.shape[0] channels", "conv_transpose", "ConvTranspose", ((1, 3, 5), (2, 2, 3)), {}),
    (_LESS, "conv_transpose", "ConvTranspose", ((1, 2, 5), (2, 2, 3)), {"output_padding": [3]}),
    ("kernel_shape is required", "max_pool", "MaxPool", ((1, 3, 5),), {}),
    ("kernel_shape has one size per axis", "max_pool", "MaxPool", ((1, 3, 5),), {"kernel_shape": [2, 2]}),
    (_NOT_NEGATIVE, "max_pool", "MaxPool", ((1, 3, 5),), {"kernel_shape": [2], "pads": [-1, 0]}),
    ("X is a tensor of floats", "avg_pool", "AveragePool", ((1, 3, 5),), {"kernel_shape": [2]}),
)
"""What the standard says, our operator and its node, the shapes of its inputs, and its attributes."""

RunNode = Callable[[Call, JudgedNode], object]
"""A node on the inputs of a call."""


def promises(run: RunNode, written: Callable[[Call, JudgedNode], str]) -> list[Promise]:
    """The mistakes as promises of a target that runs a node, and writes that as a program."""
    return [_promise(run, written, *mistake) for mistake in MISTAKES]


def _promise(
    run: RunNode,
    written: Callable[[Call, JudgedNode], str],
    documented: str,
    op: str,
    kind: str,
    shapes: tuple[Shape, ...],
    attributes: dict[str, Any],
) -> Promise:
    missing, dtype = (None,) * (len(INPUTS[op]) - len(shapes)), "i8" if "floats" in documented else "f32"
    problem = Problem(op, len(shapes[0]) - 2, (*shapes, *missing), {}, dtype)
    call = Call(problem, "value", (*(np.zeros(shape, DTYPES[dtype]) for shape in shapes), *missing))
    node, said = JudgedNode(kind, ("y",), attributes), f"{kind} in the standard: {documented}"
    return Promise(op, lambda: run(call, node), (Exception,), written(call, node), said)
