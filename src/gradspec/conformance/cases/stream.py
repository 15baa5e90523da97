"""The endless stream of cases: numbered batches, each of one geometry, that can be made again anywhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from gradspec.conformance.call import FLOATS, MODES, SELECTIONS, Problem
from gradspec.conformance.cases import REGIMES, Case, Selection
from gradspec.conformance.cases.features import tags
from gradspec.conformance.cases.geometry import Goal, drawn_problem
from gradspec.conformance.cases.model import GEOMETRY, RANKS, SPECIALS, can_be_drawn, clash

Refusal = Callable[[Problem, str], str | None]


class Stream:
    def __init__(self, seed: int, selection: Selection, refusal: Refusal) -> None:
        self.seed, self.selection, self.refusal = seed, selection, refusal
        self.covering = 300

    def batch(self, number: int) -> list[Case]:
        rng = np.random.Generator(np.random.Philox(np.random.SeedSequence([self.seed, number])))
        ops, ranks = self.selection.chosen_ops, self.selection.ranks or RANKS
        op, rank = ops[number % len(ops)], int(rng.choice(ranks))
        features: frozenset[str] = frozenset()
        for name in rng.permutation(GEOMETRY[op])[:3]:
            if can_be_drawn(op, rank, features | {str(name)}) and name != "large":
                features |= {str(name)}
        for attempt in range(8):
            wanted = features if attempt < 2 else frozenset(sorted(features)[: max(3 - attempt, 0)])
            problem = drawn_problem(rng, Goal(op, rank, wanted))
            if problem and any(self.refusal(problem, mode) is None for mode in self.selection.chosen_modes):
                break
        else:
            problem = drawn_problem(rng, Goal(op, rank, frozenset()))
            return [self._case(number, 0, problem, self.selection.chosen_modes[0], "rounding", None, "contiguous")]
        found = []
        for i in range(12):
            mode, regime = self.selection.chosen_modes[i % len(self.selection.chosen_modes)], REGIMES[i // 4]
            dtypes = [
                d for d in self.selection.dtypes or FLOATS if d in FLOATS or (op in SELECTIONS and mode == "value")
            ]
            typed = replace(problem, dtype=str(rng.choice(dtypes)))
            if self.refusal(typed, mode) is not None:
                continue
            special = str(rng.choice(SPECIALS)) if i % 2 else None
            if special == "ties" and op not in SELECTIONS:
                special = None
            have = tags(typed, mode)
            if special and any(clash(op, rank, special, f) for f in have):
                special = None
            layout = str(rng.choice(["contiguous", "contiguous", "channels_last", "non_contiguous"]))
            found.append(self._case(number, len(found), typed, mode, regime, special, layout))
        return found or [self._case(number, 0, problem, self.selection.chosen_modes[0], "rounding", None, "contiguous")]

    def _case(self, batch, index, problem, mode, regime, special, layout) -> Case:
        seed = (self.seed << 40) + (batch << 8) + index
        have = tags(problem, mode, layout) | ({special} if special else set())
        return Case(batch, index, problem, mode, regime, special, layout, seed, frozenset(have))
