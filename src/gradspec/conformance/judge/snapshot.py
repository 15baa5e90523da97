"""The arrays of a call as they were before it, and arrays compared bit by bit."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gradspec.conformance.model.problem import Array, Call


class Snapshot:
    """The numbers of a call, to be put back where a target has written into them."""

    def __init__(self, call: Call) -> None:
        self.call, self.before = call, {name: array.copy() for name, array in call.arrays().items()}

    def restored(self) -> list[str]:
        """The arrays, in words, that were no longer what they had been, and now are again."""
        arrays = self.call.arrays()
        changed = [name for name, array in arrays.items() if not same_bits(array, self.before[name])]
        for name in changed:
            arrays[name][...] = self.before[name]
        return [argument_label(name, self.call) for name in changed]


def argument_label(name: str, call: Call) -> str:
    """The name of one of a call's arrays as people know it: an input's own, ``direction of x``, ``cotangent``."""
    if name in call.named():
        return name
    return "cotangent" if name == "g" else f"direction of {name[1:]}"


def same_bits(a: Array, b: Array) -> bool:
    """Equal shapes, dtypes and bits; any NaN is like any other, for no rule says what is in one."""
    return a.shape == b.shape and a.dtype == b.dtype and not differing(a, b).any()


def differing(a: Array, b: Array) -> NDArray[np.bool_]:
    """Where two arrays of one shape and dtype have other bits.

    >>> differing(np.float32([0.0, np.nan, 1.0]), np.float32([-0.0, -np.nan, 1.0])).tolist()
    [True, False, False]
    """
    if a.dtype.hasobject or a.itemsize > 8:  # no number of ours
        return np.asarray(a != b, np.bool_)
    bits = np.dtype(f"u{a.itemsize}")
    other = np.ascontiguousarray(a).view(bits) != np.ascontiguousarray(b).view(bits)
    same_nan = np.False_ if a.dtype.kind in "iu" else np.isnan(a) & np.isnan(b)
    return np.asarray(other.reshape(a.shape) & ~same_nan, np.bool_)
