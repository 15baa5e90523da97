"""What is saved is what is loaded, bit for bit, and another program can read it from the description alone."""

import json
import math
import os
import struct
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Literal

import numpy as np
import pytest
from safetensors import safe_open

import gradspec as gs
from gradspec.graph.graph import Graph, check
from gradspec.graph.ir import LATER, NoAttributes, Node, Op, Var
from gradspec.graph.types import DTYPES
from gradspec.ops.core import operators
from gradspec.saving import graphs
from gradspec.saving.graphs import fields_from_json, fields_to_json
from gradspec.saving.strict_json import strict_json
from graph.test_op_laws import CASES


def bits(array):
    return array.dtype, array.shape, array.tobytes()


def told(graph):
    """Everything about a graph that a file must keep, in order."""
    yield "inputs", *((v.name, v.type) for v in graph.inputs)
    for v, array in graph.constants.items():
        yield "constant", v.name, v.type, bits(array)
    for node in graph.nodes:
        inputs, outputs = [v.name for v in node.inputs], [(v.name, v.type) for v in node.outputs]
        yield node.op, type(node.attrs), repr(node.attrs), inputs, outputs
    yield "outputs", *(v.name for v in graph.outputs)


def assert_round_trip(graph, path):
    graph.save(path)
    loaded = check(gs.load(path))
    for before, after in zip_longest(told(graph), told(loaded)):
        assert before == after
    return loaded


@pytest.fixture
def path(tmp_path):
    return tmp_path / "graph.gradspec"


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Tests need not wait for the disk."""
    monkeypatch.setattr(os, "fsync", lambda file: None)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_every_operator_and_its_derivatives_round_trip(case, path):
    for graph in (case.graph(), case.graph(gs.bf16), case.graph().jvp(), case.graph().vjp(), case.graph().vjp().jvp()):
        assert_round_trip(graph, path)
    assert {node.op.name for node in graph.nodes} <= operators().keys()


def test_a_loaded_graph_runs_and_transforms(path):
    g = gs.trace(lambda x, y: gs.sum(x * y - 3.0, 0), gs.f32[4], gs.f32[4])
    loaded = assert_round_trip(g.vjp(), path)
    arrays = [np.float32([1, 2, 3, 4]), np.float32([5, 6, 7, 8]), np.float32(1)]
    assert [a.tolist() for a in loaded(*arrays)] == [58.0, [5, 6, 7, 8], [1, 2, 3, 4]]
    check(loaded.jvp().vjp().batch(2).simplify())


def test_a_loaded_graph_is_finished(path):
    gs.trace(lambda x: -x, gs.f32[2]).save(path)
    with pytest.raises(ValueError, match=r"neg: f32\[2\] belongs to a graph that is finished"):
        gs.load(path).outputs[0] + 1.0


# --- constants --------------------------------------------------------------------------------------------------------

PATTERNS = np.random.default_rng(1).integers(0, 256, 480, np.uint8)
PATTERNS[: 8 * 8] = np.frombuffer(struct.pack("<8Q", *(0x7FF0000000000001 + k for k in range(8))), np.uint8)


def every_bit_pattern(dtype):
    """Numbers of any bits: NaNs with payloads, signalling ones, infinities, subnormals, signed zeros."""
    special = [np.inf, -np.inf, -0.0, np.nan] if dtype.is_float else []
    patterns = PATTERNS > 127 if dtype is gs.boolean else PATTERNS.view(dtype.numpy)
    return np.concatenate([patterns, np.array(special, dtype.numpy)])


ARRAYS = {
    **{f"bits {dtype}": every_bit_pattern(dtype) for dtype in DTYPES.values()},
    "scalar": np.float64(0.1),
    "empty": np.zeros((2, 0, 3), np.float32),
    "transposed": np.arange(6, dtype=np.float32).reshape(2, 3).T,
    "reversed": np.arange(6, dtype=np.int32)[::-1],
    "repeated": np.broadcast_to(np.float32([[1], [2]]), (3, 2, 4)),
    "repeated nothing": np.broadcast_to(np.float32(1), (3, 0)),
    "ones": np.ones((1, 1), np.int8),
}


def constant_graph(*arrays):
    b = gs.Builder()
    return b.build([b.share(np.asarray(a).view(), f"c{i}") for i, a in enumerate(arrays)])


@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)
def test_constants_keep_every_bit(array, path):
    assert_round_trip(constant_graph(array), path)


def test_many_constants_keep_their_places(path):
    assert_round_trip(constant_graph(*ARRAYS.values()), path)


def test_what_takes_no_memory_takes_no_file(path):
    b = gs.Builder()
    loaded = assert_round_trip(b.build(b.zeros(gs.f32[1000, 1000])), path)
    assert path.stat().st_size < 1000
    (zeros,) = loaded.constants.values()
    assert zeros.strides == (0, 0)


def test_names_of_every_kind_round_trip(path):
    b = gs.Builder()
    names = ["β", "../../etc/passwd", "a\nb", "\x00", '"', "version", "c" * 1000]
    inputs = [b.input(gs.f32[2], name) for name in names]
    constants = [b.const(np.float32([1, 2]), name + "!") for name in names]
    assert_round_trip(b.build([*inputs, *constants]), path)


def test_what_is_not_needed_is_kept(path):
    b = gs.Builder()
    x = b.input(gs.f32[2], "x")
    b.input(gs.f32[3], "unused")
    graph = b.build(-x, allow_unused=True)
    dead = Node(operators()["neg"], NoAttributes(), (x,), (Var("dead", x.type, b),))
    assert_round_trip(Graph(graph.inputs, (dead, *graph.nodes), (*graph.outputs, *graph.outputs)), path)


# --- another program --------------------------------------------------------------------------------------------------

NUMPY = {"F16": "<f2", "BF16": "<u2", "F32": "<f4", "F64": "<f8", "I8": "<i1", "U8": "<u1", "I32": "<i4", "I64": "<i8"}


def read_by_description(path):
    """A reader written from docs/format.md, with nothing of gradspec."""
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        data = file.read()
    graph = json.loads(header.pop("__metadata__")["gradspec"])
    arrays = {}
    for name, tensor in header.items():
        begin, end = tensor["data_offsets"]
        array = np.frombuffer(data[begin:end], NUMPY[tensor["dtype"]]).reshape(tensor["shape"])
        if tensor["dtype"] == "BF16":
            array = (array.astype(np.uint32) << 16).view(np.float32)
        arrays[name] = array
    return graph, {c["name"]: np.broadcast_to(arrays[c["name"]], c["shape"]) for c in graph["constants"]}


def run_by_description(graph, constants, **inputs):
    meaning = {
        "mul": lambda attributes, a, b: a * b,
        "sum": lambda attributes, a: a.sum(tuple(attributes["axes"])),
        "broadcast_to": lambda attributes, a: np.broadcast_to(a, attributes["shape"]),
    }
    values = {**inputs, **constants}
    for node in graph["nodes"]:
        (output,) = node["outputs"]
        values[output["name"]] = meaning[node["op"]](node["attributes"], *(values[v] for v in node["inputs"]))
    return [values[name] for name in graph["outputs"]]


@pytest.mark.parametrize("dtype", [gs.f16, gs.bf16, gs.f32, gs.f64], ids=str)
def test_another_program_reads_and_runs_it(dtype, path):
    weight = np.array([[1.5], [-2]], dtype.numpy)
    g = gs.trace(lambda x: gs.sum(x * np.broadcast_to(weight, (2, 3)) * 2.0, 1), dtype[2, 3])
    g.save(path)
    graph, constants = read_by_description(path)
    assert graph["version"] == 1
    assert [i["name"] for i in graph["inputs"]] == ["x"]
    (result,) = run_by_description(graph, constants, x=np.float32([[1, 2, 3], [4, 5, 6]]))
    assert result.tolist() == [18, -60]


def test_the_safetensors_library_reads_it(path):
    constant_graph(np.float32([1, 2]), np.arange(3)).save(path)
    with safe_open(path, "np") as file:
        assert json.loads(file.metadata()["gradspec"])["version"] == 1
        assert {name: file.get_tensor(name).tolist() for name in file.keys()} == {"c0": [1, 2], "c1": [0, 1, 2]}  # noqa: SIM118


# --- attributes -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Near:
    size: int


@dataclass(frozen=True)
class Far:
    size: int
    step: float | None = None


@dataclass(frozen=True)
class Everything:
    flag: bool
    count: int
    value: float
    word: str
    maybe: int | None
    sizes: tuple[int, ...]
    pairs: tuple[tuple[int, int], ...]
    axes: tuple[Near | Far, ...]
    mode: Literal["a", "b"]
    gained: tuple[int, ...] | None = field(default=None, metadata=LATER)


GOOD: dict[str, Any] = {
    "flag": True,
    "count": -3,
    "value": 0.1,
    "word": "β\ud800",
    "maybe": None,
    "sizes": (1, 2, 3),
    "pairs": ((0, 1), (2, 3)),
    "axes": (Near(1), Far(2, -0.0)),
    "mode": "a",
}


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"count": 2**63 - 1},
        {"value": math.inf},
        {"value": -math.inf},
        {"value": math.nan},
        {"value": -0.0},
        {"value": 5e-324},
        {"value": 1e22},
        {"value": 3},  # an int stays an int where a float may stand
        {"maybe": 0},
        {"sizes": ()},
        {"pairs": ()},
        {"axes": (Far(1, math.nan),)},
        {"word": '{"float": "inf"}'},
        {"gained": (1, 2)},
    ],
    ids=str,
)
def test_attributes_round_trip(change):
    record = Everything(**GOOD | change)
    text = json.dumps(fields_to_json(record), allow_nan=False)
    again = fields_from_json(Everything, strict_json(text, "attributes"), "attributes")
    assert repr(again) == repr(record)  # which tells NaN, −0.0, 3 and 3.0 apart


def test_what_an_operator_gained_later_is_saved_only_where_it_matters():
    old, new = Everything(**GOOD), Everything(**GOOD, gained=(1,))
    assert "gained" not in fields_to_json(old)
    assert fields_to_json(new)["gained"] == [1]


def test_numpy_numbers_are_saved_as_numbers():
    record = Everything(**GOOD | {"count": np.int64(7), "value": np.float32(0.5), "flag": np.bool_(True)})
    assert fields_from_json(Everything, fields_to_json(record), "") == record


@pytest.mark.parametrize(
    "change",
    [
        {"flag": 1},
        {"flag": None},
        {"count": True},
        {"count": 3.0},
        {"count": "3"},
        {"value": True},
        {"value": "inf"},
        {"value": {"float": "infinity"}},
        {"value": {"float": 1.0}},
        {"value": {"float": ["inf"]}},
        {"word": 3},
        {"word": ["a"]},
        {"maybe": 0.5},
        {"maybe": {"float": "nan"}},
        {"sizes": 3},
        {"sizes": [1, 2.0]},
        {"sizes": [[1]]},
        {"pairs": [[1, 2, 3]]},
        {"pairs": [1, 2]},
        {"axes": [{"record": "Everything", "fields": {}}]},
        {"axes": [{"record": "Near", "fields": {}}]},
        {"axes": [{"record": "Near", "fields": {"size": 1, "step": 2}}]},
        {"axes": [{"record": "Near", "fields": {"size": "1"}}]},
        {"axes": [{"record": ["Near"], "fields": {"size": 1}}]},
        {"axes": [{"size": 1}]},
        {"axes": {"record": "Near", "fields": {"size": 1}}},
        {"mode": "c"},
        {"gained": [1.5]},
        {"extra": 1},
    ],
    ids=str,
)
def test_attributes_of_a_wrong_type_are_refused_by_name(change):
    data = fields_to_json(Everything(**GOOD)) | change
    with pytest.raises(gs.FormatError, match=rf"^nodes\[3\](\.{next(iter(change))}|: .*'extra')"):
        fields_from_json(Everything, data, "nodes[3]")


# --- saving -----------------------------------------------------------------------------------------------------------


def neg_graph():
    return gs.trace(lambda x: -x, gs.f32[2])


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError("no space left on device")])
@pytest.mark.parametrize("step", ["save_file", "os.fsync"])
def test_an_interrupted_save_leaves_the_old_file(step, error, path, monkeypatch):
    neg_graph().save(path)
    before = path.read_bytes()

    def interrupt(tensors, partial, *rest):
        if step == "save_file":
            partial.write_bytes(b"half of")
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(f"gradspec.saving.graphs.{step}", lambda *a: interrupt(*a, *[None] * 2))
        with pytest.raises((KeyboardInterrupt, OSError)):
            gs.trace(lambda x: x * x, gs.f32[3]).save(path)
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


def test_a_saved_file_has_the_usual_permissions(path):
    neg_graph().save(path)
    other = path.with_name("other")
    other.write_bytes(b"")
    assert path.stat().st_mode == other.stat().st_mode


def test_a_link_stays_a_link(path):
    neg_graph().save(path)
    link = path.with_name("link")
    link.symlink_to(path)
    gs.trace(lambda x: x * x, gs.f32[3]).save(link)
    assert link.is_symlink()
    assert gs.load(path).inputs[0].type == gs.f32[3]


def test_a_text_path_and_a_long_name_work(tmp_path):
    neg_graph().save(str(tmp_path / ("n" * 255)))
    assert os.listdir(tmp_path) == ["n" * 255]


OWN = Op("own", NoAttributes, types=lambda attrs, x: (x,), spec=None, batch=None)


def of_node(op, attrs, name="y"):
    x, y = Var("x", gs.f32[2], None), Var(name, gs.f32[2], None)
    return Graph((x,), (Node(op, attrs, (x,), (y,)),), (y,))


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (lambda: of_node(OWN, NoAttributes()), "own is not an operator"),
        (lambda: of_node(operators()["neg"], NoAttributes(), "\ud800"), "not a name"),
        (lambda: of_node(operators()["neg"], NoAttributes(), "x"), "two variables are called 'x'"),
        (lambda: of_node(operators()["reshape"], operators()["reshape"].attributes((2**64,))), "fit"),
        (lambda: gs.trace(lambda x: -x, gs.f32[2**62]), "no memory"),
    ],
)
def test_what_could_not_be_loaded_is_not_saved(graph, message, path):
    with pytest.raises(ValueError, match=message):
        graph().save(path)
    assert os.listdir(path.parent) == []


def test_saving_over_a_folder_fails(tmp_path):
    with pytest.raises(OSError, match="not a regular file"):
        neg_graph().save(tmp_path)
    assert os.listdir(tmp_path) == []


def test_a_missing_file_is_an_ordinary_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        gs.load(tmp_path / "missing")


def test_a_graph_with_a_header_too_long_is_refused(path, monkeypatch):
    monkeypatch.setattr(graphs, "MAX_HEADER", 100)
    with pytest.raises(ValueError, match="too large to save"):
        neg_graph().save(path)
    assert os.listdir(path.parent) == []


def test_a_file_with_an_earlier_name_of_an_operator_is_read():
    """The transposes of a mean, a maximum and a convolution had other names once, and so had the labels' operators."""

    def loss(x, w, labels):
        y = gs.avg_pool1d(gs.max_pool1d(gs.conv1d(x, w), 2), 2)
        return gs.mean(y) + gs.cross_entropy(gs.mean(y, 2), labels)

    graph = gs.trace(loss, gs.f32[2, 1, 9], gs.f32[3, 1, 2], gs.i64[2]).vjp().jvp()
    text = graphs.to_text(graph)
    for old, new in graphs.RENAMED.items():
        assert f'"op": "{new}"' in text
        text = text.replace(f'"op": "{new}"', f'"op": "{old}"')
    assert str(graphs.from_text(text)) == str(graph)
