"""Draw the figures of the pages from what gradspec computes; as a hook of mkdocs, put them into the pages.

    python tools/figures.py

Colours are variables. Within a page ``docs/site.css`` sets them, by the mode that the reader chose there; a file that
is shown by itself sets them by the mode of the system.
"""

import html
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, cycle
from pathlib import Path
from typing import Any

import numpy as np

import gradspec as gs

FIGURES = Path(__file__).parents[1] / "docs" / "figures"

NAMES = ("ink", "soft", "line", "fill", "one", "two", "three")
LIGHT = ("#1f2328", "#59636e", "#c4ccd4", "#eef1f4", "#0969da", "#bc4c00", "#1a7f37")
DARK = ("#f0f6fc", "#9aa4ae", "#4b535c", "#2a3038", "#58a6ff", "#f0883e", "#56d364")

Point = tuple[float, float]
Figure = tuple[str, float, float, Iterable[str]]
"""A title, the width and height, and what is drawn."""


# --- in a page --------------------------------------------------------------------------------------------------------

DRAWN = re.compile(r'<p><img alt="[^"]*" src="(?:[\w./-]*/)?figures/(\w+\.svg)" /></p>')
BY_MODE = re.compile(
    r'<picture>\s*<source media="\(prefers-color-scheme: dark\)" srcset="([^"]+)">\s*'
    r'<img src="([^"]+)" alt="([^"]*)">\s*</picture>'
)


def on_page_content(content: str, **_: Any) -> str:
    """Figures as part of the page, and pictures in two files by the page's mode instead of the system's."""
    content = BY_MODE.sub(r'<img src="\2#only-light" alt="\3"><img src="\1#only-dark" alt="\3">', content)
    return DRAWN.sub(lambda found: _within_page((FIGURES / found[1]).read_text()), content)


def _within_page(svg: str) -> str:
    return f'<figure class="drawn">{re.sub("<style>.*?</style>", "", svg)}</figure>'


# --- files ------------------------------------------------------------------------------------------------------------


def figures() -> dict[Path, str]:
    """The text of every figure, by its file."""
    drawn: Sequence[Callable[[], Figure]] = (windows, winners, plan, tolerance, bounds)
    return {FIGURES / f"{figure.__name__}.svg": _svg(*figure()) for figure in drawn}


def _svg(title: str, width: float, height: float, parts: Iterable[str]) -> str:
    light, dark = (";".join(f"--{name}:{c}" for name, c in zip(NAMES, mode, strict=True)) for mode in (LIGHT, DARK))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {width:g} {height:g}" width="{width:g}"'
    font = 'font-family="system-ui,-apple-system,Segoe UI,Helvetica,Arial,sans-serif" font-size="14"'
    style = f"svg {{ {light} }} @media (prefers-color-scheme: dark) {{ svg {{ {dark} }} }}"
    return "\n".join([f"{head} {font}>", f"<title>{title}</title>", f"<style>{style}</style>", *parts, "</svg>\n"])


def _paint(name: str) -> str:
    return name if name == "none" else f"var(--{name})"


def _text(x: float, y: float, said: object, paint: str = "ink", anchor: str = "middle", size: int = 14) -> str:
    """A line of text, whose height has its middle at ``y``."""
    style = f'fill="{_paint(paint)}" text-anchor="{anchor}" font-size="{size}"'
    return f'<text x="{x:.1f}" y="{y + 0.35 * size:.1f}" {style}>{html.escape(str(said), quote=False)}</text>'


def _box(
    x: float, y: float, width: float, height: float, fill: str = "none", stroke: str = "line", more: str = ""
) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return f'<rect {place} fill="{_paint(fill)}" stroke="{_paint(stroke)}" {more}/>'


def _line(points: Iterable[Point], stroke: str, more: str = "") -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{_paint(stroke)}" {more}/>'


def _dot(x: float, y: float, paint: str) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="{_paint(paint)}"/>'


# --- windows and winners ----------------------------------------------------------------------------------------------


def windows() -> Figure:
    """A row of cells for each setting, and below it the cells that each window reads."""
    n, side, left, top, parts = 6, 34, 200, 10, []
    settings = {"padding 1": {"padding": 1}, "dilation 2": {"dilation": 2}, "ceil_mode": {"ceil_mode": True}}
    for title, setting in {"kernel 3, stride 2": {}, **{f"… {k}": v for k, v in settings.items()}}.items():
        (axis,) = gs.spec.regular((n,), (3,), stride=2, **setting).axes
        parts.append(_text(156, top + 14, title, anchor="end"))
        for cell in range(-axis.lo, n + axis.hi):
            is_real, x = 0 <= cell < n, left + side * cell
            parts += [
                _box(x, top, side, 28, "fill" if is_real else "none", more="" if is_real else 'stroke-dasharray="3 3"'),
                _text(x + side / 2, top + 14, cell)
                if is_real
                else _text(x + side / 2, top + 14, "pad", "soft", size=11),
            ]
        for window in range(axis.outputs):
            y = top + 36 + 17 * window
            places = [(left + side * (cell + 0.5), y) for cell in axis.positions(window)]
            parts += [_line(places, "one", 'stroke-width="2"'), *(_dot(*place, "one") for place in places)]
            parts.append(_text(left + side * 7.6, y, f"window {window}", "soft", "start", 12))
        top += 58 + 17 * axis.outputs
    return "The cells that windows read along one axis", 550, top - 12, parts


def winners() -> Figure:
    """The README's image under max pooling: windows of 2 × 2 cells, and the gradient of the sum of their maxima."""
    image, g = [[1, 2, 0], [4, 4, 3], [0, 4, 1]], gs.exact.tensor([[1, 1], [1, 1]])
    _, found = gs.spec.max_pool2d(image, 2, stride=1, return_indices=True)
    won = {(o, p): divmod(found[o, p], 3) for o in range(2) for p in range(2)}
    parts = [_text(60, 14, "image"), *_grid(0, 28, 40, image, set(won.values()), "one")]
    parts.append(_text(235, 14, "windows and winners"))
    for (o, p), (i, j) in won.items():
        window = [row[p : p + 2] for row in image[o : o + 2]]
        parts += _grid(170 + 72 * p, 30 + 60 * o, 26, window, {(i - o, j - p)}, "one")
    for x, ties in ((340, "first"), (500, "split")):
        gradient = gs.spec.max_pool2d_vjp(image, g, 2, stride=1, ties=ties).tolist()
        reached = {(i, j) for i in range(3) for j in range(3) if gradient[i][j]}
        parts += [_text(x + 60, 14, f'gradient, ties="{ties}"'), *_grid(x, 28, 40, gradient, reached, "two")]
    return "An image, the winner of each of its four windows, and the gradient by two rules", 640, 156, parts


def _grid(
    x: float, y: float, side: float, rows: Sequence[Sequence[Any]], marked: set[Any], paint: str
) -> Iterator[str]:
    for i, row in enumerate(rows):
        for j, number in enumerate(row):
            is_marked, left, top = (i, j) in marked, x + side * j, y + side * i
            yield _box(left, top, side, side, "fill" if is_marked else "none")
            yield _text(left + side / 2, top + side / 2, number, paint if is_marked else "ink")


# --- a plan -----------------------------------------------------------------------------------------------------------


def plan() -> Figure:
    """Steps from top to bottom, and beside them the bytes of the arena, each buffer as long as it is live."""
    plan = gs.compile(_block, gs.f32[1, 8, 32, 32], backend="cpu").plan
    title = f"arena, {plan.arena_bytes:,} bytes"
    heads = ((0, "step"), (50, "operators run in one kernel"), (330, title))
    parts = [_text(x, 14, head, "soft", "start") for x, head in heads]
    for i, step in enumerate(plan.steps):
        y, x = 40 + 38 * i, 50.0
        parts.append(_text(14, y + 14, i + 1))
        for node in step.nodes:
            width = 7.6 * len(node.op.name) + 16
            parts += [_box(x, y, width, 28, "fill", more='rx="6"'), _text(x + width / 2, y + 14, node.op.name, size=13)]
            x += width + 4
    for (v, (made, read)), paint in zip(_lifetimes(plan).items(), cycle(("one", "two", "three"))):
        share = v.type.size * 4 / plan.arena_bytes
        x, y, width = 330 + 290 * plan.arena[v] / plan.arena_bytes, 40 + 38 * made, max(290 * share, 3)
        parts.append(_box(x, y, width, 38 * (read - made) + 28, stroke=paint, more='stroke-width="2" rx="3"'))
        fits = width > 7 * len(v.name)
        at = (x + width / 2, "middle") if fits else (x + width + 6, "start")
        parts.append(_text(at[0], y + 14, v.name, paint, at[1], 11))
    return "The plan of a compiled block: fused steps and the arena", 640, 40 + 38 * len(plan.steps), parts


def _block(x: Any) -> Any:
    """A residual block and a classifier."""
    first, second, third = np.random.default_rng(0).standard_normal((3, 8, 8, 3, 3), np.float32)
    y = gs.relu(gs.conv2d(gs.relu(gs.conv2d(x, first, padding=1)), second, padding=1) + x)
    y = gs.max_pool2d(gs.relu(gs.conv2d(y, third, padding=1)), 2)
    return gs.softmax(gs.flatten(gs.global_avg_pool2d(y), 1), axis=-1)


def _lifetimes(plan: Any) -> dict[Any, tuple[int, int]]:
    """The step that writes a buffer of the arena, and the last that reads it or a view of it."""
    live: dict[Any, tuple[int, int]] = {}
    buffer = {v: v for v in plan.arena}
    for i, step in enumerate(plan.steps):
        read = [buffer[v] for v in step.inputs if v in buffer]
        live |= {v: (live[v][0], i) for v in read} | {v: (i, i) for v in step.outputs if v in plan.arena}
        if step.view is not None and read:
            buffer |= dict.fromkeys(step.outputs, read[0])
    return live


# --- the tolerance ----------------------------------------------------------------------------------------------------


def tolerance() -> Figure:
    """Relative errors of float32 sums by the number of terms, both axes logarithmic."""
    sizes, random = [2**k for k in range(2, 15)], np.random.default_rng(0)
    rows = [_errors(random.uniform(0.5, 1, n).astype(np.float32)) for n in sizes]

    def x(n: float) -> float:
        return 60 + 410 * math.log(n / 4, 4096)

    def y(error: float) -> float:
        return 36 - 88 / 3 * math.log10(max(error, 1e-9))

    parts = []
    for exponent in (-9, -6, -3, 0):
        height = y(10**exponent)
        parts += [_line([(60, height), (470, height)], "line"), _text(52, height, f"1e{exponent}", "soft", "end", 12)]
    parts += [_text(x(n), 314, n, "soft", size=12) for n in sizes[::4]]
    parts.append(_text(265, 334, "terms of the sum", "soft", size=12))
    parts.append(_text(0, 12, "error, relative to the sum", "soft", "start", 12))
    styles = {
        "certified tolerance": ("one", 'stroke-width="2.5"'),
        "added from left to right": ("three", ""),
        "added in pairs": ("three", 'stroke-dasharray="2 3"'),
        "the last term dropped": ("two", ""),
    }
    for (title, (paint, more)), errors in zip(styles.items(), zip(*rows, strict=True), strict=True):
        points = [(x(n), y(error)) for n, error in zip(sizes, errors, strict=True)]
        parts += [_line(points, paint, more), _text(478, points[-1][1], title, paint, "start", 13)]
    parts.append(_line([(60, y(1e-2)), (470, y(1e-2))], "soft", 'stroke-dasharray="6 4"'))
    parts.append(_text(478, y(1e-2), "allclose(rtol=1e-2)", "soft", "start", 13))
    return "Errors of sums against the certified tolerance, by the number of terms", 640, 346, parts


def _errors(terms: np.ndarray) -> tuple[float, ...]:
    """The tolerance of a sum, as a convolution with ones, and the errors of three ways to compute it."""
    meaning = gs.conformance.meaning("conv", terms[None], np.ones((1, 1, len(terms)), np.float32))
    permitted = meaning.permitted_at(0, gs.conformance.Arithmetic.of("f32"))
    exact = math.fsum(terms)
    computed = list(accumulate(terms))[-1], terms.sum(), math.fsum(terms[:-1])
    width = float(permitted.high - permitted.low) / 2
    return width / exact, *(abs(float(result) - exact) / exact for result in computed)


# --- bounds -----------------------------------------------------------------------------------------------------------


def bounds() -> Figure:
    """A network of one input, and what is proved of it: the bounds of each of twelve pieces by boxes and by lines."""
    net = gs.trace(lambda x: 2 * gs.tanh(x) - gs.relu(3 * x - 2) + gs.relu(4 * x - 5) / 2, gs.f32[1])
    ends = np.linspace(-1, 2, 13, dtype=np.float32)
    pieces = [
        [gs.bounds(net, ends[i : i + 1], ends[i + 1 : i + 2], method=method) for i in range(12)]
        for method in ("boxes", "crown")
    ]

    def place(x: float, y: float) -> Point:
        return 40 + 140 * (x + 1), 92 - 40 * y

    parts = []
    for y in (-2, 0, 2):
        parts += [_line([place(-1, y), place(2, y)], "line"), _text(30, place(0, y)[1], y, "soft", "end", 12)]
    for found, paint in zip(pieces, ("two", "one"), strict=True):
        for i, bound in enumerate(found):
            (left, top), (right, bottom) = place(ends[i], bound.upper[0]), place(ends[i + 1], bound.lower[0])
            parts.append(_box(left, top, right - left, bottom - top, "none", paint, 'stroke-width="1.5"'))
    inputs = np.linspace(-1, 2, 121, dtype=np.float32)
    parts.append(
        _line([place(x, net(inputs[i : i + 1])[0]) for i, x in enumerate(inputs)], "three", 'stroke-width="2.5"')
    )
    for y, (title, paint) in enumerate(
        (("the network", "three"), ("bounds by lines", "one"), ("bounds by boxes", "two"))
    ):
        parts.append(_text(468, 24 + 22 * y, title, paint, "start", 13))
    return "A network's output over twelve pieces of its input, and its proved bounds", 580, 184, parts


if __name__ == "__main__":
    for file, text in figures().items():
        file.write_text(text)
        print(f"{file.relative_to(FIGURES.parents[1])}: {len(text)} characters")
