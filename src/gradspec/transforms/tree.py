"""Trees of tuples, lists and dicts: arguments and results of functions, taken apart into leaves and put together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


def leaves(tree: Any) -> list[Any]:
    """The leaves in order; dicts by sorted key. None is a tree without leaves.

    >>> leaves({"b": (1, 2), "a": [3, None]})
    [3, 1, 2]
    """
    if tree is None:
        return []
    children = _children(tree)
    return [tree] if children is None else [leaf for child in children for leaf in leaves(child)]


def rebuild(like: Any, new_leaves: Iterator[Any]) -> Any:
    """A tree of the shape of ``like`` with other leaves.

    >>> rebuild({"b": (1, 2), "a": 3}, iter("xyz"))
    {'b': ('y', 'z'), 'a': 'x'}
    """
    if like is None:
        return None
    if isinstance(like, dict):
        found = {key: rebuild(like[key], new_leaves) for key in _keys(like)}
        return {key: found[key] for key in like}
    if isinstance(like, list | tuple):
        return _sequence_like(like, [rebuild(child, new_leaves) for child in like])
    return next(new_leaves)


def aligned(like: Any, tree: Any, what: str) -> list[Any]:
    """The parts of ``tree`` that stand where ``like`` has leaves; a part may be None."""
    children = _children(like)
    if like is None or children is None:
        return [] if like is None else [tree]
    same = type(tree) is type(like) and len(tree) == len(like)
    if not same or (isinstance(like, dict) and tree.keys() != like.keys()):
        raise TypeError(
            f"{what} has the structure {_structure(tree)}, but {_structure(like)} is needed; give it the same one"
        )
    others = _children(tree)
    assert others is not None
    return [part for a, b in zip(children, others, strict=True) for part in aligned(a, b, what)]


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """The same tree with ``function`` applied to its leaves."""
    return rebuild(tree, map(function, leaves(tree)))


def _children(tree: Any) -> list[Any] | None:
    if isinstance(tree, dict):
        return [tree[key] for key in _keys(tree)]
    return list(tree) if isinstance(tree, list | tuple) else None


def _keys(tree: dict[Any, Any]) -> list[Any]:
    try:
        return sorted(tree)
    except TypeError:
        raise TypeError(f"the keys {list(tree)} of a dict of arrays cannot be sorted; use strings") from None


def _sequence_like(like: Any, items: list[Any]) -> Any:
    if hasattr(like, "_fields"):
        return type(like)(*items)
    return type(like)(items)


def _structure(tree: Any) -> str:
    if tree is None:
        return "None"
    if isinstance(tree, dict):
        return "{" + ", ".join(f"{key!r}: {_structure(tree[key])}" for key in tree) + "}"
    if isinstance(tree, list | tuple):
        inner = ", ".join(map(_structure, tree))
        return f"[{inner}]" if isinstance(tree, list) else f"({inner})"
    return "*"
