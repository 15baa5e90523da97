"""What ``gradspec check bounds`` and its like do with their options."""

from __future__ import annotations

import json
from textwrap import indent

from rich.console import Console

from gradspec.conformance.command import CLEAN, DEFECTS, INCOMPLETE, MISUSED, CheckError, CheckRequest, require_places
from gradspec.conformance.model.codec import encode
from gradspec.saving.files import replacing
from gradspec.system.pages import TerminalPage
from gradspec.verify.judge.judging import RULES
from gradspec.verify.judge.run import BoundsFinding, BoundsRun, check_bounds

OPTIONS = ("seconds", "cases", "seed", "ops", "ranks", "fail_fast")
SHOWN, REASONS = 40, 12


def perform(request: CheckRequest, console: Console | None = None) -> int:
    """Judge the target, show what was found and write what was asked for; the exit code."""
    require_places(request)
    given = {n: value for n, value in request.check.items() if n != "timeout" and (n, value) != ("device", "cpu")}
    refused = [f"--{name.replace('_', '-')}" for name, value in given.items() if name not in OPTIONS and value]
    refused += [option for option in request.files if option != "--json"]
    if refused:
        raise CheckError(
            f"{refused[0]} is not for bounds; they take --{', --'.join(OPTIONS)} and --json".replace("_", "-")
        )
    page = TerminalPage(console or Console(highlight=False, markup=False, emoji=False))
    try:
        run = check_bounds(request.target, **{name: given[name] for name in OPTIONS if name in given})
    except (ValueError, ImportError) as error:
        raise CheckError(str(error)) from error
    show(run, page)
    if request.json_file:
        with replacing(request.json_file) as partial:
            partial.write_text(json.dumps(encode(run), indent=1, allow_nan=False) + "\n", encoding="utf-8")
        page.say(f"written: {request.json_file}")
    return exit_code(run)


def exit_code(run: BoundsRun) -> int:
    """As for kernels."""
    if run.findings:
        return DEFECTS
    if not run.judged:
        return INCOMPLETE if run.interrupted or not run.cases else MISUSED
    return INCOMPLETE if run.interrupted else CLEAN


def show(run: BoundsRun, page: TerminalPage) -> None:
    """Findings, tightness, what was refused, and the verdict last."""
    page.fields({"target": f"{run.target} ({run.version})", "machine": run.machine, "seed": str(run.seed)}.items())
    for number, finding in enumerate(run.findings[:SHOWN], 1):
        _show_finding(page, finding, f"defect {number} of {len(run.findings)}")
    if len(run.findings) > SHOWN:
        page.say(f"... and {len(run.findings) - SHOWN} more: --json has all of them")
    methods = [*dict.fromkeys([*run.judged, *run.refused])]
    if methods:
        page.heading("width over the range of exact values at sampled points")
        rows = [_row(run, method) for method in methods]
        page.table(("method", "cases", "not offered", "outputs", "median", "worst"), rows, right=(1, 2, 3, 4, 5))
    if run.reasons:
        page.heading("not offered")
        page.table(("times", "why"), [(str(n), why) for why, n in run.reasons.most_common(REASONS)], right=(0,))
    page.heading("verdict")
    wrong, rounded = (sum((f.size == "rounding") is is_rounding for f in run.findings) for is_rounding in (False, True))
    said = f"{wrong} causes of wrong bounds, {rounded} of bounds wrong by a rounding" if run.findings else "no defect"
    page.say(said if run.judged else "nothing was judged", "bold red" if run.findings else "bold")
    page.say(f"{run.cases:,} cases in {run.seconds:.0f} s{' (interrupted)' if run.interrupted else ''}")
    page.say("To repeat these cases:")
    page.verbatim(f"    {run.repeat}")


def _row(run: BoundsRun, method: str) -> tuple[str, ...]:
    tight = run.tightness.get(method)
    widths = (f"{tight.outputs:,}", f"{tight.median:.3g}", f"{tight.worst:.3g}") if tight else ("", "", "")
    return (method, str(run.judged[method]), str(run.refused[method]), *widths)


def _show_finding(page: TerminalPage, finding: BoundsFinding, number: str) -> None:
    count = f", {finding.count} case{'' if finding.count == 1 else 's'}"
    page.heading(f"{number}: {' → '.join(finding.ops)}, {finding.method}{count}", "bold red")
    facts = {
        "got": finding.got,
        "right": finding.right,
        "rule": RULES[finding.rule],
        "size": {"rounding": "as small as a rounding", "wrong": "more than rounding explains"}.get(finding.size, ""),
        "needs": ", ".join(finding.attributes),
        "box": finding.box,
    }
    page.fields(facts.items())
    page.say()
    page.verbatim(indent(finding.reproducer, "    "))
