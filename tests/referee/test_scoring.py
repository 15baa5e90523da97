"""Scores of objects and files, campaigns that go on, times by a clock that tests set, and work of libraries."""

import json
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import gradspec as gs
from gradspec.cli import main
from gradspec.conformance.campaign.isolated import TargetError
from gradspec.conformance.model.codec import decode, encode
from gradspec.referee import campaign, scoring, timing
from gradspec.referee.campaign import OutcomeFile, Submission, referee
from gradspec.referee.command import outcome_page
from gradspec.referee.formats import ProblemSource, load_objects, load_problem
from gradspec.referee.own_work import Dispatched, Policy, find_fallbacks, forbidden_by
from gradspec.referee.recording import record
from gradspec.referee.scoring import (
    RefereeFinding,
    Score,
    ScoreSettings,
    close_judges,
    judge_solution,
    score,
    score_solution,
)
from gradspec.spec.errors import FormatError
from gradspec.system.forking import CAN_FORK
from gradspec.system.hosting import ChannelError, HostLostError, HostServer, KernelHost, LeftBehindError
from gradspec.system.processes import ProcessLostError

HERE = Path(__file__).parent
RELU = "import gradspec as gs\n\n\ndef reference(x):\n    return gs.relu(x)\n"
KERNEL = "import numpy as np\n\n\ndef kernel(x):\n    return np.maximum(x, 0)\n"
needs_copies = pytest.mark.skipif(not CAN_FORK, reason="kernels are judged in copies of a process")


@pytest.fixture
def problem(tmp_path, monkeypatch):
    """A problem in a module, and two solutions in files."""
    (tmp_path / "relu_problem.py").write_text(RELU)
    (tmp_path / "solutions").mkdir()
    (tmp_path / "solutions" / "good.py").write_text(KERNEL)
    (tmp_path / "solutions" / "bad.py").write_text(KERNEL.replace("np.maximum(x, 0)", "x"))
    monkeypatch.syspath_prepend(tmp_path)
    yield ProblemSource("own", "relu_problem:reference", "f32[4,6]")
    close_judges()


@pytest.fixture
def server():
    """Of hosts."""
    made = HostServer(["numpy"])
    yield made
    made.close()


@needs_copies
@pytest.mark.parametrize(
    ("error", "cause", "rule"),
    [
        (LeftBehindError("python"), None, "left_behind"),
        (ChannelError("x"), None, "channel"),
        (HostLostError(9), None, "crash"),
        (TargetError("cases could not be planned"), ProcessLostError("ended", -9), "crash"),
        (TargetError("could not be started"), ProcessLostError("gave no answer"), "hang"),
    ],
    ids=["left", "said", "lost", "lost while it is planned", "silent"],
)
def test_what_a_kernel_does_outside_of_a_case_is_a_finding(error, cause, rule, problem, server, monkeypatch):
    def raising(*_, **__):
        raise error from cause

    monkeypatch.setattr(scoring, "check", raising)
    score = judge_solution(str(HERE / "honest" / "plain.py"), load_problem(problem), ScoreSettings(), server)
    assert (score.verdict, [finding.rule for finding in score.findings]) == ("fail", [rule])


ENDING = """import os

HOST, CALLS = os.getpid(), []


def kernel(x):
    CALLS.append(True)
    if len(CALLS) == {number}:
        os.kill(HOST, 9)
    return 2 * x
"""


@needs_copies
@pytest.mark.parametrize("number", [8, *(pytest.param(n, marks=pytest.mark.exhaustive) for n in (1, 4, 20))])
def test_a_host_that_a_call_ends_is_a_finding(number, problem, server, tmp_path):
    """While cases are judged, and while what was found is put into words."""
    (tmp_path / "ending.py").write_text(ENDING.format(number=number))
    settings = ScoreSettings(seed=1, cases=1, fail_fast=True)
    score = judge_solution(str(tmp_path / "ending.py"), load_problem(problem), settings, server)
    assert (score.verdict, score.error) == ("fail", "")
    assert score.findings


def test_a_server_that_has_ended_is_replaced(problem, server):
    server._control.shutdown(socket.SHUT_RDWR)
    settings = ScoreSettings(seed=1, cases=4)
    assert judge_solution(str(HERE / "honest" / "plain.py"), load_problem(problem), settings, server).verdict == "fail"
    one = KernelHost("math", server=server)
    assert one.facts["name"] == "math"
    one.close()


@needs_copies
@pytest.mark.exhaustive
def test_a_mistake_of_the_judge_decides_nothing(problem, tmp_path):
    settings = ScoreSettings(seed=1, cases=4, timed=True, rounds=0)
    found = score_solution(problem, str(tmp_path / "solutions" / "good.py"), settings)
    assert (found.verdict, found.error.partition(":")[0]) == ("undecided", "StatisticsError")


# --- scores -----------------------------------------------------------------------------------------------------------


def test_a_score_is_data():
    finding = RefereeFinding("state", "It depends", "0, expected 1")
    measured = timing.MeasuredTime(0.5, 0.4, 0.6, 9)
    given = Score("pass", (finding,), 3, 1.5, times=timing.Times(measured, timing.MeasuredTime(1.0, 1, 1, 9)), seed=7)
    assert decode(Score, json.loads(json.dumps(encode(given))), "score") == given
    assert given.score == 2.0
    assert Score("fail", times=given.times).score == 0.0


def test_names_and_objects_are_not_mixed():
    with pytest.raises(ValueError, match="both by name, or both as objects"):
        score("kernel.py", lambda x: gs.relu(x), "f32[4]")
    with pytest.raises(ValueError, match="no_reference"):
        score(np.abs, lambda x: gs.relu(x), "f32[4]", own_work="mine")
    with pytest.raises(FormatError, match="not its own to choose"):
        score(np.abs, lambda x: gs.relu(x), lambda rng: [rng.standard_normal(3)])


@needs_copies
@pytest.mark.exhaustive
def test_problems_that_fail_are_errors_of_theirs_alone(tmp_path):
    files = {
        "raises": "raise RuntimeError('no')",
        "exits": "import os\nos._exit(0)",
        "forges": 'print(\'{"types": "", "score": {"verdict": "pass"}}\', flush=True)\nraise SystemExit',
    }
    for name, text in files.items():
        (tmp_path / f"{name}.py").write_text(f"{text}\n")
        source = ProblemSource("kernelbench", str(tmp_path / f"{name}.py"))
        for _ in range(2):  # nor does the next solution suffer from the end of its process
            found = score_solution(source, "solution.py", ScoreSettings())
            assert (found.verdict, found.score) == ("error", 0.0)
            assert name in found.error
    close_judges()


@needs_copies
@pytest.mark.exhaustive
def test_a_problem_that_loops_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr("gradspec.referee.scoring.STARTING", 3.0)
    (tmp_path / "loops.py").write_text("while True: pass\n")
    found = score_solution(ProblemSource("kernelbench", str(tmp_path / "loops.py")), "s.py", ScoreSettings())
    assert found.verdict == "error"
    assert "gave no answer" in found.error
    close_judges()


# --- campaigns --------------------------------------------------------------------------------------------------------


@needs_copies
def test_a_folder_is_a_campaign_that_goes_on(problem, tmp_path, monkeypatch):
    arguments = ["referee", "relu_problem:reference", str(tmp_path / "solutions"), "--inputs", "f32[4,6]"]
    arguments += ["--cases", "8", "--seed", "1", "--jobs", "1", "--output", str(tmp_path / "scores.jsonl")]
    done = CliRunner().invoke(main, [*arguments, "--html", str(tmp_path / "scores.html")])
    assert done.exit_code == 1, done.output
    lines = [json.loads(line) for line in (tmp_path / "scores.jsonl").read_text().splitlines()]
    assert [(Path(line["solution"]).name, line["result"]["verdict"], line["score"]) for line in lines] == [
        ("bad.py", "fail", 0.0),
        ("good.py", "pass", 1.0),
    ]
    assert "good.py" in (tmp_path / "scores.html").read_text()
    monkeypatch.setattr(campaign, "score_task", None)  # nothing is judged again
    again = CliRunner().invoke(main, arguments)
    assert again.exit_code == 1
    assert "2/2  pass" in again.output


def passed(source, solution, settings, attempt=0):
    return encode(Score("pass", cases=attempt))


def test_lost_tasks_are_tried_again(monkeypatch):
    losses = []

    def lose(*arguments):
        losses.append(arguments)
        if len(losses) < 3:
            raise ConnectionError("the worker is gone")
        return passed(*arguments)

    monkeypatch.setattr(campaign, "score_task", lose)
    with ThreadPoolExecutor(1) as executor:
        (outcome,) = referee([Submission(ProblemSource("own", "m:f"), "k.py")], executor=executor, jobs=1)
    assert (outcome.score.verdict, outcome.score.cases) == ("pass", 2)


@needs_copies
@pytest.mark.exhaustive
@pytest.mark.filterwarnings("default")  # of the cluster's own making
def test_a_cluster_of_dask_scores_a_folder(problem, tmp_path):
    distributed = pytest.importorskip("distributed")
    files = sorted(str(file) for file in (tmp_path / "solutions").glob("*.py"))
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=50, memory_limit=0
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        client.run(sys.path.insert, 0, str(tmp_path))
        submissions = [Submission(problem, file) for file in files]
        settings = ScoreSettings(seed=1, cases=8, seconds=20.0)
        scores = [one.score for one in referee(submissions, settings, executor=client.get_executor())]
        client.run(close_judges)
    assert [(one.verdict, one.error) for one in scores] == [("fail", ""), ("pass", "")]


def test_lines_are_known_by_contents_and_settings(tmp_path):
    solution, file = tmp_path / "k.py", tmp_path / "scores.jsonl"
    solution.write_text("1")
    one = Submission(ProblemSource("own", "m:f"), str(solution))
    OutcomeFile(file, ScoreSettings()).add(one, Score("pass"))
    file.write_text(file.read_text() + '{"cut')  # its writer was stopped
    kept = OutcomeFile(file, ScoreSettings())
    assert kept.key(one) in kept.scores
    assert OutcomeFile(file, ScoreSettings(cases=9)).key(one) not in kept.scores
    solution.write_text("2")
    assert kept.key(one) not in kept.scores
    for other in ("{}", "[]", "5", "{", '{"key": "a", "result": 5}', "[" * 200_000):
        file.write_text(f"{other}\n")
        with pytest.raises(FormatError, match="line 1"):
            OutcomeFile(file, ScoreSettings())


def test_a_page_escapes_what_kernels_say():
    found = Score("fail", (RefereeFinding("raised", "<script>alert(1)</script>"),))
    page = outcome_page([campaign.SolutionScore(Submission(ProblemSource("own", "m:f"), "k.py"), found)])
    assert "<script>alert" not in page
    assert "&lt;script&gt;" in page


# --- times ------------------------------------------------------------------------------------------------------------


class FakeCall:
    """Something that takes so long by a clock that it moves itself."""

    def __init__(self, clock, seconds, late=0.0, wrong=False, replaced=()):
        self.clock, self.seconds, self.late, self.wrong, self.names = clock, seconds, late, wrong, list(replaced)
        self.seen = []

    def load(self, arrays):
        self.arrays = arrays
        self.seen.append(arrays[0].tobytes())

    def call(self):
        self.clock.now += self.seconds

    def settle(self):
        return self.late

    def results(self):
        return [np.maximum(self.arrays[0], 0) + np.float32(self.wrong)]

    def replaced(self):
        return self.names


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def times_of(floor=0.0, **kernel):
    clock = Clock()
    contenders = {"kernel": FakeCall(clock, **{"seconds": 1.0, **kernel}), "eager": FakeCall(clock, 3.0)}
    contenders["compiled"] = FakeCall(clock, 2.0)
    loaded = load_objects(lambda x: gs.relu(x), "f32[4,6]")
    found = timing.time_calls(contenders, loaded, ScoreSettings(rounds=5), clock, floor)
    assert len(set(contenders["kernel"].seen)) == 5  # other numbers each time
    return found


def test_a_time_is_the_median_beside_the_faster_reference():
    found = times_of()
    assert (found.kernel.median, found.eager.median, found.compiled.median) == (1.0, 3.0, 2.0)
    assert found.speedup == 2.0
    assert found.findings == ()


@pytest.mark.parametrize(
    ("kernel", "rule"),
    [
        ({"late": 0.5}, "time.late"),
        ({"wrong": True}, "time.result"),
        ({"replaced": ["time.time"]}, "time.replaced"),
        ({"floor": 3.0}, "time.floor"),
    ],
)
def test_a_time_that_is_not_true_is_a_finding(kernel, rule):
    found = times_of(**kernel)
    assert [finding[0] for finding in found.findings] == [rule]


def test_late_work_is_counted():
    assert times_of(late=0.5).kernel.median == 1.5


def test_the_rates_of_this_device_are_positive():
    copied, multiplied = timing.device_rates("cpu")
    assert copied > 0
    assert multiplied > 0


# --- own work ---------------------------------------------------------------------------------------------------------

SOFTMAX = Dispatched({"aten._softmax": 1, "aten.addmm": 2}, {"aten._softmax": 8.0, "aten.addmm": 64.0})
OTHER = Dispatched({"aten.addmm": 2, "aten.exp": 1}, {"aten.exp": 8.0, "aten.addmm": 64.0})


@pytest.mark.parametrize(
    ("policy", "ours", "fallbacks", "said"),
    [
        (Policy("any"), SOFTMAX, ["line 3: torch.softmax"], []),
        (Policy("no_reference"), SOFTMAX, [], ["It dispatches the operators of the reference"]),
        (Policy("no_reference"), OTHER, [], []),
        (Policy("none_of", ("addmm",)), OTHER, [], ["It dispatches operators that are not allowed"]),
        (Policy("none_of", ("mm",)), OTHER, [], []),
        (Policy("no_reference"), OTHER, ["line 3"], ["It falls back to a library where its own code raises"]),
        (Policy("no_reference"), Dispatched(how="not observed: it ended"), (), ["It lets nobody observe its work"]),
        (Policy("any"), Dispatched(how="not observed: it ended"), (), []),
    ],
)
def test_a_policy_forbids_what_it_says(policy, ours, fallbacks, said):
    assert [sentence for sentence, _ in forbidden_by(policy, ours, SOFTMAX, fallbacks)] == said


@pytest.mark.exhaustive
def test_primitives_of_jax_are_seen():
    jax = pytest.importorskip("jax")
    seen = record(jax.jit(lambda x: jax.numpy.tanh(x @ x.T)), "jax", "cpu", [np.ones((4, 6), np.float32)])
    assert {"dot_general", "tanh"} <= set(seen["operators"])


@pytest.mark.exhaustive
def test_where_the_process_of_a_problem_cannot_be_copied_references_have_processes_of_their_own(monkeypatch):
    """As on a GPU, whose driver is open once the problem was read."""
    monkeypatch.setattr(scoring, "unforkable", lambda: "a GPU is in use here")
    problem = load_problem(ProblemSource("kernelbench", str(HERE / "kernelbench_mlp.py")))
    settings = ScoreSettings(seed=1, cases=4, seconds=20.0, timed=True, rounds=3, own_work=Policy("no_reference"))
    server = HostServer(["numpy", "torch"])
    judged = judge_solution(str(HERE / "honest" / "torch_module.py"), problem, settings, server)
    server.close()
    assert (judged.verdict, judged.notes) == ("pass", ())
    assert judged.times.kernel.calls == judged.times.eager.calls == judged.times.compiled.calls == 3
    assert "aten.relu" in judged.own_work.operators


def test_what_was_asked_for_and_cannot_be_done_is_said(monkeypatch):
    monkeypatch.setattr(scoring, "unforkable", lambda: "a GPU is in use here")
    result = score(lambda x: np.maximum(x, 0), lambda x: gs.relu(x), "f32[8,16]", cases=4, own_work=True, timed=True)
    said = ("its own work was not observed: a GPU is in use here", "it was not timed: a GPU is in use here")
    assert (result.verdict, result.notes) == ("pass", said)


def test_calls_of_numpy_are_said_not_to_be_observed():
    assert "NumPy" in record(np.abs, "numpy", "cpu", [])["how"]


def test_only_handlers_that_compute_are_fallbacks():
    source = "try:\n    f()\nexcept KeyError as error:\n    raise ValueError(str(error))\n"
    assert list(find_fallbacks(source)) == []
    assert list(find_fallbacks("def f(:")) == []


def test_a_kernel_that_sleeps_meets_too_few_cases_to_pass():
    def sleeping(x):
        time.sleep(0.5)
        return np.asarray(gs.softmax(x, axis=-1))

    score = gs.referee.score(sleeping, lambda x: gs.softmax(x, axis=-1), "f32[4,8]", cases=400, seconds=1.0, seed=1)
    assert (score.verdict, score.score, score.findings) == ("undecided", 0.0, ())
    assert "of 400 cases were tried in 1 s, too few to decide; allow more --seconds" in score.notes[-1]
