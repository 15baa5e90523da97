"""Power pooling on its kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import inf, prod

import numpy as np

from gradspec.backends.cpu.arguments import PLACE_BYTES, TILE, TapAxis
from gradspec.backends.cpu.binding import KernelCall, task_of
from gradspec.backends.cpu.planning import COMPUTED, ONE_CELL, Strides, grid, pieces, regular_axes
from gradspec.backends.cpu.pool.arguments import Exponent, LpPoolArguments
from gradspec.backends.tables import Ints, tap_ranges
from gradspec.codegen.cache import kernel
from gradspec.codegen.records import Operand
from gradspec.runtime.memory import aligned
from gradspec.runtime.task import Lowering, LoweringBase, Task, Work
from gradspec.spec.window import Regular

SOURCE = "gradspec.backends.cpu.pool.kernels.lp_pool"

NANOSECONDS_PER_TAP = {1.0: 1.7, 2.0: 3.3, inf: 1.2}
NANOSECONDS_PER_POWER, NANOSECONDS_PER_UNIT = 14.0, 100.0


def in_two(value: Fraction, width: int) -> Exponent:
    """A number as a sum of two of ``width`` bytes.

    >>> in_two(1 + Fraction(1, 2**30), 4) == Exponent(1.0, 2.0**-30)
    True
    """
    number = np.float32 if width == 4 else np.float64
    with np.errstate(over="ignore"):
        head = float(number(float(value)))
        rest = float(number(float(value - Fraction(head)))) if np.isfinite(head) else 0.0
    return Exponent(head, rest)


def _exponents(p: float, width: int) -> tuple[Exponent, Exponent]:
    """p and 1/p."""
    if p == inf:
        return Exponent(inf, 0.0), Exponent(0.0, 0.0)
    return in_two(Fraction(p), width), in_two(1 / Fraction(p), width)


@dataclass(frozen=True)
class _PowerPooling:
    leads: tuple[int, ...]
    axes: tuple[Regular, ...]
    exponents: tuple[Exponent, Exponent]
    """p and 1/p."""
    width: int
    """Bytes of the numbers computed with."""

    @cached_property
    def ranges(self) -> list[Ints]:
        return [tap_ranges(axis) for axis in self.axes]

    def __call__(self, strides: Sequence[Strides]) -> KernelCall[LpPoolArguments]:
        along = zip(self.axes, self.ranges, *(s[len(self.leads) :] or (0,) for s in strides), strict=True)
        axes = tuple(
            TapAxis(axis.outputs, axis.stride * cell, output, axis.kernel, cell, 0, ranges)
            for axis, ranges, cell, output in along
        )
        rows = pieces(grid(self.leads, *strides), [axis.size for axis in axes], min(TILE, axes[-1].size))
        arguments = LpPoolArguments(Operand(0), Operand(1), rows, axes, *self.exponents)
        return KernelCall(arguments, rows.units, PLACE_BYTES + aligned(4 * self.width * rows.tile))


class _LpPoolLowering(LoweringBase):
    def task(self, work: Work) -> Task | None:
        (node,) = work.nodes
        (x,), (y,), p = node.inputs, node.outputs, node.attrs.p
        window, function = node.attrs.window(x), kernel(SOURCE, f"lp_pool:{x.dtype}")
        axes, width = tuple(axis.trimmed() for axis in regular_axes(window)) or (ONE_CELL,), COMPUTED[x.dtype.name]
        pooling = _PowerPooling(x.shape[: x.ndim - window.rank], axes, _exponents(p, width), width)
        taps = y.type.size * prod(axis.kernel for axis in axes)
        cost = taps * NANOSECONDS_PER_TAP.get(p, NANOSECONDS_PER_POWER)
        return task_of(f"window norm {x.dtype}", function, (x,), (y,), pooling, cost, NANOSECONDS_PER_UNIT)


LOWERINGS: dict[str, Lowering] = {"lp_pool": _LpPoolLowering()}
