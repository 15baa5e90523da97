"""What a problem is made of: its windows, how many cells they read, and the shape of its value."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from gradspec.backends.tables import ABSENT, table
from gradspec.conformance.model.problem import COLUMNS, CONVOLUTIONS, SLIDING_POOLS, Attributes, Problem, Shape
from gradspec.spec.conv import Form, conv_form, transposed_form
from gradspec.spec.window import AxisWindow, Regular, Window, adaptive, per_axis, regular, whole


@dataclass(frozen=True)
class WindowGeometry:
    """The parts of a problem.

    ``window`` slides over the input, or over the value of a transposed convolution or fold; unpooling has none.
    ``lead`` are the axes of the input before the channel axis; ``channels`` is None where there is no such axis.
    """

    window: Window | None
    lead: Shape
    channels: int | None
    spatial: Shape
    """The spatial axes of ``x`` (of the value of a fold, whose columns have none)."""
    output: Shape
    form: Form | None = None

    @property
    def samples(self) -> int:
        return prod(self.lead)

    @property
    def axes(self) -> tuple[AxisWindow, ...]:
        return () if self.window is None else self.window.axes

    @property
    def sliding(self) -> list[Regular]:
        return [axis for axis in self.axes if isinstance(axis, Regular)]

    def each(self, name: str) -> tuple[int, ...]:
        """The ``kernel``, ``stride``, ``lo``, ``hi`` or ``dilation`` of every axis that slides."""
        return tuple(getattr(axis, name) for axis in self.sliding)

    @property
    def padding(self) -> tuple[tuple[int, int], ...]:
        return tuple(zip(self.each("lo"), self.each("hi"), strict=True))

    @property
    def reads(self) -> int:
        """The most real cells that one window reads."""
        return prod(extremes(axis).reads for axis in self.axes)

    @property
    def hits(self) -> int:
        """The most windows that read one cell."""
        return prod(extremes(axis).hits for axis in self.axes)

    @property
    def taps(self) -> int:
        """The most positions of a window, padding included."""
        return prod(extremes(axis).taps for axis in self.axes)

    @property
    def windows(self) -> int:
        return prod(self.output if self.window is None else self.window.outputs)


class Extremes(NamedTuple):
    """Of one axis: the most and fewest real positions of a window, its most positions, the most windows on one."""

    reads: int
    fewest: int
    taps: int
    hits: int


@lru_cache(maxsize=4096)
def extremes(axis: AxisWindow) -> Extremes:
    """
    >>> extremes(regular((3,), (2,), 1, 1).axes[0])
    Extremes(reads=2, fewest=1, taps=2, hits=2)
    """
    taps = table(Window((axis,)))
    reads, hits = (taps >= 0).sum(axis=1), np.bincount(taps[taps >= 0], minlength=axis.size)
    return Extremes(*map(int, (reads.max(), reads.min(), (taps != ABSENT).sum(axis=1).max(), hits.max())))


def extent(axis: Regular) -> int:
    """The cells from a window's first tap to its last."""
    return axis.dilation * (axis.kernel - 1) + 1


def geometry_of(problem: Problem) -> WindowGeometry:
    """The parts of a problem, which must be legal.

    >>> geometry_of(Problem("max_pool", 1, ((2, 5),), {"kernel_size": (2,)})).output
    (2, 2)
    """
    return _geometry_of(problem.op, problem.rank, problem.shapes, tuple(sorted(problem.attributes.items())))


@lru_cache(maxsize=1024)
def _geometry_of(
    op: str, rank: int, shapes: tuple[Shape | None, ...], items: tuple[tuple[str, Any], ...]
) -> WindowGeometry:
    given, shape = dict(items), shapes[0]
    assert shape is not None
    if op in CONVOLUTIONS:
        return _convolution(op, rank, shapes, given)
    if op in COLUMNS:
        return _columns(op, rank, shape, given)
    outer, spatial = shape[: len(shape) - rank], shape[len(shape) - rank :]
    lead, channels = (outer[:-1], outer[-1]) if outer else ((), None)
    if op == "max_unpool":
        return WindowGeometry(None, lead, channels, spatial, (*outer, *given["output_size"]))
    window = _pool_window(op, spatial, given)
    value = outer if given.get("keepdims") is False else (*outer, *window.outputs)
    return WindowGeometry(window, lead, channels, spatial, value)


def _pool_window(op: str, spatial: Shape, given: Attributes) -> Window:
    if op in SLIDING_POOLS:
        names = ("kernel_size", "stride", "padding", "dilation", "ceil_mode")
        return regular(spatial, **{name: given[name] for name in names if name in given})
    return adaptive(spatial, given["output_size"]) if op.startswith("adaptive") else whole(spatial)


def _convolution(op: str, rank: int, shapes: tuple[Shape | None, ...], given: Attributes) -> WindowGeometry:
    x, weight, bias = (None if shape is None else np.broadcast_to(np.float32(0), shape) for shape in shapes)
    assert x is not None
    named = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1, **given}
    lead, channels, spatial = x.shape[: x.ndim - rank - 1], x.shape[-1 - rank], x.shape[x.ndim - rank :]
    if op == "conv":
        form = conv_form(x, weight, bias, **named)  # type: ignore[arg-type]
        return WindowGeometry(form.window, lead, channels, spatial, (*lead, *form.g_shape), form)
    form = transposed_form(x, weight, bias, **{"output_padding": 0, **named})  # type: ignore[arg-type]
    return WindowGeometry(form.window, lead, channels, spatial, (*lead, *form.x_shape), form)


def _columns(op: str, rank: int, shape: Shape, given: Attributes) -> WindowGeometry:
    sizes = tuple(given["output_size"]) if op == "fold" else shape[len(shape) - rank :]
    steps = per_axis("stride", given.get("stride", 1), rank, least=1)
    window = regular(sizes, given["kernel_size"], steps, given.get("padding", 0), given.get("dilation", 1))
    taps, outputs = prod(given["kernel_size"]), prod(window.outputs)
    if op == "fold":
        lead, channels = shape[:-2], shape[-2] // taps
        return WindowGeometry(window, lead, channels, sizes, (*lead, channels, *sizes))
    lead, channels = shape[: len(shape) - rank - 1], shape[-1 - rank]
    return WindowGeometry(window, lead, channels, sizes, (*lead, channels * taps, outputs))


def unpooled_windows(problem: Problem) -> list[tuple[int, int]]:
    """For each axis a kernel and a stride whose pooling takes the output to the input; the kernel is 0 where none does.

    >>> unpooled_windows(Problem("max_unpool", 2, ((3, 4), (3, 4)), {"output_size": (7, 2)}))
    [(3, 2), (0, 1)]
    """
    found = []
    for n, size in zip(problem.spatial, problem.attributes["output_size"], strict=True):
        stride = max(size // n, 1)
        found.append((max(size - (n - 1) * stride, 0), stride))
    return found


def leaves(problem: Problem, mode: str) -> int:
    """The most terms that one result of a mode adds up, zeros among the numbers not regarded."""
    parts = geometry_of(problem)
    reads, hits = parts.reads, parts.hits
    if parts.form is not None:
        return _products(problem.op, parts, parts.form, mode)
    if problem.op.endswith("max_pool") and not problem.op.startswith("smooth"):
        return hits if mode == "vjp" else 1
    forward, backward = {"unfold": (1, hits), "fold": (hits, 1), "max_unpool": (1, 1)}.get(problem.op, (reads, hits))
    return backward if mode == "vjp" else forward


def _products(op: str, parts: WindowGeometry, form: Form, mode: str) -> int:
    read = form.x_channels // form.groups * parts.reads
    write = form.g_channels // form.groups * parts.hits
    forward, backward = (read, write) if op == "conv" else (write, read)
    compared = parts.samples * prod(form.window.outputs)
    if mode in ("value", "jvp"):
        return (2 if mode == "jvp" else 1) * forward + 1
    return max(backward, compared, 2 * forward + 1 if mode == "second" else 0)
