"""Power pooling on its kernel."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import inf, prod

import numpy as np

from gradspec.backends.cpu.axes import Blocks, Strides
from gradspec.backends.cpu.dtypes import COMPUTED
from gradspec.backends.cpu.geometry import as_bits
from gradspec.backends.cpu.taps import TILE, Tables, Windows, aligned, regular_axes
from gradspec.codegen.cache import kernel
from gradspec.runtime.task import Bound, Lowering, LoweringBase, Task, Work

SOURCE = "gradspec.backends.cpu.kernels.lp_pool"

NANOSECONDS_PER_TAP = {1.0: 1.7, 2.0: 3.3, inf: 1.2}
NANOSECONDS_PER_POWER, NANOSECONDS_PER_UNIT = 14.0, 100.0


def in_two(value: Fraction, width: int) -> list[int]:
    """A number as a sum of two of ``width`` bytes, the larger first, as bits of float64.

    >>> in_two(1 + Fraction(1, 2**30), 4) == [as_bits(1.0), as_bits(2.0**-30)]
    True
    """
    number = np.float32 if width == 4 else np.float64
    with np.errstate(over="ignore"):
        head = float(number(float(value)))
        rest = float(number(float(value - Fraction(head)))) if np.isfinite(head) else 0.0
    return [as_bits(head), as_bits(rest)]


def _exponents(p: float, width: int) -> list[int]:
    """p and 1/p."""
    if p == inf:
        return [as_bits(inf), as_bits(0.0)] * 2
    return in_two(Fraction(p), width) + in_two(1 / Fraction(p), width)


class _PowerPooling(LoweringBase):
    def task(self, work: Work) -> Task | None:
        (node,) = work.nodes
        (x,), (y,), attrs = node.inputs, node.outputs, node.attrs
        window, width, itemsize = attrs.window(x), COMPUTED[x.dtype.name], x.dtype.numpy.itemsize
        axes, leads = regular_axes(window), x.shape[: x.ndim - window.rank]
        tables, numbers = [Tables(axis) for axis in axes], _exponents(attrs.p, width)
        rows, tile = prod(axis.outputs for axis in axes[:-1]), min(TILE, axes[-1].outputs)
        tiles, sums_at = -(-axes[-1].outputs // tile), aligned(8 * len(axes))
        units, workspace = prod(leads) * rows * tiles, sums_at + aligned(4 * width * tile)
        ones = (0,) * len(axes)

        def described(strides: Sequence[Strides]) -> Bound:
            cells, outputs = strides
            along = list(zip(leads, zip(cells, outputs, strict=False), strict=False))
            windows = Windows(axes, tables, along, cells[len(leads) :] or (0,), ones, outputs[len(leads) :] or (0,))
            return windows.words(rows, tile, tiles, sums_at, numbers), units, workspace

        taps = y.type.size * prod(axis.kernel for axis in axes)
        return Task(
            kernel=f"window norm {x.dtype}",
            inputs=(x,),
            outputs=(y,),
            function=kernel(SOURCE, f"lp_pool:{x.dtype}"),
            units=units,
            cost=taps * NANOSECONDS_PER_TAP.get(attrs.p, NANOSECONDS_PER_POWER) + NANOSECONDS_PER_UNIT * units,
            workspace=workspace,
            bind=Blocks((itemsize, itemsize), described),
        )


LOWERINGS: dict[str, Lowering] = {"lp_pool": _PowerPooling()}
