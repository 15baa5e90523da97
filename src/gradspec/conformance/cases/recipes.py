"""Recipes for what is rare and often wrong: batches between those of the cover.

In a batch of the cover several features meet, and one may hide what another would show. A recipe leads to where kernels
are known to change their way: wide windows, long sums, rules for ties, special numbers among weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gradspec.conformance.cases.combinations import INDEX_SPECIALS, PLACE, CaseSpace, RankedOperator
from gradspec.conformance.cases.cover import Cell, Planned
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
        return Planned(entry.op, entry.rank, self.features, tuple(cells), style=self.style, tie_rule=self.tie_rule)

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
