"""What is composed of our operators means what PyTorch or NumPy mean by it: values, and both derivatives."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812

import gradspec as gs
from gradspec.interop import compose

NUMBERS = np.array([[-3.5, -1.0, -0.25, 0.0], [1e-9, 0.5, 2.0, 40.0]])
"""Kinks (0), both sides of them, and a number whose exponential dwarfs the rest."""
POSITIVE = np.array([[0.25, 1.0, 3.0], [0.5, 2.0, 7.0]])
IMAGES = np.random.default_rng(0).standard_normal((2, 4, 3, 5))
CHANNELS = np.array([0.5, -1.0, 2.0, 0.25])

WITH_ZEROS = np.array([[2.0, 0, 3, -1.5, 0.5], [0, 5, 0, 1, 2], [-1, 2, 3, -4, 5], [7, 1, 2, 1, 0], [0, 0, 0, 0, 0]])

WHOLE = np.array([3.0, 2.0, -1.0, 0.0, 1.0, 2.0, 1.5, -2.0])

CASES: dict[str, tuple[Callable, Callable, tuple[np.ndarray, ...]]] = {
    "prelu": (compose.prelu, F.prelu, (NUMBERS[NUMBERS != 0], np.array([0.3]))),
    "elu": (compose.elu, F.elu, (NUMBERS,)),
    "elu alpha": (lambda x: compose.elu(x, 0.5), lambda x: F.elu(x, 0.5), (NUMBERS,)),
    "selu": (lambda x: compose.elu(x, 1.6732632423543772, gain=1.0507009873554805), F.selu, (NUMBERS,)),
    "celu": (lambda x: compose.celu(x, 2.0), lambda x: F.celu(x, 2.0), (NUMBERS,)),
    "expm1": (compose.exp_minus_one, torch.expm1, (NUMBERS,)),
    "hardsigmoid": (compose.hardsigmoid, F.hardsigmoid, (NUMBERS,)),
    "hardswish": (compose.hardswish, F.hardswish, (NUMBERS,)),
    "tan": (compose.tan, torch.tan, (NUMBERS,)),
    "asin": (compose.asin, torch.asin, (NUMBERS / 50,)),
    "acos": (compose.acos, torch.acos, (NUMBERS / 50,)),
    "asinh": (compose.asinh, torch.asinh, (NUMBERS,)),
    "acosh": (compose.acosh, torch.acosh, (POSITIVE + 1,)),
    "atanh": (compose.atanh, torch.atanh, (NUMBERS / 50,)),
    "sinh": (compose.sinh, torch.sinh, (NUMBERS / 4,)),
    "cosh": (compose.cosh, torch.cosh, (NUMBERS / 4,)),
    "log1p": (compose.log_one_plus, torch.log1p, (np.abs(NUMBERS),)),
    "mish": (compose.mish, F.mish, (NUMBERS,)),
    "softsign": (compose.softsign, F.softsign, (NUMBERS,)),
    "power 3": (lambda x: compose.power(x, 3), lambda x: x**3, (NUMBERS,)),
    "power 0": (lambda x: compose.power(x, 0), lambda x: x**0, (NUMBERS,)),
    "power -2": (lambda x: compose.power(x, -2), lambda x: x**-2, (POSITIVE,)),
    "power -0.5": (lambda x: compose.power(x, -0.5), lambda x: x**-0.5, (POSITIVE,)),
    "power -1.75": (lambda x: compose.power(x, -1.75), lambda x: x**-1.75, (POSITIVE,)),
    "power 0.5": (lambda x: compose.power(x, 0.5), lambda x: x**0.5, (POSITIVE,)),
    "power 0.75": (lambda x: compose.power(x, 0.75), lambda x: x**0.75, (POSITIVE,)),
    "variable power": (compose.variable_power, torch.pow, (POSITIVE, POSITIVE[::-1])),
    "power by a constant tensor": (
        lambda x: compose.variable_power(x, WHOLE),
        lambda x: torch.pow(x, torch.tensor(WHOLE)),
        (np.array([-2.0, -1.5, -3.0, 2.0, 0.0, 0.0, 0.0, -0.5]),),
    ),
    "log2": (lambda x: compose.log_to_base(x, 2), torch.log2, (POSITIVE,)),
    "log10": (lambda x: compose.log_to_base(x, 10), torch.log10, (POSITIVE,)),
    "log_sum_exp": (lambda x: compose.log_sum_exp(x, (0,), True), lambda x: torch.logsumexp(x, 0, True), (NUMBERS,)),
    "largest": (
        lambda x: compose.largest(x, (1, 3), False, ties="split"),
        lambda x: torch.amax(x, (1, 3)),
        (np.round(IMAGES),),
    ),
    "smallest": (
        lambda x: compose.smallest(x, (-1, 0), True, ties="split"),
        lambda x: torch.amin(x, (0, -1), True),
        (np.round(IMAGES),),
    ),
    "norm": (
        lambda x: compose.norm(x, 2.0, (1,), False),
        lambda x: torch.linalg.vector_norm(x, 2, 1),
        (WITH_ZEROS[:, :3],),
    ),
    "running maximum": (lambda x: compose.running_maximum(x, 1), lambda x: x.cummax(1)[0], (IMAGES,)),
    "running minimum": (lambda x: compose.running_minimum(x, 2), lambda x: x.cummin(2)[0], (IMAGES,)),
    "variance": (lambda x: compose.variance(x, (1, 2)), lambda x: x.var((1, 2)), (IMAGES,)),
    "variance of all": (
        lambda x: compose.variance(x, (0, 1), 0.0, True),
        lambda x: x.var((0, 1), correction=0, keepdim=True),
        (POSITIVE,),
    ),
    "product": (lambda x: compose.product(x, (1,), True), lambda x: x.prod(1, True), (WITH_ZEROS,)),
    "product of all": (lambda x: compose.product(x, (0, 1), False), lambda x: x.prod(), (WITH_ZEROS[:2],)),
    "product of nothing": (lambda x: compose.product(x, (1,), False), lambda x: x.prod(1), (WITH_ZEROS[:, :0],)),
    "running product": (lambda x: compose.running_product(x, 1), lambda x: x.cumprod(1), (WITH_ZEROS,)),
    "running product of columns": (lambda x: compose.running_product(x, -2), lambda x: x.cumprod(0), (WITH_ZEROS,)),
    "layer_norm": (
        lambda x, w, b: compose.layer_norm(x, 2, w, b),
        lambda x, w, b: F.layer_norm(x, (3, 5), w, b),
        (IMAGES, IMAGES[0, 0], IMAGES[0, 1]),
    ),
    "rms_norm": (
        lambda x, w: compose.rms_norm(x, 2, w),
        lambda x, w: F.rms_norm(x, (3, 5), w, 1e-5),
        (IMAGES, IMAGES[0, 0]),
    ),
    "group_norm": (
        lambda x, w, b: compose.group_norm(x, 2, w, b),
        lambda x, w, b: F.group_norm(x, 2, w, b),
        (IMAGES, CHANNELS, CHANNELS[::-1]),
    ),
    "instance_norm": (lambda x: compose.group_norm(x, 4), F.instance_norm, (IMAGES,)),
    "reflect": (
        lambda x: compose.pad(x, ((0, 0), (0, 0), (2, 1), (0, 4)), "reflect"),
        lambda x: F.pad(x, (0, 4, 2, 1), "reflect"),
        (IMAGES,),
    ),
    "replicate": (
        lambda x: compose.pad(x, ((0, 0), (0, 0), (2, 0), (1, 6)), "edge"),
        lambda x: F.pad(x, (1, 6, 2, 0), "replicate"),
        (IMAGES,),
    ),
    "circular": (
        lambda x: compose.pad(x, ((0, 0), (0, 0), (3, 1), (0, 5)), "wrap"),
        lambda x: F.pad(x, (0, 5, 3, 1), "circular"),
        (IMAGES,),
    ),
    "constant, negative": (
        lambda x: compose.pad(x, ((0, 0), (-1, 0), (2, -1), (-1, -1)), "constant", 7.0),
        lambda x: F.pad(x, (-1, -1, 2, -1, -1, 0), "constant", 7.0),
        (IMAGES,),
    ),
    "pixel_shuffle": (
        lambda x: compose.depth_to_space(x, 2, channels_first=True),
        lambda x: F.pixel_shuffle(x, 2),
        (IMAGES,),
    ),
    "tile": (lambda x: compose.tile(x, (2, 1, 3, 1)), lambda x: x.tile(2, 1, 3, 1), (IMAGES,)),
    "take": (
        lambda x: compose.take(x, np.array([[3, 1, 2], [2, 2, -4]]), 1),
        lambda x: x[:, torch.tensor([[3, 1, 2], [2, 2, 0]])],
        (IMAGES,),
    ),
    "split": (lambda x: compose.split(x, (1, 0, 4), -1)[2], lambda x: x.split((1, 0, 4), -1)[2], (IMAGES,)),
}

LOOSE = {"hardsigmoid": 2.0**-23}
"""Where torch computes a derivative with a constant rounded to float32, here 1/6."""


@pytest.mark.parametrize("name", CASES)
def test_values_and_derivatives_are_those_of_torch(name):
    ours, theirs, arrays = CASES[name]
    graph = gs.trace(ours, *(gs.f64[a.shape] for a in arrays), allow_unused=True)
    random = np.random.default_rng(1)
    tangents = [random.standard_normal(a.shape) for a in arrays]
    tensors = [torch.tensor(a.copy()) for a in arrays]
    value, tangent = torch.func.jvp(theirs, tuple(tensors), tuple(map(torch.tensor, tangents)))
    _, pullback = torch.func.vjp(theirs, *tensors)
    cotangent = random.standard_normal(value.shape)
    np.testing.assert_allclose(graph(*arrays), value, rtol=1e-13, atol=1e-14)
    np.testing.assert_allclose(ours(*arrays), value, rtol=1e-13, atol=1e-14)  # arrays are taken as variables are
    close = {"rtol": LOOSE.get(name, 1e-12), "atol": 1e-12}
    np.testing.assert_allclose(graph.jvp()(*arrays, *tangents)[1], tangent, **close)
    found = graph.vjp()(*arrays, cotangent)[1:]
    for ours_, theirs_ in zip(found, pullback(torch.tensor(cotangent)), strict=True):
        np.testing.assert_allclose(ours_, theirs_, **close)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("theirs", [np.mod, np.fmod])
def test_remainders_are_exact_and_have_the_sign_that_numpy_gives_them(theirs, dtype):
    numbers = np.array([0, -0.0, 5.5, -5.5, 0.1, -1e-3, 6e4, np.inf, -np.inf, np.nan], dtype)
    a, b = (m.ravel() for m in np.meshgrid(numbers, numbers))
    with np.errstate(all="ignore"):
        found, expected = compose.float_remainder(a, b, sign_of_divisor=theirs is np.mod), theirs(a, b)
    np.testing.assert_array_equal(found, expected)
    signed = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(found[signed]), np.signbit(expected[signed]))


@pytest.mark.parametrize(("function", "ends"), [("asin", (-1, 1)), ("acos", (-1, 1)), ("acosh", (1, np.inf))])
def test_inverse_functions_are_not_real_beyond_their_ends(function, ends):
    x = np.float16([-np.inf, -2, -1, 0, 1e-4, 1, 2, 60000, np.inf])
    with np.errstate(all="ignore"):
        y = getattr(compose, function)(x)
    assert np.array_equal(np.isnan(y), (x < ends[0]) | (x > ends[1]))


@pytest.mark.parametrize("function", ["asinh", "acosh"])
def test_logarithms_of_large_numbers_do_not_overflow(function):
    for dtype in (np.float16, np.float32):
        x = np.array([np.finfo(dtype).max, np.inf], dtype)
        y = getattr(compose, function)(x)
        np.testing.assert_allclose(y[0], getattr(np, function)(x.astype(float))[0], rtol=2 * np.finfo(dtype).eps)
        assert y[1] == np.inf


def test_a_derivative_of_a_product_is_that_of_the_other_numbers():
    """By a formula of its own: the product of all others, which no quotient gives where there are zeros."""
    x, g = WITH_ZEROS, np.random.default_rng(2).standard_normal(5)
    _, pulled = gs.trace(lambda x: compose.product(x, (1,), False), gs.f64[x.shape]).vjp()(x, g)
    others = [[np.delete(row, i).prod() for i in range(5)] for row in x]
    np.testing.assert_allclose(pulled, g[:, None] * others, rtol=1e-14)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_powers_at_special_values_are_those_of_c(kind):
    special = kind([0, -0.0, 1, -1, 0.5, -0.5, 2, -2, 3, -3, 1e20, -1e20, np.inf, -np.inf, np.nan])
    x, y = (m.ravel() for m in np.meshgrid(special, special))
    with np.errstate(all="ignore"):
        wanted = np.power(x, y)
    found = compose.variable_power(x, y)
    np.testing.assert_allclose(found, wanted, rtol=1e-14 if kind is np.float64 else 1e-6)
    np.testing.assert_array_equal(np.signbit(found[wanted == 0]), np.signbit(wanted[wanted == 0]))


def test_slopes_of_powers_of_zero_are_those_of_torch():
    y = np.array([2.0, 1.0, 0.5, 0.0, -1.0, 3.0])
    graph = gs.trace(lambda x: compose.variable_power(x, y), gs.f64[6])
    x = torch.zeros(6, dtype=torch.float64, requires_grad=True)
    torch.pow(x, torch.tensor(y)).sum().backward()
    np.testing.assert_array_equal(graph.vjp()(np.zeros(6), np.ones(6))[1], x.grad)
    np.testing.assert_array_equal(graph.jvp()(np.zeros(6), np.ones(6))[1], x.grad)


def test_prelu_at_the_kink_has_the_slope_below_in_both_modes():
    # torch's backward pass says so too, while its forward mode passes the whole tangent.
    graph, x, slope = gs.trace(compose.prelu, gs.f64[1], gs.f64[1]), np.zeros(1), np.array([0.3])
    assert graph.jvp(0)(x, slope, np.ones(1))[1].tolist() == [0.3]
    assert graph.vjp(0)(x, slope, np.ones(1))[1].tolist() == [0.3]


@pytest.mark.parametrize(("channels_first", "order"), [(True, (0, 1, 4, 2, 5, 3)), (False, (0, 3, 4, 1, 5, 2))])
def test_depth_to_space_and_back(channels_first, order):
    x = np.arange(2 * 8 * 2 * 3, dtype=np.float32).reshape(2, 8, 2, 3)
    parts = (2, 2, 2)
    expected = x.reshape(2, *parts, 2, 3).transpose(order).reshape(2, 2, 4, 6)
    y = compose.depth_to_space(x, 2, channels_first=channels_first)
    np.testing.assert_array_equal(y, expected)
    if not channels_first:
        np.testing.assert_array_equal(compose.space_to_depth(y, 2), x)


def test_what_is_no_number_to_the_power_of_0_is_1():
    assert compose.power(np.float64([np.nan, np.inf, 0.0]), 0).tolist() == [1.0, 1.0, 1.0]


def test_a_power_that_is_no_number_is_nan():
    assert np.isnan(compose.power(np.float64([-2.0]), 0.75)).all()


@pytest.mark.parametrize("exponent", [-0.25, -0.5, -1.5, -2])
def test_negative_powers_of_zero_are_infinite(exponent):
    graph = gs.trace(lambda x: compose.power(x, exponent), gs.f32[2])
    assert graph(np.float32([0, 1])).tolist() == [np.inf, 1]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: compose.pad(IMAGES, [(1, 1)]), "one pair for each axis"),
        (lambda: compose.pad(IMAGES[0, 0], [(-2, -2), (0, 0)]), "more than there is"),
        (lambda: compose.pad(IMAGES[0, 0], [(3, 0), (0, 0)], "reflect"), "more than 3 cells"),
        (lambda: compose.pad(IMAGES[0, 0], [(3, 0), (0, 0)], "mirror"), "not known"),
        (lambda: compose.take(IMAGES, np.array([4]), 1), "outside axis 1"),
        (lambda: compose.split(IMAGES, (1, 2), 1), "do not make up axis 1"),
        (lambda: compose.group_norm(IMAGES, 3), "3 groups"),
        (lambda: compose.tile(IMAGES, (1, 2)), "for each axis"),
        (lambda: compose.depth_to_space(IMAGES, 3, channels_first=True), "blocks of 3"),
    ],
)
def test_what_does_not_fit_is_refused(call, said):
    with pytest.raises((gs.ShapeError, gs.UnsupportedError), match=said):
        call()
