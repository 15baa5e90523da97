"""What the machine itself can do: copy memory with all threads, and multiply matrices with NumPy's BLAS."""

from __future__ import annotations

import platform
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from gradspec.bench.contenders import Contender, Variants
from gradspec.bench.data import Array, data
from gradspec.bench.grid import COPY, BenchProblem, Limit
from gradspec.conformance.model.target import NotOfferedError


class Machine(Contender):
    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.pool = ThreadPoolExecutor(threads)

    def versions(self) -> dict[str, str]:
        return {"python": platform.python_version(), "numpy": np.__version__}

    def variants(self, problem: BenchProblem) -> Variants:
        if problem.cell == COPY:
            return {"NumPy copies": self._copy(np.ones(problem.cell.output(), np.float32))}
        if isinstance(problem.cell, Limit):
            a, b = data(problem).inputs
            return {"NumPy": lambda: [a @ b]}
        raise NotOfferedError("only limits are measured here")

    def _copy(self, source: Array) -> Any:
        target = np.empty_like(source)
        parts = [*zip(np.array_split(target, self.threads), np.array_split(source, self.threads), strict=True)]
        return lambda: [target, *self.pool.map(lambda part: np.copyto(*part), parts)][:1]

    def arrays(self, results: list[Array]) -> list[Array]:
        return results
