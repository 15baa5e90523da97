"""Text from anywhere, made fit to be shown: what a target says may hold control characters, or not fit a terminal."""

from __future__ import annotations

import unicodedata

PLAIN = str.maketrans(
    {"−": "-", "×": "x", "∞": "inf", "…": "...", "⟨": "<", "⟩": ">", "ȳ": "g", "≤": "<=", "–": "-", "·": ".", "’": "'"}
)
"""How our own sentences are written where only ASCII can be."""


def printable(text: str) -> str:
    """The same text with control characters, but for ends of lines, written as escapes.

    >>> printable("a\\x1b[31m\\tb\\n")
    'a\\\\x1b[31m    b\\n'
    """
    expanded = text.replace("\r\n", "\n").replace("\t", "    ")
    return "".join(c if c == "\n" or unicodedata.category(c)[0] != "C" else _escape(c) for c in expanded)


def ascii_text(text: str) -> str:
    """Printable text in ASCII.

    >>> ascii_text("index −1 × β")
    'index -1 x \\\\u03b2'
    """
    return "".join(c if c == "\n" or c.isascii() else _escape(c) for c in printable(text).translate(PLAIN))


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()
