"""The processor that kernels are compiled for: how wide its vectors are, and the code of a kernel for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import llvmlite.binding as llvm

from gradspec.backends.cpu.kernels.compiler import Module
from gradspec.backends.cpu.kernels.language import i64, pointer, u8

KERNEL_ARGUMENTS = (pointer(i64), i64, i64, pointer(u8))
"""``(args, lo, hi, workspace)``."""

VECTOR_BYTES = {"avx512f": 64, "avx2": 32, "neon": 32}
"""By the first of these features that the processor has. Of 16-byte NEON registers, two at a time are faster."""


def kernel_code(function: Any) -> str:
    """LLVM's intermediate code of a kernel, ``function(args, lo, hi, workspace)``; its entry is called ``kernel``."""
    module = Module(vector_bytes(llvm.get_host_cpu_features()))
    module.entry("kernel", function, KERNEL_ARGUMENTS)
    return str(module)


def vector_bytes(features: Mapping[str, bool]) -> int:
    """How many bytes one vector of a kernel has.

    >>> vector_bytes({"avx2": True, "avx512f": False}), vector_bytes({})
    (32, 16)
    """
    return next((size for feature, size in VECTOR_BYTES.items() if features.get(feature)), 16)
