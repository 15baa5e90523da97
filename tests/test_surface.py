"""What ``docs/stability.md`` promises is what there is."""

import difflib

import surface


def test_the_public_surface_is_the_one_written_down():
    written = surface.LISTING.read_text("utf-8").splitlines()
    changes = [line for line in difflib.ndiff(written, list(surface.lines())) if line[0] in "+-"]
    assert not changes, "\n".join(
        [
            "the public surface has changed; if that is meant: python tools/surface.py, and a line in CHANGELOG.md",
            *changes,
        ]
    )
