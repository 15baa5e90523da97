"""PyTorch's operators, ``torch.ops.aten``, as functions of variables. Importing the package fills the table."""

from gradspec.interop.torch.aten import (
    attention,
    compare,
    constants,
    indexing,
    inlined,
    layout,
    linear,
    pointwise,
    reduce,
    windows,
)
from gradspec.interop.torch.aten.table import AtenEntry, entry_for, entry_of

__all__ = [
    "AtenEntry",
    "attention",
    "compare",
    "constants",
    "entry_for",
    "entry_of",
    "indexing",
    "inlined",
    "layout",
    "linear",
    "pointwise",
    "reduce",
    "windows",
]
