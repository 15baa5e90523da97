"""Numbers of one kind as numbers of another.

Between floating-point formats nothing changes: a number system has one format for all floats, and where kernels round,
it does what it does everywhere. An integer stays the number it is as a float. A float becomes an integer by dropping
its fraction; one that is too large becomes the largest integer there is, or the least, and NaN becomes 0. Integers wrap
around. What is not zero is true, NaN too.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, nan
from numbers import Integral

from gradspec.spec.errors import AmbiguityError, DTypeError, ShapeError, UnsupportedError
from gradspec.spec.pointwise import cellwise
from gradspec.spec.scalar import (
    Scalar,
    embed,
    ends,
    exceeds,
    increasing,
    is_infinite,
    larger,
    nearest_integer,
    pass_tangent,
    varies,
)
from gradspec.spec.tensor import Index, Tensor, TensorLike, indices, tensor

FLOATS = ("f16", "bf16", "f32", "f64", "f8_e4m3", "f8_e5m2")

RANGES = {
    f"{kind}{bits}": (0, 2**bits - 1) if kind == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    for kind in "iu"
    for bits in (8, 16, 32, 64)
}
"""The least and the largest integer of each dtype."""


def convert(x: TensorLike, dtype: str) -> Tensor:
    """``x`` as numbers of another dtype, by its name.

    >>> convert([2.75, -2.75, 300.0], "u8").tolist(), convert([300, -1], "u8").tolist()
    ([2, 0, 255], [44, 255])
    >>> convert([0.5, 0.0, float("nan")], "bool").tolist()
    [True, False, True]
    """
    given: Tensor = tensor(x)
    if dtype in FLOATS:
        return given.map(lambda v: int(v) if isinstance(v, Integral) else v)
    if dtype == "bool":
        return given.map(_is_true)
    if dtype not in RANGES:
        raise DTypeError(f"the dtype {dtype!r} is not known; give one of {', '.join((*FLOATS, *RANGES, 'bool'))}")
    low, high = RANGES[dtype]
    return given.map(lambda v: _wrapped(int(v), low, high) if isinstance(v, Integral) else _whole(v, low, high))


def _wrapped(n: int, low: int, high: int) -> int:
    return (n - low) % (high - low + 1) + low


def _whole(x: Scalar, low: int, high: int) -> int:
    """``x`` without its fraction. Of an enclosure both ends must agree: no integer encloses several."""
    first, last = (_cut(end, low, high) for end in ends(x))
    if first != last:
        raise AmbiguityError(f"{x} may be {first} or {last} as an integer; give narrower enclosures")
    return first


def _cut(x: Scalar, low: int, high: int) -> int:
    if x != x:
        return 0
    if is_infinite(x):
        return high if x > 0 else low
    return min(max(int(x), low), high)


def _is_true(x: Scalar) -> bool:
    first, last = ends(x)
    if first == last or first != first:  # one number, or NaN; an enclosure that is not known to equal itself is neither
        return bool(first != 0)
    if first > 0 or last < 0:
        return True
    raise AmbiguityError(f"{x} may be zero or not; give narrower enclosures")


# --- floats of eight or four bits -------------------------------------------------------------------------------------
#
# Numbers are rounded to the nearest, ties to even. What rounds to more than the largest number is that number if the
# conversion saturates, infinities too, and else infinite, or NaN in a format without infinities. PyTorch saturates
# ``f8_e4m3`` alone, JAX neither, and ONNX by default both. A derivative passes as if nothing were rounded.


@dataclass(frozen=True)
class MiniFormat:
    """A small format: significand bits, the exponents of its normal numbers, and its largest number."""

    precision: int
    emin: int
    emax: int
    largest: float
    overflow: float
    """What larger numbers become unless they saturate."""
    saturates: bool
    """Whether they do so in PyTorch."""

    def quantum(self, exponent: int) -> float:
        """The distance of its numbers from ``2^exponent`` on; below its normal numbers it stays the same."""
        return 2.0 ** (max(exponent, self.emin) - self.precision + 1)

    def beyond(self, saturate: bool | None) -> float:
        """What larger numbers become."""
        return self.largest if (self.saturates if saturate is None else saturate) else self.overflow


FORMATS = {
    "f8_e4m3": MiniFormat(4, -6, 8, 448.0, nan, True),
    "f8_e5m2": MiniFormat(3, -14, 15, 57344.0, inf, False),
    "f4_e2m1": MiniFormat(2, 0, 2, 6.0, 6.0, True),
}
"""By name; ``f8_e4m3`` is the one without infinities, which others call ``e4m3fn``."""


def format_of(name: str) -> MiniFormat:
    if name not in FORMATS:
        raise DTypeError(f"the format {name!r} is not known; give one of {', '.join(FORMATS)}")
    return FORMATS[name]


def round_to(x: TensorLike, format: str, saturate: bool | None = None) -> Tensor:
    """The number of a small format that is nearest to ``x``; None saturates as PyTorch does.

    >>> round_to([0.3, 17.0, -19.0, 500.0], "f8_e4m3").tolist(), round_to([465.0], "f8_e4m3", False).tolist()
    ([0.3125, 16.0, -20.0, 448.0], [nan])
    """
    chosen = format_of(format)
    beyond = chosen.beyond(saturate)

    def nearest(v: Scalar) -> Scalar:
        if v != v:
            return v
        size = larger(v, -v)
        exponents = range(chosen.emax, chosen.emin, -1)
        exponent = next((e for e in exponents if not exceeds(embed(v, 2.0**e), size)), chosen.emin)
        quantum = chosen.quantum(exponent)
        y = v if is_infinite(v) else nearest_integer(v * embed(v, 1 / quantum)) * embed(v, quantum)
        if not exceeds(larger(y, -y), embed(v, chosen.largest)):
            return y
        return embed(v, beyond if v > 0 else -beyond)

    return cellwise("round_to", lambda v: pass_tangent(v, lambda w: increasing(w, nearest)), x)


# --- quantisation -----------------------------------------------------------------------------------------------------
#
# An integer ``q`` stands for the number ``(q − zero_point)·scale``. A number becomes the integer that stands for the
# nearest one, which is ``x / scale`` rounded, of two the even one, plus the zero point; what lies beyond the integers
# of the dtype becomes the last of them, and NaN becomes the zero point, which stands for 0.
#
# Several cells may share a scale and a zero point: a size of theirs is 1 or divides that of ``x``, and each of their
# cells is for a block of as many neighbours as go into it. So a scale of shape ``(1, C, 1, 1)`` has one number for each
# channel, and one of shape ``()`` a single number.
#
# Where numbers are rounded, the quotient is rounded once before it is rounded to an integer.

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
