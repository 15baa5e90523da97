"""Calls whose form differs from that of a given one: in an attribute or a size, or smaller ones to shrink it to.

Problems of operators are taken apart into `Parts`, those of references into their types.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import replace
from inspect import Parameter
from math import prod
from typing import Any, TypeAlias

from gradspec.conformance.model.domain import EVERYTHING, LEAST, SIZES, Allowed, KernelDomain
from gradspec.conformance.model.geometry import Parts, Refit, default_attributes, is_usual, with_defaults
from gradspec.conformance.model.problem import COLUMNS, CONVOLUTIONS, DTYPES, FLOATS, Attributes, Call, Shape
from gradspec.conformance.model.reference import Resized, free_axes, reference_of

Change: TypeAlias = Refit | Resized
"""Another form, and how its arrays are cut from the old ones."""
TIE_RULES = ("first", "all", "split")
SMALL = 1 << 12
"""Cells of an array that calls may have more of."""


class Changes(ABC):
    """The forms that a call may be changed to."""

    def __init__(self, call: Call) -> None:
        self.call = call

    @staticmethod
    def of(call: Call) -> Changes:
        return ReferenceChanges(call) if call.problem.is_reference else WindowChanges(call)

    @property
    @abstractmethod
    def differences(self) -> list[str]:
        """The names of attributes and sizes that another call may differ in."""

    @abstractmethod
    def other(self, difference: str) -> Iterator[Change]:
        """Forms that differ in this alone, those first that share most of the rest; some may be no legal calls."""

    def likely(self, difference: str) -> list[Change]:
        """Those of them that there most likely are, where a trial tells sooner than a call."""
        return []

    @abstractmethod
    def smaller(self, place: Shape | None, domain: KernelDomain = EVERYTHING) -> Iterator[Change]:
        """Every step to a simpler form; ``place`` is where a result is wrong, and is kept where that is easy.

        Steps may lead out of a domain, but they include those to sizes that it has: to the next multiple, say.
        """

    def larger(self, times: int) -> Change | None:
        """The form with so many times the samples, if there are few cells."""
        return None

    @property
    def dtypes(self) -> list[str]:
        """The other dtypes that it may have."""
        return []


class ReferenceChanges(Changes):
    """The free axes of a reference, one more or one less, or smaller; a reference that draws its inputs has none."""

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        self.reference = reference_of(call.problem)
        self.types = self.reference.types_of(call.problem)
        self.axes = free_axes(self.reference, self.types) if self.reference.draw is None else ()

    @property
    def differences(self) -> list[str]:
        return [self._named(*min(free.axes)) for free in self.axes]

    def _named(self, i: int, axis: int) -> str:
        return f"size of axis {axis} of {self.call.problem.inputs[i]}"

    def other(self, difference: str) -> Iterator[Resized]:
        for free in (free for free in self.axes if self._named(*min(free.axes)) == difference):
            sizes = (free.size(self.types) + free.step, free.size(self.types) - free.step)
            yield from (Resized(free.resized(self.types, n)) for n in sizes if n > 0)

    def likely(self, difference: str) -> list[Change]:
        return [change for change in self.other(difference) if self.reference.may_take(change.types)]

    def smaller(self, place: Shape | None, domain: KernelDomain = EVERYTHING) -> Iterator[Change]:
        for free in self.axes:
            for n in smaller(free.size(self.types) // free.step, 1):
                yield from (Resized(free.resized(self.types, n * free.step), last) for last in (False, True))


class WindowChanges(Changes):
    """The attributes and sizes of an operator of the specification."""

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        self.parts = Parts.of(call.problem)

    @property
    def differences(self) -> list[str]:
        given = with_defaults(self.parts.op, self.parts.rank, self.call.problem.attributes)
        sizes = {"output_size"} if self.parts.op == "fold" else set[str]()  # there they are those of the first array
        return [*(name for name in dict.fromkeys([*given, "groups"]) if name in {*ATTRIBUTES} - sizes), *OTHER_SIZES]

    def other(self, difference: str) -> Iterator[Change]:
        kind, _, dtype = difference.rpartition(" ")
        in_dtype = [self.parts.changed(dtype=dtype)] if kind == "dtype" else []
        yield from map(Refit, in_dtype or _other_parts(self.parts, self.call, difference))

    def smaller(self, place: Shape | None, domain: KernelDomain = EVERYTHING) -> Iterator[Change]:
        parts = self.parts
        for i, size in enumerate(parts.lead):
            wrong = place[i] if place is not None and i < len(place) else 0
            for at in dict.fromkeys(index for index in (wrong, 0) if index < size):
                yield Refit(replace(parts, lead=parts.lead[:i] + parts.lead[i + 1 :]), f"lead{i}", at)
        for i in range(parts.rank) if parts.rank > 1 else ():
            for at in dict.fromkeys((0, parts.sizes[i] - 1)):
                yield Refit(_without_axis(parts, i), f"axis{i}", at)
        for simpler in (*simpler_parts(parts), *_allowed_parts(parts, domain)):
            yield from (Refit(simpler, last=last) for last in (False, True))

    def larger(self, times: int) -> Change | None:
        lead = self.parts.lead
        has_few = lead and prod(self.call.problem.x_shape) <= SMALL
        return Refit(replace(self.parts, lead=(times * lead[0], *lead[1:]))) if has_few else None

    @property
    def dtypes(self) -> list[str]:
        alike = [name for name in DTYPES if (name in FLOATS) == (self.parts.dtype in FLOATS)]
        return [name for name in alike if name != self.parts.dtype]


# --- others -----------------------------------------------------------------------------------------------------------


def _other_parts(parts: Parts, call: Call, difference: str) -> Iterator[Parts]:
    if difference in OTHER_SIZES:
        yield from OTHER_SIZES[difference](parts)
        return
    if difference == "groups":
        yield from _other_groups(parts)
        return
    given = with_defaults(parts.op, parts.rank, call.problem.attributes)
    if difference not in given or not _matters(call, difference, given):
        return
    own = {name: value for name, value in parts.attributes.items() if name != difference}
    if difference == "kernel_size":  # a stride that is not given would follow it
        own |= {"stride": given["stride"]}
    for value in ATTRIBUTES[difference](given[difference]):
        yield parts.changed(attributes={**own, difference: value})


def _matters(call: Call, name: str, given: Attributes) -> bool:
    """Whether the attribute has a say in what the call gives."""
    if name == "ties":
        return call.mode != "value"
    if name == "count_include_pad":
        return given["divisor_override"] is None and (given["ceil_mode"] or any(map(any, given["padding"])))
    return True


def _each(change: Callable[[int], int]) -> Callable[[Shape], Iterator[Shape]]:
    """The last entry changed, or all."""

    def values(entries: Shape) -> Iterator[Shape]:
        yield (*entries[:-1], change(entries[-1]))
        yield tuple(map(change, entries))
        yield tuple(entry + 1 for entry in entries)

    return values


def _paddings(entries: tuple[tuple[int, int], ...]) -> Iterator[tuple[tuple[int, int], ...]]:
    """None, or one on every side; the sides swapped, which changes no shape; one cell more before the last axis."""
    yield tuple((0, 0) if any(map(any, entries)) else (1, 1) for _ in entries)
    if any(lo != hi for lo, hi in entries):
        yield tuple((hi, lo) for lo, hi in entries)
    (lo, hi), *_ = entries[::-1]
    yield (*entries[:-1], (lo + 1, hi - 1) if hi else (lo + 1, hi))


ATTRIBUTES: dict[str, Callable[[Any], Iterator[Any]]] = {
    "stride": _each(lambda s: 1 if s > 1 else 2),
    "padding": _paddings,
    "dilation": _each(lambda d: 1 if d > 1 else 2),
    "kernel_size": _each(lambda k: k - 1 if k > 1 else 2),
    "ceil_mode": lambda is_up: iter([not is_up]),
    "count_include_pad": lambda counts: iter([not counts]),
    "divisor_override": lambda divisor: iter([3 if divisor is None else divisor + 1]),
    "ties": lambda rule: iter([other for other in TIE_RULES if other != rule]),
    "groups": lambda groups: iter(()),  # `_other_groups`
    "output_padding": _each(lambda n: 0 if n else 1),
    "output_size": lambda sizes: iter([tuple(n if n is None else n - 1 if n > 1 else 2 for n in sizes)]),
    "keepdims": lambda keeps: iter([not keeps]),
    "beta": lambda beta: iter([2 * beta]),
    "padding_mode": lambda mode: iter(["ignore" if mode == "zeros" else "zeros"]),
}
"""Other values of an attribute."""


def _other_groups(parts: Parts) -> Iterator[Parts]:
    """As many channels in other groups."""
    if parts.op not in CONVOLUTIONS:
        return
    channels, outputs = parts.channels * parts.groups, parts.outputs * parts.groups
    for groups in range(1, min(channels, outputs) + 1):
        if groups != parts.groups and channels % groups == outputs % groups == 0:
            yield parts.changed(groups=groups, channels=channels // groups, outputs=outputs // groups)


def _with_entry(name: str, place: int) -> Callable[[Parts], Iterator[Parts]]:
    """One more, or one less, in one entry of ``lead`` or ``sizes``."""

    def changed(parts: Parts) -> Iterator[Parts]:
        entries = list(getattr(parts, name))
        for step in (1, -1) if entries else ():
            changed = [*entries]
            changed[place] += step
            if prod(changed):
                yield parts.changed(**{name: tuple(changed)})

    return changed


def _swap_sizes(parts: Parts) -> Iterator[Parts]:
    """As many cells, in axes whose sizes are exchanged."""
    for name in ("sizes", "lead"):
        entries: Shape = getattr(parts, name)
        if len(set(entries)) > 1:
            yield parts.changed(**{name: entries[::-1]})


def _more(name: str) -> Callable[[Parts], Iterator[Parts]]:
    def changed(parts: Parts) -> Iterator[Parts]:
        if parts.op in CONVOLUTIONS:
            yield from (parts.changed(**{name: n}) for n in (getattr(parts, name) + 1, getattr(parts, name) - 1) if n)

    return changed


OTHER_SIZES: dict[str, Callable[[Parts], Iterator[Parts]]] = {
    "size of the last axis": _with_entry("sizes", -1),
    "size of the first axis": _with_entry("sizes", 0),
    "sizes exchanged": _swap_sizes,
    "size of the batch": _with_entry("lead", 0),
    "number of input channels": _more("channels"),
    "number of output channels": _more("outputs"),
}
"""Other sizes of the arrays."""


# --- simpler ones -----------------------------------------------------------------------------------------------------


def simpler_parts(parts: Parts) -> Iterator[Parts]:
    """One number made smaller, those first that take most away."""
    for name in ("groups", "channels", "outputs"):
        yield from (parts.changed(**{name: size}) for size in smaller(getattr(parts, name), 1))
    if parts.has_bias:
        yield replace(parts, has_bias=False)
    for name in ("lead", "sizes", "kernel"):
        yield from (parts.changed(**{name: entries}) for entries in _entries_down(getattr(parts, name), 1))
    yield from (replace(parts, attributes=given) for given in _simpler_attributes(parts))
    if parts.dtype in FLOATS and parts.dtype != "f32":
        yield replace(parts, dtype="f32")


def smaller(number: int, least: int) -> list[int]:
    """The least number, and half, three quarters, seven eighths, … of the way from it, up to the one before.

    >>> smaller(9, 1), smaller(2, 1), smaller(1, 1)
    ([1, 5, 7, 8], [1], [])
    """
    way = max(number - least, 0)
    return sorted({number - -(-way // 2**i) for i in range(way.bit_length() + 1)}) if way else []


def _entries_down(entries: tuple[Any, ...], least: int) -> Iterator[tuple[Any, ...]]:
    """One entry made smaller, or one side of it where it is a pair."""
    for i, entry in enumerate(entries):
        if entry is None:
            options: list[Any] = [1]
        elif isinstance(entry, tuple):
            options = list(_entries_down(entry, least))
        else:
            options = smaller(entry, least)
        yield from ((*entries[:i], option, *entries[i + 1 :]) for option in options)


def _simpler_attributes(parts: Parts) -> Iterator[dict[str, Any]]:
    given = dict(parts.attributes)
    usual = [name for name in given if is_usual(parts.op, parts.rank, given, name)]
    if usual:
        yield {name: value for name, value in given.items() if name not in usual}
    for name, value in given.items():
        others = {other: kept for other, kept in given.items() if other != name}
        if default_attributes(parts.op)[name] is not Parameter.empty and name not in usual:
            yield others
        if name in LEAST and isinstance(value, tuple):
            yield from ({**given, name: entries} for entries in _entries_down(value, LEAST[name]))
        elif name in ("beta", "divisor_override") and value not in (None, 1, 2):
            yield from ({**given, name: simple} for simple in (type(value)(2), type(value)(1)))


def _allowed_parts(parts: Parts, domain: KernelDomain) -> Iterator[Parts]:
    """Channels and spatial axes of the smaller sizes that a domain has."""
    for axis, name in (("channels", "channels"), ("outputs", "out_channels")):
        sizes = _below(domain.get(name), getattr(parts, axis) * parts.groups)
        yield from (parts.changed(**{axis: n // parts.groups}) for n in sizes if n % parts.groups == 0)
    for i, name in zip(reversed(range(parts.rank)), SIZES, strict=False):
        sizes = _below(domain.get(name), parts.sizes[i])
        yield from (parts.changed(sizes=(*parts.sizes[:i], n, *parts.sizes[i + 1 :])) for n in sizes)
    if parts.lead and parts.op not in (*CONVOLUTIONS, *COLUMNS):  # the channels of a pooling are the last of its leads
        yield from (parts.changed(lead=(*parts.lead[:-1], n)) for n in _below(domain.get("channels"), parts.lead[-1]))


def _below(allowed: Allowed | None, number: int) -> list[int]:
    """The smallest of the sizes below a number, one half-way there, and the next."""
    found = [n for n in allowed or () if n is not None and n < number]
    return sorted({found[0], found[len(found) // 2], found[-1]}) if found else []


def _without_axis(parts: Parts, i: int) -> Parts:
    def rest(entries: Any) -> Any:
        return entries[:i] + entries[i + 1 :] if isinstance(entries, tuple) and len(entries) == parts.rank else entries

    given = {name: rest(value) if name in LEAST else value for name, value in parts.attributes.items()}
    return replace(parts, sizes=rest(parts.sizes), kernel=rest(parts.kernel), attributes=given)
