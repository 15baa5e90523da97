"""Where graphs of bounds run: on our compiled kernels, or by PyTorch on a device that passed the probes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from gradspec.graph.graph import Graph
from gradspec.graph.types import DType
from gradspec.interop.extras import require
from gradspec.runtime.compiled import compile

OURS = {"cpu"}
"""The devices whose graphs run on our kernels; tests have PyTorch run them there, too."""


@dataclass(frozen=True)
class Execution:
    """How graphs are run, and how much at once: cells of the largest variable, rows, and parts of a proof."""

    compile: Callable[[Graph], Callable[..., Any]]
    compile_early: Callable[[Graph], Callable[..., Any]]
    """As ``compile``, of what only other graphs read: results stay where they were computed."""
    most_cells: int
    most_rows: int
    parts: int = 1
    """How many times as many parts as on our kernels."""


_probed = set[tuple[str, DType]]()


def execution_on(device: str, dtype: DType) -> Execution:
    """``device`` is ``"cpu"``, or one of PyTorch's, which is probed at its first use for bounds in a format."""
    if device in OURS:
        return Execution(compile, compile, 2**22, 512)
    require("torch", f"device={device!r}")
    from gradspec.interop.torch.certified import DeviceCompiler
    from gradspec.verify.probes import require_certified

    compiler = DeviceCompiler(device)
    if (device, dtype) not in _probed:
        require_certified(device, dtype, compiler.compile)
        _probed.add((device, dtype))
    return Execution(compiler.compile, partial(compiler.compile, stays=True), 2**26, 2**12, parts=8)
