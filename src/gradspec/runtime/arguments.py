"""What a compiled graph is given, checked against its types before any work is done."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np

from gradspec.graph.arrays import as_numpy, plain_floats, require_numpy
from gradspec.graph.ir import Array, Var
from gradspec.graph.types import number_as, type_of
from gradspec.spec.errors import DTypeError, ShapeError


def require_count(inputs: Sequence[Var], arrays: Sequence[Any]) -> None:
    if len(arrays) != len(inputs):
        wanted = ", ".join(map(repr, inputs))
        raise TypeError(f"the graph takes {len(inputs)} arrays ({wanted}), not {len(arrays)}")


def fitting(var: Var, value: Any) -> Array:
    """An input as an aligned array of the variable's type. Numbers are converted, arrays are not.

    An array of another library than NumPy raises OtherKindError.
    """
    if isinstance(value, int | float):
        array = number_as(value, var.dtype.numpy)
    else:
        floats = plain_floats(value, var.dtype.numpy) if var.type.is_float else None
        array = as_numpy(value) if floats is None else floats
    found = type_of(array)
    if found.shape != var.shape:
        raise ShapeError(f"input {var!r} was given an array of shape {found.shape}; pass one of shape {var.shape}")
    if found.dtype != var.dtype:
        raise DTypeError(
            f"input {var!r} was given {found.dtype} numbers; gs.convert(x, {var.dtype.public}) converts them"
        )
    return array if array.flags.aligned else array.copy()


def require_out(outputs: Sequence[Var], out: Any) -> tuple[Array | None, ...]:
    """The arrays that results are to be put into, one for each output; None where a fresh one is wanted."""
    given = out if isinstance(out, tuple) else (out,)
    if len(given) != len(outputs):
        wanted = ", ".join(map(repr, outputs))
        raise TypeError(
            f"out holds {len(given)} array{'s' * (len(given) != 1)}, and the graph returns {len(outputs)} ({wanted}); "
            "give a tuple with an array, or None for a fresh one, for each"
        )
    for var, array in zip(outputs, given, strict=True):
        if array is not None:
            _require_target(var, array)
    _require_apart(given)
    return given


def _require_target(var: Var, array: Any) -> None:
    if not isinstance(array, np.ndarray):
        require_numpy(array)
        raise TypeError(f"out for {var!r} is {type(array).__name__}; give a NumPy array, such as np.empty(…)")
    if array.shape != var.shape:
        raise ShapeError(f"out for {var!r} has shape {array.shape}; give an array of shape {var.shape}")
    if array.dtype != var.dtype.numpy:
        raise DTypeError(f"out for {var!r} holds {array.dtype} numbers; give an array of {var.dtype.numpy}")
    if not array.flags.writeable:
        raise ValueError(f"out for {var!r} is read-only; give an array that can be written to")


def _require_apart(given: Sequence[Array | None]) -> None:
    for (i, a), (j, b) in combinations(enumerate(given), 2):
        if a is not None and b is not None and np.shares_memory(a, b):
            raise ValueError(f"out[{i}] and out[{j}] share memory, so that one result would overwrite the other")
