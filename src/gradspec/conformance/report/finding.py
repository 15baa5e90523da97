"""One finding on the page: what is wrong, by which rule, in a picture, as a program, and where else it showed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from gradspec.conformance.judge.rules import RULES
from gradspec.conformance.model.attributes import settled
from gradspec.conformance.model.case import PLAIN
from gradspec.conformance.model.problem import INPUTS
from gradspec.conformance.model.verdict import Finding
from gradspec.conformance.report.markup import Markup, element, term
from gradspec.conformance.report.planes import SIGNS, drawn
from gradspec.conformance.report.scenes import Scene, scene
from gradspec.conformance.report.words import MODE_WORDS, beyond, kind_words, title_of


def article(number: int, finding: Finding, opened: bool) -> Markup:
    """The finding, folded under its title; the attributes are what filters look at."""
    name = f"finding-{number}"
    link = element("a", f"#{number}", href=f"#{name}", class_="permalink", aria_label=f"Link to finding {number}")
    return element(
        "article",
        link,
        element("details", _title(finding), element("div", *_body(finding), class_="body"), open=opened),
        id=name,
        class_=f"finding {finding.kind}",
        data_kind=finding.kind,
        data_features=json.dumps(finding.causes or [PLAIN]),
        data_places=json.dumps(places(finding)),
    )


def places(finding: Finding) -> list[tuple[str, str, str]]:
    """Operator, mode and dtype of every case it showed in, its own first."""
    seen = (where.rsplit(maxsplit=2) for where in finding.seen)
    own = (finding.op, finding.mode, finding.dtype)
    return list(dict.fromkeys([own, *((words[0], words[1], words[2]) for words in seen if len(words) == 3)]))


def _title(finding: Finding) -> Markup:
    kind = kind_words(finding.kind)
    where = (f"{finding.op} {MODE_WORDS.get(finding.mode, finding.mode)}".strip(), finding.dtype)
    chips = (element("span", text, class_="chip") for text in (*where, *finding.causes) if text)
    symbol = element("span", kind.symbol, aria_hidden="true")
    return element(
        "summary",
        element("span", symbol, f" {kind.one}", class_=f"chip {finding.kind}"),
        element("h3", title_of(finding)),
        element("span", *chips, class_="chips"),
    )


def _body(finding: Finding) -> Iterable[Markup]:
    yield element("p", RULES.get(finding.rule, finding.rule), class_="rule")
    said = beyond(finding)
    if said:
        yield element("p", said, class_="explanation")
    place = "" if finding.place is None else f" at {list(finding.place)}"
    sides = {f"got {finding.result}{place}": finding.got, "expected": finding.expected}.items()
    told = (term(name, element("code", value or "–"), class_=name.split()[0]) for name, value in sides)
    yield element("dl", *told, class_="versus")
    yield picture(finding)
    if finding.reproducer:
        yield code("Reproducer", finding.reproducer)
        if finding.verification:
            yield element("p", f"The program {finding.verification}.", class_="verification")
    yield element("h4", "The case")
    yield element("dl", *(term(name, value) for name, value in _facts(finding) if value), class_="case")
    yield element("p", *_elsewhere(finding), class_="elsewhere")


def code(title: str, text: str) -> Markup:
    """A program, with a button that copies it."""
    button = element("button", "Copy", type="button", class_="copy", hidden=True)
    above = element("div", element("h4", title), button, class_="above")
    return element("div", above, element("pre", element("code", text), tabindex="0"), class_="code")


def _facts(finding: Finding) -> Iterable[tuple[str, str]]:
    problem: Mapping[str, Any] = finding.case.get("problem") or {}
    names = (problem.get("signature") or {}).get("names") or INPUTS.get(finding.op, ())
    for name, shape in zip(names, problem.get("shapes", ()), strict=False):
        yield name, "not given" if shape is None else "×".join(map(str, shape)) or "a single number"
    for name, value in _attributes(finding.op, problem).items():
        yield name, str(value)
    yield "dtype", finding.dtype
    yield "memory", str(finding.case.get("layout", ""))
    yield "way of calling", finding.variant if finding.variant != "plain" else ""


def _attributes(op: str, problem: Mapping[str, Any]) -> dict[str, Any]:
    """All of them, as in the call: those that it leaves out have their defaults."""
    given = {name: _tuples(value) for name, value in problem.get("attributes", {}).items()}
    return {**settled(op, problem["rank"], given), **given} if given and op in INPUTS else given


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _elsewhere(finding: Finding) -> Iterable[str]:
    yield f"Seen in {finding.count:,} case{'' if finding.count == 1 else 's'}."
    others = [f"{op} {MODE_WORDS.get(mode, mode)} {dtype}" for op, mode, dtype in places(finding)[1:]]
    if others:
        yield f" Also in: {', '.join(others)}."


# --- its picture ------------------------------------------------------------------------------------------------------


def picture(finding: Finding) -> Markup:
    """The case in SVG, or a sentence where there is nothing to draw.

    >>> picture(Finding("conv", "value", "defect", (), "f32", {}, "", "", "promised_error", ""))
    '<p class="no-picture">No picture: this finding is not about the numbers of one call.</p>'
    """
    if not finding.case.get("problem"):
        return _instead("this finding is not about the numbers of one call")
    try:
        call = finding.call
        if any(array.size == 0 for array in call.named().values()):
            return _instead("an input has no cells")
        return _figure(scene(call, finding))
    except Exception:  # a report comes out whole, whatever a target or a file made of one finding
        return _instead("the place of this finding does not fit its case")


def _instead(why: str) -> Markup:
    return element("p", f"No picture: {why}.", class_="no-picture")


def _figure(shown: Scene) -> Markup:
    used = {mark for plane in shown.planes for marks in plane.marks.values() for mark in marks}
    keys = [element("li", _key(mark), f" {words}") for mark, words in shown.words.items() if mark in used]
    if any(side for plane in shown.planes for pair in plane.margins for side in pair):
        keys.append(element("li", _key("padding"), " padding"))
    cut = "Only what matters of the larger arrays is drawn." if any(plane.is_cut for plane in shown.planes) else ""
    notes = " ".join(note for note in (shown.note, cut) if note)
    grids = (grid for plane in shown.planes for grid in drawn(plane))
    caption = (element("ul", *keys, class_="keys"), *([element("p", notes)] if notes else []))
    return element("figure", element("div", *grids, class_="planes"), element("figcaption", *caption), class_="picture")


def _key(mark: str) -> Markup:
    return element("span", SIGNS.get(mark, ""), class_=f"key {mark}", aria_hidden="true")
