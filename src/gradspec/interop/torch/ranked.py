"""Our operators over 1, 2 or 3 axes, with the arguments that torch's functions of these ranks take."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeAlias

from gradspec.spec.ranked import ranked_operator

Function: TypeAlias = Callable[..., Any]


def at_rank(operator: Function, rank: int) -> Function:
    """The operator over so many axes, which takes sequences of one entry, and empty ones, as torch does."""
    stem = operator.__name__
    ranked: Any = ranked_operator(f"{stem}{rank}d", (stem,), {stem: operator})

    @wraps(ranked)
    def function(*args: object, **kwargs: object) -> object:
        return ranked(*map(_without_brackets, args), **{k: _without_brackets(v) for k, v in kwargs.items()})

    return function


def _without_brackets(argument: object) -> object:
    """The entry of a sequence that has one, which torch takes for all axes, and None for an empty one."""
    if not isinstance(argument, list | tuple) or len(argument) > 1:
        return argument
    return argument[0] if argument else None
