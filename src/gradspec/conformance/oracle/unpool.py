"""Operators that move numbers on float arrays, and their transposes, which add them up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gradspec import spec
from gradspec.backends.numpy.tables import hits, table, take
from gradspec.conformance.oracle.arrays import float_array, has_exact_products, lead_of, leaf_sums, planes_of
from gradspec.conformance.oracle.meaning import Meaning, Selected
from gradspec.spec.window import regular, spatial_rank, spatial_sizes


def _copied(name: str) -> Callable[..., Any]:
    """Operators that only move numbers: the specification itself, on the array."""

    def build(**arguments: Any) -> Meaning:
        result = getattr(spec, name)(
            **{k: v if v is None or k in _SETTINGS else np.asarray(v) for k, v in arguments.items()}
        )
        return Selected(np.asarray(result.map(float).tolist(), np.float64).reshape(result.shape))

    return build


_SETTINGS = ("kernel_size", "dilation", "padding", "stride", "output_size", "rank")


def _unpooled(x: Any, indices: Any, output_size: Any, **_: Any) -> Meaning:
    x, places = float_array(x), np.asarray(indices)
    rank, cells = spatial_rank("output_size", output_size), int(np.prod(output_size))
    spec.max_gather(np.zeros((*lead_of(x, rank), *output_size)), places, rank)
    planes = planes_of(places, rank).astype(np.int64)
    offset = np.arange(len(planes))[:, None] * cells
    received = hits(np.where(planes >= 0, planes + offset, -1), cells * len(planes))
    leaves = take(x.astype(np.float64).ravel(), received)
    return leaf_sums(lead_of(x, rank) + tuple(output_size), leaves, None, has_exact_products(x))


def _folded(x: Any, output_size: Any, kernel_size: Any, dilation: Any, padding: Any, stride: Any, **_: Any) -> Meaning:
    x = float_array(x)
    window = regular(tuple(output_size), kernel_size, stride, padding, dilation)
    taps, outputs = table(window), int(np.prod(window.outputs))
    channels = x.shape[-2] // taps.shape[1]
    received = hits(taps, int(np.prod(window.sizes)))  # places in [output, tap]; columns are stored [tap, output]
    output, tap = np.divmod(np.maximum(received, 0), taps.shape[1])
    stored = np.where(received >= 0, tap * outputs + output, -1)
    blocks = x.astype(np.float64).reshape(int(np.prod(x.shape[:-2])) * channels, taps.shape[1] * outputs)
    return leaf_sums((*x.shape[:-2], channels, *window.sizes), take(blocks, stored), None, has_exact_products(x))


def _unfold_vjp(x: Any, g: Any, kernel_size: Any, **settings: Any) -> Meaning:
    sizes = spatial_sizes(np.shape(x), spatial_rank("kernel_size", kernel_size), channels=1)
    return _folded(g, sizes, kernel_size, **settings)


MEANINGS: dict[str, Callable[..., Any]] = {
    "max_unpool": _unpooled,
    "max_unpool_jvp": lambda x, dx, **rest: _unpooled(dx, **rest),
    "max_unpool_vjp": _copied("max_unpool_vjp"),
    "max_gather": _copied("max_gather"),
    "max_gather_jvp": _copied("max_gather_jvp"),
    "max_gather_vjp": lambda x, g, rank, **rest: _unpooled(g, output_size=spatial_sizes(np.shape(x), rank), **rest),
    "unfold": _copied("unfold"),
    "unfold_jvp": _copied("unfold_jvp"),
    "unfold_vjp": _unfold_vjp,
    "fold": _folded,
    "fold_jvp": lambda x, dx, **rest: _folded(dx, **rest),
    "fold_vjp": _copied("fold_vjp"),
}
