"""Compiled derivatives of max pooling under the tie rules "all" and "split"."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest

import gradspec as gs
from gradspec.conformance import meaning
from gradspec.graph.types import DType, TensorType, type_of
from gradspec.ops import pool as ops

DTYPES = [gs.f16, gs.bf16, gs.f32, gs.f64]
RULES = ["all", "split"]
KINDS = ["push", "pull"]

GEOMETRIES: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((2, 5), {"kernel_size": (2,)}),
    ((13,), {"kernel_size": (1,), "stride": 3}),
    ((30,), {"kernel_size": (11,), "stride": 1, "padding": 5}),
    ((40,), {"kernel_size": (13,), "stride": 2, "padding": 4, "dilation": 2}),
    ((41,), {"kernel_size": (4,), "stride": 3, "padding": 2, "dilation": 2}),
    ((9,), {"kernel_size": (2,), "stride": 7, "padding": ((0, 9),)}),
    ((2, 3, 6, 7), {"kernel_size": (3, 3), "stride": 1, "padding": 1}),
    ((9, 11), {"kernel_size": (3, 2), "stride": 2, "padding": ((2, 1), (0, 3)), "ceil_mode": True}),
    ((15, 12), {"kernel_size": (9, 9), "stride": 1, "padding": 4}),
    ((3, 4), {"kernel_size": (2, 2), "stride": 1, "padding": ((3, 3), (2, 4))}),
    ((4, 5, 6), {"kernel_size": (2, 3, 2), "stride": (1, 2, 3), "padding": 1, "dilation": (1, 2, 1)}),
    ((3, 4, 3, 4), {"kernel_size": (2, 2, 2, 2), "stride": 1, "padding": 1}),
    ((34,), {"kernel_size": (30,), "stride": 1, "padding": 12}),
    ((1100,), {"kernel_size": (30,), "stride": 1, "padding": 12}),  # straddling tiles
    ((30,), {"kernel_size": (53,), "stride": 2, "padding": ((40, 25),)}),
    ((7, 9), {"kernel_size": (5, 6), "stride": 1, "padding": (2, 5), "dilation": (2, 3)}),
    ((9, 12), {"kernel_size": (9, 14), "stride": (2, 3), "padding": ((4, 3), (7, 6)), "ceil_mode": True}),
    ((4, 3), {"kernel_size": (2, 14), "stride": 1, "padding": ((2, 1), (13, 14))}),
    ((20, 2), {"kernel_size": (14, 2), "stride": 1, "padding": ((6, 4), (0, 1))}),
    ((3, 4, 3), {"kernel_size": (3, 3, 3), "stride": 1, "padding": 1}),
    ((2, 7, 9), {"output_size": (3, 4)}),
    ((3, 4), {"output_size": (19, 23)}),
    ((2, 7, 9), {"output_size": (1, 1)}),
    ((5, 8, 9), {"output_size": (2, 1, 5)}),
]
IDS = [f"{shape}-{window.get('kernel_size', window.get('output_size'))}" for shape, window in GEOMETRIES]


def attributes(shape: Sequence[int], ties: str, window: dict[str, Any]) -> ops.MaxPool:
    if "output_size" in window:
        return ops.MaxPool(output_size=window["output_size"], ties=ties)
    settled = {"stride": None, "padding": 0, "dilation": 1, "ceil_mode": False, **window}
    return ops.MaxPool(**ops.sliding_windows("max_pool", np.zeros(shape), **settled), ties=ties)


@cache
def compiled(kind: str, with_value: bool, attrs: ops.MaxPool, x: TensorType, threads: int = 1) -> Any:
    builder = gs.Builder()
    cells = builder.input(x, "x")
    if kind == "push":
        results = builder.apply(ops.MAX_POOL_GATHER, attrs, cells, builder.input(x, "dx"))
    else:
        results = builder.apply(ops.MAX_POOL_SCATTER, attrs, cells, builder.input(attrs.pooled(x), "g"))
    values = builder.apply(ops.MAX_POOL, attrs, cells) if with_value else ()
    run = gs.compile(builder.build([*results, *values]), threads=threads)
    assert str(run.plan).count("window ties") == 1
    assert ("window maximum" in str(run.plan)) == (with_value and "window shares" in str(run.plan))
    return run


def derivative(kind: str, attrs: ops.MaxPool, x: np.ndarray, other: np.ndarray, threads: int = 1) -> np.ndarray:
    return compiled(kind, False, attrs, type_of(x), threads)(x, other)


def cells(rng: np.random.Generator, shape: Sequence[int], dtype: DType) -> np.ndarray:
    """Few different numbers, zeros of both signs, many lowest ones and some NaNs: everything ties somewhere."""
    x = rng.choice([-1.0, -0.0, 0.0, 1.0], shape)
    x = np.where(rng.random(shape) < 0.4, -np.inf, x)
    return np.where(rng.random(shape) < 0.03, np.nan, x).astype(dtype.numpy)


def given(kind: str, attrs: ops.MaxPool, shape: Sequence[int], dtype: DType) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(11)
    x = cells(rng, shape, dtype)
    other = shape if kind == "push" else attrs.pooled(type_of(x)).shape
    return x, rng.integers(-8, 8, other).astype(dtype.numpy)


def assert_meant(kind: str, attrs: ops.MaxPool, x: np.ndarray, other: np.ndarray, found: np.ndarray) -> None:
    suffix = "jvp" if kind == "push" else "vjp"
    if attrs.output_size is not None:
        wanted = meaning(f"adaptive_max_pool_{suffix}", x, other, attrs.output_size, ties=attrs.ties)
    else:
        names = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "ties")
        wanted = meaning(f"max_pool_{suffix}", x, other, **{name: getattr(attrs, name) for name in names})
    judged = wanted.judge(found)
    assert judged.passed, judged.failures()


@pytest.mark.rows(3)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ties", RULES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("shape", "window"), GEOMETRIES, ids=IDS)
def test_geometries(shape, window, dtype, ties, kind):
    """Sums of integers are exact, and the oracle demands them."""
    attrs = attributes(shape, ties, window)
    x, other = given(kind, attrs, shape, dtype)
    found = derivative(kind, attrs, x, other)
    assert_meant(kind, attrs, x, other, found)
    both, value = compiled(kind, True, attrs, type_of(x))(x, other)
    assert np.array_equal(both, found)
    wanted = gs.spec.max_pool if attrs.output_size is None else gs.spec.adaptive_max_pool
    settings = {name: getattr(attrs, name) for name in vars(attrs) if name not in ("ties", "return_indices")}
    settings = {name: a for name, a in settings.items() if (name == "output_size") == (attrs.output_size is not None)}
    np.testing.assert_array_equal(value.astype(float), np.asarray(wanted(x.astype(float), **settings).tolist()))


def test_what_the_rules_say():
    x, dx, g = np.float32([3, -0.0, 0.0, 3]), np.float32([1, 2, 4, 8]), np.float32([6])
    for ties, pushed, pulled in (("all", 9, [6, 0, 0, 6]), ("split", 4.5, [3, 0, 0, 3])):
        attrs = attributes(x.shape, ties, {"kernel_size": (4,)})
        assert derivative("push", attrs, x, dx).tolist() == [pushed]
        assert derivative("pull", attrs, x, g).tolist() == pulled


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ties", RULES)
@pytest.mark.parametrize("special", [np.inf, -np.inf, np.nan])
def test_only_tied_cells_are_read(special, ties, kind):
    """A tangent that is not finite stays where its cell loses."""
    attrs = attributes((3, 3), ties, {"kernel_size": (3, 3)})
    x = np.float32([[1, 2, 0], [0, 2, 0], [0, 0, 1]])
    if kind == "push":
        dx = np.where(x == 2, np.float32(3), np.float32(special))
        assert derivative(kind, attrs, x, dx).tolist() == [[3 if ties == "split" else 6]]
    else:
        found = derivative(kind, attrs, x, np.full((1, 1), special, np.float32))
        np.testing.assert_array_equal(found, np.where(x == 2, special, 0))


def channels_last(a: np.ndarray) -> np.ndarray:
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(a, 1, -1)), -1, 1)


def sliced(a: np.ndarray) -> np.ndarray:
    room = np.zeros([2 * n + 1 for n in a.shape], a.dtype)
    view = room[tuple(slice(2 * n - 1, None, -2) for n in a.shape)]
    view[...] = a
    return view


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ties", RULES)
@pytest.mark.parametrize("layout", [channels_last, sliced, np.asfortranarray])
def test_layouts(layout, ties, kind):
    shape = (2, 5, 6, 7)
    for window in (
        {"kernel_size": (3, 3), "stride": 2, "padding": 1},
        {"kernel_size": (5, 7), "stride": 1, "padding": (2, 3)},
        {"output_size": (3, 2)},
        {"output_size": (1, 1)},
    ):
        attrs = attributes(shape, ties, window)
        x, other = given(kind, attrs, shape, gs.f32)
        wanted = derivative(kind, attrs, x, other)
        for arrays in ((layout(x), layout(other)), (layout(x), other), (x, layout(other))):
            np.testing.assert_array_equal(derivative(kind, attrs, *arrays), wanted)
        out = layout(np.zeros_like(wanted))
        compiled(kind, False, attrs, type_of(x))(layout(x), other, out=out)
        np.testing.assert_array_equal(out, wanted)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [gs.f32, gs.f16], ids=str)
@pytest.mark.parametrize(
    ("shape", "window"),
    [
        ((1, 200, 90), {"kernel_size": (3, 3), "stride": 1, "padding": 1}),
        ((1, 200, 30), {"kernel_size": (9, 9), "stride": 1, "padding": 4}),
        ((1, 200, 30), {"kernel_size": (13, 11), "stride": 2, "padding": 4}),
        ((1, 30000), {"kernel_size": (5,), "stride": 2, "padding": 2}),
    ],
)
def test_bands_and_threads_and_batches_make_no_difference(shape, window, dtype, kind):
    attrs = attributes(shape, "split", window)
    rng = np.random.default_rng(2)
    x, other = given(kind, attrs, shape, dtype)
    other = rng.standard_normal(other.shape).astype(dtype.numpy)
    wanted = derivative(kind, attrs, x, other)
    for threads in (2, 3):
        np.testing.assert_array_equal(derivative(kind, attrs, x, other, threads), wanted)
    many = derivative(kind, attrs, np.repeat(x, 40, axis=0), np.repeat(other, 40, axis=0))
    np.testing.assert_array_equal(many[:1], wanted)


@pytest.mark.parametrize("ties", RULES)
def test_planes_that_follow_each_other_hear_of_cotangents_that_do_not(ties):
    """These have the strides that they would have if they were as long as the cells."""
    x = np.random.default_rng(3).standard_normal((64, 2, 16))
    cotangents = np.random.default_rng(4).standard_normal((64, 2, 3))
    attrs = attributes(x.shape, ties, {"kernel_size": (2, 14), "stride": (2, 1)})
    sliced = cotangents[:, :1]
    np.testing.assert_array_equal(derivative("pull", attrs, x, sliced), derivative("pull", attrs, x, sliced.copy()))
