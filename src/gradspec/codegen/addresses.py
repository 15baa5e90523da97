"""Where arrays, blocks of arguments and compiled functions lie in memory."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_size_t, c_void_p, cast, string_at

import numpy as np
from numpy.typing import NDArray

# A NumPy array is a Python object whose first field is the address of its data, and a bytes object ends with its bytes
# and a zero: both are part of the binary interface that every extension module relies on. Reading them there takes
# 0.3 µs; ``array.ctypes.data`` takes 2 µs.
_DATA = object.__basicsize__
_BYTES = bytes.__basicsize__ - 1
_word_at = c_size_t.from_address


def address(array: NDArray[np.generic]) -> int:
    """Where an array's data begins.

    >>> x = np.zeros(3)
    >>> address(x) == x.ctypes.data
    True
    """
    return _word_at(id(array) + _DATA).value


def block_address(block: bytes) -> int:
    """Where the bytes of a block of arguments lie, as long as the block lives.

    >>> string_at(block_address(b"abc"), 3)
    b'abc'
    """
    return id(block) + _BYTES


def function_address(function: Callable[..., object]) -> int:
    """Where the code of a compiled kernel begins, for other machine code to call.

    >>> from gradspec.codegen.cache import KERNEL_TYPE
    >>> function_address(KERNEL_TYPE(4096))
    4096
    """
    return cast(function, c_void_p).value or 0  # type: ignore[arg-type]


def _require_known_layout() -> None:
    probe, text = np.arange(8.0)[3:], b"gradspec"
    if address(probe) != probe.ctypes.data or string_at(block_address(text), len(text)) != text:
        raise ImportError("this Python interpreter lays out its objects in a way that gradspec does not know")


_require_known_layout()
