"""Cases for a target that compiles every geometry: several data sets of each, and a bounded number of geometries."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gradspec.conformance.cases.alternating import AlternatingStream
from gradspec.conformance.cases.reference_stream import ReferenceStream
from gradspec.conformance.cases.stream import Stream
from gradspec.conformance.model.case import CheckCase

DATA_SETS, GEOMETRIES = 8, 512
"""How often the geometries of a batch follow each other, and batches before the first of them comes again."""


class PooledStream:
    """The batches of a stream, each several times over with other numbers, for the process that has compiled it.

    >>> from gradspec.conformance.model.case import Selection
    >>> stream = PooledStream(Stream(0, Selection(ops=("max_pool",)), lambda problem, mode: None), 0)
    >>> cases = stream.batch(0)
    >>> first, again = cases[0], cases[len(cases) // DATA_SETS]
    >>> first.problem == again.problem, first.seed == again.seed
    (True, False)
    """

    def __init__(self, stream: Stream | ReferenceStream | AlternatingStream, seed: int) -> None:
        self._stream, self._seed = stream, seed

    def batch(self, number: int) -> list[CheckCase]:
        cases = self._stream.batch(number % GEOMETRIES)
        own = len(cases) if number < GEOMETRIES else 0
        return [
            replace(case, batch=number, index=index, seed=case.seed if index < own else self._drawn(number, index))
            for index, case in enumerate(cases * DATA_SETS)
        ]

    def _drawn(self, number: int, index: int) -> int:
        return int(np.random.SeedSequence([self._seed, number, index, 1]).generate_state(1, np.uint64)[0])

    @property
    def windows(self) -> Stream | None:
        return self._stream.windows

    @property
    def covering(self) -> int:
        return min(self._stream.covering, GEOMETRIES)

    @property
    def why_nothing(self) -> tuple[str, ...]:
        return self._stream.why_nothing

    @property
    def lacking(self) -> tuple[tuple[str, str], ...]:
        """Operators and modes that are asked for and not offered."""
        return self._stream.lacking

    @property
    def unmet(self) -> tuple[str, ...]:
        """Kinks that no numbers were found for."""
        return () if isinstance(self._stream, Stream) else self._stream.unmet
