"""Float arrays as the oracle takes them apart."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradspec.conformance.oracle.meaning import FORMAT_NAMES, Floats
from gradspec.conformance.oracle.sums import LeafChunk, Mixes, SumMeaning
from gradspec.spec.errors import DTypeError


def float_array(data: Any) -> NDArray[Any]:
    array = np.asarray(data)
    if array.dtype.name not in FORMAT_NAMES:
        raise DTypeError(f"an array of {array.dtype} is not judged here; use one of {', '.join(FORMAT_NAMES)}")
    return array


def comparable_array(data: Any) -> NDArray[Any]:
    """Floats, or integers, which have an order and nothing to round."""
    array = np.asarray(data)
    return array if array.dtype.kind in "iu" else float_array(array)


def planes_of(array: NDArray[Any], rank: int) -> NDArray[Any]:
    """``[plane, position]``: in float64, or in int64, where float64 would merge large integers."""
    wide = array.astype(np.int64 if array.dtype.kind in "iu" else np.float64)
    return wide.reshape(prod(lead_of(array, rank)), prod(array.shape[array.ndim - rank :]))


def lowest(dtype: np.dtype[Any]) -> float | int:
    """What no number is less than."""
    return -np.inf if dtype.kind == "f" else int(np.iinfo(dtype).min)


def has_exact_products(*arrays: NDArray[Any]) -> bool:
    """Whether products of these arrays' numbers are exact in float64."""
    return all(array.dtype != np.float64 for array in arrays)


def lead_of(array: NDArray[Any], rank: int) -> tuple[int, ...]:
    return array.shape[: array.ndim - rank]


def leaf_sums(
    shape: tuple[int, ...],
    leaves: Floats,
    divisors: Floats | None,
    of: NDArray[Any],
    mixed: Mixes = lambda arithmetic: None,
) -> SumMeaning:
    """Sums of numbers of an array, each divided if there are divisors."""
    flat = leaves.reshape(int(np.prod(shape)), leaves.shape[-1])
    over = None if divisors is None else np.broadcast_to(divisors, leaves.shape).reshape(flat.shape)
    return SumMeaning(shape, lambda: [LeafChunk(flat, over, has_exact_products(of))], mixed)
