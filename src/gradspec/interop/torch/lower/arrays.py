"""What torch does by functions of its own: slices and padding, cells chosen by index."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import Tensor

from gradspec.backends.xp.gather import as_planes, flat_rows, label_places, not_in_plane
from gradspec.interop.torch.lower.namespace import TORCH
from gradspec.spec.layout import spaced_sizes

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


# --- cell by cell -----------------------------------------------------------------------------------------------------


def _step(attrs: Any, x: Tensor) -> Tensor:
    """In the dtype of ``x``: numbers alone would have torch's default one."""
    return torch.where(x < 0, attrs.below, torch.where(x == 0, attrs.at, torch.full_like(x, attrs.above)))


# --- rows and cells by index ------------------------------------------------------------------------------------------


def _scatter(attrs: Any, x: Tensor, indices: Tensor, rows: Tensor) -> Tensor:
    """Of several rows in one place the last stays: each place takes the largest number of those that name it."""
    axis = attrs.axis
    places = flat_rows(TORCH, indices, axis, x.shape[axis]).reshape(-1)
    before = x.reshape(prod(x.shape[: axis + 1]), *x.shape[axis + 1 :])
    numbers = torch.arange(places.numel(), device=x.device)
    last = torch.full((len(before),), -1, device=x.device).scatter_reduce_(0, places, numbers, "amax")
    if not places.numel():
        return x
    given = rows.reshape(places.numel(), *before.shape[1:])[last.clamp(min=0)]
    return torch.where((last >= 0).reshape(-1, *(1,) * (before.ndim - 1)), given, before).reshape(x.shape)


def _place(attrs: Any, x: Tensor, labels: Tensor) -> Tensor:
    result = x.new_zeros(*x.shape[: attrs.axis], attrs.size, *x.shape[attrs.axis :])
    places = label_places(TORCH, labels, attrs.axis, attrs.size)
    return result.scatter_(attrs.axis, places, x.unsqueeze(attrs.axis))


def _max_unpool(attrs: Any, x: Tensor, places: Tensor) -> Tensor:
    """Whatever goes nowhere is added to the first cell, as 0."""
    rank, cells = len(attrs.output_size), prod(attrs.output_size)
    chosen = as_planes(TORCH.checked(places, cells, not_in_plane, least=-1), rank)
    starts = torch.arange(len(chosen), device=x.device)[:, None] * cells
    kept = chosen >= 0
    targets, values = torch.where(kept, chosen + starts, 0), torch.where(kept, as_planes(x, rank), 0)
    y = TORCH.add_rows(len(chosen) * cells, targets.reshape(-1), values.reshape(-1))
    return y.reshape(*x.shape[: x.ndim - rank], *attrs.output_size)


def _top_places(attrs: Any, x: Tensor) -> Tensor:
    """NaN is above all for torch, too, and equal cells stay in order if asked; so they do downwards."""
    return torch.sort(x, dim=-1, descending=attrs.largest, stable=True).indices[..., : attrs.k]


LOWERINGS: dict[str, Callable[..., Any]] = {
    "slice": _slice,
    "pad": _pad,
    "step": _step,
    "scatter_rows": _scatter,
    "place": _place,
    "max_unpool": _max_unpool,
    "top_places": _top_places,
}
