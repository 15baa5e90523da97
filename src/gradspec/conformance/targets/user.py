"""Anyone's own kernels: ``gradspec check module:object``.

The object is a function, a module, an instance or a mapping of names to functions. A function has the name of an
operator of ``gs.spec``, with its rank or without (``max_pool``, ``conv2d``), and after it ``_jvp``, ``_vjp`` or
``_vjp_vjp`` for a derivative. One function is enough; what is not there is not offered.

A function takes the arrays that its specification takes, in that order: ``conv(x, weight, bias)``, ``conv_jvp(x,
weight, bias, dx, dweight, dbias)``, ``conv_vjp(x, weight, bias, g)``, ``conv_vjp_vjp(x, weight, bias, g, dx, dweight,
dbias)``. Attributes come by keyword with every default spelled out, sizes as tuples with one entry per axis, padding as
``(lo, hi)`` pairs; a function is given those that its signature names, and all of them if it has ``**kwargs``. It
returns arrays, or a tuple of them in the order of the inputs. A problem that needs an attribute which the function does
not take is not offered, nor is one for which it raises ``NotImplementedError``.
"""

from __future__ import annotations

import inspect
import os
import platform
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from itertools import takewhile
from types import ModuleType
from typing import Any, Protocol

import numpy as np

from gradspec.conformance.call import DTYPES, FLOATS, INPUTS, MODES, Array, Call, Problem, Results
from gradspec.conformance.cases.windows import anatomy
from gradspec.conformance.checks.reduced import known as reduced_modes
from gradspec.conformance.judge.conventions import CONVENTIONS
from gradspec.conformance.operators import GIVES_INDICES, is_usual, known, settled
from gradspec.conformance.targets import NotOfferedError, Target
from gradspec.conformance.targets.source import assignments, imports, keywords
from gradspec.conformance.tolerance import Arithmetic
from gradspec.graph.lru import LRUCache
from gradspec.spec.errors import DTypeError

SUFFIXES = {"value": "", "jvp": "_jvp", "vjp": "_vjp", "second": "_vjp_vjp"}
NAME = re.compile(rf"({'|'.join(INPUTS)})(?:([1-9])d)?({'|'.join(s for s in SUFFIXES.values() if s)})?")
DEFAULT_DTYPES = ("f16", "f32", "f64")
"""What a kernel is given unless it declares otherwise: NumPy's own floats."""
MOST_DECLINATIONS = 4096


class Kernel(Protocol):
    """One function that is judged.

    >>> def max_pool1d(x, kernel_size, stride):
    ...     windows = np.lib.stride_tricks.sliding_window_view(x, kernel_size[0], -1)[..., :: stride[0], :]
    ...     return windows.max(-1)
    >>> kernel: Kernel = max_pool1d
    >>> UserKernels(kernel).refusal(Problem("max_pool", 1, ((4,),), {"kernel_size": (2,), "dilation": (2,)}), "value")
    'max_pool1d takes no dilation'
    """

    @property
    def __name__(self) -> str:
        """``op``, ``op2d``, ``op_jvp``, ``op_vjp``, … with ``op`` one of ``gs.spec.OPERATORS``."""

    def __call__(self, x: Array, /, *arrays: Array | None, **attributes: Any) -> Any:
        """One array, or a tuple: ``(y, indices)`` of a maximum, the gradients of all inputs of a convolution."""


class Kernels(Protocol):
    """Several functions with what is declared of them. All of it is optional, but one function must be there.

    ``arithmetic`` holds keywords of ``gradspec.conformance.Arithmetic.of``: ``{"accumulate": "f16"}``.
    ``repeatable = False`` says that sums may differ from run to run; ``fresh_results = True``, that results never lie
    in the inputs' memory; ``strict = True``, that every choice which the specification leaves to nobody is made as
    there, so that another is a defect unless ``conventions`` names it.
    """

    arithmetic: Mapping[str, Any]
    dtypes: tuple[str, ...]
    ranks: tuple[int, ...]
    repeatable: bool
    fresh_results: bool
    strict: bool
    conventions: tuple[str, ...]
    reduced: Mapping[str, str]

    def set_threads(self, count: int) -> None:
        """Compute with so many threads from now on."""

    def max_pool(self, x: Array, /, **attributes: Any) -> Any:
        """And likewise every other operator and derivative."""


# --- finding the functions --------------------------------------------------------------------------------------------


def loaded(name: str) -> Target:
    """The target that ``module:object`` names; the current folder is searched first.

    >>> loaded("nowhere:kernels")
    Traceback (most recent call last):
        ...
    ValueError: there is no module 'nowhere' to take kernels from; run the check in its folder or install it
    """
    module, separator, path = name.partition(":")
    if not separator or not module or not path:
        raise ValueError(f"{name!r} is not a target; name one that gradspec knows, or give module:object")
    if module.endswith(".py"):
        raise ValueError(f"{name!r} names a file; leave out .py: {module.removesuffix('.py').replace('/', '.')}:{path}")
    found: Any = _imported(module)
    for part in path.split("."):
        if not hasattr(found, part):
            raise ValueError(f"{name!r}: {_described(found)} has no {part!r}; it has {_public(found)}")
        found = getattr(found, part)
    return UserKernels(found, name)


def _imported(module: str) -> ModuleType:
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return import_module(module)
    except Exception as error:  # whatever is wrong in it, down to its syntax
        if isinstance(error, ModuleNotFoundError) and error.name and f"{module}.".startswith(f"{error.name}."):
            where = "run the check in its folder or install it"
            raise ValueError(f"there is no module {module!r} to take kernels from; {where}") from None
        raise ValueError(f"importing {module!r} failed: {type(error).__name__}: {error}") from error


def _described(found: Any) -> str:
    return f"module {found.__name__}" if isinstance(found, ModuleType) else repr(found)


def _public(found: Any) -> str:
    names = [name for name in dir(found) if not name.startswith("_")]
    return ", ".join(names[:12]) + (", …" if len(names) > 12 else "") if names else "no public names"


def functions_of(given: Any, op: str | None) -> list[Function]:
    """The operators in what was given."""
    if op is not None:
        return [_as_named(given, op)]
    if isinstance(given, Mapping):
        named: Iterator[tuple[str, Any]] = ((str(name), value) for name, value in given.items())
    elif (name := getattr(given, "__name__", "")) and NAME.fullmatch(name) and callable(given):
        named = iter([(name, given)])
    else:
        named = ((name, getattr(given, name)) for name in dir(given) if NAME.fullmatch(name))
    return [_as_named(value, name) for name, value in named if NAME.fullmatch(name) and callable(value)]


def derivative_of(functions: list[Function], mode: str, derivative: Any) -> Function:
    """A derivative that is given beside the one function it belongs to."""
    if len(functions) != 1:
        raise ValueError(f"{mode}= belongs to one function, and there are {len(functions)}; put it beside them")
    return _as_named(derivative, functions[0].name + SUFFIXES[mode])


def _as_named(function: Any, name: str) -> Function:
    match = NAME.fullmatch(name)
    if match is None:
        raise ValueError(f"{name!r} is not an operator that is judged; the operators are {', '.join(INPUTS)}")
    if not callable(function):
        raise TypeError(f"the kernel for {name} is {function!r}, which cannot be called; give a function")
    mode = next(mode for mode, suffix in SUFFIXES.items() if suffix == (match[3] or ""))
    return Function(function, name, match[1], mode, int(match[2]) if match[2] else None)


# --- one function -----------------------------------------------------------------------------------------------------

NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True)
class Function:
    """A user's function, and what its signature says of it."""

    function: Callable[..., Any]
    name: str
    op: str
    mode: str
    rank: int | None

    @cached_property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """Those of its signature; a function that hides it is believed to take everything."""
        try:
            return inspect.signature(self.function).parameters
        except (TypeError, ValueError):
            everything = (("arrays", inspect.Parameter.VAR_POSITIONAL), ("attributes", inspect.Parameter.VAR_KEYWORD))
            return {name: inspect.Parameter(name, kind) for name, kind in everything}

    def takes(self, keyword: str) -> bool:
        parameter = self.parameters.get(keyword)
        return self._has(inspect.Parameter.VAR_KEYWORD) if parameter is None else parameter.kind in NAMED

    def _has(self, kind: Any) -> bool:
        return any(p.kind is kind for p in self.parameters.values())

    def _is_attribute(self, name: str) -> bool:
        return name in known(self.op) or name in ("return_indices", "out")

    @cached_property
    def slots(self) -> tuple[inspect.Parameter, ...]:
        """The parameters for arrays."""
        kinds = (*NAMED, inspect.Parameter.POSITIONAL_ONLY)
        return tuple(p for p in self.parameters.values() if p.kind in kinds and not self._is_attribute(p.name))

    def refusal(self, problem: Problem) -> str | None:
        """Why the signature has no place for the problem."""
        for name in known(self.op):
            if name == "rank" and self.rank is not None:
                continue
            usual = is_usual(self.op, problem.rank, problem.attributes, name)
            if not usual and not self.takes(name):
                return f"{self.name} takes no {name}"
        names = [name for name in _array_names(self.op, self.mode) if _is_there(problem, name)]
        try:
            self._placed(dict.fromkeys(_array_names(self.op, self.mode)), names)
        except NotOfferedError as why:
            return str(why)
        return None

    def __call__(self, call: Call, **more: Any) -> Any:
        """The function on the arrays of a call."""
        arrays = _arrays(call)
        places = self._placed(arrays, [name for name, array in arrays.items() if array is not None])
        attributes = {n: v for n, v in self.attributes(call.problem).items() if n not in places.by_name} | more
        with np.errstate(all="ignore"):  # NaN and overflow are what some cases are about
            return self.function(*places.in_order, **places.by_name, **attributes)

    def arguments(self, call: Call) -> list[str]:
        """The arrays as a program passes them: by position as long as they stand first, then by name."""
        arrays = _arrays(call)
        texts = {name: "None" if array is None else name for name, array in arrays.items()}
        places = self._placed(texts, [name for name, array in arrays.items() if array is not None])
        leading = list(takewhile(lambda name: name in places.by_name and self._is_positional(name), self.parameters))
        named = [f"{name}={text}" for name, text in places.by_name.items() if name not in leading]
        return [*places.in_order, *(places.by_name[name] for name in leading), *named]

    def _is_positional(self, name: str) -> bool:
        return self.parameters[name].kind is not inspect.Parameter.KEYWORD_ONLY

    def attributes(self, problem: Problem) -> dict[str, Any]:
        """The attributes that the function is given."""
        every = settled(problem.op, problem.rank, problem.attributes)
        if self.rank is not None:
            every.pop("rank", None)
        return {name: value for name, value in every.items() if self.takes(name)}

    def _placed(self, arrays: Mapping[str, Any], needed: list[str]) -> Places:
        """The arrays, or texts in their stead, by position, or by the parameters' names where that is not enough."""
        if self._has(inspect.Parameter.VAR_POSITIONAL):
            return Places([*arrays.values()], {})
        by_name = all(slot.name in arrays for slot in self.slots)
        fits = len(self.slots) >= len(arrays) or by_name
        order = list(arrays) if fits else [name for name in arrays if name in needed]
        pairs = [(s, s.name) for s in self.slots] if by_name else list(zip(self.slots, order, strict=False))
        self._require_room([name for _, name in pairs], needed)
        in_order = [arrays[name] for slot, name in pairs if slot.kind is inspect.Parameter.POSITIONAL_ONLY]
        return Places(in_order, {slot.name: arrays[name] for slot, name in pairs if slot.kind in NAMED})

    def _require_room(self, taken: list[str], needed: list[str]) -> None:
        for name in needed:
            if name not in taken:
                raise NotOfferedError(f"{self.name} takes no {name}")
        for slot in self.slots[len(taken) :]:
            if slot.default is inspect.Parameter.empty:
                raise NotOfferedError(f"{self.name} needs {slot.name!r}, which gs.spec.{self.op} does not have")


@dataclass(frozen=True)
class Places:
    """Where the arrays of a call go."""

    in_order: list[Any]
    by_name: dict[str, Any]


def _array_names(op: str, mode: str) -> tuple[str, ...]:
    """The arrays that a function takes, in order."""
    inputs = INPUTS[op]
    directions = tuple(f"d{name}" for name in inputs if name != "indices")
    return {
        "value": inputs,
        "jvp": (*inputs, *directions),
        "vjp": (*inputs, "g"),
        "second": (*inputs, "g", *directions),
    }[mode]


def _is_there(problem: Problem, name: str) -> bool:
    return name not in ("bias", "dbias") or problem.shapes[INPUTS[problem.op].index("bias")] is not None


def _arrays(call: Call) -> dict[str, Array | None]:
    directions = zip(call.problem.differentiable, call.directions, strict=False)
    found = {**call.named(), "g": call.cotangent, **{f"d{name}": array for name, array in directions}}
    return {name: found.get(name) for name in _array_names(call.problem.op, call.mode)}


# --- the target -------------------------------------------------------------------------------------------------------


class UserKernels(Target):
    """A user's object as a target.

    >>> UserKernels({"conv": lambda x, weight: x}, "mine").name
    'mine'
    """

    def __init__(
        self,
        given: Any,
        name: str | None = None,
        op: str | None = None,
        jvp: Callable[..., Any] | None = None,
        vjp: Callable[..., Any] | None = None,
    ) -> None:
        self._is_made = isinstance(given, type)
        self._given = given() if self._is_made else given
        self.name = name if name is not None else str(getattr(given, "__name__", type(given).__name__))
        self._functions = functions_of(self._given, op)
        if not self._functions:
            otherwise = "" if ":" in self.name else ", or give op="
            raise ValueError(
                f"nothing in {self.name} is named like an operator; name a function max_pool2d, conv or avg_pool_vjp, "
                f"say{otherwise}. The operators are {', '.join(INPUTS)}"
            )
        given_beside = [
            (mode, derivative) for mode, derivative in (("jvp", jvp), ("vjp", vjp)) if derivative is not None
        ]
        self._functions += [derivative_of(self._functions, mode, derivative) for mode, derivative in given_beside]
        self._declarations: dict[str, Any] = {}
        self._declinations = LRUCache[str](MOST_DECLINATIONS)
        self.declaring()

    def declaring(self, **declarations: Any) -> UserKernels:
        """The same target, with declarations that go before those of the object; None and empty ones say nothing."""
        self._declarations |= {name: value for name, value in declarations.items() if value not in (None, ())}
        self.dtypes = _dtypes(self.declared("dtypes", DEFAULT_DTYPES))
        self.repeatable = bool(self.declared("repeatable", True))
        self.fresh_results = bool(self.declared("fresh_results", False))
        self.strict = bool(self.declared("strict", False))
        self.is_tried = bool(self.declared("is_tried", False))
        self._require_known_declarations()
        return self

    def _require_known_declarations(self) -> None:
        for name in self.conventions():
            if name not in CONVENTIONS:
                raise ValueError(f"conventions names {name!r}, which is none; use some of {', '.join(CONVENTIONS)}")
        reduced_modes(self.reduced())
        self.arithmetic(Problem("conv", 1, (), {}))

    @property
    def ops(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(function.op for function in self._functions))

    @property
    def modes(self) -> tuple[str, ...]:
        return tuple(mode for mode in MODES if any(function.mode == mode for function in self._functions))

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that its functions have; none where one of them has any."""
        ranks = {function.rank for function in self._functions}
        return tuple(self.declared("ranks", () if None in ranks else sorted(rank for rank in ranks if rank)))

    def versions(self) -> dict[str, str]:
        own = str(self.declared("__version__", "no version"))
        return {self.name: own, "numpy": np.__version__, "python": platform.python_version()}

    def refusal(self, problem: Problem, mode: str) -> str | None:
        named = f"{problem.op}{SUFFIXES[mode]}"
        if not any((f.op, f.mode) == (problem.op, mode) for f in self._functions):
            return f"it has no {named}"
        if problem.dtype not in self.dtypes:
            return f"{problem.dtype} is not among its dtypes, {', '.join(self.dtypes)}"
        if self.ranks and problem.rank not in self.ranks:
            return f"it has no rank {problem.rank}"
        function = self._function(problem, mode)
        if function is None:
            return f"it has no {named} of rank {problem.rank}"
        reason = function.refusal(problem)
        return self._declined(problem, mode) if reason is None and self.is_tried else reason

    def _declined(self, problem: Problem, mode: str) -> str | None:
        """Why the function raises ``NotImplementedError`` for a problem, tried on zeros."""
        key = repr((problem, mode))
        reason = self._declinations.get(key)
        if reason is None:
            try:
                self.run(_on_zeros(problem, mode))
                reason = ""
            except NotOfferedError as why:
                reason = str(why)
            except Exception:  # judged where the case is
                reason = ""
            self._declinations.put(key, reason)
        return reason or None

    def variants(self, problem: Problem, mode: str) -> tuple[str, ...]:
        function = self._function(problem, mode)
        if function is None or mode != "value" or problem.op not in GIVES_INDICES:
            return ()
        return ("without_indices",) if function.takes("return_indices") else ()

    def run(self, call: Call) -> Results:
        function = self._function(call.problem, call.mode)
        if function is None:
            raise NotOfferedError(f"it has no {call.problem.op}{SUFFIXES[call.mode]}")
        try:
            given = function(call, **_with_indices(function, call))
        except NotImplementedError as why:
            raise NotOfferedError(str(why) or f"{function.name} raises NotImplementedError") from why
        return _named(call, given)

    def run_into(self, call: Call, outs: Results) -> None:
        function = self._function(call.problem, call.mode)
        if function is None or "out" not in function.parameters:
            raise NotOfferedError(f"{self.name} takes no out=")
        names = [name for name in call.problem.results(call.mode) if name in outs]
        given = tuple(outs[name] for name in names)
        function(call, **_with_indices(function, call), out=given[0] if len(given) == 1 else given)

    def arithmetic(self, problem: Problem) -> Arithmetic:
        declared = self.declared("arithmetic", {})
        return Arithmetic.of(problem.dtype, **declared) if problem.dtype in FLOATS else super().arithmetic(problem)

    def conventions(self) -> frozenset[str]:
        return frozenset(self.declared("conventions", ()))

    def undeclared(self, conventions: Sequence[str]) -> str:
        missing = ", ".join(f'"{name}"' for name in conventions if name not in self.conventions())
        return f"which is not the specification's choice; declare conventions=[{missing}], or pass strict=False"

    def reduced(self) -> dict[str, str]:
        return dict(self.declared("reduced", {}))

    def set_threads(self, count: int) -> bool:
        chosen = self.declared("set_threads", None)
        if chosen is None:
            return False
        chosen(count)
        return True

    def reproducer(self, call: Call) -> str:
        function = self._function(call.problem, call.mode)
        assert function is not None
        given = {**function.attributes(call.problem), **_with_indices(function, call)}
        imported, spelled = self._spelled(function)
        applied = f"print({spelled}({', '.join([*function.arguments(call), keywords(given)]).rstrip(', ')}))"
        return "\n".join([*imports(call, imported), "", *assignments(call), applied])

    def declared(self, name: str, default: Any) -> Any:
        """What was declared beside the object, or what it declares itself."""
        if name in self._declarations:
            return self._declarations[name]
        if isinstance(self._given, Mapping):
            return self._given.get(name, default)
        return getattr(self._given, name, default)

    def _function(self, problem: Problem, mode: str) -> Function | None:
        """The function for a problem, one of its own rank before one of any."""
        fitting = [
            f for f in self._functions if (f.op, f.mode) == (problem.op, mode) and f.rank in (problem.rank, None)
        ]
        return min(fitting, key=lambda f: f.rank is None, default=None)

    def _spelled(self, function: Function) -> tuple[str, str]:
        """The line that imports a function, and what it is then called."""
        module, separator, path = self.name.partition(":")
        if separator:
            made = "()" if self._is_made else ""
            inside = f"[{function.name!r}]" if isinstance(self._given, Mapping) else f"{made}.{function.name}"
            return f"from {module} import {path.split('.')[0]}", path + inside * (self._given is not function.function)
        for found, inside in self._places(function):
            if (home := _home(found)) is not None:
                return "from {} import {}".format(*home), f"{home[1]}{inside}"
        return f"# {function.name}: the kernel", function.name

    def _places(self, function: Function) -> Iterator[tuple[Any, str]]:
        """What may be imported to have a function, and what to write after its name."""
        yield function.function, ""
        if getattr(self._given, function.name, None) != function.function:
            return
        if not self._is_made:
            yield self._given, f".{function.name}"
        if self._is_made or not getattr(self._given, "__dict__", True):  # any instance is like this one
            yield type(self._given), f"().{function.name}"


def _home(found: Any) -> tuple[str, str] | None:
    """The module and the name from which a program can import an object: not one that is local, or the program's."""
    home = getattr(found, "__module__", None)
    if not isinstance(home, str) or home in ("__main__", "builtins") or home not in sys.modules:
        return None
    names = [name for name, value in vars(sys.modules[home]).items() if value is found]
    own = getattr(found, "__name__", "")
    return (home, own if own in names else names[0]) if names else None


def _on_zeros(problem: Problem, mode: str) -> Call:
    named = dict(zip(INPUTS[problem.op], problem.shapes, strict=True))
    inputs = {name: None if shape is None else np.zeros(shape, _dtype(problem, name)) for name, shape in named.items()}
    directions = tuple(array for name in problem.differentiable if (array := inputs[name]) is not None)
    output = anatomy(problem).output
    cotangent = np.zeros(output, DTYPES[problem.dtype]) if mode in ("vjp", "second") else None
    return Call(
        problem,
        mode,
        tuple(inputs.values()),
        directions if mode in ("jvp", "second") else (),
        cotangent,
        output=output,
    )


def _dtype(problem: Problem, name: str) -> np.dtype[Any]:
    return DTYPES["i64" if name == "indices" else problem.dtype]


def _dtypes(declared: Any) -> tuple[str, ...]:
    for name in declared:
        if name not in DTYPES:
            raise DTypeError(f"dtypes names {name!r}, which is not known; use some of {', '.join(DTYPES)}")
    return tuple(declared)


def _with_indices(function: Function, call: Call) -> dict[str, bool]:
    if call.mode != "value" or call.problem.op not in GIVES_INDICES or not function.takes("return_indices"):
        return {}
    return {"return_indices": call.variant != "without_indices"}


def _named(call: Call, given: Any) -> Results:
    """What a function returned, by the names of the results; None stands for what it does not give."""
    parts = given if isinstance(given, tuple | list) else (given,)
    names = call.problem.results(call.mode)
    if len(parts) > len(names) and call.problem.op in ("conv", "conv_transpose"):
        parts = [part for part in parts if part is not None]
    if len(parts) > len(names):
        raise TypeError(f"{len(parts)} results were returned; at most {len(names)} are meant: {', '.join(names)}")
    if isinstance(given, tuple | list) and len(parts) < len(names) and call.mode != "value":
        meant = f"{len(names)} are meant: {', '.join(names)}"
        raise TypeError(f"{len(parts)} results were returned; {meant}. Return None for what is not given")
    return {name: _array(part) for name, part in zip(names, parts, strict=False) if part is not None}


def _array(result: Any) -> Array:
    return np.asarray(result.detach() if hasattr(result, "detach") else result)
