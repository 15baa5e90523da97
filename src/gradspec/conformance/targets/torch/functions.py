"""Which function of PyTorch a problem calls, with which arguments, and what PyTorch's documentation leaves out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gradspec.conformance.model.geometry import (
    WindowGeometry,
    default_attributes,
    geometry_of,
    unpooled_windows,
    with_defaults,
)
from gradspec.conformance.model.problem import COLUMNS, CONVOLUTIONS, INPUTS, SLIDING, Problem, Shape
from gradspec.conformance.model.target import first_reason
from gradspec.conformance.targets.program import Code, ErrorRow, applied


def function(problem: Problem, with_indices: bool = False) -> Code:
    """The call a user of PyTorch writes for a problem that is offered.

    >>> problem = Problem("max_pool", 2, ((1, 2, 5, 5),), {"kernel_size": (2, 2), "padding": ((1, 1), (0, 0))})
    >>> function(problem)
    torch.nn.functional.max_pool2d(x, kernel_size=(2, 2), padding=(1, 0))
    """
    settings: dict[str, Any] = {"return_indices": True} if with_indices else {}
    name, own = _FUNCTIONS[problem.op](problem)
    call = applied(f"torch.{name}", *map(Code, problem.named_shapes()), **own, **settings)
    if not (problem.op.startswith("global") and name.startswith("nn") and problem.attributes.get("keepdims") is False):
        return call
    squeezed = f"squeeze({tuple(range(-problem.rank, 0))})"
    return Code(f"(part.{squeezed} for part in {call})" if with_indices else f"{call}.{squeezed}")


def quickest(problem: Problem) -> Code:
    """The same call as PyTorch reads it fastest: strides spelled out, and one number where axes are alike.

    >>> quickest(Problem("max_pool", 2, ((1, 2, 5, 5),), {"kernel_size": (2, 2)}))
    torch.nn.functional.max_pool2d(x, stride=2, kernel_size=2)
    """
    name, own = _FUNCTIONS[problem.op](problem)
    spelled = {"stride": geometry_of(problem).each("stride"), **own} if problem.op in SLIDING else own
    alike = {key: value[0] for key, value in spelled.items() if isinstance(value, tuple) and len({*value}) == 1}
    return applied(f"torch.{name}", *map(Code, problem.named_shapes()), **{**spelled, **alike})


def has_indices(problem: Problem) -> bool:
    return "max_pool" in _FUNCTIONS[problem.op](problem)[0]


# --- settings --------------------------------------------------------------------------------------------------------

Function = tuple[str, dict[str, Any]]
"""The name of a function, and its settings."""


def keeps_sizes(parts: WindowGeometry) -> bool:
    """Whether the padding is the one that PyTorch calls ``"same"``: stride 1, and an odd cell more at the end."""
    totals = [axis.dilation * (axis.kernel - 1) for axis in parts.sliding]
    same = tuple((total // 2, total - total // 2) for total in totals)
    return set(parts.each("stride")) == {1} and parts.padding == same


def is_symmetric(parts: WindowGeometry) -> bool:
    return all(lo == hi for lo, hi in parts.padding)


def _sliding(problem: Problem, **more: Any) -> dict[str, Any]:
    """The settings that differ from what PyTorch takes by default."""
    parts, ones = geometry_of(problem), (1,) * problem.rank
    stride, padding = parts.each("stride"), parts.each("lo") if is_symmetric(parts) else "same"
    usual = {
        "stride": parts.each("kernel") if problem.op.endswith("pool") else ones,
        "padding": (0,) * problem.rank,
        "dilation": ones,
    }
    found: Mapping[str, Any] = {"stride": stride, "padding": padding, "dilation": parts.each("dilation")}
    unusual = {name: value for name, value in found.items() if value != usual[name]}
    return {**unusual, **{name: value for name, value in more.items() if value}}


def _named(problem: Problem) -> str:
    return f"nn.functional.{problem.op}{'' if problem.op in COLUMNS else f'{problem.rank}d'}"


def _pool(problem: Problem) -> Function:
    given = problem.attributes
    more = {"ceil_mode": given.get("ceil_mode", False), "divisor_override": given.get("divisor_override")}
    counted = {} if given.get("count_include_pad", True) else {"count_include_pad": False}
    return _named(problem), {"kernel_size": tuple(given["kernel_size"]), **_sliding(problem, **more), **counted}


def _adaptive(problem: Problem) -> Function:
    sizes = tuple(problem.attributes["output_size"])
    if problem.rank == 1:  # one axis cannot be left as it is: the documentation knows no None there
        sizes = tuple(n if m is None else m for n, m in zip(problem.spatial, sizes, strict=True))
    return _named(problem), {"output_size": sizes}


def _global(problem: Problem) -> Function:
    if function_of_any_rank(problem) or problem.rank > 3:
        keep = {"keepdim": True} if problem.attributes.get("keepdims", True) else {}
        path = "amax" if problem.op == "global_max_pool" else "mean"
        return path, {"dim": tuple(range(-problem.rank, 0)), **keep}
    kind = problem.op.replace("global", "adaptive")
    return f"nn.functional.{kind}{problem.rank}d", {"output_size": (1,) * problem.rank}


def _conv(problem: Problem) -> Function:
    given = with_defaults(problem.op, problem.rank, problem.attributes)
    extra, groups = given.get("output_padding", ()), given["groups"]
    longer = extra if any(extra) else None
    return _named(problem), _sliding(problem, output_padding=longer, groups=None if groups == 1 else groups)


def _unpool(problem: Problem) -> Function:
    kernel, stride = zip(*unpooled_windows(problem), strict=True)
    sizes = {"kernel_size": kernel, "stride": stride, "output_size": tuple(problem.attributes["output_size"])}
    return _named(problem), sizes


def _columns(problem: Problem) -> Function:
    given = problem.attributes
    first = {"output_size": tuple(given["output_size"])} if problem.op == "fold" else {}
    return _named(problem), {**first, "kernel_size": tuple(given["kernel_size"]), **_sliding(problem)}


_FUNCTIONS: dict[str, Callable[[Problem], Function]] = {
    **dict.fromkeys(("max_pool", "avg_pool"), _pool),
    **dict.fromkeys(("adaptive_max_pool", "adaptive_avg_pool"), _adaptive),
    **dict.fromkeys(("global_max_pool", "global_avg_pool"), _global),
    **dict.fromkeys(CONVOLUTIONS, _conv),
    **dict.fromkeys(COLUMNS, _columns),
    "max_unpool": _unpool,
}


# --- what is not offered ---------------------------------------------------------------------------------------------


@first_reason
def undocumented(problem: Problem, mode: str) -> Iterator[str]:
    """Why PyTorch's documentation has no such call; None where it has.

    >>> undocumented(Problem("max_pool", 4, ((1, 1, 2, 2, 2, 2),), {"kernel_size": (2, 2, 2, 2)}), "value")
    'max_pool is documented for one to three spatial axes'
    """
    op, given = problem.op, problem.attributes
    if op not in _FUNCTIONS:
        yield f"PyTorch has no {op}"
        return
    yield from _wrong_axes(problem)
    ties = given.get("ties", "first")
    if mode != "value" and not (ties == "first" or (ties == "split" and op == "global_max_pool")):
        yield f'no function of PyTorch pools with ties="{ties}" over these windows'
    if op in ("max_pool", "avg_pool", *CONVOLUTIONS, *COLUMNS):
        yield from _wrong_windows(problem)
    if op == "max_unpool" and not all(kernel for kernel, _ in unpooled_windows(problem)):
        yield "max_unpool is documented for output sizes that a pooling takes to the input's"


def _wrong_axes(problem: Problem) -> Iterator[str]:
    op, rank, shape = problem.op, problem.rank, problem.x_shape
    if function_of_any_rank(problem):
        return
    if op in COLUMNS and rank != 2:
        yield f"{op} is documented for two spatial axes"
    if rank > 3:
        yield f"{op} is documented for one to three spatial axes"
    own = 1 if op == "fold" else rank  # the columns of a fold have one axis for all places
    if len(shape) - own not in (1, 2):
        yield f"{op} is documented for one batch axis or none, and one channel axis"
    if op == "unfold" and len(shape) == rank + 1:
        yield "unfold is documented for batches"
    if 0 in shape[-own - 1 :] and op != "conv":
        yield f"{op} takes an empty batch, and no other empty axis"
    outputs = {"conv": 0, "conv_transpose": 1}.get(op)
    if outputs is not None and (problem.shapes[1] or ())[outputs] == 0:
        yield f"{op} takes no weight without output channels"


def function_of_any_rank(problem: Problem) -> bool:
    """Whether the problem is a reduction over the last axes: ``mean`` or ``amax``."""
    if problem.op == "global_max_pool":
        return bool(problem.attributes.get("ties") == "split")
    return problem.op == "global_avg_pool" and problem.rank > 3


def _wrong_windows(problem: Problem) -> Iterator[str]:
    op, parts = problem.op, geometry_of(problem)
    if not is_symmetric(parts) and not (op == "conv" and keeps_sizes(parts)):
        yield f"{op} is documented for equal padding on both sides of an axis"
    if not op.endswith("pool"):
        return
    if any(2 * axis.lo > axis.kernel for axis in parts.sliding):
        yield f"{op} is documented for padding of at most half the kernel"
    if op == "avg_pool" and set(parts.each("dilation")) != {1}:
        yield "avg_pool has no dilation"
    if op == "avg_pool" and problem.rank == 1 and problem.attributes.get("divisor_override") is not None:
        yield "avg_pool1d has no divisor_override"


def has_batch(problem: Problem) -> bool:
    """Whether the first axis of x is a batch of at least one sample."""
    shape, own = problem.x_shape, 1 if problem.op == "fold" else problem.rank
    return len(shape) == own + 2 and shape[0] > 0


def smallest(op: str, rank: int, dtype: str) -> Problem:
    """A problem of few cells that PyTorch offers, for each operator and rank that it has."""
    one, two = (1,) * rank, (2,) * rank
    x = (1, 1, 1) if op == "fold" else (1, 1, *two)
    shapes = {"x": x, "indices": x, "weight": (1, 1, *one), "bias": (1,)}
    kernel, output = one if op == "fold" else two, two if op == "max_unpool" else one
    sizes = {"kernel_size": kernel, "output_size": output, "rank": rank}
    attributes = {name: size for name, size in sizes.items() if name in default_attributes(op)}
    return Problem(op, rank, tuple(shapes[name] for name in INPUTS[op]), attributes, dtype)


# --- layers -----------------------------------------------------------------------------------------------------------


_F = "torch.nn.functional"
_CONVOLVED = f"torch.relu({_F}.conv2d(x, weight, padding=1))"

EXPRESSIONS = {
    "matmul": "torch.matmul(a, b)",
    "matmul batched": "torch.matmul(a, b)",
    "linear": f"{_F}.linear(x, weight, bias)",
    "softmax": "torch.softmax(x, -1)",
    "softmax axis=1": "torch.softmax(x, 1)",
    "log_softmax": "torch.log_softmax(x, -1)",
    "log_softmax axis=1": "torch.log_softmax(x, 1)",
    "logsumexp": "torch.logsumexp(x, -1)",
    "logsumexp keepdims": "torch.logsumexp(x, (0, 2), keepdim=True)",
    "layer_norm": f"{_F}.layer_norm(x, x.shape[-1:], weight, bias, 1e-5)",
    "layer_norm axes=2": f"{_F}.layer_norm(x, x.shape[-2:], weight, bias, 1e-5)",
    "group_norm": f"{_F}.group_norm(x, 2, weight, bias, 1e-5)",
    "group_norm groups=1": f"{_F}.group_norm(x, 1, weight, bias, 1e-5)",
    "batch_norm": f"{_F}.batch_norm(x, mean, var, weight, bias, False, 0.1, 1e-5)",
    "batch_norm training": f"{_F}.batch_norm(x, None, None, weight, bias, True, 0.1, 1e-5)",
    "rms_norm": f"{_F}.rms_norm(x, x.shape[-1:], weight, 1e-5)",
    "cross_entropy": f"{_F}.cross_entropy(x, labels)",
    "cross_entropy reduction=none": f'{_F}.cross_entropy(x, labels, reduction="none")',
    "mean": "torch.mean(x, -1)",
    "mean keepdims": "torch.mean(x, (0, 2), keepdim=True)",
    "sum": "torch.sum(x, -1)",
    "sum keepdims": "torch.sum(x, (0, 2), keepdim=True)",
    "var": "torch.var(x, -1)",
    "var correction=0": "torch.var(x, (0, 2), correction=0, keepdim=True)",
    "norm": "torch.linalg.vector_norm(x, 2, -1)",
    "norm p=1": "torch.linalg.vector_norm(x, 1, (0, 2), keepdim=True)",
    "gelu": f"{_F}.gelu(x)",
    "gelu approximate=tanh": f'{_F}.gelu(x, approximate="tanh")',
    "silu": f"{_F}.silu(x)",
    "softplus": f"{_F}.softplus(x)",
    "tanh": "torch.tanh(x)",
    "sigmoid": "torch.sigmoid(x)",
    "cumsum": "torch.cumsum(x, 1)",
    "resize mode=nearest": f'{_F}.interpolate(x, (7, 9), mode="nearest")',
    "resize mode=linear": f'{_F}.interpolate(x, scale_factor=2, mode="bilinear")',
    "conv_pool": f"{_F}.max_pool2d({_CONVOLVED}, 2)",
    "conv_pool kernel=3": f"{_F}.max_pool2d({_CONVOLVED}, 3, 2)",
    "attention": f"{_F}.scaled_dot_product_attention(query, key, value)",
    "attention causal": f"{_F}.scaled_dot_product_attention(query, key, value, is_causal=True)",
}

REFUSED: tuple[tuple[Callable[[Problem, str], bool], str], ...] = (
    (lambda problem, mode: problem.op == "batch_norm" and mode != "value", "running statistics have no derivatives"),
    (
        lambda problem, mode: problem.op == "softplus" and problem.dtype == "f64",
        "softplus documents that it is linear above its threshold, 20, which float64 sees",
    ),
)

_FOLDED = {"reassociated": True, "variance_by_moments": True}
ARITHMETICS = dict.fromkeys(("layer_norm", "group_norm", "batch_norm"), _FOLDED)
"""Normalisations are x·a + b: layer_norm_kernel.cpp, group_norm_kernel.cpp and batch_norm_kernel.cpp of ATen/native/cpu
fold mean, deviation, weight and bias into a and b first, and moments are taken in one pass (moments_utils.h)."""


# --- calls for which PyTorch's documentation states an error ----------------------------------------------------------


ERRORS = (RuntimeError, ValueError, TypeError)
DOCUMENTATION = "https://docs.pytorch.org/docs/stable/generated/torch.nn."
_HALF = "padding is at least 0 and at most half of the kernel"
_APART = "dilation is greater than 0"
_DIVISIBLE = "input and output channels are divisible by groups"
_SAME = 'padding="same" is not for strides other than 1'
_AS_MANY = "there are as many columns as windows on the output"
_LINE, _PLANE, _SPACE = (1, 4, 4), (1, 4, 4, 4), (1, 4, 4, 4, 4)


def _row(op: str, name: str, page: str, rule: str, *shapes: Shape, **settings: Any) -> ErrorRow:
    """A call of a function on tensors of ones, and what which page says of it."""
    call = applied(f"torch.nn.functional.{name}", *(applied("torch.ones", shape) for shape in shapes), **settings)
    return ErrorRow(op, f"{rule} ({DOCUMENTATION}{page}.html)", call, ERRORS)


ERROR_ROWS = (
    _row("max_pool", "max_pool1d", "functional.max_pool1d", _HALF, _LINE, kernel_size=2, padding=2),
    _row("max_pool", "max_pool2d", "functional.max_pool2d", _HALF, _PLANE, kernel_size=2, padding=2),
    _row("max_pool", "max_pool2d", "functional.max_pool2d", _HALF, _PLANE, kernel_size=2, padding=-1),
    _row("max_pool", "max_pool3d", "functional.max_pool3d", _HALF, _SPACE, kernel_size=2, padding=2),
    _row("max_pool", "max_pool2d", "functional.max_pool2d", _APART, _PLANE, kernel_size=2, dilation=0),
    _row("avg_pool", "avg_pool2d", "functional.avg_pool2d", _HALF, _PLANE, kernel_size=3, padding=2),
    _row("conv", "conv2d", "Conv2d", _DIVISIBLE, _PLANE, (3, 2, 2, 2), groups=2),
    _row("conv", "conv3d", "Conv3d", _DIVISIBLE, _SPACE, (3, 1, 2, 2, 2), groups=3),
    _row("conv", "conv2d", "functional.conv2d", _SAME, _PLANE, (2, 4, 2, 2), padding="same", stride=2),
    _row("conv_transpose", "conv_transpose2d", "ConvTranspose2d", _DIVISIBLE, _PLANE, (4, 1, 2, 2), groups=3),
    _row("fold", "fold", "Fold", _AS_MANY, (1, 8, 8), output_size=(4, 4), kernel_size=2),
)
