"""A call as an ONNX model of one node, and what the ONNX standard leaves out.

MaxPool numbers its winners over the whole tensor, and MaxUnpool reads them so; ours are places in a plane:
`within_planes` and `over_the_tensor` translate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np

from gradspec.conformance.model.geometry import geometry_of, unpooled_windows, with_defaults
from gradspec.conformance.model.problem import (
    CONVOLUTIONS,
    DTYPES,
    FLOATS,
    INPUTS,
    Array,
    Call,
    Problem,
    Results,
    Shape,
)
from gradspec.conformance.model.target import NotOfferedError, first_reason
from gradspec.conformance.targets.program import assignments, imports, keywords, scope_of

OPSET, IR_VERSION = 22, 10
TYPES = {"f16": "FLOAT16", "bf16": "BFLOAT16", "f32": "FLOAT", "f64": "DOUBLE", "i8": "INT8", "u8": "UINT8"}
INDEX_TYPE = "INT64"
ONE_BY_ONE = "one_by_one"
"""The variant in which every sample is a call of its own."""


# --- the node of a problem --------------------------------------------------------------------------------------------


def node_of(problem: Problem, with_indices: bool = True) -> JudgedNode:
    """The node that a problem which ONNX offers is.

    >>> node_of(Problem("max_pool", 1, ((1, 1, 5),), {"kernel_size": (2,), "padding": ((1, 0),)})).attributes
    {'kernel_shape': [2], 'strides': [2], 'pads': [1, 0]}
    """
    if problem.op in LAYERS:
        return LAYERS[problem.op]
    sizes: dict[str, tuple[int, ...]] = {}
    if problem.op == "max_unpool":
        sizes = {"output_shape": (*problem.lead, *problem.attributes["output_size"])}
    if problem.op == "fold":
        sizes = {"image_shape": geometry_of(problem).spatial, "block_shape": geometry_of(problem).each("kernel")}
    outputs = ("y", "indices") if problem.op == "max_pool" and with_indices else ("y",)
    return JudgedNode(KINDS[problem.op], outputs, _attributes(problem), sizes)


def node_of_call(call: Call) -> JudgedNode:
    return node_of(call.problem, with_indices=call.variant != "values_only")


def _sliding(problem: Problem) -> dict[str, Any]:
    """Strides, dilations and pads: all the low ends first, then all the high ends. What is usual is left out."""
    parts = geometry_of(problem)
    steps = {"strides": list(parts.each("stride")), "dilations": list(parts.each("dilation"))}
    found = {name: numbers for name, numbers in steps.items() if set(numbers) != {1}}
    pads = [*parts.each("lo"), *parts.each("hi")]
    return {**found, "pads": pads} if any(pads) else found


def _attributes(problem: Problem) -> dict[str, Any]:
    """The attributes that are not what the standard takes by default."""
    if problem.op.startswith("global"):
        return {}
    if problem.op == "max_unpool":
        kernel, stride = zip(*unpooled_windows(problem), strict=True)
        return {"kernel_shape": list(kernel), "strides": list(stride)}
    given = with_defaults(problem.op, problem.rank, problem.attributes)
    extra = given.get("output_padding", ())
    unusual = {
        "kernel_shape": list(given["kernel_size"]) if problem.op.endswith("pool") else [],
        **_sliding(problem),
        "ceil_mode": int(given.get("ceil_mode", False)),
        "count_include_pad": int(given.get("count_include_pad", False)),
        "group": given["groups"] if given.get("groups", 1) != 1 else 0,
        "output_padding": list(extra) if any(extra) else [],
    }
    return {name: value for name, value in unusual.items() if value}


KINDS = {
    "max_pool": "MaxPool",
    "avg_pool": "AveragePool",
    "global_max_pool": "GlobalMaxPool",
    "global_avg_pool": "GlobalAveragePool",
    "conv": "Conv",
    "conv_transpose": "ConvTranspose",
    "max_unpool": "MaxUnpool",
    "fold": "Col2Im",
}
"""The operators that ONNX has, with its names for them."""


# --- what the standard leaves out -------------------------------------------------------------------------------------


@first_reason
def undocumented(problem: Problem, mode: str) -> Iterator[str]:
    """Why the ONNX standard has no such call; None where it has.

    >>> undocumented(Problem("unfold", 1, ((1, 1, 5),), {"kernel_size": (2,)}), "value")
    'ONNX has no operator for unfold'
    """
    op, given = problem.op, problem.attributes
    if mode != "value":
        yield "ONNX operators have values only"
    if op not in (*KINDS, *LAYERS):
        yield f"ONNX has no operator for {op}"
    if reason := undocumented_layer(op, problem.dtype) if op in LAYERS else None:
        yield reason
    if op not in KINDS:
        return
    if len(problem.lead) != (1 if op in (*CONVOLUTIONS, "fold") else 2):
        yield f"{KINDS[op]} takes (N, C, ...): one batch axis and one channel axis"
    if problem.dtype not in FLOATS and not (op == "max_pool" and problem.dtype in TYPES):
        yield f"{op} is not defined for {problem.dtype}"
    if given.get("divisor_override") is not None:
        yield "AveragePool has no divisor of its own"
    if given.get("keepdims") is False:
        yield "global pools keep their axes"
    if op == "fold" and problem.rank < 2:
        yield "Col2Im takes images of two axes or more"
    if op == "max_unpool" and not all(kernel for kernel, _ in unpooled_windows(problem)):
        yield "MaxUnpool takes output sizes that a pooling takes to the input's"


def require_inverse(call: Call) -> None:
    """MaxUnpool inverts a pooling: what it does with an index that stands twice, or names no cell, is not said."""
    if call.problem.op != "max_unpool":
        return
    places = call.named()["indices"]
    planes = places.reshape(prod(call.problem.lead), prod(call.problem.spatial))
    ordered = np.sort(planes, axis=1)
    if (planes < 0).any() or (ordered[:, 1:] == ordered[:, :-1]).any():
        raise NotOfferedError("MaxUnpool leaves open what an index that stands twice, or names no cell, means")


# --- models -----------------------------------------------------------------------------------------------------------


def arguments(call: Call) -> dict[str, Array]:
    """The inputs as ONNX takes them: contiguous, and indices counted over the tensor."""
    require_inverse(call)
    found = {name: np.ascontiguousarray(array) for name, array in call.named().items()}
    if call.problem.op == "max_unpool":
        cells = prod(call.problem.attributes["output_size"])
        found["indices"] = over_the_tensor(found["indices"], cells, call.problem.rank)
    return found


def model_of(call: Call, node: JudgedNode, weights: Iterable[str] = ()) -> Any:
    """The model of one node, to which ``weights`` belong; the other inputs are fed."""
    from onnx import TensorProto, helper, numpy_helper

    modules = {"np": np, "TensorProto": TensorProto, "helper": helper, "numpy_helper": numpy_helper}
    return scope_of(model_lines(call, node, weights), {**modules, **call.named()})["model"]


def named_results(call: Call, node: JudgedNode, outputs: Sequence[Any]) -> Results:
    """What the node gave, winners counted in their planes. An output that was asked for and is missing is an error."""
    found = dict(zip(node.outputs, outputs, strict=True))
    if missing := [name for name, array in found.items() if array is None]:
        raise RuntimeError(f"the model's output {missing[0]!r} was asked for and None was given")
    if "indices" in found:
        found["indices"] = within_planes(found["indices"], prod(call.problem.spatial), call.problem.rank)
    return found


def within_planes(indices: Array, cells: int, rank: int) -> Array:
    """Places in planes of ``cells`` from places in the whole tensor. One in a wrong plane stays out of range, and a
    negative one names no cell.

    >>> within_planes(np.array([[[1, -1], [7, -1]]]), 4, 1).tolist()
    [[[1, -1], [3, -1]]]
    """
    return np.where(indices < 0, indices, indices - _starts(indices, cells, rank))


def over_the_tensor(indices: Array, cells: int, rank: int) -> Array:
    """Places in the whole tensor from places in its planes of ``cells``.

    >>> over_the_tensor(np.array([[[1], [3]]]), 4, 1).tolist()
    [[[1], [7]]]
    """
    return indices + _starts(indices, cells, rank)


def _starts(indices: Array, cells: int, rank: int) -> Array:
    """Where the plane of each index starts in the tensor."""
    planes = indices.shape[: indices.ndim - rank]
    return (np.arange(prod(planes), dtype=np.int64) * cells).reshape(*planes, *(1,) * rank)


# --- samples ----------------------------------------------------------------------------------------------------------


def has_samples(problem: Problem) -> bool:
    """Whether there are samples to call one by one. MaxUnpool is told their number in its output_shape."""
    return problem.op != "max_unpool" and problem.lead[:1] > (1,)


def one_by_one(call: Call, run: Callable[[Call], Results]) -> Results:
    """Each sample in a call of its own, the results joined."""
    parts = [run(sample(call, i)) for i in range(call.problem.lead[0])]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def sample(call: Call, index: int) -> Call:
    """One sample, as a batch of one."""
    x, *weights = call.inputs
    assert x is not None
    problem = replace(call.problem, shapes=((1, *call.problem.x_shape[1:]), *call.problem.shapes[1:]))
    return replace(call, problem=problem, inputs=(x[index : index + 1], *weights), variant="plain")


# --- reproducers ------------------------------------------------------------------------------------------------------


def program(call: Call, node: JudgedNode, weights: Iterable[str], package: str, run: Sequence[str]) -> str:
    """A program that builds the model and runs it by the lines of ``run``, where ``given`` are the arrays to feed."""
    kept = list(weights)
    lines = [
        *imports(call, f"import {package}", "from onnx import TensorProto, helper, numpy_helper"),
        "",
        *assignments(replace(call.with_arrays(arguments(call)), layout="contiguous")),
        *model_lines(call, node, kept),
        "given = {" + ", ".join(f'"{name}": {name}' for name in call.named() if name not in kept) + "}",
        *run,
    ]
    return "\n".join(lines)


def model_lines(call: Call, node: JudgedNode, weights: Iterable[str]) -> list[str]:
    """The lines that build the model, from arrays by the names of the inputs."""
    problem, names, kept = call.problem, [*call.named()], list(weights)
    settings = "".join(f", {text}" for text in [keywords(node.attributes)] if text)
    initializers = ", ".join(f'numpy_helper.from_array({name}, "{name}")' for name in [*kept, *node.sizes])
    shapes = {name: f"{name}.shape" for name in names if name not in kept}
    shapes |= {"x": "x[:1].shape"} if call.variant == ONE_BY_ONE else {}
    inputs = (_info(name, problem, shape) for name, shape in shapes.items())
    outputs = (_info(name, problem, f"[None] * {len(call.output) or 2 + problem.rank}") for name in node.outputs)
    taken = [*names, *[""] * node.unused, *node.sizes]
    return [
        *(f"{name} = {_numbers(n)}" for name, n in node.sizes.items()),
        f'node = helper.make_node("{node.kind}", {_quoted(taken)}, {_quoted(node.outputs)}{settings})',
        f"inputs = [{', '.join(inputs)}]",
        f"outputs = [{', '.join(outputs)}]",
        f'graph = helper.make_graph([node], "call", inputs, outputs, [{initializers}])',
        f'opset = [helper.make_opsetid("", {LAYER_OPSET if problem.op in LAYERS else OPSET})]',
        f"model = helper.make_model(graph, opset_imports=opset, ir_version={IR_VERSION})",
    ]


def printed(call: Call, run: str) -> list[str]:
    """The lines that run a model and print its outputs, as lists; ``run`` is the call that is written out.

    A sample's indices count from its own start when it is run by itself.
    """
    cells = "output.astype(np.float64).tolist()" if call.problem.dtype == "bf16" else "output.tolist()"
    lines = [f"for output in {run}:", f"    print({cells})"]
    if call.variant == ONE_BY_ONE:
        return ["for sample in x:", *(f"    {line}" for line in ('given["x"] = sample[np.newaxis]', *lines))]
    return lines


def _numbers(given: tuple[int, ...] | tuple[float, ...] | int) -> str:
    if isinstance(given, int):
        return f"np.array({given})"
    return f"np.{'float32' if isinstance(given[0], float) else 'array'}({list(given)})"


def _quoted(names: Iterable[str]) -> str:
    return "[" + ", ".join(f'"{name}"' for name in names) + "]"


def _info(name: str, problem: Problem, shape: str) -> str:
    is_index = name in problem.inputs and problem.dtype_of(name) == "i64"
    element = INDEX_TYPE if name == "indices" or is_index else TYPES[problem.dtype]
    return f'helper.make_tensor_value_info("{name}", TensorProto.{element}, {shape})'


# --- layers -----------------------------------------------------------------------------------------------------------


LAYER_OPSET = 24
"""The first that has all of them."""


@dataclass(frozen=True)
class JudgedNode:
    """One node: its operator, its outputs, its attributes and the numbers it takes as tensors."""

    kind: str
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    sizes: Mapping[str, tuple[int, ...] | tuple[float, ...] | int] = field(default_factory=dict)
    unused: int = 0
    """Inputs before those numbers that are left out."""


def _one(kind: str, **attributes: Any) -> JudgedNode:
    return JudgedNode(kind, ("y",), attributes)


def _reducing(kind: str) -> dict[str, JudgedNode]:
    """Over the last axis, and over two of three that are kept."""
    last = JudgedNode(f"Reduce{kind}", ("y",), {"keepdims": 0}, {"axes": (-1,)})
    return {"": last, "keepdims": JudgedNode(f"Reduce{kind}", ("y",), {}, {"axes": (0, 2)})}


_EPS = {"epsilon": 1e-5}
_NEAREST = {"axes": [2, 3], "nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"}
_REDUCED = {"mean": "Mean", "sum": "Sum", "logsumexp": "LogSumExp"}

LAYERS: dict[str, JudgedNode] = {
    "matmul": _one("MatMul"),
    "matmul batched": _one("MatMul"),
    "linear": _one("Gemm", transB=1),
    "softmax": _one("Softmax"),
    "softmax axis=1": _one("Softmax", axis=1),
    "log_softmax": _one("LogSoftmax"),
    "log_softmax axis=1": _one("LogSoftmax", axis=1),
    "layer_norm": _one("LayerNormalization", **_EPS),
    "layer_norm axes=2": _one("LayerNormalization", axis=-2, **_EPS),
    "group_norm": _one("GroupNormalization", num_groups=2, **_EPS),
    "group_norm groups=1": _one("GroupNormalization", num_groups=1, **_EPS),
    "batch_norm": _one("BatchNormalization", **_EPS),
    "rms_norm": _one("RMSNormalization", **_EPS),
    "cross_entropy": _one("SoftmaxCrossEntropyLoss"),
    "cross_entropy reduction=none": _one("SoftmaxCrossEntropyLoss", reduction="none"),
    **{f"{name} {row}".strip(): node for name, kind in _REDUCED.items() for row, node in _reducing(kind).items()},
    "norm": _reducing("L2")[""],
    "norm p=1": _reducing("L1")["keepdims"],
    "gelu": _one("Gelu"),
    "gelu approximate=tanh": _one("Gelu", approximate="tanh"),
    "silu": _one("Swish"),
    **{name: _one(name.capitalize()) for name in ("softplus", "tanh", "sigmoid")},
    "cumsum": JudgedNode("CumSum", ("y",), {}, {"axis": 1}),
    "resize mode=nearest": JudgedNode("Resize", ("y",), _NEAREST, {"sizes": (7, 9)}, unused=2),
    "resize mode=linear": JudgedNode("Resize", ("y",), {"mode": "linear"}, {"scales": (1.0, 1.0, 2.0, 2.0)}, unused=1),
    "attention": _one("Attention"),
    "attention causal": _one("Attention", is_causal=1),
}


def undocumented_layer(name: str, dtype: str) -> str | None:
    """Why the standard leaves open what a layer gives in a dtype."""
    layer, kind = name.partition(" ")[0], LAYERS[name].kind
    if layer in ("gelu", "silu") and dtype in ("f16", "bf16"):
        return f"{kind} is a function of operators that store what they give; judged in wider formats"
    if layer in ("layer_norm", "group_norm", "rms_norm") and dtype == "f64":
        return f"{kind} documents that it computes in float32 (stash_type)"
    return None


ARITHMETICS: dict[str, dict[str, Any]] = {
    **{name: {"accumulators": {"f16": "f16"}} for name in ("matmul", "linear")},
    "group_norm": {"variance_by_moments": True, "reassociated": True},
    "tanh": {"function_error": 2**-21},
}
"""How ONNX Runtime computes them: MLAS adds up products of float16 in float16 where it has kernels for it (halfgemm),
and its tanh is a quotient of polynomials. The function body of GroupNormalization is ``mean(x²) − mean(x)²``."""


# --- models that the standard rules out -------------------------------------------------------------------------------


_NOT_NEGATIVE = "pads are greater than or equal to 0"
_CHANNELS = "X has W.shape[1] * group channels"
_LESS = "output_padding is less than the stride or the dilation"
_OPERATORS = {
    "Conv": "conv",
    "ConvTranspose": "conv_transpose",
    "MaxPool": "max_pool",
    "AveragePool": "avg_pool",
}


def _row(rule: str, kind: str, *shapes: Shape, dtype: str = "f32", **attributes: Any) -> tuple[str, Call, JudgedNode]:
    """What the standard says, and a node on zeros of these shapes."""
    op = _OPERATORS[kind]
    missing = (None,) * (len(INPUTS[op]) - len(shapes))
    problem = Problem(op, len(shapes[0]) - 2, (*shapes, *missing), {}, dtype)
    call = Call(problem, "value", (*(np.zeros(shape, DTYPES[dtype]) for shape in shapes), *missing))
    return f"{kind} in the standard: {rule}", call, JudgedNode(kind, ("y",), attributes)


ERROR_ROWS = (
    _row(_CHANNELS, "Conv", (1, 3, 5), (2, 2, 3)),
    _row(_CHANNELS, "Conv", (1, 4, 5), (2, 4, 3), group=2),
    _row("W.shape[0] is a multiple of group", "Conv", (1, 4, 5), (3, 2, 3), group=2),
    _row("B has size M", "Conv", (1, 2, 5), (3, 2, 3), (2,)),
    _row(_NOT_NEGATIVE, "Conv", (1, 2, 9), (3, 2, 3), pads=[-1, 0]),
    _row("X has W.shape[0] channels", "ConvTranspose", (1, 3, 5), (2, 2, 3)),
    _row(_LESS, "ConvTranspose", (1, 2, 5), (2, 2, 3), output_padding=[3]),
    _row("kernel_shape is required", "MaxPool", (1, 3, 5)),
    _row("kernel_shape has one size per axis", "MaxPool", (1, 3, 5), kernel_shape=[2, 2]),
    _row(_NOT_NEGATIVE, "MaxPool", (1, 3, 5), kernel_shape=[2], pads=[-1, 0]),
    _row("X is a tensor of floats", "AveragePool", (1, 3, 5), dtype="i8", kernel_shape=[2]),
)
