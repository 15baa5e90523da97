"""Lines of one cell of a variable: where its receptive field is small, rows carry patches instead of planes.

A cell at position ``o`` reads, of each variable before it, the cells ``o·stride − offset …`` of some size along every
spatial axis. So the part of the graph that it depends on is a small graph of its own, the same for all positions: the
nodes on patches, without padding. Lines are taken backwards through that, and the boxes that they need are patches of
the boxes of the whole. What a patch has beyond a plane is padding, which is 0 and does not move: coefficients are cut
off there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import numpy as np

from gradspec.graph.builder import Builder
from gradspec.graph.graph import Graph
from gradspec.graph.ir import Crop, Node, Reads, Var
from gradspec.graph.types import TensorType
from gradspec.ops.box import BoundArithmetic, Box, SumError
from gradspec.ops.layout import pad, transpose
from gradspec.ops.layout import slice as slice_of
from gradspec.ops.shape import broadcast_to, reshape
from gradspec.ops.unfold import unfold
from gradspec.transforms.boxes import Boxes, enclosed, enter, known_ends, varying
from gradspec.transforms.lines import Backwards

MOST_SHARE = 0.5
"""Patches that are larger than this part of their planes are not worth their tables."""


class PatchAxis(NamedTuple):
    """Along one axis, position ``o`` reads ``size`` cells from ``o·stride − offset`` on."""

    stride: int
    offset: int
    size: int

    def before(self, stride: int, offset: int, size: int) -> PatchAxis:
        """What an operand needs for this piece, if piece and operand are ``stride`` and ``offset`` apart."""
        return PatchAxis(self.stride * stride, self.offset * stride + offset, size)

    def joined(self, other: PatchAxis) -> PatchAxis:
        offset = max(self.offset, other.offset)
        return PatchAxis(self.stride, offset, offset + max(self.size - self.offset, other.size - other.offset))


PatchAxes = tuple[PatchAxis, ...]


@dataclass(frozen=True)
class PatchedLines:
    """``tables``: ``(boxes, known…) → one table for each input of row``, a line for each position of the target.
    ``row``: ``(coefficients of the channels, lines of the tables…) → a lower bound``.
    """

    tables: Graph
    row: Graph
    share: float
    """The cells of all patches, as a part of those of the planes."""


def patched_lines(
    graph: Graph, arithmetic: BoundArithmetic, bounded: Sequence[bool], target: Var, known: Sequence[Var], rank: int
) -> PatchedLines | None:
    """Lines of single cells of ``target``, whose last ``rank`` axes are spatial; None if patches would not pay."""
    moving = varying(graph, bounded)
    pieces = _pieces(graph, moving, target, rank)
    if pieces is None or _share(pieces) > MOST_SHARE:
        return None
    builder = Builder()
    boxes = Boxes(graph, builder, arithmetic)
    enter(boxes, bounded)
    boxes.run({v: known_ends(boxes, v) for v in known})
    row = _PatchRow(boxes, moving, target, pieces)
    tables = [_table(plane, pieces[var], target.shape[-rank:]) for var, plane in row.planes]
    return PatchedLines(builder.build(tables, allow_unused=True), row.graph, _share(pieces))


def _pieces(graph: Graph, moving: set[Var], target: Var, rank: int) -> dict[Var, PatchAxes] | None:
    """What one position of the target needs of each variable; None if something on the way does not work on patches."""
    found = {target: (PatchAxis(1, 0, 1),) * rank}
    for node in reversed(graph.nodes):
        if node.outputs[0] not in found or node.outputs[0] not in moving:
            continue
        cropped = _crop_node(node, found[node.outputs[0]])
        if cropped is None:
            return None
        for var, axes in zip(node.inputs, cropped[1], strict=True):
            if axes is None:
                if var not in graph.constants:
                    return None
                continue
            wanted = tuple(p.before(*axis) for p, axis in zip(found[node.outputs[0]], axes, strict=True))
            before = found.get(var, wanted)
            if prod(var.shape[: var.ndim - rank - 1]) != 1 or [p.stride for p in before] != [p.stride for p in wanted]:
                return None
            found[var] = tuple(a.joined(b) for a, b in zip(before, wanted, strict=True))
    return found


def _crop_node(node: Node, pieces: PatchAxes) -> Crop:
    """The attributes of a node on a patch, and for each operand how far along each axis it reads."""
    if node.op.crop is None:
        return None
    return node.op.crop(node.attrs, [v.type for v in node.inputs], tuple(p.size for p in pieces))


def _share(pieces: Mapping[Var, PatchAxes]) -> float:
    return sum(prod(_patch_shape(v, p)) for v, p in pieces.items()) / sum(prod(v.shape) for v in pieces)


def _patch_shape(var: Var, pieces: PatchAxes) -> tuple[int, ...]:
    return (*var.shape[: var.ndim - len(pieces)], *(p.size for p in pieces))


class _PatchRow:
    """The graph of one cell's bound. Boxes of patches are inputs, made when something asks for them."""

    def __init__(self, whole: Boxes, moving: set[Var], target: Var, pieces: Mapping[Var, PatchAxes]) -> None:
        self._whole, self._pieces, self._builder = whole, pieces, Builder()
        self.planes: list[tuple[Var, Var]] = []
        """For each input but the first, a variable and the plane that it is a patch of."""
        small, patches = self._small(moving, target)
        coefficients = self._builder.input(self._patch_type(target), "coefficients")
        boxes = Boxes(small, self._builder, whole.arithmetic)
        masks = {}
        for var, patch in patches.items():
            boxes[patch] = self._box(var)
            if var in moving and _overhangs(var, pieces[var], target):
                masks[patch] = self._mask(var)
        for node in small.nodes:
            if node.outputs[0] not in patches.values():  # a slice of a patch
                (boxes[node.outputs[0]],) = enclosed(node, [boxes[v] for v in node.inputs], whole.arithmetic)
        bound = Backwards(boxes, {}, {}, masks).bound(patches[target], coefficients)
        self.graph = self._builder.build(bound, allow_unused=True)

    def _small(self, moving: set[Var], target: Var) -> tuple[Graph, dict[Var, Var]]:
        """The part of the graph that one position needs, on patches."""
        graph, builder = self._whole.graph, Builder()
        patches: dict[Var, Var] = {}
        for var in self._pieces:
            if var in graph.inputs or var not in moving:
                patches[var] = builder.input(self._stored_type(var), builder.unused(var.name))
        for node in graph.nodes:
            var = node.outputs[0]
            if var in self._pieces and var in moving:
                cropped = _crop_node(node, self._pieces[var])
                assert cropped is not None
                pairs = zip(node.inputs, cropped[1], strict=True)
                operands = [self._operand(patches, v, a, self._pieces[var], builder) for v, a in pairs]
                (patches[var],) = builder.apply(node.op, cropped[0], *operands)
            if var is target:
                break
        return builder.build(patches[target], allow_unused=True), patches

    def _operand(
        self, patches: Mapping[Var, Var], var: Var, axes: Reads | None, result: PatchAxes, builder: Builder
    ) -> Var:
        """An operand's patch, cut to what this node reads of it; or a constant."""
        if axes is None:
            return builder.share(self._whole.graph.constants[var], var.name)
        wanted = [p.before(*axis) for p, axis in zip(result, axes, strict=True)]
        patch, lead = patches[var], var.ndim - len(wanted)
        starts = [0] * lead + [whole.offset - p.offset for whole, p in zip(self._pieces[var], wanted, strict=True)]
        sizes = [*patch.shape[:lead], *(p.size for p in wanted)]
        return slice_of(patch, starts, [a + n for a, n in zip(starts, sizes, strict=True)])

    def _stored_type(self, var: Var) -> TensorType:
        """The type of a patch where the graph runs, whose storage rounds."""
        return TensorType(var.dtype, _patch_shape(var, self._pieces[var]))

    def _patch_type(self, var: Var) -> TensorType:
        return self._whole.own_type(self._stored_type(var))

    def _box(self, var: Var) -> Box:
        box = self._whole[var]
        if not box.varies:
            return Box(box.arithmetic, point=self._patch(var, "value", box.lower))

        def part(name: str, plane: Callable[[], Var]) -> Callable[[], Var]:
            return lambda: self._patch(var, name, plane())

        sum_error = box.sum_error
        lower, upper = part("lower", lambda: box.lower), part("upper", lambda: box.upper)
        centre, radius = part("centre", lambda: box.centre), part("radius", lambda: box.radius)
        return Box(
            box.arithmetic,
            ends=lambda: (lower(), upper()),
            ball=lambda: (centre(), radius()),
            sum_error=sum_error
            and SumError(part("error", lambda: sum_error.error), part("reach", lambda: sum_error.reach)),
        )

    def _mask(self, var: Var) -> Var:
        """1 on the plane and 0 beyond it."""
        ones = self._whole.builder.const(np.ones((), self._whole.arithmetic.dtype.numpy), "one")
        return self._patch(var, "mask", broadcast_to(ones, var.shape))

    def _patch(self, var: Var, part: str, plane: Var) -> Var:
        self.planes.append((var, plane))
        return self._builder.input(self._patch_type(var), self._builder.unused(f"{var.name}_{part}"))


def _overhangs(var: Var, pieces: PatchAxes, target: Var) -> bool:
    """Whether a patch reaches beyond the plane at some position of the target."""
    axes = zip(target.shape[-len(pieces) :], var.shape[-len(pieces) :], pieces, strict=True)
    return any(p.offset > 0 or (last - 1) * p.stride - p.offset + p.size > size for last, size, p in axes)


def _table(plane: Var, pieces: PatchAxes, positions: Sequence[int]) -> Var:
    """The patch of each position, positions along the first axis."""
    rank, shape = len(pieces), plane.shape
    lead, sizes = shape[: len(shape) - rank], shape[len(shape) - rank :]
    ends = [(n - 1) * p.stride - p.offset + p.size for n, p in zip(positions, pieces, strict=True)]
    beyond = [(p.offset, max(0, end - n)) for p, end, n in zip(pieces, ends, sizes, strict=True)]
    padded = pad(reshape(plane, (prod(lead), *sizes)), ((0, 0), *beyond))
    stops = [p.offset + end for p, end in zip(pieces, ends, strict=True)]
    cut = slice_of(padded, (0,) * (rank + 1), (prod(lead), *stops))
    columns = unfold(cut, tuple(p.size for p in pieces), stride=tuple(p.stride for p in pieces))
    return reshape(transpose(columns, (1, 0)), (prod(positions), *lead, *(p.size for p in pieces)))
