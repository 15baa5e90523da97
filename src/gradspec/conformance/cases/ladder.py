"""Batches of one long axis, or of two at a corner, for every operator and all sizes in turn (`blocks`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest

from gradspec.conformance.cases.blocks import BEYOND_GRID, BLOCKS, SIZES, most, sizes_around
from gradspec.conformance.cases.combinations import GEOMETRY, CaseSpace, RankedOperator
from gradspec.conformance.cases.cover import Cell, Planned

CORNERS = (
    ("block_width", "block_height"),
    ("block_width", "block_out_channels"),
    ("block_channels", "block_out_channels"),
    ("block_width", "block_channels"),
)
"""Two axes at a time: tiles of two axes, and of matrix products."""
RANKS = (2, 1, 2, 3)
"""Of one size after the other, as far as there are such; long axes beside many others take long."""
REGIMES = ("exact_sum", "rounding")
"""In the first a dropped term shows however long the sum; in the second all numbers have full significands."""
LAYOUTS = ("contiguous", "contiguous", "channels_last")
LEAST_CELLS = 2


def ladder(space: CaseSpace, own: Sequence[int] = ()) -> list[Planned]:
    """A batch of each operator, long axis and size, in turns: sizes around one's own blocks first."""
    rungs: list[Iterator[Planned | None]]
    rungs = [_rungs(entries, (name,), own) for name in BLOCKS for entries in space.by_op().values()]
    corners = [_rungs(entries, both, own) for both in CORNERS for entries in space.by_op().values()]
    rungs += [(either for planned in batches for either in (None, planned)) for batches in corners]  # half as often
    found = (planned for turn in zip_longest(*rungs) for planned in turn if planned is not None)
    return [planned for planned in found if not space.asked or planned.features & space.asked]


def _rungs(entries: Sequence[RankedOperator], blocks: Sequence[str], own: Sequence[int]) -> Iterator[Planned]:
    """The batches of one operator and long axis."""
    having = {entry.rank: entry for entry in entries if entry.values.issuperset(blocks)}
    for turn, size in enumerate(_sizes(entries[0].op, blocks, own) if having else ()):
        rank = next((rank for rank in (RANKS[turn % len(RANKS)], *RANKS) if rank in having), min(having))
        cells = _cells(having[rank], blocks, turn)
        if cells:
            yield Planned(entries[0].op, rank, frozenset(blocks), tuple(cells), style="block", size=size)


def _sizes(op: str, blocks: Sequence[str], own: Sequence[int]) -> list[int]:
    usual = [SIZES[0], BEYOND_GRID[0], *SIZES[1:], *BEYOND_GRID[1:]] if _on_grid(op, blocks) else SIZES
    longest = most(op, blocks)
    return [size for size in dict.fromkeys([*sizes_around(own), *usual]) if not longest or size <= longest]


def _on_grid(op: str, blocks: Sequence[str]) -> bool:
    """Whether an axis may be one of a grid of blocks as it stands: samples, and planes of a pooling."""
    planes = "block_channels" if "block_out_channels" not in GEOMETRY[op] else ""
    return tuple(blocks) in (("block_batch",), (planes,))


def _cells(entry: RankedOperator, blocks: Sequence[str], turn: int) -> list[Cell]:
    """Every first derivative and the value, with regimes, dtypes and layouts in turns."""
    pairs = entry.pairs(blocks[:1])
    modes = list(dict.fromkeys(mode for mode, _ in pairs if mode != "second")) or [mode for mode, _ in pairs[:1]]
    layouts = [name for name in LAYOUTS if name in (*entry.values, LAYOUTS[0])]
    found = []
    for i in range(max(len(modes), LEAST_CELLS) if modes else 0):
        mode, regime = modes[i % len(modes)], REGIMES[(i // len(modes) + turn // 2) % 2]
        dtypes = [dtype for other, dtype in pairs if other == mode]
        dtype = "f32" if "f32" in dtypes and turn % 3 < 2 else dtypes[(turn + i) % len(dtypes)]
        found.append(Cell(mode, dtype, None, layouts[turn % len(layouts)], regime))
    return found
