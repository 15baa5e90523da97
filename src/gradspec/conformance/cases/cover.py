"""A plan of batches in which every three values that go together meet in some case, and random batches after it.

Each batch of the plan starts from three values that have not met. Everything else is drawn at random, a few times over,
and the draw is taken that brings most new triples together. Operators take turns, so that any beginning of the plan is
varied.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice, takewhile
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from gradspec.conformance.cases.axes import BLOCKS
from gradspec.conformance.cases.combinations import (
    GEOMETRY,
    INTEGERS,
    PLACE,
    RANK_NAMES,
    VALUES,
    Bools,
    CaseSpace,
    RankedOperator,
    specials_of,
)
from gradspec.conformance.cases.numbers import generator
from gradspec.conformance.cases.problems import Goal
from gradspec.conformance.model.case import CheckCase
from gradspec.conformance.model.problem import CONVOLUTIONS, DTYPES, MODES

Item = TypeVar("Item")
CASES, MOST_CASES = 7, 9
"""Of a batch: every mode, and more while they bring something new. Costly batches have fewer."""
MOST_FEATURES, FEW_FEATURES, FEW_UNTIL = 5, 3, 36
"""Of a batch, and of the first ones: features hide each other."""
TRIES, OTHERS = 12, 12
"""Draws of which the best is planned, and other cases that are looked at before."""
PLAIN_BATCHES = 12
"""The first batches are of one dtype each: kernels that are compiled when first called are few that way."""
LAYERS = ("channels_last", "non_contiguous")
COST = {"large": 8.0, "long_sum": 3.0, "empty_batch": 4.0, "zero_channels": 4.0, "many_hits_one_cell": 1.5}
COST |= dict.fromkeys(BLOCKS, 2.0)
"""Features that take long to judge, or whose cases say little else: so many times as much must be new with them."""
LATER, EARLY = frozenset({"large", "long_sum", "empty_batch", "zero_channels"}), 2
"""Features whose batches come last, but for the first two of each."""
_NOT_EARLY = np.asarray([name in (*DTYPES, "low_precision", "integer", *COST) and name != "f32" for name in VALUES])


@dataclass(frozen=True)
class Cell:
    """One case of a planned batch."""

    mode: str
    dtype: str
    special: str | None
    layout: str
    regime: str | None = None
    """Where it matters; else regimes take turns."""


@dataclass(frozen=True)
class Planned:
    """A batch: what its problem is drawn for, and its cases. A rule for ties that is not given is left to chance."""

    goal: Goal
    cells: tuple[Cell, ...]


def implied_features(rank: int, dtype: str) -> list[str]:
    """The features that a rank and a dtype are."""
    of_dtype = ["low_precision"] if dtype in ("f16", "bf16") else ["integer"] if dtype in INTEGERS else []
    return of_dtype + (["rank4"] if rank == 4 else [])


LONG_MODES = {False: ("value", "jvp", "second"), True: ("vjp", "second")}
"""The modes of a convolution with long sums, if these are of its value and if of its weights' gradients."""


def is_long(op: str, features: frozenset[str]) -> bool:
    return op in CONVOLUTIONS and "long_sum" in features


def values_of_case(case: CheckCase) -> tuple[int, ...]:
    """The places of all values that meet in a case."""
    problem = case.problem
    names = (problem.op, RANK_NAMES[problem.rank], case.mode, problem.dtype, *case.features)
    return tuple(PLACE[name] for name in names)


class LazyList(Generic[Item]):
    """Items, each made when it is first asked for: most runs end before the last of them."""

    def __init__(self, items: Iterable[Item]) -> None:
        self._rest, self._made = iter(items), list[Item]()

    def get(self, number: int) -> Item | None:
        """One of them; None behind the last."""
        self._made += islice(self._rest, max(0, number + 1 - len(self._made)))
        return self._made[number] if number < len(self._made) else None

    def __iter__(self) -> Iterator[Item]:
        return takewhile(lambda item: item is not None, map(self.get, count()))  # type: ignore[arg-type]

    def __len__(self) -> int:
        self._made += self._rest
        return len(self._made)


def plan(space: CaseSpace, others: Iterable[Sequence[int]]) -> Iterator[Planned]:
    """Batches that, with other cases of these values, bring all triples of a space together; costly ones at the end.

    The others are asked for bit by bit, as most runs are short.
    """
    met, later = Counter[str](), list[Planned]()
    for planned in _greedy_batches(space, iter(others)):
        costly = planned.goal.features & LATER
        if costly and all(met[name] >= EARLY for name in costly):
            later.append(planned)
        else:
            yield planned
        met.update(costly)
    yield from later


def _greedy_batches(space: CaseSpace, others: Iterator[Sequence[int]]) -> Iterator[Planned]:
    """Batches of all operators by turns, each with something new in it, until nothing is missing."""
    rng, seen, by_op, made = generator(0), np.zeros(len(VALUES), np.bool_), space.by_op(), 0
    missing = space.triples()
    while by_op:
        for op, entries in [*by_op.items()]:
            for values in islice(others, OTHERS):
                _meet(missing, values)
            new = [missing & entry.triples for entry in entries]
            left = [int(some.sum()) for some in new]
            if not any(left):
                del by_op[op]
                continue
            turn = (1 + made // 5) % len(entries)
            chosen = turn if left[turn] > 0.5 * max(left) else int(np.argmax(left))
            start = _choose_start(new[chosen], op, seen | _NOT_EARLY * (made < PLAIN_BATCHES), rng)
            draw = BatchDraw(entries[chosen], rng, missing, made < PLAIN_BATCHES)
            planned = draw.planned(start, space.asked, FEW_FEATURES if made < FEW_UNTIL else MOST_FEATURES)
            seen[[place for cell in planned.cells for place in draw.values(cell)]] = True
            made += 1
            yield planned


def _choose_start(new: Bools, op: str, dull: NDArray[np.bool_], rng: np.random.Generator) -> list[str]:
    """Three new values, if possible with the operator, and with others that are not dull."""
    own = new[PLACE[op]]
    for pairs in (own & ~dull & ~dull[:, None], own & ~dull, own):
        if len(found := np.argwhere(pairs)):
            return [op, *(VALUES[i] for i in found[rng.integers(len(found))])]
    found = np.argwhere(new)
    return [VALUES[i] for i in found[rng.integers(len(found))]]


def _meet(missing: Bools, values: Sequence[int]) -> bool:
    """Take these values as met together, and say whether three of them had not."""
    here = np.ix_(values, values, values)
    new = bool(missing[here].any())
    missing[here] = False
    return new


class BatchDraw:
    """A batch of an entry drawn at random; where triples are ``missing``, the best of some draws in every part."""

    def __init__(
        self, entry: RankedOperator, rng: np.random.Generator, missing: Bools | None = None, plain: bool = False
    ) -> None:
        self.entry, self.rng, self.missing, self.plain = entry, rng, missing, plain
        self.features, self.is_wide = frozenset[str](), False

    def planned(self, start: Sequence[str], asked: frozenset[str], most: int) -> Planned:
        """With ``start`` in the first case, what is asked for of it in all, and features of geometry up to so many."""
        self.features = self._best(lambda: self._draw_features(start, most), self._places)
        always, modes = [name for name in start if name in asked][:1], [mode for mode, _ in self.entry.pairs(start)]
        self.is_wide = is_long(self.entry.op, self.features) and "vjp" in modes
        self.is_wide &= "value" not in modes or bool(self.rng.integers(2))
        cells = list[Cell]()
        least, limit = (6, 8) if self.features & LATER else (CASES, MOST_CASES)
        while len(cells) < limit:
            cell = self._best(self._cells(always if cells else start, len(cells)), self.values)
            is_new = self.missing is not None and _meet(self.missing, self.values(cell))
            if not is_new and len(cells) >= least:
                break
            cells.append(cell)
        return Planned(Goal(self.entry.op, self.entry.rank, self.features, wide=self.is_wide), tuple(cells))

    def _best(self, draw: Callable[[], Item], places: Callable[[Item], Sequence[int]]) -> Item:
        """The draw in which most is new."""
        if self.missing is None:
            return draw()
        draws = [draw() for _ in range(TRIES)]
        met = [np.asarray(places(one)) for one in draws]
        return draws[int(np.argmax([self.missing[here[:, None, None], here[:, None], here].sum() for here in met]))]

    # --- features

    def _places(self, features: Iterable[str]) -> list[int]:
        return [PLACE[name] for name in (self.entry.op, RANK_NAMES[self.entry.rank], *features)]

    def _draw_features(self, start: Sequence[str], most: int) -> frozenset[str]:
        """Features of geometry that go together, and with the start; costly ones seldom."""
        entry = self.entry
        names = [name for name in GEOMETRY[entry.op] if name in entry.values]
        chosen = frozenset(start).intersection(names)
        others = [PLACE[name] for name in start if name not in chosen]
        if entry.rank > 1 and "asymmetric" in names:
            chosen |= {"asymmetric"}
        for name in map(str, self.rng.permutation(names)):
            if len(chosen) >= most:
                break
            often = self.rng.random() * COST.get(name, 1.0) < 1 and not (self.plain and name in COST)
            if often and entry.together[PLACE[name], others].all() and entry.can_be_drawn(chosen | {name}):
                chosen |= {name}
        return chosen

    # --- cases

    def _cells(self, wanted: Sequence[str], number: int) -> Callable[[], Cell]:
        """Draws cases whose parts go together, with everything wanted."""
        entry = self.entry
        pairs = [pair for pair in entry.pairs(wanted) if "long_sum" not in wanted or self._shows("long_sum", pair[0])]
        modes = list(dict.fromkeys(mode for mode, _ in pairs))
        mode = modes[number % len(modes)]  # they take turns
        dtypes = [dtype for other, dtype in pairs if other == mode]
        have = [PLACE[name] for name in (mode, *(name for name in self.features if self._shows(name, mode)))]
        going = np.asarray(entry.together[have].all(axis=0))
        specials, layouts = (
            [name for name in names if name in entry.values and going[PLACE[name]]]
            for names in (specials_of(entry.op), LAYERS)
        )
        if (number + number // len(MODES)) % 2 == 0:  # half have ordinary numbers: special ones hide something, too
            specials = [name for name in specials if name in wanted]

        def draw() -> Cell:
            dtype = self._choose(dtypes, "f32", wanted)
            fits = entry.together[PLACE[dtype]]
            special = self._choose([name for name in specials if fits[PLACE[name]]], "", wanted)
            return Cell(mode, dtype, special or None, self._choose(layouts, "contiguous", wanted))

        return draw

    def _choose(self, names: Sequence[str], usual: str, wanted: Sequence[str]) -> str:
        if needed := [name for name in names if name in wanted]:
            return needed[0]
        if self.plain and "f32" in names:
            return "f32"
        if not names or (self.rng.random() < 0.5 and (usual in names or usual not in DTYPES)):
            return usual
        return str(self.rng.choice(names))

    def _shows(self, feature: str, mode: str) -> bool:
        """Whether a feature of the geometry is there in a mode."""
        if feature == "long_sum" and is_long(self.entry.op, self.features):
            return mode in LONG_MODES[self.is_wide]
        return bool(self.entry.together[PLACE[feature], PLACE[mode]])

    def values(self, cell: Cell) -> list[int]:
        """The places of all values that meet in a case of the batch."""
        shown = [name for name in self.features if self._shows(name, cell.mode)]
        own = [cell.mode, cell.dtype, *implied_features(self.entry.rank, cell.dtype), cell.special, cell.layout]
        return self._places([*shown, *(name for name in own if name in PLACE)])


def random_batch(space: CaseSpace, rng: np.random.Generator) -> Planned:
    """A batch of any entry with any features that go together."""
    entry = space.entries[rng.integers(len(space.entries))]
    asked = entry.having(space.asked)
    always = [asked[rng.integers(len(asked))]] if asked else []
    return BatchDraw(entry, rng).planned(always, space.asked, int(rng.integers(2, MOST_FEATURES + 1)))
