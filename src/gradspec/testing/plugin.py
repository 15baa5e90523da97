"""The pytest plugin: the fixture ``check_kernel``, its options, and a line in the summary.

It is loaded wherever gradspec is installed, so it imports nothing of gradspec before the fixture is used.
"""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from gradspec.conformance.model.run import Run

OPTIONS = {
    "cases": (int, "cases that check_kernel judges each kernel on (300)"),
    "seconds": (float, "seconds after which check_kernel ends (no limit)"),
    "at-least": (int, "judged cases below which check_kernel fails (0)"),
    "seed": (int, "seed of the cases that check_kernel makes (0)"),
    "device": (str, "where check_kernel runs kernels: cuda, cuda:1 (cpu)"),
}
PROPERTY = "gradspec"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("gradspec", "gradspec: judging kernels")
    for name, (kind, text) in OPTIONS.items():
        group.addoption(f"--gradspec-{name}", type=kind, default=None, help=text)


def given(config: pytest.Config) -> dict[str, Any]:
    """The options that were given."""
    named = {name: name.replace("-", "_") for name in OPTIONS}
    options = {keyword: config.getoption(f"gradspec_{keyword}", None) for keyword in named.values()}
    return {name: value for name, value in options.items() if value is not None}


def pytest_report_header(config: pytest.Config) -> str | None:
    options = given(config)
    return f"gradspec: {', '.join(f'{name} {value}' for name, value in options.items())}" if options else None


@pytest.fixture
def check_kernel(request: pytest.FixtureRequest) -> Callable[..., Run]:
    """``gradspec.testing.check_kernel``, with the cases, seconds and seed of the command line where they are given."""
    from gradspec.testing import check_kernel as check

    @wraps(check)
    def checked(*arguments: Any, **keywords: Any) -> Run:
        __tracebackhide__ = True
        run = check(*arguments, **{**keywords, **given(request.config)})
        request.node.user_properties.append((PROPERTY, f"{run.target}: {run.cases} cases, seed {run.seed}"))
        return run

    return checked


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What was judged, by the tests that passed; those that failed tell it themselves."""
    reports = [r for r in terminalreporter.stats.get("passed", []) if getattr(r, "when", "") == "call"]
    lines = [value for report in reports for name, value in report.user_properties if name == PROPERTY]
    if lines:
        terminalreporter.section("gradspec")
        for line in lines:
            terminalreporter.line(line)
