"""The operator that ``gs.to_torch`` puts into a program: the graph that its text describes."""

from __future__ import annotations

from collections.abc import Sequence

from gradspec.graph.ir import Var
from gradspec.interop.torch.aten.table import reads
from gradspec.saving.graphs import from_text
from gradspec.spec.errors import ShapeError
from gradspec.transforms.copy import inline


@reads("gradspec::graph")
def _graph(operands: Sequence[Var], structure: str) -> tuple[Var, ...]:
    graph = from_text(structure)
    given, wanted = [v.type for v in operands], [v.type for v in graph.inputs]
    if given != wanted:
        raise ShapeError(f"its text describes a graph of {wanted}, and it is applied to {given}")
    return inline(graph, operands)
