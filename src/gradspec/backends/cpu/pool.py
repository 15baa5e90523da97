"""Max and average pooling on the pooling kernels."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from math import frexp, prod
from typing import Any

import numpy as np

from gradspec.backends.cpu.geometry import (
    Axis,
    Binder,
    Roles,
    as_bits,
    backwards,
    counted_taps,
    real_cells,
    spatial_axes,
)
from gradspec.backends.cpu.kernels import fields as f
from gradspec.graph.ir import Node, Var
from gradspec.graph.types import DType, TensorType, u8
from gradspec.ops.pool import AvgPool
from gradspec.runtime.cache import kernel
from gradspec.runtime.task import Lowering, LoweringBase, Task, Work
from gradspec.spec.window import Window

SOURCE = "gradspec.backends.cpu.kernels.pool"

COMPUTED = {"f16": 4, "bf16": 4, "f32": 4, "f64": 8, "i8": 4, "u8": 4, "i32": 4, "i64": 8}
"""Bytes of the numbers that each dtype is computed in; winners are as wide."""


def pooling_task(
    name: str,
    operation: str,
    dtype: DType,
    axes: Sequence[Axis],
    leads: Sequence[int],
    roles: Roles,
    inputs: tuple[Var, ...],
    outputs: tuple[Var, ...],
    nanoseconds: float,
) -> Task:
    """``nanoseconds`` per cell or output, whichever are more; a unit costs some hundred more."""
    binder = Binder(axes, leads, roles)
    dense = binder.dense()
    largest = prod(leads) * max(prod(a.size for a in axes), prod(a.outputs for a in axes))
    return Task(
        kernel=name,
        inputs=inputs,
        outputs=outputs,
        function=kernel(SOURCE, f"{operation}:{dtype}"),
        units=dense.units,
        cost=nanoseconds * largest + 300 * dense.units,
        workspace=dense.workspace,
        bind=binder,
        keeps_layout=True,
    )


# --- the maximum ------------------------------------------------------------------------------------------------------


def _window(node: Node) -> Window:
    window: Window = node.attrs.window(node.inputs[0])
    return window


def _volume(window: Window) -> int:
    return prod(axis.kernel for axis in spatial_axes(window))


def _tape_bytes(window: Window) -> int:
    volume = _volume(window)
    return 1 if volume < 1 << 8 else 2 if volume < 1 << 16 else 4


@dataclass(frozen=True)
class _Wanted:
    """The variables of one search for winners; None for what nobody reads."""

    value: Var | None = None
    indices: Var | None = None
    sent: Var | None = None
    """The tangent or cotangent that goes to, or comes from, the winners."""
    received: Var | None = None
    pulls: bool = False

    @classmethod
    def of(cls, work: Work) -> _Wanted | None:
        """None if more is wanted than one kernel gives."""
        found: dict[str, Any] = {}
        for node in work.nodes:
            is_value = node.op.name == "max_pool"
            names = ("value", "indices") if is_value else ("received",)
            mine: dict[str, Any] = {n: v for n, v in zip(names, node.outputs, strict=False) if v in work.outputs}
            if not is_value:
                mine |= {"sent": node.inputs[1], "pulls": node.op.name == "max_pool_pull"}
            if found.keys() & mine.keys():
                return None
            found |= mine
        return cls(**found)


@dataclass(frozen=True)
class _MaxLowering(LoweringBase):
    """The maximum, its indices, and the tangents and cotangents of its winners: one kernel finds winners for all."""

    def key(self, node: Node) -> Hashable | None:
        return node.inputs[0], replace(node.attrs, return_indices=False)

    def tape(self, node: Node) -> TensorType | None:
        """Winners as bytes. A value alone is found faster without them."""
        if node.op.name == "max_pool" or node.attrs.ties != "first":
            return None
        window, x = _window(node), node.inputs[0]
        shape = x.shape[: x.ndim - window.rank] + window.outputs
        return TensorType(u8, (*shape, _tape_bytes(window)))

    def task(self, work: Work) -> Task | None:
        wanted, node = _Wanted.of(work), work.nodes[0]
        if wanted is None or node.inputs[0].dtype.name not in COMPUTED:
            return None
        window, x = _window(node), node.inputs[0]
        if node.attrs.ties != "first" and wanted.received is not None:
            return None if wanted.indices else _ties_task(window, x, wanted, node.attrs.ties)
        if _volume(window) >= 1 << 30 or (work.reads_tape and (wanted.value or wanted.indices)):
            return None
        return _max_task(window, x, wanted, work)


def _max_task(window: Window, x: Var, wanted: _Wanted, work: Work) -> Task:
    computed, stored, tape = COMPUTED[x.dtype.name], x.dtype.numpy.itemsize, work.tape
    reads = {f.TAPE: tape, f.U: wanted.sent} if work.reads_tape else {f.X: x, f.U: wanted.sent}
    sources = {field: v for field, v in reads.items() if v is not None}
    writes = {f.Y: wanted.value, f.INDICES: wanted.indices, f.V: wanted.received}
    writes |= {} if work.reads_tape else {f.TAPE: tape}
    results = {field: v for field, v in writes.items() if v is not None}
    alone = [*results] == [f.Y]
    operation = "tape" if work.reads_tape else "max" if alone else "winners"
    fields = (*sources, *results)
    tape_bytes = _tape_bytes(window)
    roles = Roles(
        fields,
        {f.PULLS: int(wanted.pulls), f.TAPE_BYTES: tape_bytes},
        (computed,) if alone else (computed, computed),
        stored,
        tuple({f.TAPE: tape_bytes, f.INDICES: 8}.get(field, stored) for field in fields),
        reads_in_place=True,
        is_quiet=alone,
    )
    return pooling_task(
        f"{_MAX_NAMES[operation]} {x.dtype}",
        operation,
        x.dtype,
        spatial_axes(window),
        x.shape[: x.ndim - window.rank],
        roles,
        tuple(sources.values()),
        tuple(results.values()),
        nanoseconds=0.7 if alone else 3.0,
    )


def _ties_task(window: Window, x: Var, wanted: _Wanted, ties: str) -> Task:
    stored, axes = x.dtype.numpy.itemsize, spatial_axes(window)
    pairs = ((f.X, x), (f.U, wanted.sent), (f.Y, wanted.value), (f.V, wanted.received))
    arrays = {field: v for field, v in pairs if v is not None}
    roles = Roles(
        tuple(arrays),
        {f.DIRECT: 0, f.PULLS: int(wanted.pulls), f.TIES: f.SPLIT if ties == "split" else f.ALL},
        (COMPUTED[x.dtype.name],) * 3,
        stored,
        (stored,) * len(arrays),
        reals=True,
        lists_taps=True,
    )
    return pooling_task(
        f"window ties {x.dtype}",
        "ties",
        x.dtype,
        axes,
        x.shape[: x.ndim - window.rank],
        roles,
        tuple(v for field, v in arrays.items() if field in (f.X, f.U)),
        tuple(v for field, v in arrays.items() if field in (f.Y, f.V)),
        nanoseconds=3.0 + 0.5 * _volume(window),
    )


_MAX_NAMES = {"max": "window maximum", "winners": "window winners", "tape": "recorded winners"}


# --- the average ------------------------------------------------------------------------------------------------------


def _divisor(attrs: AvgPool, window: Window) -> tuple[float, Any]:
    """The one divisor of all windows, or 0 and what counts the cells of each."""
    if attrs.divisor_override is not None:
        return float(attrs.divisor_override), None
    counts = counted_taps if attrs.count_include_pad else _at_least_one
    each = [counts(axis) for axis in window.axes]
    if all((c == c[0]).all() for c in each):
        return float(prod(int(c[0]) for c in each)), None
    return 0.0, counts


def _at_least_one(window: Any) -> Any:
    """Real cells; 1 for none, so that it can be divided by."""
    return np.maximum(real_cells(window), 1)


def _inverse(divisor: float, number: Any) -> float:
    """The rounded inverse, or 0 where it or the divisor is far from 1, and a division is safer."""
    return float(number(1) / number(divisor)) if 2.0**-60 < abs(divisor) < 2.0**60 else 0.0


@dataclass(frozen=True)
class _AverageLowering(LoweringBase):
    """The sum over windows, divided, or read backwards: what cells receive from the windows that cover them."""

    spreads: bool

    def task(self, work: Work) -> Task | None:
        ((node,), (x,), (y,)) = work.nodes, work.nodes[0].inputs, work.nodes[0].outputs
        cells = y if self.spreads else x
        window = node.attrs.window(cells)
        divisor, counts = _divisor(node.attrs, window)
        axes = spatial_axes(window)
        stored, computed = x.dtype.numpy.itemsize, COMPUTED[x.dtype.name]
        inverse = _inverse(divisor, np.float64 if computed == 8 else np.float32)
        settings = {
            f.DIVISOR: as_bits(divisor),
            f.INVERSE: as_bits(inverse),
            f.EXACT: int(abs(frexp(inverse)[0]) == 0.5),
            f.SCALED: int(self.spreads),
        }
        return pooling_task(
            f"window {'spread' if self.spreads else 'mean'} {x.dtype}",
            "sum",
            x.dtype,
            tuple(map(backwards, axes)) if self.spreads else axes,
            x.shape[: x.ndim - window.rank],
            Roles((f.X, f.Y), settings, (computed,), stored, (stored, stored), True, counts is None, counts),
            (x,),
            (y,),
            nanoseconds=0.8,
        )


MAXIMUM = _MaxLowering()

LOWERINGS: dict[str, Lowering] = {
    "max_pool": MAXIMUM,
    "max_pool_push": MAXIMUM,
    "max_pool_pull": MAXIMUM,
    "avg_pool": _AverageLowering(spreads=False),
    "avg_pool_spread": _AverageLowering(spreads=True),
}
