"""What a model needs and gradspec lacks, gathered so that all of it is told at once."""

from __future__ import annotations

from gradspec.spec.errors import UnsupportedError

MOST_PLACES = 8
"""Places named for one reason; the rest are counted."""


class Refused:
    """Stands for a value that could not be imported; what depends on it is passed over in silence."""


REFUSED = Refused()


class OnnxRefusals:
    """Reasons, each with the places where it was met."""

    def __init__(self) -> None:
        self._places: dict[str, list[str]] = {}

    def add(self, reason: str, place: str) -> None:
        self._places.setdefault(reason, []).append(place)

    def settle(self) -> None:
        """Raise one error with everything that was refused, if anything was."""
        if self._places:
            lines = [f"{reason} ({len(places)}×): {_listed(places)}" for reason, places in self._places.items()]
            raise UnsupportedError("the model needs what gradspec does not have:\n  " + "\n  ".join(lines))


def _listed(places: list[str]) -> str:
    more = len(places) - MOST_PLACES
    return ", ".join(places[:MOST_PLACES]) + (f" and {more} more" if more > 0 else "")
