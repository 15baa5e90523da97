"""What kernels compute in."""

from __future__ import annotations

from gradspec.codegen.processor import processor
from gradspec.graph.types import DType, f32

COMPUTED = {"f16": 4, "bf16": 4, "f32": 4, "f64": 8, "i8": 4, "u8": 4, "i32": 4, "i64": 8}
"""Bytes of the numbers that each dtype is computed in; winners are as wide."""


def is_selected_as_stored(dtype: str) -> bool:
    """Whether the largest of some numbers is found without converting them: more of them fit a vector."""
    return dtype in ("i8", "u8") or has_short_winners(dtype)


def has_short_winners(dtype: str) -> bool:
    """The same with the winner, whose number has 16 bits, too. bfloat16 is compared as float16."""
    return processor().half_arithmetic and (dtype == "f16" or (dtype == "bf16" and processor().keeps_bfloat16))


MULTIPLIED = ("f16", "bf16", "f32", "f64", "i32", "i64")
"""The dtypes that sums of products are compiled for."""


def computed_float(dtype: DType) -> DType:
    """What floats of this dtype are computed in."""
    return f32 if dtype.numpy.itemsize == 2 else dtype
