"""A cache of bounded size."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class LRUCache(Generic[Value]):
    """The values of the keys that were used last, at most ``size`` of them; any number of threads may use it.

    >>> squares = LRUCache[int](2)
    >>> for n in (1, 2, 3):
    ...     squares.put(n, n * n)
    >>> squares.get(1), squares.get(3)
    (None, 9)
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._items: OrderedDict[Hashable, Value] = OrderedDict()

    def get(self, key: Hashable) -> Value | None:
        """The value of a key, or None."""
        value = self._items.get(key)
        if value is not None:
            try:
                self._items.move_to_end(key)
            except KeyError:  # another thread has just let go of it
                self._items[key] = value
        return value

    def put(self, key: Hashable, value: Value) -> None:
        """Keep a value, and let go of what was not used for longest."""
        self._items[key] = value
        while len(self._items) > self._size:
            self._items.popitem(last=False)

    def get_or_make(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """The value of a key, made now if it is not among those kept."""
        value = self.get(key)
        if value is None:
            value = make()
            self.put(key, value)
        return value

    def keys(self) -> list[Hashable]:
        """The keys of the values that are kept, that used last at the end."""
        return list(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def clear(self) -> None:
        self._items.clear()
