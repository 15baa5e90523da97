"""What numbers an input of a reference may hold, where not all are meant: labels, log-probabilities, offsets, ….

A declaration is a text, such as ``"labels or -100"``. Each fits any array to it, as few cells as can be changed; an
array that fits already is one that a kernel may be given.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from gradspec.conformance.model.problem import Array

CLOSE = 2.0**-6
"""How far an array may be from its fit, relative to 1 and to its own numbers: rounding to bfloat16 alone moves some."""


@dataclass(frozen=True)
class ValueRoom:
    """What the rest of a call leaves for an input."""

    below: int
    """The first integer that names nothing."""
    total: int
    """The length of the first axis of the other arrays, of the first that has one."""


Fit = Callable[[Array, ValueRoom], Array]


def _log_probabilities(x: Array, room: ValueRoom) -> Array:
    shifted = x - np.max(x, -1, keepdims=True, initial=-np.inf)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)))


def _probabilities(x: Array, room: ValueRoom) -> Array:
    total = np.abs(x).sum(-1, keepdims=True)
    return np.where(total == 0, 1.0 / max(x.shape[-1], 1), np.abs(x) / np.where(total == 0, 1, total))


def _unit_rows(x: Array, room: ValueRoom) -> Array:
    """Rows of length 1; those of zeros stay."""
    scaled = x / np.maximum(np.max(np.abs(x), -1, keepdims=True, initial=0), np.finfo(np.float64).tiny)
    return np.asarray(scaled / np.maximum(np.sqrt((scaled * scaled).sum(-1, keepdims=True)), 0.5))


def _one_hot(x: Array, room: ValueRoom) -> Array:
    return np.asarray(np.argmax(x, -1)[..., None] == np.arange(x.shape[-1])) if x.size else x


def _offsets(x: Array, room: ValueRoom) -> Array:
    """From 0 to the number of rows: those of the sequence i lie between the offsets i and i + 1."""
    fitted = np.sort(np.clip(x, 0, room.total))
    fitted[:1], fitted[-1:] = 0, room.total
    return fitted


def _distinct(x: Array, room: ValueRoom) -> Array:
    """Rows in which no two numbers are the same, as pages of a table; in others they make place for their ranks."""
    limited = np.clip(x, 0, room.below - 1) if x.dtype.kind in "iu" else x
    has_ties = (np.diff(np.sort(limited, -1), axis=-1) == 0).any(-1, keepdims=True)
    return np.where(has_ties, np.argsort(np.argsort(limited, -1, "stable"), -1, "stable"), limited)


FITS: Mapping[str, Fit] = {
    "positive": lambda x, room: np.where(x == 0, 2.0**-14, np.abs(x)),
    "not negative": lambda x, room: np.abs(x),
    "not positive": lambda x, room: -np.abs(x),
    "sorted": lambda x, room: np.sort(x, -1),
    "labels": lambda x, room: np.clip(x, 0, room.below - 1),
    "distinct": _distinct,
    "offsets": _offsets,
    "one-hot": _one_hot,
    "probabilities": _probabilities,
    "log-probabilities": _log_probabilities,
    "unit rows": _unit_rows,
}
"""Declarations by name; ``labels or -100`` and ranges, ``0..1``, are made of numbers."""


def _fit_of(declared: str) -> Fit:
    if found := FITS.get(declared):
        return found
    if match := re.fullmatch(r"labels or (-?\d+)", declared):
        ignored = int(match[1])
        return lambda x, room: np.where(x == ignored, x, np.clip(x, 0, room.below - 1))
    if match := re.fullmatch(r"(\S+)\.\.(\S+)", declared):
        low, high = map(float, match.groups())
        return lambda x, room: np.clip(x, low, high)
    raise ValueError(
        f"values has {declared!r}; declare one of {', '.join(FITS)}, 'labels or -100', or a range such as '0..1'"
    )


def check_values(declared: Mapping[str, str]) -> dict[str, str]:
    """The declarations by input, if all of them are known.

    >>> check_values({"x": "postive"})
    Traceback (most recent call last):
        ...
    ValueError: values has 'postive'; declare one of positive, not negative, ...
    """
    for text in declared.values():
        _fit_of(text)
    return dict(declared)


@np.errstate(all="ignore")
def fitted(declared: str, array: Array, room: ValueRoom) -> Array:
    """The nearest array of which a declaration holds.

    >>> fitted("labels or -100", np.array([-100, -3, 9]), ValueRoom(5, 0)).tolist()
    [-100, 0, 4]
    """
    wide = array if array.dtype.kind in "iub" else array.astype(np.float64)
    return _fit_of(declared)(wide, room).astype(array.dtype)


@np.errstate(all="ignore")
def holds(declared: str, array: Array, room: ValueRoom) -> bool:
    """Whether an array fits already.

    >>> holds("0..1", np.float32([0, 0.5]), ValueRoom(0, 0)), holds("offsets", np.array([0, 2]), ValueRoom(9, 3))
    (True, False)
    """
    near = fitted(declared, array, room)
    if array.dtype.kind in "iub":
        return bool((near == array).all())
    close = CLOSE if declared in ("probabilities", "log-probabilities", "unit rows") else 0.0
    return bool(np.isclose(array.astype(np.float64), near.astype(np.float64), close, close, equal_nan=True).all())


def draw_values(declared: str, array: Array, room: ValueRoom, rng: np.random.Generator) -> Array:
    """An array of which a declaration holds, made of one of any numbers, with the edges among them."""
    changed, cells = array.copy(), rng.permutation(array.size)
    flat = changed.reshape(-1)
    if match := re.fullmatch(r"labels or (-?\d+)", declared):  # but the first, which may be repeated: none has no mean
        flat[cells[cells > 0][: int(rng.integers(0, max(array.size, 1)))]] = int(match[1])
    elif ".." in declared:
        low, high = map(float, declared.split(".."))
        if array.dtype.kind in "iu":
            flat[:] = rng.integers(int(low), int(high) + 1, flat.size)
        else:
            flat[:] = np.where(np.isfinite(flat), low + (high - low) * rng.random(flat.size), flat)
        flat[cells[:2]] = [low, high][: len(cells[:2])]
    elif declared == "offsets":
        flat[:] = rng.integers(0, room.total + 1, flat.size)
    elif "probabilities" in declared and array.ndim and array.shape[0] > 1:
        changed[int(rng.integers(array.shape[0]))] *= array.dtype.type(16)  # nearly certain of one
    return fitted(declared, changed, room)
