"""Smooth max pooling on the pooling kernels."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from math import copysign, prod
from typing import Any

import numpy as np

from gradspec.backends.cpu.geometry import Roles, as_bits, counted_taps, real_cells, spatial_axes
from gradspec.backends.cpu.kernels import fields as f
from gradspec.backends.cpu.pool import COMPUTED, pooling_task
from gradspec.graph.ir import Node, Var
from gradspec.ops.smooth_pool import SmoothPool
from gradspec.runtime.task import LoweringBase, Task, Work
from gradspec.spec.window import Window

SCAN_VOLUME = 4
"""Where prefixes are joined tap by tap, a window has this many cells per tap: see ``kernels.soft``."""

NAMES = {"soft": "smooth maximum", "soft_mean": "smooth maximum, mean", "soft_spread": "smooth maximum, spread"}


@dataclass(frozen=True)
class _Wanted:
    """The variables of one reduction; None for what nobody reads."""

    value: Var | None = None
    sent: Var | None = None
    received: Var | None = None
    operation: str = "soft"

    @classmethod
    def of(cls, work: Work) -> _Wanted | None:
        """None if more is wanted than one kernel gives."""
        found: dict[str, Any] = {}
        for node in work.nodes:
            if node.op.name == "smooth_max_pool":
                mine: dict[str, Any] = {"value": node.outputs[0]}
            else:
                operation = "soft_mean" if node.op.name == "smooth_max_mean" else "soft_spread"
                mine = {"sent": node.inputs[1], "received": node.outputs[0], "operation": operation}
            if found.keys() & mine.keys():
                return None
            found |= mine
        return cls(**found)


def _units(attrs: SmoothPool, computed: int) -> tuple[float, float]:
    """``(unit, softness)`` with β = unit · softness; a half where differences may overflow and still matter."""
    beta = float(np.float32(attrs.beta) if computed == 4 else np.float64(attrs.beta))
    least = 2.0**-64 if computed == 4 else 2.0**-512
    unit = copysign(1.0 if abs(beta) >= least else 0.5, beta)
    return unit, beta / unit


def _has_padding(window: Window) -> bool:
    return any((counted_taps(axis) != real_cells(axis)).any() for axis in window.axes)


@dataclass(frozen=True)
class _SmoothLowering(LoweringBase):
    """The smooth maximum, the mean by its weights, its transpose: one reduction serves a value and a derivative."""

    def key(self, node: Node) -> Hashable | None:
        return node.inputs[0], node.attrs

    def task(self, work: Work) -> Task | None:
        wanted, attrs, x = _Wanted.of(work), work.nodes[0].attrs, work.nodes[0].inputs[0]
        if wanted is None or attrs.output_size is not None or not attrs.kernel_size:
            return None
        window = attrs.window(x)
        axes = spatial_axes(window)
        stored, computed = x.dtype.numpy.itemsize, COMPUTED[x.dtype.name]
        pairs = ((f.X, x), (f.U, wanted.sent), (f.Y, wanted.value), (f.V, wanted.received))
        arrays = {field: v for field, v in pairs if v is not None}
        unit, softness = _units(attrs, computed)
        is_padded = attrs.padding_mode == "zeros" and _has_padding(window)
        settings = {
            f.DIRECT: 0,
            f.PULLS: int(wanted.operation == "soft_spread"),
            f.PADDED: int(is_padded),
            f.UNIT: as_bits(unit),
            f.SOFTNESS: as_bits(softness),
        }
        roles = Roles(
            tuple(arrays),
            settings,
            (computed,) * (2 if wanted.operation == "soft" else 3),
            stored,
            (stored,) * len(arrays),
            counts=counted_taps if is_padded else None,
            reals=True,
            scan_volume=SCAN_VOLUME,
            lists_taps=True,
        )
        taps = sum(min(axis.kernel, 6) for axis in axes)
        sends = prod(axis.kernel for axis in axes) if wanted.operation == "soft_spread" else 0
        return pooling_task(
            f"{NAMES[wanted.operation]} {x.dtype}",
            wanted.operation,
            x.dtype,
            axes,
            x.shape[: x.ndim - window.rank],
            roles,
            tuple(v for field, v in arrays.items() if field in (f.X, f.U)),
            tuple(v for field, v in arrays.items() if field in (f.Y, f.V)),
            nanoseconds=4 + 2.0 * taps + 2.0 * sends,
        )


SMOOTH = _SmoothLowering()

LOWERINGS = {"smooth_max_pool": SMOOTH, "smooth_max_mean": SMOOTH, "smooth_max_spread": SMOOTH}
