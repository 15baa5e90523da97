"""HTML and SVG that cannot be broken by what is put into them: whatever is not markup already is escaped.

What all pages share: one file that loads nothing, in light and dark, with sections and tables.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from importlib.resources import files

from gradspec.graph.picture import visible

CHILDLESS = {"meta", "input", "br", "wbr"}


class Markup(str):
    """Text that is HTML."""

    __slots__ = ()


def element(name: str, /, *children: str, **attributes: object) -> Markup:
    """An element. In names of attributes underscores stand for hyphens, one at the end for nothing; None drops one.

    >>> element("a", "x < y & z", href="#1", class_="near", data_kind='"', hidden=False)
    '<a href="#1" class="near" data-kind="&quot;">x &lt; y &amp; z</a>'
    >>> element("p", element("b", "bold"), " text")
    '<p><b>bold</b> text</p>'
    """
    written = "".join(_attribute(key, value) for key, value in attributes.items() if value is not None)
    return Markup(f"<{name}{written}>" if name in CHILDLESS else f"<{name}{written}>{joined(*children)}</{name}>")


def term(name: str, value: str, **attributes: object) -> Markup:
    """A name with what it stands for, in a list of such."""
    return element("div", element("dt", name), element("dd", value), **attributes)


def joined(*parts: str) -> Markup:
    """Parts one after another, each escaped unless it is markup."""
    return Markup("".join(part if isinstance(part, Markup) else visible(part) for part in parts))


def _attribute(key: str, value: object) -> str:
    name = key.rstrip("_").replace("_", "-")
    if isinstance(value, bool):
        return f" {name}" if value else ""
    return f' {name}="{visible(str(value))}"'


# --- pages ------------------------------------------------------------------------------------------------------------


def document(title: str, *body: str | Iterable[Markup], style: str = "", script: str = "") -> str:
    """A page of a header and, in its main part, sections; with more style, and a script that it can do without."""
    shared = (files("gradspec.conformance.report") / "page" / "style.css").read_text(encoding="utf-8")
    styles = Markup(shared + style)
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_policy(styles, script)),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("style", styles),
    )
    parts = [part if isinstance(part, str) else element("main", *part) for part in body]
    scripts = [element("script", Markup(script))] if script else []
    return f"<!DOCTYPE html>\n{element('html', head, element('body', *parts, *scripts), lang='en')}\n"


def _policy(style: str, script: str) -> str:
    """Nothing is loaded from anywhere; of styles and scripts only the page's own, known by their hashes, take part."""
    hashes = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script))
    allowed = dict(zip(("style-src", "script-src"), (f"'sha256-{digest}'" for digest in hashes), strict=True))
    rules = {"default-src": "'none'", **allowed, "base-uri": "'none'", "form-action": "'none'"}
    return "; ".join(f"{name} {value}" for name, value in rules.items())


def section(name: str, title: str, *content: str) -> Markup:
    heading = element("h2", title, id=name, tabindex="-1")
    return element("section", heading, *content, aria_labelledby=name)


def table(head: Iterable[Markup], rows: Iterable[Markup]) -> Markup:
    return element("table", element("thead", element("tr", *head)), element("tbody", *rows), class_="plain")


def scroller(table: Markup, label: str) -> Markup:
    """A box that scrolls on its own, by keyboard too, and says so where it is narrower than what it holds."""
    hint = element("p", "Scroll sideways to see all of it →", class_="sideways", aria_hidden="true")
    return joined(hint, element("div", table, class_="scroller", role="region", aria_label=label, tabindex="0"))
