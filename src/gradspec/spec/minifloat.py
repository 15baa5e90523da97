"""Numbers as floats of eight or four bits hold them: rounded to nearest, ties to even.

What rounds to more than the largest number is the largest number if the conversion saturates, infinities too, and else
infinite, or NaN in a format without infinities. PyTorch saturates ``f8_e4m3`` alone, JAX neither, and ONNX by default
both. A derivative passes as if nothing were rounded.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, nan

from gradspec.spec.errors import DTypeError
from gradspec.spec.pointwise import cellwise
from gradspec.spec.scalar import Scalar, embed, exceeds, increasing, is_infinite, larger, nearest_integer, pass_tangent
from gradspec.spec.tensor import Tensor, TensorLike


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
