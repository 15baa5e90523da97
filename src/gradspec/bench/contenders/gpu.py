"""Contenders on a GPU, and how fast it copies memory. Every call finds other bytes in the L2 cache than its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from time import perf_counter
from types import SimpleNamespace
from typing import TYPE_CHECKING

import gradspec as gs
from gradspec.bench.contenders import Call, Variants, as_problem
from gradspec.bench.contenders.ours import function
from gradspec.bench.contenders.pytorch import Functions, PyTorch
from gradspec.bench.contenders.xla import Jax
from gradspec.bench.grid import POOL_OPS, Array, BenchProblem, Pool
from gradspec.conformance.targets.program import function_of
from gradspec.conformance.targets.torch.functions import quickest

if TYPE_CHECKING:
    from torch import Tensor
    from torch.cuda import Event

FLUSHED = 256 << 20
"""Bytes that are written before each call, more than any L2 cache holds."""
AUTOTUNED = "max-autotune", "max-autotune-no-cudagraphs"
"""Modes of ``torch.compile``: a CUDA graph is launched at once, but copies its inputs to where it was recorded."""
SHORTEST = 1e-5  # seconds: less than any call here, for what noise makes still less of


# --- PyTorch ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TorchOnGpu(PyTorch):
    """Calls are timed by events on the GPU, and queued behind each other: the host may run ahead."""

    device: str = "cuda"

    @cached_property
    def _other_bytes(self) -> Tensor:
        return self.torch.empty(FLUSHED, dtype=self.torch.uint8, device=self.device)

    def _event(self) -> Event:
        return self.torch.cuda.Event(enable_timing=True)

    def seconds(self, call: Call, calls: int) -> float:
        events = [(self._event(), self._event()) for _ in range(calls)]
        for begin, end in events:
            self._other_bytes.zero_()
            begin.record()
            call()
            end.record()
        events[-1][1].synchronize()
        return float(sum(begin.elapsed_time(end) for begin, end in events)) / calls / 1e3

    def variants(self, problem: BenchProblem) -> Variants:
        self.torch.cuda.empty_cache()  # memory that the last problem used is for others, too
        return super().variants(problem)

    def arrays(self, results: Iterable[Tensor]) -> list[Array]:
        found = super().arrays(results)
        self.torch.cuda.empty_cache()
        return found


class CompiledOnGpu(TorchOnGpu):
    def variants(self, problem: BenchProblem) -> Variants:
        return {
            f"{name} {mode}".strip(): call
            for mode in AUTOTUNED
            for name, call in TorchOnGpu.variants(replace(self, mode=mode), problem).items()
        }


class OursOnGpu(TorchOnGpu):
    def versions(self) -> dict[str, str]:
        return {"gradspec": gs.__version__, **super().versions(), "triton": import_module("triton").__version__}

    def _functions(self, problem: BenchProblem) -> Functions:
        """As a module, made of a graph, and by the functions that stand in for torch's."""
        cell = problem.cell
        assert isinstance(cell, Pool)
        graph = gs.trace(function(problem), getattr(gs, cell.dtype)[cell.shape])
        functions: Functions = {"gs.to_torch": gs.to_torch(graph).to(self.device)}
        if cell.rank < 4 and problem.op in POOL_OPS[:2]:
            stand_in = SimpleNamespace(nn=SimpleNamespace(functional=import_module("gradspec.torch")))
            asked = quickest(as_problem(problem))
            functions["gradspec.torch"] = function_of(asked, cell.inputs(), {"torch": stand_in})
        return functions


class CopyOnGpu(TorchOnGpu):
    """A copy that reads and writes as many bytes as the problem must."""

    def variants(self, problem: BenchProblem) -> Variants:
        self.torch.cuda.empty_cache()
        source = self.torch.ones(problem.bytes // 2, dtype=self.torch.uint8, device=self.device)
        target = self.torch.empty_like(source)
        return {"copy": lambda: [target.copy_(source)]}

    def arrays(self, results: Iterable[Tensor]) -> list[Array]:
        return []


def _taking_part(kind: type[TorchOnGpu], compiled: bool = False) -> Callable[[int], TorchOnGpu]:
    """What makes such a contender; the number of threads makes no difference to it."""
    return lambda threads: kind(import_module("torch"), compiled=compiled)


eager, compiled = _taking_part(TorchOnGpu), _taking_part(CompiledOnGpu, compiled=True)
ours, limits = _taking_part(OursOnGpu), _taking_part(CopyOnGpu)


# --- JAX --------------------------------------------------------------------------------------------------------------


class JaxOnGpu(Jax):
    """JAX has no events. What is timed is a queue of calls with the writing of other bytes before each, less that of
    the writing alone."""

    platform = "cuda"

    @cached_property
    def _other_bytes(self) -> Call:
        return self.jax.jit(lambda: self.jax.numpy.zeros(FLUSHED, "uint8"))

    def _finished(self, results: Sequence[Array]) -> Sequence[Array]:
        return results

    def _queued(self, calls: int, *work: Call) -> float:
        last = self.jax.block_until_ready(self._other_bytes())
        start = perf_counter()
        for _ in range(calls):
            for each in (self._other_bytes, *work):
                last = each()
        self.jax.block_until_ready(getattr(last, "results", last))
        return perf_counter() - start

    def seconds(self, call: Call, calls: int) -> float:
        alone = self._queued(calls)
        return max(SHORTEST, (self._queued(calls, call) - alone) / calls)
