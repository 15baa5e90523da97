"""The published results of the judge on other libraries: ``docs/peers.md``, made by ``gradspec check`` itself.

python benchmarks/peers_page.py                        every installed peer, ten minutes each
python benchmarks/peers_page.py --seconds 60 torch     one of them, a minute
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from gradspec.conformance.model.codec import decode, encode
from gradspec.conformance.model.run import Run
from gradspec.conformance.report.markdown import page

ROOT = Path(__file__).parents[1]
NOTES = ROOT / "benchmarks" / "peers"
PEERS = ("torch", "torch:channels_last", "torch.compile", "jax", "onnxruntime", "onnx.reference")
ALLOWED = {"jax": ("ftz",)}
"""Modes of reduced precision that a peer documents and uses unasked."""


def run_of(target: str, seconds: float, seed: int, results: Path) -> Run:
    """The run of one target, from an earlier result or made now."""
    file = results / f"{target.replace(':', '-')}.json"
    if not file.exists():
        from gradspec.conformance import check

        results.mkdir(parents=True, exist_ok=True)
        run = check(target, seconds=seconds, seed=seed, allow=ALLOWED.get(target, ()))
        file.write_text(json.dumps(encode(run), indent=1))
    return decode(Run, json.loads(file.read_text()), str(file))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", default=PEERS)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--results", type=Path, default=ROOT / "build" / "peers", help="JSON results, used if there")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "peers.md")
    options = parser.parse_args()
    runs = [run_of(target, options.seconds, options.seed, options.results) for target in options.targets]
    notes = {run.target: note for run in runs if (note := _note(run.target))}
    options.output.write_text(page(runs, _note("introduction"), notes), encoding="utf-8")


def _note(name: str) -> str:
    """What people have to say of a target: findings that were looked into by hand, with links."""
    file = NOTES / f"{name.replace(':', '-')}.md"
    return file.read_text() if file.exists() else ""


if __name__ == "__main__":
    main()
