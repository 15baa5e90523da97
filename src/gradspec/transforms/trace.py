"""From a Python function to the graph of what it does to its arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from gradspec.graph.builder import Builder
from gradspec.graph.ir import Graph, Var
from gradspec.graph.types import TensorType


def trace(function: Callable[..., Any], *types: TensorType, allow_unused: bool = False) -> Graph:
    """Call ``function`` on variables of ``types`` and record the operators it applies.

    >>> import gradspec as gs
    >>> gs.trace(lambda x, y: x * y, gs.f32[3], gs.f32[3]).outputs
    (mul: f32[3],)
    """
    builder = Builder()
    variables = [builder.input(t, name) for t, name in zip(types, _names(function, types), strict=True)]
    results = function(*variables)
    outputs = (results,) if not isinstance(results, list | tuple) else tuple(results)
    for result in outputs:
        if not isinstance(result, Var):
            raise TypeError(
                f"the traced function returned {type(result).__name__}, not a variable; it must return what it "
                "computed from its arguments (one variable, or a tuple of them)"
            )
    return builder.build(outputs, allow_unused=allow_unused)


def _names(function: Callable[..., Any], types: Sequence[TensorType]) -> list[str]:
    """The function's own names for its arguments, where it has them."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return [positional[i] if i < len(positional) else f"x{i}" for i in range(len(types))]
