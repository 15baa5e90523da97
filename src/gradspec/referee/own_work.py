"""Which library operators a kernel dispatches, and which part of the reference's arithmetic they do."""

from __future__ import annotations

import ast
import inspect
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np

from gradspec.conformance.model.codec import decode, encode
from gradspec.conformance.model.reference import Types
from gradspec.referee.formats import LoadedProblem, SolutionKernel
from gradspec.spec.errors import FormatError
from gradspec.system.forking import ForkedChild
from gradspec.system.host import enter
from gradspec.system.processes import ProcessLostError, describe

CALLS = 3
"""How often a kernel is called under observation: what it does at its first call only is seen, too."""
STARTING = 60.0
MOVES = re.compile(
    r"(new_)?(empty|zeros|ones|full)(_like|_strided)?|(fill|zero|copy|resize)_|clone|detach|_to_copy|lift_fresh|alias"
    r"|contiguous|scalar_tensor|arange|_local_scalar_dense"
)
"""Operators that do no arithmetic: they allocate, fill and copy."""
LIBRARY_KERNELS = re.compile(r"cublas|cudnn|cutlass|gemm|xmma|cusparse|cufft", re.IGNORECASE)
"""Names of kernels on a GPU that are a library's."""
LIBRARY_NAMES = frozenset(
    {"torch", "F", "nn", "jax", "jnp", "lax", "aten", "super", "Model", "reference", "ref_kernel"}
)
"""What a call begins with that falls back to a library or to the reference."""


class ObservationSettings(Protocol):
    """What is needed of the settings of a score."""

    @property
    def device(self) -> str: ...
    @property
    def timeout(self) -> float: ...


@dataclass(frozen=True)
class Policy:
    """What a kernel may dispatch: ``any`` operator; not those of the reference (``no_reference``); ``none_of`` some.

    >>> Policy.of(True).name, Policy.of("no_reference").name, Policy.of(["mm", "convolution"]).operators
    ('any', 'no_reference', ('mm', 'convolution'))
    """

    NAMES: ClassVar = ("any", "no_reference")
    name: str = "any"
    operators: tuple[str, ...] = ()

    @staticmethod
    def of(given: bool | str | Iterable[str]) -> Policy:
        if given is True or given in Policy.NAMES:
            return Policy("any" if given is True else str(given))
        if isinstance(given, bool | str):
            raise ValueError(f"own_work is {given!r}; give any, no_reference, or a list of operators")
        return Policy("none_of", tuple(given))


@dataclass(frozen=True)
class Dispatched:
    """Calls of operators by name, and their arithmetic, as observed in the process of a kernel."""

    operators: Mapping[str, int] = field(default_factory=dict)
    arithmetic: Mapping[str, float] = field(default_factory=dict)
    """Operations by operator: multiplications and additions, or cells of results."""
    how: str = ""


@dataclass(frozen=True)
class OwnWork:
    """What of a kernel's work libraries do.

    ``share`` is the arithmetic of library operators as a part of the reference's, None where neither is known.
    ``fallbacks`` are places in the source where an exception is answered with a library's operator.
    """

    operators: Mapping[str, int]
    share: float | None
    how: str
    fallbacks: tuple[str, ...] = ()
    forbidden: tuple[tuple[str, str], ...] = ()
    """What the policy forbids: a sentence, and what was seen."""


def observe(kernel: Any, loaded: LoadedProblem, policy: Policy, settings: ObservationSettings) -> OwnWork:
    """Call a kernel in a process of its own, and report what it dispatched."""
    types, array = loaded.types[0], loaded.call.array
    theirs = _observed(loaded.eager, types, array, settings)
    ours = _observed(kernel, types, array, settings)
    total, done = sum(theirs.arithmetic.values()), sum(ours.arithmetic.values())
    share = min(1.0, done / total) if total else None
    fallbacks = tuple(find_fallbacks(source_of(kernel)))
    forbidden = tuple(forbidden_by(policy, ours, theirs, fallbacks))
    return OwnWork(ours.operators, share, ours.how, fallbacks, forbidden)


def forbidden_by(
    policy: Policy, ours: Dispatched, theirs: Dispatched, fallbacks: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """What a policy forbids of what a kernel dispatched."""
    working = Counter({name: count for name, count in ours.operators.items() if ours.arithmetic.get(name)})
    if policy.name == "no_reference":
        wanted = Counter({name: count for name, count in theirs.operators.items() if theirs.arithmetic.get(name)})
        if wanted and wanted <= working:
            yield "It dispatches the operators of the reference", ", ".join(sorted(wanted))
    used = [
        name for name in working if any(name in (op, f"aten.{op}") or op in name.split(".") for op in policy.operators)
    ]
    if used:
        yield "It dispatches operators that are not allowed", ", ".join(sorted(used))
    if policy.name != "any" and fallbacks and (working or "NumPy" in ours.how):
        yield "It falls back to a library where its own code raises", "; ".join(fallbacks)


# --- in the process of the kernel -------------------------------------------------------------------------------------


def _observed(function: Any, types: Types, array: str, settings: ObservationSettings) -> Dispatched:
    def answers(_: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield {"dispatched": encode(record(function, types, array, settings.device))}

    try:
        child = ForkedChild(answers, {})
        try:
            child.receive(STARTING)
            child.send({}, settings.timeout)
            return decode(Dispatched, child.receive(STARTING + settings.timeout)["dispatched"], "dispatched")
        finally:
            child.kill()
    except ProcessLostError as loss:
        return Dispatched(how=f"not observed: {describe(loss)}")
    except (FormatError, KeyError, ValueError) as error:
        return Dispatched(how=f"not observed: it wrote to the channel of the judge: {error}")


def record(function: Callable[..., Any], types: Types, array: str, device: str = "cpu") -> Dispatched:
    """What a function of arrays dispatches, by what its library tells.

    >>> import torch
    >>> from gradspec.conformance.targets.reference.loading import read_inputs
    >>> seen = record(lambda a, b: torch.relu(a @ b), read_inputs("f32[2,3],f32[3,4]")[0][0], "torch")
    >>> seen.operators, seen.arithmetic["aten.mm"]
    ({'aten.mm': 1, 'aten.relu': 1}, 48.0)
    """
    recorders = {"torch": _record_torch, "jax": _record_jax}
    if array not in recorders:
        return Dispatched(how=f"calls of {'NumPy' if array == 'numpy' else array} are not observed")
    found = [recorders[array](function, types, device, seed) for seed in range(CALLS)]
    names = {name for one in found for name in one.operators}
    operators = {name: max(one.operators.get(name, 0) for one in found) for name in sorted(names)}
    arithmetic = {name: max(one.arithmetic.get(name, 0.0) for one in found) for name in sorted(names)}
    return Dispatched(operators, arithmetic, found[0].how)


def draw_arrays(types: Types, seed: int) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(seed)
    return [
        rng.standard_normal(t.shape).astype(t.dtype.numpy)
        if t.is_float
        else rng.integers(0, 2, t.shape).astype(t.dtype.numpy)
        for t in types
    ]


def _record_torch(function: Callable[..., Any], types: Types, device: str, seed: int) -> Dispatched:
    import torch
    from torch.utils.flop_counter import flop_registry

    from gradspec.interop.torch.private import TorchDispatchMode

    calls, work = Counter[str](), Counter[str]()

    class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            packet = func._overloadpacket
            name = str(packet)
            plain = name.partition(".")[2]
            if not func.is_view and not MOVES.fullmatch(plain):
                calls[name] += 1
                count = flop_registry.get(packet)
                cells = sum(t.numel() for t in _leaves(out) if isinstance(t, torch.Tensor))
                work[name] += count(*args, **(kwargs or {}), out_val=out) if count else cells
            return out

    tensors = [enter("torch", array).to(device) for array in draw_arrays(types, seed)]
    if isinstance(function, SolutionKernel):
        function.load()  # what makes its parameters is no work of a call
    recorder: Any = Recorder()  # type: ignore[no-untyped-call]
    with torch.no_grad(), recorder, suppress(Exception):  # what it raises is judged where cases are
        function(*tensors)
    how = "operators of aten by TorchDispatchMode"
    if device != "cpu":
        for name in _library_kernels(function, tensors):
            calls[name] += 1
            work[name] += sum(t.numel() for t in tensors)
        how += ", library kernels by the profiler"
    return Dispatched(dict(calls), {name: float(n) for name, n in work.items()}, how)


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for part in value:
            yield from _leaves(part)
    else:
        yield value


def _library_kernels(function: Callable[..., Any], tensors: Sequence[Any]) -> list[str]:
    """The kernels of libraries that a call runs on a GPU."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen, suppress(Exception):
        function(*tensors)
    return [event.key for event in seen.key_averages() if LIBRARY_KERNELS.search(event.key)]


def _record_jax(function: Callable[..., Any], types: Types, device: str, seed: int) -> Dispatched:
    import jax

    calls, work = Counter[str](), Counter[str]()

    def walk(jaxpr: Any) -> None:
        for equation in jaxpr.eqns:
            inner = [
                p for v in equation.params.values() for p in _leaves(v) if hasattr(p, "eqns") or hasattr(p, "jaxpr")
            ]
            for one in inner:
                walk(getattr(one, "jaxpr", one))
            if not inner:
                calls[equation.primitive.name] += 1
                work[equation.primitive.name] += sum(int(np.prod(v.aval.shape)) for v in equation.outvars)

    with suppress(Exception):
        walk(jax.make_jaxpr(function)(*draw_arrays(types, seed)).jaxpr)
    return Dispatched(dict(calls), {name: float(n) for name, n in work.items()}, "primitives of JAX by its jaxpr")


# --- in the source ----------------------------------------------------------------------------------------------------


def source_of(kernel: Any) -> str:
    """The source of a kernel, nothing where there is none."""
    with suppress(OSError, TypeError, UnicodeDecodeError):
        if isinstance(kernel, SolutionKernel) and kernel.solution.endswith(".py"):
            return Path(kernel.solution).read_text(encoding="utf-8")
        if isinstance(kernel, SolutionKernel):
            from importlib.util import find_spec

            spec = find_spec(kernel.solution.partition(":")[0])
            return Path(spec.origin or "").read_text(encoding="utf-8") if spec else ""
        file = inspect.getsourcefile(kernel if inspect.isfunction(kernel) else type(kernel))
        return Path(file or "").read_text(encoding="utf-8")
    return ""


def find_fallbacks(source: str) -> Iterator[str]:
    """The places where an exception is answered with an operator of a library or with the reference.

    >>> list(find_fallbacks("try:\\n    y = fast(x)\\nexcept Exception:\\n    y = torch.softmax(x, 1)\\n"))
    ['line 4: torch.softmax']
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return
    handlers = [node for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler)]
    for call in (node for handler in handlers for node in ast.walk(handler) if isinstance(node, ast.Call)):
        called = ast.unparse(call.func)
        if re.split(r"[.(]", called)[0] in LIBRARY_NAMES:
            yield f"line {call.lineno}: {called}"
