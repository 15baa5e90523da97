"""Pages by Jinja templates: one file that loads nothing, in light and dark. What a template inserts is escaped."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from gradspec.conformance.report.words import MODE_WORDS, kind_words
from gradspec.graph.picture import printable

FOLDER = "conformance/report/page"
"""Where the shared templates are, below the package."""


def _make_printable(value: object) -> object:
    if hasattr(value, "__html__"):
        return value
    text = str(value)
    return text if text.isprintable() else printable(text)


ENVIRONMENT = Environment(
    loader=PackageLoader("gradspec", ""),
    autoescape=True,
    finalize=_make_printable,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
ENVIRONMENT.globals |= {"kind_words": kind_words, "MODE_WORDS": MODE_WORDS}


def render(template: str, /, **values: object) -> Markup:
    """A template of the package with these values.

    >>> render(f"{FOLDER}/scene.html", why="a < b\\u202e")
    Markup('<p class="no-picture">No picture: a &lt; b\\\\u202e.</p>')
    """
    return Markup(ENVIRONMENT.get_template(template).render(values))


def render_page(template: str, title: str, /, *, style: str = "", script: str = "", **values: object) -> str:
    """A page with more style than all have, and with a script that it can do without."""
    styles = Markup(read_file("style.css") + style)
    rest = {"style": styles, "script": Markup(script), "policy": _policy(styles, script)}
    return f"{render(template, title=title, **rest, **values)}\n"


def read_file(name: str) -> str:
    return (files(__package__) / "page" / name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    """Nothing is loaded from anywhere; of styles and scripts only the page's own, known by their hashes, take part."""
    hashes = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script))
    allowed = dict(zip(("style-src", "script-src"), (f"'sha256-{digest}'" for digest in hashes), strict=True))
    rules = {"default-src": "'none'", **allowed, "base-uri": "'none'", "form-action": "'none'"}
    return "; ".join(f"{name} {value}" for name, value in rules.items())
