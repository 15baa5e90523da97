"""The cases that ship inside the ``onnx`` package, imported and run: every one whose operators gradspec reads.

Cases are found by asking the package, so a newer ``onnx`` brings its new ones along; what is out is named in ``OUT``
with the reason, and must be refused. Inputs that the graph's shapes depend on are bound as the error says:
``constants={'shape': …}``.

How a stored result is judged depends on what the model does, u being the unit roundoff of its format:

- Operators that move, select or compare numbers, integers, and single roundings: equality, NaN and all.
- Sums of products: both results are within 2·(N + 3)·u·Ŝ of each other, derived in ``peers/agreement.py``; N is the
  number of input cells and Ŝ our result on absolute values.
- Functions and normalisations: a chain of at most 32 steps on each side, each good to one unit in the last place of
  numbers up to M, which is 1, the largest input or the largest result: together 64·u·M.
"""

import re

import numpy as np
import pytest

import gradspec as gs
from gradspec.interop.onnx.nodes import FOREIGN, HANDLERS
from peers.onnx_cases import shipped

PARTS = 8
EXACT = {
    *("BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor"),
    *("Abs", "Add", "ArgMax", "ArgMin", "Cast", "CastLike", "Ceil", "CenterCropPad", "Clip", "Concat", "Constant"),
    *("ConstantOfShape", "ConvInteger", "DepthToSpace", "DequantizeLinear", "Div", "Dropout", "Expand", "Flatten"),
    *("Floor", "Gather", "GatherElements", "GatherND", "GlobalMaxPool", "Hardmax", "Identity", "MatMulInteger"),
    *("Max", "MaxPool", "MaxUnpool", "Min", "Mod", "Mul", "Neg", "NonZero", "OneHot", "Pad", "QLinearConv"),
    *("QLinearMatMul", "QuantizeLinear", "Range", "ReduceMax", "ReduceMin", "Relu", "Reshape", "Round", "Scatter"),
    *("ScatterElements", "ScatterND"),
    *("Shape", "Sign", "Size", "Slice", "SpaceToDepth", "Split", "Sqrt", "Squeeze", "Sub", "Tile", "TopK"),
    *("Transpose", "Trilu", "Unsqueeze", "Upsample", "Where"),
}
SUMS = {
    *("AveragePool", "Col2Im", "Constant", "Conv", "ConvTranspose", "CumSum", "Einsum", "Flatten", "Gemm"),
    *("GlobalAveragePool", "Identity", "MatMul", "Mean", "ReduceMean", "ReduceSum", "Reshape", "Resize", "Squeeze"),
    *("Sum", "Transpose", "Unsqueeze"),
}

OUT = {
    r"test_batchnorm_\w+_training_mode|test_training_dropout(_default)?(_mask)?": "training",
    r"test_resize_.*_(linear|cubic)_antialias": "antialias",
    r"test_cast.*(FLOAT8|FLOAT4|INT4|INT2|E8M0).*": "elements of type",
    r"test_(de)?quantizelinear_(u?int[42]|e4m3|e5m2|float4).*": "elements of type",
    "test_scan_sum": "as opset 8 has it",
    r"test_equal_string.*": "elements of type",
    r"test_identity_sequence|test_if_seq": "sequence",
    r"test_identity_opt|test_if_opt": "optional",
    r"test_mod_.*float64.*": "the remainder of float64",
}
"""Cases that are refused, and a word of the error."""

WRONG = {
    "test_maxunpool_export_with_output_shape": (
        "places the indices in a 4×4 plane, although by the operator's text they index the flattened output, which "
        "output_shape makes 5×5"
    ),
    "test_resize_downsample_scales_linear_align_corners": (
        "divides by 0.6 · 4 − 1, although by the operator's text it is the length of the resized axis, 2, less 1; "
        "ONNX Runtime does that too"
    ),
    "test_resize_downsample_scales_cubic_align_corners": "divides by 0.8 · 4 − 1, which is 3 − 1 by the text, as above",
}
"""Cases that contradict the operator's text."""

PRINTED = {
    # Typed with four decimals: inputs and outputs are off by half a unit each, and an average enlarges neither.
    "test_averagepool_2d_ceil_last_window_starts_on_pad": 1e-4,
    # Only its outputs are: half a unit, and the rounding.
    "test_gridsample_bicubic": 7e-5,
}


def is_out(name):
    return next((word for pattern, word in OUT.items() if re.fullmatch(pattern, name)), None)


def cases():
    return [case for case in shipped() if case.operators <= HANDLERS.keys()]


def imported(model, inputs):
    """The graph, with what the error asks for bound to the inputs of the case."""
    constants = {}
    while True:
        try:
            return gs.from_onnx(model, constants=constants)
        except gs.UnsupportedError as error:
            asked = set(re.findall(r"'([^']*)': …", str(error))) - constants.keys()
            if not asked:
                raise
            constants |= {name: inputs[name] for name in asked}


def named_inputs(model, arrays):
    weights = {w.name for w in model.graph.initializer}
    return dict(zip([i.name for i in model.graph.input if i.name not in weights], arrays, strict=True))


def run(graph, inputs):
    results = gs.compile(graph, backend="numpy")(*(inputs[v.name] for v in graph.inputs))
    return results if isinstance(results, tuple) else (results,)


def unit_roundoff(array):
    return float(np.finfo(array.dtype).eps) / 2 if array.dtype.kind == "f" else 2.0**-8  # bfloat16


def tolerance(case, graph, inputs, result):
    """How far the stored result may be from ours."""
    floats = [np.abs(inputs[v.name].astype(float)) for v in graph.inputs if v.type.is_float]
    if case.operators <= EXACT or result.dtype.kind in "iub" or not result.size:
        return 0.0
    if case.operators <= SUMS:
        absolute = {name: np.abs(array) for name, array in inputs.items()}
        cells = sum(a.size for a in floats) + sum(a.size for a in graph.constants.values())
        (scale,) = run(with_absolute_constants(graph), absolute)
        return 2 * (cells + 3) * unit_roundoff(result) * np.abs(scale.astype(float))
    finite = [a[np.isfinite(a)] for a in (*floats, np.abs(result.astype(float)))]
    return 64 * unit_roundoff(result) * max([1.0, *(a.max() for a in finite if a.size)])


def with_absolute_constants(graph):
    constants = {v: np.asarray(np.abs(a)) for v, a in graph.constants.items()}
    for array in constants.values():
        array.flags.writeable = False
    return gs.Graph(graph.inputs, graph.nodes, graph.outputs, constants)


def disagreement(case):
    model = case.model
    for arrays, expected in case.data_sets():
        inputs = named_inputs(model, arrays)
        graph = imported(model, inputs)
        for ours, theirs in zip(run(graph, inputs), map(np.asarray, expected), strict=True):
            if (ours.dtype, ours.shape) != (theirs.dtype, theirs.shape):
                return f"{ours.dtype}{ours.shape}, expected {theirs.dtype}{theirs.shape}"
            allowed = np.maximum(tolerance(case, graph, inputs, theirs), PRINTED.get(case.name, 0.0))
            with np.errstate(invalid="ignore"):
                error = np.abs(ours.astype(float) - theirs.astype(float))
            same = (ours == theirs) | ((ours != ours) & (theirs != theirs))
            if not np.all(same | (error <= allowed)):
                return f"off by {np.max(error[~same])}, allowed {np.max(allowed)}"
    return None


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(PARTS))
def test_every_shipped_case(part):
    judged = [case for case in cases() if not is_out(case.name) and case.name not in WRONG]
    met = {operator for case in judged for operator in case.operators}
    assert HANDLERS.keys() - FOREIGN.keys() - met == {"GlobalLpPool"}  # which have none, or are out
    found = {}
    for case in judged[part::PARTS]:
        try:
            found[case.name] = disagreement(case)
        except Exception as error:
            found[case.name] = f"{type(error).__name__}: {error}"
    assert not {name: what for name, what in found.items() if what is not None}


@pytest.mark.exhaustive
def test_what_is_out_is_refused():
    assert WRONG.keys() | PRINTED.keys() <= {case.name for case in cases()}
    met = set()
    for case in cases():
        word = is_out(case.name)
        if word is None:
            continue
        met.add(word)
        (arrays, _), *_ = case.data_sets()
        with pytest.raises((gs.UnsupportedError, gs.ShapeError), match=word):
            imported(case.model, named_inputs(case.model, arrays))
    assert met == set(OUT.values())
