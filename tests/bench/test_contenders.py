"""Every contender writes the same problem: all variants agree with gradspec on small cells of every kind."""

from functools import cache
from importlib import import_module
from importlib.util import find_spec

import numpy as np
import pytest

from gradspec.bench.contenders import FIXED, GIVEN, PEERS
from gradspec.bench.contenders.ours import Machine, Ours
from gradspec.bench.grid import COPY, GRID, MODES, POOL_OPS, BenchProblem, Conv, Limit, Network, Pool, data, problem
from gradspec.bench.measure import disagreement
from gradspec.conformance.model.target import NotOfferedError

LENET, RESNET = GRID["net"]
CELLS = [
    Pool("pool 1-D", (2, 3, 11), 3, 2, 1),
    Pool("pool 2-D", (2, 3, 9, 8), 3, 2, 1),
    Pool("pool 3-D", (1, 2, 5, 6, 7), 3, 2, 1),
    Pool("pool 4-D", (1, 2, 4, 5, 4, 5), 2, 2, 1),
    Pool("adaptive", (2, 3, 7, 8), output_size=(3, 5)),
    Pool("global", (2, 3, 7, 8), output_size=(1, 1)),
    Conv("conv 1-D", (2, 4, 11), 6, 3, 2, 1),
    Conv("conv 2-D", (2, 4, 9, 8), 6, 3, 1, 2, dilation=2, groups=2),
    Conv("conv 3-D", (1, 2, 5, 6, 7), 3, 3, 2, 1),
    Conv("conv 4-D", (1, 2, 4, 5, 4, 5), 3, 3, 1, 1),
    Conv("transposed", (2, 4, 5, 6), 3, 4, 2, 1, transposed=True),
    Network("LeNet", (2, 1, 28, 28), LENET.layers, LENET.loss, ""),
    Network("ResNet", (1, 3, 32, 32), RESNET.layers, RESNET.loss, ""),
]
PROBLEMS = [BenchProblem(cell, op, mode) for cell in CELLS for op in cell.ops for mode in cell.modes]
QUICK_PEERS = [peer for peer in PEERS if "compile" not in peer.name and not peer.missing()]
SMALL_CONV = BenchProblem(Conv("conv 2-D", (2, 4, 9, 8), 6, 3, 1, 2, dilation=2, groups=2), "conv", "forward")


def built(entry):
    module, _, factory = entry.factory.partition(":")
    return getattr(import_module(module), factory)(1)


@pytest.fixture(scope="module", params=QUICK_PEERS, ids=lambda peer: peer.name)
def peer(request):
    return built(request.param)


def results(contender, question):
    return {name: contender.arrays(call()) for name, call in contender.variants(question).items()}


@cache
def our_results(question):
    """The same for every peer."""
    return results(Ours(1), question)


def is_pooling(question):
    """Which is tried with the channels last, too."""
    return isinstance(question.cell, Pool)


def offered(name, question):
    """What a library is known to have."""
    cell = question.cell
    adaptive = isinstance(cell, Pool) and cell.is_adaptive
    if name == "Jax":
        return not adaptive
    if name == "OnnxRuntime":
        return cell.rank < 4 and question.mode == "forward" and question.op != "smooth" and not adaptive
    return cell.rank < 4


@pytest.mark.usefixtures("quick_jit")
@pytest.mark.parametrize("question", PROBLEMS, ids=str)
def test_a_peer_agrees_or_does_not_offer_the_problem(peer, question):
    ours, *again = our_results(question).values()
    assert [disagreement(theirs, ours) for theirs in again] == [""] * (
        question.has_fixed_weights or is_pooling(question)
    )
    assert ours[0].shape == (question.cell.output() if question.op != "net" or question.mode == "forward" else ())
    one_axis = getattr(peer, "channels_last", False) and question.cell.rank == 1
    if one_axis or not offered(type(peer).__name__, question):
        with pytest.raises(NotOfferedError):
            peer.variants(question)
        return
    found = results(peer, question)
    assert found
    assert {name: disagreement(theirs, ours) for name, theirs in found.items()} == dict.fromkeys(found, "")


@pytest.mark.skipif(find_spec("torch") is None, reason="pip install torch")
def test_channels_last_tensors_and_results_are_in_that_layout():
    torch = import_module("torch")
    contender = import_module("gradspec.bench.contenders.pytorch").channels_last(1)
    for rank, layout in ((2, torch.channels_last), (3, torch.channels_last_3d)):
        cell = Pool("", (2, 3, *(6,) * rank), 2, 2, 0)
        (call,) = contender.variants(BenchProblem(cell, "max", "forward")).values()
        assert call()[0].is_contiguous(memory_format=layout)


def test_every_call_gives_fresh_results():
    for call in Ours(1).variants(problem("P11", "max", "forward")).values():
        assert not np.shares_memory(call(), call())


WAYS = {
    "Ours": {GIVEN, FIXED},
    "PyTorch": {""},
    "Jax": {GIVEN, FIXED, f"{GIVEN}, channels last", f"{FIXED}, channels last"},
    "OnnxRuntime": {FIXED},
}


def test_values_are_written_with_weights_fixed_by_everyone_who_can(peer):
    for contender in (Ours(1), peer):
        assert set(contender.variants(SMALL_CONV)) == WAYS[type(contender).__name__]


@pytest.mark.exhaustive
@pytest.mark.skipif(find_spec("torch") is None, reason="pip install torch")
@pytest.mark.filterwarnings("ignore::Warning")  # the compiler's own
@pytest.mark.parametrize("entry", ["compiled", "compiled_channels_last"])
def test_compiled_modules_agree_with_weights_given_and_fixed(entry):
    contender = getattr(import_module("gradspec.bench.contenders.pytorch"), entry)(1)
    (ours, _) = our_results(SMALL_CONV).values()
    found = results(contender, SMALL_CONV)
    assert {name: disagreement(theirs, ours) for name, theirs in found.items()} == {GIVEN: "", FIXED: ""}


PRODUCT = BenchProblem(Limit("a small product", 48, is_product=True), "matmul", "forward")


def test_the_machine_copies_and_multiplies_and_nothing_else():
    machine = Machine(2)
    (copied,) = results(machine, BenchProblem(COPY, "copy", "forward"))["NumPy copies"]
    assert copied.shape == COPY.output()
    assert np.all(copied == 1)
    (product,) = results(machine, PRODUCT)["NumPy"]
    a, b = data(PRODUCT).inputs
    assert disagreement([product], [a.astype(np.float64) @ b]) == ""
    with pytest.raises(NotOfferedError):
        machine.variants(problem("P11", "max", "forward"))


def test_a_matrix_product_is_the_same_for_all_who_have_one_of_their_own(peer):
    expected = results(Machine(1), PRODUCT)["NumPy"]
    for contender in (Ours(1), peer):
        try:
            (found,) = results(contender, PRODUCT).values()
        except NotOfferedError:
            assert not is_multiplier(contender)
        else:
            assert disagreement(found, expected) == ""


def is_multiplier(contender):
    """torch in its plain form and JAX are; gradspec is when its product is compiled and not NumPy's."""
    name = type(contender).__name__
    return name == "Jax" or (name == "PyTorch" and not contender.channels_last)


def test_modes_and_operators_are_the_published_ones():
    assert (POOL_OPS, tuple(MODES)) == (("max", "avg", "smooth"), ("forward", "jvp", "vjp"))
