"""Importing ONNX models: the order of nodes, functions, branches, stated types, and operators of the first opsets."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.inliner import inline_local_functions

import gradspec as gs
from gradspec.interop.onnx import reader
from interop.onnx_models import model, one_node, theirs, value

X = np.float32([-1, 2])
X2, Y2 = value("x", [2]), value("y", [2])
RELU = helper.make_node("Relu", ["x"], ["y"])
OPSET = [helper.make_opsetid("", 17)]


# --- order ------------------------------------------------------------------------------------------------------------


def unary(op_type, source, target):
    return helper.make_node(op_type, [source], [target])


def test_nodes_are_sorted():
    nodes = [unary("Neg", "b", "c"), unary("Exp", "a", "b"), unary("Abs", "c", "y"), unary("Relu", "x", "a")]
    graph = gs.from_onnx(model(nodes, [X2], [Y2]))
    assert [node.op.name for node in graph.nodes] == ["relu", "exp", "neg", "abs"]


def test_sorting_moves_no_more_than_it_must():
    names = ["Exp", "Abs", "Neg", "Tanh", "Sqrt"]
    nodes = [unary(name, "late" if i == 1 else "x", f"y{i}") for i, name in enumerate(names)]
    proto = model([*nodes, unary("Relu", "x", "late")], [X2], [value(f"y{i}", [2]) for i in range(5)])
    assert [node.op.name for node in gs.from_onnx(proto).nodes] == ["exp", "neg", "tanh", "sqrt", "relu", "abs"]


def test_many_nodes_in_reverse_are_sorted():
    count = 2000
    nodes = [unary("Relu", f"v{i}", f"v{i + 1}") for i in reversed(range(count))]
    assert len(gs.from_onnx(model(nodes, [value("v0", [2])], [value(f"v{count}", [2])])).nodes) == count


def test_a_circle_is_refused_and_named():
    nodes = [unary("Relu", "x", "y"), unary("Neg", "b", "a"), unary("Exp", "a", "b")]
    with pytest.raises(gs.FormatError, match=r"node 1 \(Neg ''\) .*circle"):
        gs.from_onnx(model(nodes, [X2], [Y2]))


def test_a_branch_waits_for_the_names_it_sees():
    nodes = [choice("late"), unary("Neg", "x", "late")]
    assert gs.from_onnx(model(nodes, [X2], [Y2], {"c": np.array(True)}))(X).tolist() == [1.0, 0.0]


def test_a_branch_waits_for_a_name_that_the_other_branch_has_of_its_own():
    other = branch(unary("Neg", "x", "late"), unary("Abs", "late", "r"))
    node = helper.make_node("If", ["c"], ["y"], then_branch=branch(unary("Relu", "late", "r")), else_branch=other)
    graph = gs.from_onnx(model([node, unary("Neg", "x", "late")], [X2], [Y2], {"c": np.array(True)}))
    assert graph(X).tolist() == [1.0, 0.0]


def test_a_branch_does_not_wait_for_names_of_its_own():
    """The result of the branch has the name of the node's result."""
    inner = helper.make_graph([unary("Relu", "x", "y")], "branch", [], [value("y", None)])
    nodes = [unary("Neg", "b", "z"), helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner)]
    nodes.append(unary("Exp", "x", "b"))
    assert gs.from_onnx(model(nodes, [X2], [Y2], {"c": np.array(True)}))(X).tolist() == [0.0, 2.0]


# --- types that a model states ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("stated", [[3], [2, 1], []])
def test_shapes_that_are_not_so_are_a_warning(stated):
    proto = model([unary("Neg", "x", "a"), unary("Relu", "a", "y")], [X2], [value("y", stated)])
    proto.graph.value_info.append(value("a", [7]))
    with pytest.warns(gs.FormatWarning, match=r"'a' is float32 \[2\], but the model states .* \[7\], .* 1 more"):
        graph = gs.from_onnx(proto)
    assert graph(X).tolist() == [1.0, 0.0]


def test_the_warning_is_one_and_where_the_call_is():
    proto = model([unary("Neg", "x", "a"), unary("Relu", "a", "y")], [X2], [value("y", [5]), value("a", [5])])
    with pytest.warns(gs.FormatWarning) as caught:
        gs.from_onnx(proto)
    assert [w.filename for w in caught] == [__file__]


def test_an_output_that_is_an_input_may_be_stated_wrongly_too():
    with pytest.warns(gs.FormatWarning, match="'x' is"):
        assert gs.from_onnx(model([], [X2], [value("x", [3])]))(X).tolist() == X.tolist()


def test_dtypes_that_are_not_so_are_refused():
    with pytest.raises(gs.FormatError, match=r"Relu.*'y' is float32 \[2\], but the model states float64"):
        gs.from_onnx(model([RELU], [X2], [value("y", [2], TensorProto.DOUBLE)]))


# --- versions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("others", [[("", 13)], [("ai.onnx", 13)], [("", 12), ("ai.onnx", 7)]])
def test_of_several_imports_of_one_domain_the_highest_counts(others):
    """Softmax without an axis takes the last from opset 13 on, and all behind the first before."""
    x = np.arange(8, dtype=np.float32).reshape(2, 2, 2)
    proto = one_node("Softmax", 13, [x])
    expected = theirs(proto, [x])[0]
    proto.opset_import.extend(helper.make_opsetid(*entry) for entry in others)
    np.testing.assert_allclose(gs.from_onnx(proto)(x), expected, rtol=1e-6)


def test_models_older_than_imports_are_of_the_first_opset():
    proto = model([RELU], [X2], [Y2], ir_version=2)
    del proto.opset_import[:]
    assert gs.from_onnx(proto)(X).tolist() == [0.0, 2.0]


# --- functions --------------------------------------------------------------------------------------------------------


def with_functions(nodes, *functions, outputs=("y",)):
    proto = model(nodes, [X2], [value(name, None) for name in outputs])
    proto.opset_import.append(helper.make_opsetid("mine", 1))
    proto.functions.extend(functions)
    return proto


def call(name, inputs, outputs=("y",), **attributes):
    return helper.make_node(name, inputs, list(outputs), domain="mine", **attributes)


def function(name, inputs, outputs, nodes, opset=17, attributes=(), defaults=()):
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("mine", 1)]
    return helper.make_function("mine", name, inputs, outputs, nodes, imports, attributes, defaults)


def referring(node, name, to, kind=onnx.AttributeProto.FLOAT):
    """The node with an attribute that is one of the function around it."""
    node.attribute.append(onnx.AttributeProto(name=name, ref_attr_name=to, type=kind))
    return node


def test_functions_are_read_as_if_written_out():
    leaky = referring(helper.make_node("LeakyRelu", ["t"], ["r"]), "alpha", "slope")
    inner = function("leak", ["t"], ["r"], [leaky], attributes=["slope"])
    half = referring(call("leak", ["x"], ["z"]), "slope", "steep")
    outer = function("both", ["x", "y"], ["z", "s"], [half, helper.make_node("Add", ["y", "x"], ["s"])], 17, ["steep"])
    nodes = [
        call("both", ["x", "x"], ["a", "b"], steep=0.5),
        call("leak", ["a"], ["c"], slope=0.25),
        call("leak", ["b"]),
    ]
    proto = with_functions(nodes, inner, outer, outputs=("a", "b", "c", "y"))
    ours = gs.from_onnx(proto)(X)
    for a, b in zip(ours, theirs(inline_local_functions(proto), [X]), strict=True):
        np.testing.assert_array_equal(a, b, strict=True)


def test_functions_have_an_opset_and_defaults_of_their_own():
    """ReduceSum takes its axes from an attribute before opset 13, and from an input since."""
    total = referring(
        helper.make_node("ReduceSum", ["t"], ["r"], axes=[0]), "keepdims", "keep", onnx.AttributeProto.INT
    )
    old = function("total", ["t"], ["r"], [total], 11, (), [helper.make_attribute("keep", 0)])
    assert gs.from_onnx(with_functions([call("total", ["x"])], old))(X).tolist() == 1.0
    assert gs.from_onnx(with_functions([call("total", ["x"], keep=1)], old))(X).tolist() == [1.0]


def test_optional_inputs_of_functions():
    clip = function("clip", ["t", "low", "high"], ["r"], [helper.make_node("Clip", ["t", "low", "high"], ["r"])])
    assert gs.from_onnx(with_functions([call("clip", ["x"])], clip))(X).tolist() == X.tolist()


def test_what_a_function_lacks_is_listed_with_its_place():
    strange = function("strange", ["t"], ["r"], [unary("Relu", "t", "a"), unary("Bernoulli", "a", "r")])
    with pytest.raises(gs.UnsupportedError, match=r"Bernoulli, once\n    function strange, node 1 \(Bernoulli ''\)\n"):
        gs.from_onnx(with_functions([call("strange", ["x"], ["a"]), call("strange", ["a"])], strange))


def test_a_function_that_replaces_an_operator_is_not_passed_over():
    proto = model([RELU], [X2], [Y2])
    proto.functions.append(helper.make_function("", "Relu", ["a"], ["b"], [unary("Neg", "a", "b")], OPSET))
    with pytest.raises(gs.UnsupportedError, match="in the place of ONNX's operator Relu"):
        gs.from_onnx(proto)


@pytest.mark.parametrize("inputs", [["x", "x", "x"], ["x"]])
def test_calls_that_do_not_fit_their_function_are_refused(inputs):
    add = function("sum", ["a", "b"], ["c"], [helper.make_node("Add", ["a", "b"], ["c"])])
    with pytest.raises(gs.FormatError, match=r"3 inputs .* at most 2 and 1|left out, and Add needs it"):
        gs.from_onnx(with_functions([call("sum", inputs)], add))


def test_a_function_that_calls_itself_is_refused():
    with pytest.raises(gs.FormatError, match="nested more than 32 deep"):
        gs.from_onnx(with_functions([call("f", ["x"])], function("f", ["a"], ["b"], [call("f", ["a"], ["b"])])))


# --- branches ---------------------------------------------------------------------------------------------------------


def branch(*nodes, result="r"):
    return helper.make_graph(list(nodes), "branch", [], [value(result, None)])


def choice(seen="x", condition="c"):
    """Relu or Exp of a name of the graph around."""
    branches = {"then_branch": branch(unary("Relu", seen, "r")), "else_branch": branch(unary("Exp", seen, "r"))}
    return helper.make_node("If", [condition], ["y"], **branches)


@pytest.mark.parametrize("condition", [True, False])
def test_a_known_condition_chooses_a_branch(condition):
    proto = model([choice()], [X2], [value("y", None)], {"c": np.array(condition)})
    np.testing.assert_allclose(gs.from_onnx(proto)(X), theirs(proto, [X])[0], rtol=1e-6)


def test_the_branch_that_is_not_chosen_may_hold_anything():
    nodes = [choice()]
    (other,) = (a.g for a in nodes[0].attribute if a.name == "else_branch")
    other.node[0].op_type = "Bernoulli"
    assert gs.from_onnx(model(nodes, [X2], [Y2], {"c": np.array(True)}))(X).tolist() == [0.0, 2.0]
    with pytest.raises(gs.UnsupportedError, match=r"Bernoulli, once\n    branch 'branch', node 0"):
        gs.from_onnx(model(nodes, [X2], [Y2], {"c": np.array(False)}))


def test_branches_have_names_and_weights_of_their_own():
    inner = branch(helper.make_node("Add", ["x", "w"], ["r"]))
    inner.initializer.append(onnx.numpy_helper.from_array(np.float32([1, 1]), "w"))
    nodes = [helper.make_node("If", ["c"], [name], then_branch=inner, else_branch=inner) for name in ("a", "b")]
    nodes.append(helper.make_node("Sum", ["a", "b", "w"], ["y"]))
    graph = gs.from_onnx(model(nodes, [X2], [Y2], {"c": np.array(True), "w": np.float32([10, 10])}))
    assert graph(X).tolist() == [10.0, 16.0]


def test_an_unknown_condition_is_told():
    with pytest.raises(gs.UnsupportedError, match=r"If with an input 0 that is not known .*'c'"):
        gs.from_onnx(model([choice()], [X2, value("c", [], TensorProto.BOOL)], [Y2]))


# --- work in proportion to the file -----------------------------------------------------------------------------------

COUNT = 60
"""Calls of a function, or nodes in one, that read the same again."""


def doubled():
    """Each function calls the one before twice: 2³⁰ nodes from 61."""
    first = function("f0", ["v0"], ["v2"], [unary("Relu", "v0", "v2")])
    later = [
        function(f"f{n}", ["v0"], ["v2"], [call(f"f{n - 1}", [f"v{i}"], [f"v{i + 1}"]) for i in range(2)])
        for n in range(1, 31)
    ]
    return with_functions([call("f30", ["x"])], first, *later)


def called_often(*nodes):
    """A function of ``a`` that returns ``r``."""
    calls = [call("f", ["x"], ["y" if i == 0 else f"y{i}"]) for i in range(COUNT)]
    return with_functions(calls, function("f", ["a"], ["r"], nodes))


def constant(name, array):
    return helper.make_node("Constant", [], [name], value=onnx.numpy_helper.from_array(array))


def with_a_long_branch_that_is_not_taken():
    branches = {"then_branch": branch(unary("Relu", "a", "r")), "else_branch": branch(*[unary("Exp", "a", "r")] * 1000)}
    return called_often(constant("c", np.array(True)), helper.make_node("If", ["c"], ["r"], **branches))


def with_a_large_attribute_that_is_used_often():
    nodes = [
        referring(helper.make_node("Constant", [], [f"k{i}"]), "value_ints", "ints", onnx.AttributeProto.INTS)
        for i in range(COUNT)
    ]
    keep = function("f", ["a"], ["r"], [*nodes, unary("Relu", "a", "r")], attributes=["ints"])
    return with_functions([call("f", ["x"], ints=[1] * 10_000)], keep)


def nested_branches(depth):
    def nested(depth, result):
        if depth == 0:
            return branch(unary("Relu", "x", result), result=result)
        inner = nested(depth - 1, "a"), nested(depth - 1, "b")
        node = helper.make_node("If", ["c"], [result], then_branch=inner[0], else_branch=inner[1])
        return branch(node, result=result)

    return model(nested(depth, "y").node, [X2], [Y2], {"c": np.array(True)})


MULTIPLYING = {
    "functions that call each other twice": doubled,
    "a branch that is not taken": with_a_long_branch_that_is_not_taken,
    "a node of many inputs": lambda: called_often(helper.make_node("Sum", ["a"] * 1000, ["r"])),
    "a node of many outputs": lambda: called_often(
        constant("n", np.array([1000])),
        helper.make_node("ConstantOfShape", ["n"], ["k"]),
        helper.make_node("Split", ["k"], [""] * 1000),
        unary("Relu", "a", "r"),
    ),
    "a large constant": lambda: called_often(constant("k", np.zeros(1000)), unary("Relu", "a", "r")),
    "a large attribute": with_a_large_attribute_that_is_used_often,
}


@pytest.mark.rows(len(MULTIPLYING))
@pytest.mark.parametrize("multiplying", MULTIPLYING.values(), ids=MULTIPLYING)
def test_what_is_read_again_is_limited_by_the_size_of_the_model(multiplying, monkeypatch):
    monkeypatch.setattr(reader, "FREE_NODES", 1000)
    monkeypatch.setattr(reader, "FREE_BYTES", 1000)
    proto = multiplying()
    with pytest.raises(
        gs.FormatError, match=rf"has {proto.ByteSize()} bytes.* at most \d+ are read of a model of this"
    ):
        gs.from_onnx(proto)


def test_functions_do_not_multiply_without_end():
    proto = doubled()
    with pytest.raises(gs.FormatError, match=f"at most {20_000 + proto.ByteSize() // 4} are read"):
        gs.from_onnx(proto)


def test_branches_that_are_not_taken_count_as_nodes(monkeypatch):
    assert len(gs.from_onnx(nested_branches(7)).nodes) == 1
    monkeypatch.setattr(reader, "MAX_NODES", 200)
    with pytest.raises(gs.FormatError, match="at most 200 are read"):
        gs.from_onnx(nested_branches(7))


def test_models_that_read_nothing_again_are_within_the_limits(monkeypatch):
    monkeypatch.setattr(reader, "FREE_NODES", 0)
    monkeypatch.setattr(reader, "FREE_BYTES", 0)
    nodes = [unary("Relu", "x", "r"), *(unary("Relu", "r", f"{i}") for i in range(200))]
    assert len(gs.from_onnx(model(nodes, [X2], [value("9", None)])).nodes) == 2
    chosen = helper.make_node("If", ["c"], ["y"], then_branch=branch(*nodes), else_branch=branch(*nodes))
    assert len(gs.from_onnx(model([chosen], [X2], [Y2], {"c": np.array(True)})).nodes) == 1
    once = function("f", ["x"], ["r"], nodes)
    assert len(gs.from_onnx(with_functions([call("f", ["x"])], once)).nodes) == 1


def test_sums_of_many_known_tensors_are_charged_for_each():
    nodes = [helper.make_node("ConstantOfShape", ["n"], ["k"]), helper.make_node("Sum", ["k"] * 1000, ["s"])]
    nodes.append(helper.make_node("Add", ["x", "s"], ["y"]))
    proto = model(nodes, [value("x", [1])], [value("y", None)], {"n": np.array([2**17])})
    with pytest.raises(gs.UnsupportedError, match=r"cells computed while the model is read .*\n    node 1 \(Sum ''\)"):
        gs.from_onnx(proto)


def test_few_of_the_inputs_that_an_unknown_value_has_are_named():
    names = [f"n{i}" for i in range(1000)]
    nodes = [helper.make_node("Concat", names, ["n"], axis=0), helper.make_node("Reshape", ["x", "n"], ["y"])]
    proto = model(nodes, [X2, *(value(name, [1], TensorProto.INT64) for name in names)], [Y2])
    with pytest.raises(gs.UnsupportedError, match=r"bind it: constants=.'n0': …, 'n1': …") as caught:
        gs.from_onnx(proto)
    assert str(caught.value).count("…") == 64


# --- opsets 1 to 6 ----------------------------------------------------------------------------------------------------

A = np.arange(24, dtype=np.float32).reshape(2, 3, 4) - 8
ROW, COLUMN = A[0, 0] + 5, A[0, :, 0]
SLOPE = np.float32([1, 2, 3])


def early(expected, op_type, *arrays, opset=6, constants=(), **attributes):
    return one_node(op_type, opset, arrays, constants, **attributes), arrays, expected


STATISTICS = [np.full(3, n, np.float32) for n in (3, 1, 4)]
NORM = {"is_test": 1, "epsilon": 0.0, "consumed_inputs": [0] * 5}
WIDER = {"height_scale": 1.0, "width_scale": 2.0, "mode": "nearest"}
EARLY = {
    "add": early(A + A, "Add", A, A),
    "add to the last axes": early(A + ROW, "Add", A, ROW, broadcast=1),
    "add along an axis": early(A + COLUMN[:, None], "Add", A, COLUMN, broadcast=1, axis=1),
    "subtract along a negative axis": early(A - COLUMN[:, None], "Sub", A, COLUMN, broadcast=1, axis=-2),
    "one number": early(A * 3, "Mul", A, np.float32([3]), broadcast=1),
    "greater": early(A > ROW, "Greater", A, ROW, broadcast=1, axis=2, opset=1),
    "consumed": early(np.maximum(A, 0), "Relu", A, opset=1, consumed_inputs=[0]),
    "known": early(A / SLOPE[:, None], "Div", constants=[A, SLOPE], broadcast=1, axis=1),
    "slopes": early(np.where(A > 0, A, A * SLOPE[:, None]), "PRelu", A, SLOPE),
    "one slope": early(np.where(A > 0, A, A * 2), "PRelu", A, SLOPE[1:2], opset=1),
    "slopes of a matrix": early(np.where(A[0].T > 0, A[0].T, A[0].T * SLOPE), "PRelu", A[0].T, SLOPE),
    "reshape": early(A.reshape(2, 12), "Reshape", A, opset=1, shape=[0, -1]),
    "cast": early(A.astype(np.int32), "Cast", A, opset=1, to="INT32"),
    "clip below": early(np.maximum(A, -2), "Clip", A, opset=1, min=-2.0),
    "concat": early(np.concatenate([A, A], 1), "Concat", A, A, opset=1),
    "split": early(A, "Split", A, opset=1),
    "pad": early(np.pad(A, [(0, 0), (1, 0), (0, 2)]), "Pad", A, opset=1, paddings=[0, 1, 0, 0, 0, 2]),
    "tile": early(np.tile(A, (1, 2, 1)), "Tile", A, opset=1, constants=[np.float32(2), np.float32(1)]),
    "upsample": early(A[None].repeat(2, 3), "Upsample", A[None], opset=1, **WIDER),
    "gemm": early(A[0] @ A[0].T + SLOPE, "Gemm", A[0], A[0].T.copy(), SLOPE, broadcast=1),
    "test mode": early((A - 1) * SLOPE[:, None] / 2 + 3, "BatchNormalization", A, SLOPE, *STATISTICS, opset=1, **NORM),
    "dropout": early(A, "Dropout", A, is_test=1),
}


@pytest.mark.parametrize("name", EARLY)
def test_operators_of_the_first_opsets(name):
    proto, arrays, expected = EARLY[name]
    np.testing.assert_allclose(gs.from_onnx(proto)(*arrays), expected, rtol=1e-6, strict=True)


@pytest.mark.parametrize(
    ("proto", "error", "said"),
    [
        (early(None, "Add", A, ROW)[0], gs.ShapeError, "not told to broadcast"),
        (early(None, "Add", A, ROW, broadcast=1, axis=3)[0], gs.ShapeError, "from axis 3 on"),
        (early(None, "Add", ROW, A, broadcast=1)[0], gs.ShapeError, "does not lie along"),
        (early(None, "Cast", A, opset=1, to="FLOUT")[0], gs.FormatError, "no type of ONNX"),
        (early(None, "Tile", A, opset=1, constants=[np.float32(2), np.float32(3)])[0], gs.FormatError, "axis is 3"),
    ],
)
def test_what_the_first_opsets_do_not_say_is_refused(proto, error, said):
    with pytest.raises(error, match=said):
        gs.from_onnx(proto)
