"""What JAX does with functions: one network under every transformation, whole networks, and four devices."""

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import gradspec as gs
from interop.test_to_jax import drawn, quickly

jax = pytest.importorskip("jax")


def block(x, w):
    """Ties at every step, and second derivatives that are not zero."""
    y = gs.max_pool2d(gs.relu(gs.conv2d(x, w, padding=1)), 3, 2, 1)
    return y * y + gs.avg_pool2d(x, 2)


GRAPH = gs.trace(block, gs.f32[2, 4, 4], gs.f32[2, 2, 3, 3])
X, W = drawn(GRAPH.inputs, "block")
DX, DW = drawn(GRAPH.inputs, "tangents")
(CT,) = drawn(GRAPH.outputs, "cotangents")
FUNCTION = gs.to_jax(GRAPH)


@cache
def exactly(graph, *names):
    """The results of a derivative graph on whole numbers, which float32 holds."""
    given = {"x": X, "w": W, "dx": DX, "dw": DW, "ct": CT}
    results = gs.evaluate(graph, *(given[name] for name in names), domain=gs.exact)
    several = results if isinstance(results, tuple) else (results,)
    return [np.array([float(c) for c in t.cells], np.float32).reshape(t.shape) for t in several]


def assert_equal(found, right):
    for got, wanted in zip(found, right, strict=True):
        assert np.array_equal(got, wanted)


def scalar(x, w):
    return (FUNCTION(x, w) * CT).sum()


def pulled(x, w):
    return jax.grad(scalar, (0, 1))(x, w)


def pushed(x, w):
    return jax.jvp(FUNCTION, (x, w), (DX, DW))[1]


def linearized(x, w):
    return jax.linearize(FUNCTION, x, w)[1](DX, DW)


def forward_over_reverse(x, w):
    return jax.jvp(pulled, (x, w), (DX, DW))[1]


def reverse_over_forward(x, w):
    return jax.grad(lambda x, w: (pushed(x, w) * CT).sum(), (0, 1))(x, w)


def reverse_over_reverse(x, w):
    return jax.vjp(pulled, x, w)[1]((DX, DW))


def remembered(x, w):
    return jax.grad(jax.checkpoint(scalar), (0, 1))(x, w)


def remembered_twice(x, w):
    return jax.jvp(remembered, (x, w), (DX, DW))[1]


def test_derivatives_of_both_orders_and_modes_are_exact():
    first = exactly(GRAPH.vjp(), "x", "w", "ct")[1:]
    second = exactly(GRAPH.vjp().jvp(("x", "w")), "x", "w", "ct", "dx", "dw")[4:]
    tangent = exactly(GRAPH.jvp(), "x", "w", "dx", "dw")[1:]
    rights = {
        **dict.fromkeys((pulled, remembered), first),
        **dict.fromkeys((forward_over_reverse, reverse_over_forward, reverse_over_reverse, remembered_twice), second),
    }
    found = quickly(lambda x, w: [f(x, w) for f in (*rights, pushed, linearized)], X, W)
    assert_equal([a for pair in found[:-2] for a in pair], [a for pair in rights.values() for a in pair])
    assert_equal(found[-2:], tangent * 2)


def test_third_derivatives_are_exact():
    """Forward over forward over reverse."""
    graph = GRAPH.vjp().jvp(("x", "w")).jvp(("x", "w"))
    right = exactly(graph, "x", "w", "ct", "dx", "dw", "dx", "dw")
    found = quickly(lambda x, w: jax.jvp(forward_over_reverse, (x, w), (DX, DW))[1], X, W)
    assert_equal(found, right[-2:])


def test_whole_derivatives_agree_with_each_other():
    small = gs.to_jax(gs.trace(lambda x: gs.sum(gs.max_pool(x * x, (3,), 1, 1) * x), gs.f32[4]))
    x = np.float32([1, -1, 0, 1])
    orders = (jax.hessian, lambda f: jax.jacrev(jax.jacfwd(f)), lambda f: jax.jacrev(jax.jacrev(f)))
    first, *others = quickly(lambda x: [order(small)(x) for order in orders], x)
    assert_equal(others, [first] * 2)
    assert np.any(first)


def test_vmap_is_a_loop():
    xs, ws = (np.stack([a, b, -a]) for a, b in ((X, DX), (W, DW)))

    def mapped(xs, ws):
        both = jax.vmap(pulled)(xs, ws)
        one = jax.vmap(pulled, (0, None))(xs, W)
        last = jax.vmap(FUNCTION, (None, 3), 1)(X, np.moveaxis(ws, 0, 3))
        return both, one, last

    def looped(xs, ws):
        both = [pulled(x, w) for x, w in zip(xs, ws, strict=True)]
        one = [pulled(x, W) for x in xs]
        return both, one, [FUNCTION(X, w) for w in ws]

    (*found, last), (*right, right_last) = quickly(lambda *args: (mapped(*args), looped(*args)), xs, ws)
    for stacks, parts in zip(found, right, strict=True):
        assert_equal(stacks, [np.stack(part) for part in zip(*parts, strict=True)])
    assert_equal([last], [np.stack(right_last, 1)])


@pytest.mark.exhaustive
def test_without_jit_it_is_the_same():
    assert_equal([FUNCTION(X, W)], exactly(GRAPH, "x", "w"))
    assert_equal([pushed(X, W)], exactly(GRAPH.jvp(), "x", "w", "dx", "dw")[1:])


def test_scan_is_a_loop():
    graph = gs.trace(lambda x: gs.max_pool1d(x, 3, 1, 1) * 0.5 - gs.relu(x), gs.f32[1, 6])
    body, x = gs.to_jax(graph), np.float32([[1, -2, 3, 3, 0, 4]])

    def scanned(x):
        return jax.lax.scan(lambda carry, _: (body(carry), None), x, None, length=3)[0].sum()

    def unrolled(x):
        return body(body(body(x))).sum()

    def results(function):
        return jax.value_and_grad(function)(x), jax.grad(jax.checkpoint(function))(x)

    scan, loop = quickly(lambda: (results(scanned), results(unrolled)))
    assert_equal(jax.tree.leaves(scan), jax.tree.leaves(loop))


# --- whole networks ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["LeNet", "VGG", "ResNet", "U-Net", "MobileNetV2", "EfficientNet"])
def test_networks_have_the_derivatives_torch_gives_them(name):
    torch = pytest.importorskip("torch")
    from interop.networks import TORCH

    make, shape = TORCH[name]
    network = make().double()
    x, dx = (torch.from_numpy(np.random.default_rng(i).standard_normal(shape)) for i in range(2))
    graph = gs.from_torch(network, x, params="inputs")
    params = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    given = [params[v.name].detach().numpy() for v in graph.inputs[1:]]
    function = gs.to_jax(graph)
    trained = [i for i, v in enumerate(graph.inputs[1:]) if params[v.name].requires_grad]

    def derivatives(x, dx, *params):
        y, dy = jax.jvp(lambda x: function(x, *params), (x,), (dx,))
        places = (0, *(i + 1 for i in trained))
        return y, dy, jax.grad(lambda *args: (function(*args) ** 2).sum(), places)(x, *params)

    with jax.enable_x64(True):
        y, dy, grads = quickly(derivatives, x.numpy(), dx.numpy(), *given)
    right, tangent = torch.func.jvp(network, (x,), (dx,))
    x.requires_grad_()
    (network(x) ** 2).sum().backward()
    wanted = [right.detach(), tangent.detach(), x.grad, *(params[graph.inputs[i + 1].name].grad for i in trained)]
    for got, reference in zip([y, dy, *grads], wanted, strict=True):
        scale = 1 + reference.abs().max().item()
        assert np.abs(got - reference.numpy()).max() <= 1e-11 * scale


# --- four devices -----------------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
def test_four_devices_give_what_one_gives():
    """In a process of its own: the number of devices is settled when JAX starts."""
    script = Path(__file__).with_name("four_devices.py")
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    environment = {**os.environ, **flags, "PYTHONPATH": str(script.parents[1])}
    run = subprocess.run([sys.executable, "-W", "error", script], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == ["values", "gradients", "forward", "mapped"]
