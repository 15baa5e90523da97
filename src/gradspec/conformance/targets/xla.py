"""JAX: values, JVPs, VJPs and the VJPs of VJPs of what its users write with ``jax.lax`` and ``jax.numpy``, jitted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np

from gradspec.conformance.call import Array, Call, Problem, Results
from gradspec.conformance.targets import NotOfferedError, Promise, Target
from gradspec.conformance.targets.source import assignments, imports
from gradspec.conformance.targets.windows import WEIGHTED, lead
from gradspec.conformance.targets.written import computed, source
from gradspec.conformance.targets.xla_functions import (
    CHANNELS_LAST,
    EAGER,
    LHS_DILATION,
    VMAP,
    function,
    has_transpose,
    undocumented,
)
from gradspec.conformance.targets.xla_promises import promises
from gradspec.graph.lru import LRUCache

MOST_FUNCTIONS = 32
DOCS = "https://docs.jax.dev/en/latest"


class Jax(Target):
    """``jax.jit`` of each call, on the default device. Compiled functions are kept for the problems used last.

    Reductions of whole planes also run ``eager``: their derivatives are several operations, which jit fuses.
    """

    name = "jax"

    def __init__(self) -> None:
        self._compiled = LRUCache[Callable[..., Any]](MOST_FUNCTIONS)

    def versions(self) -> dict[str, str]:
        return {package: version(package) for package in ("jax", "jaxlib")}

    def refusal(self, problem: Problem, mode: str) -> str | None:
        return undocumented(problem, mode)

    def variants(self, problem: Problem, mode: str) -> tuple[str, ...]:
        found = [CHANNELS_LAST] if problem.op in WEIGHTED else []
        if problem.op == "conv_transpose" and has_transpose(problem):
            found.append(LHS_DILATION)
        if problem.op.startswith("global"):
            found.append(EAGER)
        if lead(problem):
            found.append(VMAP)
        return tuple(found)

    def run(self, call: Call) -> Results:
        import jax

        if call.problem.op == "unfold":
            require_finite(call)
        with jax.enable_x64(True):
            try:
                results = self._function(call)(*given(call))
            except NotImplementedError as error:
                raise NotOfferedError(str(error)) from error
            found = results if isinstance(results, tuple | list) else (results,)
            names = [name for name in call.problem.results(call.mode) if name != "indices"]
            return {name: np.asarray(array) for name, array in zip(names, found, strict=True)}

    def _function(self, call: Call) -> Callable[..., Any]:
        import jax

        key = (repr(call.problem), call.mode, call.variant)
        compiled = self._compiled.get(key)
        if compiled is None:
            plain = in_mode(call.mode, applied(call))
            compiled = plain if call.variant == EAGER else jax.jit(plain)
            self._compiled.put(key, compiled)
        return compiled

    def reproducer(self, call: Call) -> str:
        return program(call)

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
        has_bias = problem.op in WEIGHTED and problem.shapes[2] is not None
        return frozenset({"parts"} if has_bias or mode in ("jvp", "second") else ())

    def promises(self) -> Sequence[Promise]:
        return promises()


def require_finite(call: Call) -> None:
    """Patches are documented to come from a convolution: what is not finite meets the zeros of its kernel."""
    if not all(np.isfinite(array).all() for array in given(call)):
        raise NotOfferedError("lax.conv_general_dilated_patches runs a convolution, which spreads what is not finite")


def given(call: Call) -> list[Array]:
    """The arrays that a mode takes, in order."""
    cotangent = [] if call.cotangent is None else [call.cotangent]
    return [*call.named().values(), *cotangent, *call.directions]


# --- the four modes, as functions -------------------------------------------------------------------------------------


def applied(call: Call) -> Callable[..., Any]:
    """The operator as a function of the inputs that are there."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    expression, names = function(call.problem, call.variant), [*call.named()]
    modules: dict[str, Any] = {"jnp": jnp, "lax": lax, "np": np}

    def f(*arrays: Any) -> Any:
        return computed(expression, {**modules, **dict(zip(names, arrays, strict=True))})

    return jax.vmap(f, in_axes=over_samples(names)) if call.variant == VMAP else f


def over_samples(names: Sequence[str]) -> tuple[int | None, ...]:
    """Along which axis vmap takes each input apart: samples are x's."""
    return tuple(0 if name == "x" else None for name in names)


def in_mode(mode: str, f: Callable[..., Any]) -> Callable[..., Any]:
    """A function of all arrays of a call, as `given` orders them."""
    import jax

    def jvp(*arrays: Any) -> Any:
        half = len(arrays) // 2
        return jax.jvp(f, arrays[:half], arrays[half:])[1]

    def vjp(*arrays: Any) -> Any:
        return jax.vjp(f, *arrays[:-1])[1](arrays[-1])

    def second(*arrays: Any) -> Any:
        inputs = len(arrays) // 2 + 1
        return jax.vjp(vjp, *arrays[:inputs])[1](arrays[inputs:])

    return {"value": f, "jvp": jvp, "vjp": vjp, "second": second}[mode]


# --- the reproducer ---------------------------------------------------------------------------------------------------


def program(call: Call) -> str:
    """The call as a user of JAX writes it."""
    names = [*call.named()]
    lines = [
        *imports(call, "import jax", "import jax.numpy as jnp", "from jax import lax"),
        "",
        *(['jax.config.update("jax_enable_x64", True)'] if call.problem.dtype in ("f64", "i64") else []),
        *assignments(call),
        f"f = lambda {', '.join(names)}: {source(function(call.problem, call.variant))}",
    ]
    if call.variant == VMAP:
        lines.append(f"f = jax.vmap(f, in_axes={over_samples(names)})")
    return "\n".join([*lines, *_mode_lines(call, names)])


def _mode_lines(call: Call, names: Sequence[str]) -> list[str]:
    inputs, moved = ", ".join(names), ", ".join(f"d{name}" for name in names)
    cells = "astype(np.float64).tolist()" if call.problem.dtype == "bf16" else "tolist()"
    start, end = ("", "") if call.variant == EAGER else ("jax.jit(", ")")
    each = ["for array in results:", f"    print(array.{cells})"]
    if call.mode == "value":
        return [f"print({start}f{end}({inputs}).{cells})"]
    if call.mode == "jvp":
        jvp = f"jvp = {start}lambda {inputs}, {moved}: jax.jvp(f, ({inputs},), ({moved},))[1]{end}"
        return [jvp, f"print(jvp({inputs}, {moved}).{cells})"]
    vjp = f"vjp = lambda {inputs}, g: jax.vjp(f, {inputs})[1](g)"
    if call.mode == "vjp":
        return [vjp, f"results = {start}vjp{end}({inputs}, g)", *each]
    second = f"second = {start}lambda {inputs}, g, {moved}: jax.vjp(vjp, {inputs}, g)[1](({moved},)){end}"
    return [vjp, second, f"results = second({inputs}, g, {moved})", *each]
