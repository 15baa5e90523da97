"""Gathering at places and scattering to places on their kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

from gradspec.backends.cpu.binding import KernelCall, task_of
from gradspec.backends.cpu.planning import COMPUTED, Strides, grid
from gradspec.backends.cpu.pool.arguments import IndexKind, UnpoolArguments
from gradspec.backends.numpy.windows import require_in_plane
from gradspec.codegen.cache import kernel
from gradspec.codegen.records import Operand
from gradspec.runtime.memory import aligned
from gradspec.runtime.task import Lowering, LoweringBase, Task, Work

SOURCE = "gradspec.backends.cpu.pool.kernels.unpool"

PLACES_PER_UNIT = 4096
CELLS_PER_BAND = 1 << 17
NANOSECONDS_PER_PLACE, NANOSECONDS_PER_CELL = 2.0, 0.5


@dataclass(frozen=True)
class _Placing:
    """Places ``(*leads, *shape)`` in planes ``(*leads, *plane)``: numbers are scattered to them, or gathered there."""

    leads: tuple[int, ...]
    shape: tuple[int, ...]
    plane: tuple[int, ...]
    kind: IndexKind
    scatters: bool
    width: int
    """Bytes of the numbers that sums are computed in."""

    def __call__(self, strides: Sequence[Strides]) -> KernelCall[UnpoolArguments]:
        """For strides of x, places and y."""
        (x, places, y), (x_plane, places_plane, y_plane) = strides, (s[len(self.leads) :] for s in strides)
        moved, plane = (x_plane, y_plane) if self.scatters else (y_plane, x_plane)
        count, cells = prod(self.shape), prod(self.plane)
        made, most = (cells, CELLS_PER_BAND) if self.scatters else (count, PLACES_PER_UNIT)
        band, bands = min(made, most), -(-made // most)
        arguments = UnpoolArguments(
            x=Operand(0),
            places=Operand(1),
            y=Operand(2),
            kind=self.kind,
            planes=grid(self.leads, x, y),
            place_planes=grid(self.leads, places, places),
            moved=grid(self.shape, moved, places_plane),
            count=count,
            plane=grid(self.plane, plane, plane),
            cells=cells,
            band=band,
            bands=bands,
        )
        return KernelCall(arguments, prod(self.leads) * bands, aligned(self.width * band) if self.scatters else 0)


@dataclass(frozen=True)
class _PlaceLowering(LoweringBase):
    scatters: bool

    def task(self, work: Work) -> Task | None:
        (node,) = work.nodes
        (x, indices), (y,) = node.inputs, node.outputs
        kind, width = IndexKind.__members__.get(indices.dtype.name.upper()), COMPUTED.get(x.dtype.name, 0)
        if kind is None or (self.scatters and not width):
            return None
        at = y.ndim - (len(node.attrs.output_size) if self.scatters else node.attrs.rank)
        plane = (y if self.scatters else x).shape[at:]
        placing = _Placing(y.shape[:at], indices.shape[at:], plane, kind, self.scatters, width)
        name = "scatter" if self.scatters else "gather"
        function = kernel(SOURCE, f"{name}:{x.dtype if self.scatters else x.dtype.numpy.itemsize}")
        cost = NANOSECONDS_PER_PLACE * indices.type.size + NANOSECONDS_PER_CELL * y.type.size
        checks = ((indices, partial(require_in_plane, cells=prod(plane))),)
        return task_of(f"{name} {x.dtype}", function, node.inputs, node.outputs, placing, cost, checks=checks)


LOWERINGS: dict[str, Lowering] = {
    "max_gather": _PlaceLowering(scatters=False),
    "max_unpool": _PlaceLowering(scatters=True),
}
