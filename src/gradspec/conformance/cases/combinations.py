"""Which operators, ranks, modes, dtypes and features go together, and which three of them there must be a case of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import combinations, compress, permutations, product
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gradspec.conformance.cases.axes import AXIS_FEATURES, BLOCKS, KERNELS
from gradspec.conformance.cases.problems import Goal, family, in_frames
from gradspec.conformance.model.case import FEATURES
from gradspec.conformance.model.domain import EVERYTHING, KernelDomain
from gradspec.conformance.model.problem import AVERAGES, DTYPES, FLOATS, INPUTS, LAYOUTS, MODES, RANKS, SELECTIONS

Bools: TypeAlias = NDArray[np.bool_]

RANK_NAMES = {rank: f"{rank}d" for rank in RANKS}
INTEGERS = tuple(name for name in DTYPES if name not in FLOATS)
SPECIALS = ("ties", "nan", "infinity", "signed_zero", "subnormal", "huge")
"""Features of the numbers; a case has one at most."""
INDEX_SPECIALS = ("padding_only_window", "many_hits_one_cell")
"""What for unpooling is a matter of its indices: some that name no cell, or many that name one."""

VALUES = (*INPUTS, *RANK_NAMES.values(), *MODES, *DTYPES, *FEATURES)
"""All values of all parameters: an operator, a rank, a mode, a dtype, and each feature, present."""
PLACE = {name: i for i, name in enumerate(VALUES)}

# --- what an operator has --------------------------------------------------------------------------------------------

_ANYWHERE = (
    *("asymmetric", "one_cell_axis", "empty_batch", "zero_channels", "large"),
    *("block_width", "block_height", "block_channels", "block_batch"),
)
_CHANNELS = ("grouped", "depthwise", "long_sum", "block_out_channels", "block_groups")
_WINDOWS = (*_ANYWHERE, "overlapping", "non_divisible", "many_hits_one_cell")
_SLIDING = (*_WINDOWS, "strided", "dilated", "common_factor", *KERNELS, "padding_only_window")

GEOMETRY: dict[str, tuple[str, ...]] = {
    "max_pool": (*_SLIDING, "ceil_mode"),
    "avg_pool": (*_SLIDING, "ceil_mode", "count_exclude_pad", "divisor_override", "long_sum"),
    "smooth_max_pool": tuple(f for f in (*_SLIDING, "ceil_mode") if f not in ("large", "many_hits_one_cell")),
    "adaptive_max_pool": _WINDOWS,
    "adaptive_avg_pool": (*_WINDOWS, "long_sum"),
    "global_max_pool": _ANYWHERE,
    "global_avg_pool": (*_ANYWHERE, "long_sum"),
    "conv": (*_SLIDING, *_CHANNELS),
    "conv_transpose": (*_SLIDING, *_CHANNELS, "output_padding"),
    "max_unpool": _ANYWHERE,
    "unfold": _SLIDING,
    "fold": _SLIDING,
}
"""The features of an operator's problems. Those not here it does not have, or not at a size that is judged quickly."""


def values_of(op: str, rank: int) -> frozenset[str]:
    """Everything that a case of an operator and rank can be or have, itself included."""
    found = {op, RANK_NAMES[rank], *MODES, *FLOATS, "non_contiguous", "channels_last", "low_precision", *GEOMETRY[op]}
    found |= set(SPECIALS[1:])
    if op in SELECTIONS:
        found |= {"ties", "integer", *INTEGERS}
    if op == "max_unpool":
        found |= set(INDEX_SPECIALS)
    if op == "smooth_max_pool":  # windows of few cells, as balls take long
        found -= {"kernel_3"} if rank > 2 else set()
        found -= {"kernel_2"} if rank > 3 else set()
    if rank == 4:
        found.add("rank4")
    if rank == 1:
        found -= {"block_height", *(() if family(op) in ("sliding", "transposed") else ("asymmetric",))}
    return frozenset(found)


def specials_of(op: str) -> tuple[str, ...]:
    """The features of an operator that are a matter of its numbers."""
    return (*SPECIALS, *(INDEX_SPECIALS if op == "max_unpool" else ()))


# --- what excludes what ----------------------------------------------------------------------------------------------

_EMPTY = ("empty_batch", "zero_channels")
_NOT_WHOLE = ("nan", "infinity", "signed_zero", "subnormal", "jvp", "vjp", "second", *FLOATS, "low_precision")
_ONE_OF_THEM = "a case has one of them"
_UNPOOL = ("max_unpool",)
_WITH_WINDOWS = tuple(op for op in INPUTS if op not in _UNPOOL)


class Clash(NamedTuple):
    """Values that exclude those in another list, and why: for all operators and ranks, or for some."""

    first: Sequence[str]
    second: Sequence[str]
    why: str
    ops: Sequence[str] = tuple(INPUTS)
    ranks: Sequence[int] = RANKS


CLASHES = (
    Clash(("nan", "infinity", "huge"), _EMPTY, "one would hide the other"),
    Clash(("empty_batch",), ("zero_channels",), "one would hide the other"),
    Clash(("ties", "signed_zero", "subnormal", "large", "long_sum"), _EMPTY, "there would be no numbers"),
    Clash(("large",), ("long_sum",), "together they take too long"),
    Clash(("long_sum",), ("one_cell_axis", "depthwise"), "their sums are short"),
    Clash(tuple(BLOCKS), ("large", "long_sum"), "together they take too long"),
    Clash(tuple(BLOCKS), _EMPTY, "there would be no blocks"),
    Clash(("block_channels", "block_out_channels"), ("depthwise",), "they are groups"),
    Clash(("count_exclude_pad",), ("divisor_override",), "the divisor is one or the other"),
    Clash(("grouped",), ("depthwise",), "groups of one channel are depthwise, groups of more are grouped"),
    Clash(("grouped", "depthwise"), ("zero_channels",), "there would be no groups"),
    Clash(("integer", *INTEGERS), _NOT_WHOLE, "integers have no such numbers and no derivatives"),
    Clash(("low_precision",), ("f32", "f64"), "these are not of low precision"),
    Clash(("long_sum",), ("vjp", "many_hits_one_cell"), "few windows of so many cells share one", AVERAGES),
    Clash(("one_cell_axis",), ("many_hits_one_cell",), "one window is alone on its axis", ("conv_transpose",)),
    Clash(("one_cell_axis",), ("overlapping",), "there would be one window", ("conv_transpose",), (1,)),
    Clash(("block_width",), ("one_cell_axis",), "there is one axis", ranks=(1,)),
    Clash(tuple(BLOCKS), ("many_hits_one_cell",), "together they take too long", _WITH_WINDOWS),
    Clash(("block_channels", "block_batch"), ("many_hits_one_cell",), "planes are small then", _UNPOOL),
    Clash(("ties",), ("one_cell_axis",), "a window would have one real cell", SELECTIONS, (1,)),
    Clash(("many_hits_one_cell",), ("one_cell_axis",), "there would be too few cells", _UNPOOL, (1, 2)),
    Clash(INDEX_SPECIALS, (*SPECIALS, *_EMPTY), _ONE_OF_THEM, _UNPOOL),
    Clash(INDEX_SPECIALS[:1], INDEX_SPECIALS[1:], _ONE_OF_THEM, _UNPOOL),
)
"""The first that excludes two values says why."""


ALTERNATIVES = (
    *(tuple(INPUTS), tuple(RANK_NAMES.values()), MODES, tuple(DTYPES), LAYOUTS, SPECIALS, tuple(BLOCKS)),
    KERNELS,
)
"""Parameters of which a case has one value."""


@lru_cache(maxsize=1 << 14)
def clash(op: str, rank: int, first: str, second: str) -> str | None:
    """Why two values do not go together, or None.

    >>> clash("conv", 2, "large", "empty_batch")
    'there would be no numbers'
    """
    for left, right, why, ops, ranks in CLASHES:
        if op in ops and rank in ranks and ((first in left and second in right) or (second in left and first in right)):
            return why
    both = first != second and any(first in group and second in group for group in ALTERNATIVES)
    return _ONE_OF_THEM if both else None


def can_be_drawn(op: str, rank: int, features: Iterable[str], domain: KernelDomain = EVERYTHING) -> bool:
    """Whether a domain has axes with all these features of geometry, and no two of them clash.

    >>> can_be_drawn("conv", 1, {"dilated", "one_cell_axis"}), can_be_drawn("conv", 1, {"large", "empty_batch"})
    (True, False)
    """
    named = sorted(features)
    if any(clash(op, rank, a, b) for a, b in combinations(named, 2)):
        return False
    block = {"block_width"} if not BLOCKS.keys().isdisjoint(named) else set()  # axes beside any are the same
    return bool(in_frames(Goal(op, rank, frozenset(named) & _MATTERS_TO_AXES | block, domain=domain)))


_MATTERS_TO_AXES = frozenset(
    (*AXIS_FEATURES, *KERNELS, "asymmetric", "count_exclude_pad", "many_hits_one_cell", "long_sum")
)


# --- all triples ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RankedOperator:
    """An operator and rank with what its cases may have; ``refused`` are modes with dtypes that are not offered."""

    op: str
    rank: int
    values: frozenset[str]
    refused: frozenset[tuple[str, str]] = frozenset()
    domain: KernelDomain = EVERYTHING

    def can_be_drawn(self, features: Iterable[str]) -> bool:
        return can_be_drawn(self.op, self.rank, features, self.domain)

    @cached_property
    def together(self) -> Bools:
        """``[value, value]``: which two of VALUES a case of this entry can have."""
        found = np.zeros((len(VALUES), len(VALUES)), np.bool_)
        for first, second in combinations(sorted(self.values), 2):
            is_refused = {(first, second), (second, first)} & self.refused
            if clash(self.op, self.rank, first, second) is None and not is_refused:
                found[PLACE[first], PLACE[second]] = found[PLACE[second], PLACE[first]] = True
        for pair in combinations(self._geometry, 2):
            if not self.can_be_drawn(pair):
                a, b = (PLACE[name] for name in pair)
                found[a, b] = found[b, a] = False
        return found

    @property
    def _geometry(self) -> list[str]:
        return [name for name in GEOMETRY[self.op] if name in self.values]

    @cached_property
    def triples(self) -> Bools:
        """``[value, value, value]``: which three, with a mode and a dtype for them."""
        pairs = self.together
        found = pairs[:, :, None] & pairs[:, None, :] & pairs[None, :, :]
        tight = [name for name in self._geometry if name in _MATTERS_TO_AXES]
        for three in combinations(tight, 3):
            if not self.can_be_drawn(three):
                for order in permutations(PLACE[name] for name in three):
                    found[order] = False
        if not self.refused and self.values == values_of(self.op, self.rank):
            return found
        offered = np.zeros_like(found)
        for some in self._by_pair[1]:
            offered |= some[:, None, None] & some[:, None] & some
        return found & offered

    def pairs(self, others: Iterable[str] = ()) -> list[tuple[str, str]]:
        """The modes and dtypes that go together, and with the other values."""
        pairs, going_with = self._by_pair
        wanted = np.asarray([PLACE[name] for name in others], np.intp)
        return list(compress(pairs, np.logical_and.reduce(going_with[:, wanted], axis=1)))

    def having(self, asked: frozenset[str]) -> list[str]:
        """The features of those asked for that a case of the entry has, in some mode and dtype."""
        return [name for name in sorted(asked & self.values) if self.pairs([name])]

    @cached_property
    def _by_pair(self) -> tuple[list[tuple[str, str]], Bools]:
        """Modes and dtypes, and for each the values that a case of them can have, these two among them."""
        pairs = [pair for pair in product(MODES, DTYPES) if self.together[PLACE[pair[0]], PLACE[pair[1]]]]
        places = np.asarray([[PLACE[name] for name in pair] for pair in pairs], np.intp).reshape(-1, 2)
        found = np.logical_and.reduce(self.together[places], axis=1)
        np.put_along_axis(found, places, True, axis=1)
        return pairs, found


@dataclass(frozen=True)
class CaseSpace:
    """What there can be cases of, and the features of which each case must have one, if any are asked for."""

    entries: tuple[RankedOperator, ...]
    asked: frozenset[str] = field(default=frozenset())

    def by_op(self) -> dict[str, list[RankedOperator]]:
        found: dict[str, list[RankedOperator]] = {}
        for entry in self.entries:
            found.setdefault(entry.op, []).append(entry)
        return found

    def triples(self) -> Bools:
        """All triples of values that some case can have; where features are asked for, those with one of them."""
        found = np.zeros((len(VALUES),) * 3, np.bool_)
        for entry in self.entries:
            found |= entry.triples
        if self.asked:
            some = np.asarray([name in self.asked for name in VALUES])
            found &= some[:, None, None] | some[None, :, None] | some[None, None, :]
        return found

    def count_triples(self, cases: Iterable[tuple[int, ...]]) -> tuple[int, int]:
        """How many triples met in cases of these values, and how many can."""
        missing = self.triples()
        total = int(missing.sum()) // 6
        for values in set(cases):
            met = np.asarray(values)
            missing[met[:, None, None], met[:, None], met] = False
        return total - int(missing.sum()) // 6, total
