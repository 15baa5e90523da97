"""Compiled smooth max pooling, judged by the oracle within the certified tolerance, and by laws of execution."""

from collections.abc import Sequence
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest

import gradspec as gs
from gradspec.backends.cpu.pool.plan import LOWERINGS
from gradspec.conformance import meaning
from gradspec.graph.types import DType, TensorType, type_of
from gradspec.ops import smooth_pool as ops
from gradspec.ops.pool import sliding_windows

DTYPES = [gs.f16, gs.bf16, gs.f32, gs.f64]
BETAS = [1.0, 30.0, -2.0, 1e-3, 1e30]
KINDS = ["value", "mean", "spread"]
HUGE = {"f16": 6e4, "bf16": 3e38, "f32": 3e38, "f64": 1.7e308}
TINY = {"f16": 2.0**-24, "bf16": 2.0**-133, "f32": 2.0**-149, "f64": 2.0**-1074}

GEOMETRIES: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((2, 5), {"kernel_size": (2,)}),
    ((13,), {"kernel_size": (1,), "stride": 3}),
    ((19,), {"kernel_size": (3,), "stride": 1, "padding": 1}),
    ((30,), {"kernel_size": (11,), "stride": 1, "padding": 5}),
    ((40,), {"kernel_size": (13,), "stride": 2, "padding": 4, "dilation": 2}),
    ((41,), {"kernel_size": (4,), "stride": 3, "padding": 2, "dilation": 2}),
    ((23,), {"kernel_size": (5,), "stride": 2, "padding": ((1, 3),)}),
    ((9,), {"kernel_size": (2,), "stride": 7, "padding": ((0, 9),)}),
    ((2, 1, 4, 9), {"kernel_size": (3, 3), "stride": 1, "padding": 1}),
    ((9, 11), {"kernel_size": (3, 2), "stride": 2, "padding": ((2, 1), (0, 3)), "ceil_mode": True}),
    ((13, 4), {"kernel_size": (8, 4), "stride": 1, "padding": ((3, 2), (1, 0))}),
    ((4, 14), {"kernel_size": (2, 9), "stride": 1, "padding": ((0, 0), (4, 2))}),
    ((16, 4), {"kernel_size": (12, 1), "stride": 1, "padding": ((5, 6), (0, 0))}),
    ((3, 4), {"kernel_size": (2, 2), "stride": 1, "padding": ((3, 3), (2, 4))}),
    ((7, 5), {"kernel_size": (3, 3), "stride": 5, "padding": 1, "dilation": 2}),
    ((4, 5, 6), {"kernel_size": (2, 3, 2), "stride": (1, 2, 3), "padding": 1, "dilation": (1, 2, 1)}),
    ((3, 4, 3, 4), {"kernel_size": (2, 2, 2, 2), "stride": 2, "padding": 1}),
    ((34,), {"kernel_size": (30,), "stride": 1, "padding": 12}),
    ((30,), {"kernel_size": (53,), "stride": 2, "padding": ((40, 25),)}),
    ((7, 9), {"kernel_size": (5, 6), "stride": 1, "padding": (2, 5), "dilation": (2, 3)}),
    ((4, 5), {"kernel_size": (9, 11), "stride": 2, "padding": ((4, 4), (5, 5)), "ceil_mode": True}),
    ((4, 3), {"kernel_size": (2, 14), "stride": 1, "padding": ((2, 1), (13, 14))}),
    ((20, 2), {"kernel_size": (14, 2), "stride": 1, "padding": ((6, 4), (0, 1))}),
    ((3, 4, 3), {"kernel_size": (3, 3, 3), "stride": 1, "padding": 1}),
    ((2, 5, 4), {"kernel_size": (5, 4)}),
    ((7, 9), {"kernel_size": (2, 9), "stride": 2}),
    ((9, 7), {"kernel_size": (9, 3), "stride": 1}),
    ((3, 1, 2), {"kernel_size": (1, 20), "stride": 2, "padding": ((0, 0), (10, 9))}),  # covers a plane, and padding
]
SPECIAL_WINDOWS = [
    ((22,), {"kernel_size": (3,), "stride": 1, "padding": 1}),
    ((6, 9), {"kernel_size": (2, 8), "padding": ((0, 0), (4, 3)), "stride": 2}),
]
IDS = [f"{shape}-{'x'.join(map(str, window['kernel_size']))}" for shape, window in GEOMETRIES]


def attributes(shape: Sequence[int], beta: float, padding_mode: str = "zeros", **window: Any) -> ops.SmoothPool:
    settled = {"stride": None, "padding": 0, "dilation": 1, "ceil_mode": False, **window}
    return ops.SmoothPool(
        **sliding_windows("smooth_max_pool", np.zeros(shape), **settled), beta=beta, padding_mode=padding_mode
    )


@cache
def compiled(kinds: tuple[str, ...], attrs: ops.SmoothPool, x: TensorType, threads: int = 1) -> Any:
    """A function of ``x``, then a tangent for the mean, then a cotangent for the spread; every step is compiled."""
    builder = gs.Builder()
    cells, results = builder.input(x, "x"), []
    for kind in kinds:
        if kind == "value":
            results += builder.apply(ops.SMOOTH_MAX_POOL, attrs, cells)
        elif kind == "mean":
            results += builder.apply(ops.SMOOTH_MAX_MEAN, attrs, cells, builder.input(x, "u"))
        else:
            results += builder.apply(ops.SMOOTH_MAX_SPREAD, attrs, cells, builder.input(attrs.pooled(x), "g"))
    run = gs.compile(builder.build(results), threads=threads)
    assert all(step.task is not None for step in run.plan.steps)
    return run


def results(kinds: Sequence[str], attrs: ops.SmoothPool, arrays: dict[str, np.ndarray], threads: int = 1) -> list[Any]:
    run = compiled(tuple(kinds), attrs, type_of(arrays["x"]), threads)
    given = [arrays[name] for kind, name in (("mean", "u"), ("spread", "g")) if kind in kinds]
    found = run(arrays["x"], *given)
    return [found] if len(kinds) == 1 else list(found)


def cast(values: np.ndarray, dtype: DType) -> np.ndarray:
    with np.errstate(over="ignore"):
        return values.astype(dtype.numpy)


def numbers(attrs: ops.SmoothPool, shape: Sequence[int], dtype: DType, scale: float = 3.0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    x = TensorType(dtype, tuple(shape))
    shapes = {"x": x.shape, "u": x.shape, "g": attrs.pooled(x).shape}
    scales = {"x": scale, "u": 1.0, "g": 1.0}
    return {name: cast(rng.standard_normal(shapes[name]) * scales[name], dtype) for name in shapes}


def assert_permitted(kind: str, attrs: ops.SmoothPool, arrays: dict[str, np.ndarray], found: np.ndarray) -> None:
    settings = {name: value for name, value in vars(attrs).items() if name != "output_size"}
    names = {"value": ("", "x"), "mean": ("_jvp", "xu"), "spread": ("_vjp", "xg")}
    suffix, taken = names[kind]
    judged = meaning(f"smooth_max_pool{suffix}", *(arrays[name] for name in taken), **settings).judge(found)
    assert judged.passed, judged.failures()


def assert_same_bits(found: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> None:
    for a, b in zip(found, wanted, strict=True):
        assert np.array_equal(np.ascontiguousarray(a).view(np.uint8), np.ascontiguousarray(b).view(np.uint8))


def test_every_lowered_operator_is_tested():
    assert len(KINDS) == sum(name.startswith("smooth_max") for name in LOWERINGS)


# --- what is computed -------------------------------------------------------------------------------------------------


@pytest.mark.rows(3)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("dtype", "beta"), [(gs.f32, 1.0), (gs.f64, -0.7)], ids=str)
@pytest.mark.parametrize("number", range(len(GEOMETRIES)), ids=IDS)
def test_geometries(number, dtype, beta, kind):
    """Every geometry in both formats, with padding of zeros in one and without it in the other."""
    shape, window = GEOMETRIES[number]
    attrs = attributes(shape, beta, ("zeros", "ignore")[(number + (dtype is gs.f64)) % 2], **window)
    arrays = numbers(attrs, shape, dtype)
    assert_permitted(kind, attrs, arrays, *results([kind], attrs, arrays))


@pytest.mark.rows(2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_formats_and_softness(dtype, beta, kind):
    two = {"kernel_size": (3, 2), "stride": (1, 2), "padding": 1}
    for shape, window in (((7, 8), two), ((24,), {"kernel_size": (9,)})):
        attrs = attributes(shape, beta, **window)
        arrays = numbers(attrs, shape, dtype)
        assert_permitted(kind, attrs, arrays, *results([kind], attrs, arrays))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("padding_mode", ["zeros", "ignore"])
@pytest.mark.parametrize(
    ("dtype", "beta"),
    [
        *((dtype, beta) for dtype in (gs.f32, gs.f64) for beta in (1.0, -2.0, 1e30)),
        *((gs.f32, beta) for beta in (1e-38, -1e-38)),  # subnormal
        (gs.f16, 1.0),
        (gs.bf16, -2.0),
    ],
    ids=str,
)
def test_special_values(dtype, beta, padding_mode, kind):
    """Infinities, NaN, the largest and smallest numbers and windows of only one of them, beside ordinary ones."""
    huge, tiny = HUGE[dtype.name], TINY[dtype.name]
    sets = [[huge, -huge, tiny, -tiny, 0.0, -0.0], [np.inf, -np.inf], [-np.inf], [np.inf], [np.nan, huge, -np.inf]]
    rng = np.random.default_rng(3)
    for shape, window in SPECIAL_WINDOWS:
        attrs = attributes(shape, beta, padding_mode, **window)
        arrays = numbers(attrs, shape, dtype)
        for specials, share in product(sets, (0.3, 1.0)):
            chosen = rng.random(shape) < share
            x = np.where(chosen, rng.choice(specials, shape), arrays["x"].astype(np.float64))
            given = {**arrays, "x": cast(x, dtype)}
            assert_permitted(kind, attrs, given, *results([kind], attrs, given))


@pytest.mark.rows(2)
@pytest.mark.parametrize("kind", ["mean", "spread"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_huge_and_special_tangents(dtype, kind):
    huge, rng, shape = HUGE[dtype.name], np.random.default_rng(5), (9, 8)
    attrs = attributes(shape, 0.1, kernel_size=(3, 3), stride=1, padding=1)
    ordinary = numbers(attrs, shape, dtype)
    for specials in ([huge], [huge, -huge, 0.0], [np.inf, 1.0], [np.nan, huge, -np.inf]):
        arrays = {
            "x": ordinary["x"],
            **{name: cast(rng.choice(specials, ordinary[name].shape), dtype) for name in "ug"},
        }
        assert_permitted(kind, attrs, arrays, *results([kind], attrs, arrays))


def test_a_window_that_only_padding_fills():
    attrs = {mode: attributes((3,), 2.0, mode, kernel_size=(2,), stride=1, padding=3) for mode in ("zeros", "ignore")}
    arrays = {"x": np.float32([5, 6, 7]), "u": np.ones(3, np.float32), "g": np.ones(8, np.float32)}
    value, mean = results(["value", "mean"], attrs["ignore"], arrays)
    assert value[[0, 1, 6, 7]].tolist() == mean[[0, 1, 6, 7]].tolist() == [0.0] * 4
    value, mean = results(["value", "mean"], attrs["zeros"], arrays)
    assert value[[0, 7]].tolist() == pytest.approx([np.log(2) / 2] * 2)
    assert mean[[0, 7]].tolist() == [0.0] * 2


# --- how it is computed -----------------------------------------------------------------------------------------------

PLANES = [
    ((1, 200, 70), {"kernel_size": (3, 3), "stride": 1, "padding": 1}),
    ((1, 150, 90), {"kernel_size": (9, 9), "stride": 2, "padding": 4}),
    ((1, 20000), {"kernel_size": (5,), "stride": 1, "padding": 2}),
    ((1, 30000), {"kernel_size": (4,), "stride": 3, "padding": 0, "dilation": 2}),
]
TOGETHER = [["value", "mean"], ["value", "spread"]]


@pytest.mark.parametrize("kinds", TOGETHER, ids="+".join)
@pytest.mark.parametrize(("shape", "window"), [*PLANES, *GEOMETRIES])
def test_value_and_derivative_in_one_pass(shape, window, kinds):
    attrs = attributes(shape, -1.5, **window)
    arrays = numbers(attrs, shape, gs.f32)
    assert_same_bits(results(kinds, attrs, arrays), [r for kind in kinds for r in results([kind], attrs, arrays)])


@pytest.mark.parametrize("kinds", TOGETHER, ids="+".join)
@pytest.mark.parametrize("dtype", [gs.f32, gs.bf16], ids=str)
@pytest.mark.parametrize(("shape", "window"), PLANES)
def test_bands_and_threads_and_batches_make_no_difference(shape, window, dtype, kinds):
    """One plane is cut into bands; forty are not."""
    attrs = attributes(shape, 1.5, "ignore", **window)
    arrays = numbers(attrs, shape, dtype)
    wanted = results(kinds, attrs, arrays)
    for threads in (2, 3):
        assert_same_bits(results(kinds, attrs, arrays, threads), wanted)
    many = {name: np.repeat(a, 40, axis=0) for name, a in arrays.items()}
    assert_same_bits([r[:1] for r in results(kinds, attrs, many)], wanted)


def sliced(a: np.ndarray) -> np.ndarray:
    room = np.zeros([2 * n + 1 for n in a.shape], a.dtype)
    view = room[tuple(slice(2 * n - 1, None, -2) for n in a.shape)]
    view[...] = a
    return view


def channels_last(a: np.ndarray) -> np.ndarray:
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(a, 1, -1)), -1, 1)


LAYOUTS = {"sliced": sliced, "channels last": channels_last, "transposed": lambda a: np.asfortranarray(a)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout, dtype, kind):
    shape = (1, 5, 4, 6)
    shifted = {"kernel_size": (3, 2), "stride": 1, "padding": ((0, 5), (1, 0))}
    for window in ({"kernel_size": (3, 3), "stride": 2, "padding": 1}, shifted):
        attrs = attributes(shape, -1.0, **window)
        arrays = {name: LAYOUTS[layout](a) for name, a in numbers(attrs, shape, dtype).items()}
        (found,) = results([kind], attrs, arrays)
        assert_permitted(kind, attrs, arrays, found)
        run = compiled((kind,), attrs, type_of(arrays["x"]))
        out = LAYOUTS[layout](np.zeros_like(found))
        run(*(arrays[name] for name in {"value": "x", "mean": "xu", "spread": "xg"}[kind]), out=out)
        assert_same_bits([out], [found])


@pytest.mark.parametrize("kind", KINDS)
def test_broadcast_arrays(kind):
    attrs = attributes((3, 8, 9), 1.0, kernel_size=(3, 3), stride=1, padding=1)
    arrays = numbers(attrs, (3, 8, 9), gs.f32)
    arrays = {name: np.broadcast_to(a[:1, :, :1], a.shape) for name, a in arrays.items()}
    wanted = results([kind], attrs, {name: a.copy() for name, a in arrays.items()})
    assert_same_bits(results([kind], attrs, arrays), wanted)


def test_many_channels_last():
    """More neighbours than are pooled side by side at a time, and bands of them."""
    attrs = attributes((1, 150, 40, 6), 1.0, kernel_size=(3, 3), stride=1, padding=1)
    arrays = numbers(attrs, (1, 150, 40, 6), gs.f32)
    last = {name: channels_last(a) for name, a in arrays.items()}
    for kinds in TOGETHER:
        for a, b in zip(results(kinds, attrs, last, 2), results(kinds, attrs, arrays), strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_empty_batches(kind):
    attrs = attributes((0, 8), 1.0, kernel_size=(3,))
    (found,) = results([kind], attrs, numbers(attrs, (0, 8), gs.f32))
    assert found.shape == ((0, 8) if kind == "spread" else (0, 2))


def test_second_derivatives_are_compiled():
    x, direction = np.random.default_rng(1).standard_normal((2, 2, 6, 6))
    attributes = {"kernel_size": (3, 3), "stride": 1, "padding": 1, "beta": 2.0}

    def loss(a):
        return gs.sum(gs.smooth_max_pool(a, **attributes) * gs.smooth_max_pool(a, **attributes))

    _, found = gs.jvp(gs.grad(loss), [np.float32(x)], [np.float32(direction)])
    slope, step = gs.compile(gs.trace(loss, gs.f64[x.shape]).vjp(), backend="numpy"), 1e-6
    ahead, behind = (slope(x + sign * step * direction, 1.0)[1] for sign in (1, -1))
    np.testing.assert_allclose(found, (ahead - behind) / (2 * step), rtol=1e-4, atol=1e-4)


def test_the_tangent_of_a_nan_alone_in_its_window_is_nan():
    """Channels that lie side by side are pooled without an exponential where windows have one cell."""
    x = np.asfortranarray([[1.0, np.nan], [2.0, 3.0]])
    run = gs.compile(gs.trace(lambda x: gs.smooth_max_pool(x, (1,), beta=0.5), gs.f64[2, 2]).jvp())
    value, tangent = run(x, np.asfortranarray([[4.0, 5.0], [6.0, 7.0]]))
    np.testing.assert_array_equal(value, x)
    np.testing.assert_array_equal(tangent, [[4.0, np.nan], [6.0, 7.0]])


@pytest.mark.rows(1)
@pytest.mark.parametrize("window", [{"stride": 1, "padding": 14}, {"stride": 2, "kernel_size": (57,), "padding": 28}])
@pytest.mark.parametrize("dtype", [gs.f32, gs.f64], ids=str)
def test_a_cell_receives_what_fits_though_the_shares_around_it_overflow(dtype, window):
    attrs = attributes((61,), 1.0, **{"kernel_size": (29,), **window})
    x = np.full(61, -20, dtype.numpy)
    x[30] = 0
    arrays = {"x": x, "g": np.full(attrs.pooled(type_of(x)).shape, HUGE[dtype.name], dtype.numpy)}
    (found,) = results(["spread"], attrs, arrays)
    assert np.isfinite(np.delete(found, 30)).all()
    assert_permitted("spread", attrs, arrays, found)


@pytest.mark.parametrize("specials", [[np.inf, -np.inf], [-np.inf], [np.nan, 3e38, -np.inf]], ids=str)
def test_special_values_under_many_windows(specials):
    shape, rng = (3, 3, 3), np.random.default_rng(6)
    attrs = attributes(shape, 1.0, "ignore", kernel_size=(3, 3, 3), stride=1, padding=1)
    arrays = numbers(attrs, shape, gs.f32)
    chosen = rng.random(shape) < 0.2
    arrays["x"] = np.where(chosen, rng.choice(specials, shape), arrays["x"]).astype(np.float32)
    assert_permitted("spread", attrs, arrays, *results(["spread"], attrs, arrays))
