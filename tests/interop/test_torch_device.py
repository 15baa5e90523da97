"""Graphs on the tensors of a device. CPU tensors stand for those of a GPU: Triton's interpreter takes them."""

import re
import sys
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import gradspec as gs  # noqa: E402
import gradspec.torch as F  # noqa: E402, N812  (its usual name)
from backends.quick_triton import quick_interpreter  # noqa: E402, F401  (a fixture)
from gradspec.backends.triton import plans  # noqa: E402
from gradspec.conformance.model.arithmetic import Arithmetic  # noqa: E402
from gradspec.conformance.oracle.enclosure import enclosed_outputs  # noqa: E402
from gradspec.graph.lru import LRUCache  # noqa: E402
from gradspec.graph.types import bf16, f16, f32, f64  # noqa: E402
from gradspec.interop.extras import EXTRAS  # noqa: E402
from gradspec.interop.torch import device, dropin  # noqa: E402
from gradspec.interop.torch.device import KEEPS_DTYPE, LOWERINGS, VIEWS  # noqa: E402
from gradspec.interop.torch.module import call  # noqa: E402
from gradspec.interop.torch.types import array_of, gradspec_dtype, tensor_of  # noqa: E402
from gradspec.ops.core import operators  # noqa: E402
from gradspec.runtime import calls  # noqa: E402
from gradspec.spec.errors import DTypeError, ShapeError, UnsupportedError  # noqa: E402
from graph.test_op_laws import CASES  # noqa: E402
from interop.test_to_jax import KINKS, REDUNDANT, drawn  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("quick_interpreter", "cpu_as_device"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # of NumPy, which interprets the kernels
]
CPU = torch.device("cpu")


@pytest.fixture
def cpu_as_device(monkeypatch):
    monkeypatch.setattr(calls, "_calls", LRUCache(calls.MOST_CALLS))
    monkeypatch.setattr(dropin, "_poolings", LRUCache(dropin.MOST_POOLINGS))
    device.DEVICES.add("cpu")
    yield
    device.DEVICES.remove("cpu")


@pytest.fixture
def ran(monkeypatch):
    """The operators that ran there."""
    names: list[str] = []
    make = device._function

    def noting(nodes, place):
        function, name = make(nodes, place), " and ".join(node.op.name for node in nodes)
        return lambda *tensors: (names.append(name), function(*tensors))[1]

    monkeypatch.setattr(device, "_function", noting)
    return names


# --- operators --------------------------------------------------------------------------------------------------------


def test_every_operator_runs_there():
    known = {*LOWERINGS, *device.POOLING}
    assert known == {name for name, op in operators().items() if not op.is_composite}
    assert set(LOWERINGS).isdisjoint(device.POOLING)
    assert set(LOWERINGS) >= (KEEPS_DTYPE | VIEWS | device.PRODUCTS)
    assert EXTRAS["triton"] == "gpu"


def chosen(case):
    is_wide = re.match(r"conv\w* rank [45]", case.id)  # which torch does not have
    if is_wide or REDUNDANT.match(case.id) or {node.op.name for node in case.graph().nodes} & device.POOLING:
        return None
    return replace(case, data="tied") if case.id.startswith(KINKS) else case


ROWS = [
    (case, dtype)
    for i, case in enumerate(filter(None, map(chosen, CASES)))
    for dtype in ((f32, f64, f16, bf16)[i % 4],)
]


def torchs(graph, dtype):
    """PyTorch's erf of float32 errs by up to 9.5 units on CPUs; all else is within what is allowed without a word."""
    has_erf = any(node.op.name == "erf" for node in graph.nodes)
    return Arithmetic.of("f32", function_error=16 * 2.0**-24) if has_erf and dtype is f32 else None


@pytest.mark.parametrize(("case", "dtype"), ROWS, ids=lambda part: getattr(part, "id", str(part)))
def test_values_and_gradients_are_within_the_certified_bound(case, dtype):
    graph = case.graph(dtype)
    forward = any(v.type.is_float for v in graph.inputs) and all(v.type.is_float for v in graph.outputs)
    whole = graph.vjp() if forward else graph
    arrays = [a.astype(v.dtype.numpy) for a, v in zip(case.arrays(), graph.inputs, strict=True)]
    arrays += drawn(whole.inputs[len(arrays) :], case.id)
    results = device.DeviceProgram(whole, CPU)([tensor_of(np.asarray(a)) for a in arrays])
    for found, bound in zip(results, enclosed_outputs(whole, *arrays, arithmetic=torchs(whole, dtype)), strict=True):
        cells = array_of(found).astype(float)
        inside = (bound.lower <= cells) & (cells <= bound.upper)
        assert (inside | np.isnan(bound.centre) | bound.weak).all()


CONVERSIONS = [
    (
        torch.float64,
        torch.bfloat16,
        [1.0 + 2.0**-8 + 2.0**-40, 1.0 + 2.0**-8, -1.0 - 2.0**-8 - 2.0**-30, 1e300, float("nan")],
    ),
    (torch.float64, torch.float16, [1.0 + 2.0**-11 + 2.0**-40, 1.0 + 2.0**-11, 65519.999999999, 1e-8]),
    (torch.int64, torch.bfloat16, [2**24 + 2**16 + 1, -(2**62) - 2**54 - 1, 3]),
    (torch.float32, torch.int8, [1.9, -1.9, 300.0, -300.0, float("nan"), float("inf")]),
    (torch.float64, torch.int64, [2.0**63, -(2.0**64), 2.5, float("nan")]),
]


@pytest.mark.parametrize(("source", "target", "numbers"), CONVERSIONS, ids=str)
def test_conversions_round_once_and_saturate(source, target, numbers):
    x = torch.tensor(numbers, dtype=source)
    dtype = gradspec_dtype(target)
    graph = gs.trace(lambda x: gs.convert(x, dtype), gradspec_dtype(source)[len(numbers)])
    (found,) = device.DeviceProgram(graph, CPU)([x])
    np.testing.assert_array_equal(array_of(found).astype(float), np.asarray(graph(array_of(x))).astype(float))


# --- graphs -----------------------------------------------------------------------------------------------------------


def network():
    random = np.random.default_rng(0)
    b = gs.Builder()
    x = b.input(gs.f32[2, 2, 8, 8], "image")
    weight = b.const(random.standard_normal((3, 2, 3, 3), np.float32), "conv.weight")
    y = gs.max_pool2d(gs.relu(gs.conv2d(x, weight)), 2)
    return b.build(gs.mean(gs.avg_pool2d(y, 3, 1, 1), (1, 2, 3)))


def image(seed=0):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((2, 2, 8, 8), np.float32))


def test_modules_run_and_train_there(ran):
    module, x = gs.to_torch(network(), parameters=["conv.weight"]), image()
    y = module(x)
    y.sum().backward()
    assert {"conv", "max_pool", "max_pool_scatter", "avg_pool_transpose", "conv_weight_grad"} <= set(ran)
    gradient = module.conv.weight.grad.clone()
    np.testing.assert_allclose(y.detach().numpy(), network()(x.numpy()), rtol=1e-5, atol=1e-6)
    device.DEVICES.remove("cpu")
    module.conv.weight.grad = None
    module(x).sum().backward()
    device.DEVICES.add("cpu")
    torch.testing.assert_close(gradient, module.conv.weight.grad)


@pytest.mark.parametrize("compiled", [False, True])
def test_transformations_work_there(ran, compiled):
    graph = gs.trace(lambda x: gs.sum(gs.max_pool2d(x * x, 2)), gs.f32[4, 4])
    module, x = gs.to_torch(graph), torch.arange(16.0).reshape(4, 4)
    gradient = torch.func.grad(module)
    found = (torch.compile(gradient, backend="eager", fullgraph=True) if compiled else gradient)(x)
    wanted = torch.zeros(4, 4)
    wanted[1::2, 1::2] = 2 * x[1::2, 1::2]
    assert torch.equal(found, wanted)
    assert "max_pool_scatter" in ran
    assert torch.equal(torch.func.jvp(module, (x,), (torch.ones(4, 4),))[1], wanted.sum())


def test_constants_move_along(ran):
    graph = network()
    wanted = graph(image().numpy())
    for run in (lambda x: call(graph, [x])[0], torch.compile(lambda x: call(graph, [x])[0], backend="eager")):
        np.testing.assert_allclose(run(image()).numpy(), wanted, rtol=1e-5, atol=1e-6)
    (gradient,) = torch.func.vjp(lambda x: call(graph, [x])[0], image())[1](torch.ones(2))
    assert gradient.shape == (2, 2, 8, 8)
    assert {"conv", "conv_transpose"} <= set(ran)


def test_results_are_in_memory_of_their_own():
    graph = gs.trace(
        lambda x: (gs.reshape(x, (4,)), gs.transpose(x, (1, 0)), gs.broadcast_to(x, (3, 2, 2))), gs.f32[2, 2]
    )
    x = torch.ones(2, 2)
    for result in gs.to_torch(graph)(x):
        result.mul_(2)
    assert x.sum() == 4


def test_wrong_tensors_are_refused():
    module = gs.to_torch(network())
    with pytest.raises(ShapeError, match="was given a tensor of shape"):
        module(image()[:1])
    with pytest.raises(DTypeError, match="a tensor of torch"):
        module(image().double())
    with pytest.raises(UnsupportedError, match="another is on"):
        device.DeviceProgram(network(), torch.device("meta"))([image()])


def test_what_cannot_run_there_is_refused(monkeypatch):
    rank4 = gs.trace(lambda x, w: gs.conv(x, w), gs.f32[1, 2, 2, 2, 2], gs.f32[1, 1, 1, 1, 1, 1])
    with pytest.raises(UnsupportedError, match="4 spatial axes cannot run on cpu"):
        device.DeviceProgram(rank4, CPU)([torch.ones(1, 2, 2, 2, 2), torch.ones(1, 1, 1, 1, 1, 1)])
    monkeypatch.delitem(LOWERINGS, "relu")
    with pytest.raises(UnsupportedError, match="relu cannot run on cpu"):
        device.DeviceProgram(gs.trace(gs.relu, gs.f32[2]), CPU)


def test_without_triton_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    node = gs.trace(lambda x: gs.max_pool2d(x, 2), gs.f32[4, 4]).nodes[0]
    with pytest.raises(ImportError, match=r'max_pool on cuda:0 needs triton.*pip install "gradspec\[gpu\]"'):
        device.pooling_operator((node,), torch.device("cuda:0"))


# --- precision --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", device.PRECISIONS)
def test_products_have_the_stated_precision(monkeypatch, name):
    F.set_float32_precision(name)
    cudnn, blas = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.conv.fp32_precision, blas.fp32_precision, cudnn.deterministic
    seen = []
    device._precisely(lambda x: seen.append((cudnn.conv.fp32_precision, blas.fp32_precision)))(torch.ones(1))
    F.set_float32_precision("ieee")
    assert seen == [(name, name)]
    assert (cudnn.conv.fp32_precision, blas.fp32_precision, cudnn.deterministic) == before


def test_an_unknown_precision_is_refused():
    with pytest.raises(ValueError, match="no precision 'half'; use 'ieee' or 'tf32'"):
        F.set_float32_precision("half")


# --- eager operators --------------------------------------------------------------------------------------------------


def test_operators_and_graphs_take_tensors_there(ran):
    x = image()
    assert torch.equal(gs.max_pool2d(x, 2), torch.nn.functional.max_pool2d(x, 2))
    assert torch.equal(gs.add(x, 1.0), x + 1)
    _, places = gs.max_pool2d(x, 2, return_indices=True)
    assert torch.equal(places, torch.nn.functional.max_pool2d(x, 2, return_indices=True)[1])
    assert gs.concat([x, x], 1).shape == (2, 4, 8, 8)
    assert gs.trace(gs.relu, gs.f32[2, 2, 8, 8])(x).shape == x.shape
    assert {"max_pool", "add", "concat", "relu"} <= set(ran)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: gs.max_pool2d(x, 30), ShapeError, "a window of 30 cells"),
        (lambda x: gs.add(x, np.ones((2, 2, 8, 8), np.float32)), UnsupportedError, "beside a tensor on cpu"),
        (lambda x: gs.relu(x.requires_grad_()), UnsupportedError, "requires grad"),
    ],
)
def test_operators_refuse_what_they_cannot_take(call, error, message):
    with pytest.raises(error, match=message):
        call(image())


# --- gradspec.torch ---------------------------------------------------------------------------------------------------

CALLS = [
    ("max_pool2d", (3, 2, 1), {}),
    ("max_pool2d", (2,), {"return_indices": True}),
    ("avg_pool2d", (3, 1, 1), {"count_include_pad": False}),
    ("adaptive_max_pool2d", ((3, 5),), {"return_indices": True}),
    ("adaptive_avg_pool2d", ((5, None),), {}),
    ("lp_pool2d", (2, 3, 1), {}),
]


def test_a_tape_serves_the_first_derivative_and_the_graph_the_next(ran):
    x = image().requires_grad_()
    g = torch.randn(2, 2, 4, 4, requires_grad=True)
    (gradient,) = torch.autograd.grad(F.max_pool2d(x, 2), x, g.detach())
    assert ran == []
    (again,) = torch.autograd.grad(F.max_pool2d(x, 2), x, g, create_graph=True)
    assert torch.equal(gradient, again.detach())
    (second,) = torch.autograd.grad(again, g, torch.ones_like(x))
    assert torch.equal(second, torch.ones_like(g))
    assert {"max_pool_scatter", "max_pool_gather"} <= set(ran)


@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize(("name", "args", "kwargs"), CALLS)
def test_functions_give_what_torch_gives(name, args, kwargs, form):
    mine, theirs = (image().contiguous(memory_format=form).requires_grad_() for _ in range(2))
    with patch.object(dropin, "call", wraps=dropin.call) as called:
        found = getattr(F, name)(mine, *args, **kwargs)
    assert called.call_count == 1
    wanted = getattr(torch.nn.functional, name)(theirs, *args, **kwargs)
    pairs = [(found, wanted)] if isinstance(found, torch.Tensor) else [*zip(found, wanted, strict=True)]
    for a, b in pairs:
        torch.testing.assert_close(a, b)
        assert a.stride() == b.stride()
    cotangent = torch.randn(pairs[0][0].shape)
    pairs[0][0].backward(cotangent)
    pairs[0][1].backward(cotangent)
    torch.testing.assert_close(mine.grad, theirs.grad)
    with torch.no_grad():
        again = [getattr(F, name)(mine, *args, **kwargs) for _ in range(2)]
    first = [a if isinstance(a, torch.Tensor) else a[0] for a in again]
    assert torch.equal(first[0], pairs[0][0])
    assert torch.equal(first[1], pairs[0][0])


def several(results):
    return results if isinstance(results, tuple) else (results,)


@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize(("name", "args", "kwargs"), CALLS)
def test_a_call_that_is_known_gives_the_same(monkeypatch, name, args, kwargs, form):
    x = image().contiguous(memory_format=form).requires_grad_()

    def with_gradient():
        results = several(getattr(F, name)(x, *args, **kwargs))
        with torch.no_grad():
            alone = several(getattr(F, name)(x, *args, **kwargs))
        return *results, *alone, *torch.autograd.grad(results[0], x, torch.ones_like(results[0]))

    first = with_gradient()
    monkeypatch.setattr(dropin, "call", None)
    for a, b in zip(first, with_gradient(), strict=True):
        assert torch.equal(a, b)
        assert (a.stride(), a.requires_grad, a.dtype) == (b.stride(), b.requires_grad, b.dtype)


def pooled_by(library):
    return lambda x: library.max_pool2d(x, 3, 2, 1)


def batched_pulls(f, x):
    y = f(x.requires_grad_())
    return torch.autograd.grad(y, x, torch.eye(y.numel()).reshape(-1, *y.shape), is_grads_batched=True)[0]


def pull_of_pull(f, x):
    y = f(x.requires_grad_())
    g = torch.randn(y.shape, generator=torch.manual_seed(0), requires_grad=True)
    (pulled,) = torch.autograd.grad(y, x, g, create_graph=True)
    return torch.autograd.grad(pulled, g, image(1))[0]


def moved_pull(f, x):
    y = f(x.requires_grad_())
    with torch.autograd.forward_ad.dual_level():
        g = torch.autograd.forward_ad.make_dual(torch.ones_like(y), torch.full_like(y, 2.0))
        return torch.autograd.forward_ad.unpack_dual(torch.autograd.grad(y, x, g)[0]).tangent


def pulled_tangent(f, x):
    """Of a tangent that alone requires grad."""
    v = image(1).requires_grad_()
    with torch.autograd.forward_ad.dual_level():
        y = f(torch.autograd.forward_ad.make_dual(x, v))
        return torch.autograd.grad(torch.autograd.forward_ad.unpack_dual(y).tangent.sum(), v)[0]


def laid_anew(f, x):
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: t.clone(memory_format=torch.contiguous_format), lambda t: t
    ):
        y = f(x.contiguous(memory_format=torch.channels_last).requires_grad_())
    return torch.autograd.grad(y.sum(), y.grad_fn.next_functions[0][0].variable)[0]


WATCHING = {
    "grad": lambda f, x: torch.func.grad(lambda x: (f(x) ** 2).sum())(x),
    "jvp": lambda f, x: torch.func.jvp(f, (x,), (image(1),)),
    "jvp of jvp": lambda f, x: torch.func.jvp(lambda x: torch.func.jvp(f, (x,), (x**2,))[1], (x,), (image(1),)),
    "grad of jvp": lambda f, x: torch.func.grad(lambda x: torch.func.jvp(f, (x,), (x**2,))[1].sum())(x),
    "vmap of jvp": lambda f, x: torch.func.vmap(lambda v: torch.func.jvp(f, (x,), (v,)))(torch.stack([x, -x])),
    "vmap": lambda f, x: torch.func.vmap(f)(torch.stack([x, -x])),
    "hessian": lambda f, x: torch.func.hessian(lambda x: (f(x) ** 2).sum())(x),
    "autocast": lambda f, x: torch.autocast("cpu", torch.bfloat16)(f)(x),
    "compiled": lambda f, x: torch.compile(f, backend="eager")(x),
    "batched pulls": batched_pulls,
    "pull of pull": pull_of_pull,
    "moved pull": moved_pull,
    "pulled tangent": pulled_tangent,
    "saved tensors laid anew": laid_anew,
}


@pytest.mark.parametrize("watch", WATCHING.values(), ids=WATCHING.keys())
def test_whoever_watches_a_call_that_is_known_is_not_passed_by(watch):
    for form in (torch.contiguous_format, torch.channels_last):
        pooled_by(F)(image().contiguous(memory_format=form).requires_grad_())
    found, wanted = (watch(pooled_by(library), image()) for library in (F, torch.nn.functional))
    torch.testing.assert_close(found, wanted)


def test_a_tangent_that_is_the_value_waits_for_it():
    def pooled(x):
        return gs.max_pool1d(x, 3, 1, 1)

    x = image().flatten(2)
    net = gs.trace(lambda x: gs.jvp(pooled, (x,), (pooled(x),))[1], gs.f32[tuple(x.shape)])
    assert [node.op.name for node in net.simplify().nodes] == ["max_pool", "max_pool_gather"]
    torch.testing.assert_close(gs.to_torch(net)(x), torch.from_numpy(gs.compile(net)(x.numpy())))


def test_a_value_and_its_tangent_are_found_at_once(ran):
    x, dx = image(), image(1)
    torch.func.jvp(pooled_by(F), (x,), (dx,))
    net = gs.trace(lambda x: gs.smooth_max_pool2d(gs.relu(gs.max_pool2d(x, 2)), 2, beta=1.0), gs.f32[tuple(x.shape)])
    torch.func.jvp(gs.to_torch(net), (x,), (dx,))
    pairs = ["max_pool and max_pool_gather"] * 2 + ["smooth_max_pool and smooth_max_mean"]
    assert [name for name in ran if "pool" in name] == pairs


@pytest.mark.parametrize("pooled", [pooled_by(F), lambda x: gs.max_pool2d(x, 3, 2, 1)], ids=["torch", "operator"])
def test_kernels_are_given_no_tensor_that_is_negated_when_it_is_read(monkeypatch, pooled):
    x, launch = torch.complex(image(), image()).conj().imag, plans.Launch.__call__

    def noting(self, tensors):
        assert not any(t.is_neg() for t in tensors)
        launch(self, tensors)

    monkeypatch.setattr(plans.Launch, "__call__", noting)
    assert torch.equal(pooled(x), pooled_by(torch.nn.functional)(x))


def test_a_known_call_notices_that_its_input_was_changed():
    for _ in range(2):
        x = image().requires_grad_()
        y = pooled_by(F)(x)
        with torch.no_grad():
            x += 1
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


def test_other_functions_stay_with_torch_there(ran):
    x, w = image(), torch.ones(3, 2, 3, 3)
    assert torch.equal(F.conv2d(x, w), torch.nn.functional.conv2d(x, w))
    assert ran == []
