"""A kernel of anything that a graph can say: ``gradspec check module:kernel --spec module:reference --inputs …``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Self

import numpy as np

from gradspec.conformance.judge.reduced import PROFILES
from gradspec.conformance.model.arithmetic import Arithmetic
from gradspec.conformance.model.case import Selection
from gradspec.conformance.model.device import Device
from gradspec.conformance.model.domain import KernelDomain
from gradspec.conformance.model.problem import FLOATS, ON_NANS, Call, Problem, Results
from gradspec.conformance.model.reference import Reference, on_zeros
from gradspec.conformance.model.target import Answer, NotOfferedError
from gradspec.conformance.targets.objects import OwnTarget, check_library, check_name, home_of, object_named
from gradspec.conformance.targets.program import ARRAYS, BARE, Caller, modules_of, named_results, program
from gradspec.conformance.targets.reference.loading import Inputs, declared_by, named, reference_from
from gradspec.graph.types import DTYPES
from gradspec.system.host import facts_of, library_of
from gradspec.system.hosting import KernelHost, stand_in

TORCH_NAMES = {"f16": "torch.float16", "bf16": "torch.bfloat16", "f64": "torch.float64"}
ATTACHED = {"jvp": "jvp", "vjp": "vjp", "second": "vjp_vjp"}
"""Where a kernel of NumPy arrays has its derivatives."""
DECLARATIONS = (
    *("arithmetic", "conventions", "strict", "layouts", "blocks", "numbers"),
    *("repeatable", "threadsafe", "fresh_results", "set_threads", "mutates", "mutates_cotangent"),
    *("values", "no_grad", "out_dtype", "intermediates"),
)
"""What a kernel may say of itself, and, of the last, its reference."""


OF_REFERENCES: tuple[tuple[str, Any], ...] = (("values", {}), ("no_grad", ()), ("out_dtype", ""), ("intermediates", ""))
"""What is said of a reference, by the kernel or by itself."""
OBSERVED, MOST_OBSERVED = range(8, 2049), 4
"""Numbers in the launches of a kernel that may be its blocks, and how many of them."""


class ReferenceKernel(OwnTarget):
    """A kernel, judged by a reference.

    >>> target = ReferenceKernel(lambda x: np.maximum(x, 0), lambda x: gs.relu(x), "f32[8,64]")
    >>> target.references[0].types
    ((f32[8, 64],),)
    """

    chooser = "reference"

    def __init__(
        self,
        kernel: Any,
        spec: Any,
        inputs: Inputs | None,
        *,
        name: str = "",
        params: str | Sequence[str] | None = None,
        array: str | None = None,
        jvp: Callable[..., Any] | None = None,
        vjp: Callable[..., Any] | None = None,
        host: KernelHost | None = None,
    ) -> None:
        """``kernel`` stands in for one in a host, if there is one."""
        self._kernel, self._spec = _made(kernel), _made(spec)
        if not callable(self._kernel):
            raise TypeError(f"the kernel is {kernel!r}, which cannot be called; give a function or a module")
        super().__init__(self._kernel, host)
        self._facts = facts_of(self._kernel) if host is None else host.facts
        self.name, self._original = name or named(kernel), kernel
        self._given = {mode: f for mode, f in (("jvp", jvp), ("vjp", vjp)) if f is not None}
        self._array = array
        self._refusals: dict[str, str | None] = {}
        self._shared = self._shared_parameters() if params is None else []
        chosen = self._shared or ("constants" if params is None else params)
        self.reference = reference_from(self._spec, inputs, chosen, array=array)
        self._by_dtype: dict[str, Callable[..., Any]] = {}
        self.declaring()

    @property
    def references(self) -> Sequence[Reference]:
        return (self.reference,)

    def of_windows(self, selection: Selection) -> Selection | None:
        return None

    def of_references(self, selection: Selection) -> Selection | None:
        return selection

    def _shared_parameters(self) -> list[str]:
        if library_of(self._spec) != "torch" or self._facts["library"] != "torch":
            return []
        from gradspec.interop.torch.reference import shared_parameters

        return shared_parameters(self._spec, self._facts["parameters"] or {})

    @cached_property
    def array(self) -> str:  # type: ignore[override]
        """The library of the arrays that the kernel takes: as it says, or as it is written, or as its reference is."""
        said = self._array or getattr(self._kernel, "array", None)
        if isinstance(said, str):
            return check_library(said)
        own, theirs = self._facts["library"], self.reference.library
        if own in ARRAYS or "numpy" in self._facts["mentioned"]:
            return own if own in ARRAYS else "numpy"
        return theirs if theirs in ARRAYS else "numpy"

    # --- declarations

    def declaring(self, **declarations: Any) -> Self:
        unknown = sorted({name for name, value in declarations.items() if value not in (None, ())} - {*DECLARATIONS})
        if unknown:
            raise TypeError(
                f"{', '.join(unknown)}: such is said of the specification's operators; of a kernel with a reference "
                f"declare some of {', '.join(DECLARATIONS)}, and give several inputs for other sizes"
            )
        super().declaring(**declarations)
        Arithmetic.of("f32", **self._arithmetic)  # which says what it has none of
        own = {"layouts": self.declared("layouts", ()) or self.layouts(), "numbers": self.declared("numbers", ())}
        self.domain = KernelDomain.of(**{name: value for name, value in own.items() if value})
        is_module = self._facts["parameters"] is not None  # they are put in for the time of a call
        if self.host is not None:
            self.host.library = self.array
        self.repeatable = bool(self.declared("repeatable", self.array in BARE))  # other libraries promise no bits
        problem = self.reference.problem(self.reference.types[0])
        cotangent = [problem.cotangent] if self.declared("mutates_cotangent", False) else []
        self.mutates = (*self.declared("mutates", ()), *cotangent)
        tunes = self.profile or "triton" in self._facts["mentioned"]  # and Triton's interpreter has one state
        self.threadsafe = bool(self.declared("threadsafe", not (is_module or self.mutates or tunes)))
        self.liberties = frozenset(PROFILES.get(self.profile, ()))
        said = {name: self.declared(name, declared_by(self._spec, name, default)) for name, default in OF_REFERENCES}
        self.reference.declare(**said)
        self.compiles = self.array == "jax"
        return self

    def within(self, domain: str) -> Self:
        if domain:
            raise ValueError("a domain is one of the specification's operators; give several inputs for a reference")
        return self

    def arithmetic(self, problem: Problem) -> Arithmetic:
        return Arithmetic.of(problem.dtype if problem.dtype in FLOATS else "f64", **self._arithmetic)

    @property
    def _arithmetic(self) -> dict[str, Any]:
        declared, wide = self.declared("arithmetic", {}), {"wide_intermediates": bool(self.reference.intermediates)}
        return wide if isinstance(declared, str) else {**wide, **declared}

    @property
    def profile(self) -> str:
        """The kind of arithmetic that it declares, or that its library and device have; nothing where neither says."""
        declared = self.declared("arithmetic", None)
        if isinstance(declared, str):
            if declared not in PROFILES:
                raise ValueError(f"arithmetic is {declared!r}; declare one of {', '.join(PROFILES)}, or a mapping")
            return declared
        if declared is not None or self.array not in ("torch", "cupy"):
            return ""
        return "triton" if "triton" in self._facts["mentioned"] else "" if self.device.is_host else "cuda"

    def on(self, device: Device) -> Self:
        return super().on(device).declaring()

    def versions(self) -> dict[str, str]:
        libraries = sorted({self.array, self.reference.library} & {"torch", "jax"})
        known = {} if self.host is None else self.host.facts["versions"]
        own = {name: known.get(name) or str(modules_of(name)[name].__version__) for name in libraries}
        return {**super().versions(), **own, **({"arithmetic": self.profile} if self.profile else {})}

    def named(self) -> dict[str, object]:
        return {"kernel": self._original, **{f"kernel_{mode}": f for mode, f in self._derivatives.items()}}

    def may_race(self, call: Call) -> bool:
        """PyTorch's transforms of functions, by which JVPs are taken, are for one thread at a time."""
        return super().may_race(call) and (self.array != "torch" or call.mode in ("value", "vjp"))

    # --- what it offers

    @cached_property
    def _derivatives(self) -> dict[str, Callable[..., Any]]:
        """The derivatives that come with a kernel of NumPy arrays."""
        attached = {mode: getattr(self._kernel, name, None) for mode, name in ATTACHED.items()}
        return {**{mode: f for mode, f in attached.items() if callable(f)}, **self._given}

    def declines(self, problem: Problem, mode: str) -> str | None:
        return self.refusal(problem, mode)

    def refusal(self, problem: Problem, mode: str) -> str | None:
        """Why a mode is not offered: a kernel of NumPy arrays has no such derivative, or trying it says so."""
        if mode not in self._refusals:
            self._refusals[mode] = self._tried(self.reference.problem(self.reference.types[0]), mode)
        return self._refusals[mode]

    def _tried(self, problem: Problem, mode: str) -> str | None:
        if self.array in BARE:
            return None if mode == "value" or mode in self._derivatives else f"it has no {ATTACHED[mode]}"
        if mode == "value":
            return None
        try:
            self.run(on_zeros(problem, mode).mapped(lambda a: a if a.dtype.kind in "iub" else np.ones_like(a)))
        except NotOfferedError as why:
            return str(why)
        except Exception as error:  # that a VJP raises is judged; other modes may just not be written
            told = f"its {mode} raises {type(error).__name__}: {str(error).partition(chr(10))[0][:120]}"
            return None if mode == "vjp" else told
        return None

    def observed(self) -> tuple[int, ...]:
        """The largest numbers that kernels of Triton were launched with, of a host as it says."""
        if self.blocks or "triton" not in self._facts["mentioned"]:
            return ()
        told = self._launched if self.host is None else self.host.launched()
        return tuple(sorted({n for n in told if type(n) is int and n in OBSERVED}, reverse=True)[:MOST_OBSERVED])

    # --- running

    def _made(self, calls: Sequence[Call]) -> list[Answer]:
        """What calls may write into is put back behind them; results that lie there are copied before."""
        given = [array for call in calls for name, array in call.arrays().items() if name in self.mutates]
        before = [array.copy() for array in given]
        answers = super()._made(calls)
        for results in answers if given else ():
            if not isinstance(results, Exception):
                results |= {name: np.array(array) for name, array in results.items()}
        for array, numbers in zip(given, before, strict=True):
            array[...] = numbers
        return answers

    def _function(self, call: Call) -> Callable[..., Any]:
        caller, kernel = Caller.of_call(self.array, call), self._called(call.problem)
        if call.variant == ON_NANS and self.array != "torch":
            raise NotOfferedError(f"{self.array} fills no memory with NaNs")
        if self.array in BARE and call.mode != "value":
            if call.mode not in self._derivatives:
                raise NotOfferedError(f"it has no {ATTACHED[call.mode]}")
            return self._derivatives[call.mode]
        return caller.function(kernel)

    def _called(self, problem: Problem) -> Callable[..., Any]:
        """The kernel as a function of all inputs: of a module, its parameters among them."""
        if self._facts["parameters"] is None:
            return self._kernel  # type: ignore[no-any-return]
        if problem.dtype not in self._by_dtype:
            from gradspec.interop.torch.reference import functional, state_of

            dtype = DTYPES[problem.dtype]
            if self.host is None:
                self._by_dtype[problem.dtype] = functional(self._kernel, self._spec, dtype, self._shared)
            else:
                self.host.make_module(problem.dtype, dtype.numpy.name, state_of(self._spec))
                self._by_dtype[problem.dtype] = self._kernel.within(module=problem.dtype, shared=self._shared)
        return self._by_dtype[problem.dtype]

    def compute(self, call: Call) -> Mapping[str, Any]:
        function = self._function(call)
        try:
            with np.errstate(all="ignore"):  # NaNs and overflow are among the cases, and no errors
                given = function(*call.arguments())
        except NotImplementedError as why:
            raise NotOfferedError(f"it raised NotImplementedError: {why}") from why
        except RuntimeError as why:
            if call.mode != "value" and "does not require grad" in str(why):
                raise NotOfferedError("its result does not carry derivatives") from why
            raise
        return named_results(call, given)

    def run_into(self, call: Call, outs: Results) -> None:
        if self.array not in BARE or call.mode != "value" or "out" not in _parameters(self._kernel):
            raise NotOfferedError(f"{self.name} takes no out=")
        self.written(call, outs, lambda call, out: self._kernel(*call.arguments(), out=out))

    def set_threads(self, count: int) -> bool:
        is_told = super().set_threads(count)
        if not is_told and self.array == "torch" and self.host is not None:
            self.host.set_threads(count)
        elif not is_told and self.array == "torch":
            modules_of("torch")["torch"].set_num_threads(count)
        return is_told

    # --- programs

    def reproducer(self, call: Call) -> str:
        return program(call, self.array, [*self._imported(), *self._wrapped(call.problem)], device=self.device)

    def _imported(self) -> list[str]:
        module, separator, path = self.name.partition(":")
        if separator:
            first = path.split(".")[0]
            return (
                [f"from {module} import {first}" + (" as kernel" if path == first != "kernel" else "")]
                + ([f"kernel = {path}"] if path != first else [])
                + [f"kernel_{mode} = kernel.{ATTACHED[mode]}" for mode in self._derivatives if mode not in self._given]
            )
        home = home_of(self._original)
        if home is None:
            return ["# kernel: the kernel"]
        return [f"from {home[0]} import {home[1]} as kernel"]

    def _wrapped(self, problem: Problem) -> list[str]:
        """The lines that make a function of a module."""
        if self._facts["parameters"] is None:
            return []
        converted = "" if problem.dtype == "f32" else f".to({TORCH_NAMES[problem.dtype]})"
        return [
            f"module = kernel{'()' * isinstance(self._original, type)}{converted}",
            f"names = {self._shared}",
            "def kernel(*arrays):",
            "    given = len(arrays) - len(names)",
            "    return torch.func.functional_call(module, dict(zip(names, arrays[given:])), arrays[:given])",
        ]


def _made(given: Any) -> Any:
    """An object of a class that can be made without arguments, as users write references and kernels of PyTorch."""
    if not isinstance(given, type):
        return given
    try:
        return given()
    except TypeError as error:
        raise TypeError(f"{given.__name__} cannot be made without arguments ({error}); give an object of it") from error


def _parameters(kernel: Any) -> Iterable[str]:
    try:
        return inspect.signature(kernel).parameters
    except (TypeError, ValueError):
        return ()


def loaded_kernel(
    name: str,
    spec: str,
    inputs: str | None,
    params: str | None = None,
    array: str | None = None,
    is_hosted: bool = False,
    memory: int | None = None,
) -> ReferenceKernel:
    """The target that ``module:kernel`` and ``module:reference`` name; a reference may be an ONNX file, too.

    With ``is_hosted`` the kernel is imported and called in a process of its own, which may have so much ``memory``.
    """
    host = KernelHost(check_name(name), memory) if is_hosted else None
    meant = spec if spec.endswith(".onnx") else object_named(spec)
    own = object_named(inputs) if inputs and ":" in inputs and "[" not in inputs else inputs
    members = {*DECLARATIONS, *ATTACHED.values(), "array", "__version__"}
    kernel = object_named(name) if host is None else stand_in(host, members.__contains__)
    return ReferenceKernel(kernel, meant, own, name=name, params=params, array=array, host=host)
