"""Pooling kernels for GPUs, run by Triton's interpreter on CPU tensors and judged by the oracle."""

from collections.abc import Callable, Sequence
from math import inf, nan
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from triton import knobs  # noqa: E402
from triton.compiler import CompiledKernel  # noqa: E402
from triton.runtime.interpreter import InterpreterBuilder  # noqa: E402

import gradspec as gs  # noqa: E402
from backends.quick_triton import quick_interpreter  # noqa: E402, F401  (a fixture)
from gradspec.backends.triton import geometry, plans, pool  # noqa: E402
from gradspec.backends.triton import pool_kernels as kernels  # noqa: E402
from gradspec.backends.triton.geometry import AxisTile  # noqa: E402
from gradspec.conformance import meaning  # noqa: E402
from gradspec.conformance.oracle.enclosure import enclosure  # noqa: E402
from gradspec.graph.types import DType  # noqa: E402
from gradspec.interop.torch.types import array_of, tensor_of  # noqa: E402
from gradspec.ops import lp_pool, smooth_pool  # noqa: E402
from gradspec.ops import pool as ops  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("quick_interpreter"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # of NumPy, which interprets the kernels
]


F16, BF16, F32, F64 = gs.f16, gs.bf16, gs.f32, gs.f64
DTYPES = [F32, F16, BF16, F64]

Row = tuple[tuple[int, ...], dict[str, Any], DType]
QUICK: list[Row] = [
    ((2, 3, 6, 7), {"kernel_size": (3, 3), "stride": 1, "padding": 1}, F32),
    ((9, 11), {"kernel_size": (3, 2), "stride": 2, "padding": ((2, 1), (0, 3)), "ceil_mode": True}, BF16),
    ((7, 9), {"kernel_size": (5, 3), "stride": (1, 2), "padding": (2, 5), "dilation": (2, 3)}, F16),
    ((10, 16), {"kernel_size": (3, 5), "stride": 1, "padding": ((1, 1), (6, 2))}, F16),
    ((20, 3), {"kernel_size": (18, 2), "stride": 2, "padding": ((17, 4), (0, 1))}, F64),
    ((7, 28), {"kernel_size": (5, 8), "stride": (5, 8), "padding": ((2, 1), (4, 1))}, F16),  # many cells of one output
]
QUICK_BINS: list[Row] = [((2, 4, 14), {"output_size": (2, 5)}, F16), ((2, 6, 6), {"output_size": (1, 1)}, F32)]

WINDOWS: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((2, 7), {"kernel_size": (2,)}),
    ((13,), {"kernel_size": (1,), "stride": 3}),
    ((2, 9, 10), {"kernel_size": (3, 3), "stride": 2, "padding": 1}),
    ((9,), {"kernel_size": (2,), "stride": 7, "padding": ((0, 9),)}),
    ((3, 4), {"kernel_size": (2, 2), "stride": 1, "padding": ((3, 3), (2, 4))}),
    ((8, 9), {"kernel_size": (5, 6), "stride": 1, "padding": (2, 3)}),
    ((4, 5, 6), {"kernel_size": (2, 3, 2), "stride": (1, 2, 3), "padding": 1, "dilation": (1, 2, 1)}),
    ((3, 4, 3, 4), {"kernel_size": (2, 2, 2, 2), "stride": 1, "padding": 1}),
    ((20,), {"kernel_size": (18,), "stride": 1, "padding": 9}),
    ((2, 3), {"kernel_size": ()}),
    ((2, 0, 5), {"kernel_size": (2,)}),
    ((2, 1), {"kernel_size": (2,), "padding": 1, "dilation": 2}),  # taps on either side of the only cell
    ((2, 3, 4), {"kernel_size": (1, 2)}),
    ((3, 4), {"kernel_size": (2, 1), "stride": 1}),
    ((3, 4), {"kernel_size": (1, 1)}),
    ((3, 2), {"kernel_size": (2, 1), "stride": (1, 2), "padding": ((1, 0), (0, 1))}),  # as many outputs as cells
    ((6, 3, 3), {"kernel_size": (1, 2, 2), "stride": (3, 1, 1), "padding": ((2, 2), (0, 0), (0, 0))}),
    ((2, 5, 4, 3), {"kernel_size": (3, 3, 3), "stride": (1, 2, 1), "padding": ((4, 0), (1, 1), (0, 2))}),
    ((2, 1, 4, 3), {"kernel_size": (2, 2, 2), "padding": ((2, 2), (0, 1), (1, 1)), "dilation": (2, 1, 1)}),
    ((2, 2, 10, 16), {"kernel_size": (3, 3), "stride": 1, "padding": 1}),  # windows side by side
    ((2, 9, 8), {"kernel_size": (3, 5), "stride": (2, 2), "padding": ((1, 0), (2, 1))}),
    ((3, 20, 12), {"kernel_size": (13, 9), "stride": 1, "padding": ((6, 6), (5, 3))}),
    ((11, 8), {"kernel_size": (2, 2), "stride": 1, "padding": ((2, 3), (4, 1))}),  # of padding alone, some of them
    ((2, 12), {"kernel_size": (3,), "stride": 1, "padding": ((9, 0),)}),
    ((2, 2, 64), {"kernel_size": (4,), "stride": 4}),
    ((5, 60), {"kernel_size": (2, 4), "stride": 4, "padding": ((0, 0), (0, 2))}),
    ((3, 9, 24), {"kernel_size": (8, 8), "padding": ((4, 3), (3, 4))}),
    ((2, 16, 24), {"kernel_size": (8, 8), "padding": 4}),
    ((2, 16, 8), {"kernel_size": (4, 4)}),
    ((2, 6, 8), {"kernel_size": (2, 2)}),  # rows that are not whole tiles, of several columns and of one
    ((2, 6, 4), {"kernel_size": (2, 2)}),
    ((6, 9, 4), {"kernel_size": (6, 1), "stride": 1, "padding": ((3, 2), (0, 0))}),
    ((2, 8, 1), {"kernel_size": (2,), "stride": 1, "padding": 1}),  # what lies side by side does not stay so
    ((2, 8, 1, 1), {"kernel_size": (1, 2), "stride": 1, "padding": ((0, 0), (1, 1))}),
    *[(shape, window) for shape, window, _ in QUICK],
]
BINS: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((3, 4), {"output_size": (5, 9)}),
    ((2, 7, 9), {"output_size": (1, 1)}),
    ((5, 8, 9), {"output_size": (2, 1, 5)}),
    ((1, 6, 40), {"output_size": (3, 1)}),
    ((1, 3), {"output_size": (2, 3)}),
    ((3, 4), {"output_size": (3, 3)}),
    ((2, 7, 9), {"output_size": (3, 4)}),
    ((2, 14, 14), {"output_size": (7, 5)}),  # tiles of a period, whose cells lie side by side
    ((3, 6, 20), {"output_size": (4, 6)}),
    ((3, 6, 7), {"output_size": (3, 3)}),  # and begin at a multiple of two
    ((2, 9, 15), {"output_size": (9, 10)}),
    ((2, 8, 8), {"output_size": (1, 1)}),  # planes of vectors
    ((2, 2, 67), {"output_size": (2, 2)}),  # periods too long for a tile, and of too many bins
    ((1, 3), {"output_size": (7, 15)}),
    *[(shape, window) for shape, window, _ in QUICK_BINS],
]


def rows(quick: Sequence[Row], windows: Sequence[Any]) -> Any:
    """A few rows, and behind the mark every window, the formats in turn."""
    known = {str(row) for row in quick}
    turns = [(*row, DTYPES[i % 4]) for i, row in enumerate(windows)]
    others = [row for row in turns if str(row) not in known]
    marked = [pytest.param(*row, marks=pytest.mark.exhaustive, id=named_row(row)) for row in others]
    found = [pytest.param(*row, id=named_row(row)) for row in quick]
    return pytest.mark.parametrize(("shape", "window", "dtype"), found + marked)


def named_row(row: Row) -> str:
    return f"{row[0]}-{row[1]}-{row[2]}"


def windows(shape: Sequence[int], window: dict[str, Any]) -> dict[str, Any]:
    if "output_size" in window:
        return ops.adaptive_windows("pool", np.empty(shape), window["output_size"])
    settled = {"stride": None, "padding": 0, "dilation": 1, "ceil_mode": False, **window}
    return ops.sliding_windows("pool", np.empty(shape), **settled)


def named(attrs: ops.Windows) -> dict[str, Any]:
    """The settings that the specification is given."""
    kept = ("kernel_size", "stride", "padding", "dilation", "ceil_mode") if attrs.output_size is None else ()
    kept += ("output_size",) * (attrs.output_size is not None)
    return {name: getattr(attrs, name) for name in kept}


def kind(attrs: ops.Windows) -> str:
    return "" if attrs.output_size is None else "adaptive_"


def run(name: str, attrs: Any, *arrays: np.ndarray) -> Any:
    found = pool.kernel(name, attrs)(*map(tensor_of, arrays))
    return tuple(map(array_of, found)) if len(found) > 1 else array_of(found[0])


def cells(shape: Sequence[int], dtype: DType, seed: int = 0) -> np.ndarray:
    """Few different numbers, zeros of both signs, many lowest ones and some NaNs: everything ties somewhere."""
    rng = np.random.default_rng(seed)
    x = rng.choice([-1.0, -0.0, 0.0, 1.0], shape)
    x = np.where(rng.random(shape) < 0.4, -inf, x)
    return np.where(rng.random(shape) < 0.03, nan, x).astype(dtype.numpy)


def normal(shape: Sequence[int], dtype: DType, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype.numpy)


def integers(shape: Sequence[int], dtype: DType, seed: int = 2) -> np.ndarray:
    return np.random.default_rng(seed).integers(-8, 8, shape).astype(dtype.numpy)


def assert_meant(found: np.ndarray, name: str, *args: Any, **settings: Any) -> None:
    judged = meaning(name, *args, **settings).judge(found)
    assert judged.passed, judged.failures()


def pooled(attrs: ops.Windows, x: np.ndarray) -> tuple[int, ...]:
    window = attrs.window(x)
    return (*x.shape[: x.ndim - window.rank], *window.outputs)


# --- what is computed -------------------------------------------------------------------------------------------------


@rows(QUICK + QUICK_BINS, WINDOWS + BINS)
def test_largest_and_places(shape, window, dtype):
    attrs = ops.MaxPool(**windows(shape, window))
    x = cells(shape, dtype)
    assert_meant(run("max_pool", attrs, x), f"{kind(attrs)}max_pool", x, **named(attrs))
    value, places = run("max_pool", ops.MaxPool(**windows(shape, window), return_indices=True), x)
    assert_meant(value, f"{kind(attrs)}max_pool", x, **named(attrs))
    wanted = getattr(gs.spec, f"{kind(attrs)}max_pool")(x.astype(float), **named(attrs), return_indices=True)[1]
    np.testing.assert_array_equal(places, np.array(wanted.tolist(), int).reshape(places.shape))


@pytest.mark.parametrize(("shape", "kernel"), [((2, 7), (2,)), ((6, 7), (3, 2)), ((40,), (31,)), ((5, 6), (5, 6))])
def test_a_zero_with_its_place_is_the_winners(shape, kernel):
    x = np.random.default_rng(0).choice(np.float32([0.0, -0.0]), shape)
    attrs = ops.MaxPool(**windows(shape, {"kernel_size": kernel, "stride": 1}), return_indices=True)
    value, places = run("max_pool", attrs, x)
    planes = x.reshape(-1, np.prod(shape[-len(kernel) :]))
    winners = np.take_along_axis(planes, places.reshape(len(planes), -1), 1)
    np.testing.assert_array_equal(np.signbit(value.reshape(winners.shape)), np.signbit(winners))


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64, np.uint8])
def test_integers(monkeypatch, dtype):
    """Triton's compiler fills a vector of 8 or 16 bits, where it is masked, with what the interpreter is made to."""
    load = InterpreterBuilder.create_masked_load

    def filled(builder, pointers, mask, other, *rest):
        found = load(builder, pointers, mask, other, *rest)
        if other is not None and other.data.dtype in (np.int8, np.int16):
            found.data = np.where(mask.data | (other.data >= 0), found.data, -1).astype(found.data.dtype)
        return found

    monkeypatch.setattr(InterpreterBuilder, "create_masked_load", filled)
    for shape, kernel in (((2, 6, 7), (3, 2)), ((2, 6, 8), (3, 2)), ((2, 6, 6), (6, 6))):
        x = (np.random.default_rng(3).integers(0, 4, shape) - 6 * (dtype is not np.uint8)).astype(dtype)
        window = {"kernel_size": kernel, "stride": 1 if shape[-1] == 8 else 2, "padding": ((3, 0), (0, 1))}
        attrs = ops.MaxPool(**windows(x.shape, window if kernel == (3, 2) else {"output_size": (1, 1)}))
        wanted = getattr(gs.spec, f"{kind(attrs)}max_pool")(x.tolist(), **named(attrs)).tolist()
        assert run("max_pool", attrs, x).tolist() == wanted


TIES = ("first", "all", "split")


@rows(QUICK + QUICK_BINS, WINDOWS + BINS)
def test_derivatives_of_the_largest(shape, window, dtype):
    """Each window with every way to share ties and with every kernel, which take turns."""
    turn = len(str(window))
    push, both, pull = (ops.MaxPool(**windows(shape, window), ties=TIES[(turn + i) % 3]) for i in range(3))
    x, dx = cells(shape, dtype), integers(shape, dtype)
    g = integers(pooled(pull, x), dtype)
    name, settings = f"{kind(pull)}max_pool", named(pull)
    assert_meant(run("max_pool_gather", push, x, dx), f"{name}_jvp", x, dx, **settings, ties=push.ties)
    value, moved = run("max_pool and max_pool_gather", both, x, dx)
    assert_meant(value, name, x, **settings)
    assert_meant(moved, f"{name}_jvp", x, dx, **settings, ties=both.ties)
    assert_meant(run("max_pool_scatter", pull, x, g), f"{name}_vjp", x, g, **settings, ties=pull.ties)


def test_windows_of_more_taps_than_lanes():
    window = {"kernel_size": (40, 1), "stride": (3, 1), "padding": ((2, 4), (0, 0))}
    test_largest_and_places((45, 3), window, F32)
    test_derivatives_of_the_largest((45, 3), window, F32)


DIVISORS: list[dict[str, Any]] = [{"count_include_pad": True}, {"count_include_pad": False}, {"divisor_override": -3}]


@rows(QUICK + QUICK_BINS, WINDOWS + BINS)
def test_averages(shape, window, dtype):
    several = [DIVISORS[len(str(window)) % 3]] if (shape, window, dtype) in QUICK else DIVISORS
    for settings in [{}] if "output_size" in window else several:
        attrs = ops.AvgPool(**windows(shape, window), **settings)
        x = normal(shape, dtype)
        g = normal(pooled(attrs, x), dtype)
        spread = ops.AvgTranspose(**vars(attrs), sizes=attrs.window(x).sizes)
        assert_meant(run("avg_pool", attrs, x), f"{kind(attrs)}avg_pool", x, **named(attrs), **settings)
        assert_meant(
            run("avg_pool_transpose", spread, g), f"{kind(attrs)}avg_pool_vjp", x, g, **named(attrs), **settings
        )


@pytest.mark.parametrize("window", [{"kernel_size": (2, 3)}, {"kernel_size": (7, 7), "stride": 1, "padding": 3}])
@pytest.mark.parametrize("divisor", [3 * 2.0**-140, -(2.0**-130), 0.3, 2e38, -(2.0**127)])
def test_divisors_may_be_as_small_or_large_as_numbers_are(window, divisor):
    shape, size = (3, 8, 8), np.float32(min(abs(divisor), 1.0) * 1e5)
    attrs = ops.AvgPool(**windows(shape, window), divisor_override=divisor)
    x = normal(shape, F32) * size
    g = normal(pooled(attrs, x), F32) * size
    spread = ops.AvgTranspose(**vars(attrs), sizes=attrs.window(x).sizes)
    settings = {**named(attrs), "divisor_override": divisor}
    assert_meant(run("avg_pool", attrs, x), "avg_pool", x, **settings)
    assert_meant(run("avg_pool_transpose", spread, g), "avg_pool_vjp", x, g, **settings)


@pytest.mark.parametrize("taps", [3, 7, 49, 625])
def test_averages_are_rounded_correctly(monkeypatch, taps):
    """By products, which a GPU adds to without rounding them; here that is done in float64."""

    def fused(builder, x, y, z):
        exact = x.data.astype(float) * y.data.astype(float) + z.data.astype(float)
        return type(x)(exact.astype(x.data.dtype), x.dtype)

    monkeypatch.setattr(InterpreterBuilder, "create_fma", fused)
    rng = np.random.default_rng(taps)
    sums = np.ldexp(rng.standard_normal(2048).astype(np.float32), rng.integers(-149, 126, 2048, np.int32))
    sums[:5] = [inf, -inf, nan, 3e38, -0.0]
    attrs = ops.AvgPool(**windows(sums.shape, {"kernel_size": (1,)}), divisor_override=taps)
    np.testing.assert_array_equal(run("avg_pool", attrs, sums), sums / np.float32(taps))


BETAS = {F32: 1.0, F64: -0.7, F16: 30.0, BF16: -2.0}


@pytest.mark.rows(1)
@rows(QUICK, WINDOWS)
def test_smooth_maximum(shape, window, dtype):
    mode = "ignore" if dtype in (F16, F64) else "zeros"
    attrs = smooth_pool.SmoothPool(**windows(shape, window), beta=float(np.float32(BETAS[dtype])), padding_mode=mode)
    settings = {**named(attrs), "beta": attrs.beta, "padding_mode": mode}
    x, dx = normal(shape, dtype) * dtype.numpy.type(3), normal(shape, dtype, 4)
    g = normal(pooled(attrs, x), dtype, 5)
    assert_meant(run("smooth_max_pool", attrs, x), "smooth_max_pool", x, **settings)
    assert_meant(run("smooth_max_mean", attrs, x, dx), "smooth_max_pool_jvp", x, dx, **settings)
    value, moved = run("smooth_max_pool and smooth_max_mean", attrs, x, dx)
    assert_meant(value, "smooth_max_pool", x, **settings)
    assert_meant(moved, "smooth_max_pool_jvp", x, dx, **settings)
    assert_meant(run("smooth_max_spread", attrs, x, g), "smooth_max_pool_vjp", x, g, **settings)


SPECIAL = [[inf, 1.0, inf, -inf], [-inf] * 4, [nan, 1.0, 2.0, inf], [3e38, -3e38, 1e38, 0.0]]


@pytest.mark.parametrize("beta", [1.0, -2.0, 2.0**-120])
def test_smooth_maximum_of_special_values(beta):
    x = np.float32([values * 2 for values in SPECIAL])
    dx = np.broadcast_to(np.float32([1, 2, 3, 4] * 2), x.shape).copy()
    attrs = smooth_pool.SmoothPool(**windows(x.shape, {"kernel_size": (4,), "padding": 1}), beta=beta)
    settings = {**named(attrs), "beta": beta}
    assert_meant(run("smooth_max_pool", attrs, x), "smooth_max_pool", x, **settings)
    assert_meant(run("smooth_max_mean", attrs, x, dx), "smooth_max_pool_jvp", x, dx, **settings)


def test_weights_that_are_subnormal_count(monkeypatch):
    """e^−100 is some 27 times the smallest number; a GPU's 2^t has no such results."""
    power = InterpreterBuilder.create_exp2

    def flushed(builder, exponent):
        found = power(builder, exponent)
        found.data = np.where(found.data < np.finfo(np.float32).tiny, np.float32(0), found.data)
        return found

    monkeypatch.setattr(InterpreterBuilder, "create_exp2", flushed)
    x, dx = np.float32([[1000.0, 0.0]]), np.float32([[-1e-39, 1.0]])
    attrs = smooth_pool.SmoothPool(**windows(x.shape, {"kernel_size": (2,)}), beta=0.1)
    settings = {**named(attrs), "beta": 0.1}
    found = run("smooth_max_mean", attrs, x, dx)
    assert found != dx[:, :1]
    assert_meant(found, "smooth_max_pool_jvp", x, dx, **settings)


APART: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((6, 3, 3), {"kernel_size": (1, 2, 1), "stride": (3, 2, 2), "padding": ((2, 2), (0, 0), (0, 0))}),
    ((7, 5), {"kernel_size": (2, 18), "stride": (3, 1), "padding": ((0, 1), (9, 9))}),
    ((3, 5, 3), {"kernel_size": (2, 2, 2), "stride": (1, 3, 1), "dilation": (2, 1, 2)}),
]
"""Windows of several passes that leave cells between them, or taps that do."""


@pytest.mark.parametrize("padding_mode", ["zeros", "ignore"])
@pytest.mark.parametrize(("shape", "window"), APART)
def test_smooth_gradients_of_cells_that_nothing_reads_are_zero(shape, window, padding_mode):
    """Also beside NaN and infinities."""
    attrs = smooth_pool.SmoothPool(**windows(shape, window), beta=-1.0, padding_mode=padding_mode)
    x, settings = normal(shape, F64), {**named(attrs), "beta": -1.0, "padding_mode": padding_mode}
    for number in (nan, inf, -inf):
        x = np.where(np.random.default_rng(0).random(shape) < 0.1, number, x)
        g = normal(pooled(attrs, x), F64, 5)
        assert_meant(run("smooth_max_spread", attrs, x, g), "smooth_max_pool_vjp", x, g, **settings)


@pytest.mark.parametrize("padding_mode", ["zeros", "ignore"])
@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize(("shape", "window"), [((2, 9), {"kernel_size": (3,), "padding": 1}), *APART])
def test_means_of_huge_tangents_do_not_overflow(shape, window, dtype, padding_mode):
    attrs = smooth_pool.SmoothPool(**windows(shape, window), beta=0.25, padding_mode=padding_mode)
    largest = np.finfo(dtype.numpy).max
    x, dx = normal(shape, dtype), (largest * np.random.default_rng(3).uniform(0.5, 1, shape)).astype(dtype.numpy)
    for tangents in (dx, np.where(np.random.default_rng(4).random(shape) < 0.5, dx, dx / largest / largest)):
        found = run("smooth_max_mean", attrs, x, tangents)
        assert np.isfinite(found).all()
        settings = {**named(attrs), "beta": 0.25, "padding_mode": padding_mode}
        assert_meant(found, "smooth_max_pool_jvp", x, tangents, **settings)


NORMS = [((2, 9, 7), {"kernel_size": (3, 2), "stride": 2, "ceil_mode": True}), ((40,), {"kernel_size": (20,)})]


@pytest.mark.parametrize(("dtype", "p"), [(F16, 2.0), (F32, 3.0), (BF16, inf), (F64, 0.5), (F32, 1.0)])
def test_norms(dtype, p):
    for shape, window in NORMS:
        attrs = lp_pool.LpPool(**windows(shape, window), p=p)
        x = normal(shape, dtype)
        x.flat[::3] = 0
        graph = gs.trace(lambda x: gs.lp_pool(x, p, **window), dtype[shape])  # noqa: B023  (used at once)
        lower, upper = enclosure(graph, x)
        found = run("lp_pool", attrs, x).astype(float)
        assert ((lower <= found) & (found <= upper)).all()


# --- how it is computed -----------------------------------------------------------------------------------------------

LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "channels last": lambda t: t.contiguous(memory_format=torch.channels_last),
    "transposed": lambda t: t.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0),
    "batch last": lambda t: t.movedim(0, -1).contiguous().movedim(-1, 0),
    "sliced": lambda t: torch.stack([t, t], -1).flatten(-2)[..., ::2],
    "one row": lambda t: t[:, :, :1].expand(t.shape),
}
PLANES = [
    {"kernel_size": (3, 3), "stride": 2, "padding": 1},
    {"output_size": (1, 1)},
    {"output_size": (3, 4)},
    {"kernel_size": (2, 2, 3), "stride": 1},
    {"kernel_size": (5, 4), "stride": 1},
]


def laid_out() -> list[Any]:
    """Each layout once, and behind the mark with every window."""
    pairs = [(PLANES[i % len(PLANES)], layout) for i, layout in enumerate(LAYOUTS)]
    others = [(window, layout) for window in PLANES for layout in LAYOUTS if (window, layout) not in pairs]
    return pairs + [pytest.param(*pair, marks=pytest.mark.exhaustive) for pair in others]


@pytest.mark.parametrize(("window", "layout"), laid_out())
def test_layouts_make_no_difference(window, layout):
    shape = (2, 3, 6, 7)
    x, g = tensor_of(cells(shape, F32)), None
    attrs = ops.MaxPool(**windows(shape, window))
    g = tensor_of(normal(pooled(attrs, cells(shape, F32)), F32))
    laid, pull = LAYOUTS[layout], pool.kernel("max_pool_scatter", attrs)
    (given,) = pull(laid(x), laid(g))
    torch.testing.assert_close(given, pull(laid(x).contiguous(), laid(g).contiguous())[0], rtol=0, atol=0)
    average = ops.AvgPool(**windows(shape, window))
    for value in (pool.kernel("max_pool", attrs), pool.kernel("avg_pool", average)):
        found, expected = value(laid(x))[0], value(laid(x).contiguous())[0]
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    spread = pool.kernel("avg_pool_transpose", ops.AvgTranspose(**vars(average), sizes=attrs.window(x).sizes))
    torch.testing.assert_close(spread(laid(g))[0], spread(laid(g).contiguous())[0], rtol=0, atol=0)


@pytest.mark.parametrize("start", [0, 1])
@pytest.mark.parametrize(("channels", "side"), [(12, 4), (300, 4), (6, 1)])
def test_channels_of_16_bits_are_read_some_at_once(channels, side, start, monkeypatch):
    """Where windows share no cell, also if the memory begins between two vectors, and beyond one program."""
    shape, sides = (2, channels, 4, 7), []
    window = {"kernel_size": (2, 2), "stride": (2, 3), "padding": ((1, 1), (0, 1))}
    launch = plans.Planner.launch
    monkeypatch.setattr(plans.Planner, "launch", lambda *a, **k: (sides.append(k.get("side")), launch(*a, **k)))
    x = tensor_of(cells(shape, BF16))
    laid = LAYOUTS["channels last"](x)
    laid = torch.cat([x.new_zeros(start), laid.permute(0, 2, 3, 1).flatten()])[start:].as_strided(shape, laid.stride())
    attrs, average = ops.MaxPool(**windows(shape, window)), ops.AvgPool(**windows(shape, window))
    for operator in (pool.kernel("max_pool", attrs), pool.taped(attrs), pool.kernel("avg_pool", average)):
        torch.testing.assert_close(operator(laid), operator(x), rtol=0, atol=0, equal_nan=True)
    assert sides.count(side) >= 3


def test_results_lie_as_their_operands_do():
    x = LAYOUTS["channels last"](torch.zeros(2, 3, 6, 7))
    (y,) = pool.kernel("avg_pool", ops.AvgPool(**windows(x.shape, PLANES[0])))(x)
    assert y.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("order", [(0, 4, 1, 2, 3), (4, 2, 0, 3, 1), (2, 0, 4, 1, 3)], ids=str)
@pytest.mark.parametrize("kernel", [(1, 3, 1), (1, 1, 3), (3, 1, 1), (1, 3, 3), (2, 3, 3)], ids=str)
def test_numbers_that_differ_along_axes_of_any_order(kernel, order):
    """``order`` is that of the axes in memory, which kernels see as five, two of them in windows."""
    x = normal((2, 3, 4, 5, 6), F32)
    window = {"kernel_size": kernel, "stride": 1, "padding": tuple(n // 2 for n in kernel)}
    laid = tensor_of(x).permute(order).contiguous().permute(np.argsort(order).tolist())
    average = ops.AvgPool(**windows(x.shape, window), count_include_pad=False)
    (y,) = pool.kernel("avg_pool", average)(laid)
    assert_meant(array_of(y), "avg_pool", x, **named(average), count_include_pad=False)
    spread = pool.kernel("avg_pool_transpose", ops.AvgTranspose(**vars(average), sizes=x.shape[2:]))
    torch.testing.assert_close(spread(y)[0], spread(y.contiguous())[0])
    soft = smooth_pool.SmoothPool(**windows(x.shape, window), beta=1.5)
    torch.testing.assert_close(*(pool.kernel("smooth_max_pool", soft)(t)[0] for t in (laid, laid.contiguous())))


def test_axes_of_any_order_are_five_at_most():
    """Six axes in memory in reverse order, and a table of divisors that differ."""
    x = normal((2, 3, 2, 3, 2, 3), F32)
    window = {"kernel_size": (2,) * 5, "stride": 1, "padding": ((1, 0),) * 5}
    attrs = ops.AvgPool(**windows(x.shape, window), count_include_pad=False)
    reverse = tensor_of(x).permute(5, 4, 3, 2, 1, 0).contiguous().permute(5, 4, 3, 2, 1, 0)
    assert_meant(
        array_of(pool.kernel("avg_pool", attrs)(reverse)[0]), "avg_pool", x, **named(attrs), count_include_pad=False
    )


@pytest.mark.parametrize(
    ("module", "name", "value", "window"),
    [
        (pool, "LANES", 32, {"kernel_size": (3, 3), "stride": 2, "padding": 1}),
        (geometry, "FAR", 0, {"kernel_size": (3, 3), "stride": 2, "padding": 1}),
        (pool, "FOLDED", 16, {"output_size": (1, 1)}),
    ],
)
def test_blocks_and_wide_offsets_make_no_difference(monkeypatch, module, name, value, window):
    """Blocks that end within rows or windows; and the kernels as they are for tensors of more than 2³¹ numbers."""
    attrs = ops.MaxPool(**windows((2, 9, 12), window))
    x = cells((2, 9, 12), F32)
    g = integers(pooled(attrs, x), F32)
    wanted = run("max_pool", attrs, x), run("max_pool_scatter", attrs, x, g)
    monkeypatch.setattr(module, name, value)
    plans.operator.cache_clear()
    found = run("max_pool", attrs, x), run("max_pool_scatter", attrs, x, g)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(a, b)


def test_windows_of_many_taps_whose_cells_are_laid_anew():
    """Divisors have more axes, in this order of memory, than lanes beside a plane: it is pooled row by row."""
    x = normal((2, 3, 8, 8, 2), F32)
    window = {"kernel_size": (7, 7, 1), "stride": 1, "padding": ((3, 3), (3, 3), (0, 0))}
    attrs = ops.AvgPool(**windows(x.shape, window), count_include_pad=False)
    laid = tensor_of(x).permute(0, 2, 1, 4, 3).contiguous().permute(0, 2, 1, 4, 3)
    found = array_of(pool.kernel("avg_pool", attrs)(laid)[0])
    assert_meant(found, "avg_pool", x, **named(attrs), count_include_pad=False)


def test_vectors_are_read_from_where_they_may_begin(monkeypatch):
    """A tensor that begins between two is copied first, for values and for gradients."""
    attrs = ops.MaxPool(**windows((2, 8, 8), {"kernel_size": (3, 3), "stride": 1, "padding": 1}))
    x, g = (tensor_of(normal((129,), F32, seed))[1:].view(2, 8, 8) for seed in (1, 2))
    assert x.data_ptr() % 16
    launched, launch = [], plans.Launch.__call__

    def noting(self, tensors):
        launched.append((self.kernel, [tensors[i].data_ptr() % 16 for i in self.slots[:1]]))
        launch(self, tensors)

    monkeypatch.setattr(plans.Launch, "__call__", noting)
    found = pool.kernel("max_pool_scatter", attrs)(x, g)[0]
    assert launched == [(kernels.reduce_vectors, [0]), (kernels.cover_tiles, [0])]
    torch.testing.assert_close(found, pool.kernel("max_pool_scatter", attrs)(x.clone(), g.clone())[0], rtol=0, atol=0)


def test_tangents_of_vectors_are_those_of_winners():
    """Of the first tap, too, and of whatever number that has."""
    attrs = ops.MaxPool(**windows((2, 8, 8), {"kernel_size": (2, 2), "stride": (2, 1), "padding": ((0, 0), (0, 1))}))
    x, dx = (integers((2, 8, 8), F32, seed) for seed in (1, 2))
    assert_meant(run("max_pool_gather", attrs, x, dx), "max_pool_jvp", x, dx, **named(attrs))


def test_lanes_are_divided_by_a_product():
    most = (1 << 31) - 1
    for n in (1, 2, 3, 5, 7, 100, 1000, 12_345, (1 << 20) + 1, most):
        _, factor, shift = geometry._cut(n)
        near = {k * n + more for k in (0, 1, most // n // 2, most // n) for more in (0, n // 2, n - 1)}
        lanes = [i for i in (*near, most) if i <= most]
        assert [(i * factor) >> shift for i in lanes] == [i // n for i in lanes]


@pytest.mark.parametrize("sizes", [(1, 13, 51, 65), (1, 1, 12, 12), (65, 67, 2, 2), (64, 64, 63, 63)], ids=str)
def test_gradients_of_many_bins_are_not_unrolled(monkeypatch, sizes):
    """A tile of 255 pairs of bins took 100 s to compile, and one of more than 64 cells does not."""
    launched = []
    monkeypatch.setattr(plans.Planner, "launch", lambda self, kernel, *rest, **_: launched.append((kernel, rest)))
    x, g = torch.empty(2, *sizes[:2]), torch.empty(2, *sizes[2:])
    pool.kernel("max_pool_scatter", ops.MaxPool(**windows(x.shape, {"output_size": sizes[2:]}))).plan([x, g])
    tiles = [[r for r in rest if isinstance(r, AxisTile)] for kernel, rest in launched if kernel is kernels.cover_tiles]
    assert all(row.readers * col.readers <= 32 and row.cells * col.cells <= 64 for row, col in tiles)
    assert any(kernel is kernels.cover for kernel, _ in launched)


def test_winners_have_one_byte_where_windows_allow():
    for size, dtypes in (((2, 2), [torch.uint8]), ((9, 8), [torch.uint8] * 2), ((4, 300), [torch.int32, torch.uint8])):
        window = ops.MaxPool(**windows((16, 300), {"kernel_size": size})).window(np.empty((16, 300)))
        steps = geometry.passes(window, 2)
        assert [pool._winner(torch.float32).state_dtype(step, torch.float32) for step in steps] == dtypes


def test_a_tape_of_winners_gives_the_cotangents():
    attrs = ops.MaxPool(**windows((2, 9, 8), {"kernel_size": (6, 3), "stride": (1, 2), "padding": 1}))
    x, g = cells((2, 9, 8), F32), integers((2, 6, 4), F32)
    y, *tape = pool.taped(attrs)(tensor_of(x))
    assert_meant(array_of(y), "max_pool", x, **named(attrs))
    (found,) = pool.sent(attrs, x.shape)(tensor_of(g), *tape)
    assert_meant(array_of(found), "max_pool_vjp", x, g, **named(attrs))


def test_a_plan_is_made_once(monkeypatch):
    attrs = ops.MaxPool(**windows((4, 6), {"kernel_size": (2, 2)}))
    run("max_pool", attrs, cells((4, 6), F32))
    monkeypatch.setattr(plans, "Planner", None)
    run("max_pool", attrs, cells((4, 6), F32, 1))
    with pytest.raises(TypeError):
        run("max_pool", attrs, cells((4, 6), F16))


def test_a_launch_gives_the_launcher_what_triton_gives_it(monkeypatch):
    """Without hooks, of which Triton's launcher calls those that are not None."""
    launched, hooks = [], knobs.runtime
    compiled = CompiledKernel.__new__(CompiledKernel)
    compiled.module, compiled.function, compiled.packed_metadata, compiled.name = object(), 7, (4, 1, 0), "k"
    compiled.src, compiled._run, compiled._module_pid = None, lambda *given: launched.append(given), None
    active = SimpleNamespace(get_current_device=lambda: 2, get_current_stream=lambda device: 10 * device)
    monkeypatch.setattr(plans.driver, "_active", active)
    run = plans.launcher(compiled, (3, 1, 1), (5, True))
    run([100, 200])
    compiled[3, 1, 1](100, 200, 5, True)
    (quick, slow) = launched
    assert quick[:6] == slow[:6] == (3, 1, 1, 20, 7, (4, 1, 0))
    assert quick[6:9] == (None, None, None)
    assert quick[9:] == slow[9:] == (100, 200, 5, True)
    monkeypatch.setattr(hooks.launch_exit_hook, "calls", [print])
    run([100, 200])
    assert launched[2][7:9] == (hooks.launch_enter_hook, hooks.launch_exit_hook)
    compiled.module = None  # or Triton 3.8 unloads it when the kernel goes
