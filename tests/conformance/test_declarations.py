"""What kernels and references declare beside types: values of inputs, what is written into, other dtypes."""

import numpy as np
import pytest
import torch

import gradspec as gs
from gradspec import gallery
from gradspec.conformance.campaign.check import check
from gradspec.conformance.cases.data import drawn
from gradspec.conformance.model.case import CheckCase
from gradspec.conformance.model.changes import Changes
from gradspec.conformance.model.reference import admits
from gradspec.conformance.model.values import FITS, ValueRoom, draw_values, fitted, holds
from gradspec.conformance.shrink import suspects
from gradspec.conformance.targets.reference.kernel import ReferenceKernel
from patience import PATIENCE

ROOM = ValueRoom(9, 5)
KINDS = [*FITS, "labels or -100", "0..1", "-3..3"]


def judged(kernel, spec, inputs, cases=24, modes=(), **declared):
    target = ReferenceKernel(kernel, spec, inputs).declaring(**declared)
    run = check(target, cases=cases, seed=0, modes=modes)
    assert run.tally.judged > cases // 2
    return [finding.title for finding in run.findings]


# --- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "int64"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_drawn_holds_and_stays(kind, dtype):
    rng = np.random.default_rng(0)
    shape = (7,) if kind == "offsets" else (4, 6)
    for _ in range(20):
        numbers = (rng.standard_normal(shape) * 8).astype(dtype)
        if dtype == "int64" and kind in ("probabilities", "log-probabilities", "unit rows"):
            continue
        found = draw_values(kind, numbers, ROOM, rng)
        assert found.dtype == numbers.dtype
        assert holds(kind, found, ROOM)
        np.testing.assert_allclose(fitted(kind, found, ROOM), found, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "numbers"),
    [
        ("positive", [0.0, 1.0]),
        ("not negative", [-1.0]),
        ("sorted", [2.0, 1.0]),
        ("distinct", [1.0, 1.0]),
        ("probabilities", [0.5, 0.25]),
        ("log-probabilities", [0.0, 0.0]),
        ("unit rows", [1.0, 1.0]),
        ("one-hot", [1.0, 1.0]),
        ("0..1", [1.5]),
        ("labels or -100", [-50]),
        ("labels", [9]),
        ("offsets", [0, 6]),
    ],
)
def test_other_numbers_do_not_hold(kind, numbers):
    assert not holds(kind, np.array(numbers), ROOM)


def test_edges_are_drawn():
    rng = np.random.default_rng(0)
    found = np.concatenate([draw_values("0..1", np.ones(4, np.float32), ROOM, rng) for _ in range(9)])
    assert {0.0, 1.0} <= {*found.tolist()}
    labels = np.stack([draw_values("labels or -100", np.arange(6), ROOM, rng) for _ in range(30)])
    assert (labels == -100).any()
    assert (labels[:, 0] != -100).all()  # a broadcast layout repeats it


def nll(log_p, labels):
    return gs.cross_entropy(log_p, labels)


def test_neighbours_and_drawn_calls_have_the_values():
    target = ReferenceKernel(nll, nll, "f32[6,5],i64[6]", array="numpy").declaring(
        values={"log_p": "log-probabilities"}
    )
    problem = target.reference.problem(target.reference.types[0])
    call = drawn(CheckCase(0, 0, problem, "value", "large", None, "contiguous", 7, frozenset()))
    assert admits(call)
    assert not admits(call.with_arrays({**call.arrays(), "log_p": np.ones((6, 5), np.float32)}))
    changes = Changes.of(call)
    around = [other.call(call) for name in changes.differences for other in changes.other(name)]
    assert around
    assert all(map(admits, around))


def test_a_kernel_that_relies_on_values_passes_by_declaring_them():
    def root(x):
        return np.exp(0.5 * np.log(x))

    spec, inputs = (lambda x: gs.sqrt(gs.abs(x))), "f32[4,6]"
    own = {"arithmetic": {"function_error": 1e-5}, "numbers": "finite"}
    assert judged(root, spec, inputs, **own)
    assert not judged(root, spec, inputs, 8, values={"x": "positive"}, **own)


def test_bytes_are_negative_too_unless_they_name_cells():
    def unsigned(a, b, rows, columns):
        return (a.astype(np.int32) @ b.view(np.uint8).astype(np.int32)).astype(np.float32) * rows[:, None] * columns

    inputs = "i8[4,6],i8[6,5],f32[4],f32[5]"
    assert judged(unsigned, gallery.int8_matmul, inputs, modes=["value"])

    def spec(x, i):
        return torch.index_select(x, 0, i.long())

    assert not judged(lambda x, i: np.take(x, i, 0), spec, "f32[5,3],i8[4]", modes=["value"])


def test_labels_that_stand_for_none_are_named_as_the_cause(monkeypatch):
    monkeypatch.setattr(suspects, "A_GUESS", PATIENCE)

    def kernel(logits, labels):
        picked = torch.log_softmax(logits, -1)[torch.arange(len(labels)), labels.clamp(min=0)]
        return -picked.where(labels != -100, 0).sum() / len(labels)

    titles = judged(kernel, gallery.cross_entropy, "f32[4,5],i64[4]", modes=["value"])
    assert titles == ["The result is wrong only where labels has -100"]


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"values": {"x": "postive"}}, "values has 'postive'; declare one of positive"),
        ({"values": {"y": "positive"}}, "has no input 'y' to declare; its inputs are x"),
        ({"no_grad": ("y",)}, "has no input 'y' to declare"),
        ({"out_dtype": "f33"}, "out_dtype is 'f33'; declare one of f16"),
        ({"intermediates": "f64"}, "intermediates is 'f64'; declare f32"),
    ],
)
def test_what_cannot_be_meant_is_refused(declared, message):
    with pytest.raises(ValueError, match=message):
        ReferenceKernel(np.abs, gs.abs, "f32[4]").declaring(**declared)


# --- derivatives, dtypes, and what is written into --------------------------------------------------------------------


def test_an_input_without_gradient_is_left_out():
    def scaled(x, scale):
        return x * scale.detach()

    def spec(x, scale):
        return torch.mul(x, scale)

    assert judged(scaled, spec, "f32[4],f32[4]", 12, ["vjp"])
    assert not judged(scaled, spec, "f32[4],f32[4]", 12, ["vjp"], no_grad=("scale",))


def test_a_loss_may_be_wider_than_its_inputs():
    def total(x):
        return x.astype(np.float32).sum()

    def spec(x):
        return gs.sum(x)

    assert any("dtype" in title for title in judged(total, spec, "f16[8]", 12))
    assert not judged(total, spec, "f16[8]", 12, out_dtype="f32")


@pytest.mark.rows(1)
@pytest.mark.parametrize("mode", ["value", "vjp"])
def test_what_is_not_stored_between_operators_is_judged_more_sharply(mode):
    """A kernel that rounds there is right only where nothing is declared, or the reference converts at that place."""

    def through(dtype):
        def normalised(x):
            wide = x.float()
            deviation = (wide - wide.mean(-1, keepdim=True)).to(dtype).float()
            return (deviation / (1 + deviation.abs().sum(-1, keepdim=True))).to(x.dtype)

        return normalised

    def spec(x):
        deviation = x - torch.mean(x, -1, keepdim=True)
        return deviation / (1 + torch.sum(torch.abs(deviation), -1, keepdim=True))

    def found(kernel, spec, **declared):
        return judged(kernel, spec, "bf16[4,32]", 10, [mode], **declared)

    precise, rounding, wide = through(torch.float32), through(torch.bfloat16), {"intermediates": "f32"}
    assert not found(precise, spec)
    assert not found(precise, spec, **wide)
    assert not found(rounding, spec)
    titles = found(rounding, spec, **wide)
    assert titles
    if mode == "value":  # every cell of the gradient may be anything then
        assert titles == ["The result is right only if bf16 is stored between operators"]
    assert not found(rounding, rounding, **wide)


def test_a_kernel_may_write_into_what_it_declares():
    def doubled(x, y):
        x *= 2
        x += y
        return x

    def spec(x, y):
        return x * 2 + y

    assert judged(doubled, spec, "f32[4],f32[4]") == ["It changes its input x"]
    assert not judged(doubled, spec, "f32[4],f32[4]", mutates=("x",))
    assert judged(doubled, spec, "f32[4],f32[4]", mutates=("y",)) == ["It changes its input x"]


class InPlace(torch.autograd.Function):
    """A backward pass that writes into its cotangent."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.exp(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g.mul_(torch.exp(x))


def test_a_backward_pass_may_write_into_its_cotangent():
    kernel, spec = (lambda x: InPlace.apply(x)), (lambda x: torch.exp(x))
    assert judged(kernel, spec, "f32[4,3]", 12, ["vjp"])
    assert not judged(kernel, spec, "f32[4,3]", 12, ["vjp"], mutates_cotangent=True, layouts=("contiguous",))


class Once(torch.autograd.Function):
    """A backward pass that is not differentiable, by its own account, or because PyTorch does not see it."""

    @staticmethod
    def forward(ctx, x, is_marked):
        ctx.save_for_backward(x)
        ctx.is_marked = is_marked
        return torch.exp(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        if not ctx.is_marked:
            return (g.detach() * torch.exp(x.detach())), None
        return torch.autograd.function.once_differentiable(lambda ctx, g: g * torch.exp(x))(ctx, g), None


@pytest.mark.parametrize("is_marked", [True, False])
def test_a_backward_pass_that_is_not_differentiable_has_no_second_derivative(is_marked):
    target = ReferenceKernel(lambda x: Once.apply(x, is_marked), lambda x: torch.exp(x), "f32[4,3]")
    run = check(target, cases=12, seed=0, modes=["vjp", "second"])
    assert run.findings == []
    assert [mode for _, mode in run.lacking] == ["second"]


# --- profiles ---------------------------------------------------------------------------------------------------------


def in_tf32(a, b):
    """A product of matrices whose factors keep 11 bits."""
    cut = [(x.view(np.int32) + 0x1000 & ~0x1FFF).view(np.float32) for x in map(np.ascontiguousarray, (a, b))]
    return cut[0] @ cut[1]


def off_by(units):
    """An exponential that errs by so many units in the last place, in one direction."""

    def exponential(x):
        return (np.exp(x.astype(np.float64)) * (1 + units * 2.0**-23)).astype(np.float32)

    return exponential


MATRICES = "f32[6,40],f32[40,5]"
PROFILED = [
    (in_tf32, lambda a, b: a @ b, MATRICES, "triton", "tf32"),
    (in_tf32, lambda a, b: a @ b, MATRICES, "cuda", None),
    (off_by(3.4), gs.exp, "f32[40]", "cuda", "cuda_functions"),
    (off_by(9), gs.exp, "f32[40]", "cuda", None),
    (off_by(40), gs.exp, "f32[40]", "triton", None),
    (lambda x: np.zeros_like(x), gs.exp, "f32[40]", "cuda_fast_math", None),
]


@pytest.mark.rows(3)
@pytest.mark.parametrize(("kernel", "spec", "inputs", "profile", "liberty"), PROFILED)
def test_a_profile_permits_what_its_kernels_do_and_names_it(kernel, spec, inputs, profile, liberty):
    def findings(**declared):
        target = ReferenceKernel(kernel, spec, inputs, array="numpy").declaring(numbers="finite", **declared)
        return check(target, cases=20, seed=0, modes=["value"]).findings

    assert {finding.kind for finding in findings()} == {"defect"}
    told = findings(arithmetic=profile)
    assert {finding.kind for finding in told} == {"reduced" if liberty else "defect"}
    assert {finding.title for finding in told if liberty} <= {f"The result has the precision of {liberty}"}


def test_the_profile_is_found_by_library_and_device(monkeypatch):
    def kernel(x):
        return torch.exp(x)

    target = ReferenceKernel(kernel, gs.exp, "f32[4]")
    assert (target.profile, target.liberties, target.threadsafe) == ("", frozenset(), True)
    monkeypatch.setattr(target, "_facts", {**target._facts, "mentioned": ["torch", "triton"]})
    assert target.declaring().profile == "triton"
    assert "tf32" in target.liberties
    assert not target.threadsafe
    assert target.versions()["arithmetic"] == "triton"
    assert target.declaring(arithmetic={"tf32": True}).profile == ""
    assert not target.threadsafe
    with pytest.raises(ValueError, match="arithmetic is 'fast'; declare one of triton, cuda, cuda_fast_math"):
        target.declaring(arithmetic="fast")


def test_kernels_of_modules_that_import_triton_are_of_triton(monkeypatch):
    from gradspec.system.host import mentioned

    monkeypatch.setitem(globals(), "triton", type(torch)("triton"))
    assert "triton" in mentioned(lambda x: off_by(x))
