"""Regular windows seen from one tap: which outputs read a real cell there, and which cells they are."""

from __future__ import annotations

from gradspec.backends.cpu.kernels import tap_fields as f
from gradspec.backends.cpu.kernels.compiler import i64, inlined, outlined
from gradspec.backends.cpu.kernels.memory import pointer_to

words_at = pointer_to(i64)


@inlined
def ceil_div(a, b):
    return -((-a) // b)


@inlined
def range_of(args, axis, tap):
    """The cell that a tap of output 0 is, and the first output whose cell is real, and the end of these."""
    ranges = words_at(args[axis + f.RANGES] + 8 * f.RANGE * tap)
    return ranges[f.START], ranges[f.FIRST], ranges[f.END]


@outlined
def range_between(args, axis, tap, first, end):
    """The same for outputs whose cell is one of ``first … end−1``."""
    start, least, most = range_of(args, axis, tap)
    stride = args[axis + f.STRIDE]
    a = min(max(ceil_div(first - start, stride), least), most)
    return start, a, max(min(ceil_div(end - start, stride), most), a)


def plane_at(args, plane):
    """Where a plane begins in what is read and in what is written."""
    x, y, rest = 0, 0, plane
    for lead in range(args[f.LEADS] - 1, -1, -1):
        at = f.HEADER + lead * f.LEAD
        i = rest % args[at]
        rest //= args[at]
        x += i * args[at + 1]
        y += i * args[at + 2]
    return x, y
