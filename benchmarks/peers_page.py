"""The published results of the judge on other libraries: ``docs/peers.md``, made by ``gradspec check`` itself.

python benchmarks/peers_page.py                           the page, and pictures, of the results in docs/peers
python benchmarks/peers_page.py --seconds 1260 torch jax  the runs of some libraries first, 21 minutes each
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

from gradspec.conformance.model.codec import decode, encode
from gradspec.conformance.model.run import Run
from gradspec.conformance.model.verdict import Finding
from gradspec.conformance.report.markdown import file_name, page
from gradspec.conformance.report.picture import picture

ROOT = Path(__file__).parents[1]
NOTES, RESULTS = ROOT / "benchmarks" / "peers", ROOT / "docs" / "peers"
PEERS = ("torch", "torch:channels_last", "torch.compile", "jax", "onnxruntime", "onnx.reference")
ALLOWED = {"jax": ("ftz",)}
"""Modes of reduced precision that a peer documents and uses unasked."""
TIMEOUT = 120.0
"""Seconds for one case: the machine may be busy."""
PROGRAMS = 900.0
"""Seconds in which the programs of findings are run once more."""
LONGEST = 4000
"""Characters of a program that is published."""


def judge(target: str, seconds: float, seed: int, file: Path) -> None:
    """A run of one target, as data."""
    from gradspec.conformance import check
    from gradspec.conformance.campaign.verify import in_new_processes, verified

    run = check(target, seconds=seconds, seed=seed, allow=ALLOWED.get(target, ()), timeout=TIMEOUT)
    shown = verified(run.findings, in_new_processes(sys.path), "a new process", PROGRAMS)
    run.findings = [published(finding) for finding in shown]
    file.write_text(json.dumps(encode(run), ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")


def published(finding: Finding) -> Finding:
    """A finding without what nobody would read: the arrays of a case, which its program has, and a program of pages."""
    program = finding.reproducer if len(finding.reproducer) <= LONGEST else ""
    return replace(finding, case={}, programs={}, reproducer=program)


def read(file: Path) -> Run:
    return decode(Run, json.loads(file.read_text(encoding="utf-8")), str(file))


def written(folder: Path) -> dict[Path, str]:
    """The page and its pictures, from the results in a folder."""
    runs = [read(file) for target in PEERS if (file := folder / f"{file_name(target)}.json").exists()]
    notes = {run.target: note for run in runs if (note := _note(run.target))}
    text = page(runs, _note("introduction"), notes, folder.name)
    pictures = {folder / f"{file_name(run.target)}.svg": picture(run) for run in runs}
    return {folder.with_suffix(".md"): text, **pictures}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", help=f"to judge anew, of {', '.join(PEERS)}")
    parser.add_argument("--seconds", type=float, default=1260)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    for target in options.targets:
        judge(target, options.seconds, options.seed, RESULTS / f"{file_name(target)}.json")
    for file, text in written(RESULTS).items():
        file.write_text(text, encoding="utf-8")


def _note(name: str) -> str:
    """What people have to say of a target: findings that were looked into by hand, with links."""
    file = NOTES / f"{file_name(name)}.md"
    return file.read_text() if file.exists() else ""


if __name__ == "__main__":
    main()
