"""Cases of a target that is judged by the specification of windows and by references: batches of each by turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from gradspec.conformance.cases.reference_stream import ReferenceStream
from gradspec.conformance.cases.stream import Stream
from gradspec.conformance.model.case import CheckCase


class AlternatingStream:
    """Batches of several streams by turns: of those that have something to offer."""

    def __init__(self, streams: Sequence[Stream | ReferenceStream]) -> None:
        self.streams = streams

    @cached_property
    def _offering(self) -> Sequence[Stream | ReferenceStream]:
        # A stream of windows that offers something has a cover, which takes seconds to count.
        can_offer = [s for s in self.streams if not s.why_nothing and (isinstance(s, Stream) or s.covering)]
        return can_offer or self.streams[:1]

    def batch(self, number: int) -> list[CheckCase]:
        turn, place = divmod(number, len(self._offering))
        return [replace(case, batch=number) for case in self._offering[place].batch(turn)]

    @property
    def windows(self) -> Stream | None:
        return next((stream for stream in self.streams if isinstance(stream, Stream)), None)

    @property
    def covering(self) -> int:
        return len(self._offering) * max(stream.covering for stream in self._offering)

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
