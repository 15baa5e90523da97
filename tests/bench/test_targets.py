"""Targets: the groups and figures that were set, judged by ratios of medians, and never on less than they ask for."""

import re

import pytest

from gradspec.bench.contenders import PEERS
from gradspec.bench.grid import CELLS, GRID, problems
from gradspec.bench.measure import PRODUCT_PROBLEMS, BenchRun, Measured, Settings, Timing
from gradspec.bench.targets import PROCESSORS, TARGETS, SpeedTarget, verdicts

PUBLISHED = {  # mode, cells, against, at least
    ("AArch64", "conv"): """
        forward | C1 C3 C4 C5             | best matrix product                          | 0.85 each
        forward | C1 C2 C3 C4 C5 C7 C8 C9 | fastest of torch eager, jax, ONNX Runtime    | 1.15 mean
        forward | C1 C2 C3 C4 C5 C7 C8 C9 | fastest of torch eager, jax, ONNX Runtime    | 1.0 each
        forward | C1 C2 C3 C4 C5 C7 C9    | torch channels last                          | 0.95 each
        forward | C6 C10 C11              | fastest peer                                 | 1.0 each
        forward | C12                     | jax                                          | 1.5 each
        jvp     | C1 C3 C5                | best matrix product                          | 0.8 each
        vjp     | C1 C3 C5                | best matrix product                          | 0.8 each
        vjp     | C1 C2 C4 C5 C9          | torch eager                                  | 1.5 each
        vjp     | C1 C2 C4 C5 C9          | torch channels last                          | 1.2 each
        vjp     | C1 C2 C4 C5 C9          | jax                                          | 2.0 each
        vjp     | C6                      | fastest peer                                 | 10.0 each""",
    ("AArch64", "net"): """
        forward | N1 N2                   | fastest peer                                 | 1.1 each
        vjp     | N1 N2                   | fastest peer                                 | 1.5 each""",
    ("x86-64", "conv"): """
        forward | C1 C2 C3 C4 C5          | torch eager                                  | 0.9 each
        forward | C1 C2 C3 C4 C5          | ONNX Runtime                                 | 1.2 each
        vjp     | C1 C2 C3 C4 C5          | torch eager                                  | 1.2 each""",
}


def described(target):
    cells, kind = " ".join(target.cells), "mean" if target.in_mean else "each"
    return f"{target.mode} | {cells} | {target.against} | {target.least} {kind}"


@pytest.mark.parametrize("key", TARGETS, ids=" ".join)
def test_the_targets_are_the_published_ones(key):
    published = [re.sub(r" +", " ", line).strip() for line in PUBLISHED[key].strip().splitlines()]
    assert [described(target) for target in TARGETS[key]] == published


@pytest.mark.parametrize("key", TARGETS, ids=" ".join)
def test_targets_name_cells_peers_and_modes_that_exist(key):
    for target in TARGETS[key]:
        assert {*target.cells} <= {cell.name for cell in GRID[key[1]]}
        assert {*(target.peers or ())} <= {peer.name for peer in PEERS if key[1] in peer.suites}
        assert all(target.mode in CELLS[name].modes for name in target.cells)
    assert set(PUBLISHED) == set(TARGETS)


def race(suite="conv", cells=(), ours=1.0, product=1.0, **peers):
    """A run in which gradspec takes ``ours`` seconds, each peer a time of its own, and products go at a given rate."""
    names = [peer.name for peer in PEERS if suite in peer.suites]
    run = BenchRun(suite, Settings(threads=2), ["gradspec", *names])
    for problem in problems(suite, cells, (), ()):
        times = {name: Timing([peers.get(name.replace("-", "_"), 2.0)]) for name in names}
        run.results.append(Measured(problem, {"gradspec": Timing([ours]), **times}))
    first, _ = PRODUCT_PROBLEMS
    run.products.append(Measured(first, {"machine": Timing([first.flops / product])}))
    return run


def judged(run, machine="aarch64"):
    return {described(verdict.target): verdict for verdict in verdicts(run, machine)}


MEAN = "forward | C1 C2 C3 C4 C5 C7 C8 C9 | fastest of torch eager, jax, ONNX Runtime | 1.15 mean"
EACH = MEAN.replace("1.15 mean", "1.0 each")
LAST = "forward | C1 C2 C3 C4 C5 C7 C9 | torch channels last | 0.95 each"


def test_a_ratio_is_taken_against_the_fastest_of_the_peers_that_are_named():
    found = judged(race(torch_eager=1.3, jax=1.2, onnxruntime=1.4, torch_channels_last=0.96))
    assert found[MEAN].mean == pytest.approx(1.2)
    assert found[LAST].worst[1] == pytest.approx(0.96)
    assert (found[MEAN].met, found[EACH].met, found[LAST].met) == (True, True, True)
    assert found["forward | C6 C10 C11 | fastest peer | 1.0 each"].met is False
    assert found["forward | C12 | jax | 1.5 each"].met is False


def test_one_bad_cell_spoils_each_but_not_the_mean():
    run = race(torch_eager=1.3, jax=1.3, onnxruntime=1.3)
    run.results[2].timings["jax"] = Timing([0.9])
    found = judged(run)
    assert (found[MEAN].met, found[EACH].met) == (True, False)
    assert found[EACH].worst == ("C3", pytest.approx(0.9))
    assert found[MEAN].mean == pytest.approx((1.3**7 * 0.9) ** (1 / 8))


@pytest.mark.parametrize(("share", "met"), [(0.86, True), (0.84, False)])
def test_a_share_of_the_best_product_counts_operations(share, met):
    flops = CELLS["C1"].flops("forward")
    run = race(cells=["C1"], ours=1.0, product=flops / share)
    (result, *_) = run.results
    target = SpeedTarget("forward", ("C1",), 0.85, of_product=True)
    assert target.ratio(result, run) == pytest.approx(share)
    verdict = judged(run)["forward | C1 C3 C4 C5 | best matrix product | 0.85 each"]
    assert verdict.met is None
    assert (verdict.worst[1] >= 0.85) == met


def spoil_nothing(run):
    pass


def leave_a_cell_out(run):
    run.results = [result for result in run.results if result.problem.cell.name != "C4"]


def leave_a_peer_out(run):
    for result in run.results:
        del result.timings["jax"]


def lose_a_peer(run):
    run.unavailable["jax"] = "ImportError: no such library"
    for result in run.results:
        result.timings["jax"] = Timing(offered=False)


def let_a_peer_fail(run):
    run.results[0].timings["jax"] = Timing(reason="RuntimeError: out of memory")


def interrupt(run):
    run.results[0].is_complete = False


def get_a_peer_wrong(run):
    run.results[0].timings["jax"] = Timing([0.1], disagrees="differs from gradspec by 1")


@pytest.mark.parametrize(
    ("spoil", "verdict"),
    [
        (spoil_nothing, True),
        (leave_a_cell_out, None),
        (leave_a_peer_out, None),
        (lose_a_peer, None),
        (let_a_peer_fail, None),
        (interrupt, None),
        (get_a_peer_wrong, True),
    ],
)
def test_nothing_is_judged_on_less_than_it_asks_for(spoil, verdict):
    run = race()
    spoil(run)
    found = judged(run)
    assert (found[MEAN].met if MEAN in found else None) is verdict


def test_what_a_peer_does_not_offer_is_not_waited_for():
    run = race()
    for result in run.results:
        if result.problem.mode != "forward":
            result.timings["onnxruntime"] = Timing(offered=False, reason="values only")
    assert judged(run)["vjp | C6 | fastest peer | 10.0 each"].met is False
    assert judged(race(ours=0.1))["vjp | C6 | fastest peer | 10.0 each"].met is True


@pytest.mark.parametrize(
    ("suite", "machine", "count"),
    [("net", "arm64", 2), ("net", "x86_64", 0), ("conv", "AMD64", 3), ("conv", "s390x", 0)],
)
def test_targets_are_those_of_the_processor(suite, machine, count):
    assert len(verdicts(race(suite), machine)) == count
    assert set(PROCESSORS.values()) == {processor for processor, _ in TARGETS}
