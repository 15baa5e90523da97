"""Slices and padding, and cells chosen by index.

Where an index may be outside, it is looked at first: on a GPU a wrong one would end the process's use of the device.
Cells that meet in one place are added up by ``index_put_``, which torch sorts first: the same bits come out of every
run.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import Tensor

from gradspec.spec.errors import ShapeError
from gradspec.spec.gather import index_outside
from gradspec.spec.layout import spaced_sizes
from gradspec.spec.loss import label_outside

# --- layout -----------------------------------------------------------------------------------------------------------


def _slice(attrs: Any, x: Tensor) -> Tensor:
    """torch steps forwards only: an axis that is read backwards is turned first."""
    for axis, (start, size, step) in enumerate(zip(attrs.starts, attrs.sizes, attrs.steps, strict=True)):
        if step < 0:
            x, start, step = x.flip(axis), x.shape[axis] - 1 - start, -step
        x = x.narrow(axis, start, (size - 1) * step + 1 if size else 0)
        x = x[(slice(None),) * axis + (slice(None, None, step),)]
    return x


def _pad(attrs: Any, x: Tensor) -> Tensor:
    """What reaches beyond the result, where padding is negative, is cut off."""
    steps = [gap + 1 for gap in attrs.interior]
    wide = [(max(n - 1, 0) * s + 1 if n else 0) for n, s in zip(x.shape, steps, strict=True)]
    spaced = torch.full(wide, attrs.value, dtype=x.dtype, device=x.device)
    spaced[tuple(slice(None, None, s) for s in steps)] = x
    ends = [n for pair in reversed(attrs.padding) for n in pair]
    shape = spaced_sizes(x.shape, attrs.padding, attrs.interior)
    return torch.constant_pad_nd(spaced, ends, attrs.value).reshape(shape)


# --- rows and cells by index ------------------------------------------------------------------------------------------


def _checked(indices: Tensor, size: int, error: Callable[[int, int], Exception], least: int = 0) -> Tensor:
    outside = (indices < least) | (indices >= size)
    if bool(outside.any()):
        raise error(int(indices[outside][0]), size)
    return indices.long()


def _flat_rows(indices: Tensor, axis: int, size: int) -> Tensor:
    """The number of the row that each index names, counted through all leading indices."""
    lead = indices.shape[:axis]
    before = torch.arange(prod(lead), device=indices.device).reshape((*lead, *(1,) * (indices.ndim - axis)))
    return before * size + _checked(indices, size, index_outside)


def _gather(attrs: Any, x: Tensor, indices: Tensor) -> Tensor:
    axis = attrs.axis
    rows = x.reshape((prod(x.shape[: axis + 1]), *x.shape[axis + 1 :]))
    return rows[_flat_rows(indices, axis, x.shape[axis])]


def _scatter_add(attrs: Any, x: Tensor, indices: Tensor) -> Tensor:
    rest = x.shape[indices.ndim :]
    y = x.new_zeros(prod(indices.shape[: attrs.axis]) * attrs.size, *rest)
    places = _flat_rows(indices, attrs.axis, attrs.size).reshape(-1)
    y.index_put_((places,), x.reshape(places.numel(), *rest), accumulate=True)
    return y.reshape(*indices.shape[: attrs.axis], attrs.size, *rest)


def _scatter(attrs: Any, x: Tensor, indices: Tensor, rows: Tensor) -> Tensor:
    """Of several rows in one place the last stays: each place takes the largest number of those that name it."""
    axis = attrs.axis
    places = _flat_rows(indices, axis, x.shape[axis]).reshape(-1)
    before = x.reshape(prod(x.shape[: axis + 1]), *x.shape[axis + 1 :])
    numbers = torch.arange(places.numel(), device=x.device)
    last = torch.full((len(before),), -1, device=x.device).scatter_reduce_(0, places, numbers, "amax")
    if not places.numel():
        return x
    given = rows.reshape(places.numel(), *before.shape[1:])[last.clamp(min=0)]
    return torch.where((last >= 0).reshape(-1, *(1,) * (before.ndim - 1)), given, before).reshape(x.shape)


def _pick(attrs: Any, x: Tensor, labels: Tensor) -> Tensor:
    places = _checked(labels, x.shape[attrs.axis], label_outside).unsqueeze(attrs.axis)
    return torch.take_along_dim(x, places, attrs.axis).squeeze(attrs.axis)


def _place(attrs: Any, x: Tensor, labels: Tensor) -> Tensor:
    result = x.new_zeros(*x.shape[: attrs.axis], attrs.size, *x.shape[attrs.axis :])
    places = _checked(labels, attrs.size, label_outside).unsqueeze(attrs.axis)
    return result.scatter_(attrs.axis, places, x.unsqueeze(attrs.axis))


def _not_in_plane(place: int, cells: int) -> ShapeError:
    return ShapeError(f"index {place} lies outside a plane of {cells} cells; give 0 to {cells - 1}, or -1 for none")


def _max_gather(attrs: Any, x: Tensor, places: Tensor) -> Tensor:
    at = x.ndim - attrs.rank
    planes = x.reshape(*x.shape[:at], prod(x.shape[at:]))
    chosen = _checked(places, planes.shape[-1], _not_in_plane, -1).reshape(*places.shape[:at], prod(places.shape[at:]))
    found = torch.take_along_dim(planes, chosen.clamp(min=0), -1)
    return torch.where(chosen >= 0, found, 0).reshape(places.shape)


def _max_unpool(attrs: Any, x: Tensor, places: Tensor) -> Tensor:
    rank, cells = len(attrs.output_size), prod(attrs.output_size)
    lead = x.shape[: x.ndim - rank]
    chosen = _checked(places, cells, _not_in_plane, -1).reshape(prod(lead), -1 if x.numel() else 0)
    starts = torch.arange(prod(lead), device=x.device)[:, None] * cells
    kept = chosen >= 0
    y = x.new_zeros(prod(lead) * cells)
    y.index_put_((torch.where(kept, chosen + starts, 0).reshape(-1),), _where_kept(x, kept), accumulate=True)
    return y.reshape(*lead, *attrs.output_size)


def _where_kept(x: Tensor, kept: Tensor) -> Tensor:
    return torch.where(kept.reshape(-1), x.reshape(-1), 0)


def _top_places(attrs: Any, x: Tensor) -> Tensor:
    """NaN is above all for torch, too, and equal cells stay in order if asked; so they do downwards."""
    return torch.sort(x, dim=-1, descending=attrs.largest, stable=True).indices[..., : attrs.k]


LOWERINGS: dict[str, Callable[..., Any]] = {
    "slice": _slice,
    "pad": _pad,
    "gather_rows": _gather,
    "scatter_add_rows": _scatter_add,
    "scatter_rows": _scatter,
    "pick": _pick,
    "place": _place,
    "max_gather": _max_gather,
    "max_unpool": _max_unpool,
    "top_places": _top_places,
}
