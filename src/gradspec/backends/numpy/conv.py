"""Convolutions as products of matrices: windows gathered into columns, part by part so that the columns stay small.

With ``columns[c·k, o]`` the window cells of one sample and group, ``read = w · columns``, ``compare = g · columnsᵀ``
and ``write`` adds ``wᵀ · g`` back onto the plane. Every sample is multiplied on its own, so its result does not depend
on its batch; only ``compare``, which sums over samples, joins them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import Any

import numpy as np

from gradspec.backends.numpy.unfold import add_windows, windows
from gradspec.graph.ir import Array
from gradspec.ops.conv import Convolution

WORKSPACE = 1 << 24
"""Bytes that the columns of one part may take."""

Box = tuple[slice, ...]


def _boxes(sizes: tuple[int, ...], most: int) -> Iterator[Box]:
    """Boxes of at most ``most`` cells (or one cell) that cover a box of ``sizes``, first axes split first.

    >>> list(_boxes((2, 3), 3))
    [(slice(0, 1, None), slice(0, 3, None)), (slice(1, 2, None), slice(0, 3, None))]
    """
    if not sizes:
        yield ()
        return
    size, *rest = sizes
    step = max(1, most // max(1, prod(rest)))
    for start in range(0, size, step):
        part = slice(start, min(start + step, size))
        yield from ((part, *others) for others in _boxes(tuple(rest), max(1, most // step)))


def _parts(attrs: Convolution, samples: int, channels: int, dtype: Any) -> Iterator[Box]:
    """Ranges of samples and outputs whose columns fit the workspace."""
    column = max(1, channels * prod(attrs.kernel)) * dtype.itemsize
    return _boxes((samples, *attrs.outputs), max(1, WORKSPACE // column))


def _grouped(attrs: Convolution, x: Array) -> Array:
    """``(samples, groups, channels of one group, *spatial)``."""
    at = x.ndim - attrs.rank - 1
    return x.reshape(prod(x.shape[:at]), attrs.groups, x.shape[at] // attrs.groups, *x.shape[at + 1 :])


def _matrices(attrs: Convolution, w: Array) -> Array:
    """The weights of each group as a matrix: channels of g by channels of x and taps."""
    per_group = w.shape[0] // attrs.groups
    return np.ascontiguousarray(w).reshape(attrs.groups, per_group, w.shape[1] * prod(attrs.kernel))


def _cells(values: Array, rank: int) -> Array:
    """The last ``rank`` axes as one, and memory that matrix products take as it is."""
    at = values.ndim - rank
    return np.ascontiguousarray(values).reshape(*values.shape[:at], prod(values.shape[at:]))


def _columns(attrs: Convolution, view: Array, part: Box) -> Array:
    """``(samples, groups, channels·taps, outputs)`` of one part."""
    first, *box = part
    chosen = view[(first, *(slice(None),) * (2 + attrs.rank), *box)]
    n, groups, channels = chosen.shape[:3]
    return _cells(chosen, attrs.rank).reshape(
        n, groups, channels * prod(attrs.kernel), prod(chosen.shape[3 + attrs.rank :])
    )


def _plus(attrs: Convolution, y: Array, bias: tuple[Array, ...]) -> Array:
    return y + bias[0].reshape(-1, *(1,) * attrs.rank) if bias else y


def _read(attrs: Convolution, x: Array, w: Array, *bias: Array) -> Array:
    grouped, matrices = _grouped(attrs, x), _matrices(attrs, w)
    samples, groups, channels = grouped.shape[:3]
    view = windows(attrs, grouped)
    y = np.empty((samples, groups, matrices.shape[1], *attrs.outputs), x.dtype)
    for part in _parts(attrs, samples, groups * channels, x.dtype):
        index = (part[0], slice(None), slice(None), *part[1:])
        y[index] = (matrices @ _columns(attrs, view, part)).reshape(y[index].shape)
    lead = x.shape[: x.ndim - attrs.rank - 1]
    return _plus(attrs, y.reshape(*lead, w.shape[0], *attrs.outputs), bias)


def _write(attrs: Convolution, g: Array, w: Array, *bias: Array) -> Array:
    grouped, matrices = _grouped(attrs, g), _matrices(attrs, w).swapaxes(-1, -2)
    samples, groups = grouped.shape[:2]
    channels = w.shape[1]

    def products() -> Iterator[tuple[Box, Array]]:
        for part in _parts(attrs, samples, groups * channels, g.dtype):
            chosen = grouped[(part[0], slice(None), slice(None), *part[1:])]
            values = matrices @ _cells(chosen, attrs.rank)
            yield part, values.reshape(len(chosen), groups, channels, *attrs.kernel, *chosen.shape[3:])

    x = add_windows(attrs, (samples, groups, channels), g.dtype, products())
    lead = g.shape[: g.ndim - attrs.rank - 1]
    return _plus(attrs, x.reshape(*lead, groups * channels, *attrs.sizes), bias)


def _compare(attrs: Convolution, x: Array, g: Array) -> Array:
    xs, gs = _grouped(attrs, x), _grouped(attrs, g)
    samples, groups, channels = xs.shape[:3]
    view, taps = windows(attrs, xs), 2 + attrs.rank
    total = np.zeros((groups, gs.shape[2], channels * prod(attrs.kernel)), x.dtype)
    for first, *box in _parts(attrs, samples, groups * channels, x.dtype):
        cells = view[(first, *(slice(None),) * taps, *box)]
        columns = _cells(np.moveaxis(cells, 0, taps), 1 + attrs.rank)
        cotangents = _cells(np.moveaxis(gs[(first, slice(None), slice(None), *box)], 0, 2), 1 + attrs.rank)
        total += cotangents @ columns.reshape(groups, total.shape[2], columns.shape[-1]).swapaxes(-1, -2)
    return total.reshape(groups * gs.shape[2], channels, *attrs.kernel)


KERNELS: dict[str, Callable[..., Any]] = {"conv": _read, "conv_transpose": _write, "conv_compare": _compare}
