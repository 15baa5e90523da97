"""Power pooling.

With ``y`` the p-norm of a window, ``dy = y^(1−p) · Σ sign(xᵢ)·|xᵢ|^(p−1)·dxᵢ``: a power of the output, and the sum of a
power of the input times its tangent. For p = ∞ it is the maximum of ``|xᵢ|``, with the derivative of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil, inf

from gradspec.graph.builder import apply, operands
from gradspec.graph.ir import JvpResult, Op, Operand, Var
from gradspec.graph.types import TensorType, require_floats
from gradspec.ops.box import BoundedNode, Box, Curve
from gradspec.ops.pointwise import abs as absolute
from gradspec.ops.pointwise import exact_number, exp, log, maximum, scale
from gradspec.ops.pool import (
    AVG_POOL,
    MAX_POOL,
    MAX_POOL_GATHER,
    AvgPool,
    MaxPool,
    Windows,
    plain_number,
    sliding_windows,
    windows_of,
)
from gradspec.ops.rules import most_cells, pointwise_spec, same_types
from gradspec.ops.select import equal, greater, where
from gradspec.ops.shape import leading_batch
from gradspec.ops.windows import sum_windows
from gradspec.spec.lp_pool import abs_power, require_exponent
from gradspec.spec.lp_pool import lp_pool as lp_pool_spec
from gradspec.spec.tensor import Tensor
from gradspec.spec.window import Ints

# --- powers of |x|, which 0 does not trouble --------------------------------------------------------------------------


@dataclass(frozen=True)
class AbsPower:
    """``|x|^exponent``, with the sign of ``x`` if it is ``signed``."""

    exponent: float
    signed: bool = False


def _abs_power_jvp(attrs: AbsPower, primals: Sequence[Var], tangents: Sequence[Var]) -> JvpResult:
    (x,), (dx,), q = primals, tangents, attrs.exponent
    slope = None if q == 0 else scale(apply(ABS_POWER, AbsPower(q - 1, not attrs.signed), x), q)
    return [apply(ABS_POWER, attrs, x)], [None if slope is None else slope * dx]


def _bend(node: BoundedNode, box: Box) -> Var | float:
    """``|q·(q − 1)|·|x|^(q−2)``, largest at the largest or the least ``|x|``; infinite at a kink or jump at 0."""
    q, signed = node.attrs.exponent, node.attrs.signed
    if q == signed:  # x itself, or 1
        return 0.0
    nearest, farthest = _sizes(box)
    curved = abs(q * (q - 1)) * apply(ABS_POWER, AbsPower(q - 2), farthest if q >= 2 else nearest)
    return curved * 1.0001 if q >= 2 else where(greater(nearest, 0.0), curved * 1.0001, inf)


def _sizes(box: Box) -> tuple[Var, Var]:
    """The least and the largest ``|x|``."""
    lower, upper = box.ends
    return maximum(maximum(lower, -upper), 0.0), maximum(-lower, upper)


_CURVE = Curve(
    turns=lambda attrs: () if attrs.signed else (0.0,),
    bend=_bend,
    bent=lambda attrs: int(attrs.exponent >= 1 and not attrs.signed),
    roundings=lambda attrs, dtype: 8,
)


def _abs_power_box(node: BoundedNode, box: Box) -> Box:
    """For a negative exponent nothing is known if ``x`` may be 0."""
    found = node.curve_box(_CURVE, box)
    return found if node.attrs.exponent >= 0 else node.known_where(node.greater(_sizes(box)[0], 0.0), found)


ABS_POWER: Op = Op(
    "abs_power",
    AbsPower,
    types=same_types("abs_power", 1),
    spec=pointwise_spec(lambda attrs, x: abs_power(x, attrs.exponent, attrs.signed)),
    batch=leading_batch,
    enclosure=_abs_power_box,
    relaxation=lambda node, boxes, share: node.curve_lines(_CURVE, boxes[0], share),
    jvp=_abs_power_jvp,
)


# --- the pooling ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LpPool(Windows):
    p: float = field(kw_only=True)


def _types(attrs: LpPool, x: TensorType) -> tuple[TensorType]:
    require_exponent(attrs.p)
    require_floats("lp_pool", x)
    return (attrs.pooled(x),)


def _spec(attrs: LpPool, x: Tensor) -> tuple[Tensor]:
    return (lp_pool_spec(x, attrs.p, attrs.kernel_size, attrs.stride, attrs.ceil_mode),)


def _jvp(attrs: LpPool, primals: Sequence[Var], tangents: Sequence[Var]) -> JvpResult:
    (x,), (dx,), p = primals, tangents, attrs.p
    y = apply(LP_POOL, attrs, x)
    windows = {name: value for name, value in vars(attrs).items() if name != "p"}
    if p == inf:
        outward = apply(ABS_POWER, AbsPower(0.0, signed=True), x) * dx
        return [y], [apply(MAX_POOL_GATHER, MaxPool(**windows), apply(ABS_POWER, AbsPower(1.0), x), outward)]
    steps = apply(ABS_POWER, AbsPower(p - 1, signed=True), x) * dx
    total = apply(AVG_POOL, AvgPool(**windows, divisor_override=1), steps)
    return [y], [apply(ABS_POWER, AbsPower(1 - p), y) * total]


def _box(node: BoundedNode, box: Box) -> Box:
    """The norm increases with every ``|xᵢ|``.

    A sum of powers that is normal is off by their errors and its own, of which the root leaves a p-th; one that is not
    has a root that is not above that of the smallest normal numbers, and one that overflows none below that of the
    largest.
    """
    p, cells = node.attrs.p, most_cells(node.attrs.window(box.lower))
    values = [node.apply(size) for size in _sizes(box)]
    if p == inf:
        return node.between(*values)
    around = node.around(values, 16 + ceil((2 * cells + 16) / p))
    lost = node.above((8 * (cells + 1) * node.tiny) ** (1 / p))
    found = node.between(around.lower - lost, around.upper + lost)
    most = node.arithmetic.largest(node.stored.dtype) ** min(1.0, 1 / p)
    return node.known_where(node.within(found, most), found) if node.arithmetic.any else found


def _decompose(attrs: LpPool, x: Var) -> tuple[Var]:
    """The root of a sum of powers: 1/p is the exponent if that is a float, else what a logarithm is divided by."""
    if attrs.p == inf:
        return (apply(MAX_POOL, MaxPool(**windows_of(attrs)), absolute(x)),)
    total = sum_windows(apply(ABS_POWER, AbsPower(attrs.p), x), attrs.window(x).trimmed())
    if Fraction(1 / attrs.p) == 1 / Fraction(attrs.p):
        return (apply(ABS_POWER, AbsPower(1 / attrs.p), total),)
    is_zero = equal(total, 0.0)
    root = exp(log(where(is_zero, 1.0, total)) / exact_number(attrs.p, x))
    return (where(is_zero, 0.0, root),)


LP_POOL = Op(
    "lp_pool", LpPool, types=_types, spec=_spec, batch=leading_batch, enclosure=_box, jvp=_jvp, decompose=_decompose
)


def lp_pool(
    x: Operand, p: float, kernel_size: Sequence[int], stride: Ints | None = None, ceil_mode: bool = False
) -> Var:
    """The p-norm ``(Σ |xᵢ|^p)^(1/p)`` of each window, p > 0; the largest ``|xᵢ|`` for p = ∞.

    A cell at 0, and every cell of a window whose norm is 0, has derivative 0. PyTorch's ``lp_pool`` leaves out the
    absolute value (so negative cells matter unless p is even), scales up the windows that ``ceil_mode`` cuts short, and
    for p < 1 has NaN as derivative where the norm is 0.

    >>> lp_pool(np.float32([3, -4, 0]), 2, (2,), 1).tolist()
    [5.0, 4.0]
    """
    (x,) = operands(x)
    require_exponent(p)
    windows = sliding_windows("lp_pool", x, kernel_size, stride, 0, 1, ceil_mode)
    return apply(LP_POOL, LpPool(**windows, p=float(plain_number(p))), x)
