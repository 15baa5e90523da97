"""Numbers of one kind as numbers of another.

Between floating-point formats nothing changes: a number system has one format for all floats, and where kernels round,
it does what it does everywhere. An integer stays the number it is as a float. A float becomes an integer by dropping
its fraction; one that is too large becomes the largest integer there is, or the least, and NaN becomes 0. Integers wrap
around. What is not zero is true, NaN too.
"""

from __future__ import annotations

from numbers import Integral

from gradspec.spec.errors import AmbiguityError, DTypeError
from gradspec.spec.scalar import Scalar, ends, is_infinite
from gradspec.spec.tensor import Tensor, TensorLike, tensor

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
