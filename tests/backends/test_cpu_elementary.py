"""The elementary functions of the kernels, against correctly rounded values."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flint import arb, ctx

from backends.elementary_kernels import Arguments
from gradspec.backends import numpy as numpy_backend
from gradspec.codegen import cache
from gradspec.codegen.records import Block, Operand, block_address
from gradspec.domains.ball import arb_normal_cdf, arb_normal_density
from gradspec.ops.pointwise import NONE, NORMAL_CDF, NORMAL_DENSITY

FORMATS = {"f32": np.float32, "f64": np.float64}
LEAST = {"f32": -104.0, "f64": -746.0}
MOST = {"f32": 88.7, "f64": 709.7}
BEYOND = {"f32": -14.4, "f64": -38.5}
ERRORS = {
    "exp": (1.6, 0.8),
    "any_exp": (1.6, 0.8),
    "log": (1.4, 0),
    "any_log": (1.4, 0),
    "log1p": (1.4, 0),
    "softplus": (2.2, 0.8),
    "sigmoid": (3.0, 0.8),
    "tanh": (3.2, 0),
    "power": (3.2, 1),
    "normal_density": (3.5, 1.6),
    "normal_cdf": (7.0, 2.2),
}
"""Of normal results in units of the roundoff, and of subnormal ones in units of the smallest number."""

IN_BALLS: dict[str, Callable[[Any, float], Any]] = {
    **dict.fromkeys(("exp", "any_exp"), lambda x, p: x.exp()),
    **dict.fromkeys(("log", "any_log"), lambda x, p: x.log()),
    "log1p": lambda x, p: x.log1p(),
    "softplus": lambda x, p: x.exp().log1p(),
    "sigmoid": lambda x, p: 1 / (1 + (-x).exp()),
    "tanh": lambda x, p: x.tanh(),
    "power": lambda x, p: (x.log() * arb(p)).exp(),
    "normal_density": lambda x, p: arb_normal_density(x),
    "normal_cdf": lambda x, p: arb_normal_cdf(x),
}
IN_DOUBLES: dict[str, Callable[[np.ndarray, float], np.ndarray]] = {
    **dict.fromkeys(("exp", "any_exp"), lambda x, p: np.exp(x)),
    **dict.fromkeys(("log", "any_log"), lambda x, p: np.log(x)),
    "log1p": lambda x, p: np.log1p(x),
    "softplus": lambda x, p: np.logaddexp(0, x),
    "sigmoid": lambda x, p: 1 / (1 + np.exp(-x)),
    "tanh": lambda x, p: np.tanh(x),
    "power": lambda x, p: x**p,
    "normal_density": lambda x, p: numpy_backend.apply(NORMAL_DENSITY, NONE, x)[0],
    "normal_cdf": lambda x, p: numpy_backend.apply(NORMAL_CDF, NONE, x)[0],
}


def applied(operation: str, format: str, x: np.ndarray, parameter: float = 1.0) -> np.ndarray:
    y = np.empty_like(x)
    block = Block(Arguments(Operand(0), Operand(1), x.size, parameter)).at([x.ctypes.data, y.ctypes.data])
    cache.kernel("backends.elementary_kernels", f"{operation}:{format}")(block_address(block), 0, 1, 0)
    return y


def errors(operation: str, x: np.ndarray, y: np.ndarray, parameter: float) -> tuple[float, float]:
    """The largest relative error of normal results, and the largest error of subnormal ones."""
    normal = float(np.finfo(x.dtype).tiny)
    if x.dtype == np.float32:
        wanted = IN_DOUBLES[operation](x.astype(np.float64), parameter)
        off = np.abs(y.astype(np.float64) - wanted)
        is_normal = np.abs(wanted) >= normal
        return (off[is_normal] / np.abs(wanted[is_normal])).max(initial=0.0), off[~is_normal].max(initial=0.0)
    relative = absolute = 0.0
    for a, b in zip(x.tolist(), y.tolist(), strict=True):
        exact = IN_BALLS[operation](arb(a), parameter)
        off = abs(arb(b) - exact)
        if abs(exact) >= normal:
            relative = max(relative, float(off / abs(exact)))
        else:
            absolute = max(absolute, float(off))
    return relative, absolute


NEAR_ONE = [(1.0, 2.0), (1.0, 1.001), (0.7, 1.0), (1.0, 1e6), (1e-3, 1e3), (1e30, 3e38), (1e-40, 1e-36)]
RANGES: dict[str, list[tuple[Any, Any]]] = {
    "exp": [(LEAST, 0.0), (-20.0, 0.0), (-1.0, 0.0), (-1e-3, 0.0)],
    "any_exp": [(LEAST, MOST), (-1.0, 1.0), (-1e-3, 1e-3), (80.0, 88.0)],
    "log": NEAR_ONE,
    "any_log": NEAR_ONE,
    "log1p": [(0.0, 1.0), (0.0, 1e-3), (0.4, 0.6)],
    "softplus": [(LEAST, 100.0), (-2.0, 2.0)],
    "sigmoid": [(LEAST, 20.0), (-2.0, 2.0)],
    "tanh": [(-12.0, 12.0), (-1.0, 1.0), (-0.01, 0.01), (0.1, 0.3)],
    "power": [(0.5, 2.0), (0.0, 100.0), (1e-12, 1e-10), (1e10, 1e12)],
    "normal_density": [(BEYOND, 14.0), (-2.0, 2.0)],
    "normal_cdf": [(BEYOND, 8.0), (-2.0, 2.0), (-1.0, 0.0)],
}
CASES = [(operation, *ends) for operation, ranges in RANGES.items() for ends in ranges]
EXPONENTS = [0.375, 1.5, -0.75, -3.0]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(("operation", "start", "end"), CASES)
def test_errors(operation, start, end, format):
    number = FORMATS[format]
    ends = [value[format] if isinstance(value, dict) else value for value in (start, end)]
    x = np.random.default_rng(1).uniform(*ends, 500_000 if format == "f32" else 2_000).astype(number)
    x = x[x != 1] if "log" in operation else x[x != 0]
    normal, subnormal = ERRORS[operation]
    before, ctx.prec = ctx.prec, 160
    try:
        for parameter in EXPONENTS if operation == "power" else [1.0]:
            relative, absolute = errors(operation, x, applied(operation, format, x, parameter), parameter)
            assert relative <= normal * np.finfo(number).eps / 2
            assert absolute <= subnormal * float(np.finfo(number).smallest_subnormal)
    finally:
        ctx.prec = before


@pytest.mark.parametrize("format", FORMATS)
def test_special_values(format):
    number = FORMATS[format]
    inf, nan = np.inf, np.nan
    payload = np.array([0x7FC12345], np.uint32).view(np.float32).astype(number)[0]
    x = np.array([0.0, -0.0, -inf, -1e30, LEAST[format], nan, payload, -np.finfo(number).tiny], number)
    for operation in ("exp", "any_exp"):
        np.testing.assert_array_equal(applied(operation, format, x), number([1, 1, 0, 0, 0, nan, nan, 1]))
    assert applied("log", format, np.ones(3, number)).tolist() == [0.0] * 3

    def at(operation: str, *values: float) -> list[float]:
        return applied(operation, format, number(values)).tolist()

    largest, smallest = np.finfo(number).max, np.finfo(number).smallest_subnormal
    assert at("any_exp", inf, 1e30, MOST[format] + 0.1, largest) == [inf] * 4
    np.testing.assert_array_equal(
        at("any_log", 1, 0, -0.0, inf, -1, -inf, -smallest, nan), [0, -inf, -inf, inf] + [nan] * 4
    )
    assert np.isfinite(at("any_log", smallest, largest)).all()
    assert at("tanh", 0.0, inf, -inf, largest, smallest) == [0, 1, -1, 1, smallest]
    assert np.signbit(at("tanh", -0.0, -smallest)).all()
    assert at("normal_cdf", inf, -inf, largest, -largest, 0.0) == [1, 0, 1, 0, 0.5]
    assert at("normal_density", inf, -inf, largest) == [0, 0, 0]
    for operation in ("tanh", "sigmoid", "softplus", "normal_cdf", "normal_density", "power"):
        assert np.isnan(at(operation, nan))


@pytest.mark.parametrize("format", FORMATS)
def test_powers_of_infinity_and_powers_that_overflow(format):
    x = FORMATS[format]([np.inf, 1e30, 1e-30])
    assert applied("power", format, x, 2.5)[0] == np.inf
    assert applied("power", format, x, -2.5)[0] == 0
    assert applied("power", format, x, 1e4).tolist() == [np.inf, np.inf, 0.0]
    assert applied("power", format, x, -1e4).tolist() == [0.0, 0.0, np.inf]


@pytest.mark.parametrize("format", FORMATS)
def test_vectors_and_single_numbers_agree(format):
    """Every remainder of a vector's width gives the same bits as the numbers one by one."""
    x = np.random.default_rng(2).uniform(-40, 0, 37).astype(FORMATS[format])
    for operation in ("exp", "tanh", "normal_cdf"):
        wanted = np.concatenate([applied(operation, format, x[i : i + 1].copy()) for i in range(len(x))])
        for n in range(1, len(x) + 1):
            assert applied(operation, format, x[:n].copy()).tobytes() == wanted[:n].tobytes()
