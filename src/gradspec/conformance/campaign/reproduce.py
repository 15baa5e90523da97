"""Reproducers are run before they are shown, each in a process in which nothing was called before."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any, TypeAlias

from gradspec.conformance.campaign.replay import replay_programs
from gradspec.conformance.checks.state import describe_setting
from gradspec.conformance.judge.verdicts import labelled_argument
from gradspec.conformance.model.verdict import RULES, Finding
from gradspec.conformance.shrink.search import error
from gradspec.system.host import pause_openmp
from gradspec.system.processes import environment, module_path

TRIES = 3
"""Runs of a program that does not show its failure at once."""
CALLS = 8
"""Calls that tell whether a result varies by itself."""
A_FINDING = 15.0
"""Seconds for the programs of one finding."""
STARTS = 2
"""Programs of one finding that may start anew."""
MOST_PROGRAMS = 24
ANSWER = {"arrays", "flags", "error", "signal", "late"}

Runner: TypeAlias = Callable[[Sequence[str], float], Iterator[dict[str, Any]]]
"""Runs programs for at most so many seconds, each in a process of its own."""


def in_new_processes(path: Sequence[str]) -> Runner:
    """Started anew, with modules found where the campaign's are."""

    def run(programs: Sequence[str], seconds: float) -> Iterator[dict[str, Any]]:
        request = json.dumps({"programs": list(programs), "seconds": seconds})
        file = str(Path(__file__).with_name("replay.py"))
        found = environment(1) | module_path(path)
        command = [sys.executable, "-P", file]
        try:
            ended = subprocess.run(
                command, input=request, capture_output=True, text=True, env=found, timeout=seconds + 5, check=False
            )
        except subprocess.TimeoutExpired:
            return
        with suppress(ValueError):  # a kernel may print, too
            lines = map(json.loads, ended.stdout.splitlines())
            yield from (told for told in lines if isinstance(told, dict) and {*told} == ANSWER)

    return run


def in_copies(names: Mapping[str, Any]) -> Runner:
    """In copies of this process, where kernels that no module has are known by their names."""

    def run(programs: Sequence[str], seconds: float) -> Iterator[dict[str, Any]]:
        pause_openmp()
        return replay_programs(programs, seconds, names)

    return run


def verify_findings(
    findings: Sequence[Finding], run: Runner, where: str, seconds: float, starting: float = 0.0
) -> list[Finding]:
    """The findings, each with the program that shows it, or with what became of its program.

    ``starting`` is what it takes until kernels can be called, as each of the programs must.
    """
    deadline, each = monotonic() + seconds, A_FINDING + STARTS * starting
    return [_verified(finding, run, where, min(each, deadline - monotonic())) for finding in findings]


def _verified(finding: Finding, run: Runner, where: str, seconds: float) -> Finding:
    plain = replace(finding, programs={})
    if not finding.reproducer or not finding.case or finding.rule in ("channel", "left_behind"):
        return plain
    programs = dict(finding.programs) or {finding.setting: finding.reproducer.partition("\n# gives:")[0]}
    order = list(programs)[:MOST_PROGRAMS]
    first = order[:2] if finding.setting else order[:1]
    if seconds <= 0:
        return replace(plain, verification="not run: there was no time left")
    for settings in (first, order):
        answers = list(run([programs[setting] for setting in settings], seconds))
        if not answers or (finding.rule != "hang" and all(answer["late"] for answer in answers)):
            return replace(plain, verification=f"not run: it did not end within {seconds:.0f} s")
        pairs = list(zip(settings, answers, strict=False))
        shown = [(setting, finding.got) for setting, answer in pairs if shows(finding, answer)]
        shown += [(s, got) for s, a in pairs if s.startswith("after ") and (got := other(answers[0], a, finding.place))]
        if shown and not (shown[0][0].startswith("after ") and _varies(programs[""], run, seconds)):
            return _shown(plain, *shown[0], programs[shown[0][0]], where)
    return _seldom(plain, list(run([finding.reproducer] * TRIES, seconds)), where)


def _varies(program: str, run: Runner, seconds: float) -> bool:
    """Whether a call gives other bits when it is made again and again: then a call before it says nothing."""
    again = program.rstrip().rpartition("\n")[2]
    answers = run([program.rstrip() + f"\n{again}" * CALLS], seconds)
    arrays = [array for answer in answers for array in answer["arrays"]]
    results = max(1, len(arrays) // (CALLS + 1))
    return any(array != arrays[i % results] for i, array in enumerate(arrays))


def _shown(finding: Finding, setting: str, got: str, program: str, where: str) -> Finding:
    """The finding with the program that shows it; one that needs a call before its own breaks another rule."""
    is_kept = setting.startswith("after ")
    rule = "state" if is_kept else finding.rule
    comments = [line for line in finding.reproducer.splitlines() if line.startswith(("# gives:", "# right:"))]
    lines = [line.replace(finding.got, got) if finding.got else line for line in comments]
    text = "\n".join([program, *lines, f"# rule: {RULES.get(rule, rule)}"]) + "\n"
    explanation = finding.explanation
    if is_kept:
        explanation = f"Alone the call gives another result; {describe_setting(setting)}. {RULES['state']}"
    return replace(
        finding,
        reproducer=text,
        setting=setting,
        got=got,
        rule=rule,
        explanation=explanation,
        reproduced=True,
        verification=f"shows it in {where}",
    )


def other(alone: Mapping[str, Any], answer: Mapping[str, Any], place: Sequence[int] | None) -> str:
    """What a call gave that gives something else alone, and not by a few roundings; nothing where it gave the same."""
    if alone["error"] or alone["signal"] or alone["flags"] or answer["signal"]:
        return ""
    if answer["error"]:
        return str(answer["error"])
    for first, second in zip(alone["arrays"], answer["arrays"], strict=False):
        if first["shape"] != second["shape"]:
            return f"of shape {tuple(second['shape'])}"
        if first["dtype"] != second["dtype"]:
            return str(second["dtype"])
        here = _flat(place, first["shape"])
        if here is not None and here < len(first["cells"]) and _far(first["cells"][here], second["cells"][here]):
            return str(second["cells"][here])
    return ""


def _far(a: str, b: str) -> bool:
    x, y = float(a), float(b)
    return (x == x) != (y == y) or abs(x - y) > 1e-3 * max(abs(x), abs(y))


def _flat(place: Sequence[int] | None, shape: Sequence[int]) -> int | None:
    """A place as a number, if there is one in such a shape."""
    if place is None or len(place) != len(shape) or any(i >= n for i, n in zip(place, shape, strict=True)):
        return None
    return sum(i * prod(shape[axis + 1 :]) for axis, i in enumerate(place))


def _seldom(finding: Finding, answers: Sequence[dict[str, Any]], where: str) -> Finding:
    count = sum(shows(finding, answer) for answer in answers)
    if count:
        return replace(finding, reproduced=True, verification=f"shows it in {count} of {len(answers)} runs in {where}")
    cases = f"{finding.count:,} case{'' if finding.count == 1 else 's'}"
    lost = f"did not show it alone: 0 of {len(answers)} runs in {where}; it came in {cases}, after other calls"
    return replace(finding, reproduced=False, verification=lost)


def shows(finding: Finding, answer: Mapping[str, Any]) -> bool:
    """Whether what a program did is what the finding says."""
    if finding.rule == "poisoned":
        return bool(answer["error"]) or bool(answer["signal"] and not answer["late"])
    if finding.rule in ("crash", "hang"):
        return bool(answer["late"] if finding.rule == "hang" else answer["signal"] and not answer["late"])
    if finding.rule in ("raised", "declined_numbers") or (
        finding.place is None and ": " in finding.got and answer["error"]
    ):
        return bool(answer["error"]) and error(answer["error"]) == error(finding.got)
    if answer["error"] or answer["signal"]:
        return False
    if answer["flags"]:
        return bool(answer["flags"][-1])
    if finding.rule == "input_changed":
        return _is_changed(finding, answer["arrays"])
    return any(_shows_cell(finding, array) for array in answer["arrays"])


def _shows_cell(finding: Finding, array: Mapping[str, Any]) -> bool:
    place, shape = finding.place, tuple(array["shape"])
    if place is None:
        return finding.got in (f"of shape {shape}", str(array["dtype"]), f"{array['dtype']} of shape {shape}")
    flat = _flat(place, shape)
    return flat is not None and flat < len(array["cells"]) and str(array["cells"][flat]) == finding.got


def _is_changed(finding: Finding, arrays: Sequence[Mapping[str, Any]]) -> bool:
    before = finding.call.arrays()[labelled_argument(finding.result, finding.call)]
    return bool(arrays) and arrays[-1]["cells"] != [repr(c) for c in before.ravel().tolist()]


# --- under NVIDIA's compute-sanitizer ---------------------------------------------------------------------------------


COMMAND = "compute-sanitizer"
TOOLS = ("memcheck", "racecheck")
FRAME = ("COMPUTE-SANITIZER", "ERROR SUMMARY", "RACECHECK")
"""Lines around a report."""
MOST_FINDINGS, MOST_LINES = 8, 10
A_PROGRAM = 120.0
"""Seconds for one program: it runs many times slower than by itself."""


def require_sanitizer(device: str, is_wanted: bool = True) -> None:
    """A ValueError where it is wanted and no program can be run under it."""
    if not is_wanted:
        return
    if device == "cpu":
        raise ValueError("sanitize is for kernels on a GPU, and device is 'cpu'; give device='cuda'")
    if shutil.which(COMMAND) is None:
        raise ValueError(f"sanitize needs {COMMAND}, which is not on the path; it comes with NVIDIA's CUDA toolkit")


def sanitize_findings(findings: Sequence[Finding], path: Sequence[str], seconds: float) -> list[Finding]:
    """The findings, with what is said of the defects among them behind their programs, as far as time goes."""
    deadline, told, found = monotonic() + seconds, 0, list[Finding]()
    for finding in findings:
        left = min(A_PROGRAM, deadline - monotonic())
        is_due = finding.kind == "defect" and bool(finding.case and finding.reproducer)
        if is_due and told < MOST_FINDINGS and left > 0:
            told += 1
            lines = [line for tool in TOOLS for line in _said(tool, finding.reproducer, path, left)]
            finding = replace(finding, reproducer="\n".join([finding.reproducer.rstrip(), *lines]) + "\n")
        found.append(finding)
    return found


def _said(tool: str, program: str, path: Sequence[str], seconds: float) -> Iterator[str]:
    """The first lines of a tool's report on a program, as comments."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "reproducer.py"
        file.write_text(program, encoding="utf-8")
        # Memory that PyTorch keeps and hands out in parts would hide where an array ends.
        own = os.environ | module_path(path) | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
        command = [COMMAND, "--tool", tool, "--print-limit", "1", sys.executable, str(file)]
        try:
            run = subprocess.run(
                command, capture_output=True, text=True, errors="replace", env=own, timeout=seconds, check=False
            )
        except subprocess.TimeoutExpired:
            yield f"# {COMMAND} {tool}: it did not end within {seconds:.0f} s"
            return
    report = [line.strip("= ") for line in (run.stdout + run.stderr).splitlines() if line.startswith("=====")]
    lines = [line for line in report if line and not line.startswith(FRAME)]
    yield f"# {COMMAND} {tool}: {lines[0] if lines else 'nothing found'}"
    yield from (f"#     {line}" for line in lines[1:MOST_LINES])
