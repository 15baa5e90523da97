"""What a kernel takes that declares nothing, and raises ``NotImplementedError`` for the rest: found out by calls.

A first call that is taken is looked for among the layers of usual networks; then one thing of it changes at a time.
What is found is a box around that call: cases are drawn from it, and what it still holds that is not taken is not
offered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, product
from math import gcd
from typing import Any, TypeAlias

from gradspec.conformance.model.domain import KernelDomain
from gradspec.conformance.model.geometry import Parts
from gradspec.conformance.model.problem import COLUMNS, CONVOLUTIONS, LAYOUTS, RANKS, SLIDING, Problem, Shape
from gradspec.spec.errors import ShapeError

Takes: TypeAlias = Callable[[Problem, str], bool | None]
"""Whether a problem in a layout is taken; None where nobody knows."""

MOST_CALLS = 4_000
WINDOWS = tuple(product((3, 1, 2, 5, 4, 7, 11), (1, 2, 0, 3, 4), (0, 1, 2, 3, 5), (1, 2)))
"""Kernels, strides (0 is that of the kernel), paddings and dilations to begin with."""
FEW_WINDOWS = tuple(product((3, 1, 2, 5), (1, 2, 0), (0, 1, 2), (1,)))
BINS = tuple((n, 1, 0, 1) for n in (2, 1, 7, 4, 6))
"""Output sizes of adaptive pooling, in the place of kernels."""
SHAPES = (
    *((8, 8, 1, 8, 1), (8, 8, 1, 8, 8), (3, 64, 1, 16, 1), (8, 8, None, 8, 1), (16, 16, 4, 16, 1)),
    *((64, 64, 1, 32, 1), (1, 1, 1, 16, 1), (3, 64, 1, 224, 1), (128, 128, 32, 8, 1)),
)
"""Channels in and out, samples, the size of axes, and groups: those first whose calls are quick."""
NUMBERS = {"kernel_size": (*range(1, 9), 11), "stride": (1, 2, 3, 4), "padding": (0, 1, 2, 3, 4), "dilation": (1, 2, 3)}
"""What axes are given alike."""
PAIRS = {
    "kernel_size": ((3, 5), (2, 1)),
    "stride": ((1, 2), (2, 1)),
    "padding": ((0, 1), (2, 1)),
    "dilation": ((1, 2),),
}
"""What the first axis and the others are given."""
SIZES = (*range(1, 19), 20, 24, 28, 32, 40, 48, 56, 64, 96, 128)
LARGEST = 1024
"""What is taken up to the largest size that was tried is taken to be so up to here."""


@dataclass(frozen=True)
class TriedLayer:
    """A problem by the names of a domain."""

    op: str
    rank: int
    kernel_size: Shape
    stride: Shape
    padding: tuple[tuple[int, int], ...]
    dilation: Shape
    sizes: Shape
    channels: int
    out_channels: int
    batch: int | None
    groups: int = 1
    dtype: str = "f32"
    layout: str = "contiguous"

    def problem(self) -> Problem | None:
        """The problem; None where it is none."""
        if self.op == "max_unpool" or self.channels % self.groups or self.out_channels % self.groups:
            return None
        lead, is_conv = () if self.batch is None else (self.batch,), self.op in CONVOLUTIONS
        attributes: dict[str, Any] = {"output_size": self.kernel_size} if self.op.startswith("adaptive") else {}
        if self.op in SLIDING:
            attributes = {"stride": self.stride, "padding": self.padding, "dilation": self.dilation}
            attributes |= {"groups": self.groups} if is_conv else {"kernel_size": self.kernel_size}
        outer = lead if is_conv or self.op in COLUMNS else (*lead, self.channels)
        channels, outputs = self.channels // self.groups, self.out_channels // self.groups
        counts = (outer, self.groups, channels, outputs)
        with suppress(ShapeError, ValueError):
            return Parts(self.op, self.dtype, *counts, self.sizes, self.kernel_size, False, attributes).problem()
        return None


def find_domain(op: str, takes: Takes, ranks: Sequence[int], dtypes: Sequence[str]) -> KernelDomain | None:
    """The box of what is taken of an operator; None where no call was.

    >>> def only_3x3(problem, layout):
    ...     return problem.shapes[1][2:] == (3, 3) and problem.shapes[0][-3] % 8 == 0
    >>> print(find_domain("conv", only_3x3, (2,), ("f32",)))
    kernel_size=3 channels=8..1024:8 ranks=2
    """
    search, dtypes = _BoxSearch(takes), sorted(dtypes, key=lambda name: name != "f32")
    base = next((layer for layer in _beginnings(op, ranks, dtypes) if search.takes(layer)), None)
    return None if base is None else KernelDomain.of(**search.box(base, ranks, dtypes))


def plain_layers(op: str, rank: int, dtype: str) -> list[Problem]:
    """A few calls that nearly every kernel takes."""
    windows = [(n, 1, 0, 1) for n in (3, 1, 2)]
    found = (_layer(op, rank, window, SHAPES[0], dtype).problem() for window in windows)
    return [problem for problem in found if problem is not None]


def _beginnings(op: str, ranks: Sequence[int], dtypes: Sequence[str]) -> Iterator[TriedLayer]:
    """Layers as networks have them; the likeliest first."""
    order = [rank for rank in (2, 1, 3, 4) if rank in ranks]
    first, few = (WINDOWS, FEW_WINDOWS) if op in SLIDING else (BINS, BINS)
    choices = chain(product(dtypes[:1], order, SHAPES[:1], first), product(dtypes, order, SHAPES, few))
    for dtype, rank, shape, window in choices:
        yield _layer(op, rank, window, shape, dtype)


def _layer(
    op: str, rank: int, window: tuple[int, int, int, int], shape: tuple[int, int, int | None, int, int], dtype: str
) -> TriedLayer:
    (k, s, p, d), (channels, out, batch, size, groups) = window, shape
    kernel, stride, dilation, sizes = ((n,) * rank for n in (k, s or k, d, size))
    axes = (kernel, stride, ((p, p),) * rank, dilation, sizes)
    return TriedLayer(op, rank, *axes, channels, out, batch, groups, dtype)


class _BoxSearch:
    """Calls that differ from one that is taken, counted."""

    def __init__(self, takes: Takes) -> None:
        self._takes, self.calls = takes, 0
        self.followed: dict[str, set[Any]] = {"padding": set(), "stride": set()}
        """Values without which a kernel was not taken."""

    def takes(self, layer: TriedLayer) -> bool | None:
        """None where there is no such problem, or no call left."""
        problem = layer.problem()
        if problem is None or self.calls >= MOST_CALLS:
            return None
        self.calls += 1
        return self._takes(problem, layer.layout)

    def box(self, base: TriedLayer, ranks: Sequence[int], dtypes: Sequence[str]) -> dict[str, object]:
        """What the base may have in the place of each of its values, for names of which not everything is taken."""
        words = {"dtypes": ("dtype", dtypes), "layouts": ("layout", LAYOUTS)}
        found: dict[str, object] = {
            name: self._values(base, attribute, values) for name, (attribute, values) in words.items()
        }
        found["ranks"] = self._ranks(base, ranks)
        if base.op in SLIDING:
            found |= {name: self._window(base, name) for name in NUMBERS}
        elif base.op.startswith("adaptive"):
            found["output_size"] = self._window(base, "kernel_size")
        together: tuple[tuple[str, ...], ...] = (("channels",),)
        if base.op in CONVOLUTIONS and base.groups > 1:
            together = (("channels", "groups", "out_channels"),)
        elif base.op in CONVOLUTIONS:
            divisors = [n for n in (1, 2, 4, base.channels) if base.channels % n == base.out_channels % n == 0]
            found["groups"] = self._values(base, "groups", divisors)
            together = ("channels",), ("out_channels",)
        for names in together:
            found[names[0]] = self._numbers(lambda n, names=names: replace(base, **dict.fromkeys(names, n)))  # type: ignore[misc, arg-type]
        found["batch"] = self._batch(base)
        for i, name in enumerate(("width", "height", "depth")[: base.rank]):
            found[name] = self._size(base, base.rank - 1 - i)
        return {name: allowed for name, allowed in found.items() if allowed is not None}

    def _among(self, layers: Sequence[TriedLayer]) -> tuple[list[TriedLayer], bool]:
        """Those that are taken, and whether all are that there are."""
        answers = [self.takes(layer) for layer in layers]
        return [layer for layer, is_taken in zip(layers, answers, strict=True) if is_taken], False not in answers

    def _values(self, base: TriedLayer, name: str, values: Sequence[object]) -> set[object] | None:
        """The values of one thing that are taken, or None for all of them."""
        given: list[dict[str, Any]] = [{name: value} for value in values]
        taken, everything = self._among([replace(base, **change) for change in given])
        return None if everything else {getattr(layer, name) for layer in taken}

    def _ranks(self, base: TriedLayer, ranks: Sequence[int]) -> object:
        one = (base.kernel_size[0], base.stride[0], base.padding[0][0], base.dilation[0])
        shape = (base.channels, base.out_channels, base.batch, min(base.sizes[0], 16), base.groups)
        taken, everything = self._among([_layer(base.op, rank, one, shape, base.dtype) for rank in ranks])
        return None if everything and tuple(ranks) == RANKS else {base.rank, *(layer.rank for layer in taken)}

    def _window(self, base: TriedLayer, name: str) -> object:
        """Values of axes that are alike, axes that differ and sides that differ."""
        alike = [(n,) * base.rank for n in NUMBERS[name]]
        values: list[Any] = [*alike, *((one, *[two] * (base.rank - 1)) for one, two in PAIRS[name] if base.rank > 1)]
        if name == "padding":
            values = [tuple((n, n) for n in entries) for entries in values] + [
                (side,) * base.rank for side in ((0, 1), (1, 0))
            ]
        layers = [self._follow_kernel(base, {name: value}) for value in values]
        taken, everything = self._among(layers)
        if everything:
            return None
        chosen = {getattr(layer, name) for layer in (base, *taken)} | self.followed.get(name, set())
        return {_collapse_axes(value) for value in chosen}

    def _follow_kernel(self, base: TriedLayer, change: dict[str, Any]) -> TriedLayer:
        """The base with a change; where a kernel changes, padding or stride follow it if it is not taken otherwise."""
        value = change.get("kernel_size")
        if value is None or base.op not in SLIDING or self.takes(replace(base, **change)):
            return replace(base, **change)
        for other, follows in {"padding": tuple((n // 2, n // 2) for n in value), "stride": value}.items():
            if self.takes(layer := replace(base, **{**change, other: follows})):
                self.followed[other].add(follows)
                return layer
        return replace(base, **change)

    def _numbers(self, layer: Callable[[int], TriedLayer]) -> object:
        """Sizes that are taken: all, multiples of a number from the smallest on, or a few."""
        answers = {n: self.takes(layer(n)) for n in SIZES}
        taken = [n for n, is_taken in answers.items() if is_taken]
        if False not in answers.values() or not taken:
            return None
        step, last = gcd(*taken), taken[-1]
        between = [n for n, is_taken in answers.items() if taken[0] <= n <= last and is_taken is not None]
        if len(taken) > 2 and all((n % step == 0) == (n in taken) for n in between):
            return range(taken[0], (LARGEST if last == SIZES[-1] else last) + 1, step)
        return set(taken)

    def _batch(self, base: TriedLayer) -> object:
        tried = (None, 0, 1, 2, 3, 4, 8, 32)
        taken = self._values(base, "batch", tried)
        if taken is None or not taken >= {1, 2, 3, 4, 8, 32}:
            return taken
        if None in taken:  # as many as there are, with and without an axis for them: nothing that can be written short
            return None
        return range(0 if 0 in taken else 1, LARGEST + 1)

    def _size(self, base: TriedLayer, axis: int) -> object:
        """Sizes of one axis; none are told where only all axes together may change."""

        def layer(n: int) -> TriedLayer:
            return replace(base, sizes=tuple(n if i == axis else size for i, size in enumerate(base.sizes)))

        found = self._numbers(layer)
        alike, _ = self._among([replace(base, sizes=(n,) * base.rank) for n in SIZES[:16]])
        return None if isinstance(found, set) and len(found) < len(alike) else found


def _collapse_axes(value: Shape | tuple[Shape, ...]) -> object:
    """One number for axes, and sides, that are all the same."""
    flat = {n for entry in value for n in (entry if isinstance(entry, tuple) else (entry,))}
    return flat.pop() if len(flat) == 1 else value


def join_domains(domains: Sequence[KernelDomain]) -> KernelDomain:
    """A box around the boxes of several operators: what one of them leaves open stays open.

    >>> print(join_domains([KernelDomain.of(kernel_size={2, 3}, stride=1), KernelDomain.of(kernel_size=5)]))
    kernel_size=2,3,5
    """
    names = [name for name, _ in domains[0].entries if all(name in domain for domain in domains)] if domains else []
    given = {name: [domain.get(name) or () for domain in domains] for name in names}
    alike = {name for name, (first, *others) in given.items() if isinstance(first, range) and {*others} <= {first}}
    return KernelDomain.of(**{name: some[0] if name in alike else [*chain(*some)] for name, some in given.items()})
