"""JAX functions as graphs: the program that ``jax.make_jaxpr`` gives, read primitive by primitive."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import jax
import numpy as np
from jax import tree_util
from jax.extend import source_info_util
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

from gradspec.graph.builder import Builder, needed
from gradspec.graph.graph import Graph
from gradspec.graph.ir import Array, Node, Var
from gradspec.graph.types import TensorType
from gradspec.interop.jax import gradspec_type, is_extended, jax_dtype
from gradspec.interop.jax.primitives import NO_MEANING, RULES
from gradspec.interop.jax.primitives.arithmetic import OF_LIBRARY
from gradspec.interop.refusals import Refusals
from gradspec.ops.layout import concat, getitem
from gradspec.ops.shape import reshape
from gradspec.runtime.task import backend_named
from gradspec.spec.errors import DTypeError, ShapeError, UnsupportedError
from gradspec.transforms.functions import scan_variables
from gradspec.transforms.trace import parameter_names

MOST_STEPS = 1024
"""Steps of a loop that are written out one after another."""

CALLS = {"jit", "pjit", "closed_call", "core_call", "composite", "remat2", "checkpoint"}
CUSTOM = {"custom_jvp_call", "custom_vjp_call"}
"""Primitives that call a program, which is read in their place; some with a rule for its derivatives."""

_LIBRARY = str(Path(jax.__file__).parent)
_FUNCTION = re.compile(r"(?P<name>\S+) at (?P<file>.+):\d+")


def read(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Graph:
    """The graph of a function; see ``gs.from_jax``."""
    return _JaxReader().graph(*capture_program(function, args, kwargs))


@dataclass(frozen=True)
class _Refused:
    """In the place of a value that there is not. What follows a random number is not examined."""

    drawn: bool


Value: TypeAlias = Var | Array | _Refused
"""A variable of the graph, or an array that no input changes."""
Values: TypeAlias = Sequence[Value]


def _refused_among(values: Values) -> list[_Refused]:
    return [v for v in values if isinstance(v, _Refused)]


class _JaxReader:
    """Values are variables of the graph, or arrays that no input changes."""

    def __init__(self) -> None:
        self.builder = Builder()
        self.refusals = Refusals("function")
        self.constants: dict[Any, tuple[Array, Var]] = {}
        self.place = "a place that JAX does not know"
        """The line outside JAX that led to what is read."""

    def graph(self, program: ClosedJaxpr, inputs: Inputs) -> Graph:
        results = self._run(program, [self.builder.input(t, self.builder.unused(name)) for name, t in inputs])
        self.refusals.raise_any()
        for aval in program.out_avals:
            gradspec_type(aval)
        if not results:
            raise UnsupportedError("the function returns no array, and a graph needs one to give")
        return self.builder.build([self._variable(v) for v in results], allow_unused=True)

    def _variable(self, value: Value) -> Var:
        """A value as a variable; an array, or a number, becomes a constant once."""
        if isinstance(value, Var):
            return value
        assert isinstance(value, np.ndarray)
        key = (value.dtype, value.tobytes()) if value.ndim == 0 else id(value)
        if key not in self.constants:
            self.constants[key] = value, self.builder.share(value, "c")
        return self.constants[key][1]

    # --- programs -----------------------------------------------------------------------------------------------------

    def _run(self, program: ClosedJaxpr | Jaxpr, values: Values) -> list[Value]:
        """The results of a program, of which only what they need is read."""
        jaxpr, consts = (program.jaxpr, program.consts) if isinstance(program, ClosedJaxpr) else (program, ())
        known = dict(zip(jaxpr.constvars, map(_array, consts), strict=True))
        known.update(zip(jaxpr.invars, values, strict=True))

        def value(atom: Any) -> Value:
            return _number(atom) if isinstance(atom, Literal) else known[atom]

        for equation in _needed_equations(jaxpr):
            results = self._read(equation, [value(atom) for atom in equation.invars])
            known.update(zip(equation.outvars, results, strict=True))
        return [value(atom) for atom in jaxpr.outvars]

    def _read(self, equation: JaxprEqn, values: Values) -> Values:
        """The values of an equation; if there are none, the reason is kept."""
        name, refused = equation.primitive.name, _refused_among(values)
        is_known = name in RULES or name in _CONTROL
        if any(v.drawn for v in refused) or (refused and is_known):
            return [refused[0]] * len(equation.outvars)
        before = self.place
        self.place = source_info_util.summarize(equation.source_info) or before
        try:
            return self._results(equation, values)
        except (UnsupportedError, ShapeError, DTypeError) as error:
            self.refusals.add(name, str(error), self.place)
            return [_Refused(_draws(name))] * len(equation.outvars)
        finally:
            self.place = before

    def _results(self, equation: JaxprEqn, values: Values) -> Values:
        name = equation.primitive.name
        if name in CALLS | CUSTOM:
            return self._read_call(equation, values)
        params = {key: stated for key, stated in equation.params.items() if key not in NO_MEANING}
        if name not in RULES and name not in _CONTROL:
            raise UnsupportedError(_reason(name))
        try:
            if name in _CONTROL:
                return _CONTROL[name](self, values, **params)
            results = self._apply_rule(RULES[name], values, params)
        except TypeError as error:
            if "keyword" not in str(error):
                raise
            raise UnsupportedError(f"JAX {jax.__version__} states it otherwise than is known here: {error}") from None
        for found, expected in zip(results, (gradspec_type(atom.aval) for atom in equation.outvars), strict=True):
            given = found.type if isinstance(found, Var) else gradspec_type(found)
            if given != expected:
                raise UnsupportedError(f"in JAX its result is {expected}, and here it would be {given}")
        return results

    def _apply_rule(self, rule: Callable[..., Any], values: Values, params: Mapping[str, Any]) -> Values:
        arrays = [v for v in values if isinstance(v, np.ndarray)]
        if len(arrays) == len(values):
            known = fold_constants(rule, arrays, params)
            if known is not None:
                return known
        results = rule(*map(self._variable, values), **params)
        return results if isinstance(results, list | tuple) else (results,)

    def _read_call(self, equation: JaxprEqn, values: Values) -> Values:
        """A program in the place of its call; some functions of JAX's own have an operator."""
        params = equation.params
        program = params["call_jaxpr"] if "call_jaxpr" in params else params["jaxpr"]
        if equation.primitive.name in CUSTOM:
            found = _FUNCTION.match(str(getattr(program.jaxpr.debug_info, "func_src_info", "")))
            if found is None or not found["file"].startswith(_LIBRARY):
                _warn_of_rule(found["name"] if found else "a function")
            elif found["name"] in OF_LIBRARY and any(isinstance(v, Var) for v in values) and not _refused_among(values):
                return [OF_LIBRARY[found["name"]](*map(self._variable, values))]
        return self._run(program, values)

    # --- loops and branches -------------------------------------------------------------------------------------------

    def _scan(self, values: Values, *, jaxpr: ClosedJaxpr, length: int, reverse: bool, **parts: Any) -> Values:
        """A scan; the steps one after another where integers are known, which may be indices."""
        num_consts, num_carry = _parts_of_scan(**parts)
        consts, carried = values[:num_consts], values[num_consts : num_consts + num_carry]
        xs: Sequence[Any] = values[num_consts + num_carry :]
        if any(isinstance(v, Var) for v in values) and all(map(_may_vary, (*carried, *xs))) and (carried or xs):
            return self._recurrence(jaxpr, consts, carried, xs, length, reverse)
        _require_few(length)
        rows: list[Values] = []
        for i in range(length)[:: -1 if reverse else 1]:
            taken = [np.asarray(x[i]) if isinstance(x, np.ndarray) else getitem(x, i) for x in xs]
            results = self._run(jaxpr, [*consts, *carried, *taken])
            carried = results[:num_carry]
            rows.append(results[num_carry:])
        columns = zip(*(rows[::-1] if reverse else rows), strict=True)
        empty = [np.zeros((0, *aval.shape), aval.dtype) for aval in jaxpr.out_avals[num_carry:]]
        return [*carried, *(map(self._stack, columns) if length else empty)]

    def _recurrence(
        self, jaxpr: ClosedJaxpr, consts: Values, carried: Values, xs: Values, length: int, reverse: bool
    ) -> Values:
        refused: list[_Refused] = []

        def step(*variables: Var) -> Sequence[Var]:
            results = self._run(jaxpr, [*consts, *variables])
            refused.extend(_refused_among(results))
            return variables if refused else [self._variable(v) for v in results]

        before, columns = ([self._variable(v) for v in part] for part in (carried, xs))
        found = scan_variables(step, before, columns, length, reverse)
        return refused[:1] * len(jaxpr.out_avals) or found

    def _stack(self, parts: Values) -> Value:
        if refused := _refused_among(parts):
            return refused[0]
        arrays = [part for part in parts if isinstance(part, np.ndarray)]
        if len(arrays) == len(parts):
            return np.stack(arrays)
        return concat([reshape(v, (1, *v.shape)) for v in map(self._variable, parts)])

    def _cond(self, values: Values, *, branches: Sequence[ClosedJaxpr]) -> Values:
        """One branch, or both and a choice between what they give."""
        which: Any
        which, *operands = values
        if not isinstance(which, Var):
            return self._run(branches[min(max(int(which), 0), len(branches) - 1)], operands)
        cases = zip(*(self._run(branch, operands) for branch in branches), strict=True)
        return [self._choose(which, case) for case in cases]

    def _choose(self, which: Var, cases: Values) -> Value:
        if (refused := _refused_among(cases)) or all(case is cases[0] for case in cases):
            return (*refused, *cases)[0]
        choice: Var = RULES["select_n"](which, *map(self._variable, cases))
        return choice

    def _while(
        self, values: Values, *, cond_jaxpr: ClosedJaxpr, cond_nconsts: int, body_jaxpr: ClosedJaxpr, body_nconsts: int
    ) -> Values:
        """Step by step, as long as no input has a part in how many there are."""
        steps, start = 0, cond_nconsts + body_nconsts
        carried = list(values[start:])
        while True:
            (goes_on,) = self._run(cond_jaxpr, [*values[:cond_nconsts], *carried])
            if not isinstance(goes_on, np.ndarray):
                raise UnsupportedError("how often it runs depends on the inputs; use jax.lax.scan, of a fixed length")
            if not goes_on:
                return carried
            steps += 1
            _require_few(steps)
            carried = self._run(body_jaxpr, [*values[cond_nconsts:start], *carried])


_CONTROL: dict[str, Callable[..., Values]] = {
    "scan": _JaxReader._scan,
    "cond": _JaxReader._cond,
    "while": _JaxReader._while,
}


def _parts_of_scan(num_consts: int = 0, num_carry: int = 0, ft_in: Any = None, ft_out: Any = None) -> tuple[int, int]:
    """How many values each step is given alike, and how many pass from step to step: since JAX 0.11 said by trees."""
    if ft_in is None:
        return num_consts, num_carry
    consts, carried, _ = ft_in.unpack()
    return len(consts), len(carried)


def _may_vary(value: Value) -> bool:
    """Whether nothing is lost where a value is a variable; integers that are known may be indices."""
    return isinstance(value, Var) or (isinstance(value, np.ndarray) and value.dtype.kind not in "iub")


def _require_few(steps: int) -> None:
    if steps > MOST_STEPS:
        raise UnsupportedError(f"its steps are written out, and they are more than {MOST_STEPS}; take fewer")


def _needed_equations(jaxpr: Jaxpr) -> list[JaxprEqn]:
    """The equations that results depend on."""
    used, kept = {atom for atom in jaxpr.outvars if not isinstance(atom, Literal)}, []
    for equation in reversed(jaxpr.eqns):
        if used.intersection(equation.outvars):
            kept.append(equation)
            used.update(atom for atom in equation.invars if not isinstance(atom, Literal))
    return kept[::-1]


def _array(constant: Any) -> Any:
    """A copy, so that later changes are not seen; keys of random numbers are refused where they are used."""
    return constant if is_extended(constant.dtype) else np.array(constant)


def _number(literal: Any) -> Array:
    return np.asarray(literal.val, literal.aval.dtype)


def _draws(name: str) -> bool:
    return name.startswith(("random_", "rng_", "threefry"))


def _reason(name: str) -> str:
    if _draws(name):
        return "it draws random numbers, and a graph gives the same result each time; pass what is drawn as an argument"
    if name.endswith("callback"):
        return "it calls Python, and a graph has operators only"
    return ""


def _warn_of_rule(name: str) -> None:
    warnings.warn(
        f"{name} has a derivative rule of its own, which a graph has no place for: the graph's derivatives are those "
        "of what it computes",
        stacklevel=2,
    )


# --- functions as programs of primitives ------------------------------------------------------------------------------


Inputs: TypeAlias = Sequence[tuple[str, TensorType]]


def capture_program(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[ClosedJaxpr, Inputs]:
    """The program for the arrays among the arguments, and the names and types of these; other arguments stay in it."""
    if not callable(function):
        raise TypeError(f"gs.from_jax needs a function of JAX arrays, not {type(function).__name__}")
    leaves, structure = tree_util.tree_flatten_with_path((tuple(args), dict(kwargs)))
    stems = parameter_names(function, len(args))
    given = {i: (_name(path, stems), _type(leaf)) for i, (path, leaf) in enumerate(leaves) if _is_array(leaf)}
    for name, t in given.values():
        _require_width(name, t)

    def of_arrays(*arrays: Any) -> Any:
        found = dict(zip(given, arrays, strict=True))
        filled = [found.get(i, leaf) for i, (_, leaf) in enumerate(leaves)]
        positional, named = tree_util.tree_unflatten(structure, filled)
        return function(*positional, **named)

    types = [jax.ShapeDtypeStruct(t.shape, t.dtype.numpy) for _, t in given.values()]  # type: ignore[no-untyped-call]
    try:
        return jax.make_jaxpr(of_arrays)(*types), [*given.values()]
    except Exception as error:
        error.add_note(
            "gs.from_jax traces a function with jax.make_jaxpr, which failed on this one; see that "
            "jax.make_jaxpr(function)(*arguments) works, or give a part of the function for which it does"
        )
        raise


def _is_array(leaf: object) -> bool:
    """Types, arrays and what has their shape and dtype; numbers, texts and objects are not."""
    return isinstance(leaf, TensorType) or (hasattr(leaf, "shape") and hasattr(leaf, "dtype"))


def _type(leaf: Any) -> TensorType:
    if isinstance(leaf, TensorType):
        return leaf
    try:
        return gradspec_type(leaf)
    except DTypeError:
        raise
    except TypeError:
        raise TypeError(
            f"an example is a {type(leaf).__name__} of {leaf.dtype}; give arrays of JAX or NumPy, or types: gs.f32[8]"
        ) from None


def _name(path: Sequence[Any], stems: Sequence[str]) -> str:
    """Of an argument its own name, and of what is in it the keys to it: ``params_conv_0``."""
    _, argument, *rest = path
    stem = stems[argument.idx] if isinstance(argument, tree_util.SequenceKey) else str(argument.key)
    return "_".join([stem, *(tree_util.keystr((key,), simple=True) for key in rest)])


def _require_width(name: str, t: TensorType) -> None:
    if jax_dtype(t.dtype) != t.dtype.numpy:
        raise DTypeError(
            f"the example {name} is {t}, which needs 64 bits, and JAX is set to 32; run "
            "jax.config.update('jax_enable_x64', True) first, or give 32-bit examples"
        )


# --- constant folding -------------------------------------------------------------------------------------------------


EXACT = frozenset(
    (
        *("abs", "add", "clamp", "convert", "detach", "div", "equal", "floor", "gather_rows", "greater"),
        *("maximum", "minimum", "mul", "neg", "round", "sqrt", "sub", "trunc_divide", "where"),
    )
)
"""Operators that have no choice: they choose, compare, or round once, as IEEE 754 says."""


def fold_constants(rule: Callable[..., Any], arrays: Sequence[Array], params: Mapping[str, Any]) -> list[Array] | None:
    """The results of a rule on arrays; None if a part of it is left to the graph."""
    builder = Builder()
    given = rule(*(builder.share(array, "c") for array in arrays), **params)
    results = given if isinstance(given, list | tuple) else [given]
    if all(isinstance(result, np.ndarray) for result in results):
        return [*results]
    nodes, _ = needed(builder.nodes, results)
    if not all(map(_is_exact, nodes)):
        return None
    known: dict[Var, Any] = {}

    def value(var: Var) -> Any:
        return known[var] if var in known else builder.value(var)

    kernel = backend_named("numpy").kernel
    with np.errstate(all="ignore"):
        for node in nodes:
            found = kernel(node.op, node.attrs, tuple(v.type for v in node.inputs))(*map(value, node.inputs))
            known.update(zip(node.outputs, found, strict=True))
    return [np.asarray(value(v)) for v in results]


def _is_exact(node: Node) -> bool:
    whole = not any(v.type.is_float for v in (*node.inputs, *node.outputs))
    return node.op.is_data_movement or node.op.name in EXACT or whole
