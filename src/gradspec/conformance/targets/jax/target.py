"""JAX: values, JVPs, VJPs and the VJPs of VJPs of what its users write with ``jax.lax`` and ``jax.numpy``, jitted.

JAX has no pooling layers of its own. Its users write them with ``lax.reduce_window``, as ``flax.linen.pooling`` does: a
maximum starts from −∞, and an average is a sum divided by the number of cells, which is the user's own division. That
composition is what is judged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache
from math import prod
from typing import Any

import numpy as np

from gradspec.conformance.model.geometry import extent, geometry_of, with_defaults
from gradspec.conformance.model.problem import CONVOLUTIONS, DTYPES, FLOATS, SELECTIONS, Call, Problem
from gradspec.conformance.model.target import ExpectedError, NotOfferedError, first_reason
from gradspec.conformance.targets.arrays import LibraryTarget
from gradspec.conformance.targets.layers import WithLayers, name_of
from gradspec.conformance.targets.program import (
    DTYPE_TEXT,
    Code,
    ErrorRow,
    applied,
    as_tuple,
    assignments,
    evaluate,
    imports,
    scope_of,
)

CHANNELS_LAST = "channels_last"
AS_IT_LIES = "as_it_lies"
"""Channels last in the arrays that are given, weights and value included; the judge's own are channels first."""
VMAP = "vmap"
LHS_DILATION = "lhs_dilation"
EAGER = "eager"
BATCHED = (*CONVOLUTIONS, "unfold")
"""Operators that JAX defines for exactly one batch axis."""

LETTERS = "TDHW"
X, WEIGHT = Code("x"), Code("weight")


@cache
def modules() -> Mapping[str, Any]:
    """What the expressions are written with."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    return {"jax": jax, "jnp": jnp, "lax": lax, "np": np}


def function(problem: Problem, variant: str = "plain") -> Code:
    """What a user of JAX writes for a problem that is offered; under ``vmap`` it is for one sample.

    >>> function(Problem("max_pool", 1, ((1, 5),), {"kernel_size": (2,), "stride": (1,)}))
    lax.reduce_window(x, -jnp.inf, lax.max, (1, 2), (1, 1), ((0, 0), (0, 0)))
    """
    return _FUNCTIONS[problem.op](problem, variant)


# --- pooling ----------------------------------------------------------------------------------------------------------


def _reduced(problem: Problem, variant: str, cells: Code, start: Any, combine: str) -> Code:
    """``lax.reduce_window`` with windows of one cell on the axes that come first."""
    parts, axes = geometry_of(problem), len(problem.lead) - (variant == VMAP)
    kernel, stride, dilation = ((1,) * axes + parts.each(name) for name in ("kernel", "stride", "dilation"))
    windows = (kernel, stride, ((0, 0),) * axes + parts.padding)
    dilated = {"window_dilation": dilation} if set(dilation) != {1} else {}
    return applied("lax.reduce_window", cells, start, Code(combine), *windows, **dilated)


def _max_pool(problem: Problem, variant: str) -> Code:
    lowest = Code("-jnp.inf")
    if problem.dtype not in FLOATS:
        lowest = applied(DTYPE_TEXT[problem.dtype], int(np.iinfo(DTYPES[problem.dtype]).min))
    return _reduced(problem, variant, X, lowest, "lax.max")


def _avg_pool(problem: Problem, variant: str) -> Code:
    total, divisor = _reduced(problem, variant, X, 0.0, "lax.add"), problem.attributes.get("divisor_override")
    if divisor is None and problem.attributes.get("count_include_pad", True):
        divisor = prod(geometry_of(problem).each("kernel"))
    if divisor is not None:
        return Code(f"{total} / {divisor!r}")
    # Sixteen bits do not count far, and the average is a number of x's dtype.
    ones = applied("jnp.ones", Code("x.shape"), Code("jnp.float32"))
    counts = _reduced(problem, variant, ones, 0.0, "lax.add")
    return Code(f"{total} / {applied('lax.convert_element_type', counts, Code('x.dtype'))}")


def _global(name: str) -> Callable[[Problem, str], Code]:
    def pooled(problem: Problem, variant: str) -> Code:
        keep = {"keepdims": True} if problem.attributes.get("keepdims", True) else {}
        return applied(name, X, axis=tuple(range(-problem.rank, 0)), **keep)

    return pooled


# --- convolution ------------------------------------------------------------------------------------------------------


def _conv(problem: Problem, variant: str) -> Code:
    parts = geometry_of(problem)
    arguments = (parts.each("stride"), parts.padding)
    return _placed(problem, variant, "lax.conv_general_dilated", WEIGHT, arguments, _spread(problem))


def _conv_transpose(problem: Problem, variant: str) -> Code:
    """``lax.conv_transpose``, which has neither groups nor output padding; with those, the input is dilated instead."""
    parts = geometry_of(problem)
    if variant != LHS_DILATION and has_transpose(problem):
        consistent = {"transpose_kernel": True, "use_consistent_padding": True, **_spread(problem)}
        arguments = (parts.each("stride"), parts.padding)
        return _placed(problem, variant, "lax.conv_transpose", WEIGHT, arguments, consistent)
    ends = zip(parts.sliding, output_padding(problem), strict=True)
    pads = tuple((extent(axis) - 1 - axis.lo, extent(axis) - 1 - axis.hi + more) for axis, more in ends)
    dilated = ((1,) * problem.rank, pads, parts.each("stride"))
    return _placed(problem, variant, "lax.conv_general_dilated", _turned(problem), dilated, _spread(problem))


def output_padding(problem: Problem) -> tuple[int, ...]:
    """The cells that a transposed convolution adds at the end of each axis."""
    return tuple(with_defaults(problem.op, problem.rank, problem.attributes)["output_padding"])


def has_transpose(problem: Problem) -> bool:
    """Whether ``lax.conv_transpose`` says all of a transposed convolution."""
    return problem.attributes.get("groups", 1) == 1 and not any(output_padding(problem))


def _spread(problem: Problem) -> dict[str, Any]:
    dilation = geometry_of(problem).each("dilation")
    return {"rhs_dilation": dilation} if set(dilation) != {1} else {}


def _turned(problem: Problem) -> Code:
    """The weight ``(C, M / groups, *kernel)`` as one of ``(M, C / groups, *kernel)``, its kernel turned round."""
    channels, per_group, *kernel = problem.shapes[1] or ()
    groups = problem.attributes.get("groups", 1)
    flipped = applied("jnp.flip", WEIGHT, tuple(range(2, 2 + problem.rank)))
    if groups == 1:
        return applied("jnp.swapaxes", flipped, 0, 1)
    split = applied("jnp.reshape", flipped, (groups, channels // groups, per_group, *kernel))
    swapped = applied("jnp.swapaxes", split, 1, 2)
    return applied("jnp.reshape", swapped, (groups * per_group, channels // groups, *kernel))


def _placed(
    problem: Problem, variant: str, name: str, weight: Code, arguments: tuple[Any, ...], settings: Mapping[str, Any]
) -> Code:
    """A convolution on ``x`` as the variant lays it out, with the bias."""
    axes, groups = LETTERS[-problem.rank :], problem.attributes.get("groups", 1)
    is_last = variant in (CHANNELS_LAST, AS_IT_LIES)
    order = f"N{axes}C" if is_last else f"NC{axes}"
    numbers = {"dimension_numbers": (order, f"{axes}IO" if variant == AS_IT_LIES else f"OI{axes}", order)}
    settings = {**settings, **(numbers if is_last or name == "lax.conv_transpose" else {})}
    settings |= {"feature_group_count": groups} if groups != 1 else {}
    x = {CHANNELS_LAST: applied("jnp.moveaxis", X, 1, -1), VMAP: applied("jnp.expand_dims", X, 0)}.get(variant, X)
    y = applied(name, x, weight, *arguments, **settings)
    if problem.shapes[2] is not None:
        bias = "bias" if is_last else applied("jnp.reshape", Code("bias"), (-1, *(1,) * problem.rank))
        y = Code(f"{y} + {bias}")
    back = {CHANNELS_LAST: applied("jnp.moveaxis", y, -1, 1), VMAP: applied("jnp.squeeze", y, 0)}
    return back.get(variant, y)


def _unfold(problem: Problem, variant: str) -> Code:
    parts = geometry_of(problem)
    x = applied("jnp.expand_dims", X, 0) if variant == VMAP else X
    windows = (parts.each("kernel"), parts.each("stride"), parts.padding)
    columns = applied("lax.collapse", applied("lax.conv_general_dilated_patches", x, *windows, **_spread(problem)), 2)
    return applied("jnp.squeeze", columns, 0) if variant == VMAP else columns


_FUNCTIONS: dict[str, Callable[[Problem, str], Code]] = {
    "max_pool": _max_pool,
    "avg_pool": _avg_pool,
    "global_max_pool": _global("jnp.max"),
    "global_avg_pool": _global("jnp.mean"),
    "conv": _conv,
    "conv_transpose": _conv_transpose,
    "unfold": _unfold,
}


# --- what is not offered ----------------------------------------------------------------------------------------------


@first_reason
def undocumented(problem: Problem, mode: str) -> Iterator[str]:
    """Why JAX's documentation has no such call; None where it has.

    >>> undocumented(Problem("max_pool", 1, ((1, 5),), {"kernel_size": (2,), "ceil_mode": True}), "value")
    'lax.reduce_window has no ceil_mode'
    """
    op, given = problem.op, problem.attributes
    if op not in _FUNCTIONS:
        yield f"JAX has no {op}"
        return
    if op in BATCHED and len(problem.lead) != 1:
        yield f"{op} is documented for one batch axis"
    if given.get("ceil_mode"):
        yield "lax.reduce_window has no ceil_mode"
    if op == "max_pool" and mode in ("vjp", "second") and set(geometry_of(problem).each("dilation")) != {1}:
        yield "VJP not implemented for select_and_gather (MaxPool) with window dilation"
    if mode != "value" and given.get("ties", "first") != "first":
        yield "JAX documents no rule for ties"
    if problem.dtype not in FLOATS and mode != "value":
        yield "integers have no derivatives"
    if problem.dtype not in FLOATS and op not in SELECTIONS:
        yield f"{op} of integers would divide or round them"


# --- layers -----------------------------------------------------------------------------------------------------------


_AFFINE = " * weight[:, None] + bias[:, None]"
_HEADS = "query.swapaxes(1, 2), key.swapaxes(1, 2), value.swapaxes(1, 2)"
_TWICE = "(*x.shape[:2], 2 * x.shape[2], 2 * x.shape[3])"
_GROUPS = "jax.nn.standardize(x.reshape(len(x), {}, -1), axis=-1).reshape(x.shape)"
_PICKED = "-jnp.take_along_axis(jax.nn.log_softmax(x, 1), labels[:, None], 1)[:, 0]"

EXPRESSIONS = {
    "matmul": "jnp.matmul(a, b)",
    "matmul batched": "jnp.matmul(a, b)",
    "linear": "jnp.matmul(x, weight.T) + bias",
    "softmax": "jax.nn.softmax(x, -1)",
    "softmax axis=1": "jax.nn.softmax(x, 1)",
    "log_softmax": "jax.nn.log_softmax(x, -1)",
    "log_softmax axis=1": "jax.nn.log_softmax(x, 1)",
    "logsumexp": "jax.nn.logsumexp(x, -1)",
    "logsumexp keepdims": "jax.nn.logsumexp(x, (0, 2), keepdims=True)",
    "layer_norm": "jax.nn.standardize(x, -1, epsilon=1e-5) * weight + bias",
    "layer_norm axes=2": "jax.nn.standardize(x, (-2, -1), epsilon=1e-5) * weight + bias",
    "group_norm": _GROUPS.format(2) + _AFFINE,
    "group_norm groups=1": _GROUPS.format(1) + _AFFINE,
    "batch_norm": f"jax.nn.standardize(x, 1, mean[:, None], var[:, None], 1e-5){_AFFINE}",
    "batch_norm training": f"jax.nn.standardize(x, (0, 2), epsilon=1e-5){_AFFINE}",
    "cross_entropy": f"({_PICKED}).mean()",
    "cross_entropy reduction=none": _PICKED,
    "mean": "jnp.mean(x, -1)",
    "mean keepdims": "jnp.mean(x, (0, 2), keepdims=True)",
    "sum": "jnp.sum(x, -1)",
    "sum keepdims": "jnp.sum(x, (0, 2), keepdims=True)",
    "var": "jnp.var(x, -1, ddof=1)",
    "var correction=0": "jnp.var(x, (0, 2), keepdims=True)",
    "norm": "jnp.linalg.norm(x, axis=-1)",
    "norm p=1": "jnp.linalg.norm(x.swapaxes(0, 1).reshape(x.shape[1], -1), 1, axis=1).reshape(1, -1, 1)",
    "gelu": "jax.nn.gelu(x, approximate=False)",
    "gelu approximate=tanh": "jax.nn.gelu(x, approximate=True)",
    "silu": "jax.nn.silu(x)",
    "softplus": "jax.nn.softplus(x)",
    "tanh": "jnp.tanh(x)",
    "sigmoid": "jax.nn.sigmoid(x)",
    "cumsum": "jnp.cumsum(x, 1)",
    "resize mode=linear": f'jax.image.resize(x, {_TWICE}, "linear", antialias=False)',
    "attention": f"jax.nn.dot_product_attention({_HEADS}).swapaxes(1, 2)",
    "attention causal": f"jax.nn.dot_product_attention({_HEADS}, is_causal=True).swapaxes(1, 2)",
}

_OF_ONE = ("matmul", "mean", "sum", "var", "cumsum")
"""Layers that are one operation of JAX's, or accumulate in float32 by their documentation."""


REFUSED: tuple[tuple[Callable[[Problem, str], bool], str], ...] = (
    (
        lambda problem, mode: problem.dtype in ("f16", "bf16") and name_of(problem) not in _OF_ONE,
        "judged in wider formats: it is composed of operations that store what they give",
    ),
)

_MOMENTS = {"variance_by_moments": True, "reassociated": True}
ARITHMETICS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("layer_norm", "group_norm", "batch_norm"), _MOMENTS),
    "cumsum": {"accumulators": {"f16": "f16", "bf16": "bf16"}},
}
"""``jax.nn.standardize`` documents ``mean(x²) − mean(x)²``, and jit fuses what follows. ``lax.cumsum`` is a scan that
adds arrays of the operand's dtype."""


# --- calls that JAX's documentation rules out -------------------------------------------------------------------------


ROW, KERNEL, PAIR, FLAT = (applied("np.zeros", shape) for shape in ((1, 3, 5), (2, 3, 2), (2,), (2, 3)))
CONV, TRANSPOSE, WINDOW = "lax.conv_general_dilated", "lax.conv_transpose", "lax.reduce_window"
SUM = (Code("lax.add"), (1, 1, 2))
MAX = (Code("-jnp.inf"), Code("lax.max"), (1, 1, 2))
_GROUP_RULE = f"{CONV}, feature_group_count (XLA's Conv): it divides the input's channels"
_CONV_STRIDES = f"{CONV}, window_strides: a sequence of n integers"
_CONV_PADDING = f"{CONV}, padding: 'SAME', 'SAME_LOWER', 'VALID' or pairs"
_RANK = f"{TRANSPOSE}, rhs: of rank n + 2 like lhs"
_STRIDES = f"{WINDOW}, window_strides: of the same length as window_dimensions"
_PADDING = f"{WINDOW}, padding: one of 'VALID', 'SAME' or 'SAME_LOWER', or pairs"

ERROR_ROWS = (
    ErrorRow("conv", _GROUP_RULE, applied(CONV, ROW, KERNEL, (1,), ((0, 0),), feature_group_count=2)),
    ErrorRow("conv", _CONV_STRIDES, applied(CONV, ROW, KERNEL, (1, 1), ((0, 0),))),
    ErrorRow("conv", _CONV_PADDING, applied(CONV, ROW, KERNEL, (1,), "FULL")),
    ErrorRow("conv_transpose", _RANK, applied(TRANSPOSE, ROW, FLAT, (1,), "VALID")),
    ErrorRow("avg_pool", _STRIDES, applied(WINDOW, ROW, 0.0, *SUM, (1, 1), "VALID")),
    ErrorRow("avg_pool", f"{WINDOW}, init_value: a scalar", applied(WINDOW, ROW, PAIR, *SUM, (1, 1, 1), "VALID")),
    ErrorRow("max_pool", _PADDING, applied(WINDOW, ROW, *MAX, (1, 1, 1), "FULL")),
)
ERROR_IMPORTS = "import jax.numpy as jnp\nimport numpy as np\nfrom jax import lax"


# --- the target -------------------------------------------------------------------------------------------------------


DOCS = "https://docs.jax.dev/en/latest"


class JaxWindows(LibraryTarget):
    """``jax.jit`` of each call. Compiled functions are kept for the problems used last.

    Reductions of whole planes also run ``eager``: their derivatives are several operations, which jit fuses.
    """

    name, array = "jax", "jax"
    compiles = True
    packages = ("jax", "jaxlib")

    def refusal(self, problem: Problem, mode: str) -> str | None:
        return undocumented(problem, mode)

    def variants(self, problem: Problem, mode: str) -> tuple[str, ...]:
        transposes = problem.op == "conv_transpose" and has_transpose(problem)
        offered = {
            CHANNELS_LAST: problem.op in CONVOLUTIONS,
            LHS_DILATION: transposes,
            EAGER: problem.op.startswith("global"),
            VMAP: bool(problem.lead),
        }
        return tuple(name for name, is_there in offered.items() if is_there)

    def settings(self) -> AbstractContextManager[Any]:
        import jax

        return jax.enable_x64(True)  # type: ignore[no-any-return]

    def staged(self, call: Call) -> Call:
        if call.problem.op == "unfold":
            require_finite(call)
        return call

    def compute(self, call: Call) -> Mapping[str, Any]:
        try:
            found = as_tuple(self.function(call)(*call.arguments()))
        except NotImplementedError as error:
            raise NotOfferedError(str(error)) from error
        names = [name for name in call.problem.results(call.mode) if name != "indices"]
        return dict(zip(names, found, strict=True))

    def expression(self, call: Call) -> str:
        return function(call.problem, call.variant)

    def made_function(self, call: Call) -> Callable[..., Any]:
        lines, name = function_lines(call, self.expression(call))
        return evaluate(name, scope_of(lines, modules()))  # type: ignore[no-any-return]

    def reproducer(self, call: Call) -> str:
        return program(call, *function_lines(call, self.expression(call)))

    def conventions(self) -> frozenset[str]:
        """A window is folded from an initial value, which is the maximum of no cells; their mean is 0 / 0."""
        return frozenset({"padding_only_minus_inf", "padding_only_lowest", "padding_only_nan"})

    def reduced(self) -> dict[str, str]:
        return {
            "ftz": f"subnormal numbers are flushed to zero ({DOCS}/notebooks/Common_Gotchas_in_JAX.html)",
            "parts": f"what several functions compute is stored between them ({DOCS}/jax.lax.html)",
            "low_precision_accumulate": "lax.reduce_window folds with the function that it is given, on the operand's "
            f"dtype ({DOCS}/_autosummary/jax.lax.reduce_window.html)",
            "tf32": f"jax.default_matmul_precision, on GPUs ({DOCS}/jax.default_matmul_precision.html)",
            "bf16_inputs": f"jax.default_matmul_precision, on TPUs ({DOCS}/jax.default_matmul_precision.html)",
        }

    def composed(self, problem: Problem, mode: str) -> frozenset[str]:
        """Users add a bias, and divide a sum of ``lax.add``; derivatives of two inputs are sums of arrays."""
        if problem.op == "avg_pool":
            return frozenset({"parts", "low_precision_accumulate"})
        return frozenset({"parts"} if "bias" in problem.named_shapes() or mode in ("jvp", "second") else ())

    def expected_errors(self) -> Sequence[ExpectedError]:
        return [row.expected(ERROR_IMPORTS, modules) for row in ERROR_ROWS]


class JaxTarget(WithLayers, JaxWindows):
    """Windows, and layers beside them; jitted, too."""

    expressions, refused, arithmetics = EXPRESSIONS, REFUSED, ARITHMETICS


def require_finite(call: Call) -> None:
    """Patches are documented to come from a convolution: what is not finite meets the zeros of its kernel."""
    if not all(np.isfinite(array).all() for array in call.arguments()):
        raise NotOfferedError("lax.conv_general_dilated_patches runs a convolution, which spreads what is not finite")


# --- the reproducer ---------------------------------------------------------------------------------------------------


def program(call: Call, lines: Sequence[str], name: str) -> str:
    """The call as a user of JAX writes it: the lines define the function of this name."""
    is_wide = not {"f64", "i64"}.isdisjoint(map(call.problem.dtype_of, call.problem.inputs))
    moved = [f"d{name}" for name, _ in zip(call.problem.differentiable, call.directions, strict=False)]
    results = f"{name}({', '.join([*call.named(), *(['g'] if call.cotangent is not None else []), *moved])})"
    cells = "astype(np.float64).tolist()" if call.problem.dtype == "bf16" else "tolist()"
    each = [f"results = {results}", "for array in results:", f"    print(array.{cells})"]
    text = [
        *imports(call, "import jax", "import jax.numpy as jnp", "from jax import lax"),
        "",
        *(['jax.config.update("jax_enable_x64", True)'] if is_wide else []),
        *lines,
        *assignments(call),
        *(each if call.mode in ("vjp", "second") else [f"print({results}.{cells})"]),
    ]
    return "\n".join(text)


def function_lines(call: Call, body: str) -> tuple[list[str], str]:
    """What is defined, and the function of a call's arrays, jitted but for the eager variant; ``body`` is the value."""
    names, floats = [*call.named()], call.problem.differentiable
    inputs, at, moved = (", ".join(some) for some in (names, floats, [f"d{name}" for name in floats]))
    value, pulled = "f", "vjp"
    if at != inputs:  # derivatives are those by some of the inputs
        value, pulled = f"lambda {at}: f({inputs})", f"lambda {at}, g: vjp({inputs}, g)"
    start, end = ("", "") if call.variant == EAGER else ("jax.jit(", ")")
    lines = [f"f = lambda {inputs}: {body}"]
    samples = tuple(0 if name == "x" else None for name in names)
    lines += [f"f = jax.vmap(f, in_axes={samples})"] if call.variant == VMAP else []
    vjp = f"vjp = lambda {inputs}, g: jax.vjp({value}, {at})[1](g)"
    jvp = f"jvp = {start}lambda {inputs}, {moved}: jax.jvp({value}, ({at},), ({moved},))[1]{end}"
    second = f"second = {start}lambda {inputs}, g, {moved}: jax.vjp({pulled}, {at}, g)[1](({moved},)){end}"
    more, name = {
        "value": ([], f"{start}f{end}"),
        "jvp": ([jvp], "jvp"),
        "vjp": ([vjp], f"{start}vjp{end}"),
        "second": ([vjp, second], "second"),
    }[call.mode]
    return [*lines, *more], name
