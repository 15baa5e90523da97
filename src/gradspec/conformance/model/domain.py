"""What a kernel is made for: the values that its attributes, axes, dtypes, ranks and layouts may have.

A kernel for 3 × 3 windows with channels in eights is judged inside its domain, and thoroughly there: cases are drawn
from it. What a domain does not name may be anything.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property, lru_cache
from itertools import islice, product
from operator import index
from typing import Any, NamedTuple, TypeAlias, TypeVar

from gradspec.conformance.model.geometry import geometry_of, with_defaults
from gradspec.conformance.model.problem import CONVOLUTIONS, DTYPES, LAYOUTS, RANKS, Problem

Given = TypeVar("Given")
Allowed: TypeAlias = "range | tuple[Any, ...]"
"""The values of one name. In a range of an attribute that has a number for each axis, axes choose by themselves."""

LEAST = {"kernel_size": 1, "stride": 1, "padding": 0, "dilation": 1, "output_padding": 0, "output_size": 1}
"""Attributes with a number for each axis, and the least that it may be; padding has a pair."""
SIZES = ("width", "height", "depth")
"""The last spatial axis, the one before it, and the one before that."""
COUNTS = {"channels": 0, "out_channels": 0, "batch": 0, "groups": 1, "divisor_override": 1, **dict.fromkeys(SIZES, 1)}
"""Numbers, and the least that they may be. ``batch`` is the size of the one axis before the channels."""
ABSENT = ("channels", "batch", "divisor_override", "output_size")
"""Names that may be None: no such axis, no divisor of its own, an axis that keeps its size."""
FLAGS = ("ceil_mode", "count_include_pad", "keepdims")
WORDS: dict[str, Sequence[Any]] = {
    "dtypes": tuple(DTYPES),
    "ranks": RANKS,
    "layouts": LAYOUTS,
    "ties": ("first", "all", "split"),
    "padding_mode": ("zeros", "ignore"),
    "numbers": ("finite", "some"),
}
NAMES = (*LEAST, *COUNTS, *FLAGS, *WORDS)
NOT_OF_SHAPES = ("dtypes", "ranks", "layouts", "numbers")
"""Names that no problem is drawn by."""
FRAMES, SMALLEST = 64, 24
"""The most combinations of attributes that windows are drawn in, and how many of many sizes are."""


class AxisDomain(NamedTuple):
    """What one spatial axis may be, by the names of attributes; None is anything."""

    sizes: tuple[int, ...] | None = None
    kernel_size: tuple[int, ...] | None = None
    stride: tuple[int, ...] | None = None
    padding: tuple[tuple[int, int], ...] | None = None
    dilation: tuple[int, ...] | None = None
    output_padding: tuple[int, ...] | None = None
    output_size: tuple[int, ...] | None = None


FREE = AxisDomain()


@dataclass(frozen=True)
class KernelDomain:
    """The allowed values by name; `KernelDomain.of` takes them as users write them.

    >>> domain = KernelDomain.of(kernel_size={(3, 3)}, stride=2, channels=range(8, 1025, 8))
    >>> print(domain)
    kernel_size=3x3 stride=2 channels=8..1024:8
    >>> domain.excludes(Problem("max_pool", 2, ((1, 8, 6, 6),), {"kernel_size": (3, 3)}))
    'stride 3x3 is not among what it takes, 2'
    """

    entries: tuple[tuple[str, Allowed], ...] = ()

    @staticmethod
    def of(**given: object) -> KernelDomain:
        """From values, sets, tuples or ranges of them. A ``ValueError`` says what cannot be meant."""
        found = {name: _parse_allowed(name, value) for name, value in given.items()}
        return KernelDomain(tuple((name, found[name]) for name in NAMES if name in found))

    @staticmethod
    def read(text: str) -> KernelDomain:
        """From the words of a command.

        >>> KernelDomain.read("kernel_size=3x3,5x5 padding=0+1x0+1 batch=none,1").entries[1]
        ('padding', (((0, 1), (0, 1)),))
        """
        pairs = [part.partition("=") for part in text.replace(";", " ").split()]
        for name, equals, _ in pairs:
            if not equals:
                raise ValueError(f"domain: {name!r} says no value; write name=value, as in {EXAMPLE}")
        return KernelDomain.of(**{name: _read_values(name, value) for name, _, value in pairs})

    def __str__(self) -> str:
        return " ".join(f"{name}={write_allowed(allowed)}" for name, allowed in self.entries)

    def __bool__(self) -> bool:
        return bool(self.entries)

    @cached_property
    def _by_name(self) -> dict[str, Allowed]:
        return dict(self.entries)

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def get(self, name: str) -> Allowed | None:
        return self._by_name.get(name)

    def over(self, other: KernelDomain) -> KernelDomain:
        """This domain, and the other one for names that it does not have."""
        both = {**other._by_name, **self._by_name}
        return KernelDomain(tuple((name, both[name]) for name in NAMES if name in both))

    def without(self, *names: str) -> KernelDomain:
        return KernelDomain(tuple(entry for entry in self.entries if entry[0] not in names))

    def allows(self, name: str, value: Any) -> bool:
        """Whether an attribute or an axis may have a value; an attribute with a number per axis is given as a tuple."""
        allowed = self.get(name)
        if allowed is None:
            return True
        if name not in LEAST:
            return value in allowed
        if isinstance(allowed, range):
            return all(_sides(name, entry) is not None and _sides(name, entry) in allowed for entry in value)
        return any(_spread(name, pattern, len(value)) == tuple(value) for pattern in allowed)

    def excludes(self, problem: Problem) -> str | None:
        """Why a problem is outside, or None."""
        if not self.entries:
            return None
        for name, value in facts(problem):
            if name in self and not self.allows(name, value):
                allowed = self._by_name[name]
                return f"{name} {write_value(value)} is not among what it takes, {write_allowed(allowed)}"
        return None

    def prefers(self, name: str, wanted: Any) -> Any:
        """A value as wanted if that is allowed, and otherwise the first that is."""
        allowed = self.get(name)
        return wanted if allowed is None or wanted in allowed else allowed[0]

    @property
    def told(self) -> str:
        """In words.

        >>> KernelDomain.of(kernel_size={(3, 3)}, channels=range(8, 65, 8)).told
        'kernel_size 3x3, channels from 8 to 64 that 8 divides'
        """
        return ", ".join(f"{name} {_describe(allowed)}" for name, allowed in self.entries)


EVERYTHING = KernelDomain()
EXAMPLE = '"kernel_size=3x3 stride=2 channels=8..1024:8 batch=1"'


# --- windows ----------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def frames(domain: KernelDomain, op: str, rank: int) -> tuple[tuple[AxisDomain, ...], ...]:
    """What the axes of a window may be together, one entry for each combination of values that belong together.

    >>> frames(EVERYTHING, "conv", 1) == ((FREE,),)
    True
    """
    named = {name: _combinations(name, allowed, rank) for name, allowed in domain.entries if name in LEAST}
    if op == "fold":  # the size that it gives is the one that its windows slide over
        named["sizes"] = named.pop("output_size", [(None,) * rank])
    sizes = [_some(domain.get(name)) for name in (*SIZES, "")[:rank]][::-1]
    found = []
    for chosen in product(*named.values()):
        frame = [FREE._replace(sizes=size or None) for size in sizes]
        for name, entries in zip(named, chosen, strict=True):
            pairs = zip(frame, entries, strict=True)
            frame = [axis if entry is None else axis._replace(**{name: entry}) for axis, entry in pairs]  # type: ignore[arg-type]
        found.append(tuple(frame))
    apart = -(-len(found) // FRAMES)
    return tuple(dict.fromkeys(found[::apart] if apart else found))


def _combinations(name: str, allowed: Allowed, rank: int) -> list[tuple[Allowed | None, ...]]:
    """For each combination, what every axis may have."""
    if isinstance(allowed, range):
        some = _some(allowed) or ()
        return [(tuple((n, n) for n in some) if name == "padding" else some,) * rank]
    spread = (_spread(name, pattern, rank) for pattern in allowed)
    return [
        tuple(None if entry is None else (entry,) for entry in entries) for entries in spread if entries is not None
    ]


def _some(allowed: Allowed | None) -> tuple[int, ...] | None:
    """The smallest of many."""
    return (
        None if allowed is None else tuple(islice(sorted(allowed) if isinstance(allowed, tuple) else allowed, SMALLEST))
    )


def _spread(name: str, pattern: Any, rank: int) -> tuple[Any, ...] | None:
    """A pattern as an entry for each axis: a number stands for all of them. None where it has more or fewer axes."""
    entries = pattern if isinstance(pattern, tuple) else (pattern,) * rank
    if len(entries) != rank:
        return None
    return tuple((entry, entry) if name == "padding" and not isinstance(entry, tuple) else entry for entry in entries)


def _sides(name: str, entry: Any) -> Any:
    """One number for the two sides of a padding, if they are the same."""
    if name != "padding":
        return entry
    return entry[0] if entry[0] == entry[1] else None


# --- what a problem is --------------------------------------------------------------------------------------------


def facts(problem: Problem) -> Iterator[tuple[str, object]]:
    """Everything of a problem that a domain may name.

    >>> dict(facts(Problem("conv", 1, ((2, 3, 5), (4, 3, 2), None), {})))["out_channels"]
    4
    """
    parts = geometry_of(problem)
    yield "dtypes", problem.dtype
    yield "ranks", problem.rank
    given = with_defaults(problem.op, problem.rank, problem.attributes)
    if problem.op in CONVOLUTIONS:
        weight = problem.shapes[1]
        assert weight is not None
        groups = given["groups"]
        yield "kernel_size", weight[2:]
        yield "out_channels", weight[0] if problem.op == "conv" else weight[1] * groups
    yield from ((name, value) for name, value in given.items() if name in NAMES)
    yield "channels", parts.channels
    yield "batch", parts.lead[0] if len(parts.lead) == 1 else parts.lead or None
    yield from zip(SIZES, reversed(parts.spatial), strict=False)


# --- values as they are written ---------------------------------------------------------------------------------------


def suggestion(name: str, names: Collection[str]) -> str:
    """What may be meant by a name that there is not."""
    near = get_close_matches(name, names, n=1)
    return f"did you mean {near[0]}?" if near else f"choose from {', '.join(names)}"


def _parse_allowed(name: str, given: Any) -> Allowed:
    if name not in NAMES:
        raise ValueError(f"there is no attribute or axis {name!r}; {suggestion(name, NAMES)}")
    if isinstance(given, range):
        ordered = given if given.step > 0 else given[::-1]
        members: Sequence[Any] = [*ordered[:1], *ordered[-1:]]
    else:
        members = list(given) if isinstance(given, set | frozenset | list) or _is_several(name, given) else [given]
    if not members:
        raise ValueError(f"{name} is {given!r}, which allows no case; leave it out to allow any value")
    found = [_member(name, member) for member in members]
    if isinstance(given, range):
        return range(found[0], found[-1] + 1, ordered.step)
    unique = dict.fromkeys(found)
    return tuple(sorted(unique) if all(isinstance(n, int) and not isinstance(n, bool) for n in unique) else unique)


def _is_several(name: str, given: object) -> bool:
    """Whether a tuple holds several values, and is not one value with an entry for each axis."""
    if not isinstance(given, tuple) or name not in LEAST:
        return isinstance(given, tuple)
    deep = 2 if name == "padding" else 1
    return _depth(given) > deep or not given or (name != "padding" and any(isinstance(entry, tuple) for entry in given))


def _depth(given: object) -> int:
    return 1 + max((_depth(entry) for entry in given), default=0) if isinstance(given, tuple) else 0


def _member(name: str, member: object) -> Any:
    if name in FLAGS:
        return _require(name, member, isinstance(member, bool), "True or False")
    if name in WORDS:
        return _require(name, member, member in WORDS[name], f"some of {', '.join(map(str, WORDS[name]))}")
    if name in COUNTS:
        return None if member is None and name in ABSENT else _number(name, member, COUNTS[name])
    if not isinstance(member, tuple):
        return None if member is None and name in ABSENT else _number(name, member, LEAST[name])
    entries = tuple(_entry(name, entry) for entry in member)
    _require(name, member, 1 <= len(entries) <= len(RANKS), "a number for each of 1 to 4 axes")
    return entries if len(entries) > 1 or isinstance(entries[0], tuple) else entries[0]


def _entry(name: str, entry: object) -> int | tuple[int, ...] | None:
    if name == "padding" and isinstance(entry, tuple):
        _require(name, entry, len(entry) == 2, "pairs of the two sides of an axis")
        return tuple(_number(name, side, 0) for side in entry)
    return None if entry is None and name in ABSENT else _number(name, entry, LEAST[name])


def _number(name: str, given: Any, least: int) -> int:
    try:
        number = None if isinstance(given, bool) else index(given)
    except TypeError:
        number = None
    if number is None or number < least:
        raise ValueError(f"{name} names {given!r}; give a whole number from {least} on, a set or a range of them")
    return number


def _require(name: str, given: Given, is_right: bool, expected: str) -> Given:
    if not is_right:
        raise ValueError(f"{name} names {given!r}; give {expected}")
    return given


def _read_values(name: str, text: str) -> range | list[object]:
    """The value of a name in a command: ``3x3``, ``1,2``, ``8..1024:8``, ``0+1x0+1``, ``none``, ``true``."""
    if ".." in text:
        first, _, rest = text.partition("..")
        last, _, step = rest.partition(":")
        try:
            return range(int(first), int(last) + 1, int(step or 1))
        except ValueError:
            raise ValueError(f"domain: {name}={text} is no range; write first..last or first..last:step") from None
    return [_read_one(part) for part in text.split(",") if part]


def _read_one(text: str) -> object:
    """A number, a word, or an entry for each axis with an x between them; those of two sides have a +."""
    if not text.strip("0123456789x+") and not text.isdigit():
        return tuple(tuple(map(_word, part.split("+"))) if "+" in part else _word(part) for part in text.split("x"))
    return _word(text)


def _word(text: str) -> int | str | None:
    return int(text) if text.isdigit() else {"none": None, "true": True, "false": False}.get(text, text)


def write_allowed(allowed: Allowed) -> str:
    """As a command has it."""
    if isinstance(allowed, range):
        return f"{allowed[0]}..{allowed[-1]}" + (f":{allowed.step}" if allowed.step > 1 else "")
    return ",".join(map(write_value, allowed))


def write_value(value: object) -> str:
    """One value.

    >>> write_value(((0, 1), (2, 2))), write_value((3, 5)), write_value(None)
    ('0+1x2+2', '3x5', 'none')
    """
    if not isinstance(value, tuple):
        return str(value).lower()
    return "x".join("+".join(map(str, entry)) if isinstance(entry, tuple) else write_value(entry) for entry in value)


def _describe(allowed: Allowed) -> str:
    if not isinstance(allowed, range):
        return " or ".join(map(write_value, allowed))
    divisor = f" that {allowed.step} divides" if allowed.step > 1 and allowed[0] % allowed.step == 0 else ""
    step = f" by {allowed.step}" if allowed.step > 1 and not divisor else ""
    return f"from {allowed[0]} to {allowed[-1]}{divisor}{step}"
