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

import sys
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any, Protocol, Self

from gradspec.conformance.judge.reduced import check_modes as reduced_modes
from gradspec.conformance.model.arithmetic import ALGORITHMS, Arithmetic
from gradspec.conformance.model.domain import NAMES, NOT_OF_SHAPES, KernelDomain
from gradspec.conformance.model.problem import (
    CONVOLUTIONS,
    FLOATS,
    GIVES_INDICES,
    INPUTS,
    MODES,
    Array,
    Call,
    Problem,
    Results,
)
from gradspec.conformance.model.reference import on_zeros
from gradspec.conformance.model.target import NotOfferedError, Target
from gradspec.conformance.targets.objects import OwnTarget, check_library, check_name, home_of, object_named
from gradspec.conformance.targets.program import IMPORTS, assignments, entered, imports, keywords
from gradspec.conformance.targets.user.functions import NAME, SUFFIXES, UserFunction, derivative_of, functions_of
from gradspec.graph.lru import LRUCache
from gradspec.system.forking import fate
from gradspec.system.hosting import KernelHost, stand_in

DEFAULT_DTYPES = ("f16", "f32", "f64")
"""What a kernel is given unless it declares otherwise: NumPy's own floats."""
DECLARED = (
    *(*NAMES, "array", "arithmetic", "algorithm", "blocks", "repeatable", "threadsafe", "fresh_results", "strict"),
    *("conventions", "reduced", "set_threads", "is_tried", "__version__"),
)
"""What kernels may say of themselves."""
MOST_DECLINATIONS = 4096
A_TRIAL, MOST_HANGS = 1.0, 10
"""Seconds that a call on zeros may take where it may never end, and how often it may not: then nothing is tried."""


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

    ``arithmetic`` holds keywords of ``gradspec.conformance.Arithmetic.of``: ``{"accumulate": "f16"}``. ``algorithm`` is
    ``"fft"``, ``"winograd"``, ``"integral_image"`` or ``"prefix_sum"``, if sums are computed so.
    ``kernel_size``, ``stride``, ``channels``, ``batch`` and so on (`gradspec.conformance.model.domain`) say which
    problems it is for: a value each, or a set or a range of them.
    ``blocks`` are the sizes of tiles that it works in, which cases then exceed by one, fall short of, and so on.
    ``array`` is the library of its arrays, ``"torch"``, ``"jax"`` or ``"cupy"``, if that is not NumPy.
    ``repeatable = False`` says that sums may differ from run to run; ``threadsafe = False``, that one thread calls at a
    time; ``fresh_results = True``, that results never lie in the inputs' memory; ``strict = True``, that every choice
    which the specification leaves to nobody is made as there, so that another is a defect unless ``conventions`` names
    it.
    """

    array: str
    arithmetic: Mapping[str, Any]
    algorithm: str
    dtypes: tuple[str, ...]
    ranks: tuple[int, ...]
    blocks: tuple[int, ...]
    repeatable: bool
    threadsafe: bool
    fresh_results: bool
    strict: bool
    conventions: tuple[str, ...]
    reduced: Mapping[str, str]

    def set_threads(self, count: int) -> None:
        """Compute with so many threads from now on."""

    def max_pool(self, x: Array, /, **attributes: Any) -> Any:
        """And likewise every other operator and derivative."""


def loaded(name: str, is_hosted: bool = False, memory: int | None = None) -> Target:
    """The target that ``module:object`` names, or ``module`` alone; the current folder is searched first.

    With ``is_hosted`` it is imported and called in a process of its own, which may have so much ``memory``.

    >>> loaded("nowhere:kernels")
    Traceback (most recent call last):
        ...
    ValueError: there is no module 'nowhere' to take kernels from; run the check in its folder or install it
    """
    if not is_hosted:
        return UserKernels(object_named(name), name)
    host = KernelHost(check_name(name), memory)
    return UserKernels(stand_in(host, lambda own: own in DECLARED or NAME.fullmatch(own) is not None), name, host=host)


# --- the target -------------------------------------------------------------------------------------------------------


class UserKernels(OwnTarget):
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
        host: KernelHost | None = None,
    ) -> None:
        self._is_made = isinstance(given, type)
        self._given = given() if self._is_made else given
        super().__init__(self._given, host)
        self._functions = functions_of(self._given, op)
        keys = ", ".join(f.name for f in self._functions) if isinstance(given, Mapping) else ""
        own = keys or str(getattr(given, "__name__", type(given).__name__))
        self.name = own if name is None else name
        if not self._functions:
            otherwise = "" if name is not None else ', or give it by name, {"max_pool2d": kernel}'
            raise ValueError(
                f"nothing in {self.name} is named like an operator; name a function max_pool2d, conv or avg_pool_vjp, "
                f"say{otherwise}. The operators are {', '.join(INPUTS)}"
            )
        beside = {mode: derivative for mode, derivative in (("jvp", jvp), ("vjp", vjp)) if derivative is not None}
        self._functions += [derivative_of(self._functions, mode, derivative) for mode, derivative in beside.items()]
        self._declinations, self._hangs = LRUCache[str](MOST_DECLINATIONS), 0
        self.declaring()

    def declaring(self, **declarations: Any) -> Self:
        super().declaring(**declarations)
        declared = {name: self.declared(name, None) for name in NAMES}
        named = {name: value for name, value in declared.items() if value is not None and not callable(value)}
        self.array = self._library()
        if self.host is not None:
            self.host.library = self.array
        usual = {"layouts": self.layouts()} if self.layouts() else {}
        self.domain = KernelDomain.of(**{"dtypes": DEFAULT_DTYPES, **usual, **named})
        self.repeatable, self.threadsafe = (bool(self.declared(name, True)) for name in ("repeatable", "threadsafe"))
        self.is_tried = bool(self.declared("is_tried", False))
        reduced_modes(self.reduced())
        algorithm = self._algorithm
        if algorithm is not None and set(self.ops).isdisjoint(ALGORITHMS[algorithm][1]):
            meant, own = ", ".join(ALGORITHMS[algorithm][1]), ", ".join(self.ops)
            raise ValueError(f"algorithm {algorithm!r} is one for {meant}; {self.name} has {own}")
        return self

    def _library(self) -> str:
        said = self.declared("array", "numpy")
        return "numpy" if callable(said) else check_library(said)  # a function of a module may have this name

    @property
    def ops(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(function.op for function in self._functions))

    @property
    def modes(self) -> tuple[str, ...]:
        return tuple(mode for mode in MODES if any(function.mode == mode for function in self._functions))

    @property
    def dtypes(self) -> tuple[str, ...]:
        return tuple(self.domain.get("dtypes") or ())

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that it declares, or that its functions have; none where one of them has any."""
        ranks = {function.rank for function in self._functions}
        return tuple(self.domain.get("ranks") or (() if None in ranks else sorted(rank for rank in ranks if rank)))

    @property
    def is_open(self) -> bool:
        """Whether it declares nothing of the problems that it takes."""
        return not self.domain.without(*NOT_OF_SHAPES)

    def refusal(self, problem: Problem, mode: str) -> str | None:
        reason = self.misplaced(problem, mode)
        return self._declined(problem, mode) if reason is None and self.is_tried else reason

    def misplaced(self, problem: Problem, mode: str) -> str | None:
        """Why no function is for a problem, by names and signatures."""
        named = f"{problem.op}{SUFFIXES[mode]}"
        if not any((f.op, f.mode) == (problem.op, mode) for f in self._functions):
            return f"it has no {named}"
        function = self._function(problem, mode)
        if function is None:
            return f"it has no {named} of rank {problem.rank}"
        return function.refusal(problem)

    def _declined(self, problem: Problem, mode: str) -> str | None:
        """Why the function raises ``NotImplementedError`` for a problem, tried on zeros."""

        def attempt() -> None:
            self.run(on_zeros(problem, mode))

        def reason() -> str:
            if self.is_careful and (not self.device.is_host or self._is_deadly(attempt)):
                return ""  # judged where the case is
            try:
                attempt()
            except Exception as why:  # any other is judged where the case is
                return str(why) if isinstance(why, NotOfferedError) else ""
            return ""

        return self._declinations.get_or_make(repr((problem, mode)), reason) or None

    def _is_deadly(self, attempt: Callable[[], None]) -> bool:
        tried = fate if self.host is None else self.host.fate
        found = tried(attempt, A_TRIAL) if self._hangs < MOST_HANGS else "hang"
        self._hangs += found == "hang"
        return bool(found)

    def variants(self, problem: Problem, mode: str) -> tuple[str, ...]:
        function = self._function(problem, mode)
        if function is None or mode != "value" or problem.op not in GIVES_INDICES:
            return ()
        return ("without_indices",) if function.takes("return_indices") else ()

    def compute(self, call: Call) -> Mapping[str, Any]:
        function = self._function(call.problem, call.mode)
        if function is None:
            raise NotOfferedError(f"it has no {call.problem.op}{SUFFIXES[call.mode]}")
        try:
            given = function(call, **_with_indices(function, call))
        except NotImplementedError as why:
            said = f": {why}" if str(why) else ""
            raise NotOfferedError(f"it raised NotImplementedError{said}") from why
        return _named(call, given)

    def run_into(self, call: Call, outs: Results) -> None:
        function = self._function(call.problem, call.mode)
        if function is None or "out" not in function.parameters:
            raise NotOfferedError(f"{self.name} takes no out=")
        more = _with_indices(function, call)
        self.written(call, outs, lambda call, out: function(call, **more, out=out))

    def arithmetic(self, problem: Problem) -> Arithmetic:
        declared = {"algorithm": self.declared("algorithm", None), **self.declared("arithmetic", {})}
        return Arithmetic.of(problem.dtype, **declared) if problem.dtype in FLOATS else super().arithmetic(problem)

    def conventions(self) -> frozenset[str]:
        return super().conventions() | ({"algorithm_spreads"} if self._algorithm is not None else set())

    @property
    def _algorithm(self) -> str | None:
        return self.arithmetic(Problem("conv", 1, (), {})).algorithm

    def reduced(self) -> dict[str, str]:
        return dict(self.declared("reduced", {}))

    def reproducer(self, call: Call) -> str:
        function = self._function(call.problem, call.mode)
        assert function is not None
        given = {**function.attributes(call.problem), **_with_indices(function, call)}
        imported, called = self._spelled(function)

        def spelled(name: str) -> str:
            dtype = call.problem.dtype_of(name) if name in call.named() else call.problem.dtype
            return entered(self.array, name, dtype, self.device)

        arguments = ", ".join([*function.arguments(call, spelled), keywords(given)]).rstrip(", ")
        head = imports(call, *IMPORTS[self.array], imported)
        return "\n".join([*head, "", *assignments(call), f"print({called}({arguments}))"])

    def named(self) -> dict[str, object]:
        return {function.name: function.function for function in self._functions}

    def _function(self, problem: Problem, mode: str) -> UserFunction | None:
        """The function for a problem, one of its own rank before one of any."""
        own = (f for f in self._functions if (f.op, f.mode) == (problem.op, mode))
        return min((f for f in own if f.rank in (problem.rank, None)), key=lambda f: f.rank is None, default=None)

    def _spelled(self, function: UserFunction) -> tuple[str, str]:
        """The line that imports a function, and what it is then called."""
        module, separator, path = self.name.partition(":")
        if separator:
            made = "()" if self._is_made else ""
            inside = f"[{function.name!r}]" if isinstance(self._given, Mapping) else f"{made}.{function.name}"
            return f"from {module} import {path.split('.')[0]}", path + inside * (self._given is not function.function)
        if isinstance(self._given, ModuleType) and (self.host is not None or self._given.__name__ in sys.modules):
            return f"from {self._given.__name__} import {function.name}", function.name
        for found, inside in self._places(function):
            if (home := home_of(found)) is not None:
                return "from {} import {}".format(*home), f"{home[1]}{inside}"
        return f"# {function.name}: the kernel", function.name

    def _places(self, function: UserFunction) -> Iterator[tuple[Any, str]]:
        """What may be imported to have a function, and what to write after its name."""
        yield function.function, ""
        if getattr(self._given, function.name, None) != function.function:
            return
        if not self._is_made:
            yield self._given, f".{function.name}"
        if self._is_made or not getattr(self._given, "__dict__", True):  # any instance is like this one
            yield type(self._given), f"().{function.name}"


def _with_indices(function: UserFunction, call: Call) -> dict[str, bool]:
    if call.mode != "value" or call.problem.op not in GIVES_INDICES or not function.takes("return_indices"):
        return {}
    return {"return_indices": call.variant != "without_indices"}


def _named(call: Call, given: Any) -> dict[str, Any]:
    """What a function returned, by the names of the results; None stands for what it does not give."""
    parts = given if isinstance(given, tuple | list) else (given,)
    names = call.problem.results(call.mode)
    if len(parts) > len(names) and call.problem.op in CONVOLUTIONS:
        parts = [part for part in parts if part is not None]
    if len(parts) > len(names):
        raise TypeError(f"{len(parts)} results were returned; at most {len(names)} are meant: {', '.join(names)}")
    if isinstance(given, tuple | list) and len(parts) < len(names) and call.mode != "value":
        meant = f"{len(names)} are meant: {', '.join(names)}"
        raise TypeError(f"{len(parts)} results were returned; {meant}. Return None for what is not given")
    return {name: part for name, part in zip(names, parts, strict=False) if part is not None}
