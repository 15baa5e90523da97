"""What the checker knows of operators: as affine maps, and as lines below and above what bends. It is its own: nothing
here is used to find proofs, and nothing that finds them is used here.

Arrays are float64 with a leading axis, of boxes or of rows; a constant of any float format is a float64 as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import numpy as np

from gradspec.graph.ir import Array, Node
from gradspec.graph.types import TensorType
from gradspec.spec.errors import UnsupportedError

U, TINY = 2.0**-53, 2.0**-1000
"""Half a unit in the last place of 1, and more than all that underflows loses in any sum here."""

Map = Callable[[Array], Array]
Values = Sequence[Array | None]
"""The operands of a node that are constants, and None for those that vary."""


@dataclass(frozen=True)
class AffinePart:
    """What an affine map does to one operand: the map itself, with absolute coefficients, and transposed."""

    operand: int
    push: Map
    size: Map
    pull: Map


@dataclass(frozen=True)
class AffineMap:
    """``y = Σ push(z) + offset``.

    ``roundings`` bounds those that a number meets in ``push``, ``size`` or ``pull``. A kernel adds up
    ``leaves(counts)`` numbers, given how many each operand that varies is the sum of; if it ``joins`` sums, these may
    all be in one tree.
    """

    parts: tuple[AffinePart, ...]
    offset: Array
    offset_size: Array
    roundings: int
    leaves: Callable[[Sequence[int]], int]
    joins: bool = False
    moves: bool = False


def move_cells(parts: Sequence[tuple[int, Map, Map]], offset: Array, repeats: int = 0) -> AffineMap:
    """Numbers in other places: nothing is rounded but sums of ``repeats`` numbers on the way back."""
    return AffineMap(
        tuple(AffinePart(i, push, push, pull) for i, push, pull in parts),
        offset,
        np.abs(offset),
        repeats,
        lambda counts: max(counts, default=1),
        joins=True,
        moves=True,
    )


def _bind(function: Callable[..., Array], *arguments: object) -> Map:
    return lambda x: function(x, *arguments)


def _zeros(node: Node) -> Array:
    return np.zeros(node.outputs[0].shape)


# --- numbers in other places ------------------------------------------------------------------------------------------


def _reshape(node: Node, values: Values) -> AffineMap:
    before, after = node.inputs[0].shape, node.outputs[0].shape
    pair = (lambda x: x.reshape(len(x), *after)), (lambda g: g.reshape(len(g), *before))
    return move_cells([(0, *pair)], _zeros(node))


def _transpose(node: Node, values: Values) -> AffineMap:
    axes = tuple(node.attrs.axes)
    there, back = (0, *(a + 1 for a in axes)), (0, *(axes.index(a) + 1 for a in range(len(axes))))
    return move_cells([(0, _bind(np.transpose, there), _bind(np.transpose, back))], _zeros(node))


def _broadcast(node: Node, values: Values) -> AffineMap:
    before, after = node.inputs[0].shape, node.outputs[0].shape
    extra = len(after) - len(before)
    aligned = (*(1,) * extra, *before)
    axes = tuple(i + 1 for i, (n, m) in enumerate(zip(aligned, after, strict=True)) if n != m)

    def push(x: Array) -> Array:
        return np.broadcast_to(x.reshape(len(x), *aligned), (len(x), *after))

    def pull(g: Array) -> Array:
        return g.sum(axis=axes).reshape(len(g), *before)  # type: ignore[no-any-return]

    return move_cells([(0, push, pull)], _zeros(node), repeats=prod(after) // max(prod(before), 1))


def _slice(node: Node, values: Values) -> AffineMap:
    attrs: Any = node.attrs
    axes = zip(attrs.starts, attrs.sizes, attrs.steps, strict=True)
    places = np.ix_(*(start + step * np.arange(size) for start, size, step in axes))
    scatter, gather = _scatter_and_gather(node.inputs[0].shape, (slice(None), *places))
    return move_cells([(0, gather, scatter)], _zeros(node))


def _pad(node: Node, values: Values) -> AffineMap:
    attrs: Any = node.attrs
    x, y = node.inputs[0].shape, node.outputs[0].shape
    axes = zip(attrs.padding, attrs.interior, x, strict=True)
    places = (slice(None), *np.ix_(*(lo + (gap + 1) * np.arange(n) for (lo, _), gap, n in axes)))
    offset = np.full(y, float(attrs.value))
    offset[places[1:]] = 0.0
    return move_cells([(0, *_scatter_and_gather(y, places))], offset)


def _concat(node: Node, values: Values) -> AffineMap:
    axis: int = node.attrs.axis
    ends = np.cumsum([0, *(v.shape[axis] for v in node.inputs)])
    offset, parts = _zeros(node), []
    for i, value in enumerate(values):
        own = (*(slice(None),) * axis, slice(int(ends[i]), int(ends[i + 1])))
        if value is not None:
            offset[own] = value
        else:
            parts.append((i, *_scatter_and_gather(node.outputs[0].shape, (slice(None), *own))))
    return move_cells(parts, offset)


def _scatter_and_gather(shape: tuple[int, ...], own: Any) -> tuple[Map, Map]:
    def push(x: Array) -> Array:
        found = np.zeros((len(x), *shape))
        found[own] = x
        return found

    return push, lambda g: g[own]


# --- arithmetic cell by cell ------------------------------------------------------------------------------------------


def _add(node: Node, values: Values, second: float = 1.0) -> AffineMap:
    offset, parts = _zeros(node), []
    for i, (value, sign) in enumerate(zip(values, (1.0, second), strict=True)):
        if value is not None:
            offset = offset + sign * value
        else:
            parts.append(AffinePart(i, _bind(np.multiply, sign), lambda x: x, _bind(np.multiply, sign)))
    constants = len(values) - len(parts)
    return AffineMap(tuple(parts), offset, np.abs(offset), 1, lambda counts: sum(counts) + constants, joins=True)


def _scale_by(node: Node, factor: Array, roundings: int = 1, operand: int = 0, joins: bool = False) -> AffineMap:
    """Times numbers that are exact, or rounded so often."""
    _require_usual(node, factor)
    by = _bind(np.multiply, factor)
    part = AffinePart(operand, by, _bind(np.multiply, np.abs(factor)), by)
    return AffineMap((part,), _zeros(node), _zeros(node), roundings, lambda counts: counts[0] + roundings, joins)


def _require_usual(node: Node, factor: Array) -> None:
    """A factor that is computed must not have underflowed, or its error would not be one of its own size."""
    if not np.isfinite(factor).all() or np.any((factor != 0) & (np.abs(factor) < 2.0**-900)):
        raise UnsupportedError(f"the checker does not know {node.op} by numbers as large or small as here")


def _neg(node: Node, values: Values) -> AffineMap:
    part = AffinePart(0, np.negative, lambda x: x, np.negative)
    return AffineMap((part,), _zeros(node), _zeros(node), 0, lambda counts: counts[0], joins=True, moves=True)


def _mul(node: Node, values: Values) -> AffineMap:
    factor = values[1] if values[0] is None else values[0]
    if factor is None:
        raise UnsupportedError("the checker does not know mul of two operands that vary")
    return _scale_by(node, factor, operand=0 if values[0] is None else 1)


def _div(node: Node, values: Values) -> AffineMap:
    if values[0] is not None or values[1] is None:
        raise UnsupportedError("the checker does not know div by what varies")
    with np.errstate(divide="ignore"):
        return _scale_by(node, 1.0 / values[1], roundings=2)


def _scale(node: Node, values: Values) -> AffineMap:
    return _scale_by(node, np.asarray(node.attrs.factor, np.float64), roundings=2, joins=True)


def _batch_norm(node: Node, values: Values) -> AffineMap:
    """``s·x + (b − s·m)``, ``s = w/√(v + eps)``: a kernel meets eight roundings at most, and so does this."""
    attrs: Any = node.attrs
    if values[0] is not None or any(value is None for value in values[1:]):
        raise UnsupportedError("the checker knows batch_norm by constant statistics only")
    mean, var, *rest = map(np.asarray, values[1:])
    weight = rest[0] if attrs.weight else np.ones(mean.shape)
    bias = rest[-1] if attrs.bias else np.zeros(mean.shape)
    if not np.all(var + attrs.eps > 0):
        raise UnsupportedError("the checker knows batch_norm by positive variances only")

    def across(v: Any) -> Array:
        shape = node.outputs[0].shape
        return np.broadcast_to(np.reshape(v, (shape[1], *(1,) * (len(shape) - 2))), shape)

    slope = weight / np.sqrt(var + attrs.eps)
    _require_usual(node, slope)
    by, size = _bind(np.multiply, across(slope)), _bind(np.multiply, across(np.abs(slope)))
    return AffineMap(
        (AffinePart(0, by, size, by),),
        across(bias - slope * mean),
        across(np.abs(bias) + np.abs(slope * mean) + np.abs(weight) * 2.0**-100),  # which an underflow is scaled by
        8,
        lambda counts: 8,
    )


# --- sums of products -------------------------------------------------------------------------------------------------


def _matmul(node: Node, values: Values) -> AffineMap:
    attrs: Any = node.attrs
    varying = [i for i in (0, 1) if values[i] is None]
    if len(varying) != 1:
        raise UnsupportedError("the checker does not know matmul of two operands that vary")
    (i,), shape = varying, node.outputs[0].shape
    turned = (attrs.transpose_a, attrs.transpose_b)
    other = np.asarray(values[1 - i])
    matrix = other.swapaxes(-1, -2) if turned[1 - i] else other

    def times(by: Array) -> tuple[Map, Map]:
        def push(x: Array) -> Array:
            x = x.swapaxes(-1, -2) if turned[i] else x
            return _rows_times(x, by) if i == 0 else by @ x

        def pull(g: Array) -> Array:
            back = by.swapaxes(-1, -2)
            found = _rows_times(g, back) if i == 0 else back @ g
            return found.swapaxes(-1, -2) if turned[i] else found

        return push, pull

    push, pull = times(matrix)
    parts, offset = [AffinePart(i, push, times(np.abs(matrix))[0], pull)], np.zeros(shape)
    if len(values) == 3:
        _add_bias(parts, offset, values[2], lambda b: b[..., None, :], lambda g: g.sum(axis=-2), shape)
    inner = matrix.shape[-2] if i == 0 else matrix.shape[-1]
    terms = max(inner, *shape[-2:]) + 1
    return AffineMap(tuple(parts), offset, np.abs(offset), terms, lambda counts: inner + len(values) - 2)


def _rows_times(x: Array, matrix: Array) -> Array:
    """All rows times one matrix; where there are several matrices, each its own."""
    if matrix.ndim > 2:
        return x @ matrix
    return (x.reshape(-1, x.shape[-1]) @ matrix).reshape(*x.shape[:-1], matrix.shape[-1])


def _add_bias(
    parts: list[AffinePart], offset: Array, bias: Array | None, spread: Map, collect: Map, shape: tuple[int, ...]
) -> None:
    """A third operand that is added as it is: a constant, or one that varies."""
    if bias is not None:
        offset += spread(bias)
        return

    def push(x: Array) -> Array:
        return np.broadcast_to(spread(x), (len(x), *shape))

    parts.append(AffinePart(2, push, push, collect))


def _conv(node: Node, values: Values) -> AffineMap:
    attrs: Any = node.attrs
    x, y, weight = node.inputs[0], node.outputs[0], values[1]
    if values[0] is not None or weight is None:
        raise UnsupportedError("the checker knows conv by constant weights only")
    rank, groups = len(attrs.kernel), attrs.groups
    weight = weight.reshape(groups, weight.shape[0] // groups, *weight.shape[1:])
    slide = Sliding(attrs, x.shape[x.ndim - rank :])
    parts = [
        AffinePart(0, slide.push(weight, x.shape), slide.push(np.abs(weight), x.shape), slide.pull(weight, x.shape))
    ]
    offset, terms = np.zeros(y.shape), weight[0, 0].size
    if len(values) == 3:
        spread = lambda b: b[(..., *(None,) * rank)]  # noqa: E731
        lead = len(y.shape) - rank - 1
        axes = (*range(1, 1 + lead), *range(2 + lead, 2 + lead + rank))
        _add_bias(parts, offset, values[2], spread, lambda g: g.sum(axis=axes), y.shape)
    back = weight.shape[1] * prod(attrs.kernel) + y.type.size
    return AffineMap(tuple(parts), offset, np.abs(offset), max(terms, back) + 1, lambda counts: terms + len(values) - 2)


@dataclass(frozen=True)
class Sliding:
    """Where the taps of a convolution lie: ``o·stride − lo + dilation·k``, in an axis with padding at both ends."""

    attrs: Any
    sizes: tuple[int, ...]

    @property
    def _padded(self) -> tuple[int, ...]:
        """The padded axis as far as any tap reaches, or the axis does."""
        a = self.attrs
        return tuple(
            max(lo + n, (o - 1) * s + d * (k - 1) + 1)
            for n, (lo, _), o, s, d, k in zip(
                self.sizes, a.padding, a.outputs, a.stride, a.dilation, a.kernel, strict=True
            )
        )

    @property
    def _inside(self) -> Any:
        return (..., *(slice(lo, lo + n) for n, (lo, _) in zip(self.sizes, self.attrs.padding, strict=True)))

    def _taps(self) -> Any:
        a = self.attrs
        for tap in product(*(range(k) for k in a.kernel)):
            cells = zip(tap, a.dilation, a.stride, a.outputs, strict=True)
            yield (..., *tap), (..., *(slice(t * d, t * d + (o - 1) * s + 1, s) for t, d, s, o in cells))

    @property
    def _one(self) -> bool:
        return bool(prod(self.attrs.outputs) == 1)

    @property
    def _window(self) -> Any:
        """The one window there is, all taps at once."""
        return (
            ...,
            *(slice(0, d * (k - 1) + 1, d) for d, k in zip(self.attrs.dilation, self.attrs.kernel, strict=True)),
        )

    def push(self, weight: Array, shape: tuple[int, ...]) -> Map:
        groups, rows, columns = weight.shape[:3]
        lead, outputs = shape[: len(shape) - len(self.sizes) - 1], self.attrs.outputs

        def push(x: Array) -> Array:
            count = len(x) * prod(lead)
            padded = np.zeros((count, groups, columns, *self._padded))
            padded[self._inside] = x.reshape(count, groups, columns, *self.sizes)
            if self._one:
                window = padded[self._window].reshape(count, groups, -1, 1)
                found = weight.reshape(groups, rows, -1) @ window
            else:
                found = np.zeros((count, groups, rows, prod(outputs)))
                for tap, cells in self._taps():
                    found += weight[tap] @ padded[cells].reshape(count, groups, columns, -1)
            return found.reshape(len(x), *lead, groups * rows, *outputs)  # type: ignore[no-any-return]

        return push

    def pull(self, weight: Array, shape: tuple[int, ...]) -> Map:
        groups, rows, columns = weight.shape[:3]
        lead, outputs = shape[: len(shape) - len(self.sizes) - 1], self.attrs.outputs
        back = np.ascontiguousarray(weight.swapaxes(1, 2))

        def pull(g: Array) -> Array:
            count = len(g) * prod(lead)
            padded = np.zeros((count, groups, columns, *self._padded))
            g = g.reshape(count, groups, rows, -1)
            if self._one:
                flat = g.reshape(count, groups, rows).swapaxes(0, 1) @ weight.reshape(groups, rows, -1)
                padded[self._window] = flat.swapaxes(0, 1).reshape(count, groups, columns, *self.attrs.kernel)
            else:
                for tap, cells in self._taps():
                    padded[cells] += (back[tap] @ g).reshape(count, groups, columns, *outputs)
            return padded[self._inside].reshape(-1, *shape)  # type: ignore[no-any-return]

        return pull


def _sum(node: Node, values: Values) -> AffineMap:
    axes: tuple[int, ...] = node.attrs.axes
    shape = node.inputs[0].shape
    terms = prod(shape[a] for a in axes)
    along = tuple(a + 1 for a in axes)

    def push(x: Array) -> Array:
        return x.sum(axis=along)  # type: ignore[no-any-return]

    def pull(g: Array) -> Array:
        return np.broadcast_to(np.expand_dims(g, along), (len(g), *shape))

    part = AffinePart(0, push, push, pull)
    return AffineMap((part,), _zeros(node), _zeros(node), terms, lambda counts: terms * counts[0], joins=True)


# --- windows ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WindowTaps:
    """The cells that windows read: ``places[tap, window]`` in the flat plane, where ``real``."""

    places: Array
    real: Array
    counted: Array
    """The taps of each window, padding included."""
    distinct: tuple[bool, ...]
    """Whether no two windows read the same cell by this tap."""
    planes: int
    cells: int

    @classmethod
    def of(cls, node: Node) -> WindowTaps:
        window = node.attrs.window(node.inputs[0].type)
        table = window.table()
        most = max(map(len, table), default=0)
        rows = [[-1 if cell is None else cell for cell in taps] + [-1] * (most - len(taps)) for taps in table]
        places = np.array(rows, np.int64).reshape(len(table), most).T
        x: TensorType = node.inputs[0].type
        counted = np.array([len(taps) for taps in table], np.float64)
        cells = prod(window.sizes)
        distinct = tuple(len(np.unique(row[row >= 0])) == int(np.sum(row >= 0)) for row in places)
        return cls(np.maximum(places, 0), places >= 0, counted, distinct, x.size // cells, cells)

    @property
    def readers(self) -> int:
        """The windows that read one cell, at most."""
        return sum(1 if distinct else self.places.shape[1] for distinct in self.distinct)

    def stacked(self, x: Array) -> Array:
        """The cells of every window, by tap; minus infinity for padding."""
        planes = x.reshape(len(x), self.planes, self.cells)
        return np.where(self.real[:, None, None], np.moveaxis(planes[..., self.places], 2, 0), -np.inf)

    def gather(self, x: Array, tap: int) -> Array:
        """One cell of every window of planes ``(…, cells)``; 0 for padding."""
        return np.where(self.real[tap], x[..., self.places[tap]], 0.0)

    def scatter(self, plane: Array, g: Array, tap: int) -> None:
        """Add numbers of windows to the cells that they read."""
        real, cells = self.real[tap], self.places[tap][self.real[tap]]
        if self.distinct[tap]:
            plane[..., cells] += g[..., real]
        else:
            np.add.at(plane, (..., cells), g[..., real])  # type: ignore[arg-type]


def _avg_pool(node: Node, values: Values) -> AffineMap:
    attrs: Any = node.attrs
    taps, x, y = WindowTaps.of(node), node.inputs[0].shape, node.outputs[0].shape
    divisor = taps.counted if attrs.count_include_pad else np.maximum(taps.real.sum(axis=0), 1).astype(np.float64)
    if attrs.divisor_override is not None:
        divisor = np.full(divisor.shape, float(attrs.divisor_override))

    def push(by: Array) -> Map:
        def pushed(x: Array) -> Array:
            planes = x.reshape(len(x), taps.planes, taps.cells)
            found = np.zeros((len(x), taps.planes, len(divisor)))
            for tap in range(len(taps.places)):
                found += taps.gather(planes, tap)
            return (found / by).reshape(len(x), *y)

        return pushed

    def pull(g: Array) -> Array:
        found = np.zeros((len(g), taps.planes, taps.cells))
        parts = g.reshape(len(g), taps.planes, -1) / divisor
        for tap in range(len(taps.places)):
            taps.scatter(found, parts, tap)
        return found.reshape(len(g), *x)

    count = len(taps.places)
    part = AffinePart(0, push(divisor), push(np.abs(divisor)), pull)
    back = max(count, taps.readers) + 2
    return AffineMap((part,), _zeros(node), _zeros(node), back, lambda counts: count * counts[0] + 2, joins=True)


AFFINE: dict[str, Callable[[Node, Values], AffineMap]] = {
    "add": _add,
    "avg_pool": _avg_pool,
    "batch_norm": _batch_norm,
    "broadcast_to": _broadcast,
    "concat": _concat,
    "conv": _conv,
    "div": _div,
    "matmul": _matmul,
    "mul": _mul,
    "neg": _neg,
    "pad": _pad,
    "reshape": _reshape,
    "scale": _scale,
    "slice": _slice,
    "sub": lambda node, values: _add(node, values, -1.0),
    "sum": _sum,
    "transpose": _transpose,
}


# --- what bends -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BendLines:
    """Lines below and above an operator over boxes: ``pull`` sends coefficients on by the one that their sign asks for.

    ``size`` is how large a line and what it adds up may be over its box, either of them.
    """

    low: Array
    high: Array
    size: Array
    pull: Map
    roundings: int


def chord(low: Array, high: Array, at_low: Array, at_high: Array) -> tuple[Array, Array]:
    """Slope and intercept of a line above a convex function with these values at the ends of ``low < high``.

    A convex function less a line is largest at an end, so any slope will do if the intercept is taken at both ends. The
    four terms of an intercept meet three roundings each; one more is for the sum.
    """
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        slope = np.where(high > low, (at_high - at_low) / (high - low), 0.0)
        slope = np.where(np.isfinite(slope), slope, 0.0)
        ends = [(at_low, slope * low), (at_high, slope * high)]
        error = sum(np.abs(part) for pair in ends for part in pair) * (8 * U) + TINY
        return slope, np.maximum(*(value - part for value, part in ends)) + error


def leaky_lines(a: float, low: Array, high: Array, share: Array | None) -> BendLines:
    """Of ``max(z, a·z)``, ``0 ≤ a ≤ 1``: below, through 0 with any slope from ``a`` to 1; above, the chord.

    ``share`` says where from ``a`` to 1, for boxes and rows, and NaN or None the usual: the side that reaches farther.
    """
    bends = (low < 0) & (high > 0)
    fixed = np.where(low >= 0, 1.0, a)
    slope, intercept = chord(low, high, a * low, np.maximum(high, 0.0))
    above, rise = np.where(bends, slope, fixed), np.where(bends, intercept, 0.0)
    below = np.where(bends, np.where(high > -low, 1.0, a), fixed)[:, None]
    if share is not None:
        chosen = bends[:, None] & ~np.isnan(share)
        below = np.where(chosen, np.clip(a + share * (1 - a), a, 1.0), below)
    reach = np.maximum(np.abs(low), np.abs(high))
    size = np.maximum(np.abs(above), 1.0) * reach + np.abs(rise)

    def pull(g: Array) -> Array:
        return g * np.where(g > 0, below, above[:, None])

    return BendLines(np.zeros_like(low), rise, size, pull, 1)


def max_lines(taps: WindowTaps, shape: tuple[int, ...], low: Array, high: Array) -> BendLines:
    """Below, the cell with the largest lower end. Above, ``max(z, m)`` of the cell with the largest upper end and of
    the largest upper end ``m`` of the others: the cell itself where it is not below ``m``, else a chord.
    """
    count, windows = len(low), taps.places.shape[1]
    lows, highs = taps.stacked(low), taps.stacked(high)
    first, last = lows.argmax(axis=0), highs.argmax(axis=0)
    l, u = (np.take_along_axis(x, last[None], axis=0)[0] for x in (lows, highs))  # noqa: E741
    others = highs.copy()
    np.put_along_axis(others, last[None], -np.inf, axis=0)
    rest = others.max(axis=0)
    empty = ~taps.real.any(axis=0)
    sure = (l >= rest) | empty
    slope, rise = chord(*(np.where(sure, 0.0, x) for x in (l, u, rest, u)))
    slope, rise = np.where(sure, np.where(empty, 0.0, 1.0), slope), np.where(sure, 0.0, rise)
    below = np.broadcast_to(np.where(empty, 0.0, 1.0), slope.shape)
    reach = np.where(np.isfinite(highs), np.maximum(np.abs(lows), np.abs(highs)), 0.0).max(axis=0)

    def pull(g: Array) -> Array:
        rows = g.reshape(count, -1, taps.planes, windows)
        found = np.zeros((*rows.shape[:-1], taps.cells))
        positive, negative = np.maximum(rows, 0.0) * below[:, None], np.minimum(rows, 0.0) * slope[:, None]
        for tap in range(len(taps.places)):
            part = positive * (first == tap)[:, None] + negative * (last == tap)[:, None]
            taps.scatter(found, part, tap)
        return found.reshape(*g.shape[:2], *shape)

    outputs = (count, *rise.shape[1:])
    size = (np.maximum(np.abs(slope), 1.0) * reach + np.abs(rise)).reshape(outputs)
    return BendLines(np.zeros(outputs), rise.reshape(outputs), size, pull, 2 * taps.readers + 2)


def max_boxes(taps: WindowTaps, x: Array) -> Array:
    """The largest real cell of each window; 0 where there is none."""
    return np.where(taps.real.any(axis=0), taps.stacked(x).max(axis=0), 0.0)
