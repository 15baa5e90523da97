"""Graphs as modules: state, types, memory, and every kind of tensor that PyTorch has."""

import copy
import io
import pickle
from threading import Thread

import numpy as np
import pytest
import torch
from torch.nn import functional as F  # noqa: N812

import gradspec as gs
from gradspec.interop.torch.module import call
from gradspec.interop.torch.operators import GRAPH
from gradspec.interop.torch.structure import opened
from gradspec.interop.torch.types import array_of, gradspec_type, tensor_of, torch_dtype
from interop.networks import TORCH

RANDOM = np.random.default_rng(6)
WEIGHT, BIAS = RANDOM.standard_normal((3, 2, 3, 3), np.float32), RANDOM.standard_normal(3, np.float32)
IMAGE = torch.from_numpy(RANDOM.standard_normal((1, 2, 6, 7), np.float32))


def layer():
    """A convolution with a rectifier, doubled: named constants, and a number that has no name."""
    b = gs.Builder()
    x = b.input(gs.f32[1, 2, 6, 7], "x")
    y = gs.conv2d(x, b.const(WEIGHT, "conv.weight"), b.const(BIAS, "conv.bias"))
    return b.build(gs.relu(y) * 2.0)


def expected(x, module):
    return 2 * F.relu(F.conv2d(x, module.conv.weight, module.conv.bias))


def close(found, wanted):
    return torch.allclose(found, wanted, rtol=1e-5, atol=1e-6)


# --- state ------------------------------------------------------------------------------------------------------------


def test_constants_keep_their_names_and_numbers_stay_inside():
    module = gs.to_torch(layer(), parameters=["conv.weight"])
    assert list(module.state_dict()) == ["conv.weight", "conv.bias"]
    assert [name for name, _ in module.named_parameters()] == ["conv.weight"]
    assert [name for name, _ in module.named_buffers()] == ["conv.bias"]
    assert [name for name, _ in gs.to_torch(layer(), "all").named_parameters()] == ["conv.weight", "conv.bias"]
    assert "(x: f32[1, 2, 6, 7]) -> (mul: f32[1, 3, 4, 5])" in repr(module)
    assert close(module(IMAGE), expected(IMAGE, module))
    assert torch.equal(module(x=IMAGE), module(IMAGE))


def test_names_that_modules_have_already():
    b = gs.Builder()
    x = b.input(gs.f32[2], "x")
    names = ["forward", "a", "a.b", "a.b.c", "training", "d..e", ""]
    total = x
    for i, name in enumerate(names):
        total = total + b.const(np.float32([i, 10 * i]), name)
    module = gs.to_torch(b.build(total))
    assert list(module.state_dict()) == ["forward_", "a", "training_", "_", "a_.b", "a_.b_.c", "d._.e"]
    assert module(torch.zeros(2)).tolist() == [21.0, 210.0]


def test_training_changes_the_module_and_never_the_graph():
    graph = layer()
    before = graph(IMAGE.numpy())
    module = gs.to_torch(graph, parameters="all")
    step = torch.optim.SGD(module.parameters(), lr=0.1)
    module(IMAGE).square().mean().backward()
    wanted = torch.autograd.grad(expected(IMAGE, module).square().mean(), list(module.parameters()))
    assert all(close(p.grad, g) for p, g in zip(module.parameters(), wanted, strict=True))
    step.step()
    assert close(module(IMAGE), expected(IMAGE, module))
    assert not close(module(IMAGE), torch.from_numpy(before))
    assert np.array_equal(graph(IMAGE.numpy()), before)
    assert close(torch.from_numpy(module.graph(IMAGE.numpy())), module(IMAGE))


def test_values_changed_behind_autograd_are_used():
    module = gs.to_torch(layer())
    module(IMAGE)
    module.conv.weight.data.mul_(3.0)
    module.conv.bias.numpy()[:] = 1.0
    assert close(module(IMAGE), expected(IMAGE, module))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["copy", "pickle"])
def test_copies_are_modules_of_their_own(copied):
    module = gs.to_torch(layer(), parameters="all")
    other = copied(module)
    assert torch.equal(other(IMAGE), module(IMAGE))
    with torch.no_grad():
        other.conv.weight.zero_()
    assert close(module(IMAGE), expected(IMAGE, module))
    assert close(other(IMAGE), expected(IMAGE, other))


def test_state_is_saved_and_loaded():
    file, module, other = io.BytesIO(), gs.to_torch(layer()), gs.to_torch(layer())
    torch.save({name: value + 1 for name, value in module.state_dict().items()}, file)
    file.seek(0)
    other.load_state_dict(torch.load(file))
    assert close(other(IMAGE), expected(IMAGE, other))
    assert not close(other(IMAGE), module(IMAGE))


@pytest.mark.parametrize("name", TORCH)
def test_there_and_back(name):
    """A network that was imported and is written again has the state, the value and both derivatives it had."""
    make, shape = TORCH[name]
    network = make().double()
    x, v = torch.from_numpy(RANDOM.standard_normal((2, *shape)))
    module = gs.to_torch(gs.from_torch(network, x))
    assert set(module.state_dict()) <= set(network.state_dict())
    (y, dy), (wanted, tangent) = (torch.func.jvp(f, (x,), (v,)) for f in (module, network))
    torch.testing.assert_close(y, wanted)
    torch.testing.assert_close(dy, tangent)
    gradients = [torch.func.grad(lambda x, f=f: f(x).square().sum())(x) for f in (module, network)]
    torch.testing.assert_close(*gradients)


# --- calls that do not fit --------------------------------------------------------------------------------------------

MISTAKES = {
    "dtype": (lambda m: m(IMAGE.double()), gs.DTypeError, "x: f32.* torch.float64"),
    "double": (lambda m: m.double()(IMAGE), gs.DTypeError, r"computes in f32.* torch.float64"),
    "half": (lambda m: m.half()(IMAGE.half()), gs.DTypeError, r"computes in f32.* torch.float16"),
    "shape": (lambda m: m(IMAGE[:, :1]), gs.ShapeError, r"shape \(1, 1, 6, 7\)"),
    "no tensor": (lambda m: m(IMAGE.numpy()), TypeError, "torch.as_tensor"),
    "too few": (lambda m: m(), TypeError, r"\(x: f32\[1, 2, 6, 7\]\), each once; it was given 0"),
    "too many": (lambda m: m(IMAGE, IMAGE), TypeError, "given 2 by position"),
    "twice": (lambda m: m(IMAGE, x=IMAGE), TypeError, "given 1 by position and x by name"),
    "another name": (lambda m: m(y=IMAGE), TypeError, "y by name"),
    "meta": (lambda m: m(IMAGE.to("meta")), gs.UnsupportedError, "device meta"),
    "sparse": (lambda m: m(IMAGE.to_sparse()), gs.UnsupportedError, "to_dense"),
    "complex": (lambda m: m(IMAGE.to(torch.complex64)), gs.DTypeError, "complex64"),
    "dtype with gradient": (lambda m: m(IMAGE.double().requires_grad_()), gs.DTypeError, "torch.float64"),
    "shape under vmap": (lambda m: torch.func.vmap(m)(IMAGE), Exception, "axis|shape"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_named(mistake):
    act, error, words = MISTAKES[mistake]
    with pytest.raises(error, match=words):
        act(gs.to_torch(layer()))


def test_parameters_must_be_constants_that_have_gradients():
    b = gs.Builder()
    x = b.input(gs.f32[3], "x")
    graph = b.build([x, b.const(np.arange(3), "places")], allow_unused=True)
    with pytest.raises(ValueError, match="'weight'; the graph's constants are places"):
        gs.to_torch(graph, parameters=["weight"])
    with pytest.raises(TypeError, match="places: i64"):
        gs.to_torch(graph, parameters=["places"])
    with pytest.raises(TypeError, match="needs a graph"):
        gs.to_torch(lambda x: x)


# --- memory -----------------------------------------------------------------------------------------------------------

DTYPES = [gs.f16, gs.bf16, gs.f32, gs.f64, gs.i8, gs.u8, gs.i32, gs.i64]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tensors_and_arrays_share_memory(dtype):
    tensor = torch.zeros(3, 4, dtype=torch_dtype(dtype)).t()[1::2]
    array = array_of(tensor)
    assert (array.dtype, array.shape) == (dtype.numpy, (2, 3))
    assert gradspec_type(tensor) == dtype[2, 3]
    array[1, 2] = 1
    assert tensor[1, 2] == 1
    array.flags.writeable = False
    again = tensor_of(array)
    assert (again.dtype, again.data_ptr(), again.stride()) == (tensor.dtype, tensor.data_ptr(), tensor.stride())


def test_operands_reach_the_kernels_where_they_are(monkeypatch):
    """What the program is given has the addresses of the tensors, and its results those of the tensors returned."""
    seen = []
    closed = opened(graph := gs.trace(lambda x, y: x + y, gs.bf16[4, 6], gs.bf16[4, 6])).closed
    run = closed.program.call

    def watching(arrays, **options):
        seen.extend([*arrays, result := run(arrays, **options)])
        return result

    monkeypatch.setattr(closed.program, "call", watching)
    x, y = torch.ones(8, 6, dtype=torch.bfloat16)[::2], torch.ones(6, 4, dtype=torch.bfloat16).t()
    (total,) = call(graph, [x, y])
    assert [array.ctypes.data for array in seen] == [t.data_ptr() for t in (x, y, total)]
    assert torch.equal(total, x + y)


def test_results_never_share_memory_with_operands():
    b = gs.Builder()
    x = b.input(gs.f32[3], "x")
    constant = b.const(np.float32([1, 2, 3]), "c")
    module = gs.to_torch(b.build([x, x, constant, gs.reshape(x, (3, 1))]))
    for given in (torch.ones(3), torch.ones(3, requires_grad=True)):
        results = module(given)
        addresses = {t.data_ptr() for t in (given, module.c, *results)}
        assert len(addresses) == 6
    results[0].sum().backward()
    assert given.grad.tolist() == [1.0, 1.0, 1.0]


VIEWS = {
    "transposed": lambda t: t.transpose(2, 3).contiguous().transpose(2, 3),
    "channels last": lambda t: t.contiguous(memory_format=torch.channels_last),
    "every second": lambda t: torch.stack([t, t], -1).flatten(3)[..., ::2],
    "expanded": lambda t: t[..., :1].expand(t.shape),
    "negated bit": lambda t: torch.complex(t, -t).conj().imag,
    "offset": lambda t: torch.cat([t.flatten(), t.flatten()])[1:][: t.numel()].reshape(t.shape),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("with_gradient", [False, True])
def test_strides_do_not_matter(view, with_gradient):
    module, x = gs.to_torch(layer()), VIEWS[view](IMAGE)
    leaf = x.detach().requires_grad_(with_gradient)
    found = module(leaf)
    assert close(found, expected(x, module))
    if with_gradient:
        found.square().sum().backward()
        plain = x.clone().requires_grad_()
        expected(plain, module).square().sum().backward()
        assert torch.allclose(leaf.grad, plain.grad, rtol=1e-4, atol=1e-4)


# --- autograd's own ways ----------------------------------------------------------------------------------------------


def test_ties_go_to_the_first_cell_in_both_modes():
    rows = [[4, 4, 1, 4, 0, 0], [-1, -1, -1, -1, -1, -1]]
    steps, back = [[1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11, 12]], [[1, 10, 100], [2, 20, 200]]
    pool = gs.to_torch(gs.trace(lambda x: gs.max_pool1d(x, 3, stride=2, padding=1), gs.f64[2, 6]))
    x, v, ct = (torch.tensor(numbers, dtype=torch.float64) for numbers in (rows, steps, back))
    spec = [
        gs.spec.max_pool1d(rows, 3, stride=2, padding=1),
        gs.spec.max_pool1d_jvp(rows, steps, 3, stride=2, padding=1),
        gs.spec.max_pool1d_vjp(rows, back, 3, stride=2, padding=1),
    ]
    found = [*torch.func.jvp(pool, (x,), (v,)), torch.func.vjp(pool, x)[1](ct)[0]]
    assert [t.tolist() for t in found] == [t.tolist() for t in spec]


def test_integers_have_no_gradient():
    labels = torch.tensor([2, 0])
    loss = gs.to_torch(gs.trace(lambda x, y: gs.cross_entropy(x, y), gs.f64[2, 3], gs.i64[2]))
    x = torch.from_numpy(RANDOM.standard_normal((2, 3))).requires_grad_()
    torch.testing.assert_close(*(torch.autograd.grad(f(x, labels), x) for f in (loss, F.cross_entropy)))
    pool = gs.to_torch(gs.trace(lambda x: gs.max_pool1d(x, 2, return_indices=True), gs.f64[1, 4]))
    value, winners = pool(torch.tensor([[1.0, 3.0, 2.0, 2.0]], dtype=torch.float64, requires_grad=True))
    assert (value.requires_grad, winners.requires_grad) == (True, False)
    assert winners.tolist() == [[1, 2]]
    _, (tangent, nothing) = torch.func.jvp(pool, (value.detach().repeat(1, 2),), (torch.ones(1, 4).double(),))
    assert tangent.tolist() == [[1.0, 1.0]]
    assert not nothing.any()


def test_only_what_is_asked_for_is_computed_and_kept():
    """Gradients of some operands, from some results; a linear graph keeps no operand, so it may change afterwards."""
    module = gs.to_torch(gs.trace(lambda z, x, y: (x * y, y + z), *[gs.f32[2]] * 3))
    x, y, z = (torch.tensor([1.0 + i, 2.0]) for i in range(3))
    x.requires_grad_()
    y.requires_grad_()
    module(z, x, y)[0].sum().backward()
    assert (x.grad.tolist(), y.grad.tolist(), z.grad) == (y.tolist(), x.tolist(), None)
    product, _ = module(z, x, y)
    with torch.no_grad():
        y.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()
    total = gs.to_torch(gs.trace(lambda x: gs.avg_pool1d(x, 2), gs.f32[1, 4]))
    x = torch.ones(1, 4, requires_grad=True)
    given = x * 1.0
    mean = total(given)
    given.add_(1.0)
    mean.sum().backward()
    assert x.grad.tolist() == [[0.5, 0.5, 0.5, 0.5]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision(dtype):
    kind = {torch.float16: gs.f16, torch.bfloat16: gs.bf16}[dtype]
    module = gs.to_torch(gs.trace(lambda x: gs.max_pool1d(gs.relu(x), 2), kind[1, 6]))
    x = torch.tensor([[1.0, -2.0, 3.0, 0.5, -1.0, -4.0]], dtype=dtype, requires_grad=True)
    module(x).sum().backward()
    assert x.grad.tolist() == [[1.0, 0.0, 1.0, 0.0, 0.0, 0.0]]
    assert torch.func.jvp(module, (x.detach(),), (torch.ones_like(x),))[1].tolist() == [[1.0, 1.0, 0.0]]


def test_an_empty_batch():
    module = gs.to_torch(gs.trace(lambda x: gs.max_pool1d(x, 2), gs.f32[0, 3, 4]))
    x = torch.zeros(0, 3, 4, requires_grad=True)
    module(x).sum().backward()
    assert x.grad.shape == (0, 3, 4)


def test_without_gradient_nothing_is_recorded():
    module, x = gs.to_torch(layer()), IMAGE.clone().requires_grad_()
    assert module(x).requires_grad
    with torch.no_grad():
        assert not module(x).requires_grad
    with torch.inference_mode():
        assert not module(x).requires_grad
        assert torch.equal(module(x.clone()), module(x))


def test_threads_share_a_module():
    module, found = gs.to_torch(layer()), {}

    def differentiate(i):
        x = (IMAGE + i).requires_grad_()
        module(x).sum().backward()
        found[i] = x.grad

    threads = [Thread(target=differentiate, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, gradient in found.items():
        x = (IMAGE + i).requires_grad_()
        expected(x, module).sum().backward()
        assert torch.allclose(gradient, x.grad, rtol=1e-4, atol=1e-4)
    assert len(found) == 4


def test_no_more_threads_than_torch_has_nor_than_gradspec_has(monkeypatch):
    graph = gs.trace(gs.exp, gs.f32[64, 4096])
    x, program, seen = torch.zeros(64, 4096), opened(graph).closed.program, []
    run = program._run

    def recorded(given, fixed, outs, threads):
        seen.append(threads)
        return run(given, fixed, outs, threads)

    monkeypatch.setattr(program, "_run", recorded)
    before = torch.get_num_threads(), gs.get_num_threads()
    try:
        for theirs, ours in ((1, 3), (2, 3), (3, 2)):
            torch.set_num_threads(theirs)
            gs.set_num_threads(ours)
            call(graph, [x])
    finally:
        torch.set_num_threads(before[0])
        gs.set_num_threads(before[1])
    assert seen == [1, 2, 2]


def test_the_operator_refuses_texts_that_are_no_graphs():
    text = opened(layer()).structure.text
    for wrong in ("", "{}", "[1, []]", text.replace('"conv"', '"evil"'), text.replace("[1, 2, 6, 7]", "[1, 2, 6]")):
        with pytest.raises(gs.FormatError):
            GRAPH([IMAGE], wrong)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_script_takes_a_traced_module():
    class Around(torch.nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x) + 1

    weight = np.float32([2, 3, 4])
    module = gs.to_torch(gs.trace(lambda x: x * x * weight, gs.f32[3]), parameters="all")
    for scripted in (module, Around(module)):
        with pytest.raises(gs.UnsupportedError, match=r"no Python code .* torch\.jit\.trace"):
            torch.jit.script(scripted)
    x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    y = torch.jit.script(Around(torch.jit.trace(module, torch.zeros(3))))(x)
    assert y.tolist() == [3.0, 13.0, 37.0]
    y.sum().backward()
    assert x.grad.tolist() == [4.0, 12.0, 24.0]
    assert module.c.grad.tolist() == [1.0, 4.0, 9.0]
