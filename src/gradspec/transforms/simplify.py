"""The same meaning in another graph: with fewer nodes, in operators of the core, or in two graphs.

The graph is rebuilt, and some nodes are replaced by variables that already hold their results. No rule names an
operator: they use what its record says, that it is linear, that it only moves numbers, what it does twice. Rounding is
part of what a float graph means, so arithmetic on constants is left alone. Only the zeros that builders make, tangents
and cotangents that vanish, are the number 0: times anything they are 0. A 0.0 that a user wrote is a float like any
other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence, Set
from dataclasses import replace
from typing import Any

from gradspec.graph.builder import Builder, dependents, is_symbolic_zero
from gradspec.graph.graph import SERVICES, Graph
from gradspec.graph.ir import Array, Node, Var
from gradspec.graph.show import distinct
from gradspec.transforms.copy import Copier, expand

Replacement = Sequence[Var] | None
Rule = Callable[[Node, Sequence[Var], Builder], Replacement]
"""The variables that stand for a node's results, given its new operands; None: the node is needed."""

SAMPLED = 64
"""How many cells of a constant are compared before all of them are."""


def simplify(graph: Graph) -> Graph:
    """Fold moved constants, drop what derivatives multiply by zero, merge equal nodes and moves, remove unused ones.

    What a rule needs to know of a node's operands is settled before the node is met, so one pass finds everything.
    """
    return rewrite(graph, fold_movement, drop_zeros, EqualNodes())


def rewrite(graph: Graph, *rules: Rule) -> Graph:
    """The graph with what the rules find in the place of nodes; without rules, only what the outputs depend on."""
    copy = Copier(graph)
    for node in graph.nodes:
        inputs = copy.all(node.inputs)
        found = next((found for rule in rules if (found := rule(node, inputs, copy.builder)) is not None), None)
        if found is None:
            copy.node(node)
        else:
            copy.assign(node, found)
    return copy.builder.build(copy.all(graph.outputs), allow_unused=True)


def fold_movement(node: Node, inputs: Sequence[Var], builder: Builder) -> Replacement:
    """Operators that only move numbers, applied to constants now."""
    if not node.op.is_data_movement:
        return None
    arrays = [a for v in inputs if (a := builder.value(v)) is not None]
    if len(arrays) < len(inputs):
        return None
    results = SERVICES().eager(node.op, node.attrs, arrays)
    return [builder.share(array.view(), v.name) for array, v in zip(results, node.outputs, strict=True)]


def drop_zeros(node: Node, inputs: Sequence[Var], builder: Builder) -> Replacement:
    """Linear operators of the zeros that derivatives and batches bring along are such zeros again."""
    if node.op.linear is None:
        return None
    zeros = [is_symbolic_zero(builder.value(v)) for v in inputs if v.type.is_float]
    vanishes = any(zeros) and (node.op.linear == "each" or all(zeros))
    return [builder.zeros(v.type) for v in node.outputs] if vanishes else None


class EqualNodes:
    """The nodes met so far, each once, as equal constants are, and two moves in a row as one where they come to one."""

    def __init__(self) -> None:
        self._seen: dict[Any, Sequence[Var]] = {}
        self._first = _Constants()

    def __call__(self, node: Node, inputs: Sequence[Var], builder: Builder) -> Replacement:
        same: Sequence[Var] = [self._first(v, builder) for v in inputs]
        fuse, before = node.op.fuse_adjacent, builder.maker(same[0])
        if fuse is not None and before is not None and before.op is node.op:
            node, same = replace(node, attrs=fuse(before.attrs, node.attrs, before.inputs[0].type)), before.inputs
            if node.attrs is None:
                return same
        key = (node.op.name, repr(node.attrs), tuple(map(id, same)))  # 0.0 == -0.0, but they are written differently
        if key not in self._seen:
            self._seen[key] = builder.repeat(node, same)
        return self._seen[key]


class _Constants:
    """The constants met so far. Those that agree in a few cells are compared in all; most differ there, unread."""

    def __init__(self) -> None:
        self._alike: dict[Any, list[tuple[Var, Array]]] = defaultdict(list)

    def __call__(self, var: Var, builder: Builder) -> Var:
        """The first constant equal to this one; what is not a constant as it is."""
        array = builder.value(var)
        if array is None:
            return var
        cells = distinct(array)
        key = (var.type, is_symbolic_zero(array), cells.shape, _sample(cells))
        alike = self._alike[key]
        found = next((v for v, others in alike if v is var or cells.tobytes() == others.tobytes()), None)
        if found is None:
            alike.append((var, cells))
        return var if found is None else found


def _sample(cells: Array) -> bytes:
    """Some cells of an array, spread evenly."""
    return cells.flat[:: -(-cells.size // SAMPLED) or 1].tobytes()


# --- decomposition into operators of the core -------------------------------------------------------------------------


def decompose(graph: Graph, keep: Set[str] = frozenset()) -> Graph:
    """``graph`` made of the core and of the operators whose names are in ``keep``.

    >>> print(decompose(gs.trace(gs.silu, gs.f32[2]), keep={"sigmoid"}))
    graph(x: f32[2]):
      sigmoid : f32[2] = sigmoid(x)
      mul     : f32[2] = mul(x, sigmoid)
      return mul
    """
    made = expand(graph, lambda op: op.decompose is not None and op.name not in keep)
    return graph if made is graph else simplify(made)


# --- a graph in two ---------------------------------------------------------------------------------------------------


def split(graph: Graph, late: Sequence[Var]) -> tuple[Graph, Graph]:
    """``(other inputs) → middle`` and ``(middle…, late…) → outputs``: together they do what ``graph`` does.

    >>> g = gs.trace(lambda w, x: gs.abs(w) * x, gs.f32[2], gs.f32[2])
    >>> first, second = split(g, g.inputs[1:])
    >>> print(first)
    graph(w: f32[2]):
      abs : f32[2] = abs(w)
      return abs
    >>> print(second)
    graph(abs: f32[2], x: f32[2]):
      mul : f32[2] = mul(abs, x)
      return mul
    """
    moving = dependents(graph, tuple(late))
    needed = [v for node in graph.nodes if moving.intersection(node.outputs) for v in node.inputs]
    middle = [v for v in dict.fromkeys([*needed, *graph.outputs]) if v not in moving and v not in graph.constants]
    early = Copier(Graph(tuple(v for v in graph.inputs if v not in moving), (), (), graph.constants))
    for node in graph.nodes:
        if not moving.intersection(node.outputs):
            early.node(node)
    inputs = tuple(middle) + tuple(late)
    later = Copier(Graph(inputs, (), (), graph.constants))
    for node in graph.nodes:
        if moving.intersection(node.outputs):
            later.node(node)
    return (
        early.builder.build(early.all(middle), allow_unused=True),
        later.builder.build(later.all(graph.outputs), allow_unused=True),
    )
