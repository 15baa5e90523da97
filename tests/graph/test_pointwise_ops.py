"""Pointwise operators: conventions at kinks, accuracy everywhere, agreement with PyTorch and JAX, errors."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from random import Random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812

import gradspec as gs
from gradspec.domains import Dual, Interval
from gradspec.graph.builder import apply
from gradspec.graph.graph import check
from gradspec.graph.ir import NoAttributes, Op
from gradspec.ops.pointwise import GATE, NORMAL_CDF, NORMAL_DENSITY

INF, NAN = math.inf, math.nan


# --- kinks ------------------------------------------------------------------------------------------------------------
# The table is SEMANTICS: an operator, where its kink is, and how much of each operand's derivative passes there.

KINKS = {
    "relu": (gs.relu, [0.0], [0.0]),
    "relu of −0": (gs.relu, [-0.0], [0.0]),
    "leaky_relu": (lambda x: gs.leaky_relu(x, 0.25), [0.0], [0.25]),
    "abs": (gs.abs, [0.0], [0.0]),
    "clamp at min": (lambda x: gs.clamp(x, -1, 2), [-1.0], [1.0]),
    "clamp at max": (lambda x: gs.clamp(x, -1, 2), [2.0], [1.0]),
    "clamp at both": (lambda x: gs.clamp(x, 1, 1), [1.0], [1.0]),
    "clamp from below": (lambda x: gs.clamp(x, min=1), [1.0], [1.0]),
    "clamp from above": (lambda x: gs.clamp(x, max=1), [1.0], [1.0]),
    "maximum": (gs.maximum, [3.0, 3.0], [0.5, 0.5]),
    "maximum of zeros": (gs.maximum, [0.0, -0.0], [0.5, 0.5]),
    "minimum": (gs.minimum, [-2.0, -2.0], [0.5, 0.5]),
    "maximum with itself": (lambda x: gs.maximum(x, x), [3.0], [1.0]),
}


def slopes(function: Callable, point: list[float], domain: gs.domains.Domain | None, mode: str) -> list[float]:
    """The derivative by each operand, forward or in reverse, in a domain or (for None) in NumPy."""
    graph = gs.trace(function, *[gs.f64[1]] * len(point))
    run = lambda g, *args: g(*args) if domain is None else gs.evaluate(g, *args, domain=domain)  # noqa: E731
    x = [np.array([v]) for v in point]
    if mode == "vjp":
        return [float(ct[0]) for ct in run(check(graph.vjp()), *x, np.ones(1))[1:]]
    unit = np.eye(len(point))[:, :, None]
    return [float(run(check(graph.jvp()), *x, *direction)[1][0]) for direction in unit]


@pytest.mark.parametrize("mode", ["jvp", "vjp"])
@pytest.mark.parametrize("domain", [gs.exact, gs.ieee("f32"), gs.interval, gs.ball(64), None], ids=repr)
@pytest.mark.parametrize(("function", "point", "expected"), KINKS.values(), ids=KINKS)
def test_kinks_follow_the_conventions(function, point, expected, domain, mode) -> None:
    assert slopes(function, point, domain, mode) == expected


@pytest.mark.parametrize(("function", "point", "expected"), KINKS.values(), ids=KINKS)
def test_dual_numbers_follow_the_conventions(function, point, expected) -> None:
    graph = gs.trace(function, *[gs.f64[1]] * len(point))
    for i, slope in enumerate(expected):
        duals = [gs.dual(gs.exact).tensor([v], [int(k == i)]) for k, v in enumerate(point)]
        assert gs.evaluate(graph, *duals, domain=gs.dual(gs.exact))[0].tangent == gs.exact.scalar(slope)


ACROSS = {
    "relu": (gs.relu, [(-1, 2)], [(0, 1)]),
    "relu touching from below": (gs.relu, [(-1, 0)], [(0, 0)]),
    "relu touching from above": (gs.relu, [(0, 1)], [(0, 1)]),
    "leaky_relu": (lambda x: gs.leaky_relu(x, 0.25), [(-1, 2)], [(0.25, 1)]),
    "leaky_relu falling": (lambda x: gs.leaky_relu(x, -0.5), [(-1, 2)], [(-0.5, 1)]),
    "abs": (gs.abs, [(-1, 2)], [(-1, 1)]),
    "abs touching": (gs.abs, [(0, 2)], [(0, 1)]),
    "clamp at min": (lambda x: gs.clamp(x, -1, 2), [(-2, 0)], [(0, 1)]),
    "clamp inside": (lambda x: gs.clamp(x, -1, 2), [(-1, 2)], [(1, 1)]),
    "clamp outside": (lambda x: gs.clamp(x, -1, 2), [(3, 4)], [(0, 0)]),
    "maximum": (gs.maximum, [(0, 2), (1, 3)], [(0, 1), (0, 1)]),
    "maximum apart": (gs.maximum, [(0, 1), (2, 3)], [(0, 0), (1, 1)]),
    "minimum touching": (gs.minimum, [(0, 1), (1, 2)], [(0.5, 1), (0, 0.5)]),
}


@pytest.mark.parametrize(("function", "boxes", "expected"), ACROSS.values(), ids=ACROSS)
def test_intervals_enclose_both_sides_of_a_kink_and_no_more(function, boxes, expected) -> None:
    graph = gs.trace(function, *[gs.f64[1]] * len(boxes))
    x = [gs.interval.tensor([low], [high]) for low, high in boxes]
    _, *pulled = gs.evaluate(graph.vjp(), *x, [1], domain=gs.interval)
    assert [(ct[0].lo, ct[0].hi) for ct in pulled] == expected


@pytest.mark.parametrize(("function", "boxes", "expected"), ACROSS.values(), ids=ACROSS)
def test_balls_enclose_both_sides_of_a_kink(function, boxes, expected) -> None:
    graph = gs.trace(function, *[gs.f64[1]] * len(boxes))
    hull = gs.spec.scalar.hull
    x = [gs.spec.Tensor((1,), [hull(gs.ball(64).scalar(low), gs.ball(64).scalar(high))]) for low, high in boxes]
    _, *pulled = gs.evaluate(graph.vjp(), *x, [1], domain=gs.ball(64))
    for ct, (low, high) in zip(pulled, expected, strict=True):
        assert ct[0].contains(low)
        assert ct[0].contains(high)
        assert ct[0].rad() < 1.001  # [−1, 1] is the widest


@pytest.mark.parametrize("name", ["relu", "abs", "sigmoid", "softplus", "silu", "gelu", "tanh", "exp", "sin", "cos"])
def test_values_and_slopes_at_points_lie_in_their_enclosures(name: str) -> None:
    graph = gs.trace(getattr(gs, name), gs.f64[1]).jvp()
    random = Random(name)
    for _ in range(20):
        low, high = sorted(random.uniform(-4, 4) for _ in range(2))
        wide = gs.evaluate(graph, gs.interval.tensor([low], [high]), [1], domain=gs.interval)
        for x in (low, random.uniform(low, high), high):
            for outer, inner in zip(wide, gs.evaluate(graph, [x], [1], domain=gs.ball(120)), strict=True):
                assert outer[0].lo - 1e-300 <= float(inner[0]) <= outer[0].hi + 1e-300
            assert wide[0][0].width < 60


@pytest.mark.parametrize("name", ["sigmoid", "softplus", "tanh", "exp"])
def test_increasing_operators_are_tight_on_wide_intervals(name: str) -> None:
    graph = gs.trace(getattr(gs, name), gs.f64[1])
    at = lambda x: gs.evaluate(graph, gs.interval.tensor([x]), domain=gs.interval)[0]  # noqa: E731
    for low, high in [(-3.0, 2.0), (-1e3, 1e2), (0.5, 4.0), (-1e300, 0.0)]:
        wide = gs.evaluate(graph, gs.interval.tensor([low], [high]), domain=gs.interval)[0]
        assert (wide.lo, wide.hi) == (at(low).lo, at(high).hi)
        assert math.isfinite(wide.hi)


def test_what_a_kink_cuts_off_is_not_multiplied() -> None:
    """An infinite cotangent of a cell that is switched off does not become a NaN."""
    graph = gs.trace(gs.relu, gs.f32[2]).vjp()
    assert graph(np.float32([-1, 1]), np.float32([INF, INF]))[1].tolist() == [0, INF]
    pulled = gs.evaluate(graph, [-1, 1], [INF, NAN], domain=gs.ieee("f32"))[1]
    assert pulled[0] == 0
    assert math.isnan(float(pulled[1]))


# --- second derivatives -----------------------------------------------------------------------------------------------


# --- accuracy ---------------------------------------------------------------------------------------------------------

SMOOTH = {
    "exp": gs.exp,
    "tanh": gs.tanh,
    "sin": gs.sin,
    "cos": gs.cos,
    "sigmoid": gs.sigmoid,
    "softplus": gs.softplus,
    "softplus sharp": lambda x: gs.softplus(x, 3.0),
    "softplus falling": lambda x: gs.softplus(x, -0.75),
    "silu": gs.silu,
    "gelu": gs.gelu,
    "erf": gs.erf,
    "atan": gs.atan,
    "gelu tanh": lambda x: gs.gelu(x, "tanh"),
}
CONDITION = {"gelu tanh": 700.0, "softplus sharp": 700.0, "softplus falling": 700.0}
"""What a rounding before exp is magnified by: up to the largest exponent, where the argument is not ``x`` itself."""


def finite_floats(random: Random) -> list[float]:
    near = [random.uniform(-8, 8) for _ in range(60)]
    spread = [random.choice((-1, 1)) * 2 ** random.uniform(-40, 12) for _ in range(60)]
    tails = [709.5, 710.5, -709.5, -740.0, -745.0, -746.0, 37.5, -38.0]
    return [*near, *spread, *tails, 0.0, -0.0, 1e-300, -1e-300, 5e-324, 1.7e308, -1.7e308]


@pytest.mark.parametrize("name", SMOOTH)
def test_numpy_values_are_accurate_for_every_finite_float(name: str) -> None:
    """A few units in the last place, in the tails too; subnormal results to a few of the smallest steps."""
    graph = gs.trace(SMOOTH[name], gs.f64[()])
    for x in finite_floats(Random(name)):
        got = float(graph(np.float64(x)))
        is_certain = abs(x) < 1e5 or name in ("sin", "cos", "atan")
        exact = gs.evaluate(graph, x, domain=gs.ball(300))[()] if is_certain else None
        if exact is None:  # balls would need as many bits as the exponent has
            assert got in {0.0, -1.0, 1.0, x, INF} or (got == -0.0)
            assert math.isfinite(got) or name == "exp"
        elif abs(exact.mid()) > 1.7e308:
            assert got == INF
        else:
            relative = 2e-15 * CONDITION.get(name, 1)
            steps = abs(x) if name.startswith(("silu", "gelu")) else 1  # x times a weight that may be subnormal
            assert abs(got - exact.mid()) <= relative * abs(exact.mid()) + 2 * steps * 5e-324, x


@pytest.mark.parametrize("name", [n for n in SMOOTH if n != "exp"])
@pytest.mark.parametrize("mode", ["jvp", "vjp"])
def test_numpy_slopes_are_accurate_for_every_finite_float(name: str, mode: str) -> None:
    graph = gs.trace(SMOOTH[name], gs.f64[()])
    derivative = getattr(graph, mode)()
    for x in finite_floats(Random(name)):
        got = float(derivative(np.float64(x), np.float64(1))[1])
        assert math.isfinite(got)
        if abs(x) < 1e5:
            exact = gs.evaluate(derivative, x, 1, domain=gs.ball(300))[1][()].mid()
            assert abs(got - exact) <= 1e-14 * max(abs(exact), 1), x


@pytest.mark.parametrize("kind", [float, gs.ieee("f16").scalar, gs.ieee("bf16").scalar, gs.ieee("f32").scalar], ids=str)
@pytest.mark.parametrize("name", ["sigmoid", "softplus", "silu", "gelu"])
def test_the_specification_overflows_nowhere(name: str, kind: Callable) -> None:
    largest = {"f16": 65504.0, "bf16": 3.38e38, "f32": 3.4e38}
    for x in (1e4, 88.0, 89.0, 11.0, 12.0, 710.0, 1e-8, max(largest.values()) if kind is not float else 1.7e308):
        number = kind(x)
        if math.isinf(float(number)):
            continue
        high, low = (float(getattr(gs.spec, name)([v])[0]) for v in (number, -number))
        assert math.isfinite(high)
        assert math.isfinite(low)
        assert abs(low) <= 1


@pytest.mark.parametrize("op", [NORMAL_CDF, NORMAL_DENSITY], ids=str)
def test_the_normal_distribution_has_the_stated_error(op: Op) -> None:
    random = Random(str(op))
    x = [random.uniform(-37.5, 9) for _ in range(600)] + [random.uniform(-1, 1) for _ in range(200)]
    (exact,) = op.spec(NoAttributes(), gs.ball(120).tensor(x))
    for got, ball in zip(apply(op, NoAttributes(), np.array(x)), exact.cells, strict=True):
        assert abs(got - ball.mid()) <= 1e-15 * ball.mid()


def test_gelu_in_the_lower_tail_keeps_its_digits() -> None:
    """Φ(−10) = 7.6198530241605260660·10⁻²⁴; 1 + erf would be 0."""
    assert math.isclose(gs.gelu(np.float64([-10.0]))[0], -7.619853024160526066e-23, rel_tol=1e-15)
    assert math.isclose(gs.gelu(np.float32([-10.0]))[0], -7.619853024160526066e-23, rel_tol=8 * 2**-24)


def test_softplus_never_becomes_the_identity() -> None:
    """PyTorch returns ``x`` from 20 on; exp(−25) is a hundred thousand units in the last place of 25."""
    (ours,) = gs.softplus(np.float64([25.0]))
    assert ours == 25 + math.exp(-25)
    assert F.softplus(torch.tensor(25.0, dtype=torch.float64)).item() == 25


# --- PyTorch and JAX --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Peers:
    """One operator in three libraries, and the points where a peer's derivative follows another convention."""

    ours: Callable
    torch: Callable
    jax: Callable
    torch_differs: set[float] = field(default_factory=set)
    jax_differs: set[float] = field(default_factory=set)
    torch_errs: set[float] = field(default_factory=set)
    """Where PyTorch's value is wrong."""


UNARY = {
    "neg": Peers(gs.neg, torch.neg, jnp.negative),
    "scale": Peers(lambda x: gs.scale(x, 0.3), lambda x: x * 0.3, lambda x: x * 0.3),
    # At a NaN the tangent passes here, as it does through a maximum; JAX and PyTorch often drop it.
    "relu": Peers(gs.relu, torch.relu, jax.nn.relu, jax_differs={NAN}),
    "leaky_relu": Peers(
        lambda x: gs.leaky_relu(x, 0.25),
        lambda x: F.leaky_relu(x, 0.25),
        lambda x: jax.nn.leaky_relu(x, 0.25),
        torch_differs={NAN},
        jax_differs={NAN, 0.0},  # JAX's slope at 0 is 1
    ),
    "abs": Peers(gs.abs, torch.abs, jnp.abs, torch_differs={NAN}, jax_differs={NAN, 0.0}),  # JAX's slope at 0 is 1
    "clamp": Peers(
        lambda x: gs.clamp(x, -1, 2),
        lambda x: torch.clamp(x, -1, 2),
        lambda x: jnp.clip(x, -1, 2),
        torch_differs={NAN},
        jax_differs={NAN, -1.0, 2.0},  # JAX's slope at both ends is one half
    ),
    "floor": Peers(lambda x: x * gs.floor(x), lambda x: x * torch.floor(x), lambda x: x * jnp.floor(x)),
    "round": Peers(lambda x: x * gs.round(x), lambda x: x * torch.round(x), lambda x: x * jnp.round(x)),
    "exp": Peers(gs.exp, torch.exp, jnp.exp),
    "log": Peers(gs.log, torch.log, jnp.log),
    "sqrt": Peers(gs.sqrt, torch.sqrt, jnp.sqrt),
    "tanh": Peers(gs.tanh, torch.tanh, jnp.tanh),
    "sin": Peers(gs.sin, torch.sin, jnp.sin),
    "cos": Peers(gs.cos, torch.cos, jnp.cos),
    "atan": Peers(gs.atan, torch.atan, jnp.atan),
    "sigmoid": Peers(gs.sigmoid, torch.sigmoid, jax.nn.sigmoid),
    "softplus": Peers(gs.softplus, F.softplus, jax.nn.softplus),
    "softplus sharp": Peers(
        lambda x: gs.softplus(x, 2.5), lambda x: F.softplus(x, 2.5), lambda x: jax.nn.softplus(2.5 * x) / 2.5
    ),
    "silu": Peers(gs.silu, F.silu, jax.nn.silu),
    "erf": Peers(gs.erf, torch.erf, jax.lax.erf),
    # By oneDNN, on x86-64, PyTorch's value at ∞ is NaN (docs/findings/torch_gelu_infinite.md).
    "gelu": Peers(gs.gelu, F.gelu, partial(jax.nn.gelu, approximate=False), torch_errs={math.inf}),
    "gelu tanh": Peers(
        lambda x: gs.gelu(x, approximate="tanh"),
        lambda x: F.gelu(x, approximate="tanh"),
        jax.nn.gelu,
        torch_differs={1e30, -1e30},  # NaN there, because x² overflows
        jax_differs={1e30, -1e30},
    ),
}
SPECIAL = [0.0, -0.0, 1, -1, 2, -2, 8, -8, 16, 25, -25, 60, 90, -90, 200, 1e4, -1e4, 1e15, 1e30, -1e30, 1e-30, -1e-30]


def points() -> np.ndarray:
    return np.concatenate([np.random.default_rng(0).normal(size=60) * 3, SPECIAL, [INF, -INF, NAN]]).astype(np.float32)


def assert_close(ours: np.ndarray, theirs: np.ndarray, x: np.ndarray, differs: set[float]) -> None:
    """Within a few float32 roundings of numbers around 1; both NaN, or both the same infinity."""
    for a, b, v in zip(ours, theirs, x, strict=True):
        known = any(v == np.float32(d) or (math.isnan(v) and math.isnan(d)) for d in differs)
        same = a == b or (math.isnan(a) and math.isnan(b)) or abs(a - b) <= 1e-6 * (1 + min(abs(b), 1e30))
        assert same or known, (v, a, b)


def our_slopes(function: Callable, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    """The values, then the derivative of their sum by each array; forward and reverse agree."""
    graph = gs.trace(function, *(gs.f32[a.shape] for a in arrays))
    ones = np.ones_like(arrays[0])
    value, *pulled = graph.vjp()(*arrays, ones)
    for i, ct in enumerate(pulled):
        np.testing.assert_allclose(graph.jvp(wrt=i)(*arrays, ones)[1], ct, rtol=3e-7)
    return value, *pulled


def torch_slopes(function: Callable, *arrays: np.ndarray) -> list[np.ndarray]:
    inputs = [torch.tensor(a, requires_grad=True) for a in arrays]
    value = function(*inputs)
    value.sum().backward()
    return [value.detach().numpy(), *(t.grad.numpy() for t in inputs)]


def jax_slopes(function: Callable, *arrays: np.ndarray) -> list[np.ndarray]:
    value, pull = jax.vjp(function, *map(jnp.asarray, arrays))
    return [np.asarray(value), *map(np.asarray, pull(jnp.ones_like(value)))]


@pytest.mark.parametrize("name", UNARY)
def test_unary_operators_agree_with_pytorch_and_jax(name: str) -> None:
    row, x = UNARY[name], points()
    ours = our_slopes(row.ours, x)
    for theirs, errs, differs in [
        (torch_slopes(row.torch, x), row.torch_errs, row.torch_differs),
        (jax_slopes(row.jax, x), set[float](), row.jax_differs),
    ]:
        assert_close(ours[0], theirs[0], x, errs)
        assert_close(ours[1], theirs[1], x, differs)


@pytest.mark.parametrize("name", UNARY)
def test_unary_operators_agree_with_pytorch_in_double_precision(name: str) -> None:
    x = np.random.default_rng(1).uniform(-7.9, 7.9, size=200)  # PyTorch's softplus is another from β·x = 20 on
    graph = gs.trace(UNARY[name].ours, gs.f64[x.shape])
    for ours, theirs in zip(graph.vjp()(x, np.ones_like(x)), torch_slopes(UNARY[name].torch, x), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-13, atol=1e-14)


BINARY = {
    "add": (gs.add, torch.add, jnp.add),
    "sub": (gs.sub, torch.sub, jnp.subtract),
    "mul": (gs.mul, torch.mul, jnp.multiply),
    "div": (gs.div, torch.div, jnp.divide),
    "maximum": (gs.maximum, torch.maximum, jnp.maximum),
    "minimum": (gs.minimum, torch.minimum, jnp.minimum),
}


@pytest.mark.parametrize("name", BINARY)
def test_binary_operators_agree_with_pytorch_and_jax(name: str) -> None:
    """Slopes too, except at NaNs: PyTorch's ``maximum`` then sends the derivative both ways, JAX's none."""
    ours, of_torch, of_jax = BINARY[name]
    special = np.float32([0.0, -0.0, 1, 1.5, -2, 1e15, -1e-15, INF, -INF, NAN])
    a, b = (m.ravel() for m in np.meshgrid(special, special))
    results = our_slopes(ours, a, b)
    numbers = ~(np.isnan(a) | np.isnan(b))
    for theirs in (torch_slopes(of_torch, a, b), jax_slopes(of_jax, a, b)):
        assert_close(results[0], theirs[0], a, set())
        for ct, other in zip(results[1:], theirs[1:], strict=True):
            assert_close(ct[numbers], other[numbers], a[numbers], set())


def test_a_nan_takes_the_whole_derivative_of_a_maximum_or_minimum() -> None:
    a, b = np.float32([NAN, 1, NAN]), np.float32([1, NAN, NAN])
    for operator in (gs.maximum, gs.minimum):
        value, ct_a, ct_b = our_slopes(operator, a, b)
        assert np.isnan(value).all()
        assert (ct_a.tolist(), ct_b.tolist()) == ([1, 0, 0.5], [0, 1, 0.5])


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64])
def test_maximum_and_minimum_of_integers(dtype: type) -> None:
    a, b = np.array([0, 5, 7], dtype), np.array([3, 5, 2], dtype)
    for ours, numpy in ((gs.maximum, np.maximum), (gs.minimum, np.minimum)):
        result = ours(a, b)
        assert result.dtype == dtype
        assert result.tolist() == numpy(a, b).tolist()
        assert getattr(gs.spec, ours.__name__)(a, b).tolist() == numpy(a, b).tolist()


# --- detach, errors ---------------------------------------------------------------------------------------------------


def test_detached_variables_have_no_derivative_of_any_order() -> None:
    graph = gs.trace(lambda x: gs.detach(x) * x * x, gs.f64[1])
    second = graph.vjp().jvp(["x"])
    *_, hessian = gs.evaluate(second, [3], [1], [1], domain=gs.exact)
    assert hessian.tolist() == [6]
    nested = gs.dual(gs.dual(gs.exact))
    twice = gs.spec.Tensor((1,), [Dual(Dual(*map(gs.exact.scalar, (3, 1))), Dual(*map(gs.exact.scalar, (1, 0))))])
    assert gs.evaluate(graph, twice, domain=nested)[0].tangent.tangent == 6
    assert not any(gs.trace(gs.detach, gs.f64[2]).vjp()(np.ones(2), np.ones(2))[1])


ERRORS = {
    "integers": (lambda: gs.tanh(np.array([1, 2])), gs.DTypeError, "floating-point"),
    "two dtypes": (lambda: gs.maximum(np.float32([1]), np.float64([1])), gs.DTypeError, "one dtype"),
    "shapes": (lambda: gs.maximum(np.ones(2), np.ones(3)), gs.ShapeError, "broadcast"),
    "spec shapes": (lambda: gs.spec.add([1, 2], [1]), gs.ShapeError, "one shape"),
    "no bound": (lambda: gs.clamp(np.ones(1)), ValueError, "needs a bound"),
    "bounds reversed": (lambda: gs.clamp(np.ones(1), 2, 1), ValueError, "exceeds max"),
    "bound NaN": (lambda: gs.clamp(np.ones(1), NAN), ValueError, "min"),
    "bound array": (lambda: gs.clamp(np.ones(1), np.ones(1)), ValueError, "must be a finite number"),
    "beta 0": (lambda: gs.softplus(np.ones(1), 0), ValueError, "not 0"),
    "beta ∞": (lambda: gs.softplus(np.ones(1), INF), ValueError, "finite"),
    "slope NaN": (lambda: gs.leaky_relu(np.ones(1), NAN), ValueError, "finite"),
    "factor bool": (lambda: gs.scale(np.ones(1), True), ValueError, "factor"),
    "approximation": (lambda: gs.gelu(np.ones(1), "erf"), gs.UnsupportedError, "tanh"),
    "irrational": (
        lambda: gs.evaluate(gs.trace(gs.exp, gs.f32[1]), [1], domain=gs.exact),
        gs.UnsupportedError,
        r"gs\.ball",
    ),
}


@pytest.mark.parametrize(("call", "error", "message"), ERRORS.values(), ids=ERRORS)
def test_mistakes_are_named(call, error, message) -> None:
    with pytest.raises(error, match=message):
        call()


def test_an_infinite_bound_is_no_bound() -> None:
    x = np.float32([-INF, -3, 3, INF])
    assert gs.clamp(x, -INF, 1).tolist() == gs.clamp(x, max=1).tolist() == [-INF, -3, 1, 1]
    assert gs.evaluate(gs.trace(lambda x: gs.clamp(x, 0, INF), gs.f32[1]), [5], domain=gs.exact).tolist() == [5]


def test_piecewise_linear_operators_are_exact_in_rationals() -> None:
    x = gs.exact.tensor([Fraction(-4, 3), Fraction(1, 3)])
    assert gs.spec.relu(x) == [0, Fraction(1, 3)]
    assert gs.spec.leaky_relu(x, 0.5) == [Fraction(-2, 3), Fraction(1, 3)]
    assert gs.spec.abs(x) == [Fraction(4, 3), Fraction(1, 3)]
    assert gs.spec.clamp(x, -1, 0.25) == [-1, Fraction(1, 4)]
    assert gs.spec.sigmoid(gs.exact.tensor([0])) == [Fraction(1, 2)]
    assert gs.spec.relu(gs.interval.tensor([-1.0], [2.0]))[0].contains(Interval(0.0, 2.0))


def test_the_weight_of_a_gate_is_constant():
    """A file may hold a gate whose weight depends on an input; its derivative is taken in the other operand alone."""
    b = gs.Builder()
    x = b.input(gs.f64[()], "x")
    (y,) = b.apply(GATE, NoAttributes(), x, b.const(np.array(2.0)))
    (z,) = b.apply(GATE, NoAttributes(), x, x)
    assert [v.tolist() for v in gs.evaluate(b.build([y, z]).jvp(), 3, 1, domain=gs.exact)] == [6, 9, 0, 3]
