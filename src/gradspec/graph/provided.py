"""What a room needs of later ones.

Variables are added by an operator and graphs are derived by transformations, but neither belongs to the room of graphs:
imports point one way. So a room declares what it needs as a record of functions with their types, and keeps a place for
it; ``gradspec.wiring``, which imports all the rooms that provide something, fills every place.
"""

from __future__ import annotations

from typing import Generic, TypeVar

Record = TypeVar("Record")


class Provided(Generic[Record]):
    """A place for a record that later rooms provide.

    >>> lengths = Provided[int]()
    >>> lengths.provide(3)
    >>> lengths()
    3
    """

    def __init__(self) -> None:
        self._record: Record | None = None

    def provide(self, record: Record) -> None:
        self._record = record

    def __call__(self) -> Record:
        if self._record is None:
            raise RuntimeError("the rooms that carry this out are not loaded; import gradspec.wiring first")
        return self._record
