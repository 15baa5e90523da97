"""A finding's case as a picture: the cells that take part in the wrong place of its result, and who should win."""

from __future__ import annotations

from gradspec.conformance.model.verdict import Finding
from gradspec.conformance.report.markup import Markup, element
from gradspec.conformance.report.planes import SIGNS, drawn
from gradspec.conformance.report.scenes import Scene, scene


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
