"""Every operator on every dtype: refused at once, or right, whether a kernel knows the dtype or NumPy does it."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gradspec as gs
from gradspec.domains import Interval
from gradspec.graph.types import DTYPES, STORED, DType
from graph.op_cases import Integers
from graph.test_op_laws import CASES, several

FLOATS = [d for d in DTYPES.values() if d.is_float]
INTEGERS = [d for d in DTYPES.values() if d.is_integer]


def traced(case: Any, dtype: DType) -> Any:
    try:
        return gs.trace(case.function, *(gs.i64[s.shape] if isinstance(s, Integers) else dtype[s] for s in case.inputs))
    except gs.DTypeError:
        return None


def arrays_of(case: Any, dtype: DType) -> list[np.ndarray]:
    return [
        a if isinstance(s, Integers) else np.abs(8 * a).astype(dtype.numpy)
        for a, s in zip(case.arrays(), case.inputs, strict=True)
    ]


@pytest.mark.rows(1)
@pytest.mark.parametrize("dtype", [*INTEGERS, gs.boolean], ids=str)
def test_compiled_graphs_of_integers_are_those_of_numpy(dtype):
    known = [(case, graph) for case in CASES if (graph := traced(case, dtype)) is not None]
    assert len(known) > 20
    for case, graph in known:
        arrays = arrays_of(case, dtype)
        theirs = several(gs.compile(graph, backend="numpy")(*arrays))
        for ours, wanted in zip(several(gs.compile(graph)(*arrays)), theirs, strict=True):
            assert ours.dtype == wanted.dtype, case.id
            assert np.array_equal(ours, wanted), case.id


# --- arithmetic of integers -------------------------------------------------------------------------------------------

ARITHMETIC: dict[str, Callable[..., Any]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "neg": lambda x, y: -x,
    "abs": lambda x, y: gs.abs(x),
    "relu": lambda x, y: gs.relu(x),
    "sum": lambda x, y: gs.sum(x, 0),
    "maximum": gs.maximum,
    "minimum": gs.minimum,
    "trunc_divide": gs.trunc_divide,
    "bitwise_and": lambda x, y: x & y,
    "bitwise_or": lambda x, y: x | y,
    "bitwise_xor": lambda x, y: x ^ ~y,
    "left_shift": lambda x, y: x << y,
    "right_shift": lambda x, y: x >> y,
    "clamp": lambda x, y: gs.clamp(x, -300, 100),
    "chain": lambda x, y: gs.maximum(x * y + 1, y) - gs.relu(x),
    "fold": lambda x, y: gs.fold(gs.reshape(x, (3, -1)), (x.shape[0] // 3 + 2,), (3,)),
}


def extremes(dtype: DType) -> np.ndarray:
    low, high = np.iinfo(dtype.numpy).min, np.iinfo(dtype.numpy).max
    return np.array([low, low + 1, high, high - 1, high // 2 + 1, 0, 1, 2, 7], dtype.numpy)


def wrapped(n: int, dtype: DType) -> int:
    low, high = int(np.iinfo(dtype.numpy).min), int(np.iinfo(dtype.numpy).max)
    return (n - low) % (high - low + 1) + low


@pytest.mark.parametrize("name", ARITHMETIC)
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers_wrap_around(name, dtype):
    """Sums and products of wrapped numbers are those of the numbers, wrapped; the specification does not wrap."""
    values = extremes(dtype)
    x, y = (a.ravel() for a in np.meshgrid(values, values))
    graph = gs.trace(ARITHMETIC[name], dtype[x.shape], dtype[x.shape], allow_unused=True)
    if name == "chain":
        x, y = x % 5, y % 5
    exact = gs.evaluate(graph, x, y, domain=gs.exact)
    wanted = np.array([wrapped(n, dtype) for n in exact.cells], dtype.numpy).reshape(exact.shape)
    for backend in ("cpu", "numpy"):
        assert np.array_equal(gs.compile(graph, backend=backend)(x, y), wanted), backend


REFUSED: dict[str, tuple[Callable[..., Any], DType, str]] = {
    "quotient": (lambda x: x / 2, gs.i32, "use trunc_divide, or gs.convert both to floats"),
    "floats": (lambda x: gs.trunc_divide(x, x), gs.f32, "use div"),
    "exp": (gs.exp, gs.u16, "floating-point operands, not u16.*gs.convert"),
    "mean": (gs.mean, gs.i64, "floating-point"),
    "sum of booleans": (gs.sum, gs.boolean, "sum needs numbers, not bool.*gs.convert"),
    "negative booleans": (gs.neg, gs.boolean, "neg needs numbers"),
    "booleans pooled": (lambda x: gs.max_pool(x, (2,)), gs.boolean, "max_pool needs numbers"),
    "bits of floats": (lambda x: x & x, gs.f32, "operands of bitwise_and are integers, not f32.*gs.convert"),
    "shifted truths": (lambda x: x << x, gs.boolean, "operands of left_shift are integers"),
    "fraction": (lambda x: x + 0.5, gs.i8, "0.5 is not an integer"),
    "too large": (lambda x: x + 300, gs.u8, "300 does not fit uint8"),
    "neither": (lambda x: gs.maximum(x, 2), gs.boolean, "2 is neither true nor false"),
    "name": (lambda x: gs.convert(x, "f32"), gs.f16, "'f32' is not a dtype; give one such as gs.f16"),
    "mixed": (lambda x: x + gs.convert(x, gs.f32), gs.f16, "one dtype"),
    "labels": (lambda x: gs.cross_entropy(np.zeros((3, 2)), x[:3]), gs.boolean, "labels are integers, not bool"),
    "indices": (lambda x: gs.max_gather(np.zeros(3), x, 1), gs.boolean, "indices are integers, not bool"),
}


@pytest.mark.parametrize(("function", "dtype", "message"), REFUSED.values(), ids=REFUSED)
def test_what_has_no_meaning_is_refused(function, dtype, message):
    with pytest.raises(gs.DTypeError, match=message):
        gs.trace(function, dtype[4])


# --- conversion -------------------------------------------------------------------------------------------------------

NUMBERS = [0.0, -0.0, 0.5, -0.5, 1.0, 2.75, -2.75, 127.9, 128.0, -129.0, 255.5, 32768.5, -32769.0, 65504.0, 65520.0]
NUMBERS += [1 + 2**-8, 1 + 2**-8 + 2**-40, 1 + 3 * 2**-8, 1 - 2**-9, 1 + 2**-11 + 2**-40, 2.0**-25, 1.5 * 2.0**-24]
NUMBERS += [2.0**31 - 1, 2.0**31, -(2.0**31), 2.0**32 - 1, 2.0**63, -(2.0**63), 2.0**64, 3e38, 3.4e38, 1e300, 2.0**-140]
LARGE = [2**53 + 1, 2**62 + 2**54 + 1, 2**62 + 2**54, 2**40 + 2**32 + 1, 2**63 - 1, 2**24 + 1, 2**31 + 2**7]
WHOLE = [*LARGE, *(-n for n in LARGE), 2**64 - 1, 2**63 + 2**55 + 1, 0, 1, 255, 256, -1, -128]


def rounded(value: float | int, dtype: DType) -> float:
    """To nearest, ties to even, as the number systems have it."""
    if dtype in STORED:
        return float(gs.spec.round_to([float(value)], dtype.name).tolist()[0])
    return float(gs.ieee(dtype.name).scalar(value))


def as_integer(value: float, dtype: DType) -> int:
    limits = np.iinfo(dtype.numpy)
    if np.isnan(value):
        return 0
    return int(min(max(int(value) if np.isfinite(value) else 2**70 * np.sign(value), limits.min), limits.max))


@pytest.mark.parametrize("source", FLOATS, ids=str)
def test_floats_are_converted(source):
    with np.errstate(over="ignore"):
        x = np.array([*NUMBERS, np.inf, -np.inf, np.nan]).astype(source.numpy)
    values = [float(v) for v in x]
    for target in DTYPES.values():
        y = gs.convert(x, target)
        assert y.dtype == target.numpy
        if target.is_float:
            wanted = np.array([rounded(v, target) for v in values])
            assert np.array_equal(y.astype(np.float64), wanted, equal_nan=True), target
            assert np.array_equal(np.signbit(y.astype(np.float64)), np.signbit(wanted)), target
        elif target.is_integer:
            assert y.tolist() == [as_integer(v, target) for v in values], target
        else:
            assert y.tolist() == [v != 0 for v in values], target


@pytest.mark.parametrize("source", INTEGERS, ids=str)
def test_integers_are_converted(source):
    values = [wrapped(n, source) for n in WHOLE]
    x = np.array(values, source.numpy)
    for target in DTYPES.values():
        y = gs.convert(x, target)
        assert y.dtype == target.numpy
        if target.is_float:
            assert y.astype(np.float64).tolist() == [rounded(n, target) for n in values], target
        else:
            wanted = [wrapped(n, target) for n in values] if target.is_integer else [n != 0 for n in values]
            assert y.tolist() == wanted, target


def test_truth_is_one_and_nothing_else():
    x = np.array([True, False])
    for target in DTYPES.values():
        assert gs.convert(x, target).astype(np.float64).tolist() == [1.0, 0.0]


@pytest.mark.parametrize("domain", [gs.exact, gs.ball(80), gs.interval, gs.ieee("f32"), gs.dual(gs.exact)], ids=str)
def test_every_number_system_converts(domain):
    """Integers that become floats are numbers of the system: their quotient is not that of Python's integers."""
    function = lambda x, n: gs.convert(gs.convert(x, gs.i8) - 1, gs.f32) / gs.convert(n, gs.f32) * x  # noqa: E731
    graph = gs.trace(function, gs.f32[4], gs.i64[4])
    x = [2.75, -2.75, 0.5, 1000.0]
    parts = [domain.scalar(n) / 3 * domain.scalar(v) for n, v in zip((1, -3, -1, 126), x, strict=True)]
    assert list(gs.evaluate(graph, x, [3] * 4, domain=domain).map(str).cells) == list(map(str, parts))


def test_enclosures_that_do_not_decide_are_refused():
    cells = gs.spec.Tensor((2,), [Interval(2.25, 2.75), Interval(-0.5, 0.5)])
    assert gs.spec.convert(cells, "i8").tolist() == [2, 0]
    with pytest.raises(gs.AmbiguityError, match="may be 0 or 1 as an integer"):
        gs.spec.convert(gs.spec.Tensor((1,), [Interval(0.5, 1.5)]), "i8")
    with pytest.raises(gs.AmbiguityError, match="may be zero or not"):
        gs.spec.convert(cells, "bool")


def test_cotangents_have_the_dtype_of_what_they_belong_to():
    x, y = np.float32([1, 2]), np.array([3, 4], ml_dtypes.bfloat16)
    function = lambda x, y: gs.sum(gs.convert(gs.convert(x, gs.f64) * gs.convert(y, gs.f64), gs.f16))  # noqa: E731
    value, pullback = gs.vjp(function, x, y)
    dx, dy = pullback(np.float16(0.5))
    assert (value.dtype, dx.dtype, dy.dtype) == (np.float16, np.float32, ml_dtypes.bfloat16)
    assert (dx.tolist(), dy.astype(float).tolist()) == ([1.5, 2.0], [0.5, 1.0])
    _, tangent = gs.jvp(function, (x, y), (np.float32([1, 0]), y))
    assert (tangent.dtype, float(tangent)) == (np.float16, 14.0)
