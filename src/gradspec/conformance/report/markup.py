"""HTML and SVG that cannot be broken by what is put into them: whatever is not markup already is escaped."""

from __future__ import annotations

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
