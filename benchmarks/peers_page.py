"""The published results of the judge on other libraries: ``docs/peers.md``, made by ``gradspec check`` itself.

python benchmarks/peers_page.py                        every installed peer, ten minutes each
python benchmarks/peers_page.py --seconds 60 torch     one of them, a minute
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from gradspec.conformance.report.markdown import page
from gradspec.conformance.run import Run

ROOT = Path(__file__).parents[1]
PEERS = ("torch", "torch:channels_last", "torch.compile", "jax", "onnxruntime", "onnx.reference")
INTRODUCTION = (ROOT / "benchmarks" / "peers_introduction.md").read_text()


def run_of(target: str, seconds: float, seed: int, results: Path) -> Run:
    """The run of one target, from an earlier result or made now."""
    file = results / f"{target.replace(':', '-')}.json"
    if not file.exists():
        from gradspec.conformance import check

        results.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(check(target, seconds=seconds, seed=seed).to_json(), indent=1))
    return Run.from_json(json.loads(file.read_text()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", default=PEERS)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--results", type=Path, default=ROOT / "build" / "peers", help="JSON results, used if there")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "peers.md")
    options = parser.parse_args()
    runs = [run_of(target, options.seconds, options.seed, options.results) for target in options.targets]
    options.output.write_text(page(runs, INTRODUCTION), encoding="utf-8")


if __name__ == "__main__":
    main()
