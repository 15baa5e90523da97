"""Lines lie below and above their function, wherever a box lies; their ends, and points between, are tried densely."""

from typing import Any

import numpy as np
import pytest

import gradspec as gs
from gradspec.graph.builder import Builder, apply
from gradspec.ops.box import BoundArithmetic, BoundedNode, Box
from gradspec.ops.lp_pool import ABS_POWER, AbsPower
from gradspec.ops.pointwise import NONE, NORMAL_CDF, NORMAL_DENSITY
from gradspec.transforms.boxes import enclosed
from gradspec.transforms.lines import _bilinear_lines

BOXES, POINTS = 600, 33

FUNCTIONS = {
    "relu": gs.relu,
    "abs": gs.abs,
    "leaky_relu": gs.leaky_relu,
    "leaky_relu falling": lambda x: gs.leaky_relu(x, -1.5),
    "leaky_relu concave": lambda x: gs.leaky_relu(x, 1.3),
    "clamp": lambda x: gs.clamp(x, -0.3, 1.1),
    "clamp below": lambda x: gs.clamp(x, min=0.1),
    "clamp above": lambda x: gs.clamp(x, max=0.7),
    "sigmoid": gs.sigmoid,
    "tanh": gs.tanh,
    "gelu": gs.gelu,
    "gelu tanh": lambda x: gs.gelu(x, "tanh"),
    "silu": gs.silu,
    "softplus": gs.softplus,
    "softplus sharp": lambda x: gs.softplus(x, 7.3),
    "softplus negative": lambda x: gs.softplus(x, -0.6),
    "exp": gs.exp,
    "log": gs.log,
    "sqrt": gs.sqrt,
    "erf": gs.erf,
    "atan": gs.atan,
    "normal_cdf": lambda x: apply(NORMAL_CDF, NONE, x),
    "normal_density": lambda x: apply(NORMAL_DENSITY, NONE, x),
    "sin": gs.sin,
    "cos": gs.cos,
    **{
        f"power {q}{' signed' * signed}": lambda x, q=q, signed=signed: apply(ABS_POWER, AbsPower(q, signed), x)
        for q in (0.5, 1.0, 1.5, 2.0, 3.0)
        for signed in (False, True)
    },
    "power -1": lambda x: apply(ABS_POWER, AbsPower(-1.0), x),
}
TWO = {"maximum": gs.maximum, "minimum": gs.minimum, "mul": lambda a, b: a * b, "div": lambda a, b: a / b}


def some_boxes(seed: int, positive: bool) -> tuple[np.ndarray, np.ndarray]:
    """Points, boxes of a few floats, narrow, usual, wide and huge ones; around the kinks, beside them, far away."""
    rng = np.random.default_rng(seed)
    centre = rng.choice([0.0, 0.1, -0.3, 0.7, 1.1, -1.28, 3.0, -40.0], BOXES) + rng.normal(0, 1, BOXES) * rng.choice(
        [0.0, 1e-3, 1.0, 10.0], BOXES
    )
    radius = rng.choice([0.0, 1e-7, 1e-3, 0.1, 1.0, 5.0, 60.0], BOXES) * rng.uniform(0.1, 1, BOXES)
    low, high = (centre - radius).astype(np.float32), (centre + radius * rng.uniform(0, 2, BOXES)).astype(np.float32)
    low, high = np.minimum(low, high), np.maximum(low, high)
    if positive:
        low = np.abs(low) + np.float32(1e-6)
        high = np.maximum(low, np.abs(high))
    return low, high


def lines_of(graph: Any, kernels: str, shared: bool = False) -> Any:
    """``(lower, upper of each operand, share?) → (intercept, slopes…) below and above``, compiled."""
    (node,) = graph.nodes
    builder, arithmetic = Builder(), BoundArithmetic(gs.f32, any=kernels == "any")
    ends = [[builder.input(v.type, f"{v.name}_{end}") for end in ("low", "high")] for v in graph.inputs]
    boxes = [Box(arithmetic, ends=lambda pair=tuple(pair): pair) for pair in ends]
    share = builder.input(graph.inputs[0].type, "share") if shared else None
    results = []
    for line in node.op.relaxation(BoundedNode(node, arithmetic), boxes, share):
        results += [line.intercept, *(m.slope for _, m in line.maps)]
    return gs.compile(builder.build(results, allow_unused=True))


def between(low: np.ndarray, high: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Points of boxes, in rows: both ends, and floats between them."""
    t = np.concatenate([[0.0, 1.0, 0.5], rng.random(POINTS - 3)])[:, None]
    return np.clip((low + (high.astype(np.float64) - low) * t).astype(np.float32), low, high)


def values(function: Any, count: int, *points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """In float64, which is as good as exact here, and in float32."""
    shape = points[0].shape
    runs = [gs.compile(gs.trace(function, *[dtype[shape]] * count)) for dtype in (gs.f64, gs.f32)]
    with np.errstate(all="ignore"):
        return runs[0](*(p.astype(np.float64) for p in points)), runs[1](*points)


def assert_between(results: Any, count: int, points: list[np.ndarray], value: np.ndarray) -> None:
    below, above = results[: 1 + count], results[1 + count :]
    for (intercept, *slopes), sign in ((below, 1), (above, -1)):
        parts = [s.astype(np.float64) * p for s, p in zip(slopes, points, strict=True)]
        level = np.sum(parts, 0) + intercept.astype(np.float64)
        with np.errstate(all="ignore"):  # what overflows is not known
            off = sign * (level - value) - 1e-13 * np.sum(np.abs([*parts, level]), 0)
        assert not np.any(off > 0), np.nanmax(off)


@pytest.mark.parametrize("name", [*FUNCTIONS, *TWO])
def test_lines_are_on_their_sides(name: str) -> None:
    function, count = (TWO[name], 2) if name in TWO else (FUNCTIONS[name], 1)
    graph = gs.trace(function, *[gs.f32[BOXES]] * count)
    boxes = [some_boxes(seed, name in ("log", "sqrt")) for seed in range(count)]
    flat = [end for box in boxes for end in box]
    rng = np.random.default_rng(7)
    points = [between(*box, rng) for box in boxes]
    real, computed = values(function, count, *points)
    kinked = graph.nodes[0].op.kinks is not None or count == 2
    for kernels in ("real", "any"):
        run = lines_of(graph, kernels)
        assert_between(run(*flat), count, points, real)
        if kernels == "any":
            assert_between(run(*flat), count, points, computed.astype(np.float64))
    if kinked:
        run = lines_of(graph, "real", shared=True)
        for share in (0.0, 0.3, 1.0):
            assert_between(run(*flat, np.full(BOXES, share, np.float32)), count, points, real)


@pytest.mark.parametrize("power", [-36, -21, 21, 33])
def test_quotients_have_lines_by_large_and_small_divisors(power: int) -> None:
    graph, rng = gs.trace(TWO["div"], gs.f32[BOXES], gs.f32[BOXES]), np.random.default_rng(7)
    boxes = [some_boxes(0, False), tuple(np.float32(2.0**power) * (end + 1) for end in some_boxes(1, True))]
    points = [between(*box, rng) for box in boxes]
    real, computed = values(TWO["div"], 2, *points)
    run = lines_of(graph, "any")
    results = run(*(end for box in boxes for end in box))
    assert_between(results, 2, points, real)
    assert_between(results, 2, points, computed.astype(np.float64))
    assert np.all(results[1] > 0)


@pytest.mark.parametrize("share", [None, 0.0, 0.3, 1.0])
def test_planes_of_products_touch_them_where_they_should(share: float | None) -> None:
    """Both planes are ``r·s`` away in the middle of each product; with a share of 0 or 1 each touches it in corners."""
    graph, rng = gs.trace(gs.matmul, gs.f32[3, 4], gs.f32[4, 2]), np.random.default_rng(5)
    (node,), builder, arithmetic = graph.nodes, Builder(), BoundArithmetic(gs.f32, any=False)
    ends = [[builder.input(v.type, f"{v.name}_{end}") for end in ("low", "high")] for v in graph.inputs]
    points = [builder.input(v.type, f"{v.name}_point") for v in graph.inputs]
    boxes = [Box(arithmetic, ends=lambda pair=tuple(pair): pair) for pair in ends]
    (box,) = enclosed(node, boxes, arithmetic)
    shares = None if share is None else builder.share(np.full((3, 2), share, np.float32), "share")
    found = _bilinear_lines(BoundedNode(node, arithmetic), boxes, box, box.sum_error.error, shares)
    values = [line.intercept + line.maps[0][1].push(points[0]) + line.maps[1][1].push(points[1]) for line in found]
    some = builder.share(rng.normal(size=(3, 2)).astype(np.float32), "some")
    pairs = [(m, points[i]) for line in found for i, m in line.maps]
    adjoint = [gs.sum(some * m.push(point)) - gs.sum(m.pull(some) * point) for m, point in pairs]
    run = gs.compile(builder.build([*values, *adjoint], allow_unused=True))
    centres, radii = ([rng.uniform(low, 2, v.shape) for v in graph.inputs] for low in (-2, 0.1))
    flat = [(c + sign * r).astype(np.float32) for c, r in zip(centres, radii, strict=True) for sign in (-1, 1)]
    apart = radii[0] @ radii[1]

    def gaps(*at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        below, above, *differences = run(*flat, *(a.astype(np.float32) for a in at))
        np.testing.assert_allclose(differences, 0, atol=1e-4)
        return at[0] @ at[1] - below, above - at[0] @ at[1]

    for _ in range(200):
        t = [rng.choice([rng.uniform(-1, 1), -1, 1], v.shape) for v in graph.inputs]
        for gap in gaps(*(c + part * r for c, part, r in zip(centres, t, radii, strict=True))):
            assert np.all(gap >= -1e-4)
    for gap in gaps(*centres):
        np.testing.assert_allclose(gap, apart, rtol=1e-4)
    if share in (0.0, 1.0):
        sign = -1 if share == 0 else 1
        touching = gaps(centres[0] + sign * radii[0], centres[1] + sign * radii[1])[0]
        crossing = gaps(centres[0] + sign * radii[0], centres[1] - sign * radii[1])[1]
        assert max(np.max(touching), np.max(crossing)) < 1e-3
