"""Batches between those of the cover: recipes for what is rare and often wrong, and one long axis at a time.

In a batch of the cover several features meet, and one may hide what another would show. A recipe leads to where kernels
are known to change their way: wide windows, long sums, rules for ties, special numbers among weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np

from gradspec.conformance.cases.axes import BEYOND_GRID, BLOCKS, SIZES, most, sizes_around
from gradspec.conformance.cases.combinations import GEOMETRY, INDEX_SPECIALS, PLACE, CaseSpace, RankedOperator
from gradspec.conformance.cases.cover import Cell, Planned
from gradspec.conformance.cases.problems import Goal
from gradspec.conformance.model.case import REGIMES
from gradspec.conformance.model.problem import MODES


@dataclass(frozen=True)
class Recipe:
    """Cases of operators and ranks in a style: modes take turns, then special numbers and dtypes."""

    ops: tuple[str, ...]
    ranks: tuple[int, ...]
    style: str = "simple"
    modes: tuple[str, ...] = MODES
    dtypes: tuple[str, ...] = ("f32", "f64", "bf16", "f16")
    specials: tuple[str, ...] = ("",)
    regimes: tuple[str, ...] = REGIMES
    features: frozenset[str] = frozenset()
    tie_rule: str | None = "first"
    cases: int = 8

    def planned(self, entry: RankedOperator) -> Planned | None:
        """The batch of an entry, or None where too much of it is not offered."""
        if entry.op not in self.ops or entry.rank not in self.ranks or not self.features <= entry.values:
            return None
        cells = [cell for cell in self._cells() if _goes(entry, cell, self.features)]
        if not cells:
            return None
        cells = [cells[i % len(cells)] for i in range(min(self.cases, 4 * len(cells)))]
        goal = Goal(entry.op, entry.rank, self.features, style=self.style, tie_rule=self.tie_rule)
        return Planned(goal, tuple(cells))

    def _cells(self) -> Iterator[Cell]:
        for i in range(len(self.modes) * max(len(self.dtypes), len(self.specials), len(self.regimes))):
            turn, mode = divmod(i, len(self.modes))
            special = self.specials[(mode + turn) % len(self.specials)]
            dtype, regime = self.dtypes[turn % len(self.dtypes)], self.regimes[(mode + turn) % len(self.regimes)]
            yield Cell(self.modes[mode], dtype, special or None, "contiguous", regime)


def _goes(entry: RankedOperator, cell: Cell, features: frozenset[str]) -> bool:
    wanted = [*features, *([cell.special] if cell.special else [])]
    if (cell.mode, cell.dtype) not in entry.pairs():
        return False
    places = [PLACE[name] for name in (cell.mode, cell.dtype)]
    return all(name in entry.values and entry.together[PLACE[name], places].all() for name in wanted)


_SHORT = ("f16", "bf16", "f32")
_HIDDEN = ("infinity", "nan", "huge")
_TIED = ("ties", "nan", "infinity", "ties")

RECIPES = (
    Recipe(("max_pool",), (2,), "wide_window", specials=("", "ties", "nan")),
    Recipe(("conv_transpose",), (2,), "strided", specials=_HIDDEN),
    Recipe(("max_pool",), (2,), "three_taps", specials=("", "ties", "nan")),
    Recipe(("max_pool",), (2,), specials=_TIED, tie_rule="all"),
    Recipe(("smooth_max_pool",), (1,), dtypes=("f64", "f32"), regimes=("rounding", "rounding", "exact_sum")),
    Recipe(("max_unpool",), (1, 2), "simple", ("value", "vjp", "jvp"), _SHORT, INDEX_SPECIALS[::-1], ("rounding",)),
    Recipe(("conv",), (2,), "long_channels", modes=("value", "jvp"), dtypes=("f32",), cases=6),
    Recipe(("avg_pool",), (2,), "wide_window"),
    Recipe(("max_pool",), (1,), specials=_TIED, tie_rule="split"),
    Recipe(("avg_pool",), (1, 2), features=frozenset({"dilated"})),
    Recipe(("conv",), (2,), "heavy", modes=("vjp",), dtypes=("f32",), regimes=("exact_sum", "rounding"), cases=2),
    Recipe(("smooth_max_pool",), (2,), dtypes=("f64", "f32", "f16"), regimes=("rounding",)),
    Recipe(("unfold",), (2,)),
    Recipe(("fold",), (2,)),
    Recipe(("max_pool",), (1, 2), "nothing_read", specials=("", "nan")),
    Recipe(("conv",), (1, 2), "strided", specials=_HIDDEN),
    Recipe(("max_pool",), (1,), "wide_window", specials=("", "ties", "infinity")),
    Recipe(("avg_pool",), (1,), "three_taps"),
    Recipe(("conv",), (1, 2), features=frozenset({"empty_batch"}), cases=6),
    Recipe(("adaptive_max_pool",), (1, 2), "wide_window", specials=_TIED, tie_rule="split"),
    Recipe(("global_max_pool",), (1, 2), specials=_TIED, tie_rule="all"),
    Recipe(("conv_transpose",), (1, 2), "long_channels", modes=("value", "jvp"), dtypes=("f32",), cases=6),
    Recipe(("adaptive_avg_pool",), (1, 2), "wide_window"),
    Recipe(("avg_pool", "smooth_max_pool", "unfold", "conv"), (1, 2), "nothing_read", specials=("", "infinity")),
)
"""In the order in which they come first."""


def recipes(space: CaseSpace, rng: np.random.Generator) -> list[Planned]:
    """One batch of each recipe that the space has something of; none where features are asked for."""
    if space.asked:
        return []
    found = [[planned for entry in space.entries if (planned := recipe.planned(entry))] for recipe in RECIPES]
    return [some[rng.integers(len(some))] for some in found if some]


# --- long axes --------------------------------------------------------------------------------------------------------


CORNERS = (
    ("block_width", "block_height"),
    ("block_width", "block_out_channels"),
    ("block_channels", "block_out_channels"),
    ("block_width", "block_channels"),
)
"""Two axes at a time: tiles of two axes, and of matrix products."""
LONG_RANKS = (2, 1, 2, 3)
"""Of one size after the other, as far as there are such; long axes beside many others take long."""
LONG_REGIMES = ("exact_sum", "rounding")
"""In the first a dropped term shows however long the sum; in the second all numbers have full significands."""
LONG_LAYOUTS = ("contiguous", "contiguous", "channels_last")
LEAST_CELLS = 2


def ladder(space: CaseSpace, own: Sequence[int] = ()) -> list[Planned]:
    """A batch of each operator, long axis and size, in turns: sizes around one's own blocks first."""
    rungs: list[Iterator[Planned | None]]
    rungs = [_rungs(entries, (name,), own) for name in BLOCKS for entries in space.by_op().values()]
    corners = [_rungs(entries, both, own) for both in CORNERS for entries in space.by_op().values()]
    rungs += [(either for planned in batches for either in (None, planned)) for batches in corners]  # half as often
    found = (planned for turn in zip_longest(*rungs) for planned in turn if planned is not None)
    return [planned for planned in found if not space.asked or planned.goal.features & space.asked]


def _rungs(entries: Sequence[RankedOperator], blocks: Sequence[str], own: Sequence[int]) -> Iterator[Planned]:
    """The batches of one operator and long axis."""
    having = {entry.rank: entry for entry in entries if entry.values.issuperset(blocks)}
    for turn, size in enumerate(_sizes(entries[0].op, blocks, own) if having else ()):
        rank = next((rank for rank in (LONG_RANKS[turn % len(LONG_RANKS)], *LONG_RANKS) if rank in having), min(having))
        cells = _cells(having[rank], blocks, turn)
        if cells:
            yield Planned(Goal(entries[0].op, rank, frozenset(blocks), style="block", size=size), tuple(cells))


def _sizes(op: str, blocks: Sequence[str], own: Sequence[int]) -> list[int]:
    planes = "block_channels" if "block_out_channels" not in GEOMETRY[op] else ""
    on_grid = tuple(blocks) in (("block_batch",), (planes,))  # samples and planes of a pooling may be blocks of a grid
    usual = [SIZES[0], BEYOND_GRID[0], *SIZES[1:], *BEYOND_GRID[1:]] if on_grid else SIZES
    longest = most(op, blocks)
    return [size for size in dict.fromkeys([*sizes_around(own), *usual]) if not longest or size <= longest]


def _cells(entry: RankedOperator, blocks: Sequence[str], turn: int) -> list[Cell]:
    """Every first derivative and the value, with regimes, dtypes and layouts in turns."""
    pairs = entry.pairs(blocks[:1])
    modes = list(dict.fromkeys(mode for mode, _ in pairs if mode != "second")) or [mode for mode, _ in pairs[:1]]
    layouts = [name for name in LONG_LAYOUTS if name in (*entry.values, LONG_LAYOUTS[0])]
    found = []
    for i in range(max(len(modes), LEAST_CELLS) if modes else 0):
        mode, regime = modes[i % len(modes)], LONG_REGIMES[(i // len(modes) + turn // 2) % 2]
        dtypes = [dtype for other, dtype in pairs if other == mode]
        dtype = "f32" if "f32" in dtypes and turn % 3 < 2 else dtypes[(turn + i) % len(dtypes)]
        found.append(Cell(mode, dtype, None, layouts[turn % len(layouts)], regime))
    return found
