"""Campaigns: every case once, whatever the executor loses; crashes and hangs that are findings; the same run again."""

import multiprocessing
import os
import random
import threading
import time
from collections import Counter
from concurrent.futures import Executor, Future, InvalidStateError, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import closing, suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

import gradspec as gs
from conformance import kernel_doubles
from gradspec.conformance.campaign import drive as driving
from gradspec.conformance.campaign import drive as findings
from gradspec.conformance.campaign import isolated
from gradspec.conformance.campaign.check import Campaign
from gradspec.conformance.campaign.drive import BatchPlan, Drive, Ledger
from gradspec.conformance.campaign.isolated import TargetError
from gradspec.conformance.campaign.local import KEPT, InProcess, limit_duplicates
from gradspec.conformance.campaign.request import CampaignBudget
from gradspec.conformance.cases.data import drawn
from gradspec.conformance.cases.stream import Stream
from gradspec.conformance.checks.probes import NO_TIME
from gradspec.conformance.model.case import CampaignSettings, CheckCase, Selection
from gradspec.conformance.model.codec import decode, encode
from gradspec.conformance.model.problem import Call, Problem
from gradspec.conformance.model.run import Batch, Judged
from gradspec.conformance.model.verdict import Failure, Verdict
from gradspec.conformance.report.words import too_few
from gradspec.conformance.targets.user.target import UserKernels
from gradspec.system import processes
from patience import PATIENCE

POOLS = {"ops": ["max_pool"], "modes": ["value"], "dtypes": ["f32"], "ranks": [1, 2]}
SELECTION = Selection(("max_pool",), (), ("value",), ("f32",), (1, 2))


def double(name):
    return f"conformance.kernel_doubles:{name}"


def summary(run):
    """What two runs of the same cases have in common; shrinking ends where its time does."""
    return run.tally, sorted((f.op, f.mode, f.kind, f.rule, f.dtype, f.count) for f in run.findings)


@cache
def stream(seed):
    return Stream(seed, SELECTION, UserKernels(kernel_doubles.Right).refusal)


def first_cases(count, seed):
    """The cases of a run, made here."""
    plan = BatchPlan(lambda first, number: [stream(seed).batch(n) for n in range(first, first + number)], count)
    return [case for _, cases in iter(plan.next, None) for case in cases]


def workers():
    """Processes of targets that any thread of this process started."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                line, parent = (
                    (folder / "cmdline").read_bytes(),
                    (folder / "stat").read_text().rpartition(")")[2].split(),
                )
            except OSError:
                continue
            if b"campaign.worker" in line and int(parent[1]) == os.getpid() and parent[0] != "Z":
                found.append(int(folder.name))
    return found


# --- the same cases, however many processes ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def undisturbed():
    """A run in this process, which no executor can disturb."""
    return gs.conformance.check(kernel_doubles.Wrong, cases=33, seed=11, **POOLS)


def test_a_run_takes_exactly_the_cases_it_was_asked_for(undisturbed):
    assert undisturbed.cases == sum(undisturbed.tally.cases.values()) == 33
    expected = Counter((case.mode, feature) for case in first_cases(33, 11) for feature in case.features or {"plain"})
    found = Counter()
    for (_, mode, feature, _), number in undisturbed.tally.grid.items():
        found[mode, feature] += number
    assert found == expected
    assert undisturbed.by_kind("defect")
    assert (undisturbed.target, undisturbed.repeat) == ("Wrong", "")  # no command has this object


@pytest.mark.exhaustive
def test_processes_change_nothing(undisturbed):
    run = gs.conformance.check(double("Wrong"), cases=33, seed=11, jobs=2, **POOLS)
    assert summary(run) == summary(undisturbed)
    assert workers() == []
    assert run.repeat.endswith("--seed 11 --cases 33")


def test_another_seed_gives_other_cases(undisturbed):
    other = gs.conformance.check(kernel_doubles.Wrong, cases=33, seed=12, **POOLS)
    assert encode(other.tally) != encode(undisturbed.tally)


def test_time_ends_a_run():
    run = gs.conformance.check(kernel_doubles.Right, seconds=0.5, **POOLS)
    assert 0 < run.cases == run.tally.judged + run.tally.cases["not_offered"]
    assert run.seconds >= 0.5


# --- time, told by a clock that the kernel moves ----------------------------------------------------------------------

LIMIT, A_CASE = 400.0, 60.0
"""Calls of a kernel, each of which takes a second: those of a run, and more than those of one case."""


def conv1d(x, weight):
    windows = np.lib.stride_tricks.sliding_window_view(x, weight.shape[-1], -1).astype(np.float64)
    return np.einsum("...clk,ock->...ol", windows, weight.astype(np.float64)).astype(x.dtype)


def shifted(x, weight):
    """A wrong one: the sums stand in the wrong order."""
    return conv1d(x, weight)[..., ::-1]


def timed(kernel, starting=0.0, **budget):
    """A run of so many seconds, and the clock at the end of the first batch, after the probes and when it ended."""
    target, seconds, laps = UserKernels(kernel, op="conv1d"), [0.0], []
    run = target.run

    def slow(call):
        seconds[0] += 1.0
        return run(call)

    def watch(standing):
        laps.append((seconds[0], len(standing.run.probes)))

    target.run, target.threadsafe = slow, False  # threads go by the machine's clock
    settings = CampaignSettings("mine", 1, Selection(("conv",), (), ("value",), ("f32", "f64"), (1,)))
    clock = lambda: seconds[0]  # noqa: E731
    campaign, judge = Campaign(settings, CampaignBudget(**budget), watch, clock), InProcess(target, settings, clock)
    seconds[0] += starting
    return campaign.run_one(judge, judge), laps


def test_probes_come_after_the_first_cases_and_take_a_share_of_the_time():
    run, laps = timed(conv1d, seconds=LIMIT)
    before, after = next(seconds for seconds, _ in laps), next(seconds for seconds, probes in laps if probes)
    assert before <= 0.1 * LIMIT
    assert run.probes[-1].result == NO_TIME
    assert after < A_CASE * 8 + 0.1 * LIMIT + A_CASE


@pytest.mark.parametrize("starting", [0.0, 0.5 * LIMIT, 3 * LIMIT])
def test_a_run_keeps_its_limit_and_judges_something_however_long_it_took_to_start(starting):
    run, laps = timed(conv1d, starting, seconds=LIMIT)
    assert run.judged > 0
    assert starting <= run.starting <= starting + 0.1 * LIMIT
    assert laps[-1][0] < max(LIMIT, starting + 0.1 * LIMIT) + 0.1 * LIMIT + A_CASE
    assert ("starting took" in too_few(run)) == (run.judged < 100 and starting > 0.25 * run.seconds)


@pytest.mark.exhaustive
def test_what_shrinking_needs_is_kept_of_the_time():
    (right, laps), (wrong, sooner) = (timed(kernel, seconds=LIMIT) for kernel in (conv1d, shifted))
    judging = [seconds for seconds, _ in sooner if seconds <= LIMIT]
    assert right.judged > 0 < wrong.judged
    assert wrong.by_kind("defect")
    assert laps[-1][0] >= LIMIT > judging[-1]


def test_the_first_defect_ends_a_run_that_fails_fast():
    run = gs.conformance.check(kernel_doubles.Wrong, cases=10_000, seed=3, fail_fast=True, **POOLS)
    assert run.tally.cases["defect"] == 1
    assert run.cases < 100


def test_cases_and_settings_survive_json():
    cases = first_cases(20, 1)
    assert [decode(CheckCase, encode(case)) for case in cases] == cases
    settings = CampaignSettings("native", 3, SELECTION, ("tf32",), path=("a",))
    assert decode(CampaignSettings, encode(settings)) == settings


# --- crashes and hangs ------------------------------------------------------------------------------------------------


def deadly(cases):
    return [case.name for case in cases if kernel_doubles.is_deadly(drawn(case).inputs[0])]


@cache
def seed_with(count, cases=8):
    """A seed whose first cases hold so many deadly ones."""
    return next(seed for seed in range(200) if len(deadly(first_cases(cases, seed))) == count)


@pytest.mark.rows(1)
@pytest.mark.parametrize(
    ("name", "rule", "got", "timeout"),
    [("Crashing", "crash", "ended by SIGABRT: abandon ship", PATIENCE), ("Hanging", "hang", "no answer in ", 4.0)],
)
def test_a_crash_or_a_hang_is_a_finding_and_the_rest_goes_on(monkeypatch, name, rule, got, timeout):
    monkeypatch.setattr(isolated, "FIRST", timeout)
    monkeypatch.setattr(findings, "A_CAUSE", 3.0)
    monkeypatch.setattr("gradspec.conformance.campaign.check.PROBING", 1.0)  # which a hang takes all of, twice
    monkeypatch.setattr("gradspec.conformance.campaign.check.VERIFYING", 5.0)
    run = gs.conformance.check(double(name), cases=4, seed=seed_with(1, 4), jobs=1, timeout=timeout, **POOLS)
    defects = run.tally.cases["defect"]  # of which one case has it in a call of its own, others in a neighbour's
    assert run.tally.cases == Counter({"defect": defects, "pass": 4 - defects})
    (finding,) = run.findings
    assert (finding.kind, finding.rule, finding.count) == ("defect", rule, defects)
    assert got in finding.got
    assert kernel_doubles.is_deadly(decode(Call, finding.case).inputs[0])
    assert name in finding.reproducer
    assert workers() == []


@pytest.mark.exhaustive
def test_a_crash_is_shrunk():
    run = gs.conformance.check(double("Overrunning"), cases=1, seed=crashing_seed(), jobs=1, **POOLS)
    (finding,) = run.by_kind("defect")
    (x,) = decode(Call, finding.case).inputs
    assert (finding.rule, x.shape) == ("crash", (4,))
    assert len(set(x.tolist())) == 1
    assert "import Overrunning" in finding.reproducer


def crashing_seed():
    """A seed whose first case has a long last axis."""
    return next(seed for seed in range(200) if drawn(first_cases(1, seed)[0]).inputs[0].shape[-1] > 5)


def the_deadly_one_and_others():
    """As JSON."""
    cases = first_cases(8, seed_with(1))
    (name,) = deadly(cases)
    return [encode(case) for case in sorted(cases, key=lambda case: case.name != name)]


@pytest.fixture
def mark(monkeypatch):
    """A file that is made when a kernel asks for it (`kernel_doubles.leave`), whose process can write none that others
    see: it takes the folder's name."""
    with TemporaryDirectory() as folder:
        file, is_over, known = Path(folder, "mark"), threading.Event(), set()

        def make():
            while not is_over.wait(0.01):
                asking = {process for process in Path("/proc").glob("[0-9]*") if is_named(process, Path(folder).name)}
                if asking - known:
                    file.touch()
                known.clear()
                known.update(asking)

        monkeypatch.setenv("TEST_MARK", str(file))
        maker = threading.Thread(target=make)
        maker.start()
        yield file
        is_over.set()
        maker.join()


def is_named(process, name):
    with suppress(OSError):  # it has ended
        return (process / "comm").read_text().strip() == name
    return False


@pytest.fixture
def hangs(monkeypatch, mark):
    """Hangs so far. Nobody's patience ends but by one: the kernel says that it hangs, and time does not matter."""
    seen, is_ready = [], processes._is_ready

    def until_it_hangs(pipe, event, deadline):
        while not is_ready(pipe, event, time.monotonic() + 0.02):
            if mark.exists():
                mark.unlink()
                seen.append(mark)
                return False
        return True

    monkeypatch.setattr(processes, "_is_ready", until_it_hangs)
    monkeypatch.setattr(isolated.Isolated, "patience", 0.0)
    return seen


def test_a_hang_at_the_end_of_the_time_is_a_finding_and_ends_it(monkeypatch, hangs):
    monkeypatch.setattr(isolated, "monotonic", lambda: PATIENCE * len(hangs))
    with closing(isolated.Isolated(CampaignSettings(double("Hanging"), 1, SELECTION))) as target:
        (case,) = target.batch(0, the_deadly_one_and_others(), deadline=PATIENCE).cases
    assert (case.kind, case.failures[0].verdict.rule) == ("defect", "hang")


def test_a_batch_that_is_closed_midway_keeps_what_was_judged():
    class ClosedSoon(isolated.Isolated):
        def _judged(self, *given):
            for case in super()._judged(*given):
                threading.Timer(0.1, self.close).start()
                yield case

    hanging, right, *_ = the_deadly_one_and_others()
    target = ClosedSoon(CampaignSettings(double("Hanging"), 1, SELECTION))
    assert [case.kind for case in target.batch(0, [right, hanging]).cases] == ["pass"]


def test_who_is_killed_by_somebody_else_is_not_blamed(mark):
    assert kinds_of("Unlucky", the_deadly_one_and_others()) == ["pass"] * 8
    assert mark.exists()


def test_what_a_target_prints_is_no_verdict():
    assert kinds_of("Chatty", list(map(encode, first_cases(5, 1)))) == ["pass"] * 5


def kinds_of(name, cases):
    with closing(isolated.Isolated(CampaignSettings(double(name), 1, SELECTION))) as target:
        return [case.kind for case in target.batch(0, cases).cases]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (double("Ending"), "could not be started: the process ended with status 3"),
        (double("Absent"), "has no 'Absent'"),
        ("no_such_module:kernel", "no module 'no_such_module'"),
    ],
)
def test_a_target_that_cannot_be_judged_says_why(name, words):
    with pytest.raises(TargetError, match=words), closing(isolated.Isolated(CampaignSettings(name))) as target:
        target.versions()
    assert workers() == []


def test_a_target_that_cannot_be_started_leaves_nothing_behind():
    with pytest.raises(TargetError, match="no licence"):
        gs.conformance.check(double("Unstartable"), cases=5, jobs=1)
    assert workers() == []


def test_a_mistake_of_the_judge_is_told_and_held_against_nobody(monkeypatch):
    def mistaken(target, case, allow):
        raise ZeroDivisionError("our own")

    monkeypatch.setattr("gradspec.conformance.campaign.local.examine", mistaken)
    run = gs.conformance.check(kernel_doubles.Right, cases=3, seed=1, **POOLS)
    assert run.tally.cases == Counter({"undecided": 3})
    assert "ZeroDivisionError: our own" in run.errors[0]
    assert run.unjudged == 3


# --- Ctrl-C -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [double("Wrong"), kernel_doubles.Wrong], ids=["processes", "here"])
def test_an_interrupted_run_gives_what_it_has_and_leaves_nothing(target):
    def interrupt(progress):
        if progress.stage == "judging" and progress.run.tally.cases["defect"]:
            raise KeyboardInterrupt

    run = gs.conformance.check(target, cases=100_000, seed=1, jobs=1, progress=interrupt, **POOLS)
    assert run.interrupted
    assert 0 < run.cases < 1000
    assert run.by_kind("defect")
    assert workers() == []


def test_a_second_interrupt_leaves_findings_as_they_were_met():
    def interrupt(progress):
        if progress.stage == "shrinking":
            raise KeyboardInterrupt

    run = gs.conformance.check(kernel_doubles.Wrong, cases=8, seed=1, progress=interrupt, **POOLS)
    assert sum(finding.count for finding in run.by_kind("defect")) == run.tally.cases["defect"] > 0


def test_cases_that_can_be_planned_no_further_leave_what_was_judged(monkeypatch):
    def failing(self, first, count):
        if first:
            raise TargetError("no more")
        return planned(first, count)

    monkeypatch.setattr(isolated.Isolated, "plan", failing)
    monkeypatch.setattr(driving, "judge_batches", pretended)
    run = gs.conformance.check(double("Right"), jobs=1, **POOLS)
    assert (run.cases, run.errors) == (3, ["no more"])


# --- executors that lose what they are given --------------------------------------------------------------------------


def pretended(settings, batches, seconds, attempt=0):
    """What a task gives, without a target: some cases are wrong, and no task is ever finished with all its batches."""
    kept = list(batches.items())[: max(1, len(batches) - 1)]
    return [encode(Batch(number, tuple(map(verdict_on, cases)))) for number, cases in kept]


def verdict_on(case):
    is_wrong = (7 * case["batch"] + case["index"]) % 5 == 0
    return Judged("max_pool", "value", (), "undecided" if is_wrong else "pass")


PROBLEM = Problem("max_pool", 1, ((3,),), {"kernel_size": (2,)})


def case_of(batch, index):
    return encode(CheckCase(batch, index, PROBLEM, "value", "rounding", None, "contiguous", 0))


def planned(first, count):
    return [[case_of(number, index) for index in range(3 + number % 4)] for number in range(first, first + count)]


class Loser(Executor):
    """Runs what it is given at once, in any order; loses some, as ``losing`` says, in one way or another."""

    def __init__(self, losing, seed=0):
        self.losing, self.random, self.most, self.waiting = losing, random.Random(seed), 0, []

    def submit(self, function, *arguments):
        self.waiting.append((future := Future(), function, arguments))
        self.most = max(self.most, len(self.waiting))
        threading.Timer(0.002, self.work).start()
        return future

    def work(self):
        future, function, arguments = self.waiting.pop(self.random.randrange(len(self.waiting)))
        if self.random.random() >= self.losing:
            future.set_result(function(*arguments))
        elif self.random.random() < 0.5:
            future.set_exception(OSError("the worker is gone"))
        else:
            future.cancel()
            future.set_running_or_notify_cancel()


class Broken(Executor):
    def submit(self, function, *arguments):
        raise RuntimeError("cannot schedule new futures")


def driven(executor, most=301, **settings):
    ledger = Ledger()
    with ThreadPoolExecutor(1) as here:
        Drive(CampaignSettings("none"), executor, here, BatchPlan(planned, most), ledger, **settings).run()
    return ledger


@pytest.fixture
def without_targets(monkeypatch):
    monkeypatch.setattr(driving, "judge_batches", pretended)


@pytest.mark.parametrize("losing", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("per_task", [1, 4])
def test_nothing_is_lost_and_nothing_counted_twice(without_targets, losing, per_task):
    executor = Loser(losing)
    ledger = driven(executor, outstanding=5, batches_per_task=per_task)
    plan = BatchPlan(planned, 301)
    expected = Counter(verdict_on(case).kind for _, cases in iter(plan.next, None) for case in cases)
    assert ledger.tally.cases == expected
    assert (ledger.cases, ledger.errors) == (301, [])
    assert executor.most <= 5


def test_an_executor_that_takes_nothing_is_done_without(without_targets):
    assert driven(Broken()).cases == 301


def test_what_cannot_be_judged_anywhere_is_undecided(monkeypatch):
    def failing(settings, batches, seconds, attempt=0):
        raise TargetError("nowhere")

    monkeypatch.setattr(driving, "judge_batches", failing)
    ledger = driven(Broken(), most=12)
    assert ledger.tally.cases == Counter({"undecided": 12})
    assert "TargetError: nowhere" in ledger.errors[0]


def test_time_drops_what_has_not_begun(without_targets):
    class Never(Executor):
        def submit(self, function, *arguments):
            return Future()

    assert driven(Never(), most=None, time_left=iter([1.0] * 20 + [0.0] * 20).__next__, outstanding=8).cases == 0


class Forgetful(Executor):
    """One thread, and futures that may be cancelled at any time: they do not know that they are worked on."""

    def __init__(self):
        self.pool = ThreadPoolExecutor(1)

    def submit(self, function, *arguments):
        future = Future()

        def work():
            if not future.cancelled():
                result = function(*arguments)
                with suppress(InvalidStateError):
                    future.set_result(result)

        self.pool.submit(work)
        return future


def test_what_runs_at_the_end_of_the_time_is_waited_for_though_it_could_be_cancelled(monkeypatch):
    begun, over = threading.Event(), threading.Event()

    def slow(settings, batches, seconds, attempt=0):
        if 1 in batches:
            begun.set()
            over.wait(PATIENCE)
            time.sleep(0.2)  # in which it could be cancelled
        return pretended(settings, batches, seconds)

    def time_left():
        if begun.is_set():
            over.set()
        return 0.0 if over.is_set() else 0.05

    monkeypatch.setattr(driving, "judge_batches", slow)
    ledger = driven(Forgetful(), time_left=time_left, outstanding=3)
    assert ledger.cases == sum(map(len, planned(0, 2)))


def test_a_target_that_offers_nothing_is_asked_once():
    run = gs.conformance.check(kernel_doubles.Right, seconds=PATIENCE, ops=["conv", "fold"])
    assert run.tally.cases == Counter(not_offered=8)
    assert run.tally.not_offered == Counter({"it has no conv": 4, "it has no fold": 4})


def test_batches_are_entered_once_and_in_order():
    batches = [Batch(n, tuple(map(verdict_on, cases))) for n, cases in enumerate(planned(0, 30))]
    for seed in range(20):
        arriving = random.Random(seed).sample([*batches, *batches], 60)
        ledger = Ledger()
        for batch in arriving:
            ledger.take(batch)
        ledger.close()
        assert ledger.cases == sum(len(batch.cases) for batch in batches)
    ledger = Ledger()
    ledger.take(batches[5])
    assert ledger.cases == 0
    ledger.close()
    assert ledger.cases == len(batches[5].cases)


def failure(case, rule="value.sum", result="y"):
    call = Call(Problem("avg_pool", 1, ((3,),), {"kernel_size": (2,)}), "value", (np.zeros(3, np.float32),))
    return Failure(call, Verdict("defect", rule, result), (), case)


def test_many_alike_are_counted_and_few_are_kept():
    ledger, many = Ledger(), 200
    for number in range(many):
        kept, unkept = limit_duplicates([failure(f"{number}.0")] * 5, Counter())
        assert (len(kept), len(unkept)) == (KEPT, 5 - KEPT)
        ledger.take(Batch(number, (Judged("avg_pool", "value", (), "defect", failures=kept, unkept=unkept),)))
    ((_, kept),) = ledger.failures.items()
    assert len(kept) < many
    assert ledger.counted(kept) == many


# --- real executors ---------------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
def test_a_pool_that_loses_a_process_changes_nothing(undisturbed, tmp_path):
    pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))  # other tests may have started threads here
    killed = []

    def kill(progress):
        if progress.stage == "judging" and progress.run.cases and not killed:
            killed.append(pool.submit(kernel_doubles.kill_this_process_once, str(tmp_path / "mark")))

    with pool:
        run = gs.conformance.check(double("Wrong"), cases=33, seed=11, executor=pool, jobs=1, progress=kill, **POOLS)
    assert (tmp_path / "mark").exists()
    assert summary(run) == summary(undisturbed)


def test_a_task_is_plain_data(undisturbed):
    settings = CampaignSettings(double("Right"), 1, SELECTION, token="here")
    batches = {0: [encode(case) for case in first_cases(4, 1)]}
    with ThreadPoolExecutor(1) as pool:
        (outcome,) = pool.submit(driving.judge_batches, encode(settings), batches, 1.0).result()
        assert len(workers()) == 1
        driving.close("another campaign")
        assert len(workers()) == 1
        driving.close("here")
        assert workers() == []
    assert [case.kind for case in decode(Batch, outcome).cases] == ["pass"] * 4


# --- requests ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "options", "words"),
    [
        ("nativ", {}, "did you mean native"),
        ("x", {}, r"onnx.reference\. For kernels of your own"),
        ("native", {"ops": ["max_pol"]}, "did you mean max_pool"),
        ("native", {"features": ["tie"]}, "did you mean ties"),
        ("native", {"modes": ["gradient"]}, "choose from value, jvp, vjp, second"),
        ("native", {"ops": "max_pool"}, "as a list"),
        ("native", {"dtypes": ["float32"]}, "no dtype 'float32'"),
        ("native", {"ranks": [5]}, "no rank 5"),
        ("native", {"allow": ["tf23"]}, "did you mean tf32"),
        ("native", {"cases": 0}, "at least one"),
        ("native", {"seconds": -1.0}, "positive"),
        ("native", {"jobs": 0}, "at least one"),
        ("native", {"seed": -1}, "seed"),
        ("native", {"timeout": 0}, "timeout"),
    ],
)
def test_a_wrong_request_is_refused_before_any_work(target, options, words):
    with pytest.raises(ValueError, match=words):
        gs.conformance.check(target, **options)
