"""The page about several targets: a screen for each, with a picture, the defects that were met most, and a note."""

import importlib.util
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

from gradspec.conformance.model.run import Run
from gradspec.conformance.model.verdict import Finding, Probe

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("peers_page", ROOT / "benchmarks" / "peers_page.py")
SCRIPT = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(SCRIPT)
MOST_ROWS, page, picture = SCRIPT.MOST_ROWS, SCRIPT.page, SCRIPT.picture
FINDING = Finding(
    *("max_pool", "vjp", "defect", ("nan",), "f32", {}, "1.0", "0.0", "vjp.hits", "print(1)"),
    title="A | title\nof two lines",
    seen=("softmax axis=1 value f16",),
    count=3,
)


def run_of(target, *findings, **more):
    return Run(target, "x 1.0", "a machine", 3, findings=list(findings), **more)


def test_each_target_has_a_screen():
    choice = replace(FINDING, op="avg_pool", kind="convention")
    runs = [run_of("one", FINDING, replace(FINDING, mode="jvp")), run_of("two", choice), run_of("three:more")]
    runs[0].tally.cells.update({("value", "judged"): 200, ("value", "weak"): 3})
    head, one, two, three = page(runs, "# Results", {"two": "A note."}, "data").split("\n## ")
    assert head.startswith("# Results\n")
    assert "| [one](#one) | x 1.0 | 0 | 2 | 0 | 1.5 % of 200 |" in head
    assert "| [three:more](#threemore) | x 1.0 | 0 | 0 | 0 | – |" in head
    assert "| max_pool | VJP, JVP | f32 | 6 | A \\| title of two lines |" in one
    assert "(data/one.svg)" in one
    assert "of 3 (1.5 %) the enclosure says little" in one
    assert "A note." in two
    assert "No defect was found." in two
    assert "[All 0 findings](data/three-more.json), 0 with a program" in three


def test_names_of_files_and_headings():
    assert SCRIPT.file_name("torch:channels_last") == "torch-channels_last"
    assert SCRIPT.anchor("torch:channels_last") == "torchchannels_last"


def test_a_long_list_is_cut_and_says_so():
    found = [replace(FINDING, title=f"title {n}", count=n) for n in range(MOST_ROWS + 2)]
    text = page([run_of("one", *found)], "", {}, "data")
    assert f"title {MOST_ROWS + 1} |" in text
    assert "title 1 |" not in text
    assert "2 more rows" in text


def test_what_is_unusual_about_the_arithmetic_is_told():
    probes = [
        Probe("accumulator", "conv", "f16", "11 bits", normal=False),
        Probe("accumulator", "conv", "bf16", "11 bits", normal=False),
        Probe("flush to zero", "conv", "f32", "none"),
    ]
    text = page([run_of("one", probes=probes, allowed=("ftz",))], "", {}, "data")
    assert "accumulator: 11 bits (conv in f16, conv in bf16)." in text
    assert "flush to zero" not in text
    assert "Allowed, because it documents it: ftz." in text


def test_a_picture_has_a_square_for_each_operator_and_mode():
    run = run_of("one", FINDING)
    for op, mode, kind in [("max_pool", "vjp", "defect"), ("conv", "value", "pass"), ("softmax axis=1", "jvp", "pass")]:
        run.tally.count(op, mode, (), kind)
    drawn = ElementTree.fromstring(picture(run))
    space = {"s": "http://www.w3.org/2000/svg"}
    squares = {
        g.find("s:title", space).text: g.find("s:text", space).text for g in drawn.findall("s:g[s:title]", space)
    }
    assert len(squares) == 12
    assert squares["max_pool, VJP: 1 defect"] == "✗1"
    assert squares["conv, value: 1 pass"] == "✓1"
    assert squares["softmax, JVP: 1 pass"] == "✓1"
    assert squares["softmax, value: never tried"] == "✗1"  # by what else the finding showed in


def test_the_published_page_is_what_its_data_say():
    for file, text in SCRIPT.written(ROOT / "docs" / "peers").items():
        assert file.read_text(encoding="utf-8") == text, f"python benchmarks/peers_page.py makes {file.name} anew"
