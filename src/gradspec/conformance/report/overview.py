"""The overview: operators and modes down, features across, each cell the worst that was seen there."""

from __future__ import annotations

from collections import Counter

from gradspec.conformance.model.case import FEATURES, PLAIN
from gradspec.conformance.model.problem import INPUTS, MODES
from gradspec.conformance.model.run import Run
from gradspec.conformance.model.verdict import FINDINGS, KINDS
from gradspec.conformance.report.markup import Markup, element, joined
from gradspec.conformance.report.words import KIND_WORDS, MODE_WORDS, kind_words

COLUMNS = {PLAIN: "none of the features", **FEATURES}


def overview(run: Run) -> Markup:
    """The grid with its legend; operators that took no part are named below it."""
    tried = {key[0] for key in run.tally.grid}
    if not tried:
        return element("p", "No case was run.")
    operators = [op for op in INPUTS if op in tried] + sorted(tried - set(INPUTS))
    table = element("table", _head(), *(_operator(run, op) for op in operators), class_="grid")
    box = element("div", table, class_="scroller", role="region", aria_label="Overview grid", tabindex="0")
    left_out = [op for op in INPUTS if op not in tried]
    rest = element("p", f"Not in this run: {', '.join(left_out)}.", class_="aside-text") if left_out else ""
    return joined(_legend(), box, rest)


def _legend() -> Markup:
    kinds = (
        element("li", element("span", kind.symbol, class_=f"swatch {name}", aria_hidden="true"), f" {kind.one}")
        for name, kind in KIND_WORDS.items()
    )
    never = element("li", element("span", "·", class_="swatch never", aria_hidden="true"), " never tried")
    said = "The worst kind in each cell, with the number of its cases. Cells with findings lead to them."
    return joined(element("p", said), element("ul", *kinds, never, class_="legend"))


def _head() -> Markup:
    turned = {"scope": "col", "class_": "turned"}
    features = (element("th", element("span", name), **turned, title=said) for name, said in COLUMNS.items())
    corner = (element("th", name, scope="col", class_=name) for name in ("operator", "mode"))
    return element("thead", element("tr", *corner, *features))


def _operator(run: Run, op: str) -> Markup:
    name = element("th", _breakable(op), scope="rowgroup", rowspan=len(MODES), class_="operator")
    rows = (
        element(
            "tr",
            name if mode == MODES[0] else "",
            element("th", {"second": "2nd"}.get(mode, MODE_WORDS[mode]), scope="row", class_="mode"),
            *(_cell(run, op, mode, feature) for feature in COLUMNS),
        )
        for mode in MODES
    )
    return element("tbody", *rows)


def _breakable(name: str) -> Markup:
    """A name that may be broken after each underscore."""
    return Markup(f"_{element('wbr')}".join(map(joined, name.split("_"))))


def _cell(run: Run, op: str, mode: str, feature: str) -> Markup:
    counts = Counter({kind: run.tally.grid[op, mode, feature, kind] for kind in KINDS})
    kind = worst(counts)
    if kind is None:
        return element("td", "·", class_="never")
    shown = f"{kind_words(kind).symbol}{short(counts[kind])}"
    told = ", ".join(kind_words(k).counted(counts[k]) for k in KINDS if counts[k])
    where = f"{op}, {MODE_WORDS[mode]}, {feature}"
    if kind not in FINDINGS:
        return element("td", shown, class_=kind, title=f"{where}: {told}")
    data = {"data_op": op, "data_mode": mode, "data_feature": feature}
    link = element("a", shown, href="#findings", title=told, aria_label=f"{where}: {told}", **data)
    return element("td", link, class_=kind)


def worst(counts: Counter[str]) -> str | None:
    """The worst kind that was met; what is not offered counts only where nothing was judged.

    >>> worst(Counter({"pass": 3, "not_offered": 1})), worst(Counter(not_offered=2)), worst(Counter())
    ('pass', 'not_offered', None)
    """
    judged = [kind for kind in KINDS if counts[kind] and kind != "not_offered"]
    return judged[0] if judged else "not_offered" if counts["not_offered"] else None


def short(number: int) -> str:
    """At most four characters.

    >>> [short(n) for n in (7, 999, 1000, 12_345, 999_999, 3_400_000)]
    ['7', '999', '1.0k', '12k', '999k', '3.4M']
    """
    for size, letter in ((10**6, "M"), (10**3, "k")):
        if number >= size:
            return f"{number // (size // 10) / 10}{letter}" if number < 10 * size else f"{number // size}{letter}"
    return str(number)
