"""What a function dispatches, as its library tells: run where the function is, by `gradspec.referee.own_work`.

The process of a kernel is sent this as a text, so that it imports nothing of ours.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from math import prod
from typing import Any

MOVES = re.compile(
    r"(new_)?(empty|zeros|ones|full)(_like|_strided)?|(fill|zero|copy|resize)_|clone|detach|_to_copy|lift_fresh|alias"
    r"|contiguous|scalar_tensor|arange|_local_scalar_dense"
)
"""Operators that do no arithmetic: they allocate, fill and copy."""
LIBRARY_KERNELS = re.compile(r"cublas|cudnn|cutlass|gemm|xmma|cusparse|cufft", re.IGNORECASE)
"""Names of kernels on a GPU that are a library's."""


def record(function: Callable[..., Any], library: str, device: str, arrays: Sequence[Any]) -> dict[str, Any]:
    """The fields of a `gradspec.referee.own_work.Dispatched`, of one call.

    >>> import torch
    >>> seen = record(lambda a, b: torch.relu(a @ b), "torch", "cpu", [torch.ones(2, 3), torch.ones(3, 4)])
    >>> seen["operators"], seen["arithmetic"]["aten.mm"]
    ({'aten.mm': 1, 'aten.relu': 1}, 48.0)
    """
    recorders = {"torch": _record_torch, "jax": _record_jax}
    if library not in recorders:
        return {"how": f"calls of {'NumPy' if library == 'numpy' else library} are not observed"}
    calls, work, how = recorders[library](function, device, arrays)
    return {"operators": dict(calls), "arithmetic": {name: float(n) for name, n in work.items()}, "how": how}


def _record_torch(
    function: Callable[..., Any], device: str, tensors: Sequence[Any]
) -> tuple[Counter[str], Counter[str], str]:
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.flop_counter import flop_registry

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

    recorder: Any = Recorder()  # type: ignore[no-untyped-call]
    with torch.no_grad(), recorder, suppress(Exception):  # what it raises is judged where cases are
        function(*tensors)
    if device == "cpu":
        return calls, work, "operators of aten by TorchDispatchMode"
    for name in _library_kernels(function, tensors):
        calls[name] += 1
        work[name] += sum(t.numel() for t in tensors)
    return calls, work, "operators of aten by TorchDispatchMode, library kernels by the profiler"


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


def _record_jax(
    function: Callable[..., Any], device: str, arrays: Sequence[Any]
) -> tuple[Counter[str], Counter[str], str]:
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
                work[equation.primitive.name] += sum(prod(v.aval.shape) for v in equation.outvars)

    with suppress(Exception):
        walk(jax.make_jaxpr(function)(*arrays).jaxpr)
    return calls, work, "primitives of JAX by its jaxpr"
