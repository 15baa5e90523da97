"""``gradspec demo``: a short Python session, typed and drawn in the terminal, or on one HTML page.

It is made of sentences, lines of Python that are shown and then run, and pictures of small grids. Everything is ASCII
and reads the same without colour: a winner stands in brackets.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from itertools import zip_longest
from textwrap import dedent, fill
from types import SimpleNamespace
from typing import Any, TypeAlias

from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from gradspec import __version__
from gradspec.graph.graph import Graph
from gradspec.graph.ir import Node

# --- sections ---------------------------------------------------------------------------------------------------------
#
# One idea a screen. Later sections use the names that earlier ones entered.


def opening(page: Page) -> None:
    page.title(f"gradspec {__version__}: what convolution and pooling mean")
    page.say(
        "A specification that runs, the judge of kernels, and proofs about networks, in five screens. All that "
        "follows is computed now, by the lines after >>>; they form one Python session that you can type yourself."
    )
    page.enter("import gradspec as gs")


def specification(page: Page) -> None:
    page.section(
        "A specification, read and run",
        "Max pooling as it is defined: the first largest real cell of a window wins, and padding never competes. The "
        "same lines of Python run on integers, on exact rationals, where tied cells may share the gradient, and on "
        "intervals, where they hold for every image in a box.",
    )
    at = page.enter("""
        image = [[-2, -1,  0,  3,  1],
                 [-1, -4,  3,  6,  2],
                 [ 2,  2, -5,  6, -3],
                 [ 0,  1,  4, -2, -1],
                 [-3,  4,  4, -1, -5]]
        window = dict(kernel_size=(3, 3), stride=2, padding=1)
        y, where = gs.spec.max_pool(image, **window,
                                    return_indices=True)
        ones = gs.exact.tensor([[1] * 3] * 3)
        shared = gs.spec.max_pool_vjp(image, ones, **window,
                                      ties="split")
        box = gs.interval.tensor(
            [[p - 0.5 for p in row] for row in image],
            [[p + 0.5 for p in row] for row in image])
        bounds = gs.spec.max_pool(box, **window)
    """)
    gradient = [[Text(str(q) if q else "-") for q in row] for row in at.shared.tolist()]
    cells = [[number(c, 5 * i + j in at.where.cells) for j, c in enumerate(row)] for i, row in enumerate(at.image)]
    page.draw(grid(cells, "image, winners"), grid(gradient, "gradient, ties shared"))
    page.draw(
        grid([[number(value) for value in row] for row in at.y.tolist()], "value"),
        grid(([Text(str(i)) for i in row] for row in at.bounds.tolist()), "value, if pixels are off by 1/2"),
    )


def judged(page: Page) -> None:
    page.section(
        "A kernel, judged",
        "This kernel pads with zeros, and the test that one writes first passes: its numbers are positive. The judge "
        "tries what tests leave out, compares with exact arithmetic, and shrinks what is wrong to its smallest case.",
    )
    at = page.enter("""
        import numpy as np
        from numpy.lib.stride_tricks import sliding_window_view
        def max_pool1d(x, kernel_size, stride, padding):
            sides = [(0, 0)] * (x.ndim - 1) + list(padding)
            cells = sliding_window_view(np.pad(x, sides),
                                        kernel_size[0], axis=-1)
            return cells[..., ::stride[0], :].max(axis=-1)

        drawn = np.random.default_rng(0).random((8, 99))
        mine = max_pool1d(drawn, (2,), (2,), [(1, 1)])
        ours = gs.max_pool1d(drawn, 2, padding=1)
        passes = np.allclose(mine, ours)
        run = gs.conformance.check(max_pool1d, cases=20, seed=2,
                                   dtypes=["f32"], ranks=[1])
        found = run.by_kind("defect")[0]
    """)
    (case,) = at.found.case["inputs"]
    shown = {
        "np.allclose": at.passes,
        "cases judged": f"{at.run.cases}, of which {at.found.count} show this",
        "defect": at.found.title,
        "smallest input": case["cells"],
        "smallest window": ", ".join(f"{k} {v}" for k, v in at.found.case["problem"]["attributes"].items()),
        "got": at.found.got,
        "expected": at.found.expected,
    }
    page.draw(table(("kernel", at.max_pool1d.__name__), shown.items()))


def proved(page: Page) -> None:
    page.section(
        "A network, bounded and proved",
        "Bounds hold for every image in a box, and for whatever kernel will ever run the network, with its rounding. "
        "That each of these images shows a vertical edge is proved, and the proof is checked by code that shares "
        "nothing with the search. In a larger box there is a counterexample, which is one exactly.",
    )
    at = page.enter("""
        bars = np.float32([[1, 0, -1]] * 3)
        masks = np.stack([bars, bars.T])[:, None]
        def edges(x):
            y = gs.relu(gs.conv2d(x, masks))
            return gs.sum(y, axis=(1, 2))

        seen = np.float32([[[1, 1, 0, 0, 0]] * 5])
        network = gs.trace(edges, gs.f32[1, 5, 5])
        reach = gs.bounds(network, seen - np.float32(0.05),
                          seen + np.float32(0.05))
        claim = gs.verify.Property.robust(seen, "1/20", 0, 2)
        proof = gs.verify.prove(network, claim)
        checked = gs.verify.check(proof.certificate,
                                  network, claim)
        wider = gs.verify.robust(network, seen, "1/2", 0)
        outputs = network(*wider.witness)
    """)
    rows = zip(("vertical", "horizontal"), at.network(at.seen), at.reach.lower, at.reach.upper, strict=True)
    ends = [(name, f"{y:.3f}", _outward(low, -1), _outward(high, 1)) for name, y, low, high in rows]
    page.draw(table(("edge", "value", "at least", "at most"), ends))
    verdicts = [
        ("1/20", at.proof.status, f"certificate {'accepted' if at.checked else 'refused'}"),
        ("1/2", at.wider.status, "vertical {:.3f}, horizontal {:.3f}".format(*at.outputs)),
    ]
    page.draw(table(("off by", "answer", "because"), verdicts))


def _outward(end: float, side: int) -> str:
    """Three digits of an end that lie on its far side."""
    return f"{side * math.ceil(side * float(end) * 10**3) / 10**3:.3f}"


def differentiated(page: Page) -> None:
    page.section(
        "A derivative, exact",
        "Traced, a function becomes a list of operators. Differentiated, it is a list of operators again. Forward over "
        "reverse and reverse over forward are two graphs for one Hessian, and in rationals their results are equal.",
    )
    at = page.enter("""
        def cubed(signal, w):
            y = gs.relu(gs.conv1d(signal, w))
            top = gs.max_pool1d(y, 2)
            return gs.sum(top * top * top)

        net = gs.trace(cubed, gs.f32[1, 5], gs.f32[1, 1, 2])
        signal = gs.exact.tensor([[1, "1/2", 2, -1, "1/10"]])
        w = gs.exact.tensor([[["3/10", "7/10"]]])
        along = gs.exact.tensor([[[1, 0]]])
        def exactly(graph, *more):
            return gs.evaluate(graph, signal, w, *more,
                               domain=gs.exact)

        slope = exactly(net.vjp("w"), 1)
        twice = (net.vjp("w").jvp("w"), net.jvp("w").vjp("w"))
        bend = (exactly(twice[0], 1, along)[-1],
                exactly(twice[1], along, 0, 1)[-1])
    """)
    page.draw(_nodes(at.net))
    value, gradient = at.slope
    names = ("value", "gradient", "forward over reverse", "reverse over forward")
    programs = (at.net, at.net.vjp("w"), *at.twice)
    results = (value, gradient, *at.bend)
    rows = [(name, len(g.nodes), r.tolist()) for name, g, r in zip(names, programs, results, strict=True)]
    page.draw(table(("", "nodes", "exactly"), rows))


def _nodes(graph: Graph) -> Picture:
    return table(("variable", "is", "type"), map(_assignment, graph.nodes))


def _assignment(node: Node) -> tuple[str, str, str]:
    (output,) = node.outputs
    return output.name, f"{node.op}({', '.join(v.name for v in node.inputs)})", str(output.type)


def imported(page: Page) -> None:
    page.section(
        "A model, imported",
        "Models come from PyTorch, JAX and ONNX, and go back. In between they are graphs like the ones above: they "
        "run on compiled kernels, have derivatives of every order, and can be bounded, proved and judged by.",
    )
    if find_spec("onnx") is None:
        page.say('This screen needs a library that has models: pip install "gradspec[onnx]" brings one.')
        return
    at = page.enter("""
        import onnx.parser
        model = onnx.parser.parse_model('''
          <ir_version: 8, opset_import: ["" : 18]>
          tiny (float[1,1,4,4] x) => (float[1,4] y) {
            w = Constant<value = float[1,1,1,1] {-2.0}>()
            c = Conv(x, w)
            r = Relu(c)
            p = MaxPool<kernel_shape=[2,2], strides=[2,2]>(r)
            y = Flatten<axis=1>(p)
          }''')
        graph = gs.from_onnx(model)
        x = np.float32([[[[3, -1, 2, -2], [1, -4, 0, 5],
                          [-1, 2, -3, 0], [2, 2, 1, 1]]]])
        ones = np.ones((1, 4), np.float32)
        result, pulled = graph.vjp()(x, ones)
    """)
    page.draw(_nodes(at.graph))
    pulled = [[number(int(cell), wins=bool(cell)) for cell in row] for row in at.pulled[0, 0]]
    cells = [[number(int(cell)) for cell in row] for row in at.x[0, 0]]
    outputs = [[number(int(cell)) for cell in row] for row in at.result.reshape(2, 2)]
    page.draw(grid(cells, "x"), grid(outputs, "y"), grid(pulled, "gradient of y's sum"))


def closing(page: Page) -> None:
    page.say(
        "Read on: python -m pydoc gradspec.spec.pool shows the specification that these lines ran, and gradspec check "
        "--help how to judge a kernel of your own."
    )


SECTIONS = (opening, specification, judged, proved, differentiated, imported, closing)


# --- the page ---------------------------------------------------------------------------------------------------------


NARROWEST, WIDEST = 60, 88  # columns: pictures need the first, and sentences read badly beyond the second

WINNER, CODE, TITLE, FAINT = "bold green", "cyan", "bold", "dim"

Picture: TypeAlias = list[Text]


class Page:
    """Standard output, and the Python session the demo goes through."""

    def __init__(self) -> None:
        self.console = Console(markup=False, emoji=False, highlight=False)
        self.console.width = min(max(self.console.width, NARROWEST), WIDEST)
        self.names: dict[str, Any] = {}
        self.sections = 0

    def title(self, text: str) -> None:
        self.console.print("", Text(text, TITLE), "", sep="\n")

    def section(self, title: str, sentence: str) -> None:
        self.sections += 1
        heading = Text(f"{self.sections}. {title}", TITLE)
        self.console.print("", Rule(heading, characters="-", align="left", style=FAINT), sep="\n")
        self.say(sentence)

    def say(self, sentence: str) -> None:
        self.console.print(fill(sentence, self.console.width - 1), "", sep="\n")

    def enter(self, code: str) -> SimpleNamespace:
        """Show ``code`` as typed at a prompt, run it, and give back every name the session has so far.

        What is shown is what is run, so a reader who types it gets what the page draws.
        """
        lines = dedent(code).strip().splitlines()
        prompts = ("..." if line[:1] in ("", " ") else ">>>" for line in lines)
        self.type([f"{prompt} {line}".rstrip() for prompt, line in zip(prompts, lines, strict=True)])
        exec("\n".join(lines), self.names)
        return SimpleNamespace(**self.names)

    def type(self, lines: Sequence[str]) -> None:
        """Show lines as they are typed."""
        for line in lines:
            self.console.print(Text(line, CODE), soft_wrap=True)
        self.console.print()

    def draw(self, *pictures: Picture) -> None:
        """Pictures side by side."""
        widths = [max(map(len, picture)) for picture in pictures]
        for parts in zip_longest(*pictures, fillvalue=Text()):
            line = Text(" ")
            for part, width in zip(parts, widths, strict=True):
                line.append(" ").append_text(part).append(" " * (width - len(part) + 2))
            line.rstrip()
            self.console.print(line, soft_wrap=True)
        self.console.print()


def grid(rows: Iterable[Iterable[Text]], title: str = "", width: int = 0) -> Picture:
    """Cells in columns of one width, aligned on the right, under a title."""
    cells = [list(row) for row in rows]
    width = width or 1 + max(len(cell) for row in cells for cell in row)
    lines = [Text.assemble(*(part for cell in row for part in (" " * (width - len(cell)), cell))) for row in cells]
    return [Text(title, TITLE), *lines] if title else lines


def table(header: Sequence[str], rows: Iterable[Iterable[object]]) -> Picture:
    """Rows under a header, aligned on the left."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(header, *cells, strict=True)]

    def line(row: Sequence[str], style: str = "") -> Text:
        return Text("   ".join(map(str.ljust, row, widths)), style)

    return [line(header, TITLE), *map(line, cells)]


def number(value: object, wins: bool = False) -> Text:
    """A number, in brackets if it wins; the digits line up either way."""
    digits = f"{value:g}" if isinstance(value, float) else str(value)
    return Text(f"[{digits}]", WINNER) if wins else Text(f"{digits} ")


# --- as HTML: loads nothing, and reads well at any width, in light and dark -------------------------------------------

CLASSES = {WINNER: "wins", TITLE: "title"}

STYLE = """
header, main { max-width: 56rem; }
pre { margin: 0.6rem 0; padding: 0.7rem 0.9rem; overflow-x: auto; line-height: 1.35; border-radius: 6px; }
pre.typed { background: var(--code); border: 1px solid var(--line); color: var(--link); }
.pictures { display: flex; flex-wrap: wrap; gap: 0 2rem; }
.pictures pre { padding: 0; max-width: 100%; }
.title { font-weight: 600; }
.wins { font-weight: 700; color: var(--winner); }
"""


class HtmlPage(Page):
    """The same session; what a terminal would show is collected."""

    def __init__(self) -> None:
        super().__init__()
        self._plain = Console(color_system=None)
        self._title = ""
        self._sections: list[tuple[str, list[tuple[str, Any]]]] = [("", [])]
        """Headings, and what is said, typed and drawn below each."""

    def title(self, text: str) -> None:
        self._title = text

    def section(self, title: str, sentence: str) -> None:
        self.sections += 1
        self._sections.append((f"{self.sections}. {title}", []))
        self.say(sentence)

    def say(self, sentence: str) -> None:
        self._add("say", sentence)

    def type(self, lines: Sequence[str]) -> None:
        self._add("type", "\n".join(lines))

    def draw(self, *pictures: Picture) -> None:
        self._add("draw", [[self._spans(text) for text in picture] for picture in pictures])

    def _add(self, kind: str, content: object) -> None:
        self._sections[-1][1].append((kind, content))

    def _spans(self, text: Text) -> list[tuple[str, str]]:
        """The parts of a line, each with its class."""
        segments = Text.assemble(text).render(self._plain)
        return [(CLASSES[str(s.style)] if s.style else "", s.text) for s in segments]

    def written(self) -> str:
        from gradspec.conformance.report.templates import render_page

        (_, opening), *sections = self._sections
        return render_page("demo/page.html", self._title, style=STYLE, opening=opening, sections=sections)


# --- the whole demo ---------------------------------------------------------------------------------------------------


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
