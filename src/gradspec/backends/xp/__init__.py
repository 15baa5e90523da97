"""Operators over any array library that has NumPy's functions: NumPy, PyTorch, JAX.

A lowering is a function of a ``Namespace``, the node's attribute record and its operands. A library's table is
``lowerings`` of its namespace and the operators that it lowers in a way of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from gradspec.backends.xp import convert, gather, layout, linear, pointwise, quantize, reduce, resize, topk
from gradspec.backends.xp.namespace import Namespace

_LOWERINGS: dict[str, Callable[..., Any]] = {
    **convert.LOWERINGS,
    **gather.LOWERINGS,
    **layout.LOWERINGS,
    **linear.LOWERINGS,
    **pointwise.LOWERINGS,
    **quantize.LOWERINGS,
    **reduce.LOWERINGS,
    **resize.LOWERINGS,
    **topk.LOWERINGS,
}


def lowerings(xp: Namespace) -> dict[str, Callable[..., Any]]:
    """Functions of an attribute record and of arrays of one library."""
    return {name: partial(function, xp) for name, function in _LOWERINGS.items()}
