"""Other meanings of a graph: the specification of every node, on the numbers of any domain."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gradspec.graph.arrays import to_numpy
from gradspec.graph.family import require_graph
from gradspec.graph.graph import Graph
from gradspec.graph.ir import Array, Var
from gradspec.graph.types import boolean, f64
from gradspec.ops.box import BoundArithmetic
from gradspec.runtime.compiled import compile
from gradspec.runtime.memory import require_memory
from gradspec.spec.errors import DTypeError, ShapeError, UnsupportedError
from gradspec.spec.scalar import Scalar
from gradspec.spec.scalar import ends as ends_of
from gradspec.spec.tensor import Tensor, tensor
from gradspec.transforms.boxes import boxes
from gradspec.transforms.copy import expand

if TYPE_CHECKING:
    from gradspec.domains.domain import Domain


MOST_SCALARS = 200_000
"""Where intervals of so many terms would be added up one by one, compiled boxes are used instead."""

PATHS = ("scalar", "boxes")


class IntervalTensor(Tensor):
    """Intervals, and the ``path`` they came by: ``"scalar"``, the specification itself, or compiled ``"boxes"``."""

    __slots__ = ("path",)

    def __init__(self, shape: Iterable[int], cells: Iterable[Scalar], path: str) -> None:
        super().__init__(shape, cells)
        self.path = path


def evaluate(graph: Graph, *args: object, domain: Domain, path: str | None = None) -> Any:
    """What the graph means in ``domain``: a Tensor for one output, a tuple for several.

    Arrays and nested lists are converted; a Tensor is used unchanged, so that intervals or dual numbers can be passed.

    Intervals of a whole network are computed by its compiled boxes (``gs.bounds``), a million times faster and a few
    roundings wider than by the specification; small graphs go through the specification. ``path`` selects one of them,
    ``"boxes"`` or ``"scalar"``, and the result's ``path`` says which was used.

    >>> g = gs.trace(lambda x: x / 3.0, gs.f32[2])
    >>> evaluate(g, [1, 2], domain=gs.exact).tolist()
    [1/3, 2/3]
    """
    from gradspec.domains.domain import Domain  # python-flint takes longer to import than the rest of the library

    require_graph("evaluate", graph)
    if len(args) != len(graph.inputs):
        raise TypeError(
            f"the graph takes {len(graph.inputs)} arguments ({', '.join(map(repr, graph.inputs))}), not {len(args)}"
        )
    if not isinstance(domain, Domain):
        raise TypeError(f"domain={domain!r} is not a number system; give gs.exact, gs.ball(128) or another")
    require_memory((node.op, v) for node in graph.nodes for v in node.outputs)  # of which none is a view
    if domain.name == "interval":
        return _intervals(graph, args, domain, path)
    if path is not None:
        raise ValueError(f"path={path!r} is for gs.interval; {domain} has one path only")
    outputs = _by_scalars(graph, args, domain)
    return outputs[0] if len(outputs) == 1 else outputs


def _by_scalars(graph: Graph, args: Sequence[object], domain: Domain) -> tuple[Tensor, ...]:
    values = {v: _as_input(v, a, domain) for v, a in zip(graph.inputs, args, strict=True)}
    values |= {v: _in_domain(v, array, domain) for v, array in graph.constants.items()}
    for node in graph.nodes:
        results = node.op.spec(node.attrs, *(values[v] for v in node.inputs))
        if not any(v.type.is_float for v in node.inputs):
            # A result of integers alone, which become numbers of the domain where floats are meant.
            results = tuple(
                domain.tensor(r) if v.type.is_float else r for v, r in zip(node.outputs, results, strict=True)
            )
        values |= zip(node.outputs, results, strict=True)
    return tuple(values[v] for v in graph.outputs)


# --- intervals --------------------------------------------------------------------------------------------------------


def _intervals(graph: Graph, args: Sequence[Any], domain: Domain, path: str | None) -> Any:
    if path not in (None, *PATHS):
        raise ValueError(f"path={path!r} is not known; give one of {', '.join(map(repr, PATHS))}")
    chosen = path or ("boxes" if _terms(graph) > MOST_SCALARS else "scalar")
    try:
        found = (_by_boxes if chosen == "boxes" else _by_scalars)(graph, args, domain)
    except UnsupportedError:
        if path is not None or chosen == "scalar":
            raise
        chosen, found = "scalar", _by_scalars(graph, args, domain)
    outputs = tuple(IntervalTensor(t.shape, t.cells, chosen) for t in found)
    return outputs[0] if len(outputs) == 1 else outputs


def _terms(graph: Graph) -> int:
    """How many numbers the specification would touch."""
    total = 0
    for node in expand(graph).nodes:
        rule = node.op.sums
        terms = 1 if rule is None else rule.max_roundings(node.attrs, *(v.type for v in node.inputs))
        total += max(terms, 1) * sum(v.type.size for v in node.outputs)
    return total


def _by_boxes(graph: Graph, args: Sequence[object], domain: Domain) -> tuple[Tensor, ...]:
    """Boxes in float64, as the intervals' ends are; of the real numbers, as intervals are."""
    if not all(v.type.is_float for v in graph.outputs):
        raise UnsupportedError('boxes are of floats, and an output is none; use path="scalar"')
    given = [_as_input(v, a, domain) for v, a in zip(graph.inputs, args, strict=True)]
    bounded = [v.type.is_float for v in graph.inputs]
    run = compile(boxes(graph, BoundArithmetic(f64, any=False), bounded))
    arrays: list[Any] = []
    for var, tensor_ in zip(graph.inputs, given, strict=True):
        ends = [[ends_of(c)[i] for c in tensor_.cells] for i in (0, 1)] if var.type.is_float else [tensor_.cells]
        dtype = np.float64 if var.type.is_float else var.dtype.numpy
        arrays += [np.array(end, dtype).reshape(var.shape) for end in ends]
    flat = run(*arrays)
    pairs = zip(graph.outputs, flat[::2], flat[1::2], strict=True)
    opened = ((_open_ends(low, -np.inf), _open_ends(high, np.inf)) for _, low, high in pairs)
    return tuple(domain.tensor(*ends) for ends in opened)  # type: ignore[call-arg]


def _open_ends(ends: Array, nothing: float) -> Array:
    """Where nothing is known, the end is infinite."""
    return np.where(np.isnan(ends), nothing, ends)


def _as_input(var: Var, value: object, domain: Domain) -> Tensor:
    argument = value if isinstance(value, Tensor) else _in_domain(var, to_numpy(value), domain)
    if argument.shape != var.shape:
        raise ShapeError(f"input {var!r} was given a tensor of shape {argument.shape}; pass one of shape {var.shape}")
    return argument


def _in_domain(var: Var, value: object, domain: Domain) -> Tensor:
    if var.dtype is boolean:
        array = np.asarray(value)
        return Tensor(array.shape, map(_truth, array.flat))
    return domain.tensor(value) if var.type.is_float else tensor(value).map(_integer)


def _truth(value: Scalar) -> bool:
    if value not in (0, 1):
        raise DTypeError(f"{value} is neither true nor false, and a boolean input was given it; give booleans")
    return bool(value)


def _integer(value: Scalar) -> int:
    if int(value) != value:
        raise DTypeError(f"{value} is not an integer, and an integer input was given it; give whole numbers")
    return int(value)
