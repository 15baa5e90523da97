"""Random cases: regular windows over one to three axes, and operators on them, every attribute spelled out per axis."""

from dataclasses import dataclass, replace
from math import ceil, prod
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

from cases import TRAITS, OpCase, Shape

few = settings(max_examples=60, deadline=None)
many = settings(max_examples=100, deadline=None)

POOLINGS = ("max_pool", "avg_pool", "smooth_max_pool")
CONVOLUTIONS = ("conv", "conv_transpose")


@dataclass(frozen=True)
class Geometry:
    """Regular windows that fit at least once."""

    sizes: Shape
    kernel: Shape
    stride: Shape
    padding: tuple[tuple[int, int], ...]
    dilation: Shape

    @property
    def slack(self) -> Shape:
        """How far the first window can move before its last tap leaves the padded axis."""
        axes = zip(self.sizes, self.kernel, self.padding, self.dilation, strict=True)
        return tuple(n + lo + hi - d * (k - 1) - 1 for n, k, (lo, hi), d in axes)

    def outputs(self, ceil_mode: bool = False) -> Shape:
        counts = [slack // s + 1 for slack, s in zip(self.slack, self.stride, strict=True)]
        if not ceil_mode:
            return tuple(counts)
        rounded_up = [ceil(slack / s) + 1 for slack, s in zip(self.slack, self.stride, strict=True)]
        room = [n + lo for n, (lo, _) in zip(self.sizes, self.padding, strict=True)]
        axes = zip(counts, rounded_up, self.stride, room, strict=True)
        return tuple(more if (more - 1) * s < space else count for count, more, s, space in axes)

    @property
    def steps(self) -> dict[str, Any]:
        return {"stride": self.stride, "padding": self.padding, "dilation": self.dilation}


@st.composite
def geometries(draw: st.DrawFn, max_rank: int = 3) -> Geometry:
    """Padding may exceed the kernel, windows may leave a remainder, and planes stay small."""
    rank = draw(st.integers(1, max_rank))
    largest_kernel, most_room = ((4, 4), (3, 2), (2, 1))[rank - 1]
    axes = []
    for _ in range(rank):
        k, s, d = (draw(st.integers(1, most)) for most in (largest_kernel, 3, 2))
        lo, hi = draw(st.integers(0, 2)), draw(st.integers(0, 2))
        smallest = max(1, d * (k - 1) + 1 - lo - hi)
        axes.append((draw(st.integers(smallest, smallest + most_room)), k, s, (lo, hi), d))
    return Geometry(*zip(*axes, strict=True))


@st.composite
def pooling_cases(
    draw: st.DrawFn, *operators: str, without: tuple[str, ...] = (), ceil_mode: bool = False
) -> tuple[OpCase, Geometry]:
    """Poolings of every variant but those named."""
    operator, window = draw(st.sampled_from(operators or POOLINGS)), draw(geometries())
    lead = draw(st.sampled_from([(), (2,), (1, 2)]))
    rounding = draw(st.booleans()) if ceil_mode else False
    attributes = {"kernel_size": window.kernel, **window.steps, "ceil_mode": rounding}
    return _case(draw, operator, lead + window.sizes, lead + window.outputs(rounding), attributes, without), window


@st.composite
def convolution_cases(
    draw: st.DrawFn, *operators: str, max_groups: int = 2, leads: tuple[Shape, ...] = ((), (2,))
) -> tuple[OpCase, Geometry]:
    operator, window = draw(st.sampled_from(operators or CONVOLUTIONS)), draw(geometries(max_rank=2))
    groups, read, wrote = (draw(st.integers(1, most)) for most in (max_groups, 2, 2))
    lead, bias = draw(st.sampled_from(leads)), draw(st.sampled_from([None, (wrote * groups,)]))
    attributes = {**window.steps, "groups": groups}
    outputs, weight = window.outputs(), (wrote * groups, read)
    if operator == "conv_transpose":
        extra = tuple(draw(st.integers(0, max(s, d) - 1)) for s, d in zip(window.stride, window.dilation, strict=True))
        window, outputs = _long_enough(window, extra)
        attributes["output_padding"], weight = extra, (read * groups, wrote)
    shapes = [(*lead, read * groups, *window.sizes), (*weight, *window.kernel), bias]
    return _case(draw, operator, shapes, (*lead, wrote * groups, *outputs), attributes), window


def _long_enough(window: Geometry, extra: Shape) -> tuple[Geometry, Shape]:
    """Axes on which a transposed convolution leaves a cell even without output padding; the sizes it leaves with it."""
    axes = zip(window.kernel, window.padding, window.dilation, strict=True)
    of_one_cell = [d * (k - 1) + 1 - lo - hi for k, (lo, hi), d in axes]
    least = [1 + ceil((1 - size) / s) for size, s in zip(of_one_cell, window.stride, strict=True)]
    sizes = tuple(map(max, window.sizes, least))
    left = zip(sizes, window.stride, of_one_cell, extra, strict=True)
    return replace(window, sizes=sizes), tuple((n - 1) * s + size + more for n, s, size, more in left)


@st.composite
def column_cases(draw: st.DrawFn, *operators: str) -> tuple[OpCase, Geometry]:
    operator, window = draw(st.sampled_from(operators or ("unfold", "fold"))), draw(geometries(max_rank=2))
    channels, lead = draw(st.integers(1, 2)), draw(st.sampled_from([(), (2,)]))
    planes = (*lead, channels, *window.sizes)
    columns = (*lead, channels * prod(window.kernel), prod(window.outputs()))
    attributes = {"kernel_size": window.kernel, **window.steps}
    if operator == "unfold":
        return _case(draw, operator, planes, columns, attributes), window
    return _case(draw, operator, columns, planes, attributes | {"output_size": window.sizes}), window


@st.composite
def adaptive_cases(draw: st.DrawFn) -> tuple[OpCase, None]:
    operator = draw(st.sampled_from(["adaptive_max_pool", "adaptive_avg_pool"]))
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple))
    wanted = draw(st.tuples(*(st.none() | st.integers(1, 4) for _ in sizes)))
    outputs = tuple(n if m is None else m for n, m in zip(sizes, wanted, strict=True))
    return _case(draw, operator, sizes, outputs, {"output_size": wanted}), None


def all_cases() -> st.SearchStrategy[OpCase]:
    kinds = pooling_cases(ceil_mode=True) | convolution_cases() | column_cases() | adaptive_cases()
    return kinds.map(lambda pair: pair[0])


def _case(
    draw: st.DrawFn,
    operator: str,
    shapes: Any,
    output: Shape,
    attributes: dict[str, Any],
    without: tuple[str, ...] = (),
) -> OpCase:
    """A case whose numbers, which come from its id, also vary."""
    variant = draw(st.sampled_from(sorted(set(TRAITS[operator].variants) - set(without))))
    situation = f"{shapes} {attributes} {draw(st.integers(0, 9))}"
    return TRAITS[operator].case(operator, variant, situation, shapes, output, attributes)
