"""Rows and cells named by indices: read, added up, replaced."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from gradspec.backends.xp.namespace import Array, Namespace
from gradspec.spec.errors import ShapeError
from gradspec.spec.gather import index_outside
from gradspec.spec.loss import label_outside

# --- rows -------------------------------------------------------------------------------------------------------------


def flat_rows(xp: Namespace, indices: Array, axis: int, size: int) -> Array:
    """The number of the row that each index names, counted through all leading indices."""
    rows, lead = xp.checked(indices, size, index_outside), indices.shape[:axis]
    if not axis:
        return rows
    return xp.arange(prod(lead), device=indices.device).reshape(*lead, *(1,) * (indices.ndim - axis)) * size + rows


def _gather(xp: Namespace, attrs: Any, x: Array, indices: Array) -> Array:
    axis = attrs.axis
    rows = x.reshape(prod(x.shape[: axis + 1]), *x.shape[axis + 1 :])
    return rows[flat_rows(xp, indices, axis, x.shape[axis])]


def _scatter_add(xp: Namespace, attrs: Any, x: Array, indices: Array) -> Array:
    lead, rest = indices.shape[: attrs.axis], x.shape[indices.ndim :]
    places = flat_rows(xp, indices, attrs.axis, attrs.size).reshape(-1)
    y = xp.add_rows(prod(lead) * attrs.size, places, x.reshape(prod(indices.shape), *rest))
    return y.reshape(*lead, attrs.size, *rest)


# --- one cell per label -----------------------------------------------------------------------------------------------


def pick(xp: Namespace, attrs: Any, x: Array, labels: Array) -> Array:
    places = label_places(xp, labels, attrs.axis, x.shape[attrs.axis])
    return xp.take_along_axis(x, places, attrs.axis).squeeze(attrs.axis)


def label_places(xp: Namespace, labels: Array, axis: int, classes: int) -> Array:
    """Labels, all of them classes, with an axis of size 1 where the classes are."""
    return xp.checked(labels, classes, label_outside)[*(slice(None),) * axis, None]


# --- cells of planes --------------------------------------------------------------------------------------------------


def as_planes(x: Array, rank: int) -> Array:
    """``[plane, position]``."""
    at = x.ndim - rank
    return x.reshape(prod(x.shape[:at]), prod(x.shape[at:]))


def not_in_plane(place: int, cells: int) -> ShapeError:
    return ShapeError(f"index {place} lies outside a plane of {cells} cells; give 0 to {cells - 1}, or -1 for none")


def gather_cells(xp: Namespace, x: Array, places: Array, rank: int) -> Array:
    """The cells of each plane at its places; 0 where the place is -1."""
    chosen = as_planes(places, rank)
    cells = xp.take_along_axis(as_planes(x, rank), xp.where(chosen == -1, 0, chosen), -1)
    return xp.where(chosen == -1, 0, cells).reshape(places.shape)


def _max_gather(xp: Namespace, attrs: Any, x: Array, places: Array) -> Array:
    cells = prod(x.shape[x.ndim - attrs.rank :])
    return gather_cells(xp, x, xp.checked(places, cells, not_in_plane, least=-1), attrs.rank)


LOWERINGS: dict[str, Callable[..., Any]] = {
    "gather_rows": _gather,
    "scatter_add_rows": _scatter_add,
    "pick": pick,
    "max_gather": _max_gather,
}
