"""The cases of a target: batches of its operators and of its references by turns.

Batches can be made again anywhere: everything follows from the seed, what is judged, and the number of the batch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, cycle, islice, repeat, zip_longest
from typing import TypeAlias, TypeVar

import numpy as np

from gradspec.conformance.cases.cover import LazyList
from gradspec.conformance.cases.features import tags
from gradspec.conformance.cases.numbers import generator, seed_of
from gradspec.conformance.cases.reference_numbers import at_kink, kinks
from gradspec.conformance.cases.stream import Refusal, Stream
from gradspec.conformance.model.case import CheckCase, Selection
from gradspec.conformance.model.problem import INPUTS, LAYOUTS
from gradspec.conformance.model.reference import Reference, Types, cells, free_axes, in_dtype, on_zeros
from gradspec.conformance.model.run import Coverage
from gradspec.conformance.model.target import Target

DATA_SETS, GEOMETRIES = 8, 512
"""Where a target compiles every geometry: how often those of a batch follow each other, but for quick ones, and batches
before the first of them comes again."""


class TargetStream:
    """Batches of streams by turns, of those that have something to offer.

    For the process that has ``compiled`` its geometries each batch comes several times over, with other numbers.

    >>> stream = TargetStream([Stream(0, Selection(ops=("max_pool",)), lambda problem, mode: None)], compiled=True)
    >>> cases = stream.batch(0)
    >>> first, again = cases[0], cases[len(cases) // DATA_SETS]
    >>> first.problem == again.problem, first.seed == again.seed
    (True, False)
    """

    def __init__(self, streams: Sequence[Stream | ReferenceStream], seed: int = 0, compiled: bool = False) -> None:
        self.streams, self.seed = streams, seed
        self.data_sets, self.geometries = (DATA_SETS, GEOMETRIES) if compiled else (1, sys.maxsize)

    @staticmethod
    def of(target: Target, selection: Selection, seed: int) -> TargetStream:
        """The cases of a selection; a ``ValueError`` says why there are none."""
        streams = list[Stream | ReferenceStream]()
        windows, others = target.of_windows(selection), target.of_references(selection)
        if windows is not None:
            streams.append(Stream(seed, windows, target.refusal, target.domain))
        if others is not None:
            layouts = [layout for layout in LAYOUTS if target.domain.allows("layouts", layout)]
            streams.append(ReferenceStream(seed, others, target.references, target.refusal, layouts, target.observed))
        if not streams:
            asked = ", ".join(selection.ops)
            raise ValueError(f"{target.name} is not judged on {asked}; choose from {', '.join(INPUTS)}")
        return TargetStream(streams, seed, not target.device.is_host and (target.compiles or target.is_own))

    @cached_property
    def _offering(self) -> Sequence[Stream | ReferenceStream]:
        # A stream of windows that offers something has a cover, which takes seconds to count.
        can_offer = [s for s in self.streams if not s.why_nothing and (isinstance(s, Stream) or s.covering)]
        return can_offer or self.streams[:1]

    def batch(self, number: int) -> list[CheckCase]:
        turn, place = divmod(number % self.geometries, len(self._offering))
        cases = self._offering[place].batch(turn)
        copies = 1 if all(case.is_quick for case in cases) else self.data_sets
        unchanged = len(cases) if number < self.geometries else 0
        return [
            replace(case, batch=number, index=i, seed=case.seed if i < unchanged else seed_of(self.seed, number, i, 1))
            for i, case in enumerate(cases * copies)
        ]

    @property
    def covering(self) -> int:
        return min(len(self._offering) * max(stream.covering for stream in self._offering), self.geometries)

    @property
    def why_nothing(self) -> tuple[str, ...]:
        return self._offering[0].why_nothing

    def coverage(self, cases: Iterable[tuple[int, ...]]) -> Coverage:
        """What is not offered, kinks that no numbers were found for, and triples that met in cases of these values."""
        windows = next((s for s in self.streams if isinstance(s, Stream) and not s.why_nothing), None)
        return Coverage(
            tuple(pair for stream in self.streams for pair in stream.lacking),
            tuple(pair for stream in self.streams for pair in stream.refused),
            tuple(words for stream in self.streams for words in stream.unmet),
            (0, 0) if windows is None else windows.space.count_triples(cases),
        )


# --- references -------------------------------------------------------------------------------------------------------

Kind: TypeAlias = tuple[str, str | None]
"""A regime, and what is special among its numbers."""

Item = TypeVar("Item")
SMALL = (1, 2, 3, 7)
BLOCKS = (257, 33, 16, 127, 65, 128, 31, 64, 32, 129, 17, 255, 100, 513, 1025)
"""Sizes that blocks of a kernel divide, and their neighbours; those first that most mistakes show in."""
MOST_CELLS = 1 << 16
"""Cells of all inputs together, where the given types have no more."""
MOST_GROWTH = 4
"""How many times the cells of the given types there may be."""
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
    ("negative", None),
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
        observed: Callable[[], Sequence[int]] = tuple,
    ) -> None:
        """``observed``: numbers that may be blocks, once it is known which modes are refused."""
        self.seed, self.selection, self.refusal, self.layouts = seed, selection, refusal, layouts
        self._observed = observed
        asked = selection.ops  # a name stands for all of its rows, such as softmax for softmax axis=1
        self.references = [r for r in references if not asked or r.name.partition(" ")[0] in asked]

    def modes(self, reference: Reference, types: Types) -> list[str]:
        """Those that are asked for and that the target offers."""
        offered = [mode for mode in reference.modes(types) if mode in self.selection.chosen_modes]
        return [mode for mode in offered if self.refusal(reference.problem(types), mode) is None]

    # --- what is covered

    @cached_property
    def _given(self) -> list[PlannedSizes]:
        """Every kind of numbers in every mode, on the types that were given; modes and references take turns."""
        return list(by_turns(map(self._plan_given, self.references)))

    def _plan_given(self, reference: Reference) -> Iterator[PlannedSizes]:
        for dtype in reference.dtypes(self.selection.dtypes):
            for types in islice(propose_types(reference, dtype), len(reference.types)):
                if reference.takes(types):
                    kinds, modes = self._kinds(reference, types), len(self.modes(reference, types))
                    few = -(-len(kinds) // max(1, modes))  # a batch has about as many cases in any number of modes
                    chunks = (kinds[i : i + few] for i in range(0, len(kinds), few) if modes)
                    yield from (PlannedSizes(reference, types, chunk) for chunk in chunks)

    def _kinds(self, reference: Reference, types: Types) -> tuple[Kind, ...]:
        if reference.draw is not None:
            return (("normal", None),) * len(KINDS)
        bends = tuple(("small", f"kink {i}") for i in range(len(kinks(reference.graph(types)))))
        masks = () if all(t.is_float for t in types) else (("normal", "masked"),)
        return (*KINDS, *masks, *bends)

    def _plan_sizes(self, observed: Sequence[int]) -> Iterator[PlannedSizes]:
        """Other sizes, each in every mode with a few kinds of numbers."""
        ladders = [
            zip(repeat(reference), islice(sizes, len(reference.types), MOST_SIZES))
            for reference in self.references
            for dtype in reference.dtypes(self.selection.dtypes)
            for sizes in [propose_types(reference, dtype, self.selection.sizes, observed)]
        ]
        turn = 0
        for reference, types in by_turns(ladders):
            if self.modes(reference, types):
                kinds = self._kinds(reference, types)
                first = 2 * turn % len(kinds)
                few = tuple(islice(cycle(kinds), first, first + SIZED_KINDS - 1))
                yield PlannedSizes(reference, types, (KINDS[turn % 4], *few))
                turn += 1

    @cached_property
    def _planned(self) -> LazyList[PlannedSizes]:
        """One batch of the given types, then two of other sizes, and so on; tracing for a size may take long."""
        given = self._given  # for which modes were tried
        sizes = self._plan_sizes(self._observed())
        return LazyList(filter(None, chain.from_iterable(zip_longest(given, sizes, sizes))))

    def _row(self, number: int, rng: np.random.Generator) -> PlannedSizes:
        if row := self._planned.get(number):
            return row
        row = self._planned.get(int(rng.integers(len(self._planned))))
        assert row is not None
        kinds = self._kinds(row.reference, row.types)
        chosen = tuple(kinds[i] for i in rng.integers(0, len(kinds), SIZED_KINDS))
        return PlannedSizes(row.reference, row.types, chosen)

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
        return tuple((reference.name, mode) for reference in self.references for mode, _ in self._refused(reference))

    @property
    def refused(self) -> tuple[tuple[str, str], ...]:
        """The same modes, and why."""
        return tuple(pair for reference in self.references for pair in self._refused(reference))

    def _refused(self, reference: Reference) -> list[tuple[str, str]]:
        problem = reference.problem(reference.types[0])
        modes = [mode for mode in reference.modes(reference.types[0]) if mode in self.selection.chosen_modes]
        return [(mode, why) for mode in modes if (why := self.refusal(problem, mode))]

    @cached_property
    def unmet(self) -> tuple[str, ...]:
        """Kinks that no numbers were found for: those of the given types."""
        return tuple(
            f"{reference.name}: {kink.words}"
            for reference in self.references
            if reference.draw is None
            for number, kink in enumerate(kinks(reference.graph(reference.types[0])))
            for problem in [reference.problem(reference.types[0])]
            if not at_kink(reference, problem, on_zeros(problem, "value").arrays(), number, generator(0))[1]
        )

    # --- batches

    def batch(self, number: int) -> list[CheckCase]:
        rng = generator(self.seed, number)
        row = self._row(number, rng)
        modes = self.modes(row.reference, row.types)
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


# --- sizes that a reference is judged on ------------------------------------------------------------------------------


def propose_types(
    reference: Reference, dtype: str, blocks: Sequence[int] = (), observed: Sequence[int] = ()
) -> Iterator[Types]:
    """Lists of types: those that were given, then with other sizes, one axis at a time and all at once. Sizes beyond
    given blocks come first, those around numbers that were observed take turns with usual ones."""
    lists = [in_dtype(types, dtype) for types in reference.types]
    yield from lists
    if reference.draw is not None:
        return
    seen = {*lists}
    for types in by_turns((t for t in _ladder(reference, types, blocks, observed) if t not in seen) for types in lists):
        seen.add(types)
        yield types


def _ladder(reference: Reference, types: Types, blocks: Sequence[int], observed: Sequence[int]) -> Iterator[Types]:
    free = free_axes(reference, types)[::-1]  # kernels are cut into blocks along the last ones more often
    most = max(MOST_CELLS, MOST_GROWTH * cells(types))

    def taken(changed: Types) -> Iterator[Types]:
        if cells(changed) <= most and reference.takes(changed):
            yield changed

    around = [size for block in blocks for size in (block + 1, block - 1, 2 * block, 2 * block + 3, block)]
    small = types
    for one in free:  # what a long axis is tried with
        small = next(taken(one.resized(small, 2 * one.step)), small)
    likely = [times * n + more for times, more in ((1, 1), (2, 1), (1, 0), (1, -1)) for n in observed]
    usual = (*SMALL[:1], 0, *BLOCKS[:3], *SMALL[1:], *around[5:], *BLOCKS[3:])
    for size in (*islice(around, 5), *by_turns(map(iter, (likely, usual)))):
        for number, one in enumerate(free):
            given = types if size <= max(SMALL) or number % 2 == 0 else small
            yield from taken(one.resized(given, size * one.step if size <= max(SMALL) else _near(size, one.step)))
        if size in SMALL:
            everywhere = types
            for one in free:
                everywhere = next(taken(one.resized(everywhere, (size + len(everywhere)) * one.step)), everywhere)
            yield everywhere
        else:
            for one in free:
                yield from taken(one.resized(small, _near(size, one.step)))


def _near(size: int, step: int) -> int:
    return size // step * step


def by_turns(entries: Iterable[Iterator[Item]]) -> Iterator[Item]:
    """One of each, then the next of each, as long as there are any."""
    left = list(entries)
    while left:
        for entry in (*left,):
            found = list(islice(entry, 1))
            yield from found
            if not found:
                left.remove(entry)
