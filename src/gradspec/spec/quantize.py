"""Quantisation: real numbers as small integers on an evenly spaced grid, and back.

An integer ``q`` stands for the number ``(q − zero_point)·scale``. A number becomes the integer that stands for the
nearest one, which is ``x / scale`` rounded, of two the even one, plus the zero point; what lies beyond the integers of
the dtype becomes the last of them, and NaN becomes the zero point, which stands for 0.

Several cells may share a scale and a zero point: a size of theirs is 1 or divides that of ``x``, and each of their
cells is for a block of as many neighbours as go into it. So a scale of shape ``(1, C, 1, 1)`` has one number for each
channel, and one of shape ``()`` a single number.

Where numbers are rounded, the quotient is rounded once before it is rounded to an integer.
"""

from __future__ import annotations

from gradspec.spec.convert import RANGES
from gradspec.spec.errors import AmbiguityError, DTypeError, ShapeError, UnsupportedError
from gradspec.spec.scalar import Scalar, ends, is_infinite, nearest_integer, varies
from gradspec.spec.tensor import Index, Tensor, TensorLike, indices, tensor

QUANTIZED = ("i8", "u8", "i16", "u16")
"""What numbers are quantised to."""

NO_DERIVATIVE = (
    "quantize is a staircase, and has no derivative that says anything: differentiate the network that it was made "
    "from, or hold its operands constant, by gs.detach"
)


def quantize(x: TensorLike, scale: TensorLike, zero_point: TensorLike = 0, dtype: str = "u8") -> Tensor:
    """``x / scale``, rounded to the nearest integer, plus the zero point, within the integers of ``dtype``.

    >>> quantize([-1.0, 0.5, 1.5, 2.5, 200.0], 1.0, 10).tolist()
    [9, 10, 12, 12, 210]
    >>> quantize([[-9.0, 8.0], [60.0, 90.0]], [[0.5], [0.25]], dtype="i8").tolist()
    [[-18, 16], [127, 127]]
    """
    if dtype not in QUANTIZED:
        raise DTypeError(f"numbers are quantised to {', '.join(QUANTIZED)}, not to {dtype!r}")
    given: Tensor = tensor(x)
    scales, zeros = (_spread("quantize", tensor(t), given.shape) for t in (scale, zero_point))
    ratios = (v / s for v, s in zip(given.cells, scales, strict=True))
    return Tensor(given.shape, (_level(r, int(z), *RANGES[dtype]) for r, z in zip(ratios, zeros, strict=True)))


def dequantize(q: TensorLike, scale: TensorLike, zero_point: TensorLike = 0) -> Tensor:
    """The numbers that integers stand for: ``(q − zero_point) · scale``.

    >>> dequantize([9, 10, 12], 0.5, 10).tolist()
    [-0.5, 0.0, 1.0]
    """
    given: Tensor = tensor(q)
    scales, zeros = (_spread("dequantize", tensor(t), given.shape) for t in (scale, zero_point))
    steps = (int(v) - int(z) for v, z in zip(given.cells, zeros, strict=True))
    return Tensor(given.shape, (n * s for n, s in zip(steps, scales, strict=True))).stored()


def full_shape(name: str, shape: Index, over: Index) -> Index:
    """The shape of a scale or zero point for a tensor of shape ``over``: axes that it lacks in front have size 1."""
    full = (1,) * (len(over) - len(shape)) + shape
    if len(full) != len(over) or any(m != n and not (m and n % m == 0) for m, n in zip(full, over, strict=True)):
        raise ShapeError(
            f"{name}: a scale or zero point of shape {shape} does not fit a tensor of shape {over}; counted from the "
            "last axis, each of its sizes must be 1 or divide the tensor's"
        )
    return full


def _spread(name: str, t: Tensor, over: Index) -> list[Scalar]:
    """The cell of ``t`` for each cell of a tensor of shape ``over``."""
    full = t.reshape(*full_shape(name, t.shape, over))
    return [full[tuple(i * m // n for i, m, n in zip(index, full.shape, over, strict=True))] for index in indices(over)]


def _level(ratio: Scalar, zero: int, low: int, high: int) -> int:
    """Of an enclosure both ends must agree: rounding never decreases, and no integer encloses several."""
    if varies(ratio):
        raise UnsupportedError(NO_DERIVATIVE)
    first, last = (_rounded(end, zero, low, high) for end in ends(ratio))
    if first != last:
        raise AmbiguityError(f"{ratio} is quantised to {first} or to {last}; give narrower enclosures")
    return first


def _rounded(ratio: Scalar, zero: int, low: int, high: int) -> int:
    if ratio != ratio:
        return zero
    if is_infinite(ratio):
        return high if ratio > 0 else low
    return min(max(int(nearest_integer(ratio)) + zero, low), high)
