"""Operators as torch's own, on tensors of any device: a function of the node's attribute record and its operands.

The small formats arrive as float32 where numbers are computed, and their results are rounded once; the operators of
``KEEPS_DTYPE`` take them as they are. Pooling is not here: its kernels are ``gradspec.backends.triton``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradspec.backends.xp import lowerings
from gradspec.interop.torch.lower import arrays, windows
from gradspec.interop.torch.lower.namespace import TORCH

LOWERINGS: dict[str, Callable[..., Any]] = {
    **lowerings(TORCH),
    **arrays.LOWERINGS,
    **windows.LOWERINGS,
}

KEEPS_DTYPE = frozenset(
    (
        *("broadcast_to", "concat", "convert", "detach", "pad", "reshape", "slice", "transpose", "unfold"),
        *("equal", "gather_rows", "greater", "max_gather", "pick", "place", "scatter_rows", "top_places", "where"),
        *("conv", "conv_compare", "conv_transpose", "matmul"),
    )
)
"""Operators that move numbers or compare them, and those of which torch's kernels add up small formats in float32."""

VIEWS = frozenset(("broadcast_to", "convert", "detach", "reshape", "slice", "transpose"))
"""Operators whose results may lie in the memory of their operands."""
