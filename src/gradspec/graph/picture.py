"""A graph as a picture: HTML with an SVG inside, which needs no script, no style sheet and no network.

Data flows downwards. A box lies one layer below the last of its operands, and inputs and constants just above their
first use. A variable that is used further down runs through a place of its own in every layer between, so that its line
passes boxes by. Sweeps then order the layers by the average place of what each entry is connected to, and move entries
as near to it as their order allows.

Why not Graphviz: the picture must appear wherever the package is installed, and ``dot`` is a program of its own, as
igraph is a library in C. The one layered layout in pure Python, grandalf, was last released in January 2023, under the
GPL or EPL, and gives coordinates only: what is drawn here, more than half of this module, would stay.

Why not Mermaid: its text is drawn by a script of 3.6 MB (11.17), which a page must hold or load, and the arrows of
``sub(q, p)`` and ``sub(p, q)`` arrive in the same order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise

from gradspec.graph.ir import Body, Node, Var
from gradspec.graph.show import application, attributes, summary

MOST_BOXES = 200
MOST_ROWS = 1000

CHARACTER, LINE, PADDING = 7.3, 16, 10
LONGEST_LINE = 36
MOST_LINES = 5
BESIDE, BETWEEN = 16, 36
"""The space between neighbours in a layer, and between layers."""
SWEEPS = 12
INWARDS = 0.96
"""How near to the middle a place is kept: without it, every line that leaves a long chain pushes the chain aside."""
STRAIGHTNESS = 8
"""How much more a line that passes by is kept straight than a box is kept near its neighbours."""

FONT = "font-family:ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;font-size:12px"
PAINT = {
    "input": 'fill="#e6f0fb" stroke="#3d7ab8" rx="4"',
    "constant": 'fill="#f7f3e6" stroke="#a58a3c" stroke-dasharray="4 2" rx="4"',
    "operator": 'fill="#ffffff" stroke="#6b7280" rx="4"',
    "output": 'fill="#e6f5ea" stroke="#3c8f57" rx="14"',
}


@dataclass(eq=False)
class NodeBox:
    """A box, or, without lines of text, the place where a line passes through a layer."""

    kind: str
    lines: tuple[tuple[str, str], ...] = ()
    """Each line's bold beginning and its rest."""
    about: str = ""
    operands: tuple[Var, ...] = ()
    results: tuple[Var, ...] = ()
    layer: int = 0
    x: float = 0.0
    """Of its centre."""
    y: float = 0.0
    """Of its upper edge."""
    above: list[NodeBox] = field(default_factory=list)
    below: list[NodeBox] = field(default_factory=list)

    @property
    def width(self) -> float:
        longest = max((len(f"{bold} {rest}".strip()) for bold, rest in self.lines), default=0)
        return longest * CHARACTER + 2 * PADDING if self.lines else 0.0

    @property
    def height(self) -> float:
        return len(self.lines) * LINE + PADDING if self.lines else 0.0

    def port(self, k: int, count: int) -> float:
        """The place of the k-th of several lines along an edge of the box."""
        return self.x + self.width * ((k + 1) / (count + 1) - 0.5)


def html(graph: Body) -> str:
    """The picture; for a graph with too many boxes to follow, a table."""
    return _table(graph) if box_count(graph) > MOST_BOXES else _drawing(graph)


def box_count(graph: Body) -> int:
    return len(graph.inputs) + len(graph.constants) + len(graph.nodes) + len(graph.outputs)


def document(graph: Body, title: str) -> str:
    """A whole HTML page with the picture."""
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head><meta charset="utf-8"><title>{visible(title)}</title></head>\n'
        f"<body>\n{html(graph)}\n</body>\n</html>\n"
    )


# --- boxes -----------------------------------------------------------------------------------------------------------


def _boxes(graph: Body) -> list[NodeBox]:
    several = len(graph.outputs) > 1
    return [
        *(_box("input", [("input", v.name), ("", str(v.type))], (), (v,)) for v in graph.inputs),
        *(
            _box("constant", [("constant", v.name), ("", summary(a)), ("", str(v.type))], (), (v,))
            for v, a in graph.constants.items()
        ),
        *(_operator(node) for node in graph.nodes),
        *(
            _box("output", [(f"output {i}" if several else "output", v.name)], (v,), ())
            for i, v in enumerate(graph.outputs)
        ),
    ]


def _operator(node: Node) -> NodeBox:
    names = ", ".join(v.name for v in node.outputs)
    lines = [
        (node.op.name, "" if names == node.op.name else names),
        *(("", line) for line in _wrap(attributes(node.attrs))),
        *(("", str(v.type)) for v in node.outputs),
    ]
    box = _box("operator", lines, node.inputs, node.outputs)
    box.about = f"{names} = {application(node)} : {', '.join(str(v.type) for v in node.outputs)}"
    return box


def _box(kind: str, lines: Iterable[tuple[str, str]], operands: tuple[Var, ...], results: tuple[Var, ...]) -> NodeBox:
    written = [(bold, printable(rest)) for bold, rest in lines if bold or rest]
    shown = tuple((bold, _shorten(rest, LONGEST_LINE - len(bold))) for bold, rest in written)
    return NodeBox(kind, shown, "\n".join(f"{bold} {rest}".strip() for bold, rest in written), operands, results)


def _wrap(entries: Iterable[str]) -> list[str]:
    """Entries set side by side in lines that are not too long."""
    lines: list[str] = []
    for entry in entries:
        if lines and len(lines[-1]) + 2 + len(entry) <= LONGEST_LINE:
            lines[-1] += f", {entry}"
        else:
            lines.append(entry)
    return [*lines[:MOST_LINES], *["..."] * (len(lines) > MOST_LINES)]


def _shorten(text: str, length: int) -> str:
    return text if len(text) <= length else text[: max(length - 3, 0)] + "..."


# --- layers ----------------------------------------------------------------------------------------------------------


def _assign_layers(boxes: Sequence[NodeBox]) -> tuple[list[list[NodeBox]], dict[tuple[Var, int], NodeBox]]:
    """The layers from top to bottom, and the place where each variable is found in each layer it is needed in."""
    source = {v: box for box in boxes for v in box.results}
    users = defaultdict(list)
    for box in boxes:
        for v in box.operands:
            users[v].append(box)
        box.layer = max((source[v].layer for v in box.operands if source[v].kind == "operator"), default=0) + 1
    for box in boxes:
        if box.kind in ("input", "constant"):
            box.layer = min((user.layer for user in users[box.results[0]]), default=1) - 1

    layers: list[list[NodeBox]] = [[] for _ in range(max(box.layer for box in boxes) + 1)]
    for box in boxes:
        layers[box.layer].append(box)
    places: dict[tuple[Var, int], NodeBox] = {}
    for v, box in source.items():
        places[v, box.layer] = box
        last = max((user.layer for user in users[v]), default=0)
        for layer in range(box.layer + 1, last):
            passing = NodeBox("line", layer=layer)
            places[v, layer] = passing
            layers[layer].append(passing)
            _connect(places[v, layer - 1], passing)
    for box in boxes:
        for v in box.operands:
            _connect(places[v, box.layer - 1], box)
    return layers, places


def _connect(upper: NodeBox, lower: NodeBox) -> None:
    upper.below.append(lower)
    lower.above.append(upper)


def _arrange(layers: Sequence[list[NodeBox]]) -> None:
    """Order the boxes of each layer, and give every box its place."""
    for sweep in range(SWEEPS):
        for layer in layers if sweep % 2 == 0 else reversed(layers):
            for i, box in enumerate(layer):
                box.x = i if sweep == 0 and not box.above else _preferred_x(box, upwards=sweep % 2 == 0, alone=box.x)
            layer.sort(key=lambda box: box.x)
            for i, box in enumerate(layer):
                box.x = i - len(layer) / 2
    for sweep in range(SWEEPS):
        for layer in layers if sweep % 2 == 0 else reversed(layers):
            _spread(layer, [INWARDS * _preferred_x(box, upwards=sweep % 2 == 0, alone=box.x) for box in layer])
    left = min(box.x - box.width / 2 for layer in layers for box in layer)
    y = float(BESIDE)
    for layer in layers:
        for box in layer:
            box.x += BESIDE - left
            box.y = y
        y += max((box.height for box in layer), default=0.0) + BETWEEN


def _preferred_x(box: NodeBox, *, upwards: bool, alone: float) -> float:
    neighbours = (box.above or box.below) if upwards else (box.below or box.above)
    return sum(n.x for n in neighbours) / len(neighbours) if neighbours else alone


def _spread(layer: Sequence[NodeBox], wanted: Sequence[float]) -> None:
    """The places nearest to the wanted ones, in least squares, that keep the order and the distances.

    Without the distances between centres the places need only not decrease: neighbours that are out of order are merged
    into one block at their mean.
    """
    offsets = [0.0]
    for left, right in pairwise(layer):
        offsets.append(offsets[-1] + (left.width + right.width) / 2 + BESIDE)
    blocks: list[tuple[float, float, int]] = []  # mean, weight, number of boxes
    for box, x, offset in zip(layer, wanted, offsets, strict=False):
        mean, weight, count = x - offset, 1.0 if box.lines else float(STRAIGHTNESS), 1
        while blocks and blocks[-1][0] > mean:
            other, heavy, more = blocks.pop()
            mean = (mean * weight + other * heavy) / (weight + heavy)
            weight, count = weight + heavy, count + more
        blocks.append((mean, weight, count))
    places = [mean for mean, _, count in blocks for _ in range(count)]
    for box, place, offset in zip(layer, places, offsets, strict=False):
        box.x = place + offset


# --- drawing ---------------------------------------------------------------------------------------------------------


def _drawing(graph: Body) -> str:
    boxes = _boxes(graph)
    layers, places = _assign_layers(boxes)
    _arrange(layers)
    width = max(box.x + box.width / 2 for layer in layers for box in layer) + BESIDE
    height = max(box.y + box.height for box in boxes) + BESIDE
    bottoms = [max((box.y + box.height for box in layer), default=0.0) for layer in layers]
    lines = [line for box in boxes for k, v in enumerate(box.operands) for line in _line(box, k, v, places, bottoms)]
    return (
        '<div style="overflow:auto;max-width:100%;background:#ffffff;color:#111827">\n'
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" style="{FONT}" role="img" '
        f'aria-label="graph of {len(graph.nodes)} operators">\n'
        '<g fill="none" stroke="#9ca3af" stroke-width="1.3">\n'
        + "\n".join(lines)
        + "\n</g>\n"
        + "\n".join(map(_draw_svg, boxes))
        + "\n</svg>\n</div>"
    )


def _line(
    box: NodeBox, k: int, v: Var, places: dict[tuple[Var, int], NodeBox], bottoms: Sequence[float]
) -> Iterable[str]:
    """The curve from where ``v`` is assigned to operand ``k`` of ``box``, and its arrowhead."""
    layer = box.layer - 1
    passed = []
    while not places[v, layer].lines:
        passed.append(places[v, layer])
        layer -= 1
    source = places[v, layer]
    x, y = source.port(source.results.index(v), len(source.results)), source.y + source.height
    path = [f"M{x:.1f} {y:.1f}"]
    for place in reversed(passed):
        if abs(place.x - x) > 0.5:
            path.append(_bend(x, bottoms[layer], place.x, place.y))
            x = place.x
        layer = place.layer
    end = box.port(k, len(box.operands))
    path.append(_bend(x, bottoms[layer], end, box.y))
    yield f'<path d="{"".join(path)}"/>'
    yield f'<path d="M{end:.1f} {box.y:.1f}l-3.5 -6h7Z" fill="#9ca3af"/>'


def _bend(x: float, y: float, to_x: float, to_y: float) -> str:
    """Straight down to ``y``, then over to the next place."""
    middle = (y + to_y) / 2
    return f"V{y:.1f}C{x:.1f} {middle:.1f} {to_x:.1f} {middle:.1f} {to_x:.1f} {to_y:.1f}"


def _draw_svg(box: NodeBox) -> str:
    left = box.x - box.width / 2
    texts = "".join(
        f'<text x="{box.x:.1f}" y="{box.y + PADDING / 2 + LINE * i + 12:.1f}" text-anchor="middle">'
        + (f'<tspan font-weight="600">{visible(bold)}</tspan> ' if bold else "")
        + f"{visible(rest)}</text>"
        for i, (bold, rest) in enumerate(box.lines)
    )
    return (
        f'<g fill="#111827"><title>{visible(box.about)}</title><rect x="{left:.1f}" y="{box.y:.1f}" '
        f'width="{box.width:.1f}" height="{box.height:.1f}" {PAINT[box.kind]}/>{texts}</g>'
    )


def _table(graph: Body) -> str:
    """A table of the first nodes, closed until it is clicked."""
    cells = 'style="text-align:left;padding:0 1em 0 0"'
    rows = "\n".join(
        f"<tr><td {cells}>{visible(', '.join(v.name for v in node.outputs))}</td>"
        f"<td {cells}>{visible(application(node))}</td>"
        f"<td {cells}>{visible(', '.join(str(v.type) for v in node.outputs))}</td></tr>"
        for node in graph.nodes[:MOST_ROWS]
    )
    more = len(graph.nodes) - MOST_ROWS
    rest = f"<p>{more} more; print the graph to see all of them.</p>" if more > 0 else ""
    return (
        f"<details><summary>A graph of {len(graph.nodes)} operators, too many to draw: "
        f"{len(graph.inputs)} inputs, {len(graph.constants)} constants, {len(graph.outputs)} outputs"
        f'</summary>\n<table style="{FONT};border-collapse:collapse">\n{rows}\n</table>{rest}</details>'
    )


def visible(text: str) -> str:
    """Text as HTML shows it.

    >>> visible("a<b\\u202e")
    'a&lt;b\\\\u202e'
    """
    return escape(printable(text))


def printable(text: str) -> str:
    """Text in which what does not print, or would reverse the line, is escaped."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)
