"""What a problem is made of: its windows, its attributes, the shape of its value, and its independent numbers.

The specification's geometry puts a changed problem together, so that every change is a legal call or a ``ShapeError``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from gradspec import spec
from gradspec.backends.tables import ABSENT, axis_table
from gradspec.conformance.model.problem import (
    COLUMNS,
    CONVOLUTIONS,
    DTYPES,
    INPUTS,
    SLIDING_POOLS,
    Array,
    Attributes,
    Call,
    Problem,
    Shape,
)
from gradspec.ops import conv, pool, smooth_pool, unfold, unpool
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
    taps = axis_table(axis)
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


# --- attributes -------------------------------------------------------------------------------------------------------


OPERATORS: dict[str, Callable[..., Any]] = {
    name: getattr(room, name)
    for room in (pool, smooth_pool, conv, unpool, unfold)
    for name in INPUTS
    if hasattr(room, name)
}
"""Our own operators, on arrays and on the variables of graphs."""


@cache
def default_attributes(op: str) -> dict[str, Any]:
    """The attributes of an operator with the specification's defaults; ``inspect.Parameter.empty`` where it has none.

    >>> default_attributes("adaptive_max_pool")["ties"]
    'first'
    """
    parameters = inspect.signature(getattr(spec, op)).parameters
    return {name: p.default for name, p in parameters.items() if name not in (*INPUTS[op], "return_indices")}


def with_defaults(op: str, rank: int, attributes: Attributes) -> dict[str, Any]:
    """All attributes of an operator, those that are not given at their defaults.

    >>> with_defaults("unfold", 2, {"kernel_size": (2, 3)})["padding"]
    ((0, 0), (0, 0))
    >>> with_defaults("max_pool", 1, {"kernel_size": (3,), "ceil_mode": True})["stride"]
    (3,)
    """
    found = {
        name: attributes.get(name, default)
        for name, default in {**default_attributes(op), **global_rank(op, rank)}.items()
    }
    if "stride" in found and found["stride"] is None:
        found["stride"] = found["kernel_size"]
    for name in ("stride", "dilation", "output_padding"):
        if name in found:
            found[name] = per_axis(name, found[name], rank, least=0)
    if isinstance(found.get("padding"), int):
        found["padding"] = ((found["padding"],) * 2,) * rank
    return found


def global_rank(op: str, rank: int) -> dict[str, int]:
    """The attribute ``rank`` of operators that cannot read it off a window."""
    return {"rank": rank} if "rank" in default_attributes(op) else {}


def spelled(problem: Problem) -> dict[str, Any]:
    """The attributes of a call, with the rank where the operator cannot read it off a window."""
    return {**global_rank(problem.op, problem.rank), **problem.attributes}


def is_usual(op: str, rank: int, attributes: Attributes, name: str) -> bool:
    """Whether an attribute has the value that it would have if it were left out.

    >>> is_usual("max_pool", 1, {"kernel_size": (3,), "stride": (3,)}, "stride")
    True
    """
    default = default_attributes(op)[name]
    if default is inspect.Parameter.empty:
        return False
    if name == "rank":
        return bool(rank == default)
    others = {key: value for key, value in attributes.items() if key != name}
    return bool(with_defaults(op, rank, attributes)[name] == with_defaults(op, rank, others)[name])


# --- taken apart and put together again -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Parts:
    """A problem in numbers of which each may change alone. Channels are those of one group.

    ``sizes`` are the spatial axes of ``x``; those of the value for ``fold``, whose columns follow from them.
    """

    op: str
    dtype: str
    lead: Shape
    groups: int
    channels: int
    outputs: int
    sizes: Shape
    kernel: Shape
    has_bias: bool
    attributes: Attributes

    @staticmethod
    def of(problem: Problem) -> Parts:
        made_of, given = geometry_of(problem), dict(problem.attributes)
        groups, weight = given.pop("groups", 1), problem.shapes[1] if problem.op in CONVOLUTIONS else None
        if problem.op == "fold":
            del given["output_size"]
        channels = made_of.channels if problem.op in (*CONVOLUTIONS, *COLUMNS) else None
        return Parts(
            op=problem.op,
            dtype=problem.dtype,
            lead=problem.lead,
            groups=groups,
            channels=(1 if channels is None else channels) // groups,
            outputs=1 if weight is None else weight[0] // groups if problem.op == "conv" else weight[1],
            sizes=made_of.spatial,
            kernel=() if weight is None else weight[2:],
            has_bias=weight is not None and problem.shapes[2] is not None,
            attributes=given,
        )

    @property
    def rank(self) -> int:
        return len(self.sizes)

    def changed(self, **parts: Any) -> Parts:
        return replace(self, **parts)

    def problem(self) -> Problem:
        """The problem again; ``ShapeError`` where it is not a legal one."""
        given = dict(self.attributes)
        if self.op == "fold":
            given["output_size"] = self.sizes
        if self.groups > 1:
            given["groups"] = self.groups
        problem = Problem(self.op, self.rank, self._shapes(), given, self.dtype)
        geometry_of(problem)
        return problem

    def _shapes(self) -> tuple[Shape | None, ...]:
        if self.op == "fold":
            window = {name: value for name, value in self.attributes.items() if name != "output_size"}
            columns = geometry_of(Problem("unfold", self.rank, ((self.channels, *self.sizes),), window)).output
            return ((*self.lead, *columns),)
        if self.op not in CONVOLUTIONS:
            x = (*self.lead, *((self.channels,) if self.op == "unfold" else ()), *self.sizes)
            return (x,) * len(INPUTS[self.op])
        x = (*self.lead, self.channels * self.groups, *self.sizes)
        first, second = (self.outputs, self.channels) if self.op == "conv" else (self.channels, self.outputs)
        bias = (self.outputs * self.groups,) if self.has_bias else None
        return x, (first * self.groups, second, *self.kernel), bias


# --- arrays for them --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Refit:
    """Other parts of a problem, and how its arrays are cut from the old ones.

    An axis that goes, ``lead0`` or ``axis1``, is cut at ``at``; others keep their first cells, or their last.
    """

    parts: Parts
    gone: str = ""
    at: int = 0
    last: bool = False

    def call(self, old: Call) -> Call:
        """The call of the parts; ``ShapeError`` where there is none."""
        problem = self.parts.problem()
        output = geometry_of(problem).output
        shapes, arrays = {**problem.named_shapes(), "g": output}, dict[str, Array]()
        for name, array in old.arrays().items():
            own = name if name == "g" or name in old.named() else name[1:]
            if own in shapes:
                arrays[name] = self._cut(old.problem, own, array, shapes[own])
        if "indices" in arrays:
            places, cells = arrays["indices"], prod(problem.attributes["output_size"])
            arrays["indices"] = np.where(places < 0, places, places % cells)
        return replace(old, problem=problem, output=output).with_arrays(arrays).in_layout()

    def _cut(self, old: Problem, name: str, array: Array, shape: Shape) -> Array:
        roles = _roles(old, name)
        if self.gone in roles:
            axis = roles.index(self.gone)
            array = np.take(array, min(self.at, array.shape[axis] - 1), axis)
        if name != "indices":
            with np.errstate(over="ignore"):  # what is too large for float32 becomes infinite, and fails or not
                array = array.astype(DTYPES[self.parts.dtype])
        kept = array.reshape(array.shape + (1,) * (len(shape) - array.ndim))  # where ``keepdims`` comes back
        return recut(kept, shape, self.last)


def recut(array: Array, shape: Shape, last: bool = False) -> Array:
    """The first cells along each axis, or the last; where there are too few they are repeated.

    >>> cells = np.arange(4)
    >>> recut(cells, (3,)).tolist(), recut(cells, (3,), last=True).tolist(), recut(cells, (6,)).tolist()
    ([0, 1, 2], [1, 2, 3], [0, 1, 2, 3, 0, 1])
    """
    if array.size == 0:
        return np.zeros(shape, array.dtype)
    sizes = list(enumerate(zip(array.shape, shape, strict=True)))
    for axis, (old, new) in sorted(sizes, key=lambda axis: axis[1][1] > axis[1][0]):  # cut first, then repeat
        places = (np.arange(new) + (old - new if last else 0)) % old
        array = np.take(array, places, axis)
    return array


def _roles(problem: Problem, name: str) -> list[str]:
    """What the axes of an input or of the value's cotangent stand for."""
    parts = Parts.of(problem)
    leads, axes = [f"lead{i}" for i in range(len(parts.lead))], [f"axis{i}" for i in range(parts.rank)]
    if name == "weight":
        return ["first", "second", *axes]
    if name == "bias":
        return ["first"]
    if (problem.op, name) in (("unfold", "g"), ("fold", "x")):
        return [*leads, "rows", "columns"]
    if problem.op in (*CONVOLUTIONS, *COLUMNS):
        return [*leads, "channel", *axes]
    return leads if name == "g" and problem.attributes.get("keepdims") is False else [*leads, *axes]
