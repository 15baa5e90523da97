"""Max and average pooling on the pooling kernels."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from gradspec.backends.cpu.binding import task_of
from gradspec.backends.cpu.planning import COMPUTED, computed_float, has_short_winners, is_selected_as_stored
from gradspec.backends.cpu.pool.arguments import AxisKind, PoolSettings, Role
from gradspec.backends.cpu.pool.axes import reaches_far, reduced_axes, transpose_axis
from gradspec.backends.cpu.pool.layout import (
    RECORDED_WINNERS,
    TIED_COTANGENTS,
    TIED_SHARES,
    TIES,
    VALUES,
    WINNERS,
    Count,
    KernelFamily,
    Pooling,
    inverse_of,
)
from gradspec.backends.tables import Ints, counted_taps, real_cells
from gradspec.codegen.cache import Kernel, kernel
from gradspec.graph.ir import Node, Var
from gradspec.graph.types import DType, TensorType, u8
from gradspec.ops.pool import AvgPool
from gradspec.runtime.task import Lowering, LoweringBase, Task, Work
from gradspec.spec.window import AxisWindow, Window

SOURCE = "gradspec.backends.cpu.pool.kernels.pool"
MANY_WINDOWS = 27
"""If at least so many windows cover a cell, transposed windows cost less than visiting every tap."""
MOST_SHORT = 1 << 14
"""Most taps of windows whose winners have 16 bits: no winner stays negative after any shift."""

Variables = dict[Role, Var]
"""Which variables play which roles."""


def pooling_task(
    name: str, operation: str, dtype: DType, pooling: Pooling, variables: Variables, nanoseconds: float
) -> Task:
    """``nanoseconds`` per cell or output, whichever are more; a unit costs some hundred more."""
    written = {Role.Y, Role.V, Role.INDICES} | ({Role.TAPE} if Role.X in variables else set())
    inputs = [v for role, v in variables.items() if role not in written]
    outputs = [v for role, v in variables.items() if role in written]
    function, cost = pooling_kernel(operation, dtype, pooling), nanoseconds * pooling.largest
    return task_of(f"{name} {dtype}", function, inputs, outputs, pooling, cost, 300, keeps_layout=True)


def pooling_kernel(operation: str, dtype: DType, pooling: Pooling) -> Kernel:
    is_converted = pooling.components[0] == COMPUTED[dtype.name]
    return kernel(SOURCE, f"{operation}:{'' if is_converted else 'stored '}{dtype}")


def lead_sizes(x: Var, window: Window) -> tuple[int, ...]:
    return x.shape[: x.ndim - window.rank]


# --- the maximum ------------------------------------------------------------------------------------------------------


def _window(node: Node) -> Window:
    window: Window = node.attrs.window(node.inputs[0])
    return window


def _volume(window: Window) -> int:
    return prod(axis.kernel for axis in reduced_axes(window))


def are_covered_often(window: Window) -> bool:
    """Whether so many windows cover a cell that transposed windows pay."""
    axes = [transpose_axis(axis) for axis in reduced_axes(window)]
    is_dilated = any(axis.kind is AxisKind.EXPANDING and axis.dilation > 1 for axis in axes)
    return prod(axis.slots for axis in axes) >= MANY_WINDOWS and not is_dilated


def _tape_bytes(window: Window) -> int:
    volume = _volume(window)
    return 1 if volume < 1 << 8 else 2 if volume < 1 << 16 else 4


@dataclass(frozen=True)
class _MaxRequest:
    """The variables of one search for winners; None for those that are not needed."""

    value: Var | None = None
    indices: Var | None = None
    sent: Var | None = None
    """The incoming tangent or cotangent."""
    received: Var | None = None
    is_vjp: bool = False

    @classmethod
    def of(cls, work: Work) -> _MaxRequest | None:
        """None if one kernel cannot compute everything that is wanted."""
        found: dict[str, Any] = {}
        for node in work.nodes:
            is_value = node.op.name == "max_pool"
            names = ("value", "indices") if is_value else ("received",)
            mine: dict[str, Any] = {n: v for n, v in zip(names, node.outputs, strict=False) if v in work.outputs}
            if not is_value:
                mine |= {"sent": node.inputs[1], "is_vjp": node.op.name == "max_pool_scatter"}
            if found.keys() & mine.keys():
                return None
            found |= mine
        return cls(**found)

    @property
    def has_outputs(self) -> bool:
        return self.value is not None or self.indices is not None


@dataclass(frozen=True)
class _MaxLowering(LoweringBase):
    """The maximum, its indices, and the tangents and cotangents of its winners: one kernel finds winners for all."""

    def key(self, node: Node) -> Hashable | None:
        return node.inputs[0], replace(node.attrs, return_indices=False)

    def tape(self, node: Node) -> TensorType | None:
        """Winners as bytes; a value alone needs none."""
        if node.op.name == "max_pool" or node.attrs.ties != "first":
            return None
        window, x = _window(node), node.inputs[0]
        return TensorType(u8, (*lead_sizes(x, window), *window.outputs, _tape_bytes(window)))

    def task(self, work: Work) -> Task | None:
        wanted, node = _MaxRequest.of(work), work.nodes[0]
        if wanted is None or node.inputs[0].dtype.name not in COMPUTED:
            return None
        window, x = _window(node), node.inputs[0]
        if reaches_far(window):
            return None
        if node.attrs.ties != "first" and wanted.received is not None:
            if wanted.indices is not None:
                return None
            if not wanted.is_vjp or not are_covered_often(window):
                return _ties_task(window, x, wanted, node.attrs.ties)
            return _ties_transpose_task(window, x, wanted, node.attrs.ties) if wanted.value is None else None
        if _volume(window) >= 1 << 30 or (work.reads_tape and wanted.has_outputs):
            return None
        return _max_task(window, x, wanted, work)


def _has_short_winners(window: Window, dtype: DType, roles: Sequence[Role], is_vjp: bool) -> bool:
    """Whether winners are found whose numbers fit 16 bits, and no cotangents are added up, which takes more."""
    is_sum = is_vjp and not all(axis.is_disjoint for axis in reduced_axes(window))
    return has_short_winners(dtype.name) and Role.X in roles and not is_sum and _volume(window) <= MOST_SHORT


def _max_pooling(window: Window, x: TensorType, roles: Sequence[Role], is_vjp: bool = False) -> Pooling:
    computed, stored, is_alone = COMPUTED[x.dtype.name], x.dtype.numpy.itemsize, [*roles] == [Role.X, Role.Y]
    if is_selected_as_stored(x.dtype.name) if is_alone else _has_short_winners(window, x.dtype, roles, is_vjp):
        computed = stored
    return Pooling(
        VALUES if is_alone else WINNERS if Role.X in roles else RECORDED_WINNERS,
        reduced_axes(window),
        x.shape[: x.ndim - window.rank],
        tuple(roles),
        PoolSettings(is_vjp=is_vjp, tape_bytes=_tape_bytes(window)),
        components=(computed,) if is_alone else (computed, computed),
        stored=stored,
    )


def _max_task(window: Window, x: Var, wanted: _MaxRequest, work: Work) -> Task:
    tape = work.tape
    source = {Role.TAPE: tape} if work.reads_tape else {Role.X: x}
    rest = {Role.U: wanted.sent, Role.Y: wanted.value, Role.INDICES: wanted.indices, Role.V: wanted.received}
    kept = {} if work.reads_tape else {Role.TAPE: tape}
    variables = {role: v for role, v in (source | rest | kept).items() if v is not None}
    is_alone = [*variables] == [Role.X, Role.Y]
    name, operation = ("window maximum", "max") if is_alone else ("window winners", "winners")
    if work.reads_tape:
        name, operation = "recorded winners", "tape"
    pooling = _max_pooling(window, x.type, [*variables], wanted.is_vjp)
    if pooling.carries_tangents:
        name, operation = "window tangents", "tangents"
    return pooling_task(name, operation, x.dtype, pooling, variables, nanoseconds=0.7 if is_alone else 3.0)


def _tied_pooling(
    family: KernelFamily, window: Window, x: Var, variables: Variables, settings: PoolSettings
) -> Pooling:
    components, stored = (COMPUTED[x.dtype.name],) * 3, x.dtype.numpy.itemsize
    roles = tuple(variables)
    return Pooling(family, reduced_axes(window), lead_sizes(x, window), roles, settings, components, stored)


def _ties_task(window: Window, x: Var, wanted: _MaxRequest, ties: str) -> Task:
    roles = {Role.X: x, Role.U: wanted.sent, Role.Y: wanted.value, Role.V: wanted.received}
    variables = {role: v for role, v in roles.items() if v is not None}
    pooling = _tied_pooling(TIES, window, x, variables, PoolSettings(is_vjp=wanted.is_vjp, splits=ties == "split"))
    nanoseconds = 3.0 + 0.5 * _volume(window)
    return pooling_task("window ties", "ties", x.dtype, pooling, variables, nanoseconds)


def transpose_task(
    name: str, operation: str, window: Window, shares: Task, received: Var, pooling: Pooling, family: KernelFamily
) -> Task:
    """Transposed windows, after the task that computes the maxima and shares of windows from its first operand."""
    x, function = shares.inputs[0], kernel(SOURCE, f"{operation}:{received.dtype}")
    spread = replace(
        pooling,
        family=family,
        axes=tuple(map(transpose_axis, reduced_axes(window))),
        roles=(Role.Y, Role.X, Role.U, Role.V),
        counts=None,
        tables={},
    )
    inputs, cost = (x, *shares.outputs), 12.0 * spread.largest
    more: dict[str, Any] = {"keeps_layout": True, "before": (shares,)}
    return task_of(f"{name} {x.dtype}", function, inputs, [received], spread, cost, 300, **more)


def share_variables(x: Var, sent: Var, received: Var) -> Variables:
    """The variables of a task that computes maxima Y and shares V of a cotangent U."""
    type = TensorType(computed_float(x.dtype), sent.shape)
    made = (Var(f"{received.name}.{part}", type, None) for part in ("maxima", "shares"))
    return dict(zip((Role.X, Role.U, Role.Y, Role.V), (x, sent, *made), strict=True))


def _ties_transpose_task(window: Window, x: Var, wanted: _MaxRequest, ties: str) -> Task:
    assert wanted.sent is not None
    assert wanted.received is not None
    variables = share_variables(x, wanted.sent, wanted.received)
    pooling = _tied_pooling(TIED_SHARES, window, x, variables, PoolSettings(splits=ties == "split"))
    shares = pooling_task("window shares", "tied_shares", x.dtype, pooling, variables, nanoseconds=10.0)
    return transpose_task("window ties", "tied_cotangent", window, shares, wanted.received, pooling, TIED_COTANGENTS)


# --- the average ------------------------------------------------------------------------------------------------------


def _divisor(attrs: AvgPool, window: Window) -> tuple[float, Count | None]:
    """The common divisor of all windows, or 0 and what counts the cells of each."""
    if attrs.divisor_override is not None:
        return float(attrs.divisor_override), None
    counts = counted_taps if attrs.count_include_pad else _at_least_one
    each = [counts(axis) for axis in window.axes]
    if all((c == c[0]).all() for c in each):
        return float(prod(int(c[0]) for c in each)), None
    return 0.0, counts


def _at_least_one(window: AxisWindow) -> Ints:
    """Real cells; 1 for none, so that it can be divided by."""
    return np.maximum(real_cells(window), 1)


def _average_pooling(attrs: AvgPool, window: Window, x: TensorType, is_transpose: bool = False) -> Pooling:
    divisor, counts = _divisor(attrs, window)
    computed, axes = COMPUTED[x.dtype.name], reduced_axes(window)
    inverse, rest = inverse_of(divisor, computed)
    return Pooling(
        VALUES,
        tuple(map(transpose_axis, axes)) if is_transpose else axes,
        x.shape[: x.ndim - window.rank],
        (Role.X, Role.Y),
        PoolSettings(scales_input=is_transpose, divisor=divisor, inverse=inverse, inverse_rest=rest),
        components=(computed,),
        stored=x.dtype.numpy.itemsize,
        counts=counts,
    )


@dataclass(frozen=True)
class _AverageLowering(LoweringBase):
    """The average over windows, or its transpose."""

    is_transpose: bool

    def task(self, work: Work) -> Task | None:
        ((node,), (x,), (y,)) = work.nodes, work.nodes[0].inputs, work.nodes[0].outputs
        window: Window = node.attrs.window(y if self.is_transpose else x)
        if reaches_far(window):
            return None
        pooling = _average_pooling(node.attrs, window, x.type, self.is_transpose)
        name = "window spread" if self.is_transpose else "window mean"
        return pooling_task(name, "sum", x.dtype, pooling, {Role.X: x, Role.Y: y}, nanoseconds=0.8)


# --- values alone, for kernels that pool what they make ---------------------------------------------------------------


def value_pooling(node: Node, x: TensorType) -> Pooling:
    """A max or average pooling of another operand than the node's."""
    window: Window = node.attrs.window(x)
    is_average = node.op.name == "avg_pool"
    pooling = _average_pooling(node.attrs, window, x) if is_average else _max_pooling(window, x, (Role.X, Role.Y))
    return replace(pooling, joins_planes=False, tables={})


def value_kernel(node: Node, x: TensorType) -> Kernel:
    return pooling_kernel("sum" if node.op.name == "avg_pool" else "max", x.dtype, value_pooling(node, x))


MAXIMUM = _MaxLowering()

LOWERINGS: dict[str, Lowering] = {
    "max_pool": MAXIMUM,
    "max_pool_gather": MAXIMUM,
    "max_pool_scatter": MAXIMUM,
    "avg_pool": _AverageLowering(is_transpose=False),
    "avg_pool_transpose": _AverageLowering(is_transpose=True),
}
