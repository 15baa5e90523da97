"""Smooth max pooling on the pooling kernels."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from math import copysign, prod
from typing import Any

import numpy as np

from gradspec.backends.cpu.planning import COMPUTED
from gradspec.backends.cpu.pool.arguments import PoolSettings, Role
from gradspec.backends.cpu.pool.axes import as_bin, reaches_far, reduced_axes
from gradspec.backends.cpu.pool.layout import KernelFamily, Pooling
from gradspec.backends.cpu.pool.plan import are_covered_often, lead_sizes, pooling_task, share_variables, transpose_task
from gradspec.backends.tables import counted_taps, real_cells
from gradspec.graph.ir import Node, Var
from gradspec.ops.smooth_pool import SmoothPool
from gradspec.runtime.task import Lowering, LoweringBase, Task, Work
from gradspec.spec.window import Window

SMOOTH_COTANGENTS = KernelFamily(scan_volume=4)  # ``kernels.smooth`` derives the 4 from the error of prefixes
SMOOTH = replace(SMOOTH_COTANGENTS, visits_taps=True)
SMOOTH_SHARES = replace(SMOOTH, shares_cotangents=True)

NAMES = {
    "soft": "smooth maximum",
    "soft_mean": "smooth maximum, mean",
    "soft_spread": "smooth maximum, spread",
    "soft_shares": "smooth maximum, shares",
}


@dataclass(frozen=True)
class _SmoothRequest:
    """The variables of one reduction; None for those that are not needed."""

    value: Var | None = None
    sent: Var | None = None
    received: Var | None = None
    operation: str = "soft"

    @classmethod
    def of(cls, work: Work) -> _SmoothRequest | None:
        """None if one kernel cannot compute everything that is wanted."""
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
        wanted, attrs, x = _SmoothRequest.of(work), work.nodes[0].attrs, work.nodes[0].inputs[0]
        if wanted is None or attrs.output_size is not None or not attrs.kernel_size:
            return None
        window, operation = attrs.window(x), wanted.operation
        if reaches_far(window):
            return None
        roles = {Role.X: x, Role.U: wanted.sent, Role.Y: wanted.value, Role.V: wanted.received}
        variables = {role: v for role, v in roles.items() if v is not None}
        if operation == "soft_spread" and are_covered_often(window):
            if wanted.value is not None:
                return None
            operation, variables = "soft_shares", share_variables(x, variables[Role.U], variables[Role.V])
        pooling = _pooling(attrs, window, x, operation, tuple(variables))
        taps = sum(min(axis.kernel, 6) for axis in pooling.axes)
        sends = prod(axis.kernel for axis in pooling.axes) if operation == "soft_spread" else 0
        nanoseconds = 4 + 2.0 * taps + 2.0 * sends
        task = pooling_task(NAMES[operation], operation, x.dtype, pooling, variables, nanoseconds)
        if operation == "soft_shares" and wanted.received is not None:
            name, operation = NAMES["soft_spread"], "soft_cotangent"
            return transpose_task(name, operation, window, task, wanted.received, pooling, SMOOTH_COTANGENTS)
        return task


def _pooling(attrs: SmoothPool, window: Window, x: Var, operation: str, roles: tuple[Role, ...]) -> Pooling:
    computed, is_padded = COMPUTED[x.dtype.name], attrs.padding_mode == "zeros" and _has_padding(window)
    unit, softness = _units(attrs, computed)
    return Pooling(
        SMOOTH_SHARES if operation == "soft_shares" else SMOOTH,
        tuple(map(as_bin, reduced_axes(window))),
        lead_sizes(x, window),
        roles,
        PoolSettings(is_vjp=operation == "soft_spread", pads_with_zeros=is_padded, unit=unit, softness=softness),
        components=(computed,) * (2 if operation == "soft" else 3),
        stored=x.dtype.numpy.itemsize,
        counts=counted_taps if is_padded else None,
    )


LOWERINGS: dict[str, Lowering] = dict.fromkeys(
    ("smooth_max_pool", "smooth_max_mean", "smooth_max_spread"), _SmoothLowering()
)
