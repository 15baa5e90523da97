"""The exponential and the logarithm of the kernels, against correctly rounded values."""

import numpy as np
import pytest
from flint import arb, ctx

from gradspec.runtime import cache

FORMATS = {"f32": np.float32, "f64": np.float64}
LEAST = {"f32": -104.0, "f64": -746.0}
ERRORS = {"exp": 1.6, "log": 1.4}
"""In units of the roundoff; where exponentials are subnormal, 0.8 of the smallest number."""


@pytest.fixture(autouse=True)
def compiled_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels of the tests depend on files that the cache does not count among their sources."""
    monkeypatch.setenv("GRADSPEC_CACHE_DIR", "off")


def applied(operation: str, format: str, x: np.ndarray) -> np.ndarray:
    y = np.empty_like(x)
    block = np.array([x.ctypes.data, y.ctypes.data, x.size], np.int64)
    cache.kernel("backends.elementary_kernels", f"{operation}:{format}")(block.ctypes.data, 0, 1, 0)
    return y


def errors(operation: str, x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """The largest relative error of normal results, and the largest error of subnormal ones."""
    normal = float(np.finfo(x.dtype).tiny)
    if x.dtype == np.float32:
        wanted = getattr(np, operation)(x.astype(np.float64))
        off = np.abs(y.astype(np.float64) - wanted)
        is_normal = np.abs(wanted) >= normal
        return (off[is_normal] / np.abs(wanted[is_normal])).max(), off[~is_normal].max(initial=0.0)
    relative = absolute = 0.0
    for a, b in zip(x.tolist(), y.tolist(), strict=True):
        exact = getattr(arb(a), operation)()
        off = abs(arb(b) - exact)
        if abs(exact) >= normal:
            relative = max(relative, float(off / abs(exact)))
        else:
            absolute = max(absolute, float(off))
    return relative, absolute


RANGES = {
    "exp": [(1.0, 0.0), (0.2, 0.0), (0.01, 0.0), (1e-5, 0.0)],
    "log": [(1.0, 2.0), (1.0, 1.001), (0.7, 1.0), (1.0, 1e6), (1e-3, 1e3), (1e30, 3e38), (1e-40, 1e-36)],
}
CASES = [(operation, *ends) for operation, ranges in RANGES.items() for ends in ranges]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(("operation", "start", "end"), CASES)
def test_errors(operation, start, end, format):
    number = FORMATS[format]
    low = start * LEAST[format] if operation == "exp" else start
    x = np.random.default_rng(1).uniform(low, end, 1_000_000 if format == "f32" else 3_000).astype(number)
    x = x[x != 1] if operation == "log" else x
    before, ctx.prec = ctx.prec, 160
    try:
        relative, absolute = errors(operation, x, applied(operation, format, x))
    finally:
        ctx.prec = before
    assert relative <= ERRORS[operation] * np.finfo(number).eps / 2
    assert absolute <= 0.8 * float(np.finfo(number).smallest_subnormal)


@pytest.mark.parametrize("format", FORMATS)
def test_special_values(format):
    number = FORMATS[format]
    nan = np.array([0x7FC12345], np.uint32).view(np.float32).astype(number)[0]  # with a payload
    x = np.array([0.0, -0.0, -np.inf, -1e30, LEAST[format], np.nan, nan, -np.finfo(number).tiny], number)
    np.testing.assert_array_equal(applied("exp", format, x), number([1, 1, 0, 0, 0, np.nan, np.nan, 1]))
    assert applied("log", format, np.ones(3, number)).tolist() == [0.0] * 3


@pytest.mark.parametrize("format", FORMATS)
def test_vectors_and_single_numbers_agree(format):
    """Every remainder of a vector's width gives the same bits as the numbers one by one."""
    x = np.random.default_rng(2).uniform(-40, 0, 37).astype(FORMATS[format])
    wanted = np.concatenate([applied("exp", format, x[i : i + 1].copy()) for i in range(len(x))])
    for n in range(1, len(x) + 1):
        assert applied("exp", format, x[:n].copy()).tobytes() == wanted[:n].tobytes()
