"""Attribute records: what a node knows besides its operands, and what printing and saving are told of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

Attributes: TypeAlias = Any
"""A frozen dataclass of numbers, strings, bools, None and tuples of them."""

IMPLIED = {"implied": True}
"""Metadata of an attribute that follows from the types around it, so that printing leaves it out."""

LATER = {"later": True}
"""Metadata of an attribute that its operator was first saved without: where a file lacks it, it has its default."""


def usual(entry: Any) -> dict[str, Any]:
    """Metadata of an attribute that printing leaves out where every entry is this one."""
    return {"usual": entry}


@dataclass(frozen=True)
class NoAttributes:
    """An operator without attributes."""
