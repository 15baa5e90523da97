"""``gradspec check`` as a program: exit codes, files, and pages that any terminal can show."""

import io
import json
import re
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import replace
from itertools import product

import pytest
from click.testing import CliRunner
from rich.console import Console

from gradspec.cli import main
from gradspec.conformance import command
from gradspec.conformance.campaign.request import Progress
from gradspec.conformance.command import describe_progress, exit_code
from gradspec.conformance.judge.conventions import CONVENTIONS
from gradspec.conformance.model.case import FEATURES
from gradspec.conformance.model.codec import decode
from gradspec.conformance.model.problem import INPUTS, MODES
from gradspec.conformance.model.run import Run, Tally
from gradspec.conformance.model.verdict import RULES, Finding, Probe, Verdict, explain
from gradspec.conformance.report import html
from gradspec.conformance.report.exports import junit_text
from gradspec.conformance.report.terminal import show, show_start

POOLS = ("--ops", "max_pool", "--modes", "value", "--dtypes", "f32", "--ranks", "1,2", "--jobs", "1", "--seed", "3")
CONTRACT = {"target", "version", "machine", "seed", "cases", "seconds", "findings"}
FINDING = {"op", "mode", "kind", "features", "dtype", "case", "got", "expected", "rule", "reproducer"}


def gradspec(*arguments):
    return CliRunner().invoke(main, ["check", *map(str, arguments)])


def test_a_file_is_told_now_and_then_how_far_a_run_is(capsys):
    seconds, run = [0.0], Run("native", "", "", seed=0)
    with command._live(Console(file=io.StringIO()), lambda: seconds[0]) as watch:
        for seconds[0] in (0.0, 29.0, 31.0, 32.0, 59.0, 62.0):
            run.cases, run.seconds = int(10 * seconds[0]), seconds[0]
            watch(Progress("judging", run, 0.0))
    told = [line for line in capsys.readouterr().err.splitlines() if line]
    assert told == ["judging 310 cases  600/min", "judging 620 cases  600/min"]


def double(name):
    return f"conformance.kernel_doubles:{name}"


# --- whole runs -------------------------------------------------------------------------------------------------------


def test_a_clean_run_writes_all_it_was_asked_for(tmp_path):
    files = {option: tmp_path / f"run{option}" for option in ("--json", "--junit", "--report")}
    options = [word for option, file in files.items() for word in (option, file)]
    result = gradspec("native", "--cases", 20, "--ops", "max_pool", "--jobs", 1, "--seed", 3, *options)
    assert result.exit_code == 0, result.output
    assert "No defect found" in result.output
    assert "gradspec check native --ops max_pool --seed 3 --cases 20" in result.output
    run = json.loads(files["--json"].read_text())
    assert set(run) >= CONTRACT
    assert (run["target"], run["seed"], run["cases"], run["findings"]) == ("native", 3, 20, [])
    assert ET.parse(files["--junit"]).getroot()[0].get("failures") == "0"
    assert files["--report"].read_text().lower().startswith("<!doctype html>")


def test_a_defect_is_told_with_its_reproducer_and_fails(tmp_path):
    file = tmp_path / "run.json"
    result = gradspec(double("Rude"), "--cases", 8, *POOLS, "--json", file, "--junit", tmp_path / "run.xml")
    assert result.exit_code == 1, result.output
    assert "from conformance.kernel_doubles import Rude" in result.output
    assert "\\x1b[31mred" in result.output
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", result.output)
    (finding,) = json.loads(file.read_text())["findings"]
    assert set(finding) >= FINDING
    assert (finding["op"], finding["mode"], finding["kind"], finding["rule"]) == (
        "max_pool",
        "value",
        "defect",
        "raised",
    )
    assert ET.parse(tmp_path / "run.xml").getroot()[0].get("failures") == "1"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nativ",), "did you mean native?"),
        (("native", "--ops", "max_pol"), "did you mean max_pool?"),
        (("native", "--ranks", "1,x"), "ranks are numbers from 1 to 4"),
        (("native", "--json", "/no/such/folder/x.json"), "there is no folder for"),
        (("native", "--report", "/"), "is a folder"),
        (("native", "--json", "same", "--junit", "./same"), "cannot go to one file"),
        (("no_such_module:f", "--cases", "1"), "there is no module 'no_such_module'"),
        ((), "Missing argument"),
    ],
)
def test_a_wrong_request_is_a_usage_error(arguments, words):
    result = gradspec(*arguments)
    assert result.exit_code == 2
    assert words in " ".join(result.output.split())


def test_all_names_are_listed():
    result = gradspec("--list")
    assert result.exit_code == 0
    for name in (*INPUTS, *MODES, *FEATURES, *CONVENTIONS, "torch.compile", "module:object", "tf32", "1, 2, 3, 4"):
        assert name in result.output


@pytest.mark.parametrize(("there", "words"), [(None, "pip install onnxruntime onnx"), (True, "installed: jax")])
def test_targets_are_listed_with_what_they_lack_here(monkeypatch, there, words):
    monkeypatch.setattr(command, "find_spec", lambda package: there)
    assert words in gradspec("--list").output


def test_a_target_that_offers_nothing_of_it_ends_at_once():
    result = gradspec(double("Right"), "--ops", "conv", "--jobs", 1)
    assert result.exit_code == 2
    assert "offers nothing of what was asked: it has no conv." in " ".join(result.output.split())
    assert "4 cases in" in result.output


def test_a_strict_run_says_why_it_fails_and_is_repeated_as_strict(monkeypatch):
    monkeypatch.setattr(command, "check", lambda *_, **__: made_up(CHOICE))
    result = gradspec("torch", "--strict")
    assert result.exit_code == 1
    assert "Failed, as a strict run allows no convention: no defect and 1 convention" in " ".join(result.output.split())
    assert "--cases 12 --strict" in result.output


def test_a_missing_package_says_how_to_install_it(monkeypatch):
    def missing(*_, **__):
        raise ImportError("gradspec check jax needs jax, which is not installed; run: pip install jax")

    monkeypatch.setattr(command, "check", missing)
    result = gradspec("jax")
    assert result.exit_code == 2
    assert "pip install jax" in result.output


# --- runs that are made up --------------------------------------------------------------------------------------------

PROGRAM = "import numpy as np\n" + f"x = np.array({list(range(60))})\nprint(x)"
CRASH = Finding(
    *("max_pool", "value", "defect", ("ties", "dilated"), "f32", {}, "SIGSEGV \x1b[0m\x00", "−1 or an exception"),
    *("crash", PROGRAM),
    explanation="β is not finite: ∞ & <b>",
    result="y",
    place=(0, 1),
    count=3,
    seen=("max_pool vjp f32",),
)
CHOICE = replace(CRASH, kind="convention", rule="indices", op="adaptive_max_pool", mode="vjp", variant="out")


def made_up(*findings, **fields):
    run = Run("torch", "torch 2.13.0", "a machine", 7, 12, 2.0, list(findings), **fields)
    run.probes = [Probe("significand bits kept", "conv", "f32", "11 of 24", normal=False)]
    for op, mode, kind in [("max_pool", "value", "defect"), ("conv", "jvp", "pass"), ("fold", "vjp", "not_offered")]:
        run.tally.count(op, mode, ("ties",), kind, "it has no fold")
    run.repeat = "gradspec check torch --seed 7 --cases 12"
    return run


def shown(run, width=80, encoding="utf-8", **settings):
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="strict")
    console = Console(file=file, width=width, highlight=False, markup=False, emoji=False, **settings)
    show_start(run, console)
    show(run, console)
    file.flush()
    return file.buffer.getvalue().decode(encoding)


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_page_fits_every_terminal(encoding, width):
    page = shown(made_up(CRASH, CHOICE), width, encoding)
    broken = [line for line in page.splitlines() if len(line) > width and "np.array" not in line]
    assert all(line.startswith("    gradspec check") for line in broken)
    assert "    x = np.array([0, 1, 2" in page
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", page)
    for words in ("defect 1 of 1", "11 of 24", "convention 1 of 1", "Not offered: fold", "--seed 7"):
        assert words in " ".join(page.split())


def test_colour_is_only_for_those_who_see_it():
    assert "\x1b[" in shown(made_up(CRASH), force_terminal=True, color_system="standard")


def test_many_findings_are_not_all_printed():
    page = shown(made_up(*[replace(CHOICE, count=n) for n in range(50)]))
    assert "38 conventions more" in page


@pytest.mark.parametrize(
    ("run", "strict", "code"),
    [
        (made_up(), False, 0),
        (made_up(CHOICE), False, 0),
        (made_up(CHOICE), True, 1),
        (made_up(CRASH), False, 1),
        (made_up(CRASH, interrupted=True), False, 1),
        (made_up(interrupted=True), False, 3),
        (made_up(errors=["case 1.2: ours"]), False, 3),
        (made_up(at_least=1), False, 0),
        (made_up(at_least=2), False, 3),
        (made_up(asked=("value", "jvp")), False, 0),
        (made_up(asked=("vjp",)), False, 3),
        (made_up(CRASH, at_least=3), False, 1),
        (Run("torch", "", "", 1), False, 3),
        (Run("torch", "", "", 1, 1, tally=Tally(Counter(not_offered=1))), False, 2),
    ],
)
def test_exit_codes(run, strict, code):
    assert exit_code(run, ("defect", "convention") if strict else ("defect",)) == code


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "Few cases: 2 were judged in 2 s, which says little; give it more time."),
        ({"wanted": 2}, ""),
        ({"wanted": 2, "at_least": 3}, "Too few cases: 1 of value was judged in 2 s, and at least 3 of each mode"),
        ({"starting": 1.6}, "in 2 s, of which starting took 2 s, which says little"),
        ({"interrupted": True}, ""),
    ],
)
def test_few_cases_are_told_in_every_report(fields, words):
    run = made_up(**fields)
    pages = [" ".join(text.split()) for text in (shown(run, 200), html.page(run), junit_text(run))]
    assert [words in page for page in pages] == [True, True, not words or "at least" in words]
    assert all(words or "w cases:" not in page for page in pages)


def test_a_run_without_cases_says_why():
    unheard = Run("torch", "", "", 1)
    assert "ended before its first case." in shown(unheard)
    unheard.seconds = 16.0
    assert "starting took 16 s; give it more time" in " ".join(shown(unheard).split())
    unheard.cases = 1
    unheard.tally.count("fold", "vjp", (), "not_offered")
    assert "offers nothing of what was asked" in shown(unheard)


def test_names_stay_whole_in_80_columns():
    run = made_up()
    for op, mode, kind in product(INPUTS, MODES, ("reduced", "pass")):
        run.tally.modes[op, mode, kind] = 12_345
    lines = shown(run).splitlines()
    assert all(any(re.match(rf"{op} +(\d+ DEFECT|12345 reduced)", line) for line in lines) for op in INPUTS)
    assert set(INPUTS) <= {word for line in shown(run, 40).splitlines() for word in line.split()}


def test_what_could_not_be_judged_is_said_first():
    run = made_up(errors=["case 1.2: ours"], unjudged=1)
    assert "1 case could not be judged. No defect found in 1 judged case." in shown(run)
    run.unjudged = 2
    assert "Nothing was judged: 2 cases could not be judged, through no fault" in shown(run)


def test_numbers_of_cases_that_differ_are_explained():
    page = " ".join(shown(made_up(CRASH, unreached=6, shrinking=1.5)).split())
    assert "To repeat these cases, with 6 more that were planned and not reached in time:" in page
    assert "12 cases in 0 s (1,440 a minute): 1 ok, 1 with a defect, 1 not offered" in page
    assert "2 s more went to shrinking" in page
    assert "findings may share cases" in page


def test_operators_that_are_missing_take_one_line_and_other_reasons_a_table():
    page = shown(run := made_up())
    assert "Not offered: fold." in page
    assert "it has no fold" not in page
    run.tally.count("conv", "vjp", (), "not_offered", "it has no conv_vjp")
    assert re.search(r"1 +it has no conv_vjp", shown(run))
    nothing = replace(run, tally=Tally())
    nothing.tally.count("fold", "vjp", (), "not_offered", "it has no fold")
    assert re.search(r"1 +it has no fold", shown(nothing))  # the only reason why nothing was judged


def test_a_case_that_was_not_decided_does_not_hide_those_that_passed():
    run = made_up()
    run.tally.count("conv", "jvp", (), "undecided", "")
    assert "1 ok, 1 ?" in shown(run)


def test_everything_is_said_once():
    verdict = Verdict("defect", "indices", "y", place=(1,), got="3", expected="2", detail="1 of 4 wrong")
    told = replace(CRASH, rule="indices", place=(1,), got="3", expected="2", explanation=explain(verdict))
    run = made_up(told)
    run.version = "torch 2.13.0, numpy 2"
    page = " ".join(shown(run, 200).split())
    assert page.count(RULES["indices"]) == page.count("at [1]") == page.count("torch 2.13.0") == 1
    assert "1 of 4 wrong." in page


def test_a_run_survives_json():
    run = made_up(CRASH, CHOICE, errors=["one"], interrupted=True, unjudged=1, unreached=3, shrinking=2.5)
    assert decode(Run, json.loads(command.json_text(run))) == run


@pytest.mark.parametrize("strict", [False, True])
def test_junit_has_a_case_per_operator_and_mode(strict):
    run = made_up(CRASH, CHOICE, errors=["case 1.2: ours"])
    root = ET.fromstring(junit_text(run, ("defect", "convention") if strict else ("defect",)))
    (suite,) = root
    assert (root.tag, suite.tag) == ("testsuites", "testsuite")
    cases = {(case.get("classname"), case.get("name")): case for case in suite.iter("testcase")}
    tags = {names: sorted(part.tag for part in case) for names, case in cases.items()}
    assert tags == {
        ("gradspec.torch.max_pool", "value"): ["failure"],
        ("gradspec.torch.adaptive_max_pool", "vjp"): ["failure" if strict else "system-out"],
        ("gradspec.torch.conv", "jvp"): [],
        ("gradspec.torch.fold", "vjp"): ["skipped"],
        ("gradspec.torch", "run"): ["error"],
    }
    counts = {name: int(suite.get(name)) for name in ("tests", "failures", "errors", "skipped")}
    assert counts == {"tests": 5, "failures": 1 + strict, "errors": 1, "skipped": 1}
    assert "\\x1b[0m\\x00" in cases["gradspec.torch.max_pool", "value"][0].text
    assert "x = np.array([0, 1" in cases["gradspec.torch.max_pool", "value"][0].text


def test_the_line_that_is_redrawn_says_what_was_found():
    line = describe_progress(Progress("judging", made_up(CRASH), 0.5))
    assert line == "judging 12 cases  360/min  1 defect"
    assert describe_progress(Progress("shrinking", made_up(CRASH), 0.5, "shrinking 1 group")) == "shrinking 1 group"
