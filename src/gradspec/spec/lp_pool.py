"""Power pooling: the p-norm ``(Σ |xᵢ|^p)^(1/p)`` of each window, p > 0; for p = ∞ the largest ``|xᵢ|``.

Cells equal to 0 take no part. That changes no value, and it settles derivatives where the norm has a kink: a cell at 0
has derivative 0, for p ≤ 1 too, and so has every cell of a window whose norm is 0. For p = ∞ the first of the largest
cells has the derivative, as in max pooling.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import inf, isnan

from gradspec.spec.pool import Plane, Taps, real, reduce_windows, sliding
from gradspec.spec.scalar import Scalar, add_up, constant, embed, larger, power, refuse_fixed_width_integers
from gradspec.spec.tensor import Tensor, TensorLike, tensor
from gradspec.spec.window import Ints


def lp_pool(
    x: TensorLike, p: float, kernel_size: Sequence[int], stride: Ints | None = None, ceil_mode: bool = False
) -> Tensor:
    """The p-norm of each window.

    >>> lp_pool([3.0, -4.0, 0.0], 2, (2,), 1).tolist(), lp_pool([3, -4], float("inf"), (2,)).tolist()
    ([5.0, 4.0], [4])
    """
    x = tensor(x)
    require_exponent(p)
    refuse_fixed_width_integers("power pooling", x.zero)

    def norm(taps: Taps, plane: Plane) -> Scalar:
        sizes = [absolute(plane[t]) for t in real(taps) if not is_zero(plane[t])]
        if p == inf:
            return _largest(sizes, x.zero)
        total = add_up((power(size, Fraction(p)) for size in sizes), x.zero)
        return power(total, 1 / Fraction(p)) if sizes else x.zero

    return reduce_windows(sliding(x, kernel_size, stride, 0, 1, ceil_mode), norm, x).stored()


def absolute(x: Scalar) -> Scalar:
    """``|x|``; of an enclosure, no more than the part that is at least 0."""
    return larger(larger(x, -x), embed(x, 0))


def is_zero(x: Scalar) -> bool:
    """Whether ``x`` is 0, certainly; its tangent does not matter."""
    return bool(constant(x) == 0)


def abs_power(x: Scalar, exponent: float, signed: bool) -> Scalar:
    """``|x|^q``, or with ``signed`` ``sign(x)·|x|^q``: 0 at 0, even for q < 0; only ``|0|^0`` is 1.

    They are each other's derivatives, up to the factor q.

    >>> abs_power(-3, 2, False), abs_power(-3, 2, True), abs_power(0.0, -1, False)
    (9, -9, 0.0)
    """
    if is_zero(x):
        return embed(x, int(exponent == 0 and not signed))
    return x * power(absolute(x), Fraction(exponent) - 1) if signed else power(absolute(x), Fraction(exponent))


def _largest(cells: list[Scalar], zero: Scalar) -> Scalar:
    value = zero
    for cell in cells:
        value = larger(value, cell)
    return value


def require_exponent(p: float) -> None:
    if isinstance(p, bool) or not hasattr(p, "__float__") or isnan(p) or not p > 0:
        raise ValueError(f"p={p!r}: power pooling needs a positive number, such as 2, or float('inf')")
