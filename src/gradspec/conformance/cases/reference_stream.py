"""The stream of cases of references: on the given types every kind of numbers in every mode, then other sizes.

Batches can be made again anywhere: everything follows from the seed, the references, and the number of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, cycle, islice, repeat, zip_longest
from typing import TypeAlias

import numpy as np

from gradspec.conformance.cases.cover import LazyList
from gradspec.conformance.cases.features import tags
from gradspec.conformance.cases.numbers import generator, seed_of
from gradspec.conformance.cases.reference_numbers import at_kink, kinks
from gradspec.conformance.cases.reference_sizes import by_turns, proposed
from gradspec.conformance.model.case import CheckCase, Selection
from gradspec.conformance.model.problem import LAYOUTS, Problem
from gradspec.conformance.model.reference import Reference, Types, on_zeros

Refusal: TypeAlias = Callable[[Problem, str], str | None]
Kind: TypeAlias = tuple[str, str | None]
"""A regime, and what is special among its numbers."""

MOST_SIZES = 160
"""Lists of types of one reference in one dtype; later batches draw from them."""
KINDS: tuple[Kind, ...] = (
    ("small", None),
    ("rounding", None),
    ("normal", None),
    ("impulse", None),
    ("small", "ties"),
    ("large", None),
    ("positive", None),
    ("rounding", "nan"),
    ("offset", None),
    ("cancelling", None),
    ("rounding", "infinity"),
    ("small", "signed_zero"),
    ("rounding", "subnormal"),
    ("tiny", None),
    ("huge", None),
)
OF_VALUES: tuple[Kind, ...] = (("huge", None), *(("rounding", name) for name in ("nan", "infinity", "subnormal")))
"""Those for values alone: what derivatives make of them depends on their formula, as infinity times 0 does."""
SIZED_KINDS = 3
"""Kinds of numbers that each list of other types is met with, in every mode."""
REGIME_FEATURES = {
    "large": "large_numbers",
    "tiny": "tiny_numbers",
    **{name: name for name in ("huge", "cancelling", "offset")},
}


@dataclass(frozen=True)
class PlannedSizes:
    """What one batch is made of."""

    reference: Reference
    types: Types
    mode: str | None
    """None for all."""
    kinds: tuple[Kind, ...]


class ReferenceStream:
    """Batches of cases of references for a target that refuses some modes, in layouts that it takes."""

    def __init__(
        self,
        seed: int,
        selection: Selection,
        references: Sequence[Reference],
        refusal: Refusal,
        layouts: Sequence[str] = LAYOUTS,
    ) -> None:
        self.seed, self.selection, self.refusal, self.layouts = seed, selection, refusal, layouts
        asked = selection.ops  # a name stands for all of its rows, such as softmax for softmax axis=1
        self.references = [r for r in references if not asked or r.name.partition(" ")[0] in asked]

    def modes(self, reference: Reference, types: Types) -> list[str]:
        """Those that are asked for and that the target offers."""
        offered = [mode for mode in reference.modes(types) if mode in self.selection.chosen_modes]
        return [mode for mode in offered if self.refusal(reference.problem(types), mode) is None]

    # --- what is covered

    @cached_property
    def _given(self) -> list[PlannedSizes]:
        """Every kind of numbers in every mode, on the types that were given; references take turns."""
        return list(by_turns(map(self._of_given, self.references)))

    def _of_given(self, reference: Reference) -> Iterator[PlannedSizes]:
        for dtype in reference.dtypes(self.selection.dtypes):
            for types in islice(proposed(reference, dtype), len(reference.types)):
                if reference.takes(types):
                    kinds = self._kinds(reference, types)
                    yield from (PlannedSizes(reference, types, mode, kinds) for mode in self.modes(reference, types))

    def _kinds(self, reference: Reference, types: Types) -> tuple[Kind, ...]:
        if reference.draw is not None:
            return (("normal", None),) * len(KINDS)
        bends = tuple(("small", f"kink {i}") for i in range(len(kinks(reference.graph(types)))))
        masks = () if all(t.is_float for t in types) else (("normal", "masked"),)
        return (*KINDS, *masks, *bends)

    def _sized(self) -> Iterator[PlannedSizes]:
        """Other sizes, each in every mode with a few kinds of numbers."""
        ladders = [
            zip(repeat(reference), islice(sizes, len(reference.types), MOST_SIZES))
            for reference in self.references
            for dtype in reference.dtypes(self.selection.dtypes)
            for sizes in [proposed(reference, dtype, self.selection.sizes)]
        ]
        turn = 0
        for reference, types in by_turns(ladders):
            if self.modes(reference, types):
                kinds = self._kinds(reference, types)
                first = 2 * turn % len(kinds)
                few = tuple(islice(cycle(kinds), first, first + SIZED_KINDS - 1))
                yield PlannedSizes(reference, types, None, (KINDS[turn % 4], *few))
                turn += 1

    @cached_property
    def _planned(self) -> LazyList[PlannedSizes]:
        """One batch of the given types, then two of other sizes, and so on; tracing for a size may take long."""
        return LazyList(filter(None, chain.from_iterable(zip_longest(self._given, *[self._sized()] * 2))))

    def _row(self, number: int, rng: np.random.Generator) -> PlannedSizes:
        if row := self._planned.get(number):
            return row
        row = self._planned.get(int(rng.integers(len(self._planned))))
        assert row is not None
        kinds = self._kinds(row.reference, row.types)
        chosen = tuple(kinds[i] for i in rng.integers(0, len(kinds), SIZED_KINDS))
        return PlannedSizes(row.reference, row.types, None, chosen)

    @property
    def covering(self) -> int:
        """The number of batches of the given types."""
        return len(self._given)

    @cached_property
    def why_nothing(self) -> tuple[str, ...]:
        if self._given:
            return ()
        problems = [r.problem(types) for r in self.references for types in r.types if r.takes(types)]
        reasons = [self.refusal(p, mode) for p in problems for mode in self.selection.chosen_modes]
        return tuple(dict.fromkeys(filter(None, reasons)))[:3]

    @property
    def lacking(self) -> tuple[tuple[str, str], ...]:
        """Modes that are asked for and not offered."""
        return tuple(
            (reference.name, mode)
            for reference in self.references
            for mode in reference.modes(reference.types[0])
            if mode in self.selection.chosen_modes and mode not in self.modes(reference, reference.types[0])
        )

    @cached_property
    def unmet(self) -> tuple[str, ...]:
        """Kinks that no numbers were found for: those of the given types."""
        return tuple(
            f"{reference.name}: {kink.words}"
            for reference in self.references
            if reference.draw is None
            for number, kink in enumerate(kinks(reference.graph(reference.types[0])))
            if not _can_be_met(reference, number)
        )

    # --- batches

    def batch(self, number: int) -> list[CheckCase]:
        rng = generator(self.seed, number)
        row = self._row(number, rng)
        modes = [row.mode] if row.mode else self.modes(row.reference, row.types)
        pairs = [(kind, mode) for kind in row.kinds for mode in modes if mode == "value" or kind not in OF_VALUES]
        cases = [self._case(number, index, row, *pair) for index, pair in enumerate(pairs)]
        wanted = {*self.selection.features}
        return [case for case in cases if not wanted or wanted & case.features] or cases[:1]

    def _case(self, batch: int, index: int, row: PlannedSizes, kind: Kind, mode: str) -> CheckCase:
        (regime, special), turn = kind, batch + index
        layout = self.layouts[turn // 4 % len(self.layouts)] if turn % 4 == 3 else "contiguous"
        graph = row.reference.graph(row.types)
        of = [i for i, v in enumerate(graph.outputs) if v.type.is_float] if mode != "value" else [0]
        problem = row.reference.problem(row.types, of[turn % len(of)])
        of_numbers = {REGIME_FEATURES.get(regime, ""), (special or "").partition(" ")[0]} - {""}
        features = tags(problem, mode, layout) | of_numbers
        return CheckCase(
            batch, index, problem, mode, regime, special, layout, seed_of(self.seed, batch, index), features
        )


def _can_be_met(reference: Reference, number: int) -> bool:
    problem = reference.problem(reference.types[0])
    return at_kink(reference, problem, on_zeros(problem, "value").arrays(), number, generator(0))[1]
