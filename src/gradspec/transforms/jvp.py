"""Forward mode: a graph to the graph of its JVP.

Every variable gets its primal and, where it depends on a differentiated input, its tangent. A tangent that is zero is
None and is never computed with; one that must be returned becomes a constant.
"""

from __future__ import annotations

from collections.abc import Sequence

from gradspec.graph.builder import Builder
from gradspec.graph.graph import Graph, Wrt
from gradspec.graph.ir import Node, Var
from gradspec.ops.box import sum_of
from gradspec.transforms.copy import Copier

Tangent = Var | None


def jvp(graph: Graph, wrt: Wrt = None) -> Graph:
    """``(inputs…, tangents…) → (outputs…, output tangents…)``; integers have no tangents."""
    copy = Copier(graph)
    tangents: dict[Var, Var] = {}
    for var in differentiated(graph, wrt):
        tangents[var] = copy.builder.input(var.type, copy.builder.unused(f"d{var.name}"))
    for node in graph.nodes:
        seen = [tangents.get(v) for v in node.inputs]
        if node.op.constant or not any(seen_one is not None for seen_one in seen):
            copy.node(node)
            continue
        outputs, pushed = push_forward(node, copy.all(node.inputs), seen)
        copy.assign(node, outputs)
        tangents |= {v: t for v, t in zip(node.outputs, pushed, strict=True) if t is not None}
    results = [or_zero(tangents.get(v), v, copy.builder) for v in graph.outputs if v.type.is_float]
    return copy.builder.build([*copy.all(graph.outputs), *results], allow_unused=True)


def push_forward(
    node: Node, primals: Sequence[Var], tangents: Sequence[Tangent]
) -> tuple[Sequence[Var], Sequence[Tangent]]:
    """The outputs of a node and their tangents, by its operator's rule."""
    op, builder = node.op, primals[0].owner
    if op.jvp is not None:
        return op.jvp(node.attrs, primals, tangents)
    if op.linear == "jointly":
        moving = [or_zero(t, p, builder) if p.type.is_float else p for p, t in zip(primals, tangents, strict=True)]
        return builder.apply(op, node.attrs, *primals), builder.apply(op, node.attrs, *moving)
    if op.linear == "each":
        terms = [
            builder.apply(op, node.attrs, *primals[:i], t, *primals[i + 1 :])
            for i, t in enumerate(tangents)
            if t is not None
        ]
        return builder.apply(op, node.attrs, *primals), [sum_of(column) for column in zip(*terms, strict=True)]
    raise op.missing("JVP")


def or_zero(tangent: Tangent, like: Var, builder: Builder) -> Var:
    return builder.zeros(like.type) if tangent is None else tangent


def differentiated(graph: Graph, wrt: Wrt) -> list[Var]:
    """The inputs that ``wrt`` names, by name or position, in the order of the inputs; all floats for None."""
    if wrt is None:
        return [v for v in graph.inputs if v.type.is_float]
    by_name = {v.name: v for v in graph.inputs}
    chosen = []
    for key in wrt if isinstance(wrt, list | tuple) else (wrt,):
        var = by_name.get(key) if isinstance(key, str) else None
        if isinstance(key, int) and not isinstance(key, bool) and -len(graph.inputs) <= key < len(graph.inputs):
            var = graph.inputs[key]
        if var is None:
            raise ValueError(f"wrt={key!r} is not an input; the inputs are {', '.join(map(repr, graph.inputs))}")
        if not var.type.is_float:
            raise TypeError(f"wrt={key!r} is {var!r}: integers have no derivative; name floating-point inputs only")
        chosen.append(var)
    if not chosen:
        raise ValueError("wrt names no input; name at least one, or leave it out for all of them")
    wanted = set(chosen)
    return [v for v in graph.inputs if v in wanted]
