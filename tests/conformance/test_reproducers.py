"""A program is shown when it was seen to show its finding: with the memory, the calls or the threads that it needs."""

import ctypes
import sys
from dataclasses import replace

import numpy as np
import pytest

from conformance import stateful_kernels as kernels
from gradspec.conformance.campaign.replay import told
from gradspec.conformance.campaign.reproduce import in_copies, in_new_processes, other, verify_findings
from gradspec.conformance.model.problem import Call, Problem
from gradspec.conformance.model.verdict import Failure, Verdict
from gradspec.conformance.shrink.causes import finding
from gradspec.conformance.shrink.search import reach
from gradspec.conformance.targets.user.target import UserKernels
from patience import PATIENCE

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are copied as Linux does it")


def conv_call(**attributes):
    random = np.random.default_rng(0)
    x, weight = (random.integers(1, 5, shape).astype(np.float32) for shape in ((1, 2, 4, 5), (3, 2, 2, 2)))
    problem = Problem("conv", 2, (x.shape, weight.shape, None), attributes)
    return Call(problem, "value", (x, weight, None))


def replayed(target, verdict, call=None, run=None):
    """The finding of a failure, with its programs run."""
    failure = Failure(conv_call() if call is None else call, verdict, (), "0.0")
    run = run or in_copies(target.named())
    return verify_findings([finding(target, [failure], failure)], run, "a copy", PATIENCE)[0]


STATEFUL = {
    kernels.WithoutStride: "after stride",
    kernels.WithoutDilation: "after dilation",
    kernels.WithoutShape: "after sizes exchanged",
    kernels.WeightById: "after numbers of weight",
    kernels.WithoutLayout: "after layout",
    kernels.WithoutDType: "after dtype",
}


@pytest.mark.rows(1)
@pytest.mark.parametrize("kernel", STATEFUL, ids=lambda kernel: kernel.__name__)
def test_what_only_an_earlier_call_brings_about_is_shown_after_that_call(kernel):
    """Whoever met it: the judge sees a wrong number, and a new process that the call alone is right."""
    found = replayed(UserKernels(kernel), Verdict("defect", "value.sum", "y", place=(0, 0, 0, 0), got="-1.0"))
    assert found.reproduced
    assert found.rule == "state"
    assert found.setting.startswith(STATEFUL[kernel])
    assert "differs in nothing but" in found.reproducer
    assert found.programs == {}


def test_a_wrong_kernel_is_shown_alone_and_a_right_one_not_at_all():
    call, right = conv_call(), UserKernels(kernels.Kernels)
    y = right.run(call)["y"]
    shown = replayed(right, Verdict("defect", "value.sum", "y", place=(0, 0, 0, 0), got=repr(y[0, 0, 0, 0].item())))
    assert (shown.reproduced, shown.setting, shown.rule) == (True, "", "value.sum")
    hidden = replayed(right, Verdict("defect", "value.sum", "y", place=(0, 0, 0, 0), got="-1.0"))
    assert hidden.reproduced is False
    assert "0 of 3 runs" in hidden.verification


def test_a_module_is_imported_anew():
    import os

    target = UserKernels(kernels.WeightById, "conformance.stateful_kernels:WeightById")
    folder = os.path.dirname(os.path.dirname(__file__))
    verdict = Verdict("defect", "value.sum", "y", place=(0, 0, 0, 0), got="-1.0")
    found = replayed(target, verdict, run=in_new_processes([folder]))
    assert (found.reproduced, found.rule) == (True, "state")


@pytest.mark.parametrize(
    ("kernel", "setting"),
    [(kernels.OneResult, "held"), (kernels.Remembering, "scribbled"), (kernels.OneResult, "again")],
)
def test_a_result_that_is_not_the_callers_own_is_shown(kernel, setting):
    y = UserKernels(kernels.Kernels).run(conv_call())["y"]
    got = {"held": "", "scribbled": "7.0"}.get(setting, repr(y[0, 0, 0, 0].item()))
    verdict = Verdict("defect", "guard", "y", place=(0, 0, 0, 0) if got else None, got=got, setting=setting)
    found = replayed(UserKernels(kernel), verdict)
    assert found.reproduced
    assert found.setting in (setting, "")


def test_threads_are_in_the_program():
    verdict = Verdict("defect", "concurrent", "y", place=(0, 0, 0, 0), got="-1.0", setting="together")
    found = replayed(UserKernels(kernels.SharedScratch), verdict)
    assert "ThreadPoolExecutor" in found.reproducer
    assert "as many" not in found.verification
    assert found.reproduced is not None


class ReadsOn(kernels.Kernels):
    def read(self, x):
        ctypes.string_at(x.ctypes.data + x.nbytes, 8)
        return x


class WritesBefore(kernels.Kernels):
    def read(self, x):
        ctypes.memset(x.ctypes.data - 12, 0, 4)
        return x


@pytest.mark.parametrize(
    ("kernel", "setting", "words"),
    [
        (ReadsOn, "fence_end", "it reads 8 bytes beyond the end of x"),
        (WritesBefore, "fence_begin", "it writes 12 bytes before the beginning of x"),
        (kernels.Kernels, "fence_end", ""),
    ],
)
def test_a_crash_says_what_lay_beyond(kernel, setting, words):
    target = UserKernels(kernel)
    assert reach(target, conv_call(), setting) == words
    if words:
        found = replayed(target, Verdict("defect", "crash", got="the process was ended", setting=setting))
        assert (found.reproduced, found.setting) == (True, setting)
        assert "fenced(x" in found.reproducer


def test_another_result_is_more_than_a_few_roundings():
    one = told("import numpy as np; print(np.float32([1, 2]))", {})
    near, far = (replace_cells(one, cells) for cells in (["1.0000001", "2.0"], ["1.0", "3.0"]))
    assert other(one, near, (0,)) == ""
    assert other(one, far, (1,)) == "3.0"
    assert other(one, far, (0,)) == ""
    assert other(one, told("1 / 0", {}), None) == "ZeroDivisionError: division by zero"


def replace_cells(answer, cells):
    return {**answer, "arrays": [{**answer["arrays"][0], "cells": cells}]}


def test_programs_that_end_late_are_told_apart():
    verdict = Verdict("defect", "hang", got="no answer")
    failure = Failure(conv_call(), verdict, (), "0.0")
    found = finding(UserKernels(kernels.Kernels), [failure], failure)
    late = verify_findings([replace(found, programs={})], lambda programs, seconds: iter(()), "a copy", PATIENCE)[0]
    assert late.reproduced is None
    assert "not run" in late.verification
    (late,) = verify_findings([found], lambda programs, seconds: iter(()), "a copy", 0.0)
    assert late.verification.endswith("no time left")


def test_a_mapping_is_named_by_its_keys_and_places_are_whole_numbers():
    assert UserKernels({"conv": len, "conv_vjp": len}).name == "conv, conv_vjp"
