"""The HTML report: its markup, its safety, the truth of its pictures, and the page in a browser and by keyboard."""

import base64
import hashlib
import json
import re
from collections import Counter
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from itertools import cycle, product
from math import exp, log, prod
from pathlib import Path

import numpy as np
import pytest

import browser
from gradspec.conformance.judge.conventions import CONVENTIONS
from gradspec.conformance.judge.reduced import REDUCED
from gradspec.conformance.model.case import FEATURES, PLAIN, REGIMES
from gradspec.conformance.model.codec import decode, encode
from gradspec.conformance.model.problem import INPUTS, MODES, SELECTIONS, Call, Problem
from gradspec.conformance.model.run import Run, Tally
from gradspec.conformance.model.verdict import FINDINGS, KINDS, RULES, Finding, Probe
from gradspec.conformance.oracle.expected import expected
from gradspec.conformance.report.html import page, picture, short, shown
from gradspec.conformance.report.planes import MarkedPlane, draw_grids
from gradspec.conformance.report.scenes import SCENES, scene
from gradspec.conformance.report.words import summarize
from gradspec.conformance.targets import TARGETS

RANKS = (1, 2, 3, 4)
HOSTILE = """</script></style><img src="http://x/" onerror='alert(1)'>"&\u202e\x1b[31m"""

# --- a run with everything in it -------------------------------------------------------------------------------------


def problem_of(op, rank):
    """Asymmetric, overlapping and padded; averages by sums, so that integers stay integers."""
    sizes, kernel = (5, 4, 3, 3)[:rank], (3, 2, 2, 2)[:rank]
    sliding = {"kernel_size": kernel, "stride": (2,) * rank, "padding": ((1, 0),) * rank}
    taps, windows = prod(kernel), prod(n - k + 1 for n, k in zip(sizes, kernel, strict=True))
    shapes, attributes = {
        "max_pool": (((2, *sizes),), sliding),
        "avg_pool": (((2, *sizes),), {**sliding, "divisor_override": 1}),
        "smooth_max_pool": (((2, *sizes),), {**sliding, "beta": 0.5}),
        "adaptive_max_pool": (((2, *sizes),), {"output_size": (2,) * rank}),
        "adaptive_avg_pool": (((2, *sizes),), {"output_size": (2,) * rank}),
        "global_max_pool": (((2, *sizes),), {"keepdims": rank != 2}),
        "global_avg_pool": (((2, *sizes),), {"keepdims": rank != 2}),
        "conv": (((1, 4, *sizes), (2, 2, *kernel), (2,)), {"stride": (2,) * rank, "padding": 1, "groups": 2}),
        "conv_transpose": (((1, 2, *sizes), (2, 2, *kernel), (2,)), {"stride": (2,) * rank, "padding": 1}),
        "max_unpool": (((2, *(2,) * rank), (2, *(2,) * rank)), {"output_size": sizes}),
        "unfold": (((2, *sizes),), {"kernel_size": kernel, "padding": ((1, 0),) * rank}),
        "fold": (((2 * taps, windows),), {"output_size": sizes, "kernel_size": kernel}),
    }[op]
    return Problem(op, rank, shapes, attributes)


def call_of(op, rank, mode, rng):
    problem = problem_of(op, rank)

    def numbers(shape):
        return rng.integers(-4, 5, shape).astype(np.float32)

    def places(shape):
        return rng.integers(-1, prod(problem.attributes["output_size"]), shape)

    named = zip(INPUTS[op], problem.shapes, strict=True)
    inputs = tuple(places(shape) if name == "indices" else numbers(shape) for name, shape in named)
    output = expected(Call(problem, "value", inputs))["y"].shape
    directions = tuple(numbers(a.shape) for a in inputs if a.dtype == np.float32) if mode in ("jvp", "second") else ()
    cotangent = numbers(output) if mode in ("vjp", "second") else None
    return Call(problem, mode, inputs, directions, cotangent, output=output)


def findings_of(op, rank, mode, rng, kind="defect", features=()):
    """One for each result that a theorem decides, at some place of it."""
    call = call_of(op, rank, mode, rng)
    for name, meaning in expected(call).items():
        if meaning is not None:
            place = tuple(int(rng.integers(n)) for n in meaning.shape)
            right = repr(float(meaning.rounded("f64")[place]))
            more = {"explanation": "why", "result": name, "place": place, "seen": (f"{op} {mode} f16",)}
            more |= {"causes": features, "title": f"{name} is wrong"}
            yield Finding(op, mode, kind, features, "f32", encode(call), "3.0", right, "second", "print(1)", **more)


@cache
def whole_run():
    """Every operator in every mode, every kind, and a rank for each in turn."""
    rng, kinds, ranks = np.random.default_rng(7), cycle(FINDINGS), cycle(RANKS)
    features = cycle([(), ("ties",), ("overlapping", "dilated")])
    run = Run("torch", "2.13", "two cores", seed=7, cases=3000, seconds=1.5, allowed=("tf32",))
    for op in INPUTS:
        for mode in MODES:
            run.findings += [*findings_of(op, next(ranks), mode, rng, next(kinds), next(features))][:1]
            for feature, kind in zip((PLAIN, *FEATURES), cycle(KINDS), strict=False):
                if feature != "rank4":
                    run.tally.grid[op, mode, feature, kind] += 3
                    run.tally.cases[kind] += 3
    run.findings.append(
        replace(run.findings[0], op="conv", rule="crash", result="", place=None, got="signal 11", seen=())
    )
    run.tally.not_offered["no rank 4"] = 12
    run.repeat = "gradspec check torch --seed 7 --cases 3000"
    run.probes = [
        Probe("bits kept", "conv", "f32", "24 of 24"),
        Probe("flush to zero", "conv", "f32", "yes", normal=False),
    ]
    return run


# --- markup ----------------------------------------------------------------------------------------------------------


class Elements(HTMLParser):
    """All elements of a page, each closed where it must be, and the text."""

    def __init__(self, text):
        super().__init__()
        self.stack, self.found, self.text = [], [], []
        self.feed(text)
        self.close()
        assert not self.stack

    def handle_starttag(self, tag, attrs):
        assert len(dict(attrs)) == len(attrs)
        self.found.append((tag, dict(attrs)))
        if tag not in ("meta", "input", "br", "wbr"):
            self.stack.append(tag)

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    def all(self, tag):
        return [attrs for name, attrs in self.found if name == tag]


@cache
def whole_page():
    return Elements(page(whole_run()))


def test_elements_are_closed_and_names_are_unique():
    names = [attrs["id"] for _, attrs in whole_page().found if "id" in attrs]
    assert len(set(names)) == len(names)


def test_controls_are_labelled_and_links_and_labels_lead_somewhere():
    found = whole_page()
    names = {attrs["id"] for _, attrs in found.found if "id" in attrs}
    labelled = {attrs["for"] for attrs in found.all("label")}
    assert labelled == {attrs["id"] for tag in ("select", "input") for attrs in found.all(tag)}
    assert {attrs["href"] for attrs in found.all("a")} <= {f"#{name}" for name in names}
    assert {attrs["aria-labelledby"] for attrs in found.all("section")} <= names


def test_nothing_is_loaded_and_only_the_page_s_own_style_and_script_take_part():
    text = page(whole_run())
    tags = {tag for tag, _ in whole_page().found}
    assert not tags & {"link", "img", "iframe", "object", "embed", "base", "image", "use", "foreignobject"}
    attributes = {name for _, attrs in whole_page().found for name in attrs}
    assert not {name for name in attributes if name in ("src", "style", "action") or name.startswith("on")}
    assert "://" not in text
    [policy] = [attrs["content"] for attrs in whole_page().all("meta") if "http-equiv" in attrs]
    assert policy.startswith("default-src 'none'; ")
    for tag in ("style", "script"):
        [content] = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        assert f"{tag}-src 'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'" in policy


def test_hostile_words_are_shown_and_nothing_else():
    names = ("got", "expected", "explanation", "reproducer", "variant", "result", "op", "mode", "rule")
    texts = dict.fromkeys(names, HOSTILE)
    bad = Finding(**{**vars(whole_run().findings[0]), **texts, "features": (HOSTILE,), "seen": (HOSTILE,)})
    tally = Tally(Counter(defect=1), Counter({(HOSTILE, "value", HOSTILE, "defect"): 1}))
    tally.not_offered[HOSTILE] = 1
    run = Run(HOSTILE, HOSTILE, HOSTILE, 1, 1, 1.0, [bad], [Probe(*[HOSTILE] * 4)], tally, (HOSTILE,), errors=[HOSTILE])
    run.repeat = HOSTILE
    found = Elements(page(run))
    assert not found.all("img")
    assert len(found.all("script")) == len(found.all("style")) == 1
    shown = HOSTILE.replace("\u202e", "\\u202e").replace("\x1b", "\\x1b")
    assert "".join(found.text).count(shown) >= 12
    assert "\u202e" not in page(run)


# --- what it says ----------------------------------------------------------------------------------------------------


def test_everything_about_the_run_is_on_the_page():
    text = " ".join("".join(whole_page().text).split())
    run = whole_run()
    for said in (run.target, run.version, run.machine, "1.5 s", "tf32", "3,000", "no rank 4", "24 of 24", "! unusual"):
        assert said in text
    assert summarize(run) in text
    assert run.repeat in text
    assert all(f"{name}" in text and meaning in text for name, meaning in FEATURES.items())
    assert RULES["second"] in text
    assert "How to repeat" not in page(replace(run, repeat=""))
    assert "gradspec check torch --ops conv" in page(replace(run, repeat="gradspec check torch --ops conv"))


def test_a_run_that_is_not_whole_says_so():
    assert not [attrs for attrs in whole_page().all("p") if attrs.get("class") == "trouble"]
    text = "".join(Elements(page(replace(whole_run(), interrupted=True, errors=["disk full"] * 5))).text)
    assert "The run was interrupted" in text
    assert "disk full; disk full; disk full, and 2 more" in text


def test_the_sentence_counts_findings_and_judged_cases():
    run = replace(whole_run(), findings=[], tally=Tally(Counter({"pass": 2, "not_offered": 5})))
    assert summarize(run) == "No defect found in 2 judged cases."
    assert "offers nothing" in summarize(replace(run, tally=Tally(Counter(not_offered=5))))
    two = replace(run, findings=[f for f in whole_run().findings if f.kind == "defect"][:2])
    assert summarize(two) == "2 defects found in 2 judged cases."


def test_findings_have_their_own_links_and_the_facts_that_filters_need():
    articles = whole_page().all("article")
    assert [article["id"] for article in articles] == [f"finding-{i}" for i in range(1, len(articles) + 1)]
    for article, finding in zip(articles, whole_run().findings, strict=True):
        assert article["data-kind"] == finding.kind
        assert json.loads(article["data-features"]) == list(finding.causes or (PLAIN,))
        assert json.loads(article["data-places"])[0] == [finding.op, finding.mode, finding.dtype]


def test_without_a_script_all_is_there_and_no_control_is_dead():
    found = whole_page()
    hidden = {tag for tag, attrs in found.found if "hidden" in attrs}
    assert hidden == {"form", "button"}
    assert all("hidden" in attrs or "id" in attrs for attrs in found.all("button"))  # those with names are the form's


def test_the_grid_has_a_cell_for_every_operator_mode_and_feature():
    kinds = Counter(attrs["class"] for attrs in whole_page().all("td") if "class" in attrs)
    rows, columns = len(INPUTS) * len(MODES), len(FEATURES) + 1
    assert sum(kinds[kind] for kind in (*KINDS, "never", "masked")) == rows * columns
    assert kinds["never"] == rows  # of the one feature that was left out


def test_the_grid_marks_causes_and_no_other_feature_of_a_case_that_fails():
    links = [attrs for attrs in whole_page().all("a") if "data-op" in attrs]
    marked = {(attrs["data-op"], attrs["data-mode"], attrs["data-feature"]) for attrs in links}
    causes = [(f, feature) for f in whole_run().findings for feature in f.causes or (PLAIN,)]
    assert marked == {(f.op, f.mode, feature) for f, feature in causes}


@pytest.mark.parametrize(
    ("counts", "kind"),
    [
        ({"pass": 9, "defect": 1, "not_offered": 9}, "pass"),
        ({"undecided": 1, "convention": 3}, "undecided"),
        ({"defect": 1, "not_offered": 9}, "masked"),
        ({"not_offered": 9}, "not_offered"),
        ({}, "never"),
    ],
)
def test_a_cell_without_a_cause_says_whether_anything_passed(counts, kind):
    assert shown(Counter(counts)) == kind


def test_what_a_target_lacks_is_told_from_what_was_never_tried():
    tally = Tally(Counter({"pass": 1}), Counter({("max_pool", "value", PLAIN, "pass"): 1}))
    text = page(Run("mine", "1", "here", 3, tally=tally, lacking=(("max_pool", "jvp"), ("conv", "value"))))
    assert "the target has no JVP of it" in text
    assert "no case of its VJP was tried" in text
    assert "Not offered: conv." in text


def test_numbers_are_short():
    assert all(len(short(10**n - 1)) <= 4 and len(short(10**n)) <= 4 for n in range(1, 9))


def test_a_run_without_findings_or_cases_is_a_page_too():
    found = Elements(page(Run("mine:kernel", "1", "here", 3)))
    assert "None." in found.text
    assert not found.all("form")


# --- pictures --------------------------------------------------------------------------------------------------------


def values(plane, mark):
    """The numbers of the marked cells in row-major order; padding is zero."""
    held = [plane.text(place) for place in sorted(plane.marks) if mark in plane.marks[place]]
    return [float(text or 0) for text in held]


def drawn_value(call, finding, planes):
    """The result as a reader of the picture would work it out from the marked cells."""
    op, of_output = call.problem.op, finding.result in ("y", "dy", "second_g", "indices")
    *sources, last, _ = planes
    if finding.result.startswith("second") and not of_output and not op.startswith("conv"):
        return 0.0  # linear maps and selections have no second derivative
    if finding.result == "indices":
        [winner] = [place for place, marks in last.marks.items() if "winner" in marks] or [None]
        return -1.0 if winner is None else float(np.ravel_multi_index(winner, last.values.shape))
    if op.startswith("conv"):
        return convolved(call, finding, [*sources, last])
    if op in SELECTIONS or (op == "unfold" and of_output) or (op in ("fold", "max_unpool") and not of_output):
        return sum(values(last, "winner"))
    if op == "smooth_max_pool":
        return log(sum(exp(0.5 * v) for v in values(last, "tap"))) / 0.5
    marked = values(last, "tap")
    if op in ("adaptive_avg_pool", "global_avg_pool"):
        return sum(marked) / len(marked) if of_output else None
    return sum(marked)


def convolved(call, finding, planes):
    if finding.result.endswith("bias"):
        return sum(values(planes[0], "tap")) if call.mode == "vjp" else 0.0
    if finding.result.endswith("weight"):
        return sum(a * b for a, b in zip(values(planes[0], "tap"), values(planes[1], "tap"), strict=True))
    total = 0.0
    for tensor, weight in zip(planes[::2], planes[1::2], strict=True):
        taps = values(weight, "tap")[::-1] if weight.marks else weight.values.ravel().tolist()
        total += sum(a * b for a, b in zip(values(tensor, "tap"), taps, strict=True))
    if finding.result in ("y", "dy", "second_g"):
        bias = call.inputs[2] if call.mode == "value" else call.directions[2]
        total += bias[finding.place[1]]
    return total


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("op", INPUTS)
def test_the_marked_cells_are_those_that_make_the_result(op, rank):
    rng = np.random.default_rng([rank, list(INPUTS).index(op)])
    for mode in MODES:
        for finding in findings_of(op, rank, mode, rng):
            call = decode(Call, finding.case)
            smooth_derivative = op == "smooth_max_pool" and mode != "value"
            seen = scene(call, finding)
            assert seen.planes[-1].text(next(iter(seen.planes[-1].marks))) == "3"
            value = None if smooth_derivative else drawn_value(call, finding, seen.planes)
            assert value is None or value == pytest.approx(float(finding.expected), rel=1e-12), (mode, finding.result)


@pytest.mark.parametrize("op", INPUTS)
def test_every_case_is_drawn_with_words_beside_it(op):
    for rank, mode in zip(RANKS, MODES, strict=True):
        for finding in findings_of(op, rank, mode, np.random.default_rng(rank)):
            found = Elements(picture(finding))
            assert len(found.all("svg")) == len(found.all("desc")) > 0


def selection(x, window, **more):
    problem = Problem("max_pool", x.ndim, (x.shape,), {"kernel_size": window})
    case = encode(Call(problem, "value", (x,)))
    fields = {"got": "1.0", "expected": "9.0", "result": "y", "place": (0,) * x.ndim, **more}
    return Finding("max_pool", "value", "defect", (), "f32", case, rule="second", reproducer="", **fields)


def test_winners_are_told_apart_and_padding_never_wins():
    x = np.float32([[1, 9], [9, np.nan]])
    [plane, _] = scene(decode(Call, selection(x, (2, 2)).case), selection(x, (2, 2))).planes
    assert plane.marks[1, 1] == {"tap", "winner"}
    assert plane.marks[0, 0] == {"tap", "theirs"}
    index = selection(np.float32([[1, 9], [9, 2]]), (2, 2), result="indices", got="2")
    [plane, _] = scene(decode(Call, index.case), index).planes
    assert plane.marks[0, 1] == {"tap", "winner"}
    assert plane.marks[1, 0] == {"tap", "theirs"}


def test_a_large_plane_is_cut_around_the_winner():
    x = np.zeros((60, 60), np.float32)
    x[50, 33] = 9
    shown = picture(selection(x, (60, 60)))
    assert "winner: [50, 33] = 9" in shown
    assert "Only what matters" in shown
    assert shown.count("<rect") <= 82


def test_slices_without_a_mark_are_left_out():
    plane = MarkedPlane("x", np.zeros((9, 2, 2)), {(7, 0, 0): frozenset({"tap"})})
    assert len(draw_grids(plane)) == 1
    assert len(draw_grids(MarkedPlane("x", np.zeros((9, 2, 2))))) == 4


@pytest.mark.parametrize(
    "changed",
    [
        {"case": {}},
        {"case": {"problem": {"op": "max_pool"}}},
        {"place": (0, 9)},
        {"place": (0, 0, 0, 0, 0)},
        {"place": ()},
    ],
)
def test_what_cannot_be_drawn_is_said_in_a_sentence(changed):
    finding = replace(selection(np.float32([[1, 2]]), (1, 2)), **changed)
    assert re.fullmatch(r'<p class="no-picture">No picture: [^<]+</p>', picture(finding))


def test_no_cells_and_no_place_are_no_trouble():
    assert "no cells" in picture(selection(np.zeros((0, 3), np.float32), (1, 2)))
    assert "The inputs of the call" in picture(replace(selection(np.float32([[1, 2]]), (1, 2)), place=None))
    assert all(op in SCENES for op in INPUTS)
    for op, rank in product(INPUTS, RANKS):
        finding = replace(next(findings_of(op, rank, "value", np.random.default_rng(rank))), place=None, result="")
        assert "The inputs of the call" in picture(finding)


# --- the page of the command -----------------------------------------------------------------------------------------

PAGE = (Path(__file__).parents[2] / "docs" / "check.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("heading", "names"), [("kind", KINDS), ("regime", REGIMES), ("target", (*TARGETS, "module:object"))]
)
def test_the_tables_of_the_page_are_those_of_the_code(heading, names):
    [table] = re.findall(rf"^\| {heading} \|.*\n\|[-|]*\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    assert [re.match(r"\| `(.+?)` \|", line)[1] for line in table.splitlines()] == list(names)


@pytest.mark.parametrize(
    ("start", "end", "names"),
    [("Conventions have names", "A convention must", CONVENTIONS), ("| `--allow` |", "## ", REDUCED)],
)
def test_the_page_names_every_convention_and_every_liberty(start, end, names):
    section = PAGE.partition(start)[2].partition(end)[0]
    assert set(names) <= set(re.findall(r"`([a-z_0-9]+)(?:=.*?)?`", section))


def test_a_case_shows_the_attributes_that_it_leaves_out():
    call = Call(Problem("max_pool", 1, ((3,),), {"kernel_size": (2,)}), "value", (np.zeros(3, np.float32),))
    finding = Finding("max_pool", "value", "defect", (), "f32", encode(call), "1", "0", "value.selection", "")
    text = page(Run("torch", "2.13", "two cores", seed=7, findings=[finding]))
    assert "<dt>stride</dt><dd>(2,)</dd>" in text
    assert "<dt>kernel_size</dt><dd>(2,)</dd>" in text


# --- in a browser ----------------------------------------------------------------------------------------------------

SHOWN = "[...document.querySelectorAll('.finding')].filter((f) => f.offsetHeight > 0).length"
FOCUSED = "document.activeElement.id || document.activeElement.className || document.activeElement.tagName"


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """The page in a browser that is started once for all tests of this file."""
    if browser.FOUND is None:
        pytest.skip("no browser is installed")
    folder = tmp_path_factory.mktemp("report")
    (folder / "page.html").write_text(page(whole_run()), encoding="utf-8")
    with browser.browser(folder / "profile") as seen:
        seen.resize(1280, 900)
        seen.open(folder / "page.html")
        yield seen


def fill(seen, name, value):
    seen.evaluate(
        f"{{ const c = document.getElementById('filter-{name}'); c.value = {value!r};"
        " c.dispatchEvent(new Event('input', {bubbles: true})); }"
    )
    return seen.evaluate(SHOWN)


def number_of(**wanted):
    return sum(
        all(getattr(finding, name) == value for name, value in wanted.items()) for finding in whole_run().findings
    )


def test_a_browser_shows_filters_and_walks_the_page_by_keyboard(opened):
    total = len(whole_run().findings)
    assert opened.evaluate(SHOWN) == total
    assert fill(opened, "kind", "defect") == number_of(kind="defect")
    assert fill(opened, "op", "conv") == number_of(kind="defect", op="conv")
    assert opened.evaluate("document.getElementById('shown').textContent").startswith(
        f"{number_of(kind='defect', op='conv')} of {total} findings shown."
    )
    opened.evaluate("document.getElementById('reset').click()")
    assert fill(opened, "mode", "jvp") == number_of(mode="jvp")
    fill(opened, "mode", "")
    assert fill(opened, "feature", "ties") == sum("ties" in finding.features for finding in whole_run().findings)
    fill(opened, "feature", "")
    assert fill(opened, "dtype", "f16") == total - 1
    fill(opened, "dtype", "")
    assert fill(opened, "text", "SIGNAL 11") == 1
    opened.evaluate("document.getElementById('reset').click()")
    assert opened.evaluate(SHOWN) == total

    opened.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
    opened.press("Tab")
    assert opened.evaluate(FOCUSED) == "skip"
    assert opened.evaluate("document.activeElement.getBoundingClientRect().left") >= 0
    opened.press("Tab")
    assert opened.evaluate(FOCUSED) == "filter-kind"
    opened.evaluate("document.querySelector('.grid a').focus()")
    cell = opened.evaluate("({...document.activeElement.dataset})")
    assert cell["op"] == "max_pool"
    opened.press("Enter")
    assert opened.evaluate(FOCUSED) == "findings"
    assert opened.evaluate(SHOWN) >= number_of(op=cell["op"], mode=cell["mode"]) > 0
    assert opened.evaluate("document.getElementById('filter-op').value") == cell["op"]
    opened.press("Tab")
    assert opened.evaluate(FOCUSED) == "filter-kind"
    assert opened.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"

    opened.evaluate("location.hash = '#finding-40'; new Promise((done) => setTimeout(done, 50))")
    assert opened.evaluate("document.querySelector('#finding-40 > details').open")
    assert opened.evaluate("document.getElementById('finding-40').getBoundingClientRect().top") < 900


def test_a_browser_paints_it_wide_narrow_light_and_dark(opened):
    opened.evaluate("document.getElementById('reset').click(); document.getElementById('open-all').click()")
    for width, scheme in ((1280, "light"), (360, "dark"), (320, "light")):
        opened.prefer(scheme)
        opened.resize(width, 900)
        assert opened.evaluate("Math.max(document.documentElement.scrollWidth, innerWidth)") == width
        opened.evaluate("scrollTo(0, 0)")
        seen = opened.screenshot()
        assert seen.shape[:2] == (900, width)
        red, green, blue = np.moveaxis(np.rint(255 * seen[..., :3]).astype(int), -1, 0)
        assert len(np.unique(red << 16 | green << 8 | blue)) > 50
        assert (np.median(green) > 230) if scheme == "light" else (np.median(green) < 60)


def test_a_narrow_screen_says_that_the_grid_goes_on(opened):
    hint = "getComputedStyle(document.querySelector('.sideways:has(+ .scroller > .grid)')).display"
    for width, display in ((1280, "none"), (360, "block")):
        opened.resize(width, 900)
        assert opened.evaluate(hint) == display


def test_nothing_needs_to_be_scrolled_sideways_on_a_usual_screen(opened):
    opened.resize(1200, 900)
    wide = "[...document.querySelectorAll('.scroller, pre')].filter((e) => e.scrollWidth > e.clientWidth).length"
    assert opened.evaluate(wide) == 0


def test_colours_of_words_have_enough_contrast(opened):
    """WCAG AA: 4.5 between every text and what is behind it, in both schemes."""
    opened.resize(1280, 900)
    for scheme in ("light", "dark"):
        opened.prefer(scheme)
        assert opened.evaluate(CONTRAST) == []


CONTRAST = """
(() => {
  const numbers = (text) => text.match(/[\\d.]+/g).map(Number);
  const opaque = (colour) => colour.length < 4 || colour[3] > 0.99;
  const linear = (v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const luminance = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
  const behind = (e) => {
    const colour = numbers(getComputedStyle(e).backgroundColor);
    return opaque(colour) ? colour : behind(e.parentElement);
  };
  const poor = new Set();
  for (const e of document.querySelectorAll("body *:not(script):not(svg *):not(.never)")) {
    if (![...e.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim())) continue;
    const colours = [numbers(getComputedStyle(e).color), behind(e)];
    const [dark, bright] = colours.map(luminance).sort((a, b) => a - b);
    const contrast = (bright + 0.05) / (dark + 0.05);
    if (contrast < 4.5) poor.add(`${e.tagName}.${e.className}: ${contrast.toFixed(2)}`);
  }
  return [...poor];
})()
"""
