"""Pooling of every kind, and cells at places of planes, on their kernels."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, partial
from math import copysign, inf, prod
from typing import Any

import numpy as np

from gradspec.backends.cpu.arguments import PLACE_BYTES, TILE, TapAxis
from gradspec.backends.cpu.binding import KernelCall, task_of
from gradspec.backends.cpu.planning import (
    COMPUTED,
    ONE_CELL,
    Strides,
    computed_float,
    grid,
    has_short_winners,
    is_selected_as_stored,
    pieces,
    regular_axes,
)
from gradspec.backends.cpu.pool.arguments import (
    AxisKind,
    Exponent,
    IndexKind,
    LpPoolArguments,
    PoolSettings,
    Role,
    UnpoolArguments,
)
from gradspec.backends.cpu.pool.axes import as_bin, reaches_far, reduced_axes, transpose_axis
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
from gradspec.backends.numpy.windows import require_in_plane
from gradspec.backends.tables import Ints, counted_taps, real_cells, tap_ranges
from gradspec.codegen.cache import Kernel, kernel
from gradspec.codegen.records import Operand
from gradspec.graph.ir import Node, Var
from gradspec.graph.types import DType, TensorType, u8
from gradspec.ops.pool import AvgPool
from gradspec.ops.smooth_pool import SmoothPool
from gradspec.runtime.memory import aligned
from gradspec.runtime.task import Lowering, Task, Work
from gradspec.spec.window import AxisWindow, Regular, Window

SOURCE = "gradspec.backends.cpu.pool.kernels.pool"
MANY_WINDOWS = 27
"""If at least so many windows cover a cell, transposed windows cost less than visiting every tap."""
MOST_SHORT = 1 << 14
"""Most taps of windows whose winners have 16 bits: no winner stays negative after any shift."""

Variables = dict[Role, Var]
"""Which variables play which roles."""


def requested(work: Work, value: str) -> Variables | None:
    """The variables of one reduction: of the operator ``value`` and of a derivative; None if that takes several."""
    found = {Role.X: work.nodes[0].inputs[0]}
    for node in work.nodes:
        roles = (Role.Y, Role.INDICES) if node.op.name == value else (Role.V,)
        mine = {role: v for role, v in zip(roles, node.outputs, strict=False) if v in work.outputs}
        if node.op.name != value:
            mine[Role.U] = node.inputs[1]
        if found.keys() & mine.keys():
            return None
        found |= mine
    return {role: found[role] for role in (Role.X, Role.U, Role.Y, Role.INDICES, Role.V) if role in found}


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
class _MaxLowering(Lowering):
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
        variables, node = requested(work, "max_pool"), work.nodes[0]
        window, is_vjp = _window(node), any(each.op.name == "max_pool_scatter" for each in work.nodes)
        if variables is None or node.inputs[0].dtype.name not in COMPUTED or reaches_far(window):
            return None
        if node.attrs.ties != "first" and Role.V in variables:
            if Role.INDICES in variables:
                return None
            if not is_vjp or not are_covered_often(window):
                return _ties_task(window, variables, is_vjp, node.attrs.ties)
            return _ties_transpose_task(window, variables, node.attrs.ties) if Role.Y not in variables else None
        if _volume(window) >= 1 << 30 or (work.reads_tape and not variables.keys().isdisjoint({Role.Y, Role.INDICES})):
            return None
        return _max_task(window, variables, is_vjp, work)


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


def _max_task(window: Window, variables: Variables, is_vjp: bool, work: Work) -> Task:
    x, tape = variables[Role.X], {} if work.tape is None else {Role.TAPE: work.tape}
    variables = variables | tape
    if work.reads_tape:
        variables = tape | {role: v for role, v in variables.items() if role is not Role.X}
    is_alone = [*variables] == [Role.X, Role.Y]
    name, operation = ("window maximum", "max") if is_alone else ("window winners", "winners")
    if work.reads_tape:
        name, operation = "recorded winners", "tape"
    pooling = _max_pooling(window, x.type, [*variables], is_vjp)
    if pooling.carries_tangents:
        name, operation = "window tangents", "tangents"
    return pooling_task(name, operation, x.dtype, pooling, variables, nanoseconds=0.7 if is_alone else 3.0)


def _tied_pooling(family: KernelFamily, window: Window, variables: Variables, settings: PoolSettings) -> Pooling:
    x, roles = variables[Role.X], tuple(variables)
    components, stored = (COMPUTED[x.dtype.name],) * 3, x.dtype.numpy.itemsize
    return Pooling(family, reduced_axes(window), lead_sizes(x, window), roles, settings, components, stored)


def _ties_task(window: Window, variables: Variables, is_vjp: bool, ties: str) -> Task:
    pooling = _tied_pooling(TIES, window, variables, PoolSettings(is_vjp=is_vjp, splits=ties == "split"))
    nanoseconds = 3.0 + 0.5 * _volume(window)
    return pooling_task("window ties", "ties", variables[Role.X].dtype, pooling, variables, nanoseconds)


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


def _ties_transpose_task(window: Window, variables: Variables, ties: str) -> Task:
    x, received = variables[Role.X], variables[Role.V]
    variables = share_variables(x, variables[Role.U], received)
    pooling = _tied_pooling(TIED_SHARES, window, variables, PoolSettings(splits=ties == "split"))
    shares = pooling_task("window shares", "tied_shares", x.dtype, pooling, variables, nanoseconds=10.0)
    return transpose_task("window ties", "tied_cotangent", window, shares, received, pooling, TIED_COTANGENTS)


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
class _AverageLowering(Lowering):
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


# --- smooth maxima ----------------------------------------------------------------------------------------------------


SMOOTH_COTANGENTS = KernelFamily(scan_volume=4)  # ``kernels.smooth`` derives the 4 from the error of prefixes
SMOOTH = replace(SMOOTH_COTANGENTS, visits_taps=True)
SMOOTH_SHARES = replace(SMOOTH, shares_cotangents=True)

SMOOTH_DERIVATIVES = {"smooth_max_mean": "soft_mean", "smooth_max_spread": "soft_spread"}
SMOOTH_NAMES = {
    "soft": "smooth maximum",
    "soft_mean": "smooth maximum, mean",
    "soft_spread": "smooth maximum, spread",
    "soft_shares": "smooth maximum, shares",
}


def _split_beta(attrs: SmoothPool, computed: int) -> tuple[float, float]:
    """``(unit, softness)`` with β = unit · softness; a half where differences may overflow and still matter."""
    beta = float(np.float32(attrs.beta) if computed == 4 else np.float64(attrs.beta))
    least = 2.0**-64 if computed == 4 else 2.0**-512
    unit = copysign(1.0 if abs(beta) >= least else 0.5, beta)
    return unit, beta / unit


def _has_padding(window: Window) -> bool:
    return any((counted_taps(axis) != real_cells(axis)).any() for axis in window.axes)


@dataclass(frozen=True)
class _SmoothLowering(Lowering):
    """The smooth maximum, the mean by its weights, its transpose: one reduction serves a value and a derivative."""

    def key(self, node: Node) -> Hashable | None:
        return node.inputs[0], node.attrs

    def task(self, work: Work) -> Task | None:
        variables, attrs, x = requested(work, "smooth_max_pool"), work.nodes[0].attrs, work.nodes[0].inputs[0]
        if variables is None or attrs.output_size is not None or not attrs.kernel_size:
            return None
        window, received = attrs.window(x), variables.get(Role.V)
        if reaches_far(window):
            return None
        derivatives = [SMOOTH_DERIVATIVES[node.op.name] for node in work.nodes if node.op.name in SMOOTH_DERIVATIVES]
        operation = derivatives[0] if derivatives else "soft"
        if operation == "soft_spread" and are_covered_often(window):
            if Role.Y in variables:
                return None
            operation, variables = "soft_shares", share_variables(x, variables[Role.U], variables[Role.V])
        pooling = _smooth_pooling(attrs, window, x, operation, tuple(variables))
        taps = sum(min(axis.kernel, 6) for axis in pooling.axes)
        sends = prod(axis.kernel for axis in pooling.axes) if operation == "soft_spread" else 0
        nanoseconds = 4 + 2.0 * taps + 2.0 * sends
        task = pooling_task(SMOOTH_NAMES[operation], operation, x.dtype, pooling, variables, nanoseconds)
        if operation == "soft_shares" and received is not None:
            name, operation = SMOOTH_NAMES["soft_spread"], "soft_cotangent"
            return transpose_task(name, operation, window, task, received, pooling, SMOOTH_COTANGENTS)
        return task


def _smooth_pooling(attrs: SmoothPool, window: Window, x: Var, operation: str, roles: tuple[Role, ...]) -> Pooling:
    computed, is_padded = COMPUTED[x.dtype.name], attrs.padding_mode == "zeros" and _has_padding(window)
    unit, softness = _split_beta(attrs, computed)
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


# --- norms ------------------------------------------------------------------------------------------------------------


NORMS = "gradspec.backends.cpu.pool.kernels.lp_pool"

NANOSECONDS_PER_TAP = {1.0: 1.7, 2.0: 3.3, inf: 1.2}
NANOSECONDS_PER_POWER, NANOSECONDS_PER_PIECE = 14.0, 100.0


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


class _LpPoolLowering(Lowering):
    def task(self, work: Work) -> Task | None:
        (node,) = work.nodes
        (x,), (y,), p = node.inputs, node.outputs, node.attrs.p
        window, function = node.attrs.window(x), kernel(NORMS, f"lp_pool:{x.dtype}")
        axes, width = tuple(axis.trimmed() for axis in regular_axes(window)) or (ONE_CELL,), COMPUTED[x.dtype.name]
        pooling = _PowerPooling(x.shape[: x.ndim - window.rank], axes, _exponents(p, width), width)
        taps = y.type.size * prod(axis.kernel for axis in axes)
        cost = taps * NANOSECONDS_PER_TAP.get(p, NANOSECONDS_PER_POWER)
        return task_of(f"window norm {x.dtype}", function, (x,), (y,), pooling, cost, NANOSECONDS_PER_PIECE)


# --- cells at places --------------------------------------------------------------------------------------------------


PLACING = "gradspec.backends.cpu.pool.kernels.unpool"

PLACES_PER_UNIT = 4096
CELLS_PER_BAND = 1 << 17
NANOSECONDS_PER_PLACE, NANOSECONDS_PER_CELL = 2.0, 0.5


@dataclass(frozen=True)
class _Placing:
    """Places ``(*leads, *shape)`` in planes ``(*leads, *plane)``: numbers are scattered to them, or gathered there."""

    leads: tuple[int, ...]
    shape: tuple[int, ...]
    plane: tuple[int, ...]
    kind: IndexKind
    scatters: bool
    width: int
    """Bytes of the numbers that sums are computed in."""

    def __call__(self, strides: Sequence[Strides]) -> KernelCall[UnpoolArguments]:
        """For strides of x, places and y."""
        (x, places, y), (x_plane, places_plane, y_plane) = strides, (s[len(self.leads) :] for s in strides)
        moved, plane = (x_plane, y_plane) if self.scatters else (y_plane, x_plane)
        count, cells = prod(self.shape), prod(self.plane)
        made, most = (cells, CELLS_PER_BAND) if self.scatters else (count, PLACES_PER_UNIT)
        band, bands = min(made, most), -(-made // most)
        arguments = UnpoolArguments(
            x=Operand(0),
            places=Operand(1),
            y=Operand(2),
            kind=self.kind,
            planes=grid(self.leads, x, y),
            place_planes=grid(self.leads, places, places),
            moved=grid(self.shape, moved, places_plane),
            count=count,
            plane=grid(self.plane, plane, plane),
            cells=cells,
            band=band,
            bands=bands,
        )
        return KernelCall(arguments, prod(self.leads) * bands, aligned(self.width * band) if self.scatters else 0)


@dataclass(frozen=True)
class _PlaceLowering(Lowering):
    scatters: bool

    def task(self, work: Work) -> Task | None:
        (node,) = work.nodes
        (x, indices), (y,) = node.inputs, node.outputs
        kind, width = IndexKind.__members__.get(indices.dtype.name.upper()), COMPUTED.get(x.dtype.name, 0)
        if kind is None or (self.scatters and not width):
            return None
        at = y.ndim - (len(node.attrs.output_size) if self.scatters else node.attrs.rank)
        plane = (y if self.scatters else x).shape[at:]
        placing = _Placing(y.shape[:at], indices.shape[at:], plane, kind, self.scatters, width)
        name = "scatter" if self.scatters else "gather"
        function = kernel(PLACING, f"{name}:{x.dtype if self.scatters else x.dtype.numpy.itemsize}")
        cost = NANOSECONDS_PER_PLACE * indices.type.size + NANOSECONDS_PER_CELL * y.type.size
        checks = ((indices, partial(require_in_plane, cells=prod(plane))),)
        return task_of(f"{name} {x.dtype}", function, node.inputs, node.outputs, placing, cost, checks=checks)


LOWERINGS: dict[str, Lowering] = {
    **dict.fromkeys(("max_pool", "max_pool_gather", "max_pool_scatter"), _MaxLowering()),
    "avg_pool": _AverageLowering(is_transpose=False),
    "avg_pool_transpose": _AverageLowering(is_transpose=True),
    **dict.fromkeys(("smooth_max_pool", "smooth_max_mean", "smooth_max_spread"), _SmoothLowering()),
    "lp_pool": _LpPoolLowering(),
    "max_gather": _PlaceLowering(scatters=False),
    "max_unpool": _PlaceLowering(scatters=True),
}
