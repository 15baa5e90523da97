"""Every operator as operations of JAX: a function of the node's attribute record and its operands.

What is linear in an operand is written with operations that JAX itself can transpose in it; an operator that is the
transpose of another is lowered as just that. Numbers in and out have the dtype that is computed with: the small formats
arrive as float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradspec.backends.xp import lowerings
from gradspec.interop.jax.lower import (
    conv,
    convert,
    gather,
    layout,
    lp_pool,
    pool,
    resize,
    smooth_pool,
    unfold,
)
from gradspec.interop.jax.lower.namespace import JAX

LOWERINGS: dict[str, Callable[..., Any]] = {
    **lowerings(JAX),
    **conv.LOWERINGS,
    **convert.LOWERINGS,
    **gather.LOWERINGS,
    **layout.LOWERINGS,
    **lp_pool.LOWERINGS,
    **pool.LOWERINGS,
    **resize.LOWERINGS,
    **smooth_pool.LOWERINGS,
    **unfold.LOWERINGS,
}

CHOOSING = frozenset(("gather_rows", "max_pool", "maximum", "minimum", "scatter_rows", "top_places", "where"))
"""Operators whose integers are among those they are given, or places in a plane or row: 32 bits are enough for them."""
