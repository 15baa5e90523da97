"""Operators that move numbers on float arrays, and their transposes, which add them up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradspec import spec
from gradspec.backends.tables import hits, table, take
from gradspec.conformance.oracle.meaning import Meaning, Selected, comparable_array, lead_of, planes_of
from gradspec.conformance.oracle.sums import leaf_sums
from gradspec.spec.tensor import require_shape
from gradspec.spec.window import regular, spatial_rank, spatial_sizes


def _unpooled(x: Any, indices: Any, output_size: Any, **_: Any) -> Meaning:
    x, places = comparable_array(x), np.asarray(indices)
    rank, cells = spatial_rank("output_size", output_size), int(np.prod(output_size))
    _require_indices(lead_of(x, rank), tuple(output_size), places)
    planes = planes_of(places, rank)
    offset = np.arange(len(planes))[:, None] * cells
    received = hits(np.where(planes >= 0, planes + offset, -1), cells * len(planes))
    return _added(lead_of(x, rank) + tuple(output_size), take(planes_of(x, 0).ravel(), received), x)


def _require_indices(lead: tuple[int, ...], sizes: tuple[int, ...], places: NDArray[Any]) -> None:
    """Have the specification say what is wrong with indices, if anything is."""
    alike = places.shape[: places.ndim - len(sizes)] == lead and places.dtype.kind in "iu"
    if not alike or (places.size and not -1 <= places.min() <= places.max() < np.prod(sizes)):
        spec.max_gather(np.zeros((*lead, *sizes)), places, len(sizes))


def _added(shape: tuple[int, ...], leaves: NDArray[Any], of: NDArray[Any]) -> Meaning:
    """Sums of leaves; integers wrap around at the ends of their dtype."""
    if of.dtype.kind in "iu":
        return Selected(leaves.sum(axis=-1).astype(of.dtype).reshape(shape))
    return leaf_sums(shape, leaves, None, of)


def _gathered(x: Any, indices: Any, rank: int) -> Meaning:
    x, places = comparable_array(x), np.asarray(indices)
    _require_indices(lead_of(x, rank), x.shape[x.ndim - rank :], places)
    planes, chosen = planes_of(x, rank), planes_of(places, rank)
    found = np.take_along_axis(planes, np.maximum(chosen, 0), axis=-1)
    return Selected(np.where(chosen >= 0, found, 0).reshape(places.shape))


def _unpooled_vjp(x: Any, indices: Any, g: Any, output_size: Any) -> Meaning:
    rank = spatial_rank("output_size", output_size)
    require_shape("cotangent", np.asarray(g), lead_of(np.asarray(x), rank) + tuple(output_size))  # type: ignore[arg-type]
    return _gathered(g, indices, rank)


def _unfolded(x: Any, kernel_size: Any, dilation: Any, padding: Any, stride: Any, **_: Any) -> Meaning:
    x, rank = comparable_array(x), spatial_rank("kernel_size", kernel_size)
    taps = table(regular(spatial_sizes(x.shape, rank, channels=1), kernel_size, stride, padding, dilation))
    *lead, channels = lead_of(x, rank)
    columns = take(planes_of(x, rank), taps.T)
    return Selected(columns.reshape(*lead, channels * taps.shape[1], len(taps)))


def _folded(x: Any, output_size: Any, kernel_size: Any, dilation: Any, padding: Any, stride: Any, **_: Any) -> Meaning:
    x = comparable_array(x)
    window = regular(tuple(output_size), kernel_size, stride, padding, dilation)
    taps, outputs = table(window), int(np.prod(window.outputs))
    channels = x.shape[-2] // taps.shape[1]
    received = hits(taps, int(np.prod(window.sizes)))  # places in [output, tap]; columns are stored [tap, output]
    output, tap = np.divmod(np.maximum(received, 0), taps.shape[1])
    stored = np.where(received >= 0, tap * outputs + output, -1)
    blocks = planes_of(x, 0).reshape(int(np.prod(x.shape[:-2])) * channels, taps.shape[1] * outputs)
    return _added((*x.shape[:-2], channels, *window.sizes), take(blocks, stored), x)


def _unfold_vjp(x: Any, g: Any, kernel_size: Any, **settings: Any) -> Meaning:
    sizes = spatial_sizes(np.shape(x), spatial_rank("kernel_size", kernel_size), channels=1)
    return _folded(g, sizes, kernel_size, **settings)


MEANINGS: dict[str, Callable[..., Any]] = {
    "max_unpool": _unpooled,
    "max_unpool_jvp": lambda x, dx, **rest: _unpooled(dx, **rest),
    "max_unpool_vjp": _unpooled_vjp,
    "max_gather": _gathered,
    "max_gather_jvp": lambda x, dx, **rest: _gathered(dx, **rest),
    "max_gather_vjp": lambda x, g, rank, **rest: _unpooled(g, output_size=spatial_sizes(np.shape(x), rank), **rest),
    "unfold": _unfolded,
    "unfold_jvp": lambda x, dx, **rest: _unfolded(dx, **rest),
    "unfold_vjp": _unfold_vjp,
    "fold": _folded,
    "fold_jvp": lambda x, dx, **rest: _folded(dx, **rest),
    "fold_vjp": lambda x, g, **rest: _unfolded(g, **rest),
}
