"""A plan of batches in which every three values that go together meet in some case, and random batches after it.

The plan is greedy. Each batch starts from three values that have not met; then it takes the features of geometry, and
each of its cases the dtype, numbers and layout, that bring most new triples together. Operators take turns, so that any
beginning of the plan is varied.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
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
CASES, MOST_CASES = 7, 12
"""Of a batch: every mode, and more while they bring something new. Costly batches have fewer."""
MOST_FEATURES, FEW_FEATURES, FEW_UNTIL = 5, 3, 36
"""Of a batch, and of the first ones: features hide each other."""
OTHERS = 12
"""Cases that are looked at before each batch, until there are no others."""
PLAIN_BATCHES = 12
"""The first batches are of one dtype each: kernels that are compiled when first called are few that way."""
LAYERS = ("channels_last", "non_contiguous")
_OF_DTYPE = np.asarray([name in (*DTYPES, "low_precision", "integer") and name != "f32" for name in VALUES])
COST = {"large": 8.0, "long_sum": 3.0, "empty_batch": 4.0, "zero_channels": 4.0, "many_hits_one_cell": 1.5}
COST |= dict.fromkeys(BLOCKS, 2.0)
"""Features that take long to judge, or whose cases say little else: so many times as much must be new with them."""
LATER, EARLY = frozenset({"large", "long_sum", "empty_batch", "zero_channels"}), 2
"""Features whose batches come last, but for the first two of each."""
_DEAR = np.asarray([name in COST for name in VALUES])


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
    planner = _Planner(space, iter(others))
    met, later = Counter[str](), list[Planned]()
    for planned in planner.run():
        costly = planned.goal.features & LATER
        if costly and all(met[name] >= EARLY for name in costly):
            later.append(planned)
        else:
            yield planned
        met.update(costly)
    yield from later


class _Planner:
    """What has not met yet, and the batches so far."""

    def __init__(self, space: CaseSpace, others: Iterator[Sequence[int]]) -> None:
        self.space, self.missing, self.others = space, space.triples(), others
        self.rng = generator(0)
        self.seen = np.zeros(len(VALUES), np.bool_)
        self.batches: list[Planned] = []

    def run(self) -> Iterator[Planned]:
        by_op = self.space.by_op()
        while by_op:
            for op in list(by_op):
                for values in islice(self.others, OTHERS):
                    self.missing[np.ix_(values, values, values)] = False
                if self._add_batch(by_op[op]):
                    yield self.batches[-1]
                else:
                    del by_op[op]

    def _add_batch(self, entries: Sequence[RankedOperator]) -> bool:
        """Add a batch of one of these entries with something new in it, if there is one."""
        new = [self.missing & entry.triples for entry in entries]
        left = [int(some.sum()) for some in new]
        if not any(left):
            return False
        turn = (1 + len(self.batches) // 5) % len(entries)
        chosen = turn if left[turn] > 0.5 * max(left) else int(np.argmax(left))
        start = self._start(entries[chosen], new[chosen])
        self.batches.append(_BatchPlanner(self, entries[chosen], start).planned())
        return True

    @property
    def is_early(self) -> bool:
        return len(self.batches) < PLAIN_BATCHES

    def _start(self, entry: RankedOperator, new: Bools) -> list[str]:
        """Three new values, if possible with the entry's operator and something never seen."""
        quiet = ~(_OF_DTYPE | _DEAR) if self.is_early else np.ones(len(VALUES), np.bool_)
        own = new[PLACE[entry.op]] & quiet & quiet[:, None]
        marked = next((pairs for pairs in (own & ~self.seen, own) if pairs.any()), new)
        places = np.flatnonzero(marked)
        found = [VALUES[i] for i in np.unravel_index(places[self.rng.integers(len(places))], marked.shape)]
        return found if marked is new else [entry.op, *found]

    def meet(self, values: Sequence[int]) -> bool:
        """Take these values as met together, and say whether three of them had not."""
        met = np.asarray(values)
        here = met[:, None, None], met[:, None], met
        new = bool(self.missing[here].any())
        self.missing[here] = False
        self.seen[met] = True
        return new


class _BatchPlanner:
    """One batch of an entry, from three values on."""

    def __init__(self, planner: _Planner, entry: RankedOperator, start: Sequence[str]) -> None:
        self.planner, self.entry, self.start = planner, entry, start
        asked = [name for name in start if name in planner.space.asked]
        self.always = asked[:1]
        """What every case must have."""
        self.features = self._geometry()
        self.wide = is_long(entry.op, self.features) and self._is_wide()
        self.palette = self._palette()
        self.modes = self._modes(self.always)
        self.options = {
            "dtype": [name for name in DTYPES if name in entry.values],
            "special": ["", *(name for name in specials_of(entry.op) if name in entry.values)],
            "layout": ["", *(name for name in LAYERS if name in entry.values)],
        }

    def planned(self) -> Planned:
        cells: list[Cell] = []
        least, most = (6, 8) if self.features & LATER else (CASES, MOST_CASES)
        while len(cells) < most:
            cell, values = self._cell(self.start if not cells else self.always, len(cells))
            if not self.planner.meet(values) and len(cells) >= least:
                break
            cells.append(cell)
        return Planned(Goal(self.entry.op, self.entry.rank, self.features, wide=self.wide), tuple(cells))

    # --- features

    def _is_wide(self) -> bool:
        """Whether gradients of weights have more long sums that have not met than values have."""
        modes = {mode for mode, _ in self.entry.pairs(self.start)}
        if not modes >= {"value", "vjp"}:
            return "vjp" in modes and "value" not in modes
        long = self.planner.missing[PLACE[self.entry.op], PLACE["long_sum"]] | self.planner.missing[PLACE["long_sum"]]
        left = long[:, [PLACE["vjp"], PLACE["value"]]].sum(axis=0)
        return bool(left[0] > left[1])

    def _geometry(self) -> frozenset[str]:
        chosen = frozenset(name for name in self.start if name in GEOMETRY[self.entry.op])
        if self.entry.rank > 1 and "asymmetric" in self.entry.values:
            chosen |= {"asymmetric"}
        while len(chosen) < (FEW_FEATURES if len(self.planner.batches) < FEW_UNTIL else MOST_FEATURES):
            gain = self._gain_of_features(chosen)
            best = int(np.argmax(gain))
            if gain[best] <= 0:
                break
            chosen |= {VALUES[best]}
        return chosen

    def _gain_of_features(self, chosen: frozenset[str]) -> NDArray[np.float64]:
        """How many new triples each feature of geometry promises, beside those chosen."""
        entry, missing = self.entry, self.planner.missing
        base = [PLACE[name] for name in (entry.op, RANK_NAMES[entry.rank], *chosen)]
        promise = missing[np.ix_(base, base)].sum((0, 1)) + 0.05 * missing[base].sum((0, 1))
        promise = promise * (1.0 + 4.0 * ~self.planner.seen)
        gain = np.zeros(len(VALUES))
        others = [PLACE[name] for name in self.start if name not in chosen]
        for name in GEOMETRY[entry.op]:
            fits = name in entry.values and name not in chosen and bool(entry.together[PLACE[name], others].all())
            early = self.planner.is_early and name in COST
            if fits and not early and entry.can_be_drawn(chosen | {name}):
                gain[PLACE[name]] = promise[PLACE[name]] / COST.get(name, 1.0)
        return gain

    # --- cases

    def _palette(self) -> list[str]:
        """The dtypes of the batch: the few that promise most."""
        own = self.planner.missing[PLACE[self.entry.op]]
        offered = [name for name in DTYPES if name in self.entry.values]
        if self.planner.is_early and "f32" in offered:
            return ["f32"]
        return sorted(offered, key=lambda name: -int(own[PLACE[name]].sum()))[:3]

    def _cell(self, wanted: Sequence[str], number: int) -> tuple[Cell, list[int]]:
        """The case that brings most together, and its values."""
        modes = self.modes if wanted == self.always else self._modes(wanted)
        mode = modes[number % len(modes)]  # they take turns, as far as they go with what is wanted
        have = [PLACE[name] for name in (self.entry.op, RANK_NAMES[self.entry.rank], mode)]
        have += [PLACE[name] for name in self.features if self._shows(name, mode)]
        left, picked = self._options(wanted, number), {"dtype": "", "special": "", "layout": ""}
        for kind in [kind for kind in left if set(left[kind]) & set(wanted)]:
            picked[kind] = next(name for name in left.pop(kind) if name in wanted)
            have += self._places(picked[kind])
        while left:
            kind, name = self._best({"dtype": left["dtype"]} if "dtype" in left else left, have)
            del left[kind]
            picked[kind] = name
            have += self._places(name)
        return Cell(mode, picked["dtype"], picked["special"] or None, picked["layout"] or "contiguous"), have

    def _modes(self, wanted: Sequence[str]) -> list[str]:
        """Those that go, with one of their dtypes, with what is wanted."""
        modes = dict.fromkeys(mode for mode, _ in self.entry.pairs(wanted))
        return [mode for mode in modes if "long_sum" not in wanted or self._shows("long_sum", mode)]

    def _shows(self, feature: str, mode: str) -> bool:
        """Whether a feature of the geometry is there in a mode."""
        if feature == "long_sum" and is_long(self.entry.op, self.features):
            return mode in LONG_MODES[self.wide]
        return bool(self.entry.together[PLACE[feature], PLACE[mode]])

    def _options(self, wanted: Sequence[str], number: int) -> dict[str, list[str]]:
        """What may be chosen for a case; the empty name is ordinary numbers, or a contiguous layout."""
        found = dict(self.options)
        for feature in {"low_precision", "integer"}.intersection(wanted):
            found["dtype"] = [name for name in found["dtype"] if feature in implied_features(self.entry.rank, name)]
        # Half of the cases have ordinary numbers: special ones hide something, too.
        if (number + number // len(MODES)) % 2 == 0 and not set(found["special"]) & set(wanted):
            found["special"] = [""]
        return found

    def _places(self, name: str) -> list[int]:
        own = implied_features(self.entry.rank, name) if name in DTYPES else []
        return [PLACE[value] for value in (name, *own) if value]

    def _best(self, options: dict[str, list[str]], have: list[int]) -> tuple[str, str]:
        """The kind and name that bring most together with what there is; dtypes of the palette go before others."""
        met = np.asarray(have)
        # Fewer than 16 values, so that the number of their pairs is less than 256.
        gain = self.planner.missing.view(np.uint8)[met[:, None], met].sum((0, 1), np.uint8)
        fits = self.entry.together[met].all(axis=0)
        chance = self.planner.rng.random(len(VALUES))
        best = (-1.0, "", "")
        for kind, names in options.items():
            for name in names:
                if not name:
                    best = max(best, (0.2, kind, name))
                elif fits[PLACE[name]]:
                    worth = int(gain[PLACE[name]]) + 0.4 * chance[PLACE[name]] + 1000 * (name in self.palette)
                    best = max(best, (float(worth), kind, name))
        return best[1], best[2]


# --- at random -------------------------------------------------------------------------------------------------------


def random_batch(space: CaseSpace, rng: np.random.Generator) -> Planned:
    """A batch of any entry with any features that go together."""
    entry = space.entries[rng.integers(len(space.entries))]
    asked = entry.having(space.asked)
    always = [asked[rng.integers(len(asked))]] if asked else []
    features = frozenset(name for name in always if name in GEOMETRY[entry.op])
    count = int(rng.integers(1, 5))
    for name in map(str, rng.permutation([name for name in GEOMETRY[entry.op] if name in entry.values])):
        often = rng.random() * COST.get(name, 1.0) < 1
        fits = all(name == other or entry.together[PLACE[name], PLACE[other]] for other in always)
        if len(features) < count and often and fits and entry.can_be_drawn(features | {name}):
            features |= {name}
    cells = [random_cell(entry, features, always, rng, i) for i in range(CASES)]
    wide = is_long(entry.op, features) and "vjp" in entry.values and bool(rng.integers(2))
    return Planned(Goal(entry.op, entry.rank, features, wide=wide), tuple(cells))


def random_cell(
    entry: RankedOperator, features: frozenset[str], always: Sequence[str], rng: np.random.Generator, number: int
) -> Cell:
    """A case whose parts go together; half of the cases are ordinary in each part."""
    pairs = entry.pairs(always)
    modes = list(dict.fromkeys(mode for mode, _ in pairs))
    mode = modes[number % len(modes)]
    dtype = _choose(rng, [dtype for other, dtype in pairs if other == mode], "f32", always)
    going = (name for name in (dtype, *features) if entry.together[PLACE[name], PLACE[mode]])
    fits = np.logical_and.reduce(entry.together[[PLACE[name] for name in (mode, *going)]])
    fitting = {name for name in entry.values if fits[PLACE[name]]}
    special = _choose(rng, [name for name in specials_of(entry.op) if name in fitting], "", always)
    layout = _choose(rng, [name for name in LAYERS if name in fitting], "contiguous", always)
    return Cell(mode, dtype, special or None, layout)


def _choose(rng: np.random.Generator, names: Sequence[str], usual: str, always: Sequence[str]) -> str:
    wanted = [name for name in names if name in always]
    if wanted or not names:
        return wanted[0] if wanted else usual
    ordinary = rng.random() < 0.5 and (usual in names or usual not in DTYPES)
    return usual if ordinary else str(rng.choice(names))
