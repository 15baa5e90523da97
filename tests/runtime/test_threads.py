"""The thread pool: every unit once, every slot one thread's, and nothing left running, however a job ends."""

import os
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from gradspec.runtime import threads

STRIDE = 64


@pytest.fixture(autouse=True)
def pool_of_the_test(monkeypatch):
    """A pool and a number of threads of the test's own."""
    pool = threads._Pool()
    monkeypatch.setattr(threads, "_pool", pool)
    monkeypatch.setattr(threads, "_chosen", None)
    threads._default.cache_clear()
    yield pool
    pool.close()
    assert not any(worker.is_alive() for worker in pool.workers)
    threads._default.cache_clear()


class Recorder:
    """A function that notes what it is called with, and whether two threads were ever in one slot."""

    def __init__(self, seconds=0.0, fails_at=None):
        self.seconds, self.fails_at = seconds, fails_at
        self.lock = threading.Lock()
        self.units, self.slots, self.running, self.shared = Counter(), set(), set(), False
        self.threads, self.args = set(), set()

    def __call__(self, args, lo, hi, workspace):
        with self.lock:
            self.shared |= workspace in self.running
            self.running.add(workspace)
            self.units.update(range(lo, hi))
            self.slots.add(workspace)
            self.threads.add(threading.get_ident())
            self.args.add(args)
        try:
            time.sleep(self.seconds)
            if self.fails_at in range(lo, hi):
                raise RuntimeError(f"unit {self.fails_at}")
        finally:
            with self.lock:
                self.running.discard(workspace)


# --- every unit once --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("units", [0, 1, 2, 3, 7, 16, 33, 1000, 10_007])
@pytest.mark.parametrize("count", [1, 2, 3, 8, 40])
def test_every_unit_is_done_once_in_a_slot_of_its_own(units, count):
    record = Recorder()
    threads.run(record, 5, units, workspace=1000, stride=STRIDE, threads=count)
    assert record.units == Counter(range(units))
    assert record.slots <= {1000 + STRIDE * slot for slot in range(count)}
    assert not record.shared
    assert record.args == ({5} if units else set())


@pytest.mark.parametrize("count", [2, 4])
def test_work_is_shared_by_as_many_threads_as_asked(count):
    record = Recorder(seconds=0.002)
    threads.run(record, 0, 100, stride=STRIDE, threads=count)
    assert len(record.threads) == len(record.slots) == count
    assert threading.get_ident() in record.threads


@pytest.mark.parametrize("count", [1, 2])
def test_long_work_is_cut_into_short_chunks(count):
    """Units of 3 ms: a chunk ends after some 20 ms, so that Ctrl-C is answered."""
    sizes = []

    def slow(args, lo, hi, workspace):
        sizes.append(hi - lo)
        time.sleep(0.003 * (hi - lo))

    threads.run(slow, 0, 64, threads=count)
    assert sum(sizes) == 64
    assert max(sizes) <= 7


@pytest.mark.parametrize("count", [1, 2, 4])
def test_short_work_is_few_chunks(count):
    record = []
    threads.run(lambda args, lo, hi, workspace: record.append((lo, hi)), 0, 1_000_000, threads=count)
    assert len(record) <= (2 if count == 1 else 16 * count)


# --- many callers -----------------------------------------------------------------------------------------------------


def test_many_callers_at_once_never_meet():
    records = [Recorder(seconds=0.0002) for _ in range(64)]
    with ThreadPoolExecutor(32) as callers:
        list(callers.map(lambda record: threads.run(record, 0, 50, stride=STRIDE, threads=4), records))
    assert all(record.units == Counter(range(50)) and not record.shared for record in records)


def test_a_job_inside_a_job_is_done():
    inner = [Recorder() for _ in range(8)]

    def outer(args, lo, hi, workspace):
        for i in range(lo, hi):
            threads.run(inner[i], 0, 20, stride=STRIDE, threads=3)

    threads.run(outer, 0, 8, threads=3)
    assert all(record.units == Counter(range(20)) for record in inner)


def test_callers_do_not_wait_for_busy_workers(pool_of_the_test):
    """The only worker is held by one job; another one is done without it, again and again."""
    held, release = threading.Event(), threading.Event()

    def hold(args, lo, hi, workspace):
        if workspace:
            held.set()
        release.wait(10) if workspace else held.wait(10)

    caller = threading.Thread(target=threads.run, args=(hold, 0, 2, 0, STRIDE, 2))
    caller.start()
    assert held.wait(10)
    for _ in range(100):
        record = Recorder()
        threads.run(record, 0, 10, stride=STRIDE, threads=2)
        assert record.slots == {0}
    assert pool_of_the_test.jobs.qsize() <= 4
    release.set()
    caller.join(10)
    assert not caller.is_alive()


# --- what goes wrong --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("unit", [0, 57, 99])
def test_an_exception_reaches_the_caller_when_nothing_runs_any_more(count, unit):
    record = Recorder(seconds=0.001, fails_at=unit)
    with pytest.raises(RuntimeError, match=f"unit {unit}"):
        threads.run(record, 0, 100, stride=STRIDE, threads=count)
    assert not record.running
    assert max(record.units.values()) == 1
    after = Recorder()
    threads.run(after, 0, 100, stride=STRIDE, threads=count)
    assert after.units == Counter(range(100))


def test_a_failing_worker_ends_the_job_soon():
    done = []

    def fails_in_a_worker(args, lo, hi, workspace):
        done.extend(range(lo, hi))
        time.sleep(0.005 * (hi - lo))
        if workspace:
            raise RuntimeError("in a worker")

    with pytest.raises(RuntimeError, match="in a worker"):
        threads.run(fails_in_a_worker, 0, 300, stride=STRIDE, threads=2)
    assert len(done) < 100


def test_a_system_without_more_threads_is_served_by_the_caller(monkeypatch):
    def refused(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    record = Recorder()
    threads.run(record, 0, 100, stride=STRIDE, threads=4)
    assert record.units == Counter(range(100))
    assert record.slots == {0}


# --- processes: signals, fork, spawn, exit ----------------------------------------------------------------------------

PRELUDE = """
import atexit, os, signal, sys, threading, time
at_exit = []
atexit.register(lambda: [function() for function in at_exit])  # the last to be called: the pool comes later
from gradspec.runtime import threads
running = 0
lock = threading.Lock()
def slow(args, lo, hi, workspace):
    global running
    helps = threading.current_thread() is not threading.main_thread()
    with lock: running += helps
    time.sleep(0.02)
    with lock: running -= helps
def total(args, lo, hi, workspace):
    with lock: done.update(range(lo, hi))
def whole(count=4):
    global done
    done = set()
    threads.run(total, 0, 1000, threads=count)
    return done == set(range(1000))
def workers():
    return sum(thread.name == "gradspec" for thread in threading.enumerate())
"""

SCRIPTS = {
    "one Ctrl-C": """
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
start = time.monotonic()
try:
    threads.run(slow, 0, 100_000, threads=4)
except KeyboardInterrupt:
    print(running, time.monotonic() - start < 5, whole())
""",
    "Ctrl-C in one thread": """
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    threads.run(slow, 0, 100_000, threads=1)
except KeyboardInterrupt:
    print(0, True, whole())
""",
    "many Ctrl-C": """
def press():
    for _ in range(50):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.001)
def lazy(args, lo, hi, workspace):
    slow(args, lo, hi, workspace)
    if workspace: slow(args, lo, hi, workspace)
presses = threading.Thread(target=press)
signal.signal(signal.SIGINT, signal.default_int_handler)
left = None
try:
    threading.Timer(0.1, presses.start).start()
    threads.run(lazy, 0, 100_000, stride=64, threads=4)
except KeyboardInterrupt:
    left = running
while True:
    try:
        while presses.is_alive(): time.sleep(0.01)
        time.sleep(0.05)
        break
    except KeyboardInterrupt:
        pass
print(left, True, whole())
""",
    "a signal handler that uses the pool": """
signal.signal(signal.SIGALRM, lambda *_: answers.append(whole()))
answers = []
signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
threads.run(slow, 0, 40, threads=2)
signal.setitimer(signal.ITIMER_REAL, 0)
print(running, len(answers) > 1 and all(answers), whole())
""",
    "a signal handler while the pool grows": """
answers, start = [], threading.Thread.start
def interrupted(self):
    if not answers:
        answers.append(None)
        answers[0] = whole()
    start(self)
threading.Thread.start = interrupted
print(running, whole(), answers == [True])
""",
    "fork": """
import warnings
warnings.simplefilter("ignore")
ready = whole() and workers() == 3
child = os.fork()
if child == 0:
    os._exit(0 if workers() == 0 and whole() and workers() == 3 else 1)
print(os.waitpid(child, 0)[1], ready, whole())
""",
    "fork while others run": """
import warnings
warnings.simplefilter("ignore")
callers = [threading.Thread(target=threads.run, args=(slow, 0, 60, 0, 0, 4)) for _ in range(4)]
for caller in callers: caller.start()
statuses = []
for _ in range(5):
    time.sleep(0.02)
    child = os.fork()
    if child == 0:
        lock = threading.Lock()
        os._exit(0 if whole() and workers() == 3 else 1)
    statuses.append(os.waitpid(child, 0)[1])
for caller in callers: caller.join()
print(running, statuses == [0] * 5, whole())
""",
    "exit in the middle": """
finished = []
def long(args, lo, hi, workspace):
    time.sleep(0.001 * (hi - lo))
    finished.append(hi - lo)
threading.Thread(target=threads.run, args=(long, 0, 20_000, 0, 0, 4), daemon=True).start()
time.sleep(0.1)
at_exit.append(lambda: print(0, sum(finished) < 20_000, workers() == 0, flush=True))
""",
    "a job at exit": """
at_exit.append(lambda: print(0, whole(), workers() == 0, flush=True))
whole()
""",
    "exit from a job": """
def leave(args, lo, hi, workspace):
    if lo > 500: sys.exit(0)
print(0, whole(), True, flush=True)
threads.run(leave, 0, 1000, threads=4)
""",
    "no thread is left": """
at_exit.append(lambda: print(0, started == 4, len(threading.enumerate()) == 1, flush=True))
whole()
started = len(threading.enumerate())
""",
}


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_a_process_survives(script):
    finished = subprocess.run(
        [sys.executable, "-c", PRELUDE + script], capture_output=True, text=True, timeout=60, check=False
    )
    assert (finished.stdout, finished.stderr) == ("0 True True\n", "")
    assert finished.returncode == 0


def run_in_a_child(record):
    units = Counter()
    threads.run(lambda args, lo, hi, workspace: units.update(range(lo, hi)), 0, record, threads=2)
    return sum(units.values())


SPAWN = """
import multiprocessing
from test_threads import run_in_a_child
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        print(pool.map(run_in_a_child, [100, 200]))
"""


def test_spawned_processes_have_pools_of_their_own(tmp_path):
    script = tmp_path / "spawn.py"
    script.write_text(SPAWN)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    finished = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environment, check=True)
    assert finished.stdout == "[100, 200]\n"


# --- how many ---------------------------------------------------------------------------------------------------------


def test_the_pool_follows_the_number_of_threads(pool_of_the_test):
    def size():
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline and sum(t.is_alive() for t in started) != len(pool_of_the_test.workers):
            time.sleep(0.001)
        return sum(t.is_alive() for t in started)

    started = set()
    for count, workers in ((4, 3), (2, 1), (3, 2), (1, 0)):
        threads.set_num_threads(count)
        threads.run(Recorder(), 0, 100, threads=threads.get_num_threads())
        started |= set(pool_of_the_test.workers)
        assert size() == workers


def test_workers_start_when_they_are_first_needed(pool_of_the_test):
    threads.set_num_threads(8)
    threads.run(Recorder(), 0, 100, threads=1)
    threads.run(Recorder(), 0, 1, threads=8)
    assert pool_of_the_test.workers == []
    threads.run(Recorder(), 0, 3, threads=8)
    assert len(pool_of_the_test.workers) == 2


@pytest.mark.parametrize("number", [1, 7, np.int64(3)])
def test_the_number_set_is_the_number_used(number, monkeypatch):
    monkeypatch.setenv(threads.VARIABLE, "5")
    threads.set_num_threads(number)
    assert threads.get_num_threads() == number
    assert type(threads.get_num_threads()) is int
    threads.set_num_threads(None)
    assert threads.get_num_threads() == 5


@pytest.mark.parametrize(
    ("number", "error", "message"),
    [
        (True, TypeError, "True; give a whole number"),
        (2.0, TypeError, "2.0; give a whole number"),
        ("2", TypeError, "'2'; give a whole number"),
        (0, ValueError, "0; give 1 to 1024"),
        (-3, ValueError, "-3; give 1 to 1024"),
        (10**9, ValueError, "1000000000; give 1 to 1024"),
    ],
)
def test_a_number_that_is_none_is_refused(number, error, message):
    before = threads.get_num_threads()
    with pytest.raises(error, match=message):
        threads.set_num_threads(number)
    assert threads.get_num_threads() == before


@pytest.mark.parametrize("text", ["0", "-1", "two", "2.5", "1e1", "²", "99999", "1_0"])
def test_a_variable_that_is_no_number_is_refused_by_name(monkeypatch, text):
    monkeypatch.setenv(threads.VARIABLE, text)
    with pytest.raises(ValueError, match=f"^{threads.VARIABLE}.*{text.strip('-')}.*1 to 1024"):
        threads.get_num_threads()


@pytest.mark.parametrize(
    ("text", "affinity", "limit", "expected"),
    [
        ("6", 2, 1, 6),
        (" 3 ", 2, None, 3),
        ("", 4, None, 4),
        ("", 4, 2, 2),
        ("", 2, 8, 2),
        ("", 2000, None, 1024),
    ],
)
def test_the_variable_then_affinity_and_the_control_group_decide(monkeypatch, text, affinity, limit, expected):
    monkeypatch.setenv(threads.VARIABLE, text)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(affinity))
    monkeypatch.setattr(threads, "cgroup_limit", lambda: limit)
    assert threads.get_num_threads() == expected


@pytest.mark.parametrize(
    ("membership", "files", "limit"),
    [
        (None, {}, None),
        ("0::/\n", {}, None),
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 2),
        ("0::/\n", {"cpu.max": "max 100000\n"}, None),
        ("0::/a/b\n", {"a/cpu.max": "300000 100000", "a/b/cpu.max": "max 100000"}, 3),
        ("0::/a/b\n", {"a/cpu.max": "300000 100000", "a/b/cpu.max": "50000 100000"}, 1),
        ("0::/a/b\n", {"a/c/cpu.max": "50000 100000"}, None),
        ("0::/../outside\n", {"cpu.max": "400000 100000"}, 4),
        (
            "4:cpu,cpuacct:/d\n",
            {"cpu,cpuacct/d/cpu.cfs_quota_us": "250000", "cpu,cpuacct/d/cpu.cfs_period_us": "100000"},
            3,
        ),
        ("4:cpu:/gone\n", {"cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000"}, 2),
        ("4:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ("4:cpuset:/d\n", {"cpuset/d/cpu.cfs_quota_us": "100000", "cpuset/d/cpu.cfs_period_us": "100000"}, None),
        ("nonsense\n\n::\n", {"cpu.max": "what is this"}, None),
        ("0::/\n", {"cpu.max": "0 0"}, None),
    ],
)
def test_control_groups_limit_the_threads(tmp_path, membership, files, limit):
    root = tmp_path / "cgroup"
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    if membership is not None:
        (tmp_path / "membership").write_text(membership)
    assert threads.cgroup_limit(root, tmp_path / "membership") == limit
