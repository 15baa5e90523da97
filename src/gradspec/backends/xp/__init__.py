"""Operators over any array library that has NumPy's functions: NumPy, PyTorch, JAX.

A lowering is a function of a ``Namespace``, the node's attribute record and its operands. A library's table is
``lowerings`` of its namespace and the operators that it lowers in a way of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from gradspec.backends.xp import rules, windows
from gradspec.backends.xp.namespace import Lowering, Namespace


def lowerings(xp: Namespace, **others: Lowering) -> dict[str, Callable[..., Any]]:
    """Functions of an attribute record and of arrays of one library."""
    table = rules.LOWERINGS | windows.LOWERINGS | others
    return {name: partial(function, xp) for name, function in table.items()}
