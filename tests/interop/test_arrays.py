"""Operators, graphs and derivatives on arrays of any library: the caller's kind comes back, and no memory is copied."""

import array
import collections
import dataclasses
import subprocess
import sys
import warnings
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch

import gradspec as gs
from gradspec.graph import tree
from gradspec.graph.arrays import as_array, library_of
from gradspec.runtime.frame import Frame
from patience import PATIENCE

RANDOM = np.random.default_rng(6)
IMAGE = RANDOM.integers(-4, 5, (1, 2, 6, 5)).astype(np.float32)
WEIGHT = RANDOM.integers(-2, 3, (3, 2, 2, 2)).astype(np.float32)


def torch_from(array):
    """An independent way from NumPy: by values."""
    if array.dtype == ml_dtypes.bfloat16:
        return torch.tensor(array.astype(np.float32).tolist(), dtype=torch.bfloat16)
    return torch.tensor(array.tolist(), dtype=getattr(torch, str(array.dtype))).reshape(array.shape)


def jax_from(array):
    return jnp.array(array.tolist(), dtype=array.dtype).reshape(array.shape)


KINDS = {"torch": (torch_from, torch.Tensor), "jax": (jax_from, jax.Array)}
every_kind = pytest.mark.parametrize(("make", "cls"), KINDS.values(), ids=KINDS)


def numbers(result):
    """The values of an array of any library, by its own list of them."""
    return np.array(result.tolist(), np.float64).reshape(result.shape)


def address_of(value):
    if isinstance(value, torch.Tensor):
        return value.data_ptr()
    return value.unsafe_buffer_pointer() if isinstance(value, jax.Array) else value.ctypes.data


# --- the same as on NumPy arrays, in the caller's kind ----------------------------------------------------------------


def square_sum(x):
    return gs.sum(x * x)


CALLS = {
    "one array, remembered": (lambda x: gs.max_pool2d(x, 2), [IMAGE]),
    "by keyword": (lambda x: gs.avg_pool2d(x, kernel_size=2, stride=1), [IMAGE]),
    "two results": (lambda x: gs.max_pool2d(x, 2, return_indices=True), [IMAGE]),
    "two arrays": (lambda x, w: gs.conv2d(x, w, padding=1), [IMAGE, WEIGHT]),
    "a keyword array": (lambda x, w, b: gs.conv2d(x, w, bias=b), [IMAGE, WEIGHT, np.float32([1, 2, 3])]),
    "a list of arrays": (lambda a, b: gs.concat([a, b], axis=1), [IMAGE, IMAGE]),
    "a number beside it": (lambda x: gs.maximum(x, 1.0), [IMAGE]),
    "NumPy beside it": (lambda x: gs.conv2d(x, WEIGHT), [IMAGE]),
    "only moved": (lambda x: gs.transpose(x, (3, 0, 2, 1)), [IMAGE]),
    "repeated": (lambda x: gs.broadcast_to(x, (2, 2, 6, 5)), [IMAGE]),
    "backwards": (lambda x: gs.slice(x, (0, 0, 5, 4), (1, 2, None, None), (1, 1, -1, -2)), [IMAGE]),
    "composed": (lambda x, y: gs.mse_loss(x, y), [IMAGE, 2 * IMAGE]),
    "a scalar": (lambda x: gs.sum(x), [IMAGE]),
    "nothing in it": (lambda x: gs.relu(x), [IMAGE[:0]]),
    "a graph": (gs.trace(lambda x, y: (x * y, x + y), gs.f32[3], gs.f32[3]), [IMAGE[0, 0, :3, 0], IMAGE[0, 0, 0, :3]]),
    "a compiled graph": (gs.compile(lambda x: gs.relu(x), gs.f32[1, 2, 6, 5]), [IMAGE]),
    "a graph that returns its input": (gs.trace(lambda x: (x, x), gs.f32[1, 2, 6, 5]), [IMAGE]),
    "grad": (gs.grad(square_sum), [IMAGE]),
    "value and grad": (gs.value_and_grad(lambda x, y: gs.sum(x * y), (0, 1)), [IMAGE, 2 * IMAGE]),
    "jvp": (lambda x, dx: gs.jvp(gs.relu, (x,), (dx,)), [IMAGE, 2 * IMAGE]),
    "vjp": (lambda x, g: gs.vjp(gs.relu, x)[1](g), [IMAGE, 2 * IMAGE]),
    "the value of a vjp": (lambda x: gs.vjp(gs.relu, x)[0], [IMAGE]),
    "vjp of a NumPy cotangent": (lambda x: gs.vjp(gs.relu, x)[1](IMAGE), [IMAGE]),
    "jacobian by columns": (gs.jacobian(lambda x: gs.max_pool1d(x, 2)), [IMAGE[0, 0]]),
    "jacobian by rows": (gs.jacobian(lambda x: gs.max_pool1d(x, 2), "reverse"), [IMAGE[0, 0]]),
    "hvp": (lambda x, v: gs.hvp(lambda x: gs.sum(x * x * x), x, v), [IMAGE, IMAGE]),
    "a captured array": (lambda x, y: gs.grad(lambda x: gs.sum(x * y))(x), [IMAGE, IMAGE]),
}


def in_parts(result):
    return [part for child in result for part in in_parts(child)] if isinstance(result, tuple) else [result]


@every_kind
@pytest.mark.parametrize(("call", "arguments"), CALLS.values(), ids=CALLS)
def test_the_caller_gets_its_kind(call, arguments, make, cls):
    expected = in_parts(call(*arguments))
    found = in_parts(call(*map(make, arguments)))
    assert len(found) == len(expected)
    for result, right in zip(found, expected, strict=True):
        assert isinstance(result, cls)
        assert tuple(result.shape) == right.shape
        np.testing.assert_array_equal(numbers(result), right)


@pytest.mark.parametrize(("call", "arguments"), CALLS.values(), ids=CALLS)
def test_the_other_byte_order_gives_the_same(call, arguments):
    """Twice, since what the first call comes to is remembered. The given arrays stay as they are."""
    expected = in_parts(call(*arguments))
    swapped = [a.astype(a.dtype.newbyteorder()) for a in arguments]
    for found in (in_parts(call(*swapped)), in_parts(call(*swapped))):
        for result, right in zip(found, expected, strict=True):
            assert result.dtype == right.dtype  # which has the machine's own order
            np.testing.assert_array_equal(result, right)
    assert all(not a.dtype.isnative for a in swapped)


@pytest.mark.parametrize("dtype", [gs.f16, gs.f32, gs.f64, gs.i16, gs.i64, gs.u8, gs.u32], ids=str)
def test_the_other_byte_order_at_every_door(dtype, tmp_path):
    row = np.arange(4).astype(dtype.numpy)
    swapped, type = row.astype(dtype.numpy.newbyteorder()), dtype[4]
    graph = gs.trace(lambda x, w: x + w, type, type)
    bound = gs.bind(graph, {"w": swapped})
    gs.save_weights(tmp_path / "w", {"w": swapped})
    found = [
        gs.trace(lambda x: x + swapped, type)(swapped),
        bound(swapped),
        gs.bind(graph, gs.load_weights(tmp_path / "w"))(row),
        gs.compile(graph, backend="numpy")(swapped, row),
        gs.from_onnx(gs.to_onnx(graph), constants={"w": swapped})(row),
    ]
    if dtype in (gs.f16, gs.f32):
        found.append(np.asarray(gs.to_jax(graph)(row, swapped)))
        found.append(gs.from_torch(torch.nn.ReLU(), swapped)(row) * 2)
    for result in found:
        assert (result.dtype, result.tolist()) == (dtype.numpy, (row + row).tolist())


FLOATS = (gs.f16, gs.bf16, gs.f32, gs.f64)


@pytest.mark.parametrize("one", ["abs", "exp", "gelu", "neg", "relu", "sigmoid", "softmax", "sqrt", "sum"])
def test_numbers_alone_and_in_lists_have_one_dtype(one):
    operator = getattr(gs, one)
    for value in (0.5, [0.5], [[0.5, 1]], (0.5, True)):
        if one != "softmax" or value != 0.5:
            assert operator(value).dtype == np.float32
    assert operator(np.array([0.5])).dtype == operator([np.float64(0.5)]).dtype == np.float64


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("numbers", [0.1, [0.1, 2.0], (0.1, 2)], ids=str)
@pytest.mark.parametrize("pair", ["add", "sub", "mul", "div", "maximum", "greater"])
def test_numbers_take_the_dtype_of_what_they_are_beside(pair, numbers, dtype):
    """Rounded once, to that dtype; on either side; in calls on arrays, in traced functions and as inputs."""
    operator, x = getattr(gs, pair), np.array([1.5, -2.0], dtype.numpy)
    beside = np.broadcast_to(np.array(numbers, dtype.numpy), (2,))
    for swapped in (False, True):
        call = (lambda a, b: operator(b, a)) if swapped else operator
        right = call(x, beside)
        found = [call(x, numbers), gs.trace(lambda x, call=call: call(x, numbers), dtype[2])(x)]
        if isinstance(numbers, list):
            found.append(gs.trace(call, dtype[2], dtype[2])(x, numbers))
        for result in found:
            assert result.dtype == right.dtype
            np.testing.assert_array_equal(result, right)


def test_lists_of_integers_stay_integers():
    assert gs.relu([1, -2]).dtype == np.int64
    assert gs.cross_entropy([[1.0, 2.0]], [1]).dtype == np.float32
    with pytest.raises(gs.DTypeError, match="one dtype"):
        gs.add(np.zeros(2), [1, 2])


X = np.ones((2, 2, 4, 4), np.float32)
PLACES = np.broadcast_to(np.arange(16).reshape(4, 4), X.shape).copy()
PAIRS = ("add", "div", "equal", "greater", "less", "matmul", "maximum", "minimum", "mse_loss", "mul", "sub")
ARGUMENTS = dict.fromkeys(PAIRS, (X, X)) | {
    "adaptive_avg_pool": (X, (1, 1)),
    "adaptive_max_pool": (X, (1, 1)),
    "avg_pool": (X, (2, 2)),
    "batch_norm": (X, *np.ones((4, 2), np.float32)),
    **dict.fromkeys(
        ("bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift"),
        (X.astype(np.int32), PLACES.astype(np.int32) % 9),
    ),
    "bitwise_not": (X.astype(np.int32),),
    "broadcast_to": (X, (3, 2, 2, 4, 4)),
    "clamp": (X, 0.0),
    "concat": ([X, X],),
    "conv": (X, np.ones((3, 2, 2, 2), np.float32)),
    "conv_transpose": (X, np.ones((2, 3, 2, 2), np.float32)),
    "convert": (X, gs.f64),
    "cumsum": (X, 1),
    "cross_entropy": (X[0, 0], PLACES[0, 0, 0]),
    "einsum": ("bcij,bckj->bik", X, X),
    "dequantize": (X.astype(np.int8), X[0, 0], 3),
    "fold": (X[0], (5,), (2,)),
    "gather": (X, 2, PLACES[:, :, :1] % 4),
    "grid_sample": (X, X[..., :2]),
    "linear": (X, np.ones((3, 4), np.float32)),
    "lp_pool": (X, 2, (2, 2)),
    "max_gather": (X, PLACES, 2),
    "max_pool": (X, (2, 2)),
    "max_unpool": (X, PLACES, (8, 8)),
    "pad": (X, [(1, 1)] * 4),
    "quantize": (X, X[0, 0], PLACES[0, 0].astype(np.uint8)),
    "reshape": (X, (4, 16)),
    "resize": (X, (2, 2), "nearest"),
    "round_to": (X, "f8_e5m2"),
    "scale": (X, 2.0),
    "scatter": (X, 3, PLACES % 4, X),
    "scatter_add": (X, 3, PLACES % 4, X),
    "slice": (X, (0, 0, 0, 0), (1, 1, 1, 1)),
    "smooth_max_pool": (X, (2, 2)),
    "take": (X, PLACES[0, 0, 0], 3),
    "topk": (X, 2),
    "trunc_divide": (X.astype(np.int32), X.astype(np.int32)),
    "unfold": (X, (2, 2)),
    "where": (X > 0, X, 2 * X),
}


def is_operator(name):
    return getattr(getattr(gs, name), "__module__", "").startswith("gradspec.ops.")


@pytest.mark.parametrize("name", list(filter(is_operator, gs.library.__all__)))
def test_every_operator_gives_the_callers_kind(name):
    function, arguments = getattr(gs, name), ARGUMENTS.get(name, (X,))
    if name == "smooth_max_pool":
        function = partial(function, beta=1.0)
    result = function(*tree.map_leaves(lambda a: torch_from(a) if isinstance(a, np.ndarray) else a, arguments))
    for found, right in zip(in_parts(result), in_parts(function(*arguments)), strict=True):
        assert isinstance(found, torch.Tensor)
        np.testing.assert_array_equal(numbers(found), right)


@every_kind
def test_every_kind_means_something_exact(make, cls):
    graph = gs.trace(lambda x: x / 3.0, gs.f32[2])
    assert str(gs.evaluate(graph, make(np.float32([1, 2])), domain=gs.exact).tolist()) == "[1/3, 2/3]"


DTYPES = ["float16", "bfloat16", "float32", "float64", "int8", "uint8", "int32", "int64"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_of_every_dtype_pass_both_ways(dtype):
    tensor = torch.arange(6).reshape(2, 3).to(getattr(torch, dtype))
    seen = as_array(tensor)
    assert (str(seen.dtype), seen.ctypes.data) == (dtype, tensor.data_ptr())
    moved = gs.transpose(tensor)
    assert (moved.dtype, moved.tolist()) == (tensor.dtype, tensor.T.tolist())


def test_what_is_only_moved_is_not_copied():
    """As with NumPy arrays: the result is a view, and a repeated one takes no memory."""
    tensor = torch.arange(6.0).reshape(2, 3)
    moved, repeated = gs.transpose(tensor), gs.broadcast_to(tensor, (4, 2, 3))
    assert (moved.data_ptr(), moved.stride()) == (tensor.data_ptr(), (1, 3))
    assert (repeated.data_ptr(), repeated.stride()) == (tensor.data_ptr(), (0, 3, 1))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "int8", "uint8", "int32"])
def test_jax_arrays_of_every_dtype_pass_both_ways(dtype):
    given = jnp.arange(6, dtype=dtype).reshape(2, 3)
    seen = as_array(given)
    assert (str(seen.dtype), seen.ctypes.data) == (dtype, given.unsafe_buffer_pointer())
    result = gs.max_pool1d(given, 3)
    assert (str(result.dtype), result.tolist()) == (dtype, [[2], [5]])


# --- no copies --------------------------------------------------------------------------------------------------------


@pytest.fixture
def memory(monkeypatch):
    """The addresses that runs of graphs worked on: inputs, constants and results."""
    addresses, run = set(), Frame.run

    def watched(frame, values, threads):
        run(frame, values, threads)
        addresses.update(a.ctypes.data for a in values if a is not None)

    monkeypatch.setattr(Frame, "run", watched)
    return addresses


UNCOPIED = {
    "an operator that remembers": lambda x: gs.max_pool2d(x, 2),
    "another operator": lambda x: gs.relu(x),
    "a graph": lambda x: gs.trace(lambda x: gs.relu(x) * x, gs.f32[1, 2, 6, 5])(x),
    "a compiled graph": lambda x: gs.compile(lambda x: gs.relu(x) * x, gs.f32[1, 2, 6, 5])(x),
    "a derivative": lambda x: gs.grad(square_sum)(x),
}


@every_kind
@pytest.mark.parametrize("call", UNCOPIED.values(), ids=UNCOPIED)
def test_nothing_is_copied(call, make, cls, memory):
    """What a kernel reads is the caller's memory, and what it wrote is what the caller gets."""
    x = make(IMAGE)
    results = [call(x) for _ in range(6)]  # memory that suits JAX by chance does so once in four times
    assert {address_of(x), *map(address_of, results)} <= memory


def test_strides_are_kept():
    x = torch_from(RANDOM.integers(-4, 5, (2, 3, 4, 4)).astype(np.float32)).to(memory_format=torch.channels_last)
    pooled = gs.max_pool2d(x, 2)
    assert pooled.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(pooled, torch.nn.functional.max_pool2d(x, 2))


def test_a_result_goes_into_the_callers_tensor():
    run = gs.compile(lambda x: (x * 2.0, x + 1.0), gs.f32[3])
    x, out = torch.tensor([1.0, 2.0, 3.0]), torch.empty(3)
    first, second = run(x, out=(out, None))
    assert first is out
    assert (out.tolist(), second.tolist(), type(second)) == ([2, 4, 6], [2, 3, 4], torch.Tensor)
    whole = torch.zeros(2, 3)
    gs.compile(lambda x: x * 2.0, gs.f32[3])(np.float32([1, 2, 3]), out=whole[1])
    assert whole.tolist() == [[0, 0, 0], [2, 4, 6]]


def test_results_outlive_what_they_were_made_from():
    x = torch.arange(64.0).reshape(8, 8)
    moved, expected = gs.transpose(x), x.T.tolist()
    del x
    again = torch.ones(8, 8)
    assert (moved.tolist(), again.sum().item()) == (expected, 64)


def test_a_pullback_keeps_its_numbers():
    """The caller may change a tensor after the forward pass."""
    x = torch.tensor([1.0, 2.0])
    _, pullback = gs.vjp(lambda x: x * x, x)
    x.zero_()
    assert pullback(torch.ones(2))[0].tolist() == [2, 4]


def test_other_objects_with_memory():
    class Exported:
        """Knows nothing but DLPack."""

        def __init__(self, inner):
            self.inner = inner

        def __dlpack__(self, **options):
            return self.inner.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.inner.__dlpack_device__()

    x = np.float32([[1, 3, 2, 0]])
    assert as_array(Exported(x)).ctypes.data == x.ctypes.data
    for given in (Exported(x), memoryview(x), x.tolist() and array.array("f", x[0])):
        result = gs.max_pool1d(given, 2)
        assert isinstance(result, np.ndarray)
        assert result.ravel().tolist() == [3, 2]


def test_arrays_that_numpy_cannot_see_are_refused():
    class Elsewhere:
        def __dlpack__(self, **options):
            raise BufferError("this lies on a GPU")

        def __dlpack_device__(self):
            return (2, 0)

    with pytest.raises(gs.UnsupportedError, match=r"Elsewhere.*move it to the CPU"):
        gs.relu(Elsewhere())


# --- mixtures, and what must not be cut off ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        lambda t, j: gs.add(t, j),
        lambda t, j: gs.concat([t, j]),
        lambda t, j: gs.trace(lambda x, y: x * y, gs.f32[2], gs.f32[2])(t, j),
        lambda t, j: gs.jvp(lambda x: x * x, (t,), (j,)),
        lambda t, j: gs.vjp(lambda x: x * x, t)[1](j),
        lambda t, j: gs.grad(lambda w: gs.sum(w["a"] * w["b"]))({"a": t, "b": j}),
    ],
)
def test_two_libraries_together_are_refused(call):
    with pytest.raises(TypeError, match="PyTorch and of JAX"):
        call(torch.ones(2), jnp.ones(2))


def refused(match):
    return pytest.raises(gs.UnsupportedError, match=match)


WAYS = {
    "operator": lambda x: gs.max_pool1d(x, 2),
    "graph": lambda x: gs.trace(lambda x: x * x, gs.f32[2, 4])(x),
    "derivative": lambda x: gs.grad(square_sum)(x),
    "constant": lambda x: gs.trace(lambda y: y * x, gs.f32[2, 4]),
}
every_way = pytest.mark.parametrize("call", WAYS.values(), ids=WAYS)


@every_way
def test_autograd_is_never_cut_off(call):
    x = torch.ones(2, 4, requires_grad=True)
    with refused(r"requires grad.*gs\.to_torch.*detach"):
        call(x)
    call(x.detach())
    with torch.no_grad():
        call(x)


@every_way
@pytest.mark.parametrize(
    "transform",
    [
        lambda f, x: torch.func.jvp(f, (x,), (x,)),
        lambda f, x: torch.func.vmap(lambda _: f(_))(x[None]),
        lambda f, x: torch.func.grad(lambda x: (f(x), x.sum())[1])(x),
    ],
    ids=["jvp", "vmap", "grad"],
)
def test_transformations_of_torch_are_never_cut_off(transform, call):
    x = torch.ones(2, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns of itself when it first loads the rules of forward mode
        with refused(r"gs\.to_torch"):
            transform(call, x)


@every_way
def test_torch_compile_is_never_cut_off(call, monkeypatch):
    """What the compiler is told while it follows the call."""
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    with refused(r"torch\.compile.*gs\.to_torch"):
        call(torch.ones(2, 4))


@every_way
def test_dual_tensors_are_refused(call):
    forward = torch.autograd.forward_ad
    with forward.dual_level():
        x = torch.ones(2, 4)
        call(x)
        with refused(r"forward-mode.*gs\.to_torch"):
            call(forward.make_dual(x, x))


@every_way
def test_fake_and_distant_tensors_are_refused(call):
    class Followed(torch.Tensor):
        """As the tensors of torch.export, of torch.distributed and of others."""

        @classmethod
        def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
            raise AssertionError("nobody may look into it")

    with refused(r"torch\.compile or torch\.export"):
        call(torch.Tensor._make_subclass(Followed, torch.ones(2, 4)))
    with refused(r"on meta.*\.cpu\(\)"):
        call(torch.ones(2, 4, device="meta"))
    with refused(r"torch\.sparse_coo.*\.to_dense\(\)"):
        call(torch.ones(2, 4).to_sparse())


@every_way
@pytest.mark.parametrize("transform", [jax.jit, jax.grad, jax.vmap], ids=["jit", "grad", "vmap"])
def test_transformations_of_jax_are_never_cut_off(transform, call):
    x = jnp.ones((1, 2, 4)) if transform is jax.vmap else jnp.ones((2, 4))
    with refused(r"transformation of JAX.*gs\.to_jax"):
        transform(call)(x)


def test_jax_arrays_cannot_be_written_to():
    with pytest.raises(ValueError, match="read-only"):
        gs.compile(lambda x: x * 2.0, gs.f32[2])(jnp.ones(2), out=jnp.ones(2))


def test_jax_arrays_stay_on_their_device():
    script = """
import jax, jax.numpy as jnp, gradspec as gs
one, two = jax.devices()
x = jax.device_put(jnp.ones((2, 4)), two)
assert gs.max_pool1d(x, 2).devices() == {two}
assert not gs.max_pool1d(jnp.ones((2, 4)), 2).committed
spread = jax.device_put(x, jax.NamedSharding(jax.make_mesh((2,), ("a",)), jax.P("a")))
try:
    gs.max_pool1d(spread, 2)
except gs.UnsupportedError as error:
    assert "gs.to_jax" in str(error)
else:
    raise AssertionError
"""
    env = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "PATH": ""}
    subprocess.run([sys.executable, "-c", script], check=True, env=env, timeout=PATIENCE)


def test_no_framework_is_imported():
    script = """
import sys, numpy as np, gradspec as gs
gs.grad(lambda p: gs.sum(gs.max_pool1d(p["x"], 2)))({"x": np.ones((2, 4), np.float32)})
gs.trace(lambda x: x * x, gs.f32[2])(np.ones(2, np.float32))
sys.exit(" ".join({"torch", "jax", "onnx"} & set(sys.modules)) or None)
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=PATIENCE)


# --- trees ------------------------------------------------------------------------------------------------------------


class Pair(NamedTuple):
    a: Any
    b: Any


@dataclasses.dataclass(frozen=True)
class Layer:
    a: Any
    b: Any
    name: str = dataclasses.field(default="conv", metadata={"static": True})


@dataclasses.dataclass(slots=True)
class Slotted:
    a: Any
    b: Any


class Box:
    def __init__(self, a, b):
        self.a, self.b = a, b


class Ours(Box):
    pass


class TheirsInJax(Box):
    pass


class TheirsInTorch(Box):
    pass


gs.register_pytree(Ours, lambda box: ((box.a, box.b), None), lambda _, parts: Ours(*parts))
jax.tree_util.register_pytree_node(TheirsInJax, lambda box: ((box.a, box.b), None), lambda _, p: TheirsInJax(*p))
torch.utils._pytree.register_pytree_node(TheirsInTorch, lambda b: ([b.a, b.b], None), lambda p, _: TheirsInTorch(*p))


@pytest.mark.parametrize("make", [Pair, Layer, Slotted, Ours, TheirsInJax, TheirsInTorch])
def test_objects_are_trees_of_arrays(make):
    a, b = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 5.0])
    gradient = gs.grad(lambda tree: gs.sum(tree.a * tree.b))(make(a, b))
    assert type(gradient) is make
    assert (gradient.a.tolist(), gradient.b.tolist()) == ([3, 5], [1, 2])
    value, tangent = gs.jvp(lambda tree: make(tree.a * tree.b, tree.b), (make(a, b),), (make(a, None),))
    assert (type(value), type(tangent)) == (make, make)
    assert (value.a.tolist(), tangent.a.tolist(), tangent.b.tolist()) == ([3, 10], [3, 10], [0, 0])
    with pytest.raises(TypeError, match="structure"):
        gs.jvp(lambda tree: tree.a, (make(a, b),), ((a, b),))


def test_static_fields_stay_as_they_are():
    gradient = gs.grad(lambda layer: gs.sum(layer.a * layer.b))(Layer(np.ones(2), np.ones(2), "first"))
    assert gradient.name == "first"
    with pytest.raises(TypeError, match=r"Layer\(\*, \*\)"):
        gs.jvp(lambda t: t.a, (Layer(1.0, 2.0, "first"),), (Layer(1.0, 2.0, "second"),))


def test_dicts_keep_their_type_and_order():
    tree = collections.OrderedDict(b=np.ones(2), a=np.full(2, 3.0))
    gradient = gs.grad(lambda tree: gs.sum(tree["a"] * tree["b"]))(tree)
    assert type(gradient) is collections.OrderedDict
    assert list(gradient) == ["b", "a"]
    counted = collections.defaultdict(list, a=np.ones(2))
    assert gs.grad(lambda tree: gs.sum(tree["a"]))(counted)["none"] == []


def test_a_state_dict_is_an_argument():
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 2), torch.nn.ReLU(), torch.nn.Conv2d(3, 1, 2))
    x = torch.randn(1, 2, 5, 5)

    def loss(weights, x):
        hidden = gs.relu(gs.conv2d(x, weights["0.weight"], weights["0.bias"]))
        return gs.sum(gs.conv2d(hidden, weights["2.weight"], weights["2.bias"]))

    gradients = gs.grad(loss)(module.state_dict(), x)
    module(x).sum().backward()
    assert type(gradients) is collections.OrderedDict
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad)


def test_kinds_are_known_by_type():
    class Mine(torch.Tensor):
        pass

    assert library_of(torch.ones(2).as_subclass(Mine)).name == "PyTorch"
    assert isinstance(gs.relu(torch.ones(2).as_subclass(Mine)), torch.Tensor)
    assert library_of(torch.Size([2])) is None
    assert gs.reshape(np.ones(4), torch.Size([2, 2])).shape == (2, 2)
