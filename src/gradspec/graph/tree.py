"""Trees of arrays: arguments and results of functions, taken apart into leaves and put together.

Tuples, lists, dicts and dataclasses are trees, and so is what ``register_pytree`` makes one. A type that the user has
registered with JAX or PyTorch, if one of them is loaded, is a tree as it is there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import fields, is_dataclass
from numbers import Number
from typing import Any, NamedTuple

import numpy as np

from gradspec.graph.ir import Var
from gradspec.graph.types import TensorType


class Opened(NamedTuple):
    """A tree taken apart at its root."""

    children: Sequence[Any]
    close: Callable[[Sequence[Any]], Any]
    """From other children to a tree like this one."""
    outline: Any
    """What trees of the same structure have in common at the root."""
    names: Sequence[str] = ()
    """The names of the children, where they have some; else they are numbered."""


def leaves(tree: object) -> list[Any]:
    """The leaves in order; dicts by sorted key. None is a tree without leaves.

    >>> leaves({"b": (1, 2), "a": [3, None]})
    [3, 1, 2]
    """
    if tree is None:
        return []
    opened = _open(tree)
    return [tree] if opened is None else [leaf for child in opened.children for leaf in leaves(child)]


def rebuild(like: object, new_leaves: Iterator[Any]) -> Any:
    """A tree of the shape of ``like`` with other leaves.

    >>> rebuild({"b": (1, 2), "a": 3}, iter("xyz"))
    {'b': ('y', 'z'), 'a': 'x'}
    """
    if like is None:
        return None
    opened = _open(like)
    if opened is None:
        return next(new_leaves)
    return opened.close([rebuild(child, new_leaves) for child in opened.children])


def aligned(like: object, tree: object, what: str) -> list[Any]:
    """The parts of ``tree`` that stand where ``like`` has leaves; a part may be None."""
    opened = None if like is None else _open(like)
    if opened is None:
        return [] if like is None else [tree]
    other = None if tree is None else _open(tree)
    if other is None or other.outline != opened.outline or len(other.children) != len(opened.children):
        raise TypeError(
            f"{what} has the structure {_structure(tree)}, but {_structure(like)} is needed; give it the same one"
        )
    return [part for a, b in zip(opened.children, other.children, strict=True) for part in aligned(a, b, what)]


def named_leaves(tree: object) -> list[tuple[str, Any]]:
    """The leaves with the path to each: keys, names of fields and places, with dots between them.

    >>> named_leaves({"conv": {"weight": 1, "bias": None}, "rest": [2, 3]})
    [('conv.weight', 1), ('rest.0', 2), ('rest.1', 3)]
    """
    opened = None if tree is None else _open(tree)
    if opened is None:
        return [] if tree is None else [("", tree)]
    names = opened.names or [str(i) for i in range(len(opened.children))]
    return [
        (f"{name}.{path}" if path else name, leaf)
        for name, child in zip(names, opened.children, strict=True)
        for path, leaf in named_leaves(child)
    ]


def map_leaves(function: Callable[[Any], object], tree: object) -> Any:
    """The same tree with ``function`` applied to its leaves."""
    return rebuild(tree, map(function, leaves(tree)))


# --- what is a tree ---------------------------------------------------------------------------------------------------

Flatten = Callable[[Any], tuple[Iterable[Any], Any]]
Unflatten = Callable[[Any, Sequence[Any]], Any]

_REGISTERED: dict[type, tuple[Flatten, Unflatten]] = {}

_LEAVES = (np.ndarray, np.generic, Var, TensorType, Number, str, bytes, type)


def register_pytree(type: type, flatten: Flatten, unflatten: Unflatten) -> None:
    """Let objects of ``type`` be trees of arrays, as arguments and results of functions that are differentiated.

    ``flatten(object)`` returns ``(children, the rest)`` and ``unflatten(the rest, children)`` an object like it: the
    same functions as for ``jax.tree_util.register_pytree_node``. Trees match if the rest is equal.

    >>> class Line:
    ...     def __init__(self, slope, offset):
    ...         self.slope, self.offset = slope, offset
    >>> register_pytree(Line, lambda l: ((l.slope, l.offset), None), lambda _, parts: Line(*parts))
    >>> gradient = gs.grad(lambda line: line.slope * 3.0 + line.offset)(Line(2.0, 1.0))
    >>> float(gradient.slope), float(gradient.offset)
    (3.0, 1.0)
    """
    _REGISTERED[type] = (flatten, unflatten)


def _open(tree: Any) -> Opened | None:
    """The tree at its root; None for a leaf."""
    if isinstance(tree, dict) and type(tree) not in _REGISTERED:
        return _open_dict(tree)
    if type(tree) in (tuple, list):
        return Opened(tree, type(tree), type(tree))
    if isinstance(tree, _LEAVES):
        return None
    return _open_registered(tree) or _open_sequence(tree) or _open_foreign(tree) or _open_dataclass(tree)


def _open_dict(tree: dict[Any, Any]) -> Opened:
    keys = _keys(tree)

    def close(children: Sequence[Any]) -> Any:
        found = copy(tree)  # keeps the order of the keys, and what a subclass has besides
        found.update(zip(keys, children, strict=True))
        return found

    return Opened([tree[key] for key in keys], close, keys, [str(key) for key in keys])


def _keys(tree: dict[Any, Any]) -> list[Any]:
    try:
        return sorted(tree)
    except TypeError:
        raise TypeError(f"the keys {list(tree)} of a dict of arrays cannot be sorted; use strings") from None


def _open_registered(tree: object) -> Opened | None:
    if type(tree) not in _REGISTERED:
        return None
    flatten, unflatten = _REGISTERED[type(tree)]
    children, rest = flatten(tree)
    return Opened(list(children), lambda new: unflatten(rest, new), (type(tree), rest))


def _open_foreign(tree: object) -> Opened | None:
    """As JAX or PyTorch sees it: an object could only be registered there if they are loaded."""
    for name in ("jax.tree_util", "torch.utils._pytree"):
        module = sys.modules.get(name)
        if module is not None:
            children, structure = module.tree_flatten(tree, is_leaf=lambda part: part is not tree)
            if len(children) != 1 or children[0] is not tree:
                return Opened(children, _foreign_unflatten(module, structure), (type(tree), structure))
    return None


def _foreign_unflatten(module: Any, structure: Any) -> Callable[[Sequence[Any]], Any]:
    if hasattr(structure, "unflatten"):
        return lambda new: structure.unflatten(list(new))
    return lambda new: module.tree_unflatten(list(new), structure)


def _open_sequence(tree: object) -> Opened | None:
    """Other lists and tuples, named ones among them."""
    if not isinstance(tree, list | tuple):
        return None
    build = type(tree)._make if hasattr(tree, "_make") else type(tree)
    return Opened(tree, build, type(tree), getattr(tree, "_fields", ()))


def _open_dataclass(tree: object) -> Opened | None:
    """The fields of a dataclass, except those that are declared with ``metadata={"static": True}``."""
    if not is_dataclass(tree) or isinstance(tree, type):
        return None
    names = [f.name for f in fields(tree) if not f.metadata.get("static", False)]
    rest = [getattr(tree, f.name) for f in fields(tree) if f.name not in names]

    def close(children: Sequence[Any]) -> Any:
        found = copy(tree)
        for name, child in zip(names, children, strict=True):
            object.__setattr__(found, name, child)
        return found

    return Opened([getattr(tree, name) for name in names], close, (type(tree), rest), names)


def _structure(tree: object) -> str:
    if tree is None:
        return "None"
    opened = _open(tree)
    if opened is None:
        return "*"
    inner = [_structure(child) for child in opened.children]
    if isinstance(tree, dict):
        return "{" + ", ".join(f"{key!r}: {part}" for key, part in zip(opened.outline, inner, strict=True)) + "}"
    if type(tree) in (tuple, list):
        return f"[{', '.join(inner)}]" if isinstance(tree, list) else f"({', '.join(inner)})"
    return f"{type(tree).__name__}({', '.join(inner)})"
