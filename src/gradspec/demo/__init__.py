"""``gradspec demo``: a short Python session, typed and drawn in the terminal, or on one HTML page."""

from gradspec.demo.page import SECTIONS, HtmlPage, Page


def show() -> None:
    """Print the whole demo to standard output."""
    _go_through(Page())


def html() -> str:
    """The same as an HTML page."""
    page = HtmlPage()
    _go_through(page)
    return page.written()


def _go_through(page: Page) -> None:
    for section in SECTIONS:
        section(page)


__all__ = ["html", "show"]
