"""Quantisation at the ends of its range, in every number system, and what is refused; integers that are multiplied."""

from fractions import Fraction
from math import inf, nan

import numpy as np
import pytest

import gradspec as gs

LIMITS = {gs.i8: (-128, 127), gs.u8: (0, 255), gs.i16: (-32768, 32767), gs.u16: (0, 65535)}


@pytest.mark.parametrize("dtype", LIMITS, ids=str)
@pytest.mark.parametrize("source", [gs.f16, gs.bf16, gs.f32, gs.f64], ids=str)
def test_ties_go_to_even_before_the_zero_point_and_ends_are_the_last(dtype, source):
    low, high = LIMITS[dtype]
    x = np.array([-1.5, -0.5, 0.5, 1.5, 2.5, -0.0, nan, inf, -inf, 1e4, -1e4], source.numpy)
    for zero in (low, 1, high):
        levels = [-2, 0, 0, 2, 2, 0, 0, 10**9, -(10**9), float(x[9]), float(x[10])]
        expected = [min(max(int(level) + zero, low), high) for level in levels]
        assert gs.spec.quantize(x.astype(float), 1.0, zero, dtype.name).tolist() == expected
        for backend in ("numpy", "cpu"):
            graph = gs.trace(lambda x, zero=zero: gs.quantize(x, 1.0, zero, dtype), source[x.shape])
            result = gs.compile(graph, backend=backend)(x)
            assert (result.dtype, result.tolist()) == (dtype.numpy, expected)


@pytest.mark.parametrize("dtype", LIMITS, ids=str)
def test_integers_come_back_as_they_were(dtype):
    low, high = LIMITS[dtype]
    q = np.arange(low, high + 1, dtype=dtype.numpy)
    for scale in (0.1, -3.7, 2.0**-20):
        numbers = gs.dequantize(q, scale, dtype.numpy.type(high // 3))
        np.testing.assert_array_equal(gs.quantize(numbers, scale, dtype.numpy.type(high // 3)), q)


def test_rationals_are_rounded_once():
    """In float32 the quotient is exactly one half; in truth it is a little more."""
    graph = gs.trace(lambda x, s: gs.quantize(x, s), gs.f32[1], gs.f32[()])
    x, scale = np.float32([0.75]), np.float32(1.5 - 2**-24)
    assert graph(x, scale).tolist() == [0]
    assert gs.evaluate(graph, x, scale, domain=gs.ieee("f32")).tolist() == [0]
    below = Fraction(3, 2) - Fraction(1, 2**24)
    assert gs.spec.quantize([Fraction(3, 4)], below).tolist() == [1]
    assert gs.evaluate(graph, [0.75], gs.exact.tensor(below), domain=gs.exact).tolist() == [1]


def test_enclosures_must_decide():
    graph = gs.trace(lambda x: gs.quantize(x, 0.5), gs.f64[1])
    assert gs.evaluate(graph, gs.interval.tensor([0.9], [1.1]), domain=gs.interval).tolist() == [2]
    assert gs.evaluate(graph, gs.ball(60).tensor([1]), domain=gs.ball(60)).tolist() == [2]
    assert gs.evaluate(graph, gs.interval.tensor([1e3], [inf]), domain=gs.interval).tolist() == [255]
    with pytest.raises(gs.AmbiguityError, match="quantised to 2 or to 3"):
        gs.evaluate(graph, gs.interval.tensor([0.9], [1.3]), domain=gs.interval)


ENDS = (np.zeros((2, 6), np.float32), np.ones((2, 4), np.float32))
REFUSED = {
    "an integer operand": (lambda: gs.quantize(np.int32([1]), np.int32(1)), gs.DTypeError, "floating-point"),
    "32 bits": (lambda: gs.quantize(ENDS[0], 1.0, np.int32(0)), gs.DTypeError, "i32 is not known.*gs.round"),
    "two dtypes": (lambda: gs.quantize(ENDS[0], 1.0, np.int8(0), gs.u8), gs.DTypeError, "u8 .*zero point is i8"),
    "blocks": (lambda: gs.quantize(*ENDS), gs.ShapeError, r"\(2, 4\) does not fit.*\(2, 6\)"),
    "axes": (lambda: gs.quantize(ENDS[0], ENDS[1][None]), gs.ShapeError, r"\(1, 2, 4\) does not fit"),
    "a zero point too large": (lambda: gs.quantize(ENDS[0], 1.0, 300), gs.DTypeError, "300"),
    "64 bits back": (lambda: gs.dequantize(np.int64([1]), 1.0), gs.DTypeError, "i64"),
    "floats back": (lambda: gs.dequantize(ENDS[0], 1.0), gs.DTypeError, "f32"),
    "other zero points back": (lambda: gs.dequantize(np.int8([1]), 1.0, np.uint8(0)), gs.DTypeError, "one dtype"),
    "sums with a zero point": (lambda: gs.dequantize(np.int32([1]), 1.0, 3), gs.DTypeError, "subtract it"),
    "a dtype of the specification": (lambda: gs.spec.quantize([1.0], 1.0, 0, "i32"), gs.DTypeError, "not to 'i32'"),
    "products of bytes": (lambda: gs.matmul(np.int8([[1]]), np.int8([[1]])), gs.DTypeError, r"gs\.convert\(x, gs\.i32"),
    "a transposed convolution": (
        lambda: gs.conv_transpose1d(np.int32([[1]]), np.int32([[[1]]])),
        gs.DTypeError,
        "floating-point",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused(name):
    call, error, message = REFUSED[name]
    with pytest.raises(error, match=message):
        call()


def quantises(x):
    return gs.dequantize(gs.quantize(x, 0.5), 0.5)


def test_a_derivative_is_an_error_in_every_place():
    import jax
    import torch

    x, dual = np.float32([1, 2]), gs.dual(gs.exact)
    graph = gs.trace(quantises, gs.f32[2])
    calls = [
        lambda: graph.jvp(),
        lambda: graph.vjp(),
        lambda: gs.evaluate(graph, dual.tensor([1, 2], [0, 1]), domain=dual),
        lambda: jax.grad(lambda x: gs.to_jax(graph)(x).sum())(x),
        lambda: jax.jvp(gs.to_jax(graph), (x,), (x,)),
        lambda: gs.to_torch(graph)(torch.ones(2, requires_grad=True)).sum().backward(),
    ]
    for call in calls:
        with pytest.raises(gs.UnsupportedError, match=r"quantize is a staircase.*gs\.detach"):
            call()
    assert gs.evaluate(graph, dual.tensor([1, 2]), domain=dual).map(lambda d: d.value).tolist() == [1, 2]
    assert gs.to_torch(graph)(torch.tensor([0.3, 2.2])).tolist() == [0.5, 2.0]


@pytest.mark.rows(1)
@pytest.mark.parametrize("dtype", [gs.i32, gs.i64, gs.u32, gs.u64], ids=str)
def test_products_of_integers_wrap_around(dtype):
    """Compiled or not; NumPy's own integers are the reference."""
    random, limits = np.random.default_rng(3), np.iinfo(dtype.numpy)
    a, b = (random.integers(limits.min, limits.max, s, dtype.numpy, endpoint=True) for s in ((9, 300), (300, 17)))
    x, w = a.reshape(1, 9, 12, 25), b.reshape(-1)[: 8 * 3 * 9].reshape(8, 3, 3, 3)
    bias = b[:8, 0].copy()
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (0, 0)))
    taps = np.lib.stride_tricks.sliding_window_view(padded[0, 3:6], (3, 3), (1, 2))[:, ::2, ::2]
    first = np.zeros((2, 6, 12), dtype.numpy)
    for m in range(2):  # the second of three groups has channels 3 to 5, and here two outputs
        first[m] = (taps * w[:6].reshape(3, 2, 3, 3, 3)[1, m][:, None, None]).sum((0, 3, 4), dtype.numpy) + bias[2 + m]
    for backend in ("numpy", "cpu"):
        product = gs.compile(gs.trace(gs.matmul, dtype[a.shape], dtype[b.shape]), backend=backend)(a, b)
        np.testing.assert_array_equal(product, a @ b, strict=True)
        conv = gs.trace(lambda x: gs.conv2d(x, w[:6], bias[:6], 2, (1, 0), groups=3), dtype[x.shape])
        np.testing.assert_array_equal(gs.compile(conv, backend=backend)(x)[0, 2:4], first, strict=True)


def test_quantised_convolutions_are_compiled():
    def network(q, w):
        return gs.conv2d(gs.convert(q, gs.i32) - 3, gs.convert(w, gs.i32), padding=1)

    plan = gs.compile(network, gs.u8[1, 8, 9, 9], gs.i8[4, 8, 3, 3]).plan
    assert all(step.task is not None for step in plan.steps)
