"""Values that attributes may have by ONNX's text, beyond their kinds, which its records of operators state."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import isfinite
from typing import Any

from onnx import TensorProto

from gradspec.saving.strict_json import brief
from gradspec.spec.errors import FormatError

Limit = tuple[Callable[[Any], bool], str]

ELEMENTS = frozenset(TensorProto.DataType.values()) - {TensorProto.UNDEFINED}

FLAG: Limit = (lambda value: value in (0, 1), "0 or 1 is needed")
POSITIVE: Limit = (lambda value: value >= 1, "numbers of 1 or more are needed")
NOT_NEGATIVE: Limit = (lambda value: value >= 0, "numbers of 0 or more are needed")
FINITE: Limit = (isfinite, "a finite number is needed")
KIND: Limit = (lambda value: value in ELEMENTS, "the number of an element type is needed")


def _each(limit: Limit, names: str) -> dict[str, Limit]:
    return dict.fromkeys(names.split(), limit)


LIMITS: dict[str, Limit] = {
    **_each(
        FLAG,
        "align_corners allowzero antialias broadcast ceil_mode count_include_pad detect_negative detect_positive "
        "exclude_outside exclusive fmod keepdims largest noop_with_empty_axes reverse select_last_index sorted spatial "
        "storage_order training_mode transA transB",
    ),
    **_each(POSITIVE, "blocksize dilations group kernel_shape num_groups num_outputs p size strides"),
    **_each(NOT_NEGATIVE, "output_padding output_shape pads split"),
    **_each(FINITE, "alpha beta bias epsilon gamma lambd momentum ratio"),
    "to": KIND,
}
"""What a number of an attribute must be, or each of them if there are several."""

EXCEPT = {("Pad", "pads")}
"""Where an attribute of that name means something else: to pad by less than 0 is to cut off."""


def require_allowed(op_type: str, name: str, content: Any) -> None:
    """Refuse a value that no operator of ONNX gives a meaning to."""
    if name not in LIMITS or (op_type, name) in EXCEPT:
        return
    allowed, needed = LIMITS[name]
    values: Iterable[Any] = content if isinstance(content, list) else (content,)
    if not all(allowed(value) for value in values if isinstance(value, int | float)):  # Cast-1 has words
        raise FormatError(f"its {name} is {brief(content)}; {needed}")
