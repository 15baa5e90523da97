"""Batching: a graph to the graph that does the same for every index of a leading axis."""

from __future__ import annotations

from gradspec.graph.builder import Builder
from gradspec.graph.graph import Graph, InAxes
from gradspec.graph.ir import Var
from gradspec.graph.types import TensorType
from gradspec.ops.shape import spread
from gradspec.spec.window import whole_number


def batch(graph: Graph, n: int, in_axes: InAxes = 0) -> Graph:
    """A leading axis of ``n`` on every output, and on the inputs whose ``in_axes`` is 0."""
    whole_number("the batch size", n, least=0)
    builder, has_axis = Builder(), _axes(graph, in_axes)
    new: dict[Var, Var] = {}
    batched: set[Var] = set()
    for var, leading in zip(graph.inputs, has_axis, strict=True):
        new[var] = builder.input(TensorType(var.dtype, (n, *var.shape)) if leading else var.type, var.name)
        batched |= {var} if leading else set()
    new |= {var: builder.share(array, var.name) for var, array in graph.constants.items()}
    for node in graph.nodes:
        operands = [new[v] for v in node.inputs]
        flags = [v in batched for v in node.inputs]
        outputs = (
            node.op.batch(node.op, node.attrs, operands, flags)
            if any(flags)
            else builder.apply(node.op, node.attrs, *operands)
        )
        new |= zip(node.outputs, outputs, strict=True)
        batched |= set(node.outputs) if any(flags) else set()
    results = [new[v] if v in batched else spread(new[v], n) for v in graph.outputs]
    return builder.build(results, allow_unused=True)


def _axes(graph: Graph, in_axes: InAxes) -> list[bool]:
    axes = list(in_axes) if isinstance(in_axes, list | tuple) else [in_axes] * len(graph.inputs)
    if len(axes) != len(graph.inputs):
        raise ValueError(
            f"in_axes has {len(axes)} entries for {len(graph.inputs)} inputs; give one per input, or one for all"
        )
    for axis in axes:
        if axis not in (0, None) or isinstance(axis, bool):
            raise ValueError(
                f"in_axes={axis!r} is not known; give 0 for inputs with a leading batch axis, None for others"
            )
    if all(axis is None for axis in axes):
        raise ValueError("in_axes leaves every input without a batch axis; give 0 for at least one")
    return [axis == 0 for axis in axes]
