"""Record `gradspec check` finding a mistake, as an SVG that plays once: docs/recording.svg, the README's first picture.

    python tools/recording.py

The run is real, its waiting is shortened, and of what the judge prints the findings and the verdict are
shown. The picture loads nothing, and whoever prefers less motion sees its end.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html import escape
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.style import Style
from rich.text import Text

RECORDING = Path(__file__).parents[1] / "docs" / "recording.svg"

KERNEL = """\
import numpy as np

def max_pool2d(x, kernel_size, stride, padding):
    x = np.pad(x, [(0, 0)] * (x.ndim - 2) + list(padding))
    x = np.lib.stride_tricks.sliding_window_view(x, kernel_size, (-2, -1))
    return x[..., :: stride[0], :: stride[1], :, :].max((-2, -1))
"""
SHOW, CHECK = "cat mykernels.py", "gradspec check mykernels:max_pool2d --cases 60 --seed 3"

COLUMNS, ADVANCE, LEADING, MARGIN = 100, 7.8, 18, 16
COLOURS = {"plain": "#e6edf3", "dim": "#9198a1", "red": "#ff7b72", "green": "#56d364", "back": "#161b22"}
NUMBERED = {1: "red", 9: "red", 2: "green", 10: "green"}  # among the 16 colours of a terminal
PROGRESS = re.compile(r"judging \d+ cases[^\x1b]*")


def run() -> tuple[list[str], list[Text]]:
    """What one check showed while it ran, and the finding and verdict that it printed."""
    with TemporaryDirectory() as folder:
        Path(folder, "mykernels.py").write_text(KERNEL)
        colours = {"FORCE_COLOR": "1", "COLUMNS": str(COLUMNS), "TERM": "xterm-256color"}
        command = [sys.executable, "-m", "gradspec", *CHECK.split()[1:]]
        result = subprocess.run(
            command, cwd=folder, env=os.environ | colours, capture_output=True, text=True, encoding="utf-8"
        )
    waiting, _, printed = result.stdout.rpartition("\x1b[?25h")
    shown = list(dict.fromkeys(line.strip() for line in PROGRESS.findall(waiting)))
    lines = [Text.from_ansi(line) for line in printed.replace("\r", "").split("\n")[1:]]
    return shown[:: max(1, len(shown) // 4)], list(_results(lines))


def _results(lines: list[Text]) -> Iterator[Text]:
    """The findings and the verdict."""
    keep = False
    for line in lines:
        if heading := re.match(r"(\w+) .*---$", line.plain.rstrip()):
            keep = heading[1] in ("defect", "verdict")
        if keep:
            line.rstrip()
            yield line


# --- the picture ------------------------------------------------------------------------------------------------------


def draw(shown: list[str], printed: list[Text]) -> str:
    """The SVG: every line with the second at which it appears."""
    parts, row, second = [], 0, 0.5
    for command, output in ((SHOW, [Text(line) for line in KERNEL.splitlines()]), (CHECK, printed)):
        parts.append(_typed(command, row, second))
        row, second = row + 1, second + 0.4 + len(command) / 25
        if output is printed:
            for k, progress in enumerate(shown):
                parts.append(_line(Text(progress, "dim"), row, second + 0.8 * k, "wait"))
            second += 0.8 * len(shown)
        for line in output:
            if line.plain:
                parts.append(_line(line, row, second))
            row, second = row + 1, second + 0.04
        row, second = row + 1, second + 1
    width, height = COLUMNS * ADVANCE + 2 * MARGIN, row * LEADING + MARGIN
    style = (
        f"text{{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;white-space:pre;"
        f"fill:{COLOURS['plain']}}}.dim{{fill:{COLOURS['dim']}}}.red{{fill:{COLOURS['red']};font-weight:bold}}"
        f".green{{fill:{COLOURS['green']}}}.bold{{font-weight:bold}}"
        ".line{animation:show 0s var(--at) both}.wait{animation:pass .8s var(--at) both}"
        ".cover{animation:type var(--for) var(--at) both steps(var(--n))}"
        "@keyframes show{from{opacity:0}to{opacity:1}}@keyframes pass{0%,100%{opacity:0}1%,99%{opacity:1}}"
        "@keyframes type{from{transform:none}to{transform:translateX(100%)}}"
        ".cover{transform-box:fill-box}"
        "@media(prefers-reduced-motion:reduce){.line{animation:none}.wait,.cover{display:none}}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {width:g} {height:g}" width="{width:g}">'
        f"<title>gradspec check finds that a max pooling pads with zeros</title><style>{style}</style>"
        f'<rect width="{width:g}" height="{height:g}" rx="8" fill="{COLOURS["back"]}"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _typed(command: str, row: int, second: float) -> str:
    """A command that a cover, as wide as it is, moves away from."""
    line = Text.assemble(("$ ", "green"), (command, "bold"))
    x, y, width = MARGIN + 2 * ADVANCE, MARGIN + row * LEADING, len(command) * ADVANCE
    timing = f"--at:{second:.2f}s;--for:{len(command) / 25:.2f}s;--n:{len(command)}"
    cover = (
        f'<svg x="{x:g}" y="{y:g}" width="{width:g}" height="{LEADING}"><rect class="cover" width="{width:g}" '
        f'height="{LEADING}" fill="{COLOURS["back"]}" style="{timing}"/></svg>'
    )
    return _line(line, row, max(second - 0.5, 0)) + cover


def _line(line: Text, row: int, second: float, kind: str = "line") -> str:
    spans = "".join(_span(line.plain[start:end], style) for start, end, style in _styled(line))
    y = MARGIN + row * LEADING + 13
    length = f'textLength="{len(line.plain) * ADVANCE:g}" lengthAdjust="spacingAndGlyphs"'
    return f'<text class="{kind}" x="{MARGIN}" y="{y}" {length} style="--at:{second:.2f}s">{spans}</text>'


def _styled(line: Text) -> Iterator[tuple[int, int, str]]:
    """Pieces of a line, each with its class."""
    edges = sorted({0, len(line.plain), *(edge for span in line.spans for edge in (span.start, span.end))})
    for start, end in pairwise(edges):
        styles = [span.style for span in line.spans if span.start <= start < span.end] + [line.style]
        yield start, end, next((name for style in styles if (name := _class(style))), "")


def _class(style: str | Style) -> str:
    if isinstance(style, str):
        return style if style in ("bold", "dim", "red", "green") else ""
    if style.color is not None and style.color.number in NUMBERED:
        return NUMBERED[style.color.number]
    return "bold" if style.bold else "dim" if style.dim else ""


def _span(text: str, kind: str) -> str:
    return f'<tspan class="{kind}">{escape(text, quote=False)}</tspan>' if kind else escape(text, quote=False)


if __name__ == "__main__":
    RECORDING.write_text(draw(*run()), "utf-8")
    print(f"{RECORDING.name}: {RECORDING.stat().st_size} bytes")
