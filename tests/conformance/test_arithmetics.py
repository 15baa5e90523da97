"""Declared arithmetics: a right kernel of each is inside under its own, and outside without it on data made for it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import gradspec as gs
from conformance.test_enclosure import contains
from gradspec.conformance import Arithmetic, enclosure
from gradspec.interop.compose import layer_norm

F = np.float32
Rng = np.random.Generator


def sequential(x: Any) -> Any:
    """Sums over the last axis, one number after the other."""
    total = np.zeros(x.shape[:-1], x.dtype)
    for i in range(x.shape[-1]):
        total = total + x[..., i]
    return total


# --- kernels ----------------------------------------------------------------------------------------------------------


def one_pass(x: Any) -> Any:
    """Normalised by ``mean(x²) − mean(x)²``."""
    n = F(x.shape[-1])
    mean = (sequential(x) / n)[..., None]
    variance = (sequential(x * x) / n)[..., None] - mean * mean
    return (x - mean) / np.sqrt(variance + F(1e-5))


def generous_exp(x: Any) -> Any:
    """An exponential that is too large by all that it may."""
    return (np.exp(x.astype(float)) * (1 + 3.4 * 2.0**-24)).astype(F)


def online(x: Any, block: int = 1) -> tuple[Any, Any]:
    """The largest of each row, and the sum of ``exp(x − largest)``, scaled anew behind each block."""
    top, total = np.full((*x.shape[:-1], 1), -np.inf, F), np.zeros((*x.shape[:-1], 1), F)
    for start in range(0, x.shape[-1], block):
        part = x[..., start : start + block]
        new = np.maximum(top, part.max(-1, keepdims=True))
        total = total * generous_exp(top - new) + sequential(generous_exp(part - new))[..., None]
        top = new
    return top, total


def online_softmax(x: Any) -> Any:
    top, total = online(x)
    return generous_exp(x - top) / total


def online_log_softmax(x: Any) -> Any:
    top, total = online(x)
    return x - top - np.log(total)


def folded(x: Any, mean: Any, scale: Any, bias: Any) -> Any:
    """``(x − mean)·scale + bias`` as ``x·scale + (bias − mean·scale)``."""
    return x * scale + (bias - mean * scale)


def one_accumulator(x: Any, w: Any) -> Any:
    """The mean of all results of a matrix product, with a single accumulator for all products."""
    products = (x[:, None, :] * w.T[None]).reshape(1, -1)
    return (sequential(products) / F(x.shape[0] * w.shape[1]))[0]


def through_transforms(x: Any, w: Any) -> Any:
    """A circular convolution by products of transforms."""
    n = x.shape[-1] + w.shape[-1] - 1
    full = np.fft.irfft(np.fft.rfft(x, n).astype(np.complex64) * np.fft.rfft(w[0, 0, ::-1], n).astype(np.complex64), n)
    return full[..., w.shape[-1] - 1 : x.shape[-1]].astype(F)


def fast_softmax(x: Any) -> Any:
    """With the exponential of CUDA's fast mode, off by what its table allows."""
    z = (x - x.max(-1, keepdims=True)).astype(F)
    e = (np.exp(z.astype(float)) * (1 + (1.9 + 1.17 * np.abs(z)) * 2.0**-23 * np.sign(np.sin(9 * z)))).astype(F)
    return e * ((1 / sequential(e)) * F(1 - 3 * 2.0**-24))[..., None]


# --- data -------------------------------------------------------------------------------------------------------------


def normal(*shapes: Any) -> Callable[[Rng], list[Any]]:
    return lambda rng: [rng.normal(size=s).astype(F) for s in shapes]


def far(*shapes: Any) -> Callable[[Rng], list[Any]]:
    """Small differences between large numbers."""
    return lambda rng: [(rng.normal(size=s) + 1000).astype(F) for s in shapes]


def rising(*shapes: Any) -> Callable[[Rng], list[Any]]:
    return lambda rng: [np.sort(rng.random(s) / 8).astype(F) for s in shapes]


def equal(*shapes: Any) -> Callable[[Rng], list[Any]]:
    return lambda rng: [np.full(s, rng.random() + 0.1, F) for s in shapes]


def with_one_large(*shapes: Any) -> Callable[[Rng], list[Any]]:
    def make(rng: Rng) -> list[Any]:
        x, *rest = (rng.normal(size=s).astype(F) for s in shapes)
        x[..., 0] *= F(1e5)
        return [x, *rest]

    return make


@dataclass(frozen=True)
class Declared:
    """A function, a kernel of it, the arithmetic that the kernel needs, and data on which it shows."""

    id: str
    function: Callable[..., Any]
    kernel: Callable[..., Any]
    data: Callable[[Rng], list[Any]]
    made: Callable[[Rng], list[Any]]
    declared: dict[str, Any] = field(default_factory=dict)


def affine(x: Any, mean: Any, scale: Any, bias: Any) -> Any:
    return (x - mean) * scale + bias


ROW, VECTORS = (4, 200), ((40,), (40,), (40,), (40,))
TABLE = [
    Declared(
        "moments",
        lambda x: layer_norm(x, 1),
        one_pass,
        normal(ROW),
        far(ROW),
        {"variance_by_moments": True},
    ),
    Declared(
        "online softmax",
        lambda x: gs.softmax(x, axis=-1),
        online_softmax,
        normal(ROW),
        rising((2, 2000)),
        {"online_softmax": 1},
    ),
    Declared(
        "online log_softmax",
        lambda x: gs.log_softmax(x, axis=-1),
        online_log_softmax,
        normal(ROW),
        rising((2, 4000)),
        {"online_softmax": 1},
    ),
    Declared("folded", affine, folded, normal(*VECTORS), far(*VECTORS), {"reassociated": True}),
    Declared(
        "one accumulator",
        lambda x, w: gs.mean(x @ w),
        one_accumulator,
        normal((20, 30), (30, 20)),
        equal((60, 60), (60, 60)),
        {"reassociated": True},
    ),
    Declared(
        "tf32",
        lambda x, w: x @ w,
        lambda x, w: (rounded(x, 11) @ rounded(w, 11)).astype(F),
        normal((5, 64), (64, 7)),
        normal((5, 64), (64, 7)),
        {"tf32": True},
    ),
    Declared(
        "normwise",
        lambda x, w: gs.conv1d(x, w),
        through_transforms,
        normal((1, 256), (1, 1, 9)),
        with_one_large((1, 256), (1, 1, 9)),
        {"normwise": 4.0},
    ),
    Declared(
        "fast softmax",
        lambda x: gs.softmax(x * 8.0, axis=-1),
        lambda x: fast_softmax(x * F(8)),
        normal(ROW),
        normal((4, 20)),
        {"fast_math": True},
    ),
    Declared(
        "functions",
        lambda x: gs.exp(x),
        lambda x: (np.exp(x.astype(float)) * (1 + 2.0**-20)).astype(F),
        normal(ROW),
        normal(ROW),
        {"function_error": 2.0**-19},
    ),
]


def rounded(x: Any, bits: int) -> Any:
    m, e = np.frexp(np.asarray(x, np.float64))
    return np.ldexp(np.rint(np.ldexp(m, bits)), e - bits)


def is_inside(row: Declared, arrays: list[Any], declared: dict[str, Any]) -> bool:
    graph = gs.trace(row.function, *(gs.f32[a.shape] for a in arrays))
    low, high = enclosure(graph, *arrays, arithmetic=Arithmetic.of("f32", **declared))
    return contains(low, row.kernel(*arrays), high)


def test_blocks_are_scaled_less_often_than_cells() -> None:
    x = np.random.default_rng(0).normal(size=(3, 512)).astype(F)
    graph = gs.trace(lambda x: gs.softmax(x, axis=-1), gs.f32[x.shape])
    widths = [np.ptp(enclosure(graph, x, arithmetic=Arithmetic.of("f32", online_softmax=b)), axis=0) for b in (1, 64)]
    assert np.all(widths[1] < widths[0] / 2)
    top, total = online(x, 64)
    low, high = enclosure(graph, x, arithmetic=Arithmetic.of("f32", online_softmax=64))
    assert contains(low, generous_exp(x - top) / total, high)


def test_each_format_has_its_accumulator() -> None:
    """Products of float16 added up in float16, and those of float32 as usual."""
    rng = np.random.default_rng(3)
    x, w = (rng.normal(size=s).astype(np.float16) for s in ((4, 300), (300, 5)))
    total = np.zeros((4, 5), np.float16)
    for k in range(300):
        total = total + x[:, k, None] * w[None, k]
    how = Arithmetic.of("f32", accumulators={"f16": "f16"})
    inside = [contains(*_around(gs.f16, x, w, total, arithmetic)) for arithmetic in (None, Arithmetic.of("f32"), how)]
    assert inside == [False, False, True]
    wide = [a.astype(F) for a in (x, w)]
    assert not contains(*_around(gs.f32, *wide, total, how))


def test_kinds_of_sums_have_their_own() -> None:
    """A transposed convolution in bfloat16 that stores the sum over channels of each tap, and adds those up."""
    rng = np.random.default_rng(5)
    x, w = (rng.normal(size=s).astype(gs.bf16.numpy) for s in ((64, 9), (64, 1, 7)))
    total = np.zeros((1, 15), gs.bf16.numpy)
    for tap in range(7):
        part = (x.astype(F).T @ w[:, :, tap].astype(F)).T.astype(gs.bf16.numpy)
        total[:, tap : tap + 9] = total[:, tap : tap + 9] + part
    graph = gs.trace(gs.conv_transpose1d, gs.bf16[x.shape], gs.bf16[w.shape])
    widths = {}
    for declared in (
        {},
        {"parts": ["bf16 conv"]},
        {"parts": ["bf16 conv_transpose"]},
        {"accumulators": {"bf16": "bf16"}},
    ):
        low, high = enclosure(graph, x, w, arithmetic=Arithmetic.of("bf16", **declared))
        widths[str(declared)] = float(np.max(high - low))
        assert contains(low, total, high) is ("transpose" in str(declared) or "accumulators" in declared)
    assert widths["{'parts': ['bf16 conv_transpose']}"] < 0.1 * widths["{'accumulators': {'bf16': 'bf16'}}"]


def _around(dtype: Any, x: Any, w: Any, got: Any, how: Any) -> tuple[Any, Any, Any]:
    graph = gs.trace(lambda x, w: x @ w, dtype[x.shape], dtype[w.shape])
    low, high = enclosure(graph, x, w, arithmetic=how)
    return low, got, high


def test_what_is_no_arithmetic_is_refused() -> None:
    with pytest.raises(TypeError, match="no fast, faster; declare some of flush_to_zero, truncating"):
        Arithmetic.of("f32", fast=True, faster=True)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.id)
def test_a_right_kernel_is_inside_under_its_arithmetic(row: Declared) -> None:
    rng = np.random.default_rng(0)
    for data in (row.data, row.made) * 4:
        assert is_inside(row, data(rng), row.declared)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.id)
def test_it_is_outside_without_it_on_data_made_for_it(row: Declared) -> None:
    assert not is_inside(row, row.made(np.random.default_rng(1)), {})
