"""Jobs and the thread pool: every unit once, every slot one thread's, and nothing left running, however a job ends."""

import os
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
import pytest

from gradspec.codegen import intrinsics, objects
from gradspec.codegen.cache import KERNEL_TYPE, undefined_symbols
from gradspec.codegen.records import address, function_address
from gradspec.runtime import threads
from gradspec.runtime.job import Steps, encode_step
from gradspec.runtime.kernels import scheduler
from patience import PATIENCE
from runtime.recording import Recorder

STRIDE = 64
FOLDERS = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(FOLDERS)}


@pytest.fixture(autouse=True)
def pool_of_the_test(monkeypatch):
    """A pool and a number of threads of the test's own."""
    pool = threads._Pool()
    monkeypatch.setattr(threads, "_pool", pool)
    monkeypatch.setattr(threads, "_chosen", None)
    threads._default.cache_clear()
    yield pool
    pool.close()
    assert not any(worker.thread.is_alive() for worker in (*pool.workers, *pool.stopped))
    threads._default.cache_clear()


class Noted:
    """A kernel in Python that notes its chunks, and the threads that carry them out."""

    def __init__(self, meeting=None):
        """Threads wait for each other in their first chunk, if there is a meeting."""
        self.meeting, self.chunks, self.threads, self.slots = meeting, [], set(), set()
        self.kernel = KERNEL_TYPE(self)

    def __call__(self, args, lo, hi, workspace):
        is_new = threading.get_ident() not in self.threads
        self.chunks.append((lo, hi))
        self.threads.add(threading.get_ident())
        self.slots.add(workspace)
        if is_new and self.meeting:
            self.meeting.wait(PATIENCE)

    @property
    def sizes(self):
        return [hi - lo for lo, hi in self.chunks]


# --- every unit once --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("units", [0, 1, 2, 3, 7, 16, 33, 1000, 10_007])
@pytest.mark.parametrize("count", [1, 2, 3, 8, 40])
def test_every_unit_is_done_once_in_a_slot_of_its_own(units, count):
    record = Recorder(units)
    record.run(count)
    assert record.counts == [1] * units
    assert not record.shared


@pytest.mark.parametrize("count", [2, 4])
def test_work_is_shared_by_as_many_threads_as_asked(count):
    noted = Noted(threading.Barrier(count))
    threads.run(noted.kernel, 0, 100, workspace=1 << 20, stride=STRIDE, threads=count)
    assert len(noted.threads) == count
    assert noted.slots == {(1 << 20) + STRIDE * slot for slot in range(count)}
    assert threading.get_ident() in noted.threads


@pytest.mark.parametrize(
    ("units", "count", "cost", "least", "most"),
    [
        (64, 1, 3e6 * 64, 1, 3),  # Ctrl-C is answered after some 10 ms
        (64, 2, 3e6 * 64, 1, 3),
        (16, 2, 1e6, 1, 4),  # large units are handed out one at a time in the end
        (1_000_000, 1, 1e6, 1_000_000, 1_000_000),
        (1_000_000, 2, 1e6, 5_000, 250_000),  # a chunk is worth some µs
        (1_000_000, 8, 1e3, 1_000_000, 1_000_000),  # tiny work is not cut
        (1_000_000, 8, 12e3, 416_666, 583_334),
        (10, 4, 0.0, 10, 10),
    ],
)
def test_chunks_are_neither_long_nor_tiny(units, count, cost, least, most):
    noted = Noted()
    threads.run(noted.kernel, 0, units, threads=count, cost=cost)
    assert sum(noted.sizes) == units
    assert max(noted.sizes) <= most
    assert min(noted.sizes) >= least


@pytest.mark.parametrize(("units", "count"), [(8, 2), (9, 2), (16, 4), (64, 4), (13, 3)])
def test_large_units_of_equal_cost_are_shared_evenly(units, count):
    """Unless the machine keeps a thread waiting, which it does not do every time."""

    def largest_share():
        shares = Counter()

        def slow(args, lo, hi, workspace):
            shares[threading.get_ident()] += hi - lo
            time.sleep(0.01 * (hi - lo))

        threads.run(KERNEL_TYPE(slow), 0, units, threads=count, cost=1e7 * units)
        return max(shares.values())

    assert any(largest_share() <= -(-units // count) + 1 for _ in range(50))


# --- steps ------------------------------------------------------------------------------------------------------------


def job_of(records, count):
    steps = Steps(len(records))
    for i, record in enumerate(records):
        steps.put(i, encode_step(function_address(record.kernel), address(record.args), record.units, record.cost))
    return steps.job(threads=count)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_step_begins_when_the_one_before_is_done(count):
    order, lock = [], threading.Lock()

    def noting(number):
        def kernel(args, lo, hi, workspace):
            with lock:
                order.append((number, "begin"))
            time.sleep(0.0003 * (lo % 3))
            with lock:
                order.append((number, "end"))

        return KERNEL_TYPE(kernel)

    kernels, steps = [noting(number) for number in range(6)], Steps(6)
    for i, kernel in enumerate(kernels):
        steps.put(i, encode_step(function_address(kernel), 0, 3 * i, 1e9))
    threads.carry_out(steps.job(threads=count), threads=count)
    numbers = [number for number, _ in order]
    assert numbers == sorted(numbers)
    assert Counter(numbers) == {i: 2 * 3 * i for i in range(1, 6)}


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("units", [[], [0], [0, 0, 3], [7, 0, 1, 50, 0], [1] * 40, [1000, 1, 1000]])
def test_every_unit_of_every_step_is_done_once(units, count):
    records = [Recorder(n) for n in units]
    room = np.zeros(STRIDE * count, np.uint8)
    threads.carry_out(job_of(records, count), address(room), STRIDE, count)
    for record in records:
        assert record.counts == [1] * record.units
        assert not record.shared


def test_a_part_of_the_steps_can_be_carried_out():
    records, steps = [Recorder(4) for _ in range(4)], Steps(4)
    for i, record in enumerate(records):
        steps.put(i, encode_step(function_address(record.kernel), address(record.args), 4, 0.0))
    threads.carry_out(steps.job(1, 3))
    assert [sum(record.counts) for record in records] == [0, 4, 4, 0]
    threads.carry_out(steps.job(0, 1))
    threads.carry_out(steps.job(3))
    assert [record.counts for record in records] == [[1] * 4] * 4


def test_a_thread_keeps_to_its_part_of_all_steps():
    """What it made in one step it reads in the next. Here both threads are there all the time."""
    steps, together, own = Steps(8), threading.Barrier(2), {}

    def kernel(args, lo, hi, workspace):
        own.setdefault(threading.get_ident(), set()).update(range(lo, hi))
        together.wait(PATIENCE)

    called = KERNEL_TYPE(kernel)
    for i in range(8):
        steps.put(i, encode_step(function_address(called), 0, 2, 1e9))
    threads.carry_out(steps.job(threads=2), threads=2)
    assert sorted(own.values(), key=min) == [{0}, {1}]


def test_one_thread_asks_no_other(pool_of_the_test):
    record = Recorder(1000)
    record.run(1)
    assert pool_of_the_test.workers == []


@pytest.mark.parametrize(
    ("triple", "machine"),
    [
        ("x86_64-unknown-linux-gnu", "x86_64"),
        ("aarch64-unknown-linux-gnu", "aarch64"),
        ("arm64-apple-macosx13", "arm64"),
        ("riscv64-unknown-linux-gnu", "riscv64"),
    ],
)
@pytest.mark.parametrize("name", ["job", "serve"])
def test_jobs_are_compiled_for_every_processor(monkeypatch, triple, machine, name):
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    monkeypatch.setattr(intrinsics.platform, "machine", lambda: machine)
    features = "+a,+m" if machine == "riscv64" else ""
    code = objects.compiled(scheduler.build(name), llvm.Target.from_triple(triple), "", features)
    waking = {"pthread_mutex_lock", "pthread_mutex_unlock", "pthread_cond_signal", "pthread_cond_wait"}
    assert undefined_symbols(code) <= {"clock_gettime", "sched_yield", "nanosleep", *waking}


# --- many callers ---------------------------------------------------------------------------------------------------


def test_many_callers_at_once_never_meet():
    records = [Recorder(50, nanoseconds=200_000) for _ in range(64)]
    with ThreadPoolExecutor(32) as callers:
        list(callers.map(lambda record: record.run(4), records))
    assert all(record.counts == [1] * 50 and not record.shared for record in records)


def test_a_job_inside_a_job_is_done():
    inner = [Recorder(20) for _ in range(8)]

    def outer(args, lo, hi, workspace):
        for i in range(lo, hi):
            inner[i].run(3)

    threads.run(KERNEL_TYPE(outer), 0, 8, threads=3)
    assert all(record.counts == [1] * 20 for record in inner)


def test_callers_do_not_wait_for_busy_workers():
    """The only worker is held by one job; another one is done without it, again and again."""
    held, release = threading.Event(), threading.Event()

    def hold(args, lo, hi, workspace):
        if workspace:
            held.set()
        release.wait(PATIENCE) if workspace else held.wait(PATIENCE)

    caller = threading.Thread(target=threads.run, args=(KERNEL_TYPE(hold), 0, 2, 0, STRIDE, 2))
    caller.start()
    assert held.wait(PATIENCE)
    for _ in range(100):
        noted = Noted()
        threads.run(noted.kernel, 0, 10, stride=STRIDE, threads=2)
        assert noted.slots == {None}
    release.set()
    caller.join(PATIENCE)
    assert not caller.is_alive()


def test_no_worker_looks_at_a_job_that_is_gone(pool_of_the_test):
    """It is kept as long as one does. Workers come, begin and go in any order."""
    for units in (1, 2, 3, 8) * 500:
        job = job_of([Recorder(units)], 4)
        threads.carry_out(job, threads=4)
        held = {int(worker.slot[0]) for worker in pool_of_the_test.workers}
        assert any(job is kept for kept in pool_of_the_test.kept) or held.isdisjoint({address(job), address(job) + 1})
    assert len(pool_of_the_test.kept) < 4


def test_more_threads_than_processors_wait_without_burning_them():
    """Eight threads have one unit of half a second among them: the others sleep most of the time."""
    record = Recorder(2, nanoseconds=500_000_000)
    before = time.process_time()
    record.run(8)
    assert time.process_time() - before < 0.4


# --- what goes wrong --------------------------------------------------------------------------------------------------


def test_a_system_without_more_threads_is_served_by_the_caller(monkeypatch):
    def refused(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    noted = Noted()
    threads.run(noted.kernel, 0, 100, stride=STRIDE, threads=4)
    assert sum(noted.sizes) == 100
    assert noted.slots == {None}


def test_a_failure_to_ask_for_help_leaves_nothing_running(monkeypatch, pool_of_the_test):
    def failing(job, count):
        raise MemoryError

    monkeypatch.setattr(pool_of_the_test, "offer", failing)
    record = Recorder(100)
    with pytest.raises(MemoryError):
        record.run(2)
    assert record.counts == [0] * 100


# --- processes: signals, fork, spawn, exit ----------------------------------------------------------------------------

PRELUDE = """
import atexit, os, signal, sys, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are started without it
at_exit = []
atexit.register(lambda: [function() for function in at_exit])  # the last to be called: the pool comes later
from gradspec.runtime import threads
from runtime.recording import Recorder
def whole(count=4):
    record = Recorder(1000)
    record.run(count)
    return record.counts == [1] * 1000
def workers():
    return sum(thread.name == "gradspec" for thread in threading.enumerate())
slow = Recorder(100_000, nanoseconds=5_000_000)
def begun(record):
    while not any(record.counts): time.sleep(0.001)
def press(record, times=1):
    begun(record)
    pressed.append(sum(record.counts))
    for _ in range(times):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.001)
pressed = []
def interrupt(*arguments):
    threading.Thread(target=press, args=arguments).start()
"""

SCRIPTS = {
    "one Ctrl-C": """
try:
    interrupt(slow)
    slow.run(4)
except KeyboardInterrupt:
    print(slow.running, sum(slow.counts) - pressed[0] < 5_000, whole())
""",
    "Ctrl-C in one thread": """
try:
    interrupt(slow)
    slow.run(1)
except KeyboardInterrupt:
    print(slow.running, sum(slow.counts) - pressed[0] < 1_000, whole())
""",
    "Ctrl-C in the middle of many steps": """
from gradspec.runtime.job import Steps, encode_step
from gradspec.codegen.records import address, function_address
records = [Recorder(3, nanoseconds=1_000_000) for _ in range(2000)]
steps = Steps(2000)
for i, record in enumerate(records):
    steps.put(i, encode_step(function_address(record.kernel), address(record.args), 3, 1e9))
try:
    interrupt(records[20])
    threads.carry_out(steps.job(threads=2), threads=2)
except KeyboardInterrupt:
    left = sum(record.running for record in records)
    done = [sum(record.counts) for record in records]
    time.sleep(0.1)
    again = [sum(record.counts) for record in records]
    print(left, done == again == sorted(done, reverse=True) and 0 < sum(done) < 6000, whole())
""",
    "many Ctrl-C": """
is_over = False
def unless_over(*_):
    if not is_over: raise KeyboardInterrupt
signal.signal(signal.SIGINT, unless_over)
try:
    interrupt(slow, 50)
    slow.run(4)
except KeyboardInterrupt:
    is_over = True
print(slow.running, is_over, whole())
""",
    "a signal handler that uses the pool": """
class Enough(Exception): pass
def answer(*_):
    answers.append(whole())
    if len(answers) == 3: raise Enough
signal.signal(signal.SIGUSR1, answer)
answers = []
def ask():
    for number in range(3):
        while len(answers) < number or not slow.running: time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGUSR1)
threading.Thread(target=ask).start()
try:
    slow.run(2)
except Enough:
    print(slow.running, answers == [True] * 3, whole())
""",
    "a signal handler while the pool grows": """
answers, start = [], threading.Thread.start
def interrupted(self):
    if not answers:
        answers.append(None)
        answers[0] = whole()
    start(self)
threading.Thread.start = interrupted
print(0, whole(), answers == [True])
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
records = [Recorder(60, nanoseconds=5_000_000) for _ in range(4)]
callers = [threading.Thread(target=record.run, args=(4,)) for record in records]
for caller in callers: caller.start()
statuses = []
for _ in range(5):
    time.sleep(0.02)
    child = os.fork()
    if child == 0:
        os._exit(0 if whole() and workers() == 3 else 1)
    statuses.append(os.waitpid(child, 0)[1])
for caller in callers: caller.join()
print(sum(record.running for record in records), statuses == [0] * 5, whole())
""",
    "exit in the middle": """
threading.Thread(target=slow.run, args=(4,), daemon=True).start()
begun(slow)
at_exit.append(lambda: print(0, 0 < sum(slow.counts) < 100_000, workers() == 0, flush=True))
""",
    "a job at exit": """
at_exit.append(lambda: print(0, whole(), workers() == 0, flush=True))
whole()
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
        [sys.executable, "-c", PRELUDE + script],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        env=ENVIRONMENT,
    )
    assert (finished.stdout, finished.stderr) == ("0 True True\n", "")
    assert finished.returncode == 0


def run_in_a_child(units):
    record = Recorder(units)
    record.run(2)
    return sum(record.counts)


SPAWN = """
import multiprocessing
from runtime.test_threads import run_in_a_child
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        print(pool.map(run_in_a_child, [100, 200]))
"""


def test_spawned_processes_have_pools_of_their_own(tmp_path):
    script = tmp_path / "spawn.py"
    script.write_text(SPAWN)
    finished = subprocess.run([sys.executable, script], capture_output=True, text=True, env=ENVIRONMENT, check=True)
    assert finished.stdout == "[100, 200]\n"


# --- how many ---------------------------------------------------------------------------------------------------------


def test_the_pool_follows_the_number_of_threads(pool_of_the_test):
    started = set()
    for count, workers in ((4, 3), (2, 1), (3, 2), (1, 0)):
        threads.set_num_threads(count)
        Recorder(100).run(threads.get_num_threads())
        kept = {worker.thread for worker in pool_of_the_test.workers}
        for thread in started - kept:
            thread.join(PATIENCE)
        started |= kept
        assert sum(thread.is_alive() for thread in started) == len(kept) == workers


def test_worker_slots_are_used_again(pool_of_the_test):
    for _ in range(20):
        threads.set_num_threads(3)
        Recorder(100).run(3)
        threads.set_num_threads(1)
        for worker in pool_of_the_test.stopped:
            worker.thread.join(PATIENCE)
    assert len(pool_of_the_test.stopped) == 2


def test_workers_start_when_they_are_first_needed(pool_of_the_test):
    threads.set_num_threads(8)
    Recorder(100).run(1)
    Recorder(1).run(8)
    assert pool_of_the_test.workers == []
    Recorder(3).run(8)
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
