"""The errors that the specification names for single operators, each at least once."""

from __future__ import annotations

from typing import Any

from gradspec.conformance.model.problem import Shape
from gradspec.conformance.targets.program import Code, ErrorRow, applied
from gradspec.spec.errors import DTypeError, ShapeError


def _row(
    rule: str, op: str, *shapes: Shape, dtype: str = "float32", raises: type[Exception] = ShapeError, **attributes: Any
) -> ErrorRow:
    arrays = (applied("np.zeros", shape, Code(f"np.{dtype}")) for shape in shapes)
    return ErrorRow(op, rule, applied(f"gs.{op}", *arrays, **attributes), (raises,))


PLANE, WEIGHT, IMAGE = (1, 2, 4, 5), (2, 2, 3, 3), (1, 2, 5, 5)
LEAST_ONE, WHOLE = "kernel, stride and dilation are at least 1", "a bool is not an int"
NOT_NEGATIVE, HAS_CELL = "padding is not negative", "a spatial axis has a cell"
FITS, AS_MANY_AXES = "a window fits the padded axis", "there are as many axes as the window has"
MATCH, DIVIDE = "channels match", "groups divide the channels"
BIAS, OUTPUT_SIZE = "bias has one number per output channel", "an output size is at least 1"
OUTPUT_PADDING = "output padding is less than the stride or the dilation"
NO_AVERAGE = "integers have no average"

ROWS = (
    _row(LEAST_ONE, "max_pool", PLANE, kernel_size=(2, 0)),
    _row(LEAST_ONE, "avg_pool", PLANE, kernel_size=(2, 2), stride=(0, 1)),
    _row(LEAST_ONE, "smooth_max_pool", PLANE, kernel_size=(2, 2), stride=(1, -1), beta=1.0),
    _row(LEAST_ONE, "max_pool", PLANE, kernel_size=(2, 2), dilation=(1, 0)),
    _row(LEAST_ONE, "conv", IMAGE, WEIGHT, stride=(0, 1)),
    _row(LEAST_ONE, "conv", IMAGE, WEIGHT, dilation=(-1, 1)),
    _row(LEAST_ONE, "conv", IMAGE, (2, 2, 0, 3)),
    _row(LEAST_ONE, "conv_transpose", IMAGE, WEIGHT, stride=(1, 0)),
    _row(LEAST_ONE, "unfold", IMAGE, kernel_size=(0, 2)),
    _row(NOT_NEGATIVE, "max_pool", PLANE, kernel_size=(2, 2), padding=((-1, 0), (0, 0))),
    _row(NOT_NEGATIVE, "avg_pool", PLANE, kernel_size=(2, 2), padding=((0, 0), (0, -1))),
    _row(NOT_NEGATIVE, "conv", IMAGE, WEIGHT, padding=((0, -1), (0, 0))),
    _row(NOT_NEGATIVE, "conv_transpose", IMAGE, WEIGHT, padding=((0, -1), (0, 0))),
    _row(WHOLE, "max_pool", PLANE, kernel_size=(True, 2)),
    _row(WHOLE, "conv", IMAGE, WEIGHT, stride=(True, 1)),
    _row(WHOLE, "adaptive_avg_pool", PLANE, output_size=(True, 2)),
    _row(HAS_CELL, "max_pool", (1, 2, 0, 5), kernel_size=(1, 1)),
    _row(HAS_CELL, "conv", (1, 2, 5, 0), WEIGHT, padding=((2, 2), (2, 2))),
    _row(HAS_CELL, "global_avg_pool", (1, 2, 0, 5)),
    _row(FITS, "max_pool", PLANE, kernel_size=(5, 2)),
    _row(FITS, "avg_pool", PLANE, kernel_size=(2, 3), dilation=(1, 3)),
    _row(FITS, "conv", (1, 2, 2, 5), WEIGHT),
    _row(FITS, "unfold", IMAGE, kernel_size=(6, 1)),
    _row(AS_MANY_AXES, "max_pool", (5,), kernel_size=(2, 2)),
    _row(AS_MANY_AXES, "conv", (5, 5), WEIGHT),
    _row(MATCH, "conv", (1, 3, 5, 5), WEIGHT),
    _row(MATCH, "conv_transpose", (1, 3, 5, 5), WEIGHT),
    _row(DIVIDE, "conv", (1, 4, 5, 5), (3, 2, 3, 3), groups=2),
    _row(DIVIDE, "conv_transpose", (1, 3, 5, 5), (3, 2, 3, 3), groups=2),
    _row(BIAS, "conv", IMAGE, WEIGHT, (3,)),
    _row(BIAS, "conv_transpose", IMAGE, WEIGHT, (3,)),
    _row(OUTPUT_SIZE, "adaptive_max_pool", PLANE, output_size=(2, 0)),
    _row(OUTPUT_SIZE, "adaptive_avg_pool", PLANE, output_size=(-1, 2)),
    _row("a divisor is not 0", "avg_pool", PLANE, kernel_size=(2, 2), divisor_override=0),
    _row("an output has a cell", "conv_transpose", (1, 2, 1, 1), WEIGHT, padding=((2, 2), (1, 1))),
    _row(OUTPUT_PADDING, "conv_transpose", IMAGE, WEIGHT, stride=(2, 2), output_padding=(2, 0)),
    _row("columns fold onto the output", "fold", (1, 8, 5), output_size=(4, 4), kernel_size=(2, 2)),
    _row("beta is not 0", "smooth_max_pool", PLANE, kernel_size=(2, 2), beta=0.0, raises=ValueError),
    _row(NO_AVERAGE, "avg_pool", PLANE, kernel_size=(2, 2), dtype="int32", raises=DTypeError),
    _row(NO_AVERAGE, "global_avg_pool", PLANE, dtype="int64", raises=DTypeError),
)
IMPORTS = "import gradspec as gs\nimport numpy as np"
