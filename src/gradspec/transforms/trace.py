"""From a Python function to the graph of what it does to its arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradspec.graph import tree
from gradspec.graph.arrays import as_array, library_of
from gradspec.graph.builder import Builder
from gradspec.graph.graph import Graph
from gradspec.graph.ir import Var
from gradspec.graph.types import TensorType, type_of
from gradspec.spec.errors import DTypeError, UnsupportedError


def trace(function: Callable[..., Any], *types: object, allow_unused: bool = False) -> Graph:
    """Call ``function`` on variables of ``types`` and record the operators it applies.

    ``types`` may be tuples, lists and dicts of types; the graph's inputs are their leaves in order.

    >>> gs.trace(lambda x, y: x * y, gs.f32[3], gs.f32[3]).outputs
    (mul: f32[3],)
    """
    _require_function(function)
    for t in tree.leaves(types):
        if not isinstance(t, TensorType):
            raise TypeError(f"trace needs types such as gs.f32[3, 32, 32], not {type(t).__name__}{_type_of(t)}")
    builder = Builder()
    results = _call(function, types, builder)
    return _finish_graph(builder, results, allow_unused)


@dataclass(frozen=True)
class Traced:
    """The graph of a function, the structure of its result, and the variables of outer graphs that it captured.

    Captured variables are the last inputs of the graph.
    """

    graph: Graph
    result: Any
    captured: tuple[Var, ...]


def trace_within(function: Callable[..., Any], types: tuple[object, ...]) -> Traced:
    """Trace a function that may be called while another is traced, and may use the other's variables."""
    _require_function(function)
    builder = Builder(capture=True)
    results = _call(function, types, builder)
    return Traced(_finish_graph(builder, results, allow_unused=True), results, builder.captured)


def _require_function(function: object) -> None:
    if hasattr(function, "forward") and hasattr(function, "state_dict"):
        raise TypeError(
            f"{type(function).__name__} is a module of PyTorch, and what is traced is a function of gs operators; "
            "gs.from_torch(module, *example_arguments) gives its graph, which gs.compile takes"
        )
    if not callable(function):
        raise TypeError(f"what is traced is a function of gs operators, not {type(function).__name__}")


def _type_of(value: object) -> str:
    """The type of an array that was given in the place of a type."""
    with suppress(DTypeError, UnsupportedError):
        if library_of(value) is not None or isinstance(value, np.ndarray):
            found = type_of(as_array(value))
            return f"; that of the array is {str(found).replace(found.dtype.name, found.dtype.public, 1)}"
    return ""


def _finish_graph(builder: Builder, results: object, allow_unused: bool) -> Graph:
    graph = builder.build(_outputs(results, builder), allow_unused=allow_unused)
    builder.finish()
    return graph


def _call(function: Callable[..., Any], types: tuple[object, ...], builder: Builder) -> Any:
    names = iter(_names(function, types))
    arguments = [tree.map_leaves(lambda t: builder.input(t, next(names)), argument) for argument in types]
    return function(*arguments)


def _outputs(results: object, builder: Builder) -> list[Var]:
    outputs = tree.leaves(results)
    for result in outputs or [results]:  # a forgotten return gives None, a tree without leaves
        if not isinstance(result, Var):
            raise TypeError(
                f"the traced function returned {result!r}, not a variable; it must return what it computed from its "
                "arguments: variables, or tuples, lists and dicts of them"
            )
    return [builder.adopt(v) for v in outputs]


def _names(function: Callable[..., Any], types: tuple[object, ...]) -> list[str]:
    """The function's own names for its arguments, where it has them; numbered within trees."""
    names: list[str] = []
    for stem, argument in zip(parameter_names(function, len(types)), types, strict=True):
        count = len(tree.leaves(argument))
        names += [stem] if isinstance(argument, TensorType) else [f"{stem}_{j}" for j in range(count)]
    return names


def parameter_names(function: Callable[..., Any], count: int) -> list[str]:
    """Names for so many positional arguments: the function's own, where it has them.

    >>> parameter_names(lambda x, *others: x, 3)
    ['x', 'x1', 'x2']
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    stems = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return [stems[i] if i < len(stems) else f"x{i}" for i in range(count)]
