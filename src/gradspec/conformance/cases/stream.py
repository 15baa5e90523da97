"""The stream of cases: numbered batches, each of one geometry, that can be made again anywhere.

First come the batches of the cover (``cover.plan``) with recipes (``recipes``) and long axes (``ladder``) between them,
then random ones without end. Every third batch is one of quick cases (``sweep``), each of a geometry of its own.
Everything follows from the seed, the selection, what the target refuses, and the number of the batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import cached_property
from itertools import chain, islice, product
from typing import Any, TypeAlias

import numpy as np

from gradspec.conformance.cases.axes import BLOCKS
from gradspec.conformance.cases.combinations import GEOMETRY, CaseSpace, RankedOperator, clash, specials_of, values_of
from gradspec.conformance.cases.cover import PLAIN_BATCHES, Cell, LazyList, Planned, plan, random_batch, values_of_case
from gradspec.conformance.cases.features import tags
from gradspec.conformance.cases.numbers import generator, seed_of
from gradspec.conformance.cases.problems import Goal, draw_problem
from gradspec.conformance.cases.recipes import ladder, recipes
from gradspec.conformance.cases.sweep import SWEPT, array_of, problem_of, rows_of, turns
from gradspec.conformance.model.case import FEATURES, MASKING, REGIMES, CheckCase, Selection
from gradspec.conformance.model.domain import EVERYTHING, NOT_OF_SHAPES, KernelDomain, write_allowed
from gradspec.conformance.model.problem import DTYPES, LAYOUTS, MODES, RANKS, SELECTIONS, Problem

Refusal: TypeAlias = Callable[[Problem, str], str | None]
"""Why a target does not offer a problem in a mode, or None."""
DENSE = 24
"""So many first batches of the cover of a few operators have long axes between them, and later every sixth."""
SWEEP_EVERY, PLANNED_SWEEPS = 3, 180
"""Every third batch is one of quick cases; what meets in the first of them, the cover
of a few operators need not bring together."""
FEW_OPERATORS = 3
MOST_REASONS = 5
TRIALS, RARE = 8, 24
"""How many problems with a feature a target is tried on, and how many plain ones if it takes few."""


class Stream:
    """Batches of cases for a target that refuses some problems, drawn from a domain.

    Where features are selected, every case has at least one of them. ``covering`` is the number of batches in which
    every three values that the target offers together meet.

    >>> stream = Stream(0, Selection(ops=("max_pool",)), lambda problem, mode: None)
    >>> case = stream.batch(0)[0]
    >>> case.problem.op, case.batch
    ('max_pool', 0)
    """

    refused: tuple[tuple[str, str], ...] = ()
    unmet: tuple[str, ...] = ()
    """Modes with reasons, and kinks, which only references have."""

    def __init__(self, seed: int, selection: Selection, refusal: Refusal, domain: KernelDomain = EVERYTHING) -> None:
        self.seed, self.selection, self.refusal, self.domain = seed, selection, refusal, domain
        self.possible = select_cases(selection, domain)

    @cached_property
    def space(self) -> CaseSpace:
        """What the selection asks for and the target offers."""
        known, asked = dict[str, frozenset[str]](), self.possible.asked
        entries = filter(None, (_find_offered(entry, self.refusal, known) for entry in self.possible.entries))
        return CaseSpace(tuple(entry for entry in entries if not asked or entry.having(asked)), asked)

    @cached_property
    def _not_offered(self) -> list[Planned]:
        """One batch of one case for each operator and rank that the target does not offer."""
        there = {(entry.op, entry.rank) for entry in self.space.entries}
        missing = [entry for entry in self.possible.entries if (entry.op, entry.rank) not in there]
        return [_plain(entry, self.possible.asked) for entry in missing]

    @property
    def lacking(self) -> tuple[tuple[str, str], ...]:
        """Operators and modes of the selection that the target offers in no rank and dtype.

        >>> Stream(0, Selection(ops=("fold",)), lambda problem, mode: None if mode == "value" else "no").lacking
        (('fold', 'jvp'), ('fold', 'vjp'), ('fold', 'second'))
        """
        asked, offered = (
            dict.fromkeys((entry.op, mode) for entry in space.entries for mode, _ in entry.pairs())
            for space in (self.possible, self.space)
        )
        return tuple(pair for pair in asked if pair not in offered)

    @cached_property
    def covering(self) -> int:
        """The number of batches of the cover, with all between them."""
        planned = len(self._planned)
        return planned + (planned - 1) // (SWEEP_EVERY - 1) if self._swept else planned

    @cached_property
    def why_nothing(self) -> tuple[str, ...]:
        """The target's reasons, if it offers nothing of the selection; none if it offers something.

        >>> Stream(0, Selection(ops=("fold",)), lambda problem, mode: "there is no fold").why_nothing
        ('there is no fold',)
        """
        if self.space.entries:
            return ()
        cases = [case for number in range(len(self._not_offered)) for case in self.batch(number)]
        reasons = [self.refusal(case.problem, case.mode) for case in cases]
        return tuple(dict.fromkeys(reason for reason in reasons if reason))[:MOST_REASONS]

    @cached_property
    def _recipes(self) -> list[Planned]:
        return recipes(self.space, generator(self.seed))

    @cached_property
    def _ladder(self) -> list[Planned]:
        return ladder(self.space, self.selection.sizes)

    @cached_property
    def _planned(self) -> LazyList[Planned]:
        """The batches of the cover, and between them recipes and long axes."""
        if not self.space.entries:
            return LazyList(self._not_offered)
        sweeps = range(SWEEP_EVERY - 1, PLANNED_SWEEPS * SWEEP_EVERY if self._few and self._swept else 0, SWEEP_EVERY)
        swept = (values_of_case(case) for number in sweeps for case in self._sweep(number))
        cover = _with_recipes(plan(self.space, swept), self._recipes)
        return LazyList(chain(_with_ladder(cover, self._ladder, self._few), self._not_offered))

    @property
    def _few(self) -> bool:
        return len(self.space.by_op()) <= FEW_OPERATORS

    @cached_property
    def _swept(self) -> dict[str, tuple[RankedOperator, ...]]:
        """The operators that are swept: none where features are asked for, or shapes are restricted."""
        if self.space.asked or self.domain.without(*NOT_OF_SHAPES):
            return {}
        return {op: tuple(entries) for op, entries in self.space.by_op().items() if op in SWEPT}

    def batch(self, number: int) -> list[CheckCase]:
        """The cases of one batch."""
        rng, place = generator(self.seed, number), number
        if self._swept:
            sweep, turn = divmod(number, SWEEP_EVERY)
            if turn == SWEEP_EVERY - 1:
                random = _Batch(self, number, random_batch(self.space, rng), rng)
                return self._sweep(number) or random.cases()
            place = number - sweep
        planned = self._planned.get(place) or self._later(place, rng)
        return _Batch(self, number, self._early(planned) if place < PLAIN_BATCHES else planned, rng).cases()

    def _sweep(self, number: int) -> list[CheckCase]:
        """Quick cases, as far as the target takes them."""
        rng, found = generator(self.seed, number), list[CheckCase]()
        for op, place in rows_of(number // SWEEP_EVERY, turns(self._swept), self._few):
            entries = self._swept[op]
            row = array_of(op, entries, self.seed).row(place)
            offered = {pair for entry in entries if entry.rank == row["rank"] for pair in entry.pairs()}
            mode, dtype = row["mode"], row["dtype"] if (row["mode"], row["dtype"]) in offered else "f32"
            problem = replace(problem_of(op, row, rng), dtype=dtype)
            layout, seed = self.domain.prefers("layouts", row["layout"]), int(rng.integers(1 << 63))
            if (mode, dtype) in offered and self.refusal(problem, mode) is None:
                own = tags(problem, mode, layout)
                found.append(CheckCase(number, len(found), problem, mode, "exact_sum", None, layout, seed, own, True))
        return found

    def _early(self, planned: Planned) -> Planned:
        """One of the first batches, in float32 where that is offered."""
        own = planned.goal.op, planned.goal.rank
        entries = [entry for entry in self.space.entries if (entry.op, entry.rank) == own]
        modes = {mode for entry in entries for mode, dtype in entry.pairs() if dtype == "f32"}
        if self.space.asked:
            return planned
        return replace(planned, cells=tuple(replace(c, dtype="f32") if c.mode in modes else c for c in planned.cells))

    def _later(self, number: int, rng: np.random.Generator) -> Planned:
        """A batch behind the cover."""
        if not self.space.entries:
            return self._not_offered[number % len(self._not_offered)]
        if self._ladder and number % 3 == 0:
            return self._ladder[number // 3 % len(self._ladder)]
        if self._recipes and rng.random() < 0.2:
            return self._recipes[rng.integers(len(self._recipes))]
        return random_batch(self.space, rng)


def _with_ladder(cover: Iterable[Planned], ladder: Sequence[Planned], few: bool) -> Iterator[Planned]:
    """Batches of long axes before every second batch; where operators are few two before each, and then few."""
    rungs = iter(ladder)
    for place, planned in enumerate(cover):
        yield from islice(rungs, (2 if place < DENSE else place % 6 == 0) if few else 1 - place % 2)
        yield planned


def _with_recipes(cover: Iterable[Planned], others: Iterable[Planned]) -> Iterator[Planned]:
    """A recipe after every second batch of the cover, as long as there are any."""
    rest = iter(others)
    for place, planned in enumerate(cover):
        yield planned
        yield from islice(rest, place % 2)
    yield from rest


class _Batch:
    """One planned batch as cases of problems that the target takes."""

    def __init__(self, stream: Stream, number: int, planned: Planned, rng: np.random.Generator) -> None:
        self.stream, self.number, self.planned, self.rng = stream, number, planned, rng
        self.goal = replace(planned.goal, style="", tie_rule=None, domain=stream.domain.without(*NOT_OF_SHAPES))
        self._answers: dict[tuple[str, str], bool] = {}

    def cases(self) -> list[CheckCase]:
        problem = self._problem()
        if problem is None:
            return self._make_cases(self._refused_problem(), self.planned.cells[:1])
        cells = [cell for cell in (self._substitute(problem, cell) for cell in self.planned.cells) if cell is not None]
        return self._make_cases(problem, cells, self.stream.possible.asked) or self._make_cases(problem, cells[:1])

    def _make_cases(
        self, problem: Problem, cells: Iterable[Cell], asked: frozenset[str] = frozenset()
    ) -> list[CheckCase]:
        """The cases that have one of the features asked for."""
        found, turns = list[CheckCase](), Counter[str]()
        for cell in cells:
            turn = turns[cell.mode] + MODES.index(cell.mode) + self.number
            regime = cell.regime or REGIMES[turn % len(REGIMES)]
            case = self._case(len(found), replace(problem, dtype=cell.dtype), cell, regime)
            if not asked or asked & case.features:
                found.append(case)
                turns[cell.mode] += 1
        return found

    def _case(self, index: int, problem: Problem, cell: Cell, regime: str) -> CheckCase:
        backwards = cell.layout == "non_contiguous" and (self.number + index) % 2 == 1
        layout = self.stream.domain.prefers("layouts", "reversed" if backwards else cell.layout)
        features = tags(problem, cell.mode, layout)
        special, meant = cell.special, features - (set(BLOCKS) - self.goal.features)  # large arrays have long axes
        if special is not None and any(clash(problem.op, problem.rank, special, name) for name in meant):
            special = None
        features |= {special} if special else frozenset()
        seed = seed_of(self.stream.seed, self.number, index)
        return CheckCase(self.number, index, problem, cell.mode, regime, special, layout, seed, features)

    # --- a problem that the target takes

    def _problem(self) -> Problem | None:
        for goal in self._goals():
            problem = draw_problem(self.rng, goal)
            self._answers.clear()
            if problem is not None and any(self._takes(problem, cell.mode, cell.dtype) for cell in self.planned.cells):
                return problem
        return None

    def _goals(self) -> Iterator[Goal]:
        """The goal with details of its own, then with fewer and fewer features, last with all axes the same."""
        goal, asked, features = self.goal, self.stream.possible.asked, self.goal.features
        if self.planned.goal.style:
            yield from self._styled_goals()
        else:
            yield self._add_details()
        yield from [goal] * 3
        yield from [_without(goal, {name}) for name in sorted(features - asked)]
        kept = (features & asked) or (features & {"asymmetric"})
        yield from [_without(goal, features - kept)] * 3
        if not features & asked:
            yield from [replace(_without(goal, features), equal=True)] * RARE

    def _styled_goals(self) -> Iterator[Goal]:
        """Often: of axes at random a target may refuse most, for paddings of two sides that differ and the like."""
        styled = replace(self.goal, style=self.planned.goal.style)
        yield from [replace(styled, tie_rule=self.planned.goal.tie_rule or self._tie_rule())] * 4
        yield from [styled] * 4
        yield from [_without(styled, styled.features)] * 4

    def _add_details(self) -> Goal:
        goal, chance, cells = self.goal, self.rng.random(2), self.planned.cells
        hiding = any(cell.special in MASKING or cell.layout == "channels_last" for cell in cells)
        bare = chance[0] < 0.15 and not hiding and not goal.features & {*MASKING, "large"}
        sided = "dilated" in GEOMETRY[goal.op] and chance[1] < 0.4
        return replace(goal, bare=bare, tie_rule=self._tie_rule(), sided=sided)

    def _tie_rule(self) -> str:
        another = self.goal.op in SELECTIONS and self.rng.random() < 0.2
        return str(self.rng.choice(["all", "split"])) if another else "first"

    def _takes(self, problem: Problem, mode: str, dtype: str) -> bool:
        if (mode, dtype) not in self._answers:
            self._answers[mode, dtype] = self.stream.refusal(replace(problem, dtype=dtype), mode) is None
        return self._answers[mode, dtype]

    def _substitute(self, problem: Problem, cell: Cell) -> Cell | None:
        """The case as planned, or in another dtype or mode where the target refuses that."""
        if self._takes(problem, cell.mode, cell.dtype):
            return cell
        others = [(other.mode, other.dtype) for other in self.planned.cells]
        for mode, dtype in sorted(others, key=lambda pair: (pair[0] != cell.mode, pair[1] != cell.dtype)):
            fits = cell.special is None or not clash(problem.op, problem.rank, cell.special, dtype)
            if self._takes(problem, mode, dtype):
                return replace(cell, mode=mode, dtype=dtype, special=cell.special if fits else None)
        return None

    def _refused_problem(self) -> Problem:
        """What was planned, though the target does not take it."""
        goal = replace(self.goal, size=0)
        for some in (goal, _without(goal, goal.features)):
            problem = draw_problem(self.rng, some)
            if problem is not None:
                return problem
        raise AssertionError(f"no problem of {goal.op} with {goal.rank} axes")


def _without(goal: Goal, features: AbstractSet[str]) -> Goal:
    kept = goal.features - features
    return replace(goal, features=kept, wide=goal.wide and "long_sum" in kept)


# --- what is selected ------------------------------------------------------------------------------------------------


def select_cases(selection: Selection, domain: KernelDomain = EVERYTHING) -> CaseSpace:
    """Everything that a selection allows inside a domain; a ValueError says why there is nothing.

    >>> select_cases(Selection(ops=("conv",), features=("ties",)))
    Traceback (most recent call last):
    ...
    ValueError: no case of conv has one of the features ties; features that it has: ...
    """
    if usable := _usable(selection, domain):
        return CaseSpace(usable, frozenset(selection.features))
    if _usable(selection):
        raise ValueError(f"no case fits {_at_odds(selection, domain)}; change one of them, or leave it out")
    otherwise = _usable(replace(selection, features=()))
    if not otherwise:
        raise ValueError(
            f"no case of {', '.join(selection.chosen_ops)} has the modes {', '.join(selection.chosen_modes)} and the "
            f"dtypes {', '.join(selection.dtypes)}: integers are for the value of maxima; select other modes or dtypes"
        )
    have = sorted({name for entry in otherwise for name in entry.values if name in FEATURES})
    raise ValueError(
        f"no case of {', '.join(selection.chosen_ops)} has one of the features {', '.join(selection.features)}; "
        f"features that it has: {', '.join(have)}"
    )


def _usable(selection: Selection, domain: KernelDomain = EVERYTHING) -> tuple[RankedOperator, ...]:
    """The operators and ranks of which there are cases."""
    dtypes = {name for name in selection.dtypes or DTYPES if domain.allows("dtypes", name)}
    layouts = {name for name in LAYOUTS if not domain.allows("layouts", name)}
    out, shapes = ({*MODES, *DTYPES} - {*selection.chosen_modes, *dtypes}) | layouts, domain.without(*NOT_OF_SHAPES)
    ranks = [rank for rank in selection.ranks or RANKS if domain.allows("ranks", rank)]
    pairs = product(selection.chosen_ops, ranks)
    entries = (RankedOperator(op, rank, values_of(op, rank) - out, domain=shapes) for op, rank in pairs)
    return tuple(entry for entry in entries if entry.pairs() and _has_cases(entry, frozenset(selection.features)))


def _has_cases(entry: RankedOperator, asked: frozenset[str]) -> bool:
    """Whether the entry's domain has a problem, with one of the asked features if any are asked for."""
    have = entry.having(asked)
    if not entry.domain or (asked and not have):
        return bool(have) or not asked
    geometry = [frozenset({name} & {*GEOMETRY[entry.op]}) for name in have] or [frozenset[str]()]
    goals = [Goal(entry.op, entry.rank, features, domain=entry.domain) for features in geometry]
    return any(draw_problem(generator(i), goal) for goal in goals for i in range(3))


def _at_odds(selection: Selection, domain: KernelDomain) -> str:
    """What leaves no case: everything without which there would be one; all of it, where no one thing is enough.

    Where that is one thing, what it does not go with is said as well.
    """
    parts: dict[str, tuple[Selection, KernelDomain]] = {}
    for name in ("ops", "features", "modes", "dtypes", "ranks"):
        if given := getattr(selection, name):
            rest: dict[str, Any] = {name: ()}
            parts[f"{name} {','.join(map(str, given))}"] = replace(selection, **rest), domain
    for name, allowed in domain.entries:
        parts[f"{name} {write_allowed(allowed)}"] = selection, domain.without(name)
    blamed = [words for words, others in parts.items() if _usable(*others)] or list(parts)
    if len(blamed) > 1:
        return f"{', '.join(blamed[:-1])} and {blamed[-1]} together"
    alone = (KernelDomain((entry,)) for entry in domain.entries)
    return f"{blamed[0]} with {' or '.join(str(one) for one in alone if not _usable(selection, one)) or domain}"


# --- what is offered -------------------------------------------------------------------------------------------------


def _find_offered(entry: RankedOperator, refusal: Refusal, known: dict[str, frozenset[str]]) -> RankedOperator | None:
    """What the target takes of an entry, tried out on small problems; None where it takes none of them.

    Features are tried at the first rank that is offered; where another rank refuses one, a batch is drawn again.
    """
    rng, pairs = generator(entry.rank), entry.pairs()
    base = frozenset({"asymmetric"}) & entry.values if entry.rank > 1 else frozenset[str]()

    def drawn(count: int, features: frozenset[str] = frozenset(), **details: Any) -> Iterator[Problem | None]:
        goal = Goal(entry.op, entry.rank, features, domain=entry.domain, **details)
        return (draw_problem(rng, goal) for _ in range(count))

    def takes(problem: Problem | None, mode: str, dtype: str) -> bool:
        return problem is not None and refusal(replace(problem, dtype=dtype), mode) is None

    def taken(problems: list[Problem | None]) -> set[tuple[str, str]]:
        """The modes and dtypes in which the target takes some of the problems."""
        return {pair for pair in pairs if any(takes(problem, *pair) for problem in problems)}

    # Kernels without strides or paddings take few of the problems that are drawn.
    offered = taken([*drawn(4, base, equal=not base), *drawn(1, equal=True)]) or taken([*drawn(RARE, equal=True)])
    if not offered:
        return None
    if entry.op not in known:
        own = [name for name in GEOMETRY[entry.op] if name in entry.values]
        first = min(offered)
        styles = {name: "block" if name in BLOCKS else "" for name in own}
        tried = {name: drawn(TRIALS, frozenset({name}), style=styles[name]) for name in own}
        is_taken = {name: any(takes(problem, *first) for problem in tried[name]) for name in own}
        known[entry.op] = frozenset(name for name in own if not is_taken[name])
    return replace(entry, values=entry.values - known[entry.op], refused=frozenset(set(pairs) - offered))


def _plain(entry: RankedOperator, asked: frozenset[str]) -> Planned:
    """A batch of one case, with one of the asked features if any are asked for."""
    wanted = entry.having(asked)[:1]
    (mode, dtype), *_ = entry.pairs(wanted)
    special = next((name for name in wanted if name in specials_of(entry.op)), None)
    layout = next((name for name in wanted if name in LAYOUTS), "contiguous")
    features = frozenset(wanted) & frozenset(GEOMETRY[entry.op])
    return Planned(Goal(entry.op, entry.rank, features), (Cell(mode, dtype, special, layout),))
