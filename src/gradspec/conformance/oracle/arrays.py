"""Float arrays as the oracle takes them apart."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradspec.conformance.oracle.meaning import FORMAT_NAMES, Floats
from gradspec.conformance.oracle.sums import LeafChunk, Sums
from gradspec.spec.errors import DTypeError, ShapeError


def float_array(data: Any) -> NDArray[Any]:
    array = np.asarray(data)
    if array.dtype.name not in FORMAT_NAMES:
        raise DTypeError(f"an array of {array.dtype} is not judged here; use one of {', '.join(FORMAT_NAMES)}")
    return array


def has_exact_products(*arrays: NDArray[Any]) -> bool:
    """Whether products of these arrays' numbers are exact in float64."""
    return all(array.dtype != np.float64 for array in arrays)


def planes_of(array: NDArray[Any], rank: int) -> Floats:
    """``[plane, position]`` in float64."""
    lead = array.shape[: array.ndim - rank]
    return array.astype(np.float64).reshape(int(np.prod(lead)), int(np.prod(array.shape[len(lead) :])))


def lead_of(array: NDArray[Any], rank: int) -> tuple[int, ...]:
    return array.shape[: array.ndim - rank]


def require_shape(name: str, array: NDArray[Any], shape: tuple[int, ...]) -> None:
    if array.shape != shape:
        raise ShapeError(f"{name} has shape {array.shape}, but {shape} is needed here; pass a {name} of that shape")


def leaf_sums(shape: tuple[int, ...], leaves: Floats, divisors: Floats | None, narrow: bool) -> Sums:
    flat = leaves.reshape(int(np.prod(shape)), leaves.shape[-1])
    over = None if divisors is None else np.broadcast_to(divisors, leaves.shape).reshape(flat.shape)
    return Sums(shape, lambda: [LeafChunk(flat, over, narrow)])
