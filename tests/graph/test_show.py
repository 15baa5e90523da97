"""A printed graph can be read back by eye; a drawn one has a place for everything and no box on another."""

import itertools
import re
import xml.etree.ElementTree as ET
from dataclasses import dataclass, fields

import numpy as np
import pytest
from click.testing import CliRunner

import gradspec as gs
from gradspec.cli import main
from gradspec.graph.graph import Graph
from gradspec.graph.ir import Node, Op, Var
from gradspec.graph.picture import MOST_BOXES, box_count, document
from gradspec.graph.show import attributes, summary
from graph.test_op_laws import CASES

GRAPHS = {case.id: case.graph() for case in CASES} | {f"{case.id} vjp": case.graph().vjp() for case in CASES[::5]}
DRAWN = {name: graph for name, graph in GRAPHS.items() if box_count(graph) <= MOST_BOXES}
ODD_NAME = 'a<b>&"\n\x1b[31mβ\u202e\\n'
SVG = "{http://www.w3.org/2000/svg}"


def assigned(graph):
    """What each line of a printed graph must say: names, types, operator, operands."""
    for var in graph.constants:
        yield [var.name], [str(var.type)], "constant", None
    for node in graph.nodes:
        names, types = [v.name for v in node.outputs], [str(v.type) for v in node.outputs]
        yield names, types, node.op.name, [v.name for v in node.inputs]


def own_lines(graph):
    """Those of a printed graph, without the graphs within its nodes."""
    return [line for line in str(graph).splitlines() if not line.startswith("    ")]


def long_chain(length):
    def chain(x):
        for _ in range(length):
            x = x * x
        return x

    return gs.trace(chain, gs.f32[2])


def odd_graph():
    b = gs.Builder()
    x = b.input(gs.f32[2], ODD_NAME)
    return b.build([-x, x])


# --- text -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)
def test_every_name_operator_operand_and_type_is_printed(graph):
    first, *lines, last = own_lines(graph)
    assert first == f"graph({', '.join(f'{v.name}: {v.type}' for v in graph.inputs)}):"
    assert last == f"  return {', '.join(v.name for v in graph.outputs)}"
    for line, (names, types, operator, operands) in zip(lines, assigned(graph), strict=True):
        left, _, body = line.partition(" = ")
        found_names, _, found_types = left.partition(" : ")
        assert found_names.strip() == ", ".join(names)
        assert found_types.strip() == ", ".join(types)
        if operands is None:
            assert body.startswith("constant ")
        else:
            assert re.match(rf"{operator}\({re.escape(', '.join(operands))}[,)]", body)
    assert len({line.index(" = ") for line in lines}) == 1, "the columns are aligned"


@pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)
def test_attributes_are_printed_as_keyword_arguments(graph):
    lines = own_lines(graph)[1 + len(graph.constants) :]
    for line, node in zip(lines, graph.nodes, strict=False):
        for f in fields(node.attrs):
            value = getattr(node.attrs, f.name)
            quiet = (
                value == f.default
                or "implied" in f.metadata
                or ("usual" in f.metadata and set(value) <= {f.metadata["usual"]})
            )
            shown = f"{len(value.nodes)} nodes" if isinstance(value, Graph) else repr(value)
            assert (f"{f.name}={shown}" in line) == (not quiet)


def test_what_the_types_say_is_not_printed_again():
    graph = gs.trace(
        lambda x, w: gs.conv2d(gs.max_pool2d(x, 2), w, padding=((0, 1), 0)), gs.f32[1, 6, 6], gs.f32[2, 1, 2, 2]
    )
    _, pool, conv, _ = str(graph).splitlines()
    assert pool.endswith(" = max_pool(x, kernel_size=(2, 2), stride=(2, 2))")
    assert conv.endswith(" = conv(max_pool, w, kernel=(2, 2), padding=((0, 1), (0, 0)))")


def test_odd_names_stay_on_their_line_in_ascii():
    printed = str(odd_graph())
    assert printed.isascii()
    assert len(printed.splitlines()) == 3
    assert r"a<b>&" + '"' + r"\n\x1b[31m\u03b2\u202e\\n: f32[2]" in printed


@dataclass(frozen=True)
class Inner:
    size: int
    stride: int = 1


@dataclass(frozen=True)
class Outer:
    axes: tuple[Inner, ...]
    value: float = 0.0
    mode: str | None = None


@pytest.mark.parametrize(
    ("record", "written"),
    [
        (Outer(()), ["axes=()"]),
        (Outer((Inner(3),)), ["axes=(Inner(size=3),)"]),
        (Outer((Inner(3, 2), Inner(4)), 0.5), ["axes=(Inner(size=3, stride=2), Inner(size=4))", "value=0.5"]),
        (Outer((), mode="same"), ["axes=()", "mode='same'"]),
    ],
)
def test_attributes_at_their_defaults_are_left_out(record, written):
    assert attributes(record) == written


NAN = float("nan")


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (np.float32(0.1), "0.1"),
        (np.array([[1, 2]], np.int8), "[[1, 2]]"),
        (np.zeros((0, 3)), "empty"),
        (np.broadcast_to(np.float32(0), (2**40, 0)), "empty"),
        (np.arange(7), "0 .. 6"),
        (np.full(9, 0.1, np.float16), "all 0.1"),
        (np.array([NAN] * 7), "all nan"),
        (np.array([NAN, 1, 2, 3, 4, 5, 6.5]), "1 .. 6.5, and nan"),
        (np.array([-np.inf, 1, 2, 3, 4, 5, 6]), "-inf .. 6"),
        (np.arange(8).astype(gs.bf16.numpy), "0 .. 7"),
        (np.broadcast_to(np.float32([1, 2]), (2**40, 2)), "1 .. 2"),  # which would take years cell by cell
    ],
)
def test_constants_are_summarised(array, text):
    assert summary(np.asarray(array)) == text


# --- picture ----------------------------------------------------------------------------------------------------------


def drawn(graph):
    return ET.fromstring(graph._repr_html_())


def rectangles(picture):
    return [tuple(float(r.get(k)) for k in ("x", "y", "width", "height")) for r in picture.iter(f"{SVG}rect")]


@pytest.mark.parametrize("graph", DRAWN.values(), ids=DRAWN)
def test_every_box_is_drawn_apart_from_the_others(graph):
    boxes = rectangles(drawn(graph))
    assert len(boxes) == box_count(graph)
    for (x, y, w, h), (x2, y2, w2, h2) in itertools.combinations(boxes, 2):
        assert x + w <= x2 or x2 + w2 <= x or y + h <= y2 or y2 + h2 <= y


@pytest.mark.parametrize("graph", DRAWN.values(), ids=DRAWN)
def test_every_operand_has_a_line_from_box_to_box(graph):
    picture = drawn(graph)
    boxes = rectangles(picture)
    lines = [p.get("d") for p in picture.iter(f"{SVG}path") if p.get("fill") is None]
    assert len(lines) == sum(len(node.inputs) for node in graph.nodes) + len(graph.outputs)
    for line in lines:
        numbers = [float(n) for n in re.findall(r"-?\d+\.\d+", line)]
        (x, y), (to_x, to_y) = numbers[:2], numbers[-2:]
        assert any(left <= x <= left + w and abs(top + h - y) < 0.2 for left, top, w, h in boxes)
        assert any(left <= to_x <= left + w and abs(top - to_y) < 0.2 for left, top, w, h in boxes)
        assert y < to_y, "data flows downwards"


def test_lines_pass_boxes_by():
    """Every vertical stretch of a line, wherever it passes a layer, stays outside the boxes."""
    picture = drawn(long_chain(12).vjp())
    boxes = rectangles(picture)
    for path in picture.iter(f"{SVG}path"):
        x, y = map(float, re.match(r"M(\S+) (\S+?)(?=[Vl])", path.get("d")).groups())
        for down, curve in re.findall(r"V([\d.]+)(?:C([\d. -]+))?", path.get("d")):
            below = float(down)
            for left, top, w, h in boxes:
                inside = left < x < left + w and y < top + h - 0.2 and below > top + 0.2
                assert not inside
            if curve:
                x, y = map(float, curve.split()[-2:])


def test_the_picture_stands_alone_and_quotes_names():
    page = document(odd_graph(), "</title><script>")
    assert "<script" not in page
    assert "a<b>" not in page
    assert "\u202e" not in page
    assert "β" in page
    assert re.findall(r"(?:https?:)?//[^\s\"]+", page) == ["http://www.w3.org/2000/svg"]
    texts = ["".join(t.itertext()) for t in drawn(odd_graph()).iter(f"{SVG}text")]
    assert any(text.startswith('input a<b>&"') for text in texts)


def test_kinds_of_boxes_look_different():
    picture = drawn(gs.trace(lambda x: x * 2.0, gs.f32[()]))
    paints = {(r.get("fill"), r.get("stroke")) for r in picture.iter(f"{SVG}rect")}
    assert len(paints) == 4
    texts = ["".join(t.itertext()) for t in picture.iter(f"{SVG}text")]
    assert {"input x", "constant c", "mul", "output mul", "2.0", "f32[()]"} == {text.strip() for text in texts}


def test_a_large_graph_is_a_closed_table_of_bounded_size():
    length = MOST_BOXES // 2
    assert "<svg" in long_chain(length)._repr_html_()
    for graph in (long_chain(MOST_BOXES), long_chain(20_000)):
        page = graph._repr_html_()
        assert page.startswith("<details><summary>")
        assert f"{len(graph.nodes)} operators" in page
        assert len(page) < 500_000
    assert "19000 more" in page


def test_a_graph_of_constants_alone_can_be_shown():
    b = gs.Builder()
    graph = b.build(b.const(np.float32(1)))
    assert str(graph).splitlines() == ["graph():", "  c : f32[()] = constant 1.0", "  return c"]
    assert len(rectangles(drawn(graph))) == 2


def test_a_node_without_operands_can_be_drawn():
    op = Op("three", Inner, types=lambda attrs: (gs.f32[()],), spec=None, batch=None)
    var = Var("y", gs.f32[()], None)
    graph = Graph((), (Node(op, Inner(3), (), (var,)),), (var,))
    assert "y : f32[()] = three(size=3)" in str(graph)
    assert len(rectangles(drawn(graph))) == 2


# --- command line -----------------------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path):
    gs.trace(lambda x: x * 2.0, gs.f32[2]).save(tmp_path / "double.gradspec")
    return tmp_path / "double.gradspec"


def show(*arguments):
    return CliRunner().invoke(main, ["show", *map(str, arguments)])


def test_show_prints_the_graph(saved):
    result = show(saved)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == f"{gs.load(saved)}\n"


def test_show_draws_the_graph(saved, tmp_path):
    result = show(saved, "--html", tmp_path / "double.html")
    assert (result.exit_code, result.output) == (0, "")
    page = (tmp_path / "double.html").read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>")
    assert gs.load(saved)._repr_html_() in page
    assert "<title>double.gradspec</title>" in page


def cut_short(saved):
    saved.write_bytes(saved.read_bytes()[:-3])
    return (saved,)


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        (cut_short, "bytes"),
        (lambda saved: (saved.parent / "missing.gradspec",), "missing.gradspec"),
        (lambda saved: (saved.parent,), "not a regular file"),
        (lambda saved: (saved, "--html", saved.parent / "no" / "folder.html"), "folder.html"),
    ],
)
def test_show_complains_in_one_line(saved, arguments, fragment):
    result = show(*arguments(saved))
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    assert fragment in result.stderr
    assert result.stderr.isascii()


def test_show_without_a_file_is_a_usage_error():
    assert show().exit_code == 2
