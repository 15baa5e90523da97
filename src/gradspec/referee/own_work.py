"""Which library operators a kernel dispatches, and which part of the reference's arithmetic they do."""

from __future__ import annotations

import ast
import inspect
import json
import re
import secrets
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from gradspec.conformance.model.codec import decode
from gradspec.conformance.model.reference import Types
from gradspec.referee import recording
from gradspec.referee.formats import LoadedProblem
from gradspec.system.hosting import HostedFunction, HostLostError

CALLS = 3
"""How often a kernel is called under observation: what it does at its first call only is seen, too."""
UNSEEN = "not observed"
RECORDING = Path(recording.__file__).read_text(encoding="utf-8")
LIBRARY_NAMES = frozenset(
    {"torch", "F", "nn", "jax", "jnp", "lax", "aten", "super", "Model", "reference", "ref_kernel"}
)
"""What a call begins with that falls back to a library or to the reference."""


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


def observe(
    kernel: HostedFunction, eager: HostedFunction, loaded: LoadedProblem, policy: Policy, source: str
) -> OwnWork:
    """Call a kernel and its reference, each in a process of its own, and report what was dispatched there."""
    types, library = loaded.types[0], loaded.call.array
    theirs, ours = (_observed(function, types, library, function.host.device) for function in (eager, kernel))
    total, done = sum(theirs.arithmetic.values()), sum(ours.arithmetic.values())
    share = min(1.0, done / total) if total else None
    fallbacks = tuple(find_fallbacks(source))
    forbidden = tuple(forbidden_by(policy, ours, theirs, fallbacks))
    return OwnWork(ours.operators, share, ours.how, fallbacks, forbidden)


def forbidden_by(
    policy: Policy, ours: Dispatched, theirs: Dispatched, fallbacks: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """What a policy forbids of what a kernel dispatched."""
    if policy.name != "any" and ours.how.startswith(UNSEEN):
        yield "It lets nobody observe its work", ours.how
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


def _observed(function: HostedFunction, types: Types, library: str, device: str) -> Dispatched:
    """What a function dispatches in its process, in the most of several calls."""
    record = f"np.frombuffer(json.dumps(record(kernel, {library!r}, {device!r}, arrays)).encode(), np.uint8)"
    lines = [RECORDING, "import json", "def recorded(*arrays):", f"    return {record}"]
    recorded = function.within(lines=lines, name="recorded")
    try:
        told = (recorded(*draw_arrays(types, secrets.randbits(32))).tobytes() for _ in range(CALLS))
        found = [decode(Dispatched, json.loads(text), "dispatched") for text in told]
    except HostLostError as loss:
        return Dispatched(how=f"{UNSEEN}: {loss}")
    except Exception as error:  # whatever is said in its place
        return Dispatched(how=f"{UNSEEN}: {type(error).__name__}: {error}")
    names = sorted({name for one in found for name in one.operators})
    operators = {name: max(one.operators.get(name, 0) for one in found) for name in names}
    arithmetic = {name: max(one.arithmetic.get(name, 0.0) for one in found) for name in names}
    return Dispatched(operators, arithmetic, found[0].how)


def draw_arrays(types: Types, seed: int) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(seed)
    return [
        rng.standard_normal(t.shape).astype(t.dtype.numpy)
        if t.is_float
        else rng.integers(0, 2, t.shape).astype(t.dtype.numpy)
        for t in types
    ]


# --- in the source ----------------------------------------------------------------------------------------------------


def source_of(kernel: Any) -> str:
    """The source of a kernel: of a file, of ``module:object``, or of an object; nothing where there is none."""
    with suppress(OSError, TypeError, ValueError, ImportError):
        if isinstance(kernel, str):
            spec = None if kernel.endswith(".py") else find_spec(kernel.partition(":")[0])
            return Path(kernel if spec is None else spec.origin or "").read_text(encoding="utf-8")
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
