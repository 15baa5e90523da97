"""Scans: a body that is run once for each place of a leading axis, and hands its results on to the next step.

Only what the carries need of one another is left to the body. ``scanned`` computes what no carry reaches before it, and
what reaches no carry after it, for all steps at once, by the batching rules of the operators. So a body is short, a
scan without carries is none, and what follows is of the recurrence alone.

With ``h`` the carries before a step, ``x`` its cells and ``w`` what all steps read, ``(h′, y) = f(h, x, w)``. The
tangents ``(dh′, dy) = ∂f(h, x, w)·(dh, dx, dw)`` are a scan, too, with ``h`` among its cells, and linear. It is
transposed step by step, from the last to the first: ``(dh, dx, dw) = ∂fᵀ(h, x, w)·(dh′, dy)``, where ``dw`` is summed
over the steps.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from typing import Any

from gradspec.graph.builder import dependents, needed, operands
from gradspec.graph.graph import Graph, check
from gradspec.graph.ir import JvpResult, Node, Op, Var
from gradspec.graph.types import TensorType
from gradspec.ops.layout import concat, transpose
from gradspec.ops.shape import reshape, spread, sum
from gradspec.spec.errors import ShapeError
from gradspec.spec.scalar import embed
from gradspec.spec.scan import scan as scan_spec
from gradspec.spec.tensor import Tensor

MOST_NODES = 2**16
"""The nodes that all steps of a scan may come to."""


@dataclass(frozen=True)
class Scan:
    """``body``: (carries…, cells…, what all steps read…) → (carries…, cells…). It has no constants.

    The operands have the cells of all steps in columns, whose leading axis has ``length`` places; so have the results.
    """

    body: Graph
    carries: int
    columns: int
    length: int
    reverse: bool = False

    @property
    def parts(self) -> tuple[slice, slice, slice]:
        """The places of carries, columns and what all steps read among the operands."""
        columns = self.carries + self.columns
        return slice(self.carries), slice(self.carries, columns), slice(columns, None)


def _column(cell: TensorType, length: int) -> TensorType:
    return TensorType(cell.dtype, (length, *cell.shape))


_check = lru_cache(maxsize=1024)(check)


def _node_count(body: Graph) -> int:
    """What a step comes to, those of scans within it included."""
    scans = (n.attrs for n in body.nodes if n.op is SCAN)
    inner: int = builtins.sum(attrs.length * _node_count(attrs.body) for attrs in scans)
    return 1 + len(body.nodes) + inner


def _types(attrs: Scan, *operands: TensorType) -> tuple[TensorType, ...]:
    body, n = _check(attrs.body), attrs.length
    cells, results = [v.type for v in body.inputs], [v.type for v in body.outputs]
    carries, columns, held = attrs.parts
    counts = f"{attrs.carries} carries, {attrs.columns} columns and {n} steps"
    if body.constants or not 0 < attrs.carries <= attrs.carries + attrs.columns <= len(cells) or n < 0:
        raise ShapeError(f"scan: a body of {len(cells)} inputs and no constants has carries among them, not {counts}")
    if cells[carries] != results[carries]:
        raise ShapeError(f"scan: the carries are {cells[carries]} before a step and {results[carries]} after it")
    if (nodes := n * _node_count(body)) > MOST_NODES:
        raise ShapeError(f"scan: {n} steps come to {nodes} nodes, more than {MOST_NODES}; split the scan")
    expected = [*cells[carries], *(_column(t, n) for t in cells[columns]), *cells[held]]
    if expected != [*operands]:
        raise ShapeError(f"scan: its body takes {expected}, and it was given {[*operands]}")
    return (*results[carries], *(_column(t, n) for t in results[attrs.carries :]))


def _run(body: Graph, operands: Sequence[Any], apply: Callable[[Node, list[Any]], Sequence[Any]]) -> list[Any]:
    """The outputs of a body whose nodes are applied by ``apply``."""
    values = dict(zip(body.inputs, operands, strict=True))
    for node in body.nodes:
        values |= zip(node.outputs, apply(node, [values[v] for v in node.inputs]), strict=True)
    return [values[v] for v in body.outputs]


def _spec(attrs: Scan, *operands: Tensor) -> tuple[Tensor, ...]:
    carries, columns, held = attrs.parts
    floats = (x for x, v in zip(operands, attrs.body.inputs, strict=True) if v.type.is_float and x.cells)
    like = next((x.cells[0] for x in floats), None)

    def applied(node: Node, tensors: list[Tensor]) -> list[Tensor]:
        """A float that is made of integers alone becomes a number of the domain."""
        made = node.op.spec(node.attrs, *tensors)
        if like is None or any(v.type.is_float for v in node.inputs):
            return [*made]
        pairs = zip(made, node.outputs, strict=True)
        return [x.map(lambda cell: embed(like, cell)) if v.type.is_float else x for x, v in pairs]

    def step(before: Sequence[Tensor], cells: Sequence[Tensor]) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        results = _run(attrs.body, [*before, *cells, *operands[held]], applied)
        return results[carries], results[attrs.carries :]

    last, rows = scan_spec(step, operands[carries], operands[columns], attrs.length, attrs.reverse)
    shapes = [(attrs.length, *v.shape) for v in attrs.body.outputs[attrs.carries :]]
    stacks = (Tensor(s, chain.from_iterable(row[i].cells for row in rows)) for i, s in enumerate(shapes))
    return (*last, *stacks)


def _decompose(attrs: Scan, *operands: Var) -> tuple[Var, ...]:
    """The steps one after another, on slices of one place, so that neither cells nor results change their shape."""
    carries, columns, held = attrs.parts
    body = attrs.body.batch(1, [0] * (attrs.carries + attrs.columns) + [None] * len(operands[held]))
    builder, rows = operands[0].owner, []
    before = [reshape(v, (1, *v.shape)) for v in operands[carries]]
    for i in range(attrs.length)[:: -1 if attrs.reverse else 1]:
        results = _run(body, [*before, *(x[i : i + 1] for x in operands[columns]), *operands[held]], builder.repeat)
        before = results[carries]
        rows.append(results[attrs.carries :])
    last = (reshape(v, v.shape[1:]) for v in before)
    if not rows:
        return (*last, *(builder.zeros(_column(v.type, 0)) for v in attrs.body.outputs[attrs.carries :]))
    return (*last, *map(concat, zip(*rows[:: -1 if attrs.reverse else 1], strict=True)))


# --- what is computed within the scan, and what before and after it ---------------------------------------------------


def scanned(
    body: Graph, carries: Sequence[Var], columns: Sequence[Var], held: Sequence[Var], length: int, reverse: bool
) -> list[Var]:
    """The last carries and the columns of results, of a body of carries, cells and what all steps read."""
    count, given = len(carries), operands(*carries, *columns, *held)
    own, cells, builder = body.inputs[:count], body.inputs[count : count + len(columns)], given[0].owner
    values = dict(zip(body.inputs[count:], given[count:], strict=True))
    values |= {v: builder.share(array, v.name) for v, array in body.constants.items()}
    stacked, turning = {*cells}, dependents(body, own)
    core, used = needed([n for n in body.nodes if turning.intersection(n.outputs)], body.outputs[:count])
    inside = dict.fromkeys((*own, *(v for node in core for v in node.outputs)))
    around: Sequence[Node] = [n for n in body.nodes if inside.keys().isdisjoint(n.outputs)]
    _, read_after = needed(around, body.outputs[count:])
    around, _ = needed(around, [*body.outputs[count:], *used])

    def apply(nodes: Sequence[Node]) -> None:
        """Nodes for all steps at once; those that read no cell, once."""
        for node in nodes:
            inputs, flags = [values[v] for v in node.inputs], [v in stacked for v in node.inputs]
            found = node.op.batch(node.op, node.attrs, inputs, flags) if any(flags) else builder.repeat(node, inputs)
            values.update(zip(node.outputs, found, strict=True))
            stacked.update(node.outputs if any(flags) else ())

    apply([node for node in around if turning.isdisjoint(node.outputs)])
    last: Sequence[Var] = ()
    if carries:
        read = sorted((v for v in values if v in used), key=lambda v: v not in stacked)
        after = [v for v in inside if v in read_after]
        attrs = Scan(
            Graph((*own, *read), tuple(core), (*body.outputs[:count], *after)),
            *(count, len(stacked.intersection(read)), length, reverse),
        )
        results = builder.apply(SCAN, attrs, *given[:count], *(values[v] for v in read))
        last = results[:count]
        values.update(zip(after, results[count:], strict=True))
        stacked.update(after)
    apply([node for node in around if turning.intersection(node.outputs)])
    return [*last, *(values[v] if v in stacked else spread(values[v], length) for v in body.outputs[count:])]


# --- derivatives, and batches -----------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def _tangents(body: Graph, carries: int, first: int, moving: frozenset[int]) -> tuple[Graph, list[int], list[int]]:
    """``(dh…, h…, x…, dx…, w…, dw…) → (dh′…, dy…)``, and which operands and which results have a tangent."""
    while True:
        reached = dependents(body, [body.inputs[i] for i in moving])
        pushed = [i for i, v in enumerate(body.outputs) if v.type.is_float and v in reached]
        if moving.issuperset(i for i in pushed if i < carries):
            break
        moving = moving.union(i for i in pushed if i < carries)
    order, count = sorted(moving), len(body.inputs)
    turning = [i for i in order if i < carries]
    pushed = [*turning, *(i for i in pushed if i >= carries)]
    both = body.jvp(order)
    tangents = dict(zip(order, both.inputs[count:], strict=True))
    floats = (i for i, v in enumerate(body.outputs) if v.type.is_float)
    results = dict(zip(floats, both.outputs[len(body.outputs) :], strict=True))
    inputs = (
        *(tangents[i] for i in turning),
        *both.inputs[:first],
        *(tangents[i] for i in order if carries <= i < first),
        *both.inputs[first:count],
        *(tangents[i] for i in order if i >= first),
    )
    return Graph(inputs, both.nodes, tuple(results[i] for i in pushed), both.constants), order, pushed


def _jvp(attrs: Scan, primals: Sequence[Var], tangents: Sequence[Var | None]) -> JvpResult:
    body, parts = attrs.body, attrs.parts
    of_carries, of_columns, of_held = (primals[p] for p in parts)
    given = {i: t for i, t in enumerate(tangents) if t is not None}
    rule, moving, pushed = _tangents(body, attrs.carries, parts[1].stop, frozenset(given))
    kept = replace(body, outputs=(*body.outputs, *body.inputs[parts[0]]))
    found = scanned(kept, of_carries, of_columns, of_held, attrs.length, attrs.reverse)
    results, before = found[: len(body.outputs)], found[len(body.outputs) :]
    moved = {i: given[i] if i in given else primals[i].owner.zeros(primals[i].type) for i in moving}
    changes, of_cells, of_fixed = ([moved[i] for i in range(len(primals))[p] if i in moved] for p in parts)
    columns, held = [*before, *of_columns, *of_cells], [*of_held, *of_fixed]
    made = dict(zip(pushed, scanned(rule, changes, columns, held, attrs.length, attrs.reverse), strict=True))
    return results, [made.get(i) for i in range(len(results))]


@lru_cache(maxsize=256)
def _transposed(body: Graph, carries: int, first: int, linear: frozenset[int], arriving: frozenset[int]) -> Graph:
    """``(dh′…, x…, dy…, w…) → (dh…, dx…, dw…)`` of a body that is linear in ``linear``, its carries among them."""
    wanted = tuple(v for i, v in enumerate(body.outputs) if i < carries or i in arriving)
    both = replace(body, outputs=wanted).vjp(sorted(linear))
    count = len(body.inputs)
    seeds = both.inputs[count:]
    inputs = (
        *seeds[:carries],
        *(both.inputs[i] for i in range(carries, first) if i not in linear),
        *seeds[carries:],
        *(both.inputs[i] for i in range(first, count) if i not in linear),
    )
    return Graph(inputs, both.nodes, both.outputs[len(wanted) :], both.constants)


def _pull_back(attrs: Scan, cotangents: Sequence[Var | None], operands: Sequence[Var | TensorType]) -> dict[int, Var]:
    """From the last step to the first. It is linear in its carries, even in those that begin with a constant zero."""
    count, first = attrs.carries, attrs.carries + attrs.columns
    fixed = {i: x for i, x in enumerate(operands) if isinstance(x, Var) and i >= count}
    linear = frozenset(range(len(operands))).difference(fixed)
    arriving = {i: g for i, g in enumerate(cotangents) if g is not None}
    builder = next(iter(arriving.values())).owner
    found = scanned(
        _transposed(attrs.body, count, first, linear, frozenset(arriving)),
        [arriving[i] if i in arriving else builder.zeros(v.type) for i, v in enumerate(attrs.body.outputs[:count])],
        [*(x for i, x in fixed.items() if i < first), *(g for i, g in arriving.items() if i >= count)],
        [x for i, x in fixed.items() if i >= first],
        *(attrs.length, not attrs.reverse),
    )
    return {i: g if i < first else sum(g, 0) for i, g in zip(sorted(linear), found, strict=True)}


def _batch(op: Op, attrs: Scan, operands: Sequence[Var], batched: Sequence[bool]) -> tuple[Var, ...]:
    """Columns have the axis of the steps first, within the scan, and that of the batch around it."""

    def turned(x: Var) -> Var:
        return transpose(x, (1, 0, *range(2, x.ndim)))

    n, (carries, columns, held) = next(v.shape[0] for v, has in zip(operands, batched, strict=True) if has), attrs.parts
    body = attrs.body.batch(n, [0 if has or i < attrs.carries else None for i, has in enumerate(batched)])
    before = [v if has else spread(v, n) for v, has in zip(operands[carries], batched[carries], strict=True)]
    cells = [turned(v) if has else v for v, has in zip(operands[columns], batched[columns], strict=True)]
    found = scanned(body, before, cells, operands[held], attrs.length, attrs.reverse)
    return (*found[carries], *map(turned, found[attrs.carries :]))


SCAN = Op(
    "scan",
    Scan,
    types=_types,
    spec=_spec,
    batch=_batch,
    jvp=_jvp,
    pull_back=_pull_back,
    decompose=_decompose,
    is_composite=True,
)
