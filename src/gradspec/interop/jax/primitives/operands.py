"""What rules ask of their operands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gradspec.graph.ir import Array, Var
from gradspec.graph.types import DType, boolean, u8
from gradspec.interop.jax.types import gradspec_dtype
from gradspec.ops.convert import convert
from gradspec.ops.layout import transpose
from gradspec.spec.errors import UnsupportedError


def constant(x: Var) -> Array | None:
    """The numbers of a variable that no input changes."""
    array: Array | None = x.owner.value(x)
    return array


def uniform(x: Var) -> Any:
    """The number that is in every cell of a constant; None if they differ, or inputs change them."""
    array = constant(x)
    if array is None or not array.size:
        return None
    if any(n > 1 and step for n, step in zip(array.shape, array.strides, strict=True)):
        return None
    return array.flat[0].item() if array.dtype.kind in "iubf" else float(array.flat[0])


def to_dtype(x: Var, dtype: Any) -> Var:
    """``x`` converted to a dtype of JAX or gradspec; None keeps its own."""
    wanted = dtype if isinstance(dtype, DType | None) else gradspec_dtype(dtype)
    return x if wanted in (None, x.dtype) else convert(x, wanted)


def ordered(x: Var) -> Var:
    """Numbers that have an order: of booleans, false comes first."""
    return convert(x, u8) if x.dtype is boolean else x


def require_truths(*values: Var) -> None:
    if any(v.dtype is not boolean for v in values):
        raise UnsupportedError("it is known for booleans, and not for the bits of integers")


def inverse(order: Sequence[int]) -> list[int]:
    """The order of axes that undoes another."""
    return [order.index(a) for a in range(len(order))]


def with_axes_last(x: Var, axes: Sequence[int], function: Callable[[Var], Any]) -> Any:
    """What a function of the last axes makes of others, with the axes where they were."""
    order = [*(a for a in range(x.ndim) if a not in axes), *axes]
    return transpose(function(transpose(x, order)), inverse(order))
