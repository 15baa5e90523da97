"""The script that puts measured figures on their page: every figure comes from a file, in its place and both themes."""

import json
import re
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from xml.etree import ElementTree

import pytest

from gradspec.bench.report import FORMAT

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "benchmarks_page.py"
RATIOS = {"P1": 2.0, "P2": 0.5, "P10": 8.0}


@pytest.fixture(scope="module")
def script():
    spec = spec_from_file_location("measured_page", SCRIPT)
    module = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def result(cell, ratio, mode="forward", is_complete=True):
    times = {"gradspec": {"median": 0.001}, "jax": {"median": 0.001 * ratio}, "torch-eager": {"offered": False}}
    shares = {"share_of_copy_limit": 0.25, "share_of_best_product": None}
    named = {"cell": cell, "op": "max", "mode": mode, "fastest_peer": "jax", "times_fastest_peer": ratio}
    return {**named, **shares, "is_complete": is_complete, "copy": {"median": 0.002}, "contenders": times}


def written(folder, name, results, architecture="aarch64", **changes):
    run = {
        "format": FORMAT,
        "machine": {"processor": "N1", "architecture": architecture},
        "settings": {"threads": 2},
        "versions": {"jax": "0.10"},
        "contenders": ["gradspec", "torch-eager", "jax"],
        "best_matrix_product": None,
        "results": results,
    }
    file = folder / name
    file.write_text(json.dumps(run | changes))
    return file


def both(folder):
    ours = written(folder, "arm.json", [result(cell, ratio) for cell, ratio in RATIOS.items()])
    return [ours, written(folder, "x86.json", [result("P1", 4.0)], "x86_64")]


def test_figures_stand_in_their_rows(script, tmp_path):
    arm, x86 = script.read(both(tmp_path))
    rows = [re.split(r"\s*\|\s*", line)[1:-1] for line in script.table(arm).splitlines() if line.startswith("| P")]
    assert rows == [
        ["P1 max", "1 (2.00)", "–", "–"],
        ["P2 max", "1 (0.50)", "–", "–"],
        ["P10 max", "1 (8.00)", "–", "–"],
    ]
    assert "the fastest at 2 of 3 problems; the least ratio is 0.50, at P2 max value." in script.table(arm)
    assert "the fastest at 1 of 1 problems." in script.table(x86)


def test_files_of_a_machine_are_put_together_and_the_last_one_counts(script, tmp_path):
    first = written(tmp_path, "first.json", [result("P1", 3.0), result("P2", 5.0)])
    second = written(tmp_path, "second.json", [result("P1", 4.0), result("P1", 6.0, "vjp")])
    third = written(tmp_path, "third.json", [result("P2", 9.0, is_complete=False)])
    (machine,) = script.read([first, second, third])
    assert machine.ratios("max", "forward") == {"P1": 4.0, "P2": 5.0}
    assert machine.ratios("max", "vjp") == {"P1": 6.0}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_dots_lie_on_their_side_of_the_line(script, tmp_path, theme):
    machines = script.read(both(tmp_path))
    drawn = ElementTree.fromstring(script.picture(machines, theme))
    scale = script.Scale.of([*RATIOS.values(), 4.0])
    dots = [path.get("d") for path in drawn.iter() if path.get("stroke-linecap")]
    lanes = [[float(x) for x in re.findall(r"M([\d.]+)", d)] for d in dots]
    assert [round(scale(ratio), 1) for ratio in sorted(RATIOS.values())] in lanes
    assert scale(0.5) < scale(1) < scale(2.0) < scale(4.0) == pytest.approx(lanes[-1][0], abs=0.1)
    texts = [text.text for text in drawn.iter() if text.tag.endswith("text")]
    assert {"P2", "2.00×", "4.00×"} <= {*texts}
    assert "P1" not in texts


def test_the_page_keeps_what_is_beside_the_marks(script, tmp_path):
    page = f"before\n{script.BEGIN}old\n{script.END}behind\n"
    machines = script.read(both(tmp_path))
    made = script.with_measured(page, machines)
    assert made.replace(made[made.index(script.BEGIN) : made.index(script.END)], "") == f"before\n{script.END}behind\n"
    assert "old" not in made
    assert script.with_measured(made, machines) == made
    with pytest.raises(SystemExit, match="lacks the lines"):
        script.with_measured("before\n", machines)


def test_other_files_are_refused(script, tmp_path):
    with pytest.raises(SystemExit, match="not written by"):
        script.read([written(tmp_path, "old.json", [], format=FORMAT - 1)])
