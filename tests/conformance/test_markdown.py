"""The page about several targets: every finding under its target, its kind and what people say of it."""

from dataclasses import replace

from gradspec.conformance.model.run import Run
from gradspec.conformance.model.verdict import Finding, Probe
from gradspec.conformance.report.markdown import LONGEST, page

FINDING = Finding(
    *("max_pool", "vjp", "defect", ("nan",), "f32", {}, "1.0", "0.0", "vjp.hits", "print(1)"),
    explanation="a `first`\nline",
    seen=("max_pool vjp f16",),
)


def run_of(target, *findings, **more):
    return Run(target, "x 1.0", "a machine", 3, findings=list(findings), **more)


def test_every_finding_is_told_under_its_target():
    choice = replace(FINDING, op="avg_pool", kind="convention", expected="", features=())
    text = page([run_of("one", FINDING), run_of("two", choice), run_of("three:more")], "# Results", {"two": "A note."})
    head, one, two, three = text.split("\n## ")
    assert head.startswith("# Results\n")
    assert "| [one](#one) | x 1.0 | 0 | 0 | 1 | 0 |" in head
    assert "| [three:more](#threemore) | x 1.0 | 0 | 0 | 0 | 0 |" in head
    assert "### Defects of one" in one
    assert "### Conventions of one" not in one
    assert "**max_pool, vjp** (vjp.hits; f32)\n\na 'first' line\n\n- gives: `1.0`\n- ours: `0.0`\n- with: nan" in one
    assert "- also: max_pool vjp f16" in one
    assert "```python\nprint(1)\n```" in one
    assert "### Conventions of two" in two
    assert "A note." in two
    assert "- ours" not in two
    assert "with: nothing special" in two
    assert "Nothing was found." in three


def test_programs_that_nobody_would_read_are_left_out():
    text = page([run_of("one", replace(FINDING, reproducer="#" * (LONGEST + 1)))], "", {})
    assert "####" not in text.replace("### Defects", "")
    assert "too large to print" in text


def test_what_is_unusual_about_the_arithmetic_is_told():
    probes = [
        Probe("accumulator", "conv", "f16", "11 bits", normal=False),
        Probe("flush to zero", "conv", "f32", "none"),
    ]
    text = page([run_of("one", probes=probes, allowed=("ftz",))], "", {})
    assert "- conv, f16: accumulator: 11 bits" in text
    assert "flush to zero" not in text
    assert "Allowed, because it documents it: ftz." in text
