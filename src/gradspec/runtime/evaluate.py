"""Other meanings of a graph: the specification of every node, on the numbers of any domain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gradspec.graph.arrays import taken
from gradspec.graph.graph import Graph
from gradspec.graph.ir import Var
from gradspec.graph.types import boolean
from gradspec.runtime.memory import require_memory
from gradspec.spec.errors import DTypeError, ShapeError
from gradspec.spec.scalar import Scalar
from gradspec.spec.tensor import Tensor, tensor

if TYPE_CHECKING:
    from gradspec.domains.domain import Domain


def evaluate(graph: Graph, *args: Any, domain: Domain) -> Any:
    """What the graph means in ``domain``: a Tensor for one output, a tuple for several.

    Arrays and nested lists are converted; a Tensor is taken as it is, so that intervals or dual numbers can be given.

    >>> import gradspec as gs
    >>> g = gs.trace(lambda x: x / 3.0, gs.f32[2])
    >>> evaluate(g, [1, 2], domain=gs.exact).tolist()
    [1/3, 2/3]
    """
    from gradspec.domains.domain import Domain  # python-flint takes longer to import than the rest of the library

    if len(args) != len(graph.inputs):
        raise TypeError(
            f"the graph takes {len(graph.inputs)} arguments ({', '.join(map(repr, graph.inputs))}), not {len(args)}"
        )
    if not isinstance(domain, Domain):
        raise TypeError(f"domain={domain!r} is not a number system; give gs.exact, gs.ball(128) or another")
    require_memory((node.op, v) for node in graph.nodes for v in node.outputs)  # of which none is a view
    values = {v: _given(v, a, domain) for v, a in zip(graph.inputs, args, strict=True)}
    values |= {v: _in_domain(v, array, domain) for v, array in graph.constants.items()}
    for node in graph.nodes:
        results = node.op.spec(node.attrs, *(values[v] for v in node.inputs))
        if not any(v.type.is_float for v in node.inputs):
            results = tuple(_entered(v, r, domain) for v, r in zip(node.outputs, results, strict=True))
        values |= zip(node.outputs, results, strict=True)
    outputs = tuple(values[v] for v in graph.outputs)
    return outputs[0] if len(outputs) == 1 else outputs


def _given(var: Var, value: Any, domain: Domain) -> Tensor:
    given = value if isinstance(value, Tensor) else _in_domain(var, taken(value), domain)
    if given.shape != var.shape:
        raise ShapeError(f"input {var!r} was given a tensor of shape {given.shape}; pass one of shape {var.shape}")
    return given


def _entered(var: Var, result: Tensor, domain: Domain) -> Tensor:
    """A result of integers alone, which become numbers of the domain where floats are meant."""
    return domain.tensor(result) if var.type.is_float else result


def _in_domain(var: Var, value: Any, domain: Domain) -> Tensor:
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
