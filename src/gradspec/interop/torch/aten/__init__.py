"""PyTorch's operators, ``torch.ops.aten``, as functions of variables. Importing the package fills the table."""

from __future__ import annotations

from collections.abc import Sequence

from gradspec.graph.ir import Var
from gradspec.interop.torch.aten import arithmetic, layout, windows
from gradspec.interop.torch.aten.table import AtenEntry, entry_for, entry_of, reads
from gradspec.saving.graphs import from_text
from gradspec.spec.errors import ShapeError
from gradspec.transforms.copy import inline

__all__ = ["AtenEntry", "arithmetic", "entry_for", "entry_of", "layout", "windows"]


@reads("gradspec::graph")
def _graph(operands: Sequence[Var], structure: str) -> tuple[Var, ...]:
    """The operator that ``gs.to_torch`` puts into a program: the graph that its text describes."""
    graph = from_text(structure)
    given, wanted = [v.type for v in operands], [v.type for v in graph.inputs]
    if given != wanted:
        raise ShapeError(f"its text describes a graph of {wanted}, and it is applied to {given}")
    return inline(graph, operands)
