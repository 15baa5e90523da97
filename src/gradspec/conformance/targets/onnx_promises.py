"""Models that the ONNX standard rules out: what loads and runs models has to turn them down."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gradspec.conformance.call import DTYPES, INPUTS, Call, Problem, Shape
from gradspec.conformance.targets import Promise
from gradspec.conformance.targets.onnx_model import Node

MISTAKES: tuple[tuple[str, str, str, tuple[Shape, ...], dict[str, Any], str], ...] = (
    ("X has W.shape[1] * group channels", "conv", "Conv", ((1, 3, 5), (2, 2, 3)), {}, "f32"),
    ("X has W.shape[1] * group channels", "conv", "Conv", ((1, 4, 5), (2, 4, 3)), {"group": 2}, "f32"),
    ("W.shape[0] is a multiple of group", "conv", "Conv", ((1, 4, 5), (3, 2, 3)), {"group": 2}, "f32"),
    ("B has size M", "conv", "Conv", ((1, 2, 5), (3, 2, 3), (2,)), {}, "f32"),
    ("pads are greater than or equal to 0", "conv", "Conv", ((1, 2, 9), (3, 2, 3)), {"pads": [-1, 0]}, "f32"),
    ("X has W.shape[0] channels", "conv_transpose", "ConvTranspose", ((1, 3, 5), (2, 2, 3)), {}, "f32"),
    (
        "output_padding is less than the stride or the dilation",
        "conv_transpose",
        "ConvTranspose",
        ((1, 2, 5), (2, 2, 3)),
        {"output_padding": [3]},
        "f32",
    ),
    ("kernel_shape is required", "max_pool", "MaxPool", ((1, 3, 5),), {}, "f32"),
    ("kernel_shape has one size per axis", "max_pool", "MaxPool", ((1, 3, 5),), {"kernel_shape": [2, 2]}, "f32"),
    (
        "pads are greater than or equal to 0",
        "max_pool",
        "MaxPool",
        ((1, 3, 5),),
        {"kernel_shape": [2], "pads": [-1, 0]},
        "f32",
    ),
    ("X is a tensor of floats", "avg_pool", "AveragePool", ((1, 3, 5),), {"kernel_shape": [2]}, "i8"),
)
"""What the standard says, our operator and its node, the shapes of its inputs, its attributes, and their dtype."""


def promises(run: Callable[[Call, Node], object], written: Callable[[Call, Node], str]) -> list[Promise]:
    """The mistakes as promises of a target that runs a node on the inputs of a call, and writes that as a program."""
    return [_promise(run, written, *mistake) for mistake in MISTAKES]


def _promise(
    run: Callable[[Call, Node], object],
    written: Callable[[Call, Node], str],
    documented: str,
    op: str,
    kind: str,
    shapes: tuple[Shape, ...],
    attributes: dict[str, Any],
    dtype: str,
) -> Promise:
    missing = (None,) * (len(INPUTS[op]) - len(shapes))
    problem = Problem(op, len(shapes[0]) - 2, (*shapes, *missing), {}, dtype)
    call = Call(problem, "value", (*(np.zeros(shape, DTYPES[dtype]) for shape in shapes), *missing))
    node = Node(kind, ("y",), attributes)
    return Promise(
        op, lambda: run(call, node), (Exception,), written(call, node), f"{kind} in the standard: {documented}"
    )
