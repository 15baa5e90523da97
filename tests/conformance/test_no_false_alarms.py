"""A correct kernel passes whatever order it adds in; one term too few or too many, or one bit, and it does not."""

from math import prod

import numpy as np
import pytest

from conformance.kernels_in_any_order import OPS, ORDERS, InOrder
from gradspec.conformance.cases.data import drawn
from gradspec.conformance.cases.stream import SWEEP_EVERY, Stream
from gradspec.conformance.judge.verdicts import judge_call
from gradspec.conformance.model.case import Selection

SEED, BATCHES, SWEEPS = 7, 90, 10
CORRECT = [InOrder(order) for order in ORDERS] + [InOrder("forwards", "float64"), InOrder("8 lanes", "float64")]


@pytest.fixture(scope="module")
def calls():
    """Cases with their calls, those with few cells, and of batches of quick cases the first."""
    stream = Stream(SEED, Selection(ops=OPS, modes=("value", "jvp", "vjp")), CORRECT[0].refusal)
    numbers = [n for n in range(BATCHES) if n < SWEEPS * SWEEP_EVERY or n % SWEEP_EVERY < SWEEP_EVERY - 1]
    cases = [case for number in numbers for case in stream.batch(number)]
    small = [case for case in cases if sum(prod(shape) for shape in case.problem.shapes if shape) < 500]
    return [(case, drawn(case)) for case in small if CORRECT[0].refusal(case.problem, case.mode) is None]


def test_the_cases_are_many_and_of_every_kind(calls):
    assert len(calls) > 300
    assert {case.regime for case, _ in calls} == {"impulse", "exact_sum", "rounding"}
    assert {case.problem.op for case, _ in calls} == set(OPS)
    assert {case.problem.dtype for case, _ in calls} == {"f16", "bf16", "f32", "f64"}


@pytest.mark.rows(1)
@pytest.mark.parametrize("turn", range(4))
def test_correct_kernels_never_fail(calls, turn):
    """Half of the calls in each turn, and each call with two of the kernels."""
    for number, (case, call) in enumerate(calls[turn % 2 :: 2]):
        target = CORRECT[(number + turn // 2 * 4) % len(CORRECT)]
        wrong = [verdict for verdict in judge_call(target, call) if verdict.kind not in ("pass", "undecided")]
        assert not wrong, (target.name, case, wrong)


class Faulty(InOrder):
    """Correct but for one sum of each result."""

    def __init__(self, fault):
        super().__init__("forwards")
        self._fault, self.struck = fault, False
        correct = self._add
        self._add = lambda a, b: self._spoilt(correct, a, b)

    def _spoilt(self, correct, a, b):
        a, b = (np.array(part, order="C") for part in np.broadcast_arrays(a, b))
        rows = (part.reshape(prod(part.shape[:-1]), part.shape[-1]) for part in (a, b))
        a_rows, b_rows = rows
        leaves = a_rows.astype(np.float64) * b_rows
        fit = np.flatnonzero((leaves != 0).any(axis=1) & np.isfinite(leaves).all(axis=1))
        if not len(fit):
            return correct(a, b)
        self.struck = True
        row = fit[len(fit) // 2]
        leaf = np.flatnonzero(leaves[row])[0]
        return self._fault(correct, a, b, row, leaf)


def dropped(correct, a, b, row, leaf):
    a.reshape(-1, a.shape[-1])[row, leaf] = 0
    return correct(a, b)


def counted_twice(correct, a, b, row, leaf):
    again = np.zeros((*a.shape[:-1], 1), a.dtype)
    again.reshape(-1)[row] = a.reshape(-1, a.shape[-1])[row, leaf]
    twin = np.broadcast_to(b.reshape(-1, b.shape[-1])[row, leaf], again.shape)
    return correct(np.concatenate([a, again], axis=-1), np.concatenate([b, twin], axis=-1))


def one_bit_more(correct, a, b, row, leaf):
    total = correct(a, b)
    flat = total.reshape(-1)
    flat[row] = np.nextafter(flat[row], np.inf).astype(total.dtype)
    return total


def is_exact(case):
    """Whether every result is one number, and a bit of the sum is a bit of the result.

    Without channels nothing but the bias has a gradient, and there its sum is one of dense numbers.
    """
    wide, plain = case.problem.dtype in ("f32", "f64"), case.special in (None, "signed_zero")
    return case.regime != "rounding" and wide and plain and "zero_channels" not in case.features


@pytest.mark.rows(1)
@pytest.mark.parametrize("turn", range(5))
def test_one_term_or_bit_is_seen(calls, turn):
    """A fifth of the calls in each turn, and each call with one of the faults."""
    struck = 0
    for number, (case, call) in enumerate(calls[turn::5]):
        fault = (dropped, counted_twice, one_bit_more)[number % 3]
        if not is_exact(case) or (fault is one_bit_more and case.problem.op == "avg_pool"):
            continue
        target = Faulty(fault)
        verdicts = judge_call(target, call)
        struck += target.struck
        seen = any(verdict.kind == "defect" for verdict in verdicts)
        assert seen == target.struck, (case, fault, verdicts)
    assert struck > 20
