"""Cases for a target that compiles every geometry: several data sets of each, and a bounded number of geometries."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gradspec.conformance.cases.alternating import AlternatingStream
from gradspec.conformance.cases.reference_stream import ReferenceStream
from gradspec.conformance.cases.stream import Stream
from gradspec.conformance.model.case import CheckCase

DATA_SETS, GEOMETRIES = 4, 512
"""Data sets that follow each other on one geometry, and how many of those there are before the first comes again."""


class PooledStream:
    """The batches of a stream, each several times with other numbers.

    >>> from gradspec.conformance.model.case import Selection
    >>> stream = PooledStream(Stream(0, Selection(ops=("max_pool",)), lambda problem, mode: None), 0)
    >>> first, second = stream.batch(0)[0], stream.batch(1)[0]
    >>> first.problem == second.problem, first.seed == second.seed, second.name
    (True, False, '1.0')
    """

    def __init__(self, stream: Stream | ReferenceStream | AlternatingStream, seed: int) -> None:
        self._stream, self._seed = stream, seed

    def batch(self, number: int) -> list[CheckCase]:
        geometry, data = divmod(number, DATA_SETS)
        cases = self._stream.batch(geometry % GEOMETRIES)
        is_first = data == 0 and geometry < GEOMETRIES
        return [
            replace(case, batch=number, seed=case.seed if is_first else self._drawn(number, case.index))
            for case in cases
        ]

    def _drawn(self, number: int, index: int) -> int:
        return int(np.random.SeedSequence([self._seed, number, index, 1]).generate_state(1, np.uint64)[0])

    @property
    def covering(self) -> int:
        return DATA_SETS * min(self._stream.covering, GEOMETRIES)

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
