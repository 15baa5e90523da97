"""``gradspec demo``: a short Python session, typed and drawn in the terminal."""

from gradspec.demo.page import Page
from gradspec.demo.sections import SECTIONS


def show() -> None:
    """Print the whole demo to standard output."""
    page = Page()
    for section in SECTIONS:
        section(page)


__all__ = ["show"]
