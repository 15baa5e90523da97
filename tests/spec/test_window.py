"""Window geometry against an oracle written the other way round: enumerate positions, keep those a predicate accepts.

Every self-consistency law would pass on a wrong geometry, so nothing here is computed as ``spec/window.py`` does it.
"""

from dataclasses import replace
from fractions import Fraction
from itertools import product
from math import ceil, floor

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gradspec as gs
from gradspec.spec import adaptive, regular, transposed, whole
from gradspec.spec.window import Regular
from strategies import geometries, many

FAR = 40
"""Beyond every position and every window of the small axes below."""

# --- the oracle -------------------------------------------------------------------------------------------------------


def reads(p, o, n, k, s, lo, hi, d):
    """Whether window ``o`` of a regular axis has a tap at position ``p``."""
    offset = p + lo - o * s
    return offset >= 0 and offset % d == 0 and offset // d < k and p < n + hi


def fits(o, n, k, s, lo, hi, d):
    """Whether the last tap of window ``o`` lies on the padded axis."""
    return o * s + d * (k - 1) < lo + n + hi


def counted(n, k, s, lo, hi, d, ceil_mode):
    """How many windows: those that fit; rounding up adds one that sticks out, if it starts before the cells end."""
    whole_windows = sum(fits(o, n, k, s, lo, hi, d) for o in range(FAR))
    if not ceil_mode:
        return whole_windows
    end = lo + n + hi - d * (k - 1) - 1  # the last start from which a window fits
    rounded_up = ceil(Fraction(end, s)) + 1
    if rounded_up > whole_windows and (rounded_up - 1) * s >= n + lo:
        return whole_windows
    return max(rounded_up, 0)


def windows(n, k, s, lo, hi, d, outputs):
    return [[p for p in range(-FAR, FAR) if reads(p, o, n, k, s, lo, hi, d)] for o in range(outputs)]


def bins(n, m):
    """Bin ``o`` spans the reals from o·n/m to (o+1)·n/m; it reads every cell (from p to p+1) that it overlaps."""
    edge = [Fraction(o * n, m) for o in range(m + 1)]
    return [[p for p in range(n) if p + 1 > edge[o] and p < edge[o + 1]] for o in range(m)]


def positions(axis):
    return [list(axis.positions(o)) for o in range(axis.outputs)]


# --- one axis, exhaustively -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize("kernel", range(1, 5))
def test_regular_axes(kernel, ceil_mode):
    for n, s, lo, hi, d in product(range(1, 7), range(1, 5), range(4), range(4), range(1, 4)):
        outputs = counted(n, kernel, s, lo, hi, d, ceil_mode)
        arguments = (n,), (kernel,), s, ((lo, hi),), d, ceil_mode
        if outputs == 0:
            with pytest.raises(gs.ShapeError, match="wider than the padded axis"):
                regular(*arguments)
        else:
            (axis,) = regular(*arguments).axes
            assert (axis.size, axis.outputs) == (n, outputs), arguments
            assert positions(axis) == windows(n, kernel, s, lo, hi, d, outputs), arguments


def test_same_padding_is_the_least_that_keeps_every_start():
    """⌈n/s⌉ windows need some total padding; "same" is the smallest, split with the odd cell at the end."""
    for n, k, s, d in product(range(1, 9), range(1, 5), range(1, 4), range(1, 4)):
        wanted = ceil(Fraction(n, s))
        total = next(t for t in range(FAR) if counted(n, k, s, 0, t, d, False) >= wanted)
        (axis,) = regular((n,), (k,), s, "same", d).axes
        assert (axis.lo, axis.hi) == (floor(Fraction(total, 2)), ceil(Fraction(total, 2))), (n, k, s, d)
        assert positions(axis) == windows(n, k, s, axis.lo, axis.hi, d, wanted), (n, k, s, d)


def test_adaptive_axes():
    for n, m in product(range(1, 13), range(1, 16)):
        (axis,) = adaptive((n,), (m,)).axes
        assert (axis.size, positions(axis)) == (n, bins(n, m)), (n, m)
    for n in range(1, 13):
        assert adaptive((n,), (None,)).table() == [[p] for p in range(n)]
        assert whole((n,)).table() == [list(range(n))]


def test_transposed_axes():
    """The axis is as long as the scattered taps reach, less the cropping, plus the output padding."""
    for n, k, s, lo, hi, d in product(range(1, 5), range(1, 4), range(1, 4), range(3), range(3), range(1, 4)):
        scattered = {o * s + d * t for o in range(n) for t in range(k)}
        for extra in range(max(s, d)):
            arguments = (n,), (k,), s, ((lo, hi),), extra, d
            size = max(scattered) + 1 - lo - hi + extra
            if size < 1:
                with pytest.raises(gs.ShapeError, match=f"would have {size} cells"):
                    transposed(*arguments)
                continue
            (axis,) = transposed(*arguments).axes
            assert (axis.size, axis.outputs) == (size, n), arguments
            assert positions(axis) == windows(size, k, s, lo, hi, d, n), arguments
        with pytest.raises(gs.ShapeError, match="output_padding"):
            transposed((n,), (k,), s, ((lo, hi),), max(s, d), d)


# --- products of axes -------------------------------------------------------------------------------------------------


def table_of(sizes, per_axis):
    """Every output's taps from the positions of each axis: real ones numbered in row-major order, None for padding."""
    number = {place: i for i, place in enumerate(product(*map(range, sizes)))}
    return [[number.get(place) for place in product(*spans)] for spans in product(*per_axis)]


def readers_of(table, cells):
    """Who reads each cell, by tap and then by output: all pairs, filtered."""
    taps = max(map(len, table), default=0)
    pairs = [(t, o) for t in range(taps) for o, row in enumerate(table) if t < len(row)]
    return [[(t, o) for t, o in pairs if table[o][t] == cell] for cell in range(cells)]


def assert_is_product(window, sizes, per_axis):
    table = table_of(sizes, per_axis)
    cells = len(list(product(*map(range, sizes))))
    assert (window.rank, window.sizes) == (len(sizes), tuple(sizes))
    assert window.outputs == tuple(map(len, per_axis))
    assert window.table() == table
    assert window.readers() == readers_of(table, cells)


@many
@given(g=geometries(), ceil_mode=st.booleans())
def test_regular_windows_in_several_dimensions(g, ceil_mode):
    axes = list(zip(g.sizes, g.kernel, g.stride, *zip(*g.padding, strict=True), g.dilation, strict=True))
    per_axis = [windows(*axis, counted(*axis, ceil_mode)) for axis in axes]
    assert_is_product(regular(g.sizes, g.kernel, g.stride, g.padding, g.dilation, ceil_mode), g.sizes, per_axis)


@many
@given(axes=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 5)), max_size=4))
def test_adaptive_windows_in_several_dimensions(axes):
    sizes, wanted = [n for n, _ in axes], [m for _, m in axes]
    assert_is_product(adaptive(tuple(sizes), wanted), sizes, [bins(n, m) for n, m in axes])


@many
@given(g=geometries(), data=st.data())
def test_transposed_windows_in_several_dimensions(g, data):
    extra = tuple(data.draw(st.integers(0, max(s, d) - 1)) for s, d in zip(g.stride, g.dilation, strict=True))
    unpadded = (0,) * len(g.sizes)
    axes = list(zip(g.sizes, g.kernel, g.stride, g.dilation, extra, strict=True))
    sizes = tuple(max(o * s + d * t for o in range(n) for t in range(k)) + 1 + e for n, k, s, d, e in axes)
    per_axis = [windows(size, k, s, 0, 0, d, n) for size, (n, k, s, d, _) in zip(sizes, axes, strict=True)]
    assert_is_product(transposed(g.sizes, g.kernel, g.stride, unpadded, extra, g.dilation), sizes, per_axis)


@many
@given(
    size=st.integers(1, 3),
    kernel=st.integers(1, 40),
    stride=st.integers(1, 40),
    dilation=st.integers(1, 40),
    lo=st.integers(-5, 60),
    outputs=st.integers(1, 4),
)
def test_a_window_reads_the_same_cells_settled_or_trimmed(size, kernel, stride, dilation, lo, outputs):
    axis = Regular(size, kernel, stride, lo, 10_000, dilation, outputs)
    canonical, trimmed = axis.canonical(), axis.trimmed()
    assert canonical.kernel == kernel
    assert max(canonical.stride if outputs == 1 else 1, canonical.dilation if kernel == 1 else 1) <= size
    assert max(trimmed.kernel, trimmed.dilation) <= max(4 * size, size + stride * (outputs - 1))
    for o in range(outputs):
        assert [*canonical.positions(o)] == [*axis.positions(o)]
        cells = [p for p in axis.positions(o) if 0 <= p < size]
        assert [p for p in trimmed.positions(o) if 0 <= p < size] == cells


def test_mirrored_windows_are_those_that_read_a_cell():
    for n, k, s, d, (lo, hi) in product((1, 2, 5), (1, 2, 4), (1, 2), (1, 2), product((0, 1, 3, 6), repeat=2)):
        if n + lo + hi > d * (k - 1):
            window = regular((2, n), (1, k), (1, s), (0, (lo, hi)), (1, d))
            mirrored = window.mirrored()
            assert (mirrored is None) == (s > 1 or d > 1 or lo >= k)
            if mirrored is not None:
                read = [[o for o in taps if o is not None] for taps in mirrored.table()]
                assert read == [sorted(o for _, o in pairs) for pairs in window.readers()]
    assert adaptive((3,), (3,)).mirrored() is None


def test_no_axes_is_one_window_on_one_cell():
    for window in (regular((), ()), adaptive((), ()), whole(()), transposed((), (), 1, 0, 0, 1)):
        assert_is_product(window, (), [])


# --- spellings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spelling", "meaning"),
    [
        ({"stride": 2}, {"stride": (2, 2)}),
        ({"stride": None}, {"stride": (2, 3)}),
        ({}, {"stride": (2, 3), "padding": ((0, 0), (0, 0)), "dilation": (1, 1), "ceil_mode": False}),
        ({"dilation": 2}, {"dilation": [2, 2]}),
        ({"padding": 1}, {"padding": ((1, 1), (1, 1))}),
        ({"padding": (1, 2)}, {"padding": ((1, 1), (2, 2))}),
        ({"padding": ((1, 0), 2)}, {"padding": [[1, 0], [2, 2]]}),
        ({"padding": "valid"}, {"padding": 0}),
        ({"padding": "same", "stride": 1}, {"padding": ((0, 1), (1, 1)), "stride": 1}),
    ],
)
def test_spellings_of_the_same_window(spelling, meaning):
    assert regular((6, 7), (2, 3), **spelling) == regular((6, 7), (2, 3), **meaning)


def test_trimmed_windows_read_the_same_cells():
    """Windows and taps that are near, far and further apart than the axis is long; on many axes, some of one cell."""
    sizes, kernels, steps, pads = (1, 2, 5), (1, 2, 4), (1, 2, 5, 30, 31, 60), (0, 1, 3, 30, 61)
    for n, k, d, s, lo, hi in product(sizes, kernels, steps, steps, pads, pads):
        slack = n + lo + hi - d * (k - 1) - 1
        if slack >= 0:
            axis = Regular(n, k, s, lo, hi, d, slack // s + 1)
            short = replace(axis.trimmed(), hi=n + d * k)
            for o in range(axis.outputs):
                real = [[p for p in each.positions(o) if 0 <= p < n] for each in (axis, short)]
                assert real[0] == real[1], (axis, short, o)
