"""Gathering at places and scattering to places on their kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from struct import pack

from gradspec.backends.cpu.axes import Axis, Blocks, Strides, dense, merged
from gradspec.backends.cpu.dtypes import COMPUTED
from gradspec.backends.cpu.kernels import place_fields as f
from gradspec.backends.cpu.taps import aligned
from gradspec.backends.numpy.pool import require_in_plane
from gradspec.codegen.cache import kernel
from gradspec.graph.types import DType
from gradspec.runtime.task import Bound, Lowering, LoweringBase, Task, Work

SOURCE = "gradspec.backends.cpu.kernels.unpool"

PLACES_PER_UNIT = 4096
CELLS_PER_BAND = 1 << 17
NANOSECONDS_PER_PLACE, NANOSECONDS_PER_CELL = 2.0, 0.5


@dataclass(frozen=True)
class _Places:
    """Places ``(*leads, *shape)`` in planes ``(*leads, *plane)``."""

    leads: tuple[int, ...]
    shape: tuple[int, ...]
    plane: tuple[int, ...]
    kind: DType
    scatters: bool

    @property
    def cells(self) -> int:
        return prod(self.plane)

    @property
    def made(self) -> int:
        """Cells of a plane of the result."""
        return self.cells if self.scatters else prod(self.shape)

    @property
    def band(self) -> int:
        return min(self.made, CELLS_PER_BAND if self.scatters else PLACES_PER_UNIT)

    @property
    def units(self) -> int:
        return prod(self.leads) * -(-self.made // self.band) if self.made else 0

    def described(self, workspace: int, strides: Sequence[Strides]) -> Bound:
        """What follows the addresses of x, places and y."""
        count = len(self.leads)
        x, places, y = (s[count:] for s in strides)
        leads = merged(zip(self.leads, zip(*(s[:count] for s in strides), strict=True), strict=True))
        moved = _list(self.shape, x if self.scatters else y, places)
        plane = _list(self.plane, y if self.scatters else x, dense(self.plane))
        at = f.HEADER + f.LEAD * len(leads)
        words = [f.KINDS.index(self.kind.name), self.cells, self.band, -(-self.made // self.band), len(leads)]
        words += [at, at + len(moved), *_words(leads), *moved, *plane]
        return pack(f"<{len(words)}q", *words), self.units, workspace


def _list(sizes: Sequence[int], *strides: Strides) -> list[int]:
    """A list of axes, as few as will do, but one at least."""
    axes = merged(zip(sizes, zip(*strides, strict=True), strict=True)) or [(1, (0,) * len(strides))]
    return [len(axes), prod(size for size, _ in axes), *_words(axes)]


def _words(axes: Sequence[Axis]) -> list[int]:
    return [word for size, strides in axes for word in (size, *strides)]


@dataclass(frozen=True)
class _PlaceLowering(LoweringBase):
    scatters: bool

    def task(self, work: Work) -> Task | None:
        (node,) = work.nodes
        (x, indices), (y,) = node.inputs, node.outputs
        if (self.scatters and x.dtype.name not in COMPUTED) or indices.dtype.name not in f.KINDS:
            return None
        rank = len(node.attrs.output_size) if self.scatters else node.attrs.rank
        at, larger = y.ndim - rank, y if self.scatters else x
        places = _Places(y.shape[:at], indices.shape[at:], larger.shape[at:], indices.dtype, self.scatters)
        itemsize = x.dtype.numpy.itemsize
        workspace = f.FRAME_BYTES + aligned(COMPUTED[x.dtype.name] * places.band if self.scatters else 0)
        return Task(
            kernel=f"{'scatter' if self.scatters else 'gather'} {x.dtype}",
            inputs=(x, indices),
            outputs=(y,),
            function=kernel(SOURCE, f"scatter:{x.dtype}" if self.scatters else f"gather:{itemsize}"),
            units=places.units,
            cost=NANOSECONDS_PER_PLACE * indices.type.size + NANOSECONDS_PER_CELL * y.type.size,
            workspace=workspace,
            bind=Blocks((itemsize, indices.dtype.numpy.itemsize, itemsize), partial(places.described, workspace)),
            checks=((indices, partial(require_in_plane, cells=places.cells)),),
        )


LOWERINGS: dict[str, Lowering] = {
    "max_gather": _PlaceLowering(scatters=False),
    "max_unpool": _PlaceLowering(scatters=True),
}
