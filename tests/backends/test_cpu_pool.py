"""Compiled max and average pooling means what the specification says: windows, formats, layouts, threads, memory."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gradspec as gs
from backends.pooling import (
    LAYOUTS,
    PULL,
    PUSH,
    REPEATED,
    SPREAD,
    VALUE,
    Arrays,
    Fenced,
    Job,
    Pooling,
    carry_out,
    empty_results,
    everything,
    jobs_of,
    lowered,
    rubbish,
    types_of,
)
from cases import CASES
from gradspec.backends import numpy as numpy_backend
from gradspec.backends.cpu.pool import layout, plan
from gradspec.backends.cpu.pool.arguments import AxisKind, Finish, PoolArguments, Schedule
from gradspec.conformance import meaning
from gradspec.graph.builder import apply
from gradspec.graph.types import DType, TensorType
from gradspec.ops import pool as ops
from gradspec.spec.tensor import Tensor

FLOATS = {t.name: t for t in (gs.f32, gs.f64, gs.f16, gs.bf16)}
INTEGERS = {t.name: t for t in (gs.i8, gs.u8, gs.i32, gs.i64)}


# --- numbers ----------------------------------------------------------------------------------------------------------


def halves(rng: np.random.Generator, shape: Any, dtype: np.dtype) -> np.ndarray:
    """Few dyadic values, zeros of both signs among them: windows have ties, and sums are exact in every format."""
    return (rng.integers(-3, 4, shape) * np.where(rng.random(shape) < 0.5, 0.5, -0.5)).astype(dtype)


def rough(rng: np.random.Generator, shape: Any, dtype: np.dtype) -> np.ndarray:
    """Full significands over many exponents: nearly every sum rounds."""
    return (rng.uniform(-1, 1, shape) * 2.0 ** rng.integers(-6, 7, shape)).astype(dtype)


def special(rng: np.random.Generator, shape: Any, dtype: np.dtype) -> np.ndarray:
    """One cell in five is an infinity, a zero of either sign, or a NaN of its own."""
    infinities_and_zeros = np.asarray([np.inf, -np.inf, 0.0, -0.0]).astype(dtype)
    unlike = np.where(rng.random(shape) < 0.5, rng.choice(infinities_and_zeros, shape), nans(rng, shape, dtype))
    return np.where(rng.random(shape) < 0.2, unlike, halves(rng, shape, dtype))


def nans(rng: np.random.Generator, shape: Any, dtype: np.dtype) -> np.ndarray:
    """Quiet NaNs of either sign with payloads, so that one can be told from another."""
    kind = np.dtype(f"u{dtype.itemsize}")
    quiet = np.asarray(np.nan).astype(dtype).view(kind)
    return (
        quiet
        | rng.integers(0, 8, shape).astype(kind)
        | (rng.integers(0, 2, shape).astype(kind) << (8 * dtype.itemsize - 1))
    ).view(dtype)


def vast(rng: np.random.Generator, shape: Any, dtype: np.dtype) -> np.ndarray:
    """bfloat16 around the largest whose bits are a float16's."""
    found = np.asarray([-np.inf, *(sign * 2.0**n for sign in (-1, 1) for n in (120, 121, 122))]).astype(dtype)
    return np.where(rng.random(shape) < 0.2, rng.choice(found, shape), halves(rng, shape, dtype))


def infinitely_low(rng: np.random.Generator, shape: Any, dtype: np.dtype) -> np.ndarray:
    """Nearly all −∞, which padding must not win against."""
    return np.where(rng.random(shape) < 0.05, halves(rng, shape, dtype), np.asarray(-np.inf).astype(dtype))


def tied(rng: np.random.Generator, shape: Any, dtype: np.dtype) -> np.ndarray:
    """Few numbers, zeros of both signs and infinities among them; the last of all is NaN."""
    found = rng.choice(np.asarray([-np.inf, -1.0, -0.0, 0.0, 1.0, np.inf]).astype(dtype), shape)
    found[(..., *(-1,) * found.ndim)] = np.nan
    return found


def lowest(rng: np.random.Generator, shape: Any, dtype: np.dtype) -> np.ndarray:
    """The least integer everywhere."""
    return np.full(shape, np.iinfo(dtype).min, dtype)


def extremes(rng: np.random.Generator, shape: Any, dtype: np.dtype) -> np.ndarray:
    info = np.iinfo(dtype)
    return rng.choice(np.array([info.min, info.min, info.min + 1, info.max], dtype), shape)


def digits(rng: np.random.Generator, shape: Any, dtype: np.dtype) -> np.ndarray:
    return rng.integers(0, 4, shape).astype(dtype)


Numbers = Callable[[np.random.Generator, Any, np.dtype], np.ndarray]


def drawn(pooling: Pooling, numbers: Numbers, others: Numbers | None = None) -> dict[str, np.ndarray]:
    """``x`` of some numbers, and tangents and cotangents of the same or others."""
    rng, types = np.random.default_rng(prod(pooling.x.shape) + len(numbers.__name__)), types_of(pooling)
    kinds = {"x": numbers, "dx": others or numbers, "g": others or numbers}
    return {name: kind(rng, types[name].shape, types[name].dtype.numpy) for name, kind in kinds.items()}


# --- what is right ----------------------------------------------------------------------------------------------------


def spec_winners(pooling: Pooling, x: np.ndarray) -> np.ndarray:
    """By the specification, cell by cell."""
    numbers = x.ravel().tolist() if x.dtype.kind in "iu" else x.astype(np.float64).ravel().tolist()
    _, indices = ops.MAX_POOL.spec(replace(pooling.attrs, return_indices=True), Tensor(x.shape, numbers))
    return np.asarray(indices.cells, np.int64).reshape(indices.shape)


def numpy_winners(pooling: Pooling, x: np.ndarray) -> np.ndarray:
    """By the NumPy backend, for arrays that the specification would take long for."""
    return numpy_backend.apply(ops.MAX_POOL, replace(pooling.attrs, return_indices=True), x)[1]


def planes(pooling: Pooling, array: np.ndarray) -> np.ndarray:
    rank = pooling.attrs.window(pooling.x).rank
    at = array.ndim - rank
    return array.reshape(prod(array.shape[:at]), prod(array.shape[at:]))


def gathered(pooling: Pooling, array: np.ndarray, winners: np.ndarray) -> np.ndarray:
    chosen = planes(pooling, winners)
    found = np.take_along_axis(planes(pooling, array), np.maximum(chosen, 0), axis=-1)
    return np.where(chosen >= 0, found, np.zeros((), array.dtype)).reshape(winners.shape)


def received(pooling: Pooling, g: np.ndarray, winners: np.ndarray) -> np.ndarray:
    """What cells receive from the windows that they won, in float64."""
    sent, chosen = planes(pooling, g).astype(np.float64), planes(pooling, winners)
    total = np.zeros((len(sent), prod(pooling.attrs.window(pooling.x).sizes)))
    for plane, places, values in zip(total, chosen, sent, strict=True):
        np.add.at(plane, places[places >= 0], values[places >= 0])
    return total.reshape(pooling.x.shape)


def bits(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).view(f"u{array.itemsize}").reshape(array.shape)


def assert_same_bits(found: np.ndarray, wanted: np.ndarray, *context: Any) -> None:
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    wrong = np.argwhere(bits(found) != bits(wanted))
    assert not len(wrong), (*context, wrong[:3].tolist(), found[tuple(wrong[0])], wanted[tuple(wrong[0])])


def assert_same_numbers(found: np.ndarray, wanted: np.ndarray, *context: Any) -> None:
    """But for the signs of zeros and NaNs, and the payloads of NaNs."""
    assert found.shape == wanted.shape
    if found.dtype.kind not in "iu":
        found, wanted = found.astype(np.float64), wanted.astype(np.float64)
    wrong = np.argwhere((found != wanted) & ((found == found) | (wanted == wanted)))
    assert not len(wrong), (*context, wrong[:3].tolist(), found[tuple(wrong[0])], wanted[tuple(wrong[0])])


def assert_maxima(pooling: Pooling, job: Job, arrays: Arrays, found: Arrays, winners: np.ndarray) -> None:
    """With winners bit for bit, without them the same number; of sums of cotangents only that no zero is negative."""
    context = pooling, job
    value = gathered(pooling, arrays["x"], winners)
    if job == VALUE:
        assert_same_numbers(found["y"], value, *context)
    elif "y" in found:
        assert_same_bits(found["y"], value, *context, "y")
    if "indices" in found:
        assert_same_bits(found["indices"], winners, *context, "indices")
    if "dy" in found:
        assert_same_bits(found["dy"], gathered(pooling, arrays["dx"], winners), *context, "dy")
    if "ct" in found:
        assert not np.signbit(found["ct"][found["ct"] == 0]).any(), (*context, "sums begin at 0")


def meant(pooling: Pooling, mode: str, *arrays: np.ndarray) -> Any:
    """The oracle's meaning of a derivative, or of an average."""
    attrs, name = pooling.attrs, f"{'max' if pooling.is_max else 'avg'}_pool{mode}"
    if attrs.output_size is not None:
        return meaning(f"adaptive_{name}", *arrays, attrs.output_size)
    unsaid = {"output_size", "ties", "return_indices"}
    return meaning(name, *arrays, **{key: value for key, value in vars(attrs).items() if key not in unsaid})


def assert_permitted(exact: Any, found: np.ndarray, *context: Any) -> None:
    judgement = exact.judge(found)
    assert judgement.passed, (*context, judgement.failures())


def assert_meant(pooling: Pooling, arrays: Arrays, count: int = 1) -> None:
    """Every job: selections exactly, sums as far as the certified tolerance allows, few hits rounded once."""
    if not pooling.is_max:
        for job, found in everything(pooling, arrays, count):
            exact = (
                meant(pooling, "", arrays["x"]) if job == VALUE else meant(pooling, "_vjp", arrays["x"], arrays["g"])
            )
            assert_permitted(exact, *found.values(), pooling, job)
        return
    winners, pulled = spec_winners(pooling, arrays["x"]), None
    for job, found in everything(pooling, arrays, count):
        assert_maxima(pooling, job, arrays, found, winners)
        if pulled is not None and "ct" in found:
            assert_same_bits(found["ct"], pulled, pooling, job, "with and without a tape, with a value and alone")
        elif "ct" in found:
            pulled = found["ct"]
            exact = meant(pooling, "_vjp", arrays["x"], arrays["g"])
            assert_permitted(exact, pulled, pooling, job)
            few = received(pooling, np.ones(winners.shape), winners) <= 2
            assert_same_numbers(pulled[few], exact.rounded(pooling.x.dtype.name)[few], pooling, job)


# --- the table --------------------------------------------------------------------------------------------------------


def pooling_of(case: Any, dtype: DType) -> Pooling:
    attributes = {name: float(v) if name == "divisor_override" else v for name, v in case.attributes.items()}
    graph = gs.trace(lambda x: getattr(gs, case.operator)(x, **attributes), dtype[case.shapes[0]])
    return Pooling(graph.nodes[0].attrs, graph.inputs[0].type)


TABLE = [
    c for c in CASES if c.operator.endswith(("max_pool", "avg_pool")) and not c.needs_exp and c.ties in ("first", None)
]
MAXIMA = [c for c in TABLE if c.ordered]


@pytest.mark.parametrize("dtype", FLOATS.values(), ids=str)
@pytest.mark.parametrize("case", TABLE, ids=lambda case: case.id)
def test_kernels_are_the_specification(case, dtype):
    pooling = pooling_of(case, dtype)
    for numbers in (rough, special, infinitely_low) if pooling.is_max else (rough, special):
        assert_meant(pooling, drawn(pooling, numbers))


@pytest.mark.rows(1)
@pytest.mark.parametrize("dtype", INTEGERS.values(), ids=str)
@pytest.mark.parametrize("case", MAXIMA, ids=lambda case: case.id)
def test_integers_are_pooled_too(case, dtype):
    pooling = pooling_of(case, dtype)
    for numbers in (lowest, extremes, digits):
        assert_meant(pooling, drawn(pooling, numbers))


# --- every path through the kernels -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Path:
    """A geometry, and what shows that it goes where it is meant to go."""

    id: str
    attrs: ops.MaxPool | ops.AvgPool
    shape: tuple[int, ...]
    takes: Callable[[PoolArguments], bool]
    job: Job = VALUE
    dtype: DType = gs.f32
    layout: str = "C"
    """How ``x``, or the cotangent that is spread, is laid out,"""
    results: str = "C"
    """and what comes out."""

    def of(self, dtype: DType) -> Pooling:
        return Pooling(self.attrs, dtype[self.shape])

    def arrays(self, dtype: DType, numbers: Numbers = halves) -> dict[str, np.ndarray]:
        """Half-integers as tangents and cotangents, whose sums are exact."""
        pooling = self.of(dtype)
        return {
            name: laid_out(array, self.layout)
            for name, array in drawn(pooling, numbers, halves if dtype.name in FLOATS else None).items()
        }


def laid_out(array: np.ndarray, layout: str) -> np.ndarray:
    """The same numbers in another layout; where cells share memory, the first of them everywhere."""
    form = {**LAYOUTS, **REPEATED}[layout]
    parent = np.empty(form.parent(array.shape), array.dtype)
    if layout in REPEATED:
        parent[...] = array[tuple(slice(0, n) for n in parent.shape)]
    else:
        form.view(parent, array.shape)[...] = array
    return form.view(parent, array.shape)


def sliding(
    kernel: Any, stride: Any = 1, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> dict[str, Any]:
    """Fields of a record of windows; one number stands for all axes."""
    rank = len(kernel)
    steps = {"stride": stride, "dilation": dilation}
    pads = padding if isinstance(padding, tuple) else ((padding, padding),) * rank
    return {
        "kernel_size": kernel,
        **{name: (n,) * rank if isinstance(n, int) else n for name, n in steps.items()},
        "padding": tuple((p, p) if isinstance(p, int) else p for p in pads),
        "ceil_mode": ceil_mode,
    }


def largest(kernel: Any, *settings: Any) -> ops.MaxPool:
    return ops.MaxPool(**sliding(kernel, *settings))


def mean(kernel: Any, *settings: Any, by: Any = None, cells: bool = False) -> ops.AvgPool:
    return ops.AvgPool(**sliding(kernel, *settings), count_include_pad=not cells, divisor_override=by)


def largest_bins(*outputs: int) -> ops.MaxPool:
    return ops.MaxPool(output_size=outputs)


def mean_bins(*outputs: int) -> ops.AvgPool:
    return ops.AvgPool(output_size=outputs)


def is_plain(b: PoolArguments) -> bool:
    """Windows put together row by row, from taps."""
    return not any(axis.scans or axis.schedule for axis in b.axes)


def scans(b: PoolArguments) -> bool:
    """Prefixes and suffixes of rows, or runs of cells that are doubled."""
    return b.axes[0].scans


def is_staged(b: PoolArguments) -> bool:
    """Planes of the last two axes, copied first."""
    return b.is_staged


def converts_rows(b: PoolArguments) -> bool:
    """Many rows at once of numbers that are not computed with as they are stored, and not staged."""
    return b.axes[0].schedule == Schedule.ROWS and not b.is_direct and not b.is_staged


def is_transposed(b: PoolArguments) -> bool:
    """Small planes side by side."""
    return b.is_transposed


def keeps_rows(b: PoolArguments) -> bool:
    """Small windows whose rows are searched together and kept for the next."""
    return b.axes[0].schedule == Schedule.WINNER_ROWS


def gathers(b: PoolArguments) -> bool:
    """Cells add up what the windows that cover them send."""
    return b.gathering.is_used


def joins_pairs(b: PoolArguments) -> bool:
    """Slabs of two axes at once."""
    return b.axes[0].schedule == Schedule.PAIRS


def pulls_runs(b: PoolArguments) -> bool:
    """Neighbours hear where they lie from windows that were won there."""
    return b.gathering.in_runs


def finds_in_runs(b: PoolArguments) -> bool:
    """Small windows whose taps are runs of neighbours, joined at once."""
    return b.axes[0].schedule == Schedule.RUNS


def sends_at_once(b: PoolArguments) -> bool:
    """Cotangents are sent to rows of cells as winners are found, row by row."""
    return b.gathering.chunk.rows > 0 and not b.gathering.chunk.is_run


def sends_runs(b: PoolArguments) -> bool:
    """The same for rows that are one run."""
    return b.gathering.chunk.rows > 0 and b.gathering.chunk.is_run


def expands(b: PoolArguments) -> bool:
    """Cells along the last axis find the windows that cover them."""
    return b.axes[1].kind == EXPANDING


def has_longer_planes(b: PoolArguments) -> bool:
    """Planes that follow each other are one."""
    return b.leads[-1].size == 32


def has_planes_of_their_own(b: PoolArguments) -> bool:
    return b.leads[-1].size == 64


SLIDING, BINS, EXPANDING = AxisKind
LAST = {"layout": "channels last"}
ALL_LAST = {"layout": "channels last", "results": "channels last"}
PLANES = [(1, 1), (9, 3, 2), (2, 3, 5, 7), (37, 8, 9)]

CONVERTED = [
    *((3, s, "C", converts_rows) for s in (1, 2)),
    (2, 2, "padded rows", converts_rows),
    (3, 1, "padded rows", is_staged),
    (3, 2, "reversed", is_staged),
    (5, 3, "C", is_staged),
]

LONGER = [
    ((4,), 4, (2, 64, 24)),
    ((2,), 3, (64, 9)),
    ((2, 2), 2, (64, 4, 10)),
    ((2, 3), (2, 1), (4, 32, 6, 9)),
    ((2, 2, 2), 2, (64, 1, 2, 4, 6)),
]

MAX_PATHS = [
    Path("taps", largest((3, 4), (3, 1), 1), (2, 10, 41), is_plain, PUSH),
    Path("taps, dilated", largest((3, 3), (1, 1), 2, (3, 2)), (2, 13, 37), is_plain),
    Path("taps of four at stride four", largest((4, 4), (4, 4)), (2, 9, 70), lambda b: b.axes[1].stride == 4, PUSH),
    Path("fours in a row", largest((4,), 4), (3, 70), lambda b: len(b.axes) == 1, PUSH),
    Path(
        "long rows of far strides",
        largest((2, 9), (3, 8)),
        (5, 60),
        lambda b: b.axes[1].kernel >= 8 and not b.axes[1].scans,
    ),
    Path("row doubled", largest((9,), 1, ((3, 5),)), (2, 45), scans, PUSH),
    Path("row doubled, strided and dilated", largest((11,), 2, 4, 2), (3, 70), scans, PUSH),
    Path("row doubled, far strides", largest((17,), 4, 3), (3, 90), scans, PULL),
    Path("prefixes and suffixes", largest((9, 2), 1, ((4, 3), 0)), (30, 21), scans, PUSH),
    Path("prefixes, strided", largest((13, 2), (2, 1), ((0, 9), 0)), (40, 9), scans, PULL),
    Path("prefixes, dilated", largest((8, 1), 1, ((5, 8), 0), (3, 1)), (41, 9), scans, PULL),
    Path("prefixes of short axes", largest((20, 2), 1, ((9, 9), 0)), (5, 9), scans, PUSH),
    Path(
        "prefixes on three axes",
        largest((9, 8, 8), 1, 3),
        (14, 13, 15),
        lambda b: b.axes[0].scans and b.axes[1].scans,
        PULL,
    ),
    *(
        Path(
            f"planes of {k} rows", largest((k, 3), (2, 1), 1), (2, 11, 43), lambda b: b.axes[0].schedule == Schedule.ROW
        )
        for k in (1, 2, 3, 4, 5, 6)
    ),
    Path(
        "planes, doubled",
        largest((3, 9), (2, 1), 1),
        (2, 11, 43),
        lambda b: b.axes[0].schedule == Schedule.ROW and b.axes[1].scans,
    ),
    *(
        Path(
            f"planes of 3 × 3, {pads}",
            largest((3, 3), 1, (1, pads)),
            (3, 9, 37),
            lambda b: b.axes[0].schedule == Schedule.ROWS,
        )
        for pads in ((1, 1), (0, 2), (2, 0))
    ),
    *(
        Path(
            f"planes of {k} × {k} by two",
            largest((k, k), 2, ((3, 1), (2, 5))),
            (9, 40),
            lambda b: b.axes[0].schedule == Schedule.ROWS,
        )
        for k in (2, 3)
    ),
    *(
        Path(f"winners in planes of {k} × {k} by {s}", largest((k, k), s, pads), (2, 9, 41), keeps_rows, PULL)
        for k, s, pads in ((2, 2, 0), (3, 2, 1), (3, 2, ((1, 2), (4, 3))), (3, 1, 1), (3, 1, ((3, 0), (0, 4))))
    ),
    Path(
        "winners in planes of space",
        largest((2, 3, 3), (2, 1, 1), 1),
        (2, 5, 6, 21),
        lambda b: b.axes[1].schedule == Schedule.WINNER_ROWS,
        PUSH,
    ),
    Path(
        "planes of space",
        largest((2, 3, 3), (2, 1, 1), 1),
        (2, 5, 6, 21),
        lambda b: b.axes[1].schedule == Schedule.ROWS and len(b.axes) == 3,
    ),
    Path("small planes", largest((3, 3), 1, 1), (3, 3, 1, 2), is_plain),
    *(
        Path(
            f"slabs of {k} × 2 × 2, {pads}",
            largest((k, 2, 2), (k, 2, 2), pads),
            (2, 8, 6, 21),
            lambda b: b.axes[0].schedule == Schedule.SLABS,
        )
        for k, pads in ((2, 0), (3, 0), (5, 1))
    ),
    Path("slabs of slabs", largest((2, 2, 2, 3), 3), (5, 6, 4, 9), lambda b: b.axes[1].schedule == Schedule.SLABS),
    *(
        Path(f"slabs of pairs, {cells}", largest((2,) * 4, 2), (2, *cells), joins_pairs)
        for cells in ((4, 6, 8, 10), (5, 6, 8, 34))
    ),
    *(
        Path(f"slabs of uneven pairs, {cells}", largest((2,) * 4, 2), (2, *cells), lambda b: not joins_pairs(b))
        for cells in ((4, 7, 8, 10), (4, 6, 9, 10), (4, 6, 8, 11))
    ),
    Path(
        "slabs of slabs of pairs",
        largest((2,) * 5, 2),
        (4, 2, 6, 4, 10),
        lambda b: b.axes[1].schedule == Schedule.PAIRS,
    ),
    Path("slabs of pairs with an end", largest((2,) * 4, 2, 0, 1, True), (2, 5, 6, 8, 10), joins_pairs),
    Path("tiles on one axis", largest((3,), 1, 1), (5000,), lambda b: b.bands == 2 and b.tile < 2500, PULL),
    Path("tiles of far strides", largest((3,), 9), (2, 19000), lambda b: b.tile * 9 < 19000, PUSH),
    Path("tiles on two axes", largest((2, 3), 1, 1), (3, 4200), lambda b: b.tile < 4200, PUSH),
    Path(
        "tiles in planes",
        largest((2, 3), (2, 1), 1),
        (5, 4200),
        lambda b: b.tile < 4200 and b.axes[0].schedule == Schedule.ROW,
    ),
    Path("tiles doubled", largest((2, 12), 1, 1), (3, 4200), lambda b: b.tile < 4200 and b.axes[1].scans, PULL),
    Path("bands that overlap", largest((13, 3), (2, 3), 6), (1, 257, 30), lambda b: b.bands > 8, PULL),
    Path("bands of prefixes", largest((9, 3), 1, 4), (1, 200, 11), lambda b: b.bands > 8 and b.axes[0].scans, PULL),
    Path("bands of space", largest((3, 2, 2), 1, 1), (1, 40, 7, 9), lambda b: b.bands > 4 and len(b.axes) == 3, PULL),
    Path(
        "dilated bands",
        largest((3, 2), 1, 2, (3, 2)),
        (1, 150, 9),
        lambda b: b.bands > 8 and b.axes[0].dilation > 1,
        PULL,
    ),
    Path("bands of bins", largest_bins(70, 3), (1, 99, 8), lambda b: b.bands > 4 and b.axes[0].kind == BINS, PULL),
    Path("windows apart", largest((2, 3), (3, 4)), (2, 9, 23), lambda b: b.are_disjoint, PULL),
    *(
        Path(f"windows side by side in {shape}", largest((2, 2), 2), shape, lambda b: b.writes_all_cells, PULL)
        for shape in ((2, 9, 42), (3, 2, 2), (8, 14))
    ),
    Path("windows that end before the row", largest((2, 2), 2), (2, 9, 43), lambda b: not b.writes_all_cells, PULL),
    *(
        Path(f"rows that hear of {shape} by {s}, {pads}", largest((3, 3), s, pads), shape, takes, PULL)
        for shape, s, pads, takes in (
            ((2, 9, 16), 1, 1, sends_runs),
            ((2, 9, 17), 1, 1, sends_runs),
            ((2, 8, 42), 2, 1, sends_runs),
            ((2, 7, 32), 2, ((1, 2), (1, 0)), sends_runs),
            ((2, 9, 15), 1, 1, sends_at_once),
            ((2, 9, 23), 1, 0, sends_at_once),
            ((2, 8, 41), 2, 1, sends_at_once),
            ((2, 3, 3), 2, 0, sends_at_once),
            ((2, 9, 21), 1, 2, sends_at_once),
            ((1, 70, 20), 1, 1, lambda b: sends_runs(b) and b.bands > 4),
        )
    ),
    Path("cells that are gathered in rows", largest((4, 3), (1, 2), 1), (2, 9, 20), gathers, PULL),
    Path("cells that are gathered by three", largest((2, 5), (2, 3), ((1, 0), (2, 1))), (2, 9, 20), gathers, PULL),
    Path(
        "windows that end below the plane",
        largest((2, 2), 2, ((0, 1), (0, 0))),
        (2, 9, 42),
        lambda b: not b.writes_all_cells,
        PULL,
    ),
    Path(
        "windows of padding",
        largest((2, 2), 1, ((3, 2), (0, 3))),
        (3, 5, 12),
        lambda b: b.has_holes and b.finish == Finish.BY_SLAB,
    ),
    Path(
        "no hole and nothing to do", largest((2, 2)), (3, 5, 12), lambda b: b.finish == Finish.AT_ONCE and b.is_direct
    ),
    Path(
        "classes without cells",
        largest((1, 3), (2, 5), ((3, 1), 0), (4, 3)),
        (3, 17),
        lambda b: b.axes[0].dilation > b.axes[0].size,
    ),
    Path(
        "side by side", largest((3, 2), (2, 1), 1, (1, 2)), (2, 40, 6, 7), lambda b: b.inner_total == 40, PULL, **LAST
    ),
    Path("side by side in blocks", largest((3, 2), (2, 1), 1), (2, 150, 6, 7), lambda b: b.blocks == 3, PULL, **LAST),
    Path("neighbours, gathered at stride 1", largest((3, 3), 1, 1), (2, 9, 8, 7), gathers, PULL, **LAST),
    *(
        Path(
            f"neighbours, gathered, {kernel} by {stride}",
            largest(kernel, stride, pads),
            (2, 11, 9, 10),
            gathers,
            PULL,
            **LAST,
        )
        for kernel, stride, pads in (
            ((3, 3), 2, 1),
            ((3, 3), (1, 2), ((2, 0), (0, 2))),
            ((2, 2), 2, 0),
            ((1, 1), 2, 0),
            ((4, 4), (3, 1), 2),
            ((2, 7), (2, 3), ((1, 0), (3, 2))),
        )
    ),
    Path("neighbours, scattered", largest((2, 2), 3), (2, 11, 9, 10), lambda b: not gathers(b), PULL, **LAST),
    *(
        Path(f"runs, {k} by {s}", largest((k, k), s, pads), (2, c, *cells), pulls_runs, PULL, **ALL_LAST)
        for k, s, pads, c, cells in (
            (2, 2, 0, 20, (6, 8)),
            (2, 2, ((1, 0), (0, 1)), 5, (5, 7)),
            (2, 1, ((1, 0), 0), 20, (5, 4)),
            (3, 2, 1, 37, (9, 10)),
            (3, 2, ((0, 2), (2, 0)), 2, (8, 7)),
            (3, (2, 1), ((2, 1), 1), 70, (7, 6)),
            (3, 1, 1, 9, (7, 5)),
            (3, 1, ((2, 0), (0, 2)), 16, (2, 3)),
            (3, 3, 1, 9, (9, 10)),
            (2, 2, 0, 9, (9, 7)),
        )
    ),
    Path(
        "runs in bands",
        largest((3, 3), 2, 1),
        (1, 40, 70, 5),
        lambda b: pulls_runs(b) and b.bands > 4,
        PULL,
        **ALL_LAST,
    ),
    Path("runs of one bin", largest_bins(1, 1), (2, 40, 5, 7), lambda b: b.reads_runs, PULL, **ALL_LAST),
    Path("runs of bins", largest_bins(3, 4), (2, 40, 7, 9), lambda b: b.reads_runs, PULL, **ALL_LAST),
    Path("runs, dilated", largest((3, 7), (2, 3), 1, (1, 2)), (2, 9, 8, 30), lambda b: b.reads_runs, PULL, **ALL_LAST),
    *(
        Path(
            f"runs in values, {k} by {s}",
            largest((k, k), s, pads),
            (2, 20, 9, 10),
            finds_in_runs,
            **ALL_LAST,
        )
        for k, s, pads in ((2, 2, 0), (2, (3, 2), ((1, 0), 1)), (3, 2, 1), (3, (2, 4), ((0, 2), (2, 1))))
    ),
    Path(
        "runs in space",
        largest((2, 3, 3), 2, 1),
        (2, 9, 5, 6, 7),
        lambda b: b.axes[1].schedule == Schedule.RUNS,
        **ALL_LAST,
    ),
    Path(
        "neighbours, gathered in bands",
        largest((3, 3), 2, 1),
        (1, 40, 70, 5),
        lambda b: gathers(b) and b.bands > 4,
        PULL,
        **LAST,
    ),
    Path("neighbours, gathered in space", largest((2, 2, 3), (1, 2, 2), 1), (2, 9, 5, 6, 7), gathers, PULL, **LAST),
    Path("neighbours, gathered on one axis", largest((3,), 2, 1), (2, 9, 30), gathers, PULL, **LAST),
    Path(
        "neighbours, sent",
        largest((5, 6), (1, 2), 2),
        (2, 8, 9, 12),
        lambda b: b.inner == 8 and not gathers(b),
        PULL,
        **LAST,
    ),
    Path("neighbours, carried", largest((3, 3), 2, 1), (2, 40, 9, 11), finds_in_runs, PUSH, **LAST),
    Path(
        "side by side in bands",
        largest((5, 3), 1, 2),
        (1, 9, 60, 7),
        lambda b: b.bands > 4 and b.inner == 9,
        PULL,
        **LAST,
    ),
    Path("side by side on one axis", largest((3,), 2, 1), (2, 9, 30), lambda b: b.inner == 9, PUSH, **LAST),
    Path(
        "prefixes side by side",
        largest((9, 9), 1, 4),
        (2, 5, 20, 21),
        lambda b: b.axes[1].scans and b.inner == 5,
        PULL,
        **LAST,
    ),
    Path("bins", largest_bins(5, 3), (2, 7, 10), lambda b: b.axes[0].kind == b.axes[1].kind == BINS, PULL),
    Path(
        "more bins than cells",
        largest_bins(9, 5),
        (2, 4, 2),
        lambda b: b.axes[0].kernel == 2 and b.axes[1].kernel == 2,
        PULL,
    ),
    Path(
        "bins side by side",
        largest_bins(5, 3),
        (2, 6, 7, 10),
        lambda b: b.axes[0].kind == BINS and b.inner == 6,
        PULL,
        **LAST,
    ),
    Path(
        "bins that divide", largest_bins(3, 2), (2, 9, 32), lambda b: b.axes[0].kind == b.axes[1].kind == SLIDING, PUSH
    ),
    *(
        Path(f"many neighbours {k} by {s}", largest(k, s), (8, 130, 5, 6), lambda b: b.inner == 130, PULL, **LAST)
        for k, s in (((3, 2), 1), ((2, 2), 2), ((5, 6), 1))
    ),
    Path("many planes of bins", largest_bins(7, 5), (256, 14, 14), lambda b: b.is_transposed and b.inner == 32, PULL),
    *(
        Path(f"planes of bins, {what} of {n}", largest_bins(*bins), (n, *cells), is_transposed, job)
        for n, what, bins, cells in (
            (4, "planes", (5, 3), (7, 10)),
            (7, "more bins than cells", (9, 5), (4, 3)),
            (5, "rows", (7,), (19,)),
            (6, "spaces", (4, 2, 5), (5, 4, 14)),
            (70, "planes that divide", (4, 5), (8, 14)),
            (37, "large planes", (13, 9), (20, 32)),
        )
        for job in (VALUE, PUSH, PULL)
    ),
    Path("few planes of bins", largest_bins(5, 3), (3, 7, 10), lambda b: not b.is_transposed, PULL),
    Path("long bins in rows of planes", largest_bins(4, 2), (2, 8, 45), lambda b: b.axes[0].schedule == Schedule.ROW),
    Path("long bins", largest_bins(2), (3, 45), lambda b: b.axes[0].kind == BINS and b.axes[0].kernel > 16),
    Path("bins in pieces", largest_bins(1), (2, 9000), lambda b: b.tile_room < 9000, PULL),
    *(Path(f"whole planes {shape}", largest_bins(1, 1), shape, lambda b: b.is_whole) for shape in PLANES),
    Path("whole planes of bfloat16", largest_bins(1, 1), (37, 8, 9), lambda b: b.is_whole, dtype=gs.bf16),
    Path("whole axes merged", largest_bins(1, 1, 1), (3, 5, 6, 7), lambda b: len(b.axes) == 1, PULL),
    Path("whole axes apart", largest_bins(1, 1), (3, 5, 6), lambda b: len(b.axes) == 2, PULL, layout="sliced"),
    Path("a full table", largest((64, 64)), (70, 66), lambda b: b.table_room == 4096 and b.tape_bytes == 2, PULL),
    Path("no table", largest((65, 65)), (70, 67), lambda b: b.table_room == 0 and b.tape_bytes == 2, PULL),
    Path("winners of one byte", largest((5, 51)), (6, 53), lambda b: b.tape_bytes == 1, PULL),
    Path("winners of two bytes", largest((4, 64)), (6, 66), lambda b: b.tape_bytes == 2, PULL),
    Path("winners of four bytes", largest_bins(1, 1), (257, 256), lambda b: b.tape_bytes == 4, PULL),
    Path("most short winners", largest((127, 129), 16, (63, 64)), (70, 72), lambda b: b.table_room == 0, PUSH, gs.f16),
    Path("rank 4", largest((2, 2, 2, 3), (1, 2, 1, 2), 1), (4, 5, 4, 9), lambda b: len(b.axes) == 4, PULL),
    *(
        Path(
            f"planes of {k} by {s} that follow each other to {job.gives}", largest(k, s), shape, has_longer_planes, job
        )
        for k, s, shape in LONGER
        for job in (VALUE, PUSH, PULL)
    ),
    Path("planes that go on after their windows", largest((2, 2), 2), (64, 5, 6), has_planes_of_their_own, PULL),
    Path("planes with gaps", largest((2, 2), 2), (64, 4, 6), has_planes_of_their_own, PULL, layout="sliced"),
    Path("rank 0", largest(()), (2, 3), lambda b: len(b.axes) == 1 and b.axes[0].size == 1, PULL),
]

AVERAGE_PATHS = [
    Path("sums doubled", mean((13,), 1, 4), (2, 45), scans),
    Path("sums of prefixes", mean((9, 2), 1, 4), (30, 21), scans),
    Path("sums in planes", mean((3, 3), 1, 1), (2, 9, 37), lambda b: b.axes[0].schedule == Schedule.ROWS),
    Path("not direct", mean((3, 2), 1), (2, 9, 21), lambda b: not b.is_direct, dtype=gs.bf16),
    Path("sums of slabs", mean((2, 2, 2), 2), (2, 8, 6, 21), lambda b: b.axes[0].schedule == Schedule.SLABS),
    Path("sums of slabs of pairs", mean((2,) * 4, 2), (2, 4, 6, 8, 10), joins_pairs),
    *(
        Path(
            f"sums in planes of {k} × {k} by {s}, converted, {rows}",
            mean((k, k), s, 1),
            (2, 9, 37),
            takes,
            VALUE,
            gs.f16,
            rows,
        )
        for k, s, rows, takes in CONVERTED
    ),
    Path("sums in planes by two", mean((3, 3), 2, 1), (2, 9, 37), lambda b: b.axes[0].schedule == Schedule.ROWS),
    *(
        Path(
            f"sums in planes of space by {s}",
            mean((2, 3, 3), s, 1),
            (2, 5, 6, 21),
            lambda b: b.axes[1].schedule == Schedule.ROWS,
        )
        for s in (1, 2)
    ),
    Path("sums in rows of planes", mean((5, 2), (2, 1), 1), (2, 9, 37), lambda b: b.axes[0].schedule == Schedule.ROW),
    Path(
        "sums in bins", mean_bins(5, 3), (2, 7, 10), lambda b: b.axes[0].kind == BINS and b.axes[0].counted is not None
    ),
    Path(
        "sums in bins of one size",
        mean_bins(2, 2),
        (2, 7, 5),
        lambda b: b.axes[0].kind == BINS and b.axes[0].counted is None,
    ),
    *(
        Path(f"sums in planes of {bins}", mean_bins(*bins), (n, *cells), is_transposed, job)
        for n, bins, cells in ((4, (5, 3), (7, 10)), (70, (4, 5), (8, 14)), (9, (5, 4, 2), (2, 9, 5)), (5, (7,), (19,)))
        for job in (VALUE, SPREAD)
    ),
    Path("sums of few planes", mean_bins(5, 3), (2, 7, 10), lambda b: not b.is_transposed),
    *(
        Path(f"{dtype} taps of {k} converted as read", mean((k,), s, low), (3, 70), is_plain, dtype=dtype)
        for dtype in (gs.bf16, gs.f16)
        for k, s, low in ((4, 4, 0), (2, 2, 1), (3, 5, 1), (7, 9, 3), (11, 13, 2))
    ),
    Path("sums in long bins", mean_bins(4, 2), (2, 8, 45), lambda b: b.axes[0].schedule == Schedule.ROW),
    *(Path(f"sums of whole planes {shape}", mean_bins(1, 1), shape, lambda b: b.is_whole) for shape in PLANES),
    Path("sums of everything", mean_bins(1, 1), (2, 70, 130), lambda b: len(b.axes) == 1 and b.tile_room < 9100),
    Path("sums side by side", mean((3, 2), (2, 1), 1, cells=True), (2, 70, 6, 7), lambda b: b.blocks == 2, **LAST),
    Path("counted cells", mean((3, 2), (2, 1), 1, cells=True), (2, 9, 12), lambda b: b.shares is not None),
    Path(
        "too many counts",
        mean((3, 2), 1, 1, cells=True),
        (70, 70),
        lambda b: b.axes[0].counted is not None and b.shares is None,
    ),
    Path("counted taps", mean((3, 2), (2, 3), 1, 1, True), (2, 8, 12), lambda b: b.shares is not None),
    Path("holes divided", mean((2, 2), 1, ((3, 2), (0, 3)), cells=True), (3, 5, 12), lambda b: b.has_holes),
    Path("spread at stride 1", mean((3, 2), 1, 1, cells=True), (2, 9, 21), lambda b: b.axes[0].kind == SLIDING, SPREAD),
    Path("spread at stride 1 in planes", mean((3, 3), 1, 1, cells=True), (2, 9, 21), is_staged, SPREAD),
    *(
        Path(
            f"spread of {k} by {s} in rows",
            mean((k, k), s, pads),
            (3, 8, 44),
            lambda b: b.axes[0].schedule == Schedule.TRANSPOSE_ROWS,
            SPREAD,
        )
        for k, s, pads in ((2, 2, 0), (2, 2, 1), (3, 2, 1), (4, 2, 1), (4, 4, 0), (3, 3, 1), (2, 3, 0), (5, 3, 2))
    ),
    Path(
        "spread in rows of space",
        mean((2, 2, 2), 2),
        (2, 4, 6, 20),
        lambda b: b.axes[1].schedule == Schedule.TRANSPOSE_ROWS,
        SPREAD,
    ),
    Path("spread, doubled", mean((9, 9), 1, 4), (2, 30, 31), lambda b: b.axes[0].scans and b.axes[1].scans, SPREAD),
    *(
        Path(
            f"spread of {k} by 2 from {low}",
            mean((k, k), 2, ((low, 1), (low, 2)), cells=True),
            (3, 9, 43),
            expands,
            SPREAD,
        )
        for k, low in ((1, 0), (1, 1), (2, 0), (2, 1), (3, 0), (3, 1), (5, 2))
    ),
    Path("spread of short rows", mean((3, 3), 2, 1), (2, 5, 3), expands, SPREAD),
    Path("spread with gaps", mean((2, 3), (3, 5)), (2, 11, 33), expands, SPREAD),
    Path(
        "spread, dilated",
        mean((3, 3), 2, 2, 3),
        (2, 13, 23),
        lambda b: b.axes[1].kind == EXPANDING and b.axes[1].dilation == 3,
        SPREAD,
    ),
    Path(
        "spread, a common factor",
        mean((8, 4), (2, 6), ((2, 0), 3), (2, 4)),
        (28, 41),
        lambda b: b.axes[0].slots == 9,
        SPREAD,
    ),
    Path(
        "spread over holes",
        mean((1, 4), (1, 8), ((2, 0), (4, 1)), (3, 1), cells=True),
        (3, 3, 11),
        lambda b: not b.has_holes,
        SPREAD,
    ),
    Path("spread to bins", mean_bins(5, 3), (2, 7, 10), lambda b: b.axes[0].kind == BINS, SPREAD),
    Path("spread to overlapping bins", mean_bins(1, 2), (2, 3, 5), lambda b: b.axes[1].kernel == 2, SPREAD),
    Path("spread to single cells", mean_bins(2, 1, 5), (2, 1, 1, 2), lambda b: len(b.axes) == 3, SPREAD),
    Path("spread to everything", mean_bins(1, 1), (2, 70, 40), lambda b: b.is_whole, SPREAD),
    Path("spread to everything, converted", mean_bins(1, 1), (2, 70, 40), lambda b: b.is_whole, SPREAD, gs.bf16),
    Path("spread to long bins", mean_bins(3, 1), (2, 7, 40), lambda b: not b.is_transposed and not b.is_whole, SPREAD),
    Path("spread in tiles", mean((3,), 2, 1), (5000,), lambda b: b.tile < 2500, SPREAD),
    Path("spread in bands", mean((7, 2), 2, 1, cells=True), (1, 150, 9), lambda b: b.bands > 4, SPREAD),
    Path(
        "spread side by side",
        mean((3, 2), (2, 1), 1, cells=True),
        (2, 70, 6, 7),
        lambda b: b.blocks == 2,
        SPREAD,
        **LAST,
    ),
    *(
        Path(
            f"sums of {k} by {s} in planes that follow each other to {job.gives}",
            mean(k, s),
            shape,
            has_longer_planes,
            job,
        )
        for k, s, shape in LONGER
        for job in (VALUE, SPREAD)
    ),
    *(
        Path(
            f"sums of many neighbours by {s}", mean((3, 2), s), (8, 130, 5, 6), lambda b: b.inner == 130, SPREAD, **LAST
        )
        for s in (1, 2)
    ),
    Path("planes of counts", mean((2, 3), (2, 1), (0, 1), cells=True), (64, 4, 7), has_planes_of_their_own, SPREAD),
    *(
        Path(
            f"means of runs, {k} by {s}{', counted' if cells else ''}",
            mean((k, k), s, pads, cells=cells),
            (2, 20, 9, 10),
            lambda b: b.axes[0].schedule == Schedule.RUNS,
            **ALL_LAST,
        )
        for k, s, pads in ((2, 2, 0), (3, 2, 1), (3, (2, 4), ((0, 2), (2, 1))))
        for cells in (False, True)
    ),
    Path(
        "means of runs in space",
        mean((2, 3, 3), 2, 1),
        (2, 9, 5, 6, 7),
        lambda b: b.axes[1].schedule == Schedule.RUNS,
        **ALL_LAST,
    ),
    Path("means of runs in long windows", mean((3, 11), (2, 3), 1), (2, 9, 8, 40), lambda b: b.reads_runs, **ALL_LAST),
    Path(
        "means of runs in bins",
        mean_bins(3, 4),
        (2, 40, 8, 10),
        lambda b: b.reads_runs and b.shares is not None,
        **ALL_LAST,
    ),
    Path(
        "means of runs in many bins",
        mean_bins(80, 70),
        (1, 33, 101, 71),
        lambda b: b.reads_runs and b.shares is None,
        **ALL_LAST,
    ),
    Path("mean of runs in one bin", mean_bins(1, 1), (2, 40, 5, 7), lambda b: b.reads_runs, **ALL_LAST),
    Path("means in bands", mean((9, 2), 2, 4), (1, 150, 9), lambda b: b.bands > 4),
]
PATHS = [*MAX_PATHS, *AVERAGE_PATHS]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.id)
def test_paths_go_where_they_are_meant_to(path):
    """Otherwise a way through the kernels could fall out of the tests unnoticed."""
    pooling = path.of(path.dtype)
    arrays = {**path.arrays(path.dtype), **empty_results(pooling, path.job, path.results)}
    assert path.takes(lowered(pooling, path.job).call(arrays).arguments)


def spread_bound(pooling: Pooling, g: np.ndarray) -> np.ndarray:
    """How far sums of rounded quotients may be off: a few units per window that covers a cell."""
    (size,) = numpy_backend.apply(ops.AVG_POOL_TRANSPOSE, replace(pooling.spread, divisor_override=1), np.ones(g.shape))
    (total,) = numpy_backend.apply(ops.AVG_POOL_TRANSPOSE, pooling.spread, np.abs(g.astype(np.float64)))
    return (size + 2) * np.abs(total)


def assert_right(pooling: Pooling, arrays: Arrays, job: Job, found: Arrays, winners: np.ndarray | None) -> None:
    """By the NumPy backend. Sums of half-integers are exact, so only quotients are rounded."""
    if winners is not None:
        assert_maxima(pooling, job, arrays, found, winners)
        if "ct" in found:
            assert_same_numbers(found["ct"], received(pooling, arrays["g"], winners), pooling, job)
        return
    unit = UNITS[pooling.x.dtype.name]
    smallest = float(np.finfo(np.float32).smallest_subnormal) if pooling.x.dtype.name != "f64" else 0.0
    if job == VALUE:
        (exact,) = numpy_backend.apply(ops.AVG_POOL, pooling.attrs, arrays["x"].astype(np.float64))
        allowed = np.abs(exact) * unit * 2
    else:
        (exact,) = numpy_backend.apply(ops.AVG_POOL_TRANSPOSE, pooling.spread, arrays["g"].astype(np.float64))
        allowed = spread_bound(pooling, arrays["g"]) * unit
    (got,) = found.values()
    assert (np.abs(got.astype(np.float64) - exact) <= allowed + smallest).all(), (pooling, job)


UNITS = {"f32": 2.0**-24, "f64": 2.0**-53, "f16": 2.0**-11, "bf16": 2.0**-8}


WIDTHS = [gs.f32, gs.f64, gs.f16, gs.bf16, gs.i8, gs.i64]
"""Every way to read, to compute and to write; the table above has all formats."""


@pytest.mark.rows(2)
@pytest.mark.parametrize(
    ("path", "dtype"),
    [(path, t) for path in PATHS for t in WIDTHS if t.name in FLOATS or path in MAX_PATHS],
    ids=lambda value: getattr(value, "id", str(value)),
)
def test_every_path_is_right(path, dtype):
    pooling = path.of(dtype)
    kinds = (
        [halves]
        if not pooling.is_max
        else [special, infinitely_low, *([tied] if path.job == PULL else [])]
        if dtype.name in FLOATS
        else [extremes, lowest]
    )
    for numbers in kinds:
        arrays = path.arrays(dtype, numbers)
        winners = numpy_winners(pooling, arrays["x"]) if pooling.is_max else None
        for job, found in everything(pooling, arrays, layout=path.results):
            assert_right(pooling, arrays, job, found, winners)


@pytest.mark.rows(4)
@pytest.mark.parametrize("path", MAX_PATHS, ids=lambda path: path.id)
def test_bfloat16_is_compared_beyond_float16(path):
    pooling = path.of(gs.bf16)
    arrays = {name: laid_out(array, path.layout) for name, array in drawn(pooling, vast, halves).items()}
    winners = numpy_winners(pooling, arrays["x"])
    for job, found in everything(pooling, arrays, jobs=(VALUE, Job("x", "y indices"), PULL)):
        assert_right(pooling, arrays, job, found, winners)


@pytest.mark.parametrize("dtype", FLOATS.values(), ids=str)
@pytest.mark.parametrize("by", [4, -0.5, 3, -7, 0.75, 2.0**-70, 2.0**80, 3e-25, -3e25])
def test_every_divisor(by, dtype):
    """Powers of two, others, and those whose inverse is far away; sums that overflow or vanish when divided."""
    for attrs in (mean((3, 2), 2, 1, by=by), mean((1, 1), by=by), mean((2, 3), 1, 2, 2, True, by=by)):
        pooling = Pooling(attrs, dtype[2, 6, 19])
        for numbers in (rough, special):
            assert_meant(pooling, drawn(pooling, numbers))


@pytest.mark.parametrize("dtype", [gs.f32, gs.f64], ids=str)
@pytest.mark.parametrize("by", [3, -6, 7, 9, 41, 49, 169, 784, 1048573, 2.0**-3, 0.1])
def test_quotients_are_rounded_once(by, dtype):
    """Whether they are found by a division or not."""
    x = np.random.default_rng(3).standard_normal(5000).astype(dtype.numpy)
    x[:4] = np.inf, -np.inf, np.nan, -0.0
    assert_same_bits(gs.avg_pool(x, (1,), divisor_override=by), x / dtype.numpy.type(by))


@pytest.mark.parametrize("numbers", [halves, tied])
@pytest.mark.parametrize("shape", [(2, 3, 23, 20), (2, 3, 23, 21)], ids=str)
@pytest.mark.parametrize("stride", [1, 2])
def test_rows_hear_in_chunks(stride, shape, numbers, monkeypatch):
    """Planes of many chunks, of which the last has a NaN, or none has."""
    monkeypatch.setattr(layout, "LARGEST_CHUNK", 150)
    monkeypatch.setattr(layout, "UNITS_WANTED", 1)
    pooling = Pooling(largest((3, 3), stride, 1), gs.f32[shape])
    arrays = drawn(pooling, numbers, halves)
    winners = numpy_winners(pooling, arrays["x"])
    for job, found in everything(pooling, arrays):
        assert_right(pooling, arrays, job, found, winners)


def test_rows_that_begin_and_end_within_windows_of_four():
    for size, (low, high) in product((1, 2, 3, 5, 9, 70), ((0, 0), (1, 1), (2, 2), (0, 2))):
        pooling = Pooling(mean((4,), 4, ((low, high),)), gs.f32[3, size])
        if size + low + high >= 4:
            arrays = drawn(pooling, halves)
            for job, found in everything(pooling, arrays):
                assert_right(pooling, arrays, job, found, None)


@pytest.mark.parametrize("attrs", [mean((3, 3), 2, 1, cells=True), mean((4, 3), 4, 2)], ids=str)
def test_planes_that_are_spread_in_parts(attrs, monkeypatch):
    """Of larger planes, some rows of windows are divided at a time."""
    monkeypatch.setattr(layout, "LARGEST_SLAB", 64)
    pooling = Pooling(attrs, gs.f32[40, 21, 30])
    arrays = drawn(pooling, halves)
    assert lowered(pooling, SPREAD).call({**arrays, "ct": np.empty_like(arrays["x"])}).arguments.staged_rows < 6
    for job, found in everything(pooling, arrays):
        assert_right(pooling, arrays, job, found, None)


# --- layouts ----------------------------------------------------------------------------------------------------------

LAID_OUT = [
    Pooling(attrs, dtype[shape])
    for dtype in (gs.f32, gs.f16)
    for attrs, shape in (
        (largest((3, 2), (2, 1), ((1, 2), (3, 0)), (1, 2)), (2, 3, 9, 19)),
        (largest((3, 3), 1, 1), (2, 3, 40, 9)),
        (largest((9, 8), 1, 3), (3, 70, 11, 12)),
        (largest((2, 3, 2), 2, 1, (1, 2, 1), True), (2, 5, 6, 9)),
        (largest_bins(3, 4), (3, 2, 7, 6)),
        (mean((3, 2), (2, 1), ((1, 2), (3, 0)), (1, 2), cells=True), (2, 3, 9, 19)),
        (mean((3, 3), 1, 1), (2, 3, 40, 9)),
        (mean((3, 2), 2, 1, cells=True), (2, 3, 9, 8)),
        (mean((3, 3), 2, 1), (2, 70, 11, 12)),
        (mean_bins(3, 4), (3, 2, 7, 6)),
    )
]


def check_layouts(pooling: Pooling, inputs: str, outputs: str) -> None:
    arrays = {name: laid_out(array, inputs) for name, array in drawn(pooling, halves).items()}
    winners = numpy_winners(pooling, arrays["x"]) if pooling.is_max else None
    form, types, tapes = LAYOUTS[outputs], types_of(pooling), {}
    for job in jobs_of(pooling):
        parents = {
            name: rubbish(TensorType(types[name].dtype, form.parent(types[name].shape))) for name in job.gives.split()
        }
        views = {name: form.view(parent, types[name].shape) for name, parent in parents.items()}
        if "tape" in views:  # tapes are made by plans, in C order
            views["tape"] = rubbish(types["tape"])
        carry_out(pooling, job, {**arrays, **tapes, **views})
        tapes = {"tape": views["tape"]} if "tape" in views else tapes
        assert_right(pooling, arrays, job, views, winners)
        for name in views.keys() - {"tape"}:
            beside = rubbish(TensorType(types[name].dtype, form.parent(types[name].shape)))
            form.view(beside, types[name].shape)[...] = views[name]
            assert_same_bits(parents[name], beside, pooling, job, "something beside the result is written")


@pytest.mark.parametrize("layout", {**LAYOUTS, **REPEATED})
@pytest.mark.parametrize("pooling", LAID_OUT, ids=str)
def test_every_layout_is_read_and_written_and_nothing_beside_it(pooling, layout):
    check_layouts(pooling, layout, "C")
    if layout in LAYOUTS:
        check_layouts(pooling, layout, layout)
        check_layouts(pooling, "C", layout)


@pytest.mark.parametrize("pooling", [p for p in LAID_OUT if p.x.dtype == gs.f32], ids=str)
def test_out_of_any_layout(pooling):
    """Through the compiled graph, which decides what kernels may write to."""
    op = ops.MAX_POOL if pooling.is_max else ops.AVG_POOL
    builder = gs.Builder()
    run = gs.compile(builder.build(builder.apply(op, pooling.attrs, builder.input(pooling.x, "x"))))
    x = drawn(pooling, halves)["x"]
    wanted = run(x)
    for inputs, outputs in product({**LAYOUTS, **REPEATED}, LAYOUTS):
        out = LAYOUTS[outputs].view(rubbish(TensorType(gs.f32, LAYOUTS[outputs].parent(wanted.shape))), wanted.shape)
        given = laid_out(x, inputs)
        assert run(given, out=out) is out
        np.testing.assert_allclose(out, run(np.ascontiguousarray(given)), rtol=1e-6)


# --- threads ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [gs.f32, gs.f16], ids=str)
@pytest.mark.parametrize(
    "path", [p for p in PATHS if {"bands", "blocks", "tiles"} & {*p.id.split()}], ids=lambda path: path.id
)
def test_results_do_not_depend_on_the_number_of_threads(path, dtype):
    pooling = path.of(dtype)
    arrays = {name: laid_out(array, path.layout) for name, array in drawn(pooling, rough).items()}
    runs = (everything(pooling, arrays, count, path.results) for count in (1, 2, 3, 7))
    for (job, alone), *others in zip(*runs, strict=True):
        for (_, found), (name, array) in product(others, alone.items()):
            assert_same_bits(found[name], array, job, name)


@pytest.mark.parametrize("path", [p for p in MAX_PATHS if "bands" in p.id.split()], ids=lambda path: path.id)
def test_no_band_reads_what_another_puts_together(path):
    """Outputs whose cotangents go to the cells of two bands are made by both: at once, or in memory of their own."""
    pooling = path.of(gs.f32)
    arrays = {**path.arrays(gs.f32), **empty_results(pooling, PULL, path.results)}
    call = lowered(pooling, PULL).call(arrays).arguments
    front, is_alone = call.axes[0], len(call.axes) == 1
    assert call.bands > 1
    assert not (call.is_direct and (is_alone or call.gathering.in_runs or (front.kernel > 3 and not front.scans)))


# --- memory -----------------------------------------------------------------------------------------------------------


ROWS = [
    Path(
        f"rows of {k} by {s}, {d} apart", make((2, k), (1, s), 0, (1, d)), (2, 3, d * (k - 1) + 1 + s * more), is_plain
    )
    for make in (largest, mean)
    for more in (0, 1, 4, 7, 9)
    for k, s, d in (
        (1, 1, 1),
        (2, 1, 1),
        (3, 1, 2),
        (5, 1, 1),
        (9, 1, 1),
        (2, 2, 1),
        (3, 2, 1),
        (6, 2, 1),
        (4, 4, 1),
        (9, 8, 1),
    )
]


@pytest.mark.skipif(os.name != "posix", reason="pages are protected with mprotect")
@pytest.mark.parametrize(("at_end", "dtype"), [(True, gs.f32), (False, gs.f32), (True, gs.f16)], ids=str)
@pytest.mark.parametrize("paths", [[path] for path in PATHS] + [ROWS], ids=lambda paths: paths[0].id)
def test_nothing_beyond_an_array_is_touched(paths, dtype, at_end):
    """Arrays and workspaces end, or begin, where a page does that nobody may read or write."""
    fenced = Fenced(at_end)
    for path in paths:
        pooling, tapes = path.of(dtype), {}
        arrays = path.arrays(dtype)
        winners = numpy_winners(pooling, arrays["x"]) if pooling.is_max else None
        for job in jobs_of(pooling):
            found = fenced.carry_out(pooling, job, {**arrays, **tapes}, path.results)
            tapes = {"tape": found["tape"]} if "tape" in found else tapes
            assert_right(pooling, arrays, job, found, winners)


RANKS = {1: (9, 12), 2: (9, 6), 3: (4, 3)}
"""The longest kernel, and the most cells more than one window needs, by rank."""


@st.composite
def poolings(draw: st.DrawFn, dtype: DType) -> Pooling:
    """Windows over one to three axes: any padding, strides and dilation, bins, every divisor."""
    rank = draw(st.sampled_from(list(RANKS)))
    longest, more = RANKS[rank]
    axes = []
    for _ in range(rank):
        k, s, d = (draw(st.integers(1, most)) for most in (longest, 4, 3))
        low, high = draw(st.integers(0, 4)), draw(st.integers(0, 4))
        smallest = max(1, d * (k - 1) + 1 - low - high)
        axes.append((draw(st.integers(smallest, smallest + more)), k, s, (low, high), d))
    sizes, *windows = zip(*axes, strict=True)
    fields = {"output_size": draw(st.tuples(*(st.integers(1, n + 3) for n in sizes)))}
    if draw(st.integers(0, 3)):
        fields = sliding(*windows, draw(st.booleans()))
    if draw(st.booleans()):
        attrs: Any = ops.MaxPool(**fields)
    elif "output_size" in fields:
        attrs = ops.AvgPool(**fields)
    else:
        attrs = ops.AvgPool(
            **fields,
            count_include_pad=draw(st.booleans()),
            divisor_override=draw(st.sampled_from([None, None, -3, 0.75])),
        )
    lead = draw(st.sampled_from([(), (2,), (1, 3), (3, 1)]))
    return Pooling(attrs, dtype[lead + sizes])


@pytest.mark.rows(2)
@pytest.mark.parametrize("dtype", FLOATS.values(), ids=str)
@settings(max_examples=25, deadline=None)
@given(
    st.data(),
    st.sampled_from([rough, special, infinitely_low]),
    st.sampled_from([*LAYOUTS, *REPEATED]),
    st.integers(1, 3),
)
def test_random_windows_mean_what_the_specification_says(dtype, data, numbers, layout, count):
    pooling = data.draw(poolings(dtype))
    arrays = {name: laid_out(array, layout) for name, array in drawn(pooling, numbers).items()}
    assert_meant(pooling, arrays, count)


# --- in a compiled graph ----------------------------------------------------------------------------------------------


def network(x: Any) -> Any:
    """Max pooling in the middle, so that its cotangent comes long after its value."""
    hidden = gs.max_pool2d(gs.relu(x) * 0.5, 3, 2, 1)
    return gs.sum(gs.avg_pool2d(hidden * hidden, 2, 1) * gs.adaptive_max_pool(hidden, (4, 3)))


def with_indices(x: Any) -> Any:
    return gs.max_pool2d(x, 3, 1, return_indices=True)


def pushed_twice(x: Any) -> Any:
    windows = largest((3, 3), 2, 1)
    pushed = apply(ops.MAX_POOL_GATHER, windows, x, x * 0.5), apply(ops.MAX_POOL_GATHER, windows, x, x + 1.0)
    return apply(ops.MAX_POOL, windows, x) + pushed[0] * pushed[1]


WHOLE = {
    "value": lambda graph: graph,
    "jvp": lambda graph: graph.jvp(),
    "vjp": lambda graph: graph.vjp(),
    "jvp of vjp": lambda graph: graph.vjp().jvp(["x"]),
    "vjp of jvp": lambda graph: graph.jvp().vjp(["x"]),
}


@pytest.mark.parametrize("mode", WHOLE)
@pytest.mark.parametrize("function", [network, with_indices, pushed_twice])
def test_compiled_graphs_agree_with_the_numpy_backend(function, mode):
    graph = WHOLE[mode](gs.trace(function, gs.f32[2, 9, 8]))
    rng = np.random.default_rng(5)
    arrays = [halves(rng, v.shape, v.dtype.numpy) for v in graph.inputs]
    found, wanted = (gs.compile(graph, backend=backend)(*arrays) for backend in ("cpu", "numpy"))
    for one, other in zip(*((r if isinstance(r, tuple) else (r,)) for r in (found, wanted)), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def kernels_of(graph: Any) -> list[str]:
    """The pooling kernels of a plan, by their first two words."""
    names = [step.task.kernel for step in gs.compile(graph).plan.steps if step.task is not None]
    return [" ".join(name.split()[:2]) for name in names if name.split()[0] in ("window", "recorded")]


@pytest.mark.parametrize(
    ("graph", "kernels"),
    [
        (gs.trace(with_indices, gs.f32[9, 8]), ["window winners"]),
        (gs.trace(with_indices, gs.f32[9, 8]).jvp(), ["window winners"]),
        (gs.trace(with_indices, gs.f32[9, 8]).vjp(), ["window winners"]),
        (gs.trace(lambda x: gs.max_pool2d(x, 2), gs.f32[9, 8]), ["window maximum"]),
        (
            gs.trace(lambda x: gs.sum(gs.exp(gs.max_pool2d(x, 2))), gs.f32[9, 8]).vjp(),
            ["window winners", "recorded winners"],
        ),
        (gs.trace(lambda x: gs.avg_pool2d(x, 2), gs.f32[9, 8]).vjp(), ["window mean", "window spread"]),
    ],
)
def test_winners_are_searched_for_once(graph, kernels):
    """Value and derivative in one task, or the derivative from a tape where its cotangent depends on the value."""
    assert kernels_of(graph) == kernels


# --- what it costs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "inner"),
    [
        ((8, 512, 4, 4), 512),
        ((8, 600, 4, 4), 300),  # at most 512
        ((4, 512, 4, 4), 256),  # so that there are eight units
        ((1, 512, 4, 4), 64),
        ((1, 100, 4, 4), 50),  # but no fewer than 64, if it can be
        ((8, 512, 4, 128), 128),  # 16,384 outputs in a row of them
        ((8, 512, 4, 1024), 64),
    ],
)
def test_as_many_neighbours_are_pooled_at_once_as_rows_and_units_allow(shape, inner):
    pooling = Pooling(largest((2, 1), 1), gs.f32[shape])
    arrays = {name: LAYOUTS["channels last"].empty(type) for name, type in types_of(pooling).items()}
    assert lowered(pooling, VALUE).call(arrays).arguments.inner == inner


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.id)
def test_workspaces_hold_slabs_never_planes(path):
    """Per thread: ``kernel + 2`` slabs of value and winner (a slab: the outputs of the later axes), as many for each
    later axis; four stretches of at most 8,192 cells and a window of the last axis; a table of at most 4,096 places; a
    kilobyte; for a 16-bit VJP, the float32 cells of a plane; small planes five times, of at most 16,384 cells; and,
    where cells gather, as many rows of them as a window has, one more, and two chunks of at most 4,096 places and three
    rows.
    """
    for dtype in (gs.f32, gs.f16):
        pooling = path.of(dtype)
        arrays = {name: LAYOUTS[path.layout].empty(type) for name, type in types_of(pooling).items()}
        for job in (job for job in jobs_of(pooling) if "tape" not in job.takes + job.gives):
            block, _, workspace = lowered(pooling, job).call(arrays)
            axes = block.axes
            slabs = sum((a.kernel + 2) * prod(b.outputs for b in axes[i + 1 :]) for i, a in enumerate(axes))
            last = axes[-1]
            stretch = min(last.size + last.low + last.stride, 8192) + last.dilation * last.kernel
            numbers = 2 if pooling.is_max and job != VALUE else 1
            most = 4 * numbers * (slabs * block.inner + 4 * stretch) + 16 * block.table_room + 1024
            cells = prod(a.size for a in axes) * block.inner
            if job.gives.endswith("ct") and pooling.is_max and dtype == gs.f16:
                most += 4 * cells
            if block.is_transposed:
                assert cells <= layout.CELLS_TRANSPOSED
                most += 4 * numbers * (cells + last.size * block.inner)
            most += 4 * 5 * min(prod(max(a.size, a.outputs) + 4 for a in axes), 16384)
            if block.gathering.is_used:
                row, hearing = last.size + last.low + 2 * last.kernel, axes[0].kernel * prod(a.size for a in axes[1:-1])
                most += 8 * (block.inner * (1 + hearing) * row + 2 * (4096 + 3 * row))
            assert block.table_room <= 4096
            assert workspace <= most, job


def test_kernels_are_few(monkeypatch):
    """Geometries of every rank and mode in every format ask for the same few kernels, of which winners may be short."""
    asked = set()
    monkeypatch.setattr(plan, "kernel", lambda source, name: asked.add(name))
    rng = np.random.default_rng(11)
    for i in range(200):
        rank = 1 + i % 4
        dtype = [*FLOATS.values(), *INTEGERS.values()][i // 4 % 8]
        pooling = Pooling(random_windows(rng, rank, dtype), dtype[(2, *rng.integers(9, 20, rank).tolist())])
        for job in jobs_of(pooling):
            lowered.__wrapped__(pooling, job)
    asked -= {"winners:stored f16", "winners:stored bf16"}
    assert len(asked) == 2 * len(INTEGERS) + 5 * len(FLOATS)


def random_windows(rng: np.random.Generator, rank: int, dtype: DType) -> Any:
    kernel, stride, dilation = (tuple(rng.integers(1, most, rank).tolist()) for most in (6, 4, 3))
    fields = sliding(kernel, stride, int(rng.integers(0, 3)), dilation, bool(rng.integers(2)))
    if rng.integers(3) == 0:
        fields = {"output_size": tuple(rng.integers(1, 9, rank).tolist())}
    return ops.MaxPool(**fields) if dtype.name in INTEGERS or rng.integers(2) else ops.AvgPool(**fields)


COUNTING = """
import random, sys
import gradspec as gs
from gradspec.codegen.cache import compilations

random.seed(3)
for i in range(1000):
    rank = 1 + i % 4
    x = gs.f32[(2, *(random.randint(5, 12) for _ in range(rank)))]
    kernel = tuple(random.randint(1, 4) for _ in range(rank))
    windows = {"stride": random.randint(1, 3), "padding": random.randint(0, 2), "ceil_mode": random.random() < 0.5}
    pool = random.choice([
        lambda x: gs.max_pool(x, kernel, **windows),
        lambda x: gs.max_pool(x, kernel, **windows, return_indices=True),
        lambda x: gs.avg_pool(x, kernel, **windows, dilation=random.randint(1, 2)),
        lambda x: gs.adaptive_max_pool(x, kernel),
        lambda x: gs.adaptive_avg_pool(x, kernel),
        lambda x: gs.global_max_pool(x, rank),
        lambda x: gs.global_avg_pool(x, rank),
    ])
    graph = gs.trace(pool, x)
    gs.compile(random.choice([graph, graph.jvp(), graph.vjp()]))
print(compilations(), "numba" in sys.modules, "gradspec.backends.cpu.pool.kernels.values" in sys.modules)
"""


@pytest.mark.exhaustive
def test_a_thousand_geometries_compile_few_kernels_and_later_processes_none(tmp_path):
    """A process that finds its kernels on disk imports no source of a kernel."""
    environment = {**os.environ, "GRADSPEC_CACHE_DIR": str(tmp_path / "kernels")}
    counts = [
        subprocess.run(
            [sys.executable, "-c", COUNTING], env=environment, capture_output=True, text=True, check=True
        ).stdout
        for _ in range(2)
    ]
    first, *_ = counts[0].split()
    assert 1 <= int(first) <= 60
    assert counts[1].split() == ["0", "False", "False"]
