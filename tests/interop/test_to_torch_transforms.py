"""Every way of PyTorch to transform a function, on a graph: it agrees with PyTorch's own operators, or it raises.

The same table of transformations runs as it is, inside ``torch.compile``, and on a compiled function. A transformation
that loses sight of the operator would find zeros, which no reference here is.
"""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch._vmap_internals import _vmap
from torch.autograd.functional import hessian as autograd_hessian
from torch.autograd.functional import jacobian
from torch.func import grad, hessian, jacfwd, jacrev, jvp, linearize, vjp, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F  # noqa: N812

import gradspec as gs
from gradspec.interop.torch.module import call
from gradspec.interop.torch.operators import GRAPH
from gradspec.interop.torch.structure import opened
from patience import PATIENCE

pytestmark = [  # warnings of PyTorch's own
    pytest.mark.filterwarnings(f"ignore:{message}")
    for message in (
        "The .grad attribute of a Tensor that is not a leaf",
        ".torch.jit.script_method. is deprecated",
        ".isinstance.treespec, LeafSpec.. is deprecated",
        "Attempted to insert a get_attr Node",
    )
]

RANDOM = np.random.default_rng(7)
WEIGHT = RANDOM.standard_normal((2, 1, 3))
X, V, BATCH, STEPS, CT = (
    torch.from_numpy(RANDOM.standard_normal(shape)) for shape in ((1, 8), (1, 8), (3, 1, 8), (3, 1, 8), (2, 3))
)

GRAPH_ = gs.trace(lambda x: gs.tanh(gs.max_pool1d(gs.conv1d(x, WEIGHT), 2)), gs.f64[1, 8])
MODULE = gs.to_torch(GRAPH_, parameters="all")
POOL = gs.to_torch(gs.trace(lambda x: gs.tanh(gs.max_pool1d(x, 2)), gs.f64[1, 8]))


def network(x):
    return call(GRAPH_, [x])[0]


def reference(x):
    return torch.tanh(F.max_pool1d(F.conv1d(x[None], torch.from_numpy(WEIGHT)), 2)[0])


def dual(f):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(f(forward_ad.make_dual(X, V))).tangent


def reverse(f):
    x = X.clone().requires_grad_()
    return torch.autograd.grad(f(x), x, CT)[0]


def double_backward(f):
    x = X.clone().requires_grad_()
    (first,) = torch.autograd.grad(f(x).square().sum(), x, create_graph=True)
    return torch.autograd.grad(first, x, V)[0]


def reverse_over_dual(f):
    x = X.clone().requires_grad_()
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(f(forward_ad.make_dual(x, V))).tangent
        return torch.autograd.grad(tangent, x, CT)[0]


def dual_over_reverse(f):
    with forward_ad.dual_level():
        x = forward_ad.make_dual(X.clone().requires_grad_(), V)
        (first,) = torch.autograd.grad(f(x), x, CT, create_graph=True)
        return forward_ad.unpack_dual(first).tangent


def reverse_over_vjp(f):
    """The pulled back cotangent is differentiated after the transformation has ended."""
    x = X.clone().requires_grad_()
    (first,) = vjp(f, x)[1](CT)
    return torch.autograd.grad(first, x, V)[0]


def reverse_through_vmap(f):
    """What vmap does not batch still requires grad."""
    x = X.clone().requires_grad_()
    return torch.autograd.grad(vmap(lambda s: s * f(x))(torch.ones(2)).sum(), x)[0]


def total(f):
    return lambda x: f(x).sum()


def push(f):
    return lambda x: jvp(f, (x,), (V,))[1]


FUNCTIONAL: dict[str, Callable] = {
    "value": lambda f: f(X),
    "jvp": lambda f: push(f)(X),
    "vjp": lambda f: vjp(f, X)[1](CT)[0],
    "grad": lambda f: grad(total(f))(X),
    "vmap": lambda f: vmap(f)(BATCH),
    "jacrev": lambda f: jacrev(f)(X),
    "jacfwd": lambda f: jacfwd(f)(X),
    "hessian": lambda f: hessian(total(f))(X),
    "vmap of grad": lambda f: vmap(grad(total(f)))(BATCH),
    "vmap of jvp": lambda f: vmap(lambda x, v: jvp(f, (x,), (v,))[1])(BATCH, STEPS),
    "jvp of vmap": lambda f: jvp(vmap(f), (BATCH,), (STEPS,))[1],
    "grad of vmap": lambda f: grad(total(vmap(f)))(BATCH),
    "jvp of grad": lambda f: push(grad(total(f)))(X),
    "grad of jvp": lambda f: grad(total(push(f)))(X),
    "jvp of jvp": lambda f: push(push(f))(X),
    "dual": dual,
}
DEEPER: dict[str, Callable] = {
    "jacrev of jacfwd": lambda f: jacrev(jacfwd(f))(X),
    "jacfwd of jacfwd": lambda f: jacfwd(jacfwd(f))(X),
    "dual of grad": lambda f: dual(grad(total(f))),
    "grad without grad": lambda f: torch.no_grad()(lambda: grad(total(f))(X))(),
    "vmap other axes": lambda f: vmap(f, in_dims=2, out_dims=1)(BATCH.movedim(0, 2)),
    "jacrev of jacrev": lambda f: jacrev(jacrev(f))(X),
    "vmap of vmap": lambda f: vmap(vmap(f))(torch.stack([BATCH, STEPS])),
    "grad of grad": lambda f: grad(total(grad(total(f))))(X),
    "jvp of jvp of jvp": lambda f: push(push(push(f)))(X),
}
TAPE: dict[str, Callable] = {
    "linearize": lambda f: linearize(f, X)[1](V),
    "reverse": reverse,
    "double backward": double_backward,
    "reverse over dual": reverse_over_dual,
    "dual over reverse": dual_over_reverse,
    "reverse over vjp": reverse_over_vjp,
    "reverse through vmap": reverse_through_vmap,
}
TRANSFORMATIONS = FUNCTIONAL | DEEPER | TAPE


@pytest.fixture(autouse=True)
def forget_compiled():
    torch.compiler.reset()


def compiled(f):
    return torch.compile(f, fullgraph=True, backend="aot_eager")


def agree(name, f):
    wanted = TRANSFORMATIONS[name](reference)
    assert wanted.any()
    torch.testing.assert_close(TRANSFORMATIONS[name](f), wanted)


@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_as_it_is(name):
    agree(name, network)


@pytest.mark.parametrize("first", [*FUNCTIONAL, *DEEPER])
def test_what_was_made_in_a_transformation_outlasts_it(first):
    graph = gs.trace(lambda x: gs.tanh(gs.max_pool1d(gs.conv1d(x, WEIGHT), 2)), gs.f64[1, 8])
    for name in (first, "grad", "jvp of grad", "reverse", first):
        agree(name, lambda x: call(graph, [x])[0])


@pytest.mark.parametrize("name", ["value", "jvp", "grad", "vmap", "jvp of jvp", "double backward"])
def test_of_a_module(name):
    agree(name, MODULE)


@pytest.mark.parametrize("name", FUNCTIONAL)
def test_inside_compile(name):
    wanted = FUNCTIONAL[name](reference)
    torch.testing.assert_close(compiled(lambda: FUNCTIONAL[name](network))(), wanted)


@pytest.mark.parametrize("name", TAPE)
def test_what_pytorch_does_not_compile_raises(name):
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"trace_autograd_ops|marked as skipped"):
        compiled(lambda: TAPE[name](network))()


def test_results_lie_where_fake_ones_do():
    """Compilers rely on the strides of fake results; those of the graph alone are laid out like the input."""
    graph = gs.trace(lambda x: gs.max_pool2d(x, 2), gs.f32[2, 3, 4, 6])
    x = torch.randn(2, 3, 6, 4).mT
    (real,), (fake,) = (GRAPH([t], opened(graph).structure.text) for t in (x, x.to("meta")))
    assert real.stride() == fake.stride() != gs.to_torch(graph)(x).stride()


@pytest.mark.parametrize("name", ["reverse", "double backward"])
def test_the_tape_inside_compile(name):
    with torch._dynamo.config.patch(trace_autograd_ops=True):
        torch.testing.assert_close(compiled(lambda: TAPE[name](network))(), TAPE[name](reference))


# --- the vmap that autograd had before torch.func, and still uses -----------------------------------------------------


def pulled_back(f, cotangents, at_once, create_graph=False):
    """A cotangent of the input for each of the output: all at once, or one after the other."""
    x = X.clone().requires_grad_()
    y = f(x)
    if at_once:
        return x, torch.autograd.grad(y, x, cotangents, is_grads_batched=True, create_graph=create_graph)[0]
    rows = [torch.autograd.grad(y, x, ct, retain_graph=True, create_graph=create_graph)[0] for ct in cotangents]
    return x, torch.stack(rows)


def reverse_of_pulled_back(f, at_once):
    x, rows = pulled_back(f, COTANGENTS, at_once, create_graph=True)
    return torch.autograd.grad(rows.square().sum(), x)[0]


def on_two_axes(f, at_once):
    """Cotangents on two axes, of which one is not the first."""
    x = X.clone().requires_grad_()
    y = f(x)

    def pull(ct):
        return torch.autograd.grad(y, x, ct, retain_graph=True)[0]

    if at_once:
        return _vmap(_vmap(pull, in_dims=1))(torch.stack([COTANGENTS.transpose(0, 1), -COTANGENTS.transpose(0, 1)]))
    return torch.stack([torch.stack([pull(ct) for ct in several]) for several in (COTANGENTS, -COTANGENTS)])


def vectorized(derivative, **options):
    return lambda f, at_once: derivative(f, X, vectorize=at_once, **(options if at_once else {}))


COTANGENTS = torch.stack([CT, -CT, 2 * CT])
FORMER = {
    "is_grads_batched": lambda f, at_once: pulled_back(f, COTANGENTS, at_once)[1],
    "one row": lambda f, at_once: pulled_back(f, COTANGENTS[:1], at_once)[1],
    "reverse of is_grads_batched": reverse_of_pulled_back,
    "two axes": on_two_axes,
    "jacobian": vectorized(jacobian),
    "jacobian forward": vectorized(jacobian, strategy="forward-mode"),
    "hessian": lambda f, at_once: vectorized(autograd_hessian)(total(f), at_once),
    "hessian forward": lambda f, at_once: vectorized(autograd_hessian, outer_jacobian_strategy="forward-mode")(
        total(f), at_once
    ),
}


@pytest.mark.parametrize("name", FORMER)
@pytest.mark.parametrize("f", [network, MODULE], ids=["graph", "module"])
def test_batches_of_autograd(name, f):
    wanted = FORMER[name](reference, at_once=False)
    assert wanted.any()
    torch.testing.assert_close(FORMER[name](f, at_once=True), wanted)


# --- compiled functions -----------------------------------------------------------------------------------------------

WORK_ON_COMPILED = {"value", "dual", "reverse"}


@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_of_a_compiled_function(name):
    """PyTorch says what to do: transform first, compile then; here is only what is not an error."""
    if name in WORK_ON_COMPILED:
        agree(name, compiled(network))
        return
    with pytest.raises(Exception, match=r"functorch|FX to symbolically trace|double backward|forward mode AD"):
        TRANSFORMATIONS[name](compiled(network))


def test_default_compiler_and_training():
    module = gs.to_torch(GRAPH_, parameters="all")
    found = torch.compile(module, fullgraph=True)(X)
    torch.testing.assert_close(found, reference(X))
    found.backward(CT)
    weight = torch.from_numpy(WEIGHT).requires_grad_()
    wanted = torch.tanh(F.max_pool1d(F.conv1d(X[None], weight), 2)[0])
    torch.testing.assert_close(module.c.grad, torch.autograd.grad(wanted, weight, CT)[0])


def test_one_compiled_function_is_not_taken_for_another():
    scale = [gs.trace(lambda x, c=c: x * c, gs.f64[1, 8]) for c in (2.0, 3.0)]

    @compiled
    def scaled(x, graph):
        return call(graph, [x])[0]

    for graph, factor in zip(scale * 2, (2.0, 3.0) * 2, strict=True):
        torch.testing.assert_close(scaled(X, graph), X * factor)


def test_shapes_are_fixed_by_the_graph():
    torch.testing.assert_close(torch.compile(MODULE, fullgraph=True, backend="aot_eager", dynamic=True)(X), MODULE(X))
    with pytest.raises(Exception, match=r"pass one of shape \(1, 8\)"):
        compiled(MODULE)(X[:, :7])
    with pytest.raises(Exception, match="specialized it to be a constant"):
        torch.export.export(MODULE, (X,), dynamic_shapes={"tensors": ({1: torch.export.Dim("n")},)})


def test_compiled_autograd_is_refused():
    x = X.clone().requires_grad_()
    loss = network(x).sum()
    with torch._dynamo.config.patch(compiled_autograd=True), pytest.raises(Exception, match="compile the module"):
        torch.compile(lambda: loss.backward(), backend="eager")()


# --- export and other tracers -----------------------------------------------------------------------------------------


class Calling(torch.nn.Module):
    """A module that calls a graph of its own accord, constants and all."""

    def __init__(self, graph):
        super().__init__()
        self.graph = graph

    def forward(self, x):
        return call(self.graph, [x])[0]


@pytest.mark.parametrize("strict", [False, True])
def test_constants_outlast_what_is_traced_or_inferred(strict):
    """The first call of a graph makes tensors of its constants. Here it is one of an export, and of an inference."""
    graph = gs.trace(lambda x: x * WEIGHT.reshape(6)[:3], gs.f64[1, 3])
    x = torch.ones(1, 3, dtype=torch.float64, requires_grad=True)
    program = torch.export.export(Calling(graph), (x,), strict=strict)
    torch.testing.assert_close(program.module()(x), call(graph, [x])[0])
    with torch.inference_mode():
        call(other := gs.trace(lambda x: gs.exp(x * WEIGHT[0]), gs.f64[1, 3]), [x])
    call(other, [x])[0].sum().backward()
    torch.testing.assert_close(x.grad, torch.from_numpy(WEIGHT[0] * np.exp(WEIGHT[0])))


class Transformed(torch.nn.Module):
    def __init__(self, inner, transformation):
        super().__init__()
        self.inner, self.transformation = inner, transformation

    def forward(self, x):
        return self.transformation(self.inner, x)


def pool(x):
    return torch.tanh(F.max_pool1d(x, 2))


EXPORTED = {
    "value": (MODULE, reference, lambda f, x: f(x)),
    "jvp": (POOL, pool, lambda f, x: jvp(f, (x,), (x,))[1]),
    "vmap": (POOL, pool, lambda f, x: vmap(f)(torch.stack([x, 2 * x]))),
}
"""The transformations that PyTorch exports for its own operators, too; in strict mode, of modules without state."""


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", EXPORTED)
def test_export(name, strict):
    module, same, transformation = EXPORTED[name]
    program = torch.export.export(Transformed(module, transformation), (X,), strict=strict)
    torch.testing.assert_close(program.module()(V), transformation(same, V))
    torch.testing.assert_close(program.run_decompositions().module()(V), transformation(same, V))


@pytest.mark.parametrize("name", ["jvp", "vmap"])
@pytest.mark.parametrize("module", [MODULE, torch.nn.Conv1d(1, 2, 3).double()], ids=["ours", "PyTorch's own"])
def test_strict_export_of_transformed_modules_with_state_raises(name, module):
    with pytest.raises(RuntimeError, match=r"data pointer of Tensor|requires_grad_\(\)"):
        torch.export.export(Transformed(module, EXPORTED[name][2]), (X,), strict=True)


def test_an_exported_program_is_read_again():
    graph = gs.trace(lambda x: (gs.tanh(gs.conv1d(x, WEIGHT)), gs.max_pool1d(x, 2, return_indices=True)), gs.f64[1, 8])
    module, x = gs.to_torch(graph, parameters="all"), X.numpy()
    program = torch.export.export(module, (X,))
    for form in (program, program.run_decompositions()):
        again = gs.from_torch(form)
        for found, wanted in zip(again(x), graph(x), strict=True):
            np.testing.assert_array_equal(found, wanted)
    assert [node.op.name for node in again.nodes] == [node.op.name for node in graph.nodes]
    assert [v.name for v in gs.from_torch(program, params="inputs").inputs[1:]] == [v.name for v in graph.constants]
    node = next(node for node in program.graph.nodes if node.target is GRAPH)
    node.args = (node.args[0], node.args[1].replace("[1, 8]", "[1, 9]"))
    with pytest.raises((gs.UnsupportedError, gs.FormatError)):
        gs.from_torch(program)


@pytest.mark.parametrize("name", ["jvp", "grad", "reverse"])
def test_an_exported_program_is_differentiated(name):
    agree(name, torch.export.export(MODULE, (X,)).module())


@pytest.mark.exhaustive
def test_an_exported_program_brings_all_it_needs(tmp_path: Path):
    torch.export.save(torch.export.export(MODULE, (X,)), tmp_path / "program.pt2")
    torch.save((X, reference(X), reverse(reference), CT), tmp_path / "expected.pt")
    subprocess.run([sys.executable, "-c", ELSEWHERE, str(tmp_path)], check=True, timeout=PATIENCE)


ELSEWHERE = """
import sys, torch
import gradspec.torch
program = torch.export.load(sys.argv[1] + "/program.pt2").module()
x, value, gradient, ct = torch.load(sys.argv[1] + "/expected.pt")
y = program(x.requires_grad_())
torch.testing.assert_close(y, value)
torch.testing.assert_close(torch.autograd.grad(y, x, ct)[0], gradient)
"""


def test_tracers_record_the_operator():
    traced = make_fx(network)(X)
    assert GRAPH in {node.target for node in traced.graph.nodes}
    torch.testing.assert_close(traced(V), reference(V))
    with pytest.raises(RuntimeError, match="symbolic"):
        torch.fx.symbolic_trace(MODULE)


# --- PyTorch's own checks ---------------------------------------------------------------------------------------------


CHECKED = {
    "network": (GRAPH_, [X]),
    "winners": (gs.trace(lambda x: gs.max_pool1d(x, 2, return_indices=True), gs.f64[1, 8]), [X]),
    "labels": (
        gs.trace(lambda x, y: gs.cross_entropy(x, y), gs.f64[2, 3], gs.i64[2]),
        [CT.clone(), torch.tensor([1, 0])],
    ),
    "several": (gs.trace(lambda x, y: (x * y, x, gs.mean(gs.sigmoid(y))), gs.f64[2, 3], gs.f64[2, 3]), [CT, 1 + CT]),
}


@pytest.mark.parametrize("name", CHECKED)
def test_numerical_derivatives(name):
    graph, tensors = CHECKED[name]
    given = [t.clone().requires_grad_(t.is_floating_point()) for t in tensors]

    def floats(*tensors):
        return tuple(t for t in call(graph, tensors) if t.is_floating_point())

    assert torch.autograd.gradcheck(floats, given, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(floats, given, check_fwd_over_rev=True)


@pytest.mark.parametrize("name", ["winners", "several"])
def test_opcheck(name):
    graph, tensors = CHECKED[name]
    known = opened(graph)
    operands = [
        t.clone().requires_grad_(t.is_floating_point()) for t in (*tensors, *known.constants(torch.device("cpu")))
    ]
    torch.library.opcheck(GRAPH, (operands, known.structure.text))
