"""The processes: what they answer, that they stand still between questions, and that none is left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import pytest

from gradspec.bench.contenders import LIMITS, OURS, Participant
from gradspec.bench.grid import problem
from gradspec.bench.measure import Remote, Settings, WorkerLostError, disagreement, measure
from patience import PATIENCE

TINY = {"cell": "P11", "op": "max", "mode": "forward"}
WORKER = [sys.executable, "-m", "gradspec.bench.worker"]


@pytest.fixture(autouse=True)
def workers_find_the_doubles(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]))


def double(name):
    return Participant(name.lower(), f"contender_doubles:{name}")


@pytest.fixture
def remote(tmp_path):
    started = []

    def make(entry, timeout=PATIENCE):
        started.append(Remote(entry, 1, tmp_path, timeout))
        return started[-1]

    yield make
    for one in started:
        one.kill()


def prepare(worker, **changes):
    return worker.ask(do="prepare", **{**TINY, **changes}, results=str(worker.folder / "results.npz"))


def state(pid):
    """What the process does; None when it is gone."""
    try:
        return psutil.Process(pid).status()
    except psutil.NoSuchProcess:
        return None


def gone(pid):
    deadline = time.monotonic() + PATIENCE
    while state(pid) not in (None, psutil.STATUS_ZOMBIE) and time.monotonic() < deadline:
        time.sleep(0.02)
    return state(pid) in (None, psutil.STATUS_ZOMBIE)


def test_a_worker_prepares_and_times(remote):
    worker = remote(OURS)
    answer = prepare(worker)
    assert answer["seconds"][answer["variant"]] > 0
    with np.load(worker.folder / "results.npz") as results:
        assert [results[name].shape for name in results.files] == [(1, 16, 7, 7)]
    seconds = worker.ask(do="time", calls=2, repeats=3)["seconds"]
    assert len(seconds) == 3
    assert min(seconds) > 0
    assert "gradspec" in worker.versions


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [("Refusing", "not_offered", "not today"), ("Raising", "failed", "RuntimeError: broken inside")],
)
def test_a_worker_says_what_went_wrong_and_goes_on(remote, name, kind, words):
    worker = remote(double(name))
    assert [prepare(worker), prepare(worker)] == [{kind: words}] * 2


@pytest.mark.parametrize(
    "request_", [{"do": "dance"}, {"do": "time"}, {"do": "prepare", **TINY, "results": "/no/where"}]
)
def test_a_wrong_request_is_an_answer(remote, request_):
    assert "failed" in remote(OURS).ask(**request_)


def test_the_best_working_variant_is_kept(remote):
    answer = prepare(remote(double("HalfWorking")))
    assert (answer["variant"], answer["notes"]) == ("good", ["fail: RuntimeError: broken variant"])
    assert answer["seconds"]["slow"] > answer["seconds"]["good"]


def test_what_a_library_prints_is_no_answer(remote):
    assert prepare(remote(double("Chatty")))["variant"] == ""


def test_a_lost_worker_is_named_and_started_again(remote):
    worker = remote(double("Dying"))
    for _ in range(2):
        with pytest.raises(WorkerLostError, match="the process ended"):
            prepare(worker)
    assert worker.pid is None


def test_a_worker_that_hangs_is_killed(remote):
    worker = remote(double("Hanging"))
    worker.start()
    pid, worker.timeout = worker.pid, 0.3
    with pytest.raises(WorkerLostError, match=r"no answer in 0\.3 s"):
        prepare(worker)
    assert gone(pid)


def test_a_contender_that_cannot_start_says_why(remote):
    with pytest.raises(WorkerLostError, match="ImportError: no such library"):
        remote(double("Unstartable")).start()


def test_a_worker_stands_still_between_questions(remote):
    worker = remote(OURS)
    worker.start()
    assert state(worker.pid) == psutil.STATUS_STOPPED
    prepare(worker)
    assert state(worker.pid) == psutil.STATUS_STOPPED
    pid = worker.pid
    worker.kill()
    assert gone(pid)


def test_the_end_of_input_ends_a_worker():
    process = subprocess.Popen([*WORKER, OURS.factory, "1"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert "versions" in json.loads(process.stdout.readline())
    process.stdin.close()
    assert process.wait(timeout=PATIENCE) == 0
    process.stdout.close()


def test_a_stopped_worker_does_not_outlive_its_parent():
    script = (
        "import sys, time, pathlib, gradspec.bench.measure as r, gradspec.bench.contenders as c\n"
        "worker = r.Remote(c.LIMITS, 1, pathlib.Path(sys.argv[1]), 900.0)\n"
        "worker.start()\n"
        "print(worker.pid, flush=True)\n"
        "time.sleep(3600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script, "/tmp"], stdout=subprocess.PIPE)
    pid = int(parent.stdout.readline())
    assert state(pid) == psutil.STATUS_STOPPED
    parent.kill()
    parent.wait()
    parent.stdout.close()
    ended = gone(pid)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    assert ended


@pytest.mark.parametrize("entry", [OURS, LIMITS], ids=lambda entry: entry.name)
def test_a_worker_imports_no_other_contender(entry):
    module = entry.factory.partition(":")[0]
    script = f"import sys, gradspec.bench.worker, {module}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.split()
    assert {"torch", "jax", "onnxruntime", "onnx", "matplotlib", "rich"}.isdisjoint(loaded)


# --- a run ------------------------------------------------------------------------------------------------------------

BRIEF = Settings(threads=1, rounds=1, turn=0.01, repeats=2, timeout=PATIENCE)


def run_with(*names, mode="forward", progress=lambda doing, share: None):
    return measure("pool", [problem("P11", "max", mode)], [double(name) for name in names], BRIEF, progress)


@pytest.mark.exhaustive
def test_every_kind_of_failure_is_reported_and_none_is_fatal():
    run = run_with("Wrong", "Misshapen", "Refusing", "Raising", "Dying", "Unstartable")
    (result,) = run.results
    assert result.timings["gradspec"].samples
    assert result.timings["gradspec"].disagrees == ""
    assert "differs from gradspec by 0.01 in result 1 of 1" in result.timings["wrong"].disagrees
    assert "shape" in result.timings["misshapen"].disagrees
    refused, raising, dying = (result.timings[name] for name in ("refusing", "raising", "dying"))
    assert (refused.offered, refused.reason, refused.samples) == (False, "not today", [])
    assert (raising.offered, raising.reason) == (True, "RuntimeError: broken inside")
    assert dying.reason.startswith("the process ended")
    assert run.unavailable == {"unstartable": "ImportError: no such library"}
    assert result.copy_limit > 0


def test_a_derivative_is_compared_too():
    (result,) = run_with("Wrong", mode="vjp").results
    assert "in result 1 of 2" in result.timings["wrong"].disagrees


@pytest.mark.exhaustive
def test_a_contender_that_is_wrong_is_no_measure_however_fast():
    (result,) = run_with("Wrong", "HalfWorking").results
    assert result.timings["wrong"].samples
    assert result.fastest_peer()[0] == "halfworking"
    (alone,) = run_with("Wrong").results
    assert alone.fastest_peer() is None


@pytest.mark.exhaustive
def test_where_peers_agree_with_each_other_and_not_with_gradspec_gradspec_is_wrong():
    entries = [double("Wrong"), Participant("wrong-too", "contender_doubles:Wrong")]
    (result,) = measure("pool", [problem("P11", "max", "forward")], entries, BRIEF).results
    assert result.timings["gradspec"].disagrees.startswith("differs from wrong by 0.01")
    assert [result.timings[name].disagrees for name in ("wrong", "wrong-too")] == ["", ""]


@pytest.mark.exhaustive
def test_products_are_timed_before_and_after_where_arithmetic_is_counted():
    run = measure("conv", [problem("C11", "conv", "forward")], [], BRIEF)
    assert [result.problem.cell.side for result in run.products] == [1024, 1536, 1024, 1536]
    assert all(result.timings["machine"].samples for result in run.products)
    assert run.best_product()[1] > 0
    assert run_with().products == []


def test_an_interrupted_run_keeps_what_it_has_and_leaves_nothing():
    seen = []

    def interrupt(doing, share):
        seen.extend(children())
        if doing.endswith(": wrong"):
            raise KeyboardInterrupt

    run = run_with("Wrong", progress=interrupt)
    assert run.interrupted
    assert run.results[0].timings["gradspec"].samples
    assert not run.results[0].is_complete
    assert len(set(seen)) == 3
    assert all(gone(pid) for pid in seen)


def children():
    """Worker processes of this one."""
    return [child.pid for child in psutil.Process().children() if "gradspec.bench.worker" in child.cmdline()]


@pytest.mark.parametrize(
    ("found", "agrees"),
    [
        ([1.0, 2.0], True),
        ([1.0, 2.001], True),
        ([1.0, 2.01], False),
        ([1.0, float("nan")], False),
        ([[1.0, 2.0]], False),
    ],
)
def test_agreement_is_loose_but_not_blind(found, agrees):
    assert (disagreement([np.float32(found)], [np.float32([1, 2])]) == "") == agrees


@pytest.mark.parametrize("seconds", [1e-7, 1e-5, 1e-3, 0.1, 1.0, 30.0])
def test_a_plan_times_long_enough_and_not_too_long(seconds):
    settings = Settings(threads=1)
    calls, repeats, rounds = settings.plan(seconds)
    assert calls * seconds >= 2e-3
    assert 1 <= repeats <= settings.repeats
    assert 1 <= rounds <= settings.rounds
    assert rounds == 1 or rounds * seconds * calls * repeats <= settings.patience
    behind = settings.plan(seconds, is_far_behind=True)
    assert behind[:2] == (calls, repeats)
    assert behind[2] == 1 or behind[2] * seconds * calls * repeats <= settings.patience / 4
