"""The cases of a target: batches of its operators and of its references by turns."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from gradspec.conformance.cases.numbers import seed_of
from gradspec.conformance.cases.reference_stream import ReferenceStream
from gradspec.conformance.cases.stream import Stream
from gradspec.conformance.model.case import CheckCase, Selection
from gradspec.conformance.model.problem import INPUTS, LAYOUTS
from gradspec.conformance.model.target import Target

DATA_SETS, GEOMETRIES = 8, 512
"""Where a target compiles every geometry: how often those of a batch follow each other, and batches before the first of
them comes again."""


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
            streams.append(ReferenceStream(seed, others, target.references, target.refusal, layouts))
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
        if self.data_sets == 1:
            return [replace(case, batch=number) for case in cases]
        unchanged = len(cases) if number < self.geometries else 0
        return [
            replace(case, batch=number, index=i, seed=case.seed if i < unchanged else seed_of(self.seed, number, i, 1))
            for i, case in enumerate(cases * self.data_sets)
        ]

    @property
    def windows(self) -> Stream | None:
        return next((stream for stream in self.streams if isinstance(stream, Stream)), None)

    @property
    def covering(self) -> int:
        return min(len(self._offering) * max(stream.covering for stream in self._offering), self.geometries)

    @property
    def why_nothing(self) -> tuple[str, ...]:
        return self._offering[0].why_nothing

    @property
    def lacking(self) -> tuple[tuple[str, str], ...]:
        """Operators and modes that are asked for and not offered."""
        return tuple(pair for stream in self.streams for pair in stream.lacking)

    @property
    def unmet(self) -> tuple[str, ...]:
        """Kinks that no numbers were found for."""
        return tuple(words for s in self.streams if isinstance(s, ReferenceStream) for words in s.unmet)
