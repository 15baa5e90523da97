"""JAX: values, JVPs, VJPs and the VJPs of VJPs of what its users write with ``jax.lax`` and ``jax.numpy``, jitted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from gradspec.conformance.model.problem import CONVOLUTIONS, Call, Problem
from gradspec.conformance.model.target import ExpectedError, NotOfferedError
from gradspec.conformance.targets.arrays import LibraryTarget
from gradspec.conformance.targets.jax.functions import (
    ARITHMETICS,
    CHANNELS_LAST,
    EAGER,
    ERROR_IMPORTS,
    ERROR_ROWS,
    EXPRESSIONS,
    LHS_DILATION,
    REFUSED,
    VMAP,
    function,
    has_transpose,
    modules,
    undocumented,
)
from gradspec.conformance.targets.layers import WithLayers
from gradspec.conformance.targets.program import as_tuple, assignments, evaluate, imports, scope_of

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
