"""Which operators, ranks, modes, dtypes and features go together."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import numpy as np

from gradspec.conformance.call import DTYPES, FLOATS, INPUTS, LAYOUTS, MODES, SELECTIONS
from gradspec.conformance.cases.geometry import Goal, assignment
from gradspec.conformance.cases.windows import AVERAGES, CONVOLUTIONS

RANKS = (1, 2, 3, 4)
SPECIALS = ("ties", "nan", "infinity", "signed_zero", "subnormal", "huge")
"""Features of the numbers; a case has one at most."""
INDEX_SPECIALS = ("padding_only_window", "many_hits_one_cell")
"""What for unpooling is a matter of its indices: some that name no cell, or many that name one."""
NUMBERS = ("low_precision", "integer")
"""Features that the dtype decides."""

_ANYWHERE = ("asymmetric", "one_cell_axis", "empty_batch", "zero_channels", "large")
_WINDOWS = (*_ANYWHERE, "overlapping", "non_divisible", "many_hits_one_cell")
_SLIDING = (*_WINDOWS, "dilated", "padding_only_window")

GEOMETRY: dict[str, tuple[str, ...]] = {
    "max_pool": (*_SLIDING, "ceil_mode"),
    "avg_pool": (*_SLIDING, "ceil_mode", "count_exclude_pad", "divisor_override", "long_sum"),
    "smooth_max_pool": tuple(f for f in (*_SLIDING, "ceil_mode") if f not in ("large", "many_hits_one_cell")),
    "adaptive_max_pool": _WINDOWS,
    "adaptive_avg_pool": (*_WINDOWS, "long_sum"),
    "global_max_pool": _ANYWHERE,
    "global_avg_pool": (*_ANYWHERE, "long_sum"),
    "conv": (*_SLIDING, "grouped", "depthwise", "long_sum"),
    "conv_transpose": (*_SLIDING, "grouped", "depthwise", "long_sum", "output_padding"),
    "max_unpool": _ANYWHERE,
    "unfold": _SLIDING,
    "fold": _SLIDING,
}
"""The features of an operator's problems. Those not here it does not have, or not at a size that is judged quickly."""

CLASHES: tuple[tuple[tuple[str, ...], tuple[str, ...], str], ...] = (
    (("nan", "infinity", "huge"), ("empty_batch", "zero_channels"), "one of them would hide the other"),
    (("empty_batch",), ("zero_channels",), "one of them would hide the other"),
    (("ties", "signed_zero", "subnormal"), ("empty_batch", "zero_channels"), "there are no numbers"),
    (INDEX_SPECIALS, ("empty_batch", "zero_channels"), "there are no numbers"),
    (("large", "long_sum"), ("empty_batch", "zero_channels"), "there are no numbers"),
    (("large",), ("long_sum",), "it would take too long"),
    (("long_sum",), ("one_cell_axis", "depthwise"), "their sums are short"),
    (("count_exclude_pad",), ("divisor_override",), "the divisor is one or the other"),
    (("grouped",), ("depthwise",), "groups of one channel are depthwise, groups of more are grouped"),
    (("grouped", "depthwise"), ("zero_channels",), "no channels are in no groups"),
    (("integer",), ("nan", "infinity", "signed_zero", "subnormal"), "integers have no such numbers"),
    (("integer",), ("jvp", "vjp", "second"), "integers have no derivatives"),
)
"""Features that exclude each other, and why."""


def values_of(op: str, rank: int) -> tuple[str, ...]:
    """Everything that a case of an operator and rank can be or have."""
    shared = (
        *MODES,
        *FLOATS,
        *(DTYPES if op in SELECTIONS else ()),
        "non_contiguous",
        "channels_last",
        "low_precision",
    )
    numbers = [f for f in SPECIALS if f != "ties" or op in SELECTIONS]
    indices = INDEX_SPECIALS if op == "max_unpool" else ()
    whole = ("integer",) if op in SELECTIONS else ()
    found = dict.fromkeys((*shared, *numbers, *indices, *whole, *GEOMETRY[op], *(("rank4",) if rank == 4 else ())))
    if rank == 1 and "dilated" not in GEOMETRY[op]:
        found.pop("asymmetric")
    return tuple(found)


def clash(op: str, rank: int, first: str, second: str) -> str | None:
    """Why two values do not go together, or None."""
    for left, right, reason in CLASHES:
        if (first in left and second in right) or (second in left and first in right):
            return reason
    for group in (MODES, tuple(DTYPES), LAYOUTS, specials_of(op)):
        if first != second and first in group and second in group:
            return "a case has one of them"
    return _clash_of_operator(op, rank, first, second) or _clash_of_dtype(first, second)


def specials_of(op: str) -> tuple[str, ...]:
    return (*SPECIALS, *(INDEX_SPECIALS if op == "max_unpool" else ()))


def _clash_of_operator(op: str, rank: int, first: str, second: str) -> str | None:
    pair = {first, second}
    if op in AVERAGES and pair in ({"long_sum", "vjp"}, {"long_sum", "many_hits_one_cell"}):
        return "few windows of a thousand cells share a cell"
    if op in SELECTIONS and rank == 1 and pair == {"ties", "one_cell_axis"}:
        return "a window has one real cell"
    if op == "max_unpool" and rank <= 2 and pair == {"many_hits_one_cell", "one_cell_axis"}:
        return "there are too few cells"
    return None


def _clash_of_dtype(first: str, second: str) -> str | None:
    for feature, dtypes in (("low_precision", ("f16", "bf16")), ("integer", ("i8", "u8", "i32", "i64"))):
        other = second if first == feature else first if second == feature else None
        if other in DTYPES and other not in dtypes:
            return f"{other} is not {feature}"
    if {first, second} == {"low_precision", "integer"}:
        return "a case has one dtype"
    integers = [name for name in DTYPES if name not in FLOATS]
    for dtype, other in ((first, second), (second, first)):
        if dtype in integers and other != "integer" and clash_with_integer(other):
            return "integers have no such numbers and no derivatives"
    return None


def clash_with_integer(value: str) -> bool:
    return value in ("nan", "infinity", "signed_zero", "subnormal", "jvp", "vjp", "second")


@lru_cache(maxsize=1 << 16)
def can_be_drawn(op: str, rank: int, features: frozenset[str]) -> bool:
    """Whether there are axes with all these features of geometry, and no two of them clash.

    >>> can_be_drawn("conv", 1, frozenset({"dilated", "one_cell_axis"}))
    True
    """
    named = sorted(features)
    if any(clash(op, rank, a, b) for i, a in enumerate(named) for b in named[:i]):
        return False
    rng = np.random.Generator(np.random.Philox(np.random.SeedSequence([rank, len(named)])))
    return assignment(rng, Goal(op, rank, features)) is not None


def geometry_of(op: str, features: Iterable[str]) -> frozenset[str]:
    return frozenset(features) & frozenset(GEOMETRY[op])


OPS = tuple(INPUTS)
