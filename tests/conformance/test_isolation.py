"""Kernels in a copy of the process: their crashes and hangs are findings, all else is as if they ran here."""

import ctypes
import multiprocessing
import os
import re
import subprocess
import sys
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress

import numpy as np
import pytest

import gradspec as gs
from gradspec.conformance.campaign import check as campaign
from gradspec.conformance.campaign import isolated, reproduce
from gradspec.conformance.targets.user import target as user
from gradspec.system import forking, processes
from gradspec.testing import check_kernel
from patience import PATIENCE

pytestmark = pytest.mark.skipif(not forking.CAN_FORK, reason="a process cannot be copied here")
pytest_plugins = ["pytester"]
FAST = {"cases": 6, "dtypes": ["f32"]}


@pytest.fixture(autouse=True)
def can_be_copied(monkeypatch):
    """Other tests of this process may have started JAX."""
    monkeypatch.setattr(forking, "unforkable", lambda: "")


def pool(x, kernel_size, stride):
    return np.lib.stride_tricks.sliding_window_view(x, kernel_size[0], -1)[..., :: stride[0], :].max(-1)


def doing(something):
    """A kernel that does something at strides of more than 1, and refuses windows of three cells."""

    def max_pool1d(x, kernel_size, stride):
        if kernel_size == (3,):
            raise NotImplementedError("three cells")
        if stride[0] > 1:
            something()
        return pool(x, kernel_size, stride)

    return max_pool1d


CRASHES = {
    "abort": (os.abort, "was ended by SIGABRT"),
    "segmentation fault": (lambda: ctypes.string_at(0), "was ended by SIGSEGV"),
    "exit at once": (lambda: os._exit(3), "ended with status 3"),
    "exit": (lambda: sys.exit(0), "ended with status 0"),
}


def crash_report(name):
    with pytest.raises(AssertionError) as caught:
        check_kernel(doing(CRASHES[name][0]), **FAST)
    assert multiprocessing.active_children() == []
    return str(caught.value)


@pytest.mark.exhaustive
@pytest.mark.rows(1)
@pytest.mark.parametrize("name", CRASHES)
def test_a_crash_is_shrunk_and_no_other_case_is_lost(name):
    """By hundreds of copies of a small process: of this one, which has collected all tests, each takes 60 ms."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as executor:
        text = executor.submit(crash_report, name).result()
    assert text.startswith("max_pool1d: It crashes (")
    assert f"got       the process {CRASHES[name][1]}" in text
    assert re.search(r"x = np.array\(\[1.0(, 1.0)?\], np.float32\)\n.*, stride=\(2,\)", text)
    assert "6 judged cases" in text
    assert "not offered" not in text


@pytest.mark.exhaustive
def test_results_are_those_of_this_process():
    runs = [gs.conformance.check(doing(lambda: None), seed=3, isolate=isolate, **FAST) for isolate in (False, True)]
    assert runs[0].tally == runs[1].tally
    assert runs[0].findings == runs[1].findings


def test_what_a_kernel_raises_is_told():
    def raising():
        raise KeyError("no such tile")

    with pytest.raises(AssertionError, match="KeyError: 'no such tile'"):
        check_kernel(doing(raising), **FAST)


def test_prints_and_warnings_come_through_once(capsys):
    def loud():
        print("from Python")
        print("to the other stream", file=sys.stderr)
        ctypes.CDLL(None).puts(b"from C")
        warnings.warn("old", DeprecationWarning, stacklevel=1)

    with pytest.warns(DeprecationWarning, match="old") as caught:
        run = check_kernel(doing(loud), **FAST)
    assert run.findings == []
    assert len(caught) <= 2  # of who plans, and of who judges
    out = capsys.readouterr().out
    assert {"from Python", "to the other stream", "from C"} <= set(out.splitlines())


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(isolated, "FIRST", 0.0)
    monkeypatch.setattr(campaign, "PROBING", 0.0)
    monkeypatch.setattr(reproduce, "A_FINDING", 0.1)
    monkeypatch.setattr(forking, "ENDING", 0.0)
    monkeypatch.setattr(user, "MOST_HANGS", 0)


@pytest.mark.exhaustive
@pytest.mark.rows(1)
@pytest.mark.parametrize(
    ("threads", "error", "words"),
    [
        (["python"], AssertionError, "The call does not return"),
        (["python", "pool"], RuntimeError, "either it hangs, or it needs threads .* isolate=False"),
    ],
    ids=["alone", "in company"],
)
def test_a_hang_is_told_and_held_against_a_kernel_only_if_it_can_be_its_own(
    monkeypatch, impatient, threads, error, words
):
    monkeypatch.setattr(forking, "_threads", lambda: threads)
    with pytest.raises(error, match=words):
        check_kernel(lambda x, kernel_size: time.sleep(100), "max_pool1d", timeout=0.2, **FAST)
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize(("lost", "is_waited_for"), [(0.0, False), (1.0, True)], ids=["idle", "busy"])
def test_time_without_a_processor_does_not_count(lost, is_waited_for, monkeypatch):
    """On a machine that has other work a process is slow for no fault of its own."""
    monkeypatch.setattr(processes, "processor_delay", lambda: lost * time.monotonic())

    def answers(request):
        time.sleep(0.5 if is_waited_for else 2 * PATIENCE)
        yield {"told": True}

    child = forking.ForkedChild(answers, {})
    child.patience = PATIENCE / 0.1
    child.receive(PATIENCE)
    child.send({}, PATIENCE)
    given = []
    with suppress(processes.ProcessLostError):
        given.append(child.receive(0.1))
    assert given == [{"told": True}] * is_waited_for
    child.kill()


@pytest.mark.skipif(not os.path.exists("/proc/self/schedstat"), reason="Linux does not count it here")
def test_time_without_a_processor_is_counted():
    """Of processes that are one more than the processors one waits at any time."""
    spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() + 1)]
    before, end = processes.processor_delay(), time.monotonic() + PATIENCE
    while processes.processor_delay() == before and time.monotonic() < end:
        time.sleep(0.01)
    assert processes.processor_delay() > before
    for process in spinning:
        process.kill()
        process.wait()


def test_where_no_process_can_be_copied_that_is_said(monkeypatch):
    monkeypatch.setattr(forking, "unforkable", lambda: "a GPU is in use here")
    here = []
    with pytest.warns(RuntimeWarning, match=r"judged in this process, .*: a GPU is in use here. isolate=False says"):
        check_kernel(doing(lambda: here.append(os.getpid())), **FAST)
    assert set(here) == {os.getpid()}


def test_a_mistaken_request_is_the_same_error():
    for isolate in (True, False):
        with pytest.raises(ValueError, match="features that it has"):
            check_kernel(lambda x, weight: x, "conv1d", features=["ties"], isolate=isolate)


def test_openmp_has_threads_in_a_copy():
    torch = pytest.importorskip("torch")

    def work():
        return torch.rand(2, 8, 128, 128).exp().sum()

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        work()  # starts threads here, which a copy has not
        assert forking.fate(work, 60) == ""
    finally:
        torch.set_num_threads(before)


TESTS = """
import os
import numpy as np

def pool(x, kernel_size):
    return np.lib.stride_tricks.sliding_window_view(x, kernel_size[0], -1)[..., :: kernel_size[0], :].max(-1)

def test_crash(check_kernel):
    check_kernel(lambda x, kernel_size: os.abort(), "max_pool1d", cases=4)

def test_right(check_kernel):
    check_kernel(pool, "max_pool1d", cases=4)
"""


@pytest.mark.exhaustive
def test_pytest_survives(pytester):
    pytester.makepyfile(TESTS)
    result = pytester.runpytest_subprocess("-p", "gradspec.testing.plugin", "-p", "no:xdist", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*SIGABRT*"])
