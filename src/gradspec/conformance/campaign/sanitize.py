"""What NVIDIA's ``compute-sanitizer`` says of the programs of findings: which access is wild, and in which thread."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

from gradspec.conformance.model.verdict import Finding
from gradspec.system.processes import module_path

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
