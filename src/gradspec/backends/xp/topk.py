"""The places of the largest or smallest cells."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradspec.backends.xp.namespace import Array, Namespace


def _top_places(xp: Namespace, attrs: Any, x: Array) -> Array:
    """Sorted upwards, NaN comes last and equal cells stay in order; so they do downwards if all is read backwards."""
    if not attrs.largest:
        return xp.argsort(x, axis=-1, stable=True)[..., : attrs.k]
    upwards = xp.argsort(x[..., ::-1], axis=-1, stable=True)
    return (x.shape[-1] - 1 - upwards[..., ::-1])[..., : attrs.k]


LOWERINGS: dict[str, Callable[..., Any]] = {"top_places": _top_places}
