"""Text from anywhere, made fit to be shown in any terminal."""

from __future__ import annotations

import codecs
import sys
import unicodedata
from io import TextIOWrapper

ASCII = str.maketrans(
    {
        "−": "-",
        "–": "-",
        "×": "x",
        "·": ".",
        "∞": "inf",
        "…": "...",
        "→": "->",
        "≤": "<=",
        "≥": ">=",
        "≈": "~",
        "⟨": "<",
        "⟩": ">",
        "ȳ": "g",
        "’": "'",
    }
)
"""How our own sentences are written where only ASCII can be."""

PLAIN = "gradspec.plain"
"""The name of what is done with characters that a stream cannot encode."""


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
    return "".join(c if c == "\n" or c.isascii() else _escape(c) for c in printable(text).translate(ASCII))


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()


def show_anywhere() -> None:
    """Let this process print any text: what the terminal's encoding lacks is written in ASCII."""
    codecs.register_error(PLAIN, _plain)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors=PLAIN)


def _plain(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return ascii_text(error.object[error.start : error.end]), error.end
