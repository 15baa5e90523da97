"""Backward passes in the forms that kernels have them: every one of them is inside, and what is far off is not."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import gradspec as gs
from conformance.test_enclosure import added_up, contains
from gradspec.conformance import Arithmetic, enclosed_outputs, enclosure

DERIVED = {"reassociated": True, "variance_by_moments": True}
"""What is permitted to derivatives, which have many formulas."""
Rng = np.random.Generator


class Kernel:
    """Arithmetic that rounds every step to one dtype, and adds up in an order of its own."""

    def __init__(self, dtype: Any, rng: Rng) -> None:
        self.number, self.rng = dtype, rng

    def sum(self, x: Any, axis: int = -1) -> Any:
        """One number after the other, in a random order, or the largest first, which swallows the others."""
        x = np.moveaxis(x, axis, -1)
        order = np.argsort(-np.abs(x), -1) if self.rng.random() < 0.3 else self.rng.permutation(x.shape[-1])
        x = np.take_along_axis(x, np.broadcast_to(order, x.shape), -1)
        total = np.zeros(x.shape[:-1], x.dtype)
        for i in range(x.shape[-1]):
            total = total + x[..., i]
        return np.expand_dims(total, axis)

    def mean(self, x: Any, axis: int = -1) -> Any:
        n = self.number(x.shape[axis])
        return self.sum(x, axis) / n if self.rng.random() < 0.5 else self.sum(x * (self.number(1) / n), axis)

    def statistics(self, x: Any, eps: float) -> tuple[Any, Any]:
        """The mean and the inverse of the deviation, by the deviations or by the squares."""
        mean = self.mean(x)
        by_squares = self.mean(x * x) - mean * mean
        variance = by_squares if self.rng.random() < 0.3 else self.mean((x - mean) * (x - mean))
        return mean, self.number(1) / np.sqrt(np.maximum(variance, 0) + self.number(eps))


# --- layer norm: x, weight, bias and the cotangent, to the gradients of the first three -------------------------------


def layer_norm(x: Any, weight: Any, bias: Any) -> Any:
    centred = x - gs.mean(x, axis=1, keepdims=True)
    return centred * (1.0 / gs.sqrt(gs.mean(centred * centred, axis=1, keepdims=True) + 1e-5)) * weight + bias


def _of_parameters(k: Kernel, g: Any, normal: Any) -> list[Any]:
    return [k.sum(g * normal, 0)[0], k.sum(g, 0)[0]]


def by_two_means(k: Kernel, x: Any, weight: Any, bias: Any, g: Any) -> list[Any]:
    """``(wg − (x̂·c₁ + c₂))·rstd``: Liger's, and Triton's tutorial's."""
    mean, rstd = k.statistics(x, 1e-5)
    normal, scaled = (x - mean) * rstd, weight * g
    dx = (scaled - (normal * k.mean(normal * scaled) + k.mean(scaled))) * rstd
    return [dx, *_of_parameters(k, g, normal)]


def by_sums_of_x(k: Kernel, x: Any, weight: Any, bias: Any, g: Any) -> list[Any]:
    """``a·wg + b·x + c``, of ``Σ wg·x`` and ``Σ wg``: PyTorch's, on CPU."""
    mean, rstd = k.statistics(x, 1e-5)
    n, ds, db = k.number(x.shape[-1]), k.sum(g * x * weight), k.sum(g * weight)
    b = (db * mean - ds) * rstd * rstd * rstd / n
    c = -b * mean - db * rstd / n
    return [rstd * g * weight + b * x + c, *_of_parameters(k, g, (x - mean) * rstd)]


def by_n_times(k: Kernel, x: Any, weight: Any, bias: Any, g: Any) -> list[Any]:
    """``(n·wg − Σ wg − x̂·Σ wg·x̂)·rstd/n``: PyTorch's and Apex's, on a GPU."""
    mean, rstd = k.statistics(x, 1e-5)
    n, normal = k.number(x.shape[-1]), (x - mean) * rstd
    dx = (n * g * weight - (x - mean) * rstd * k.sum(g * weight * (x - mean) * rstd) - k.sum(g * weight)) * (rstd / n)
    return [dx, *_of_parameters(k, g, normal)]


# --- the others -------------------------------------------------------------------------------------------------------


def rms_norm(x: Any, weight: Any) -> Any:
    mean = gs.mean(x * x, axis=1, keepdims=True)
    return x * (1.0 / gs.sqrt(mean + 1e-6)) * weight


def rms_by_squares(k: Kernel, x: Any, weight: Any, g: Any) -> list[Any]:
    """``rstd·wg − rstd³/n·Σ(wg·x)·x``: Liger's."""
    rstd = k.number(1) / np.sqrt(k.mean(x * x) + k.number(1e-6))
    scaled, n = g * weight, k.number(x.shape[-1])
    dx = rstd * scaled + rstd * (-(k.number(1) / n) * rstd * rstd * k.sum(scaled * x) * x)
    return [dx, k.sum(g * (x * rstd), 0)[0]]


def rms_by_normal(k: Kernel, x: Any, weight: Any, g: Any) -> list[Any]:
    """``(wg − x̂·mean(wg·x̂))·rstd``: Apex's."""
    rstd = k.number(1) / np.sqrt(k.mean(x * x) + k.number(1e-6))
    normal, scaled = x * rstd, g * weight
    return [(scaled - normal * k.mean(scaled * normal)) * rstd, k.sum(g * normal, 0)[0]]


def softmax_by_a_product(k: Kernel, x: Any, g: Any) -> list[Any]:
    """``y·g − y·Σ(y·g)``."""
    e = np.exp(x - x.max(-1, keepdims=True))
    y = e / k.sum(e)
    return [y * g - y * k.sum(y * g)]


def entropy(x: Any) -> Any:
    return -gs.mean(gs.log_softmax(x, axis=1)[:, 0])


def entropy_by_lse(k: Kernel, x: Any, g: Any) -> list[Any]:
    """``(exp(x − lse) − 1[label])·g/n``: that of fused cross entropies."""
    top = x.max(-1, keepdims=True)
    lse = top + np.log(k.sum(np.exp(x - top)))
    y = np.exp(x - lse)
    y[:, 0] = y[:, 0] - k.number(1)
    return [y * (g / k.number(len(x)))]


def attention(q: Any, key: Any, v: Any) -> Any:
    return gs.softmax(q @ gs.transpose(key, (1, 0)) / 2.0, axis=1) @ v


def attention_by_lse(k: Kernel, q: Any, key: Any, v: Any, g: Any) -> list[Any]:
    """``P = exp(S − lse)`` and ``dS = P·(dP − Σ g·o)``: flash attention's."""

    def product(a: Any, b: Any) -> Any:
        return k.sum(a[:, :, None] * b[None], 1)[:, 0]

    s = product(q, key.T) / k.number(2)
    top = s.max(-1, keepdims=True)
    p = np.exp(s - (top + np.log(k.sum(np.exp(s - top)))))
    ds = p * (product(g, v.T) - k.sum(g * product(p, v)))
    return [product(ds, key) / k.number(2), product(ds.T, q) / k.number(2), product(p.T, g)]


def linear_attention(q: Any, key: Any, v: Any) -> Any:
    return (q @ gs.transpose(key, (1, 0))) @ v


def linear_by_state(k: Kernel, q: Any, key: Any, v: Any, g: Any) -> list[Any]:
    """All through the state ``kᵀ v`` and its gradient ``qᵀ g``: the other contraction first."""

    def product(a: Any, b: Any) -> Any:
        return k.sum(a[:, :, None] * b[None], 1)[:, 0]

    state, slope = product(key.T, v), product(q.T, g)
    return [product(g, state.T), product(v, slope.T), product(key, slope)]


@dataclass(frozen=True)
class Form:
    """A function, a kernel of its VJP, and the shapes of its inputs."""

    function: Callable[..., Any]
    kernel: Callable[..., list[Any]]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: str = "f32 f16"

    def __str__(self) -> str:
        return self.kernel.__name__


NORMAL, RMS, HEADS = ((3, 40), (40,), (40,)), ((3, 40), (40,)), ((5, 8), (24, 8), (24, 6))
FORMS = [
    Form(layer_norm, by_two_means, NORMAL),
    Form(layer_norm, by_sums_of_x, NORMAL),
    Form(layer_norm, by_n_times, NORMAL),
    Form(rms_norm, rms_by_squares, RMS),
    Form(rms_norm, rms_by_normal, RMS),
    Form(lambda x: gs.softmax(x, axis=1), softmax_by_a_product, ((3, 40),)),
    Form(entropy, entropy_by_lse, ((4, 12),), "f32"),
    Form(attention, attention_by_lse, HEADS, "f32"),
    Form(linear_attention, linear_by_state, HEADS),
]
NUMBERS: dict[str, Callable[[Rng, Any], Any]] = {
    "normal": lambda rng, shape: rng.normal(size=shape),
    "positive": lambda rng, shape: rng.random(shape) + 0.5,
    "alike": lambda rng, shape: 1 + rng.random(shape) / 16,
    "one large": lambda rng, shape: np.where(rng.random(shape) < 0.1, 8.0, 0.06),
}


@pytest.mark.parametrize("numbers", NUMBERS)
@pytest.mark.parametrize(("form", "dtype"), [(f, d) for f in FORMS for d in f.dtypes.split()], ids=str)
def test_a_backward_pass_is_inside_in_any_form(form: Form, dtype: str, numbers: str) -> None:
    type_, rng = getattr(gs, dtype), np.random.default_rng(7)
    graph = gs.trace(form.function, *(type_[s] for s in form.shapes)).vjp()
    how = Arithmetic.of(dtype, dtype, **DERIVED)
    count = len(graph.outputs) - len(form.shapes)
    for _ in range(6):
        arrays = [NUMBERS[numbers](rng, v.shape).astype(type_.numpy) for v in graph.inputs]
        ends = enclosure(graph, *arrays, arithmetic=how)
        with np.errstate(all="ignore"):
            found = form.kernel(Kernel(type_.numpy.type, rng), *arrays)
        for low, got, high in zip(ends[0][count:], found, ends[1][count:], strict=True):
            assert contains(low, np.asarray(got, np.float64), high)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_it_says_much_of_ordinary_numbers(form: Form) -> None:
    """In float32, no cell is weak: its roundings are counted on its own way, and not once for every way."""
    rng = np.random.default_rng(1)
    graph = gs.trace(form.function, *(gs.f32[s] for s in form.shapes)).vjp()
    arrays = [rng.normal(size=v.shape).astype(np.float32) for v in graph.inputs]
    found = enclosed_outputs(graph, *arrays, arithmetic=Arithmetic.of("f32", **DERIVED))
    assert not any(one.weak.any() for one in found)


# --- chains of sums and products, evaluated in every way --------------------------------------------------------------


def half(x: Any) -> float:
    return float(np.float16(x))


def multiplied_out(rng: Rng, a: Any, x: Any, b: Any) -> float:
    """``Σ aᵢ·(xᵢ − mean x) + b`` of ``aᵢ·xᵢ`` and ``aᵢ·mean``, in one tree."""
    mean = half(added_up([*x], rng, half) / len(x))
    leaves = [half(p * q) for p, q in zip(a, x, strict=True)] + [-half(p * mean) for p in a]
    return added_up([*leaves, *b], rng, half)


def taken_out(rng: Rng, a: Any, x: Any, b: Any) -> float:
    """``Σ aᵢ·xᵢ + (b − mean x · Σ aᵢ)``."""
    mean = half(added_up([half(p / len(x)) for p in x], rng, half))
    products = added_up([half(p * q) for p, q in zip(a, x, strict=True)], rng, half)
    return half(products + half(b[0] - half(mean * added_up([*a], rng, half))))


def finished(rng: Rng, a: Any, x: Any, b: Any) -> float:
    mean = half(added_up([*x], rng, half) / len(x))
    return added_up([half(p * half(q - mean)) for p, q in zip(a, x, strict=True)] + [*b], rng, half)


@pytest.mark.parametrize("numbers", NUMBERS)
@pytest.mark.parametrize("way", [multiplied_out, taken_out, finished])
def test_a_sum_of_products_of_sums_is_inside_however_it_is_added_up(way: Callable[..., float], numbers: str) -> None:
    n, rng = 20, np.random.default_rng(3)
    graph = gs.trace(lambda a, x, b: gs.sum(a * (x - gs.mean(x))) + b[0], gs.f16[n], gs.f16[n], gs.f16[1])
    for _ in range(12):
        arrays = [NUMBERS[numbers](rng, v.shape).astype(np.float16) for v in graph.inputs]
        low, high = enclosure(graph, *arrays, arithmetic=Arithmetic.of("f16", "f16", reassociated=True))
        assert contains(low, way(rng, *(a.astype(float) for a in arrays)), high)


LARGE, LOST = 64.0, 0.0295
"""A number of float16, and one that is lost when it is added to it: nearly one unit roundoff of it."""
SWALLOWED = {
    "a sum, in a product": (lambda x, c, a: gs.sum(x) * a[0], LARGE),
    "a sum, in a product, in a sum": (lambda x, c, a: gs.sum(x) * a[0] + c[0], LARGE),
    "a sum, in a sum of products": (lambda x, c, a: gs.sum(gs.broadcast_to(gs.sum(x), c.shape) * c), LARGE * 24 * LOST),
    "products with the leaves of sums": (lambda x, c, a: gs.sum((c - -c) * a) + x[0], LARGE),
    "products of two sums": (lambda x, c, a: gs.sum((c + c) * (a + a)) / 2.0 + x[0], LARGE),
    "a sum that is scaled, in a sum": (lambda x, c, a: gs.sum(x * 0.75) / 0.75 + c[0], LARGE),
}
"""Sums, and what is left of them when their largest leaf comes first and all of the others are lost, one by one."""


@pytest.mark.parametrize("name", SWALLOWED)
def test_a_large_leaf_may_swallow_all_others(name: str) -> None:
    function, left = SWALLOWED[name]
    x, c, a = np.full(24, LOST, np.float16), np.full(24, LOST, np.float16), np.ones(24, np.float16)
    x[0] = LARGE
    graph = gs.trace(function, *[gs.f16[24]] * 3, allow_unused=True)
    low, high = enclosure(graph, x, c, a, arithmetic=Arithmetic.of("f16", "f16", reassociated=True))
    assert contains(low, left, high)


@pytest.mark.parametrize("reciprocal", [False, True])
def test_leaves_may_be_divided_before_they_are_added_up(reciprocal: bool) -> None:
    rng = np.random.default_rng(5)
    graph = gs.trace(lambda x, s: gs.sum(x) / gs.sum(s), gs.f16[2], gs.f16[3])
    for _ in range(40):
        x, s = (1 + rng.random(v.shape).astype(np.float16) for v in graph.inputs)
        x[1] *= -1
        low, high = enclosure(graph, x, s, arithmetic=Arithmetic.of("f16", "f16", reassociated=True))
        total = added_up([*s.astype(float)], rng, half)
        parts = [half(v * half(1 / total)) if reciprocal else half(v / total) for v in x.astype(float)]
        assert contains(low, added_up(parts, rng, half), high)
