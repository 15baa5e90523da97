"""One finding on the page: what is wrong, by which rule, in a picture, as a program, and where else it showed."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from markupsafe import Markup

from gradspec.conformance.model.attributes import settled
from gradspec.conformance.model.case import PLAIN
from gradspec.conformance.model.problem import INPUTS, Attributes
from gradspec.conformance.model.verdict import RULES, Finding
from gradspec.conformance.report.planes import SIGNS, draw_grids
from gradspec.conformance.report.scenes import Scene, scene
from gradspec.conformance.report.templates import FOLDER, render
from gradspec.conformance.report.words import MODE_WORDS, beyond, title_of


def article(number: int, finding: Finding, opened: bool) -> Markup:
    """The finding, folded under its title; the attributes are what filters look at."""
    return render(
        f"{FOLDER}/finding.html",
        number=number,
        finding=finding,
        opened=opened,
        features=json.dumps(finding.causes or [PLAIN]),
        places=json.dumps(places(finding)),
        title=title_of(finding),
        chips=(_in_words(finding.op, finding.mode), finding.dtype, *finding.causes),
        rule=RULES.get(finding.rule, finding.rule),
        explanation=beyond(finding),
        picture=picture(finding),
        facts=list(facts(finding)),
        others=[f"{_in_words(op, mode)} {dtype}" for op, mode, dtype in places(finding)[1:]],
    )


def _in_words(op: str, mode: str) -> str:
    return f"{op} {MODE_WORDS.get(mode, mode)}".strip()


def places(finding: Finding) -> list[tuple[str, str, str]]:
    """Operator, mode and dtype of every case it showed in, its own first."""
    seen = (where.rsplit(maxsplit=2) for where in finding.seen)
    own = (finding.op, finding.mode, finding.dtype)
    return list(dict.fromkeys([own, *((words[0], words[1], words[2]) for words in seen if len(words) == 3)]))


def facts(finding: Finding) -> Iterable[tuple[str, str]]:
    """The shapes, attributes, dtype and memory of its call, by name."""
    problem: Attributes = finding.case.get("problem") or {}
    names = (problem.get("signature") or {}).get("names") or INPUTS.get(finding.op, ())
    for name, shape in zip(names, problem.get("shapes", ()), strict=False):
        yield name, "not given" if shape is None else "×".join(map(str, shape)) or "a single number"
    for name, value in _attributes(finding.op, problem).items():
        yield name, str(value)
    yield "dtype", finding.dtype
    yield "memory", str(finding.case.get("layout", ""))
    yield "way of calling", finding.variant if finding.variant != "plain" else ""


def _attributes(op: str, problem: Attributes) -> dict[str, Any]:
    """All of them, as in the call: those that it leaves out have their defaults."""
    given = {name: _tuples(value) for name, value in problem.get("attributes", {}).items()}
    return {**settled(op, problem["rank"], given), **given} if given and op in INPUTS else given


def _tuples(value: object) -> object:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


# --- its picture ------------------------------------------------------------------------------------------------------


def picture(finding: Finding) -> Markup:
    """The case in SVG, or a sentence where there is nothing to draw.

    >>> print(picture(Finding("conv", "value", "defect", (), "f32", {}, "", "", "promised_error", "")))
    <p class="no-picture">No picture: this finding is not about the numbers of one call.</p>
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
    return render(f"{FOLDER}/scene.html", why=why)


def _figure(shown: Scene) -> Markup:
    used = {mark for plane in shown.planes for marks in plane.marks.values() for mark in marks}
    keys = {mark: words for mark, words in shown.words.items() if mark in used}
    if any(side for plane in shown.planes for pair in plane.margins for side in pair):
        keys["padding"] = "padding"
    cut = "Only what matters of the larger arrays is drawn." if any(plane.is_cut for plane in shown.planes) else ""
    notes = " ".join(note for note in (shown.note, cut) if note)
    grids = [grid for plane in shown.planes for grid in draw_grids(plane)]
    return render(f"{FOLDER}/scene.html", why="", grids=grids, keys=keys, notes=notes, SIGNS=SIGNS)
