"""What a graph cannot express of a model, with the places in its source, told all at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from gradspec.spec.errors import UnsupportedError

MOST_PLACES = 5
"""Places that are listed for each operator."""


@dataclass
class Refusals:
    """The places of everything refused, by operator and reason."""

    whole: str = "model"
    part: str = "operator"
    places: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    def add(self, operator: str, reason: str, place: str) -> None:
        self.places.setdefault((operator, reason), []).append(place)

    def raise_any(self) -> None:
        if self.places:
            listing = "\n".join(line for kind in self.places for line in self._lines(*kind))
            count = len({operator for operator, _ in self.places})
            raise UnsupportedError(
                f"the {self.whole} has {count} {self.part}{'s' if count > 1 else ''} that a graph cannot express:\n"
                f"{listing}\nwrite these parts with operators that it can, or import the parts around them"
            )

    def _lines(self, operator: str, reason: str) -> Iterator[str]:
        places = self.places[operator, reason]
        times = f"{len(places)} times" if len(places) > 1 else "once"
        yield f"  {operator}, {times}" + (f": {reason}" if reason else "")
        seen = dict.fromkeys(places)
        yield from (f"    {place}" for place in [*seen][:MOST_PLACES])
        if len(seen) > MOST_PLACES:
            yield f"    and {len(seen) - MOST_PLACES} more places"
