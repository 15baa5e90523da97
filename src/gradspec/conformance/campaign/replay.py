"""Runs programs, each in a process of its own in which nothing was called before, and says what they printed.

Programs are those that the judge itself has written about findings; nothing else is ever run here. As a program,
``python replay.py``, it reads ``{"programs": [...], "seconds": s}`` and answers with a JSON line for
each. It imports nothing but the standard library, and NumPy where a program did: it is to start fast.
"""

from __future__ import annotations

import faulthandler
import json
import os
import select
import signal
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any

MOST_CELLS = 1 << 16
"""Of an array that is told."""


def replay_programs(programs: Sequence[str], seconds: float, names: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """What each program printed or raised, or the signal that ended it; nothing more when the time is up.

    ``names`` are defined in each. An answer has ``arrays``, ``flags``, ``error`` and ``signal``, which is 0 for none.
    """
    deadline = monotonic() + seconds
    for program in programs:
        left = deadline - monotonic()
        if left <= 0:
            return
        yield _in_a_child(program, left, names)


def _in_a_child(program: str, seconds: float, names: Mapping[str, Any]) -> dict[str, Any]:
    incoming, outgoing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that other threads are not in the child: the program starts its own
        child = os.fork()
    if child == 0:
        os.close(incoming)
        _child(program, outgoing, names, seconds)
    os.close(outgoing)
    text, deadline = b"", monotonic() + seconds
    while select.select([incoming], [], [], max(0.0, deadline - monotonic()))[0]:
        received = os.read(incoming, 1 << 16)
        if not received:
            break
        text += received
    else:
        os.kill(child, signal.SIGKILL)
    os.close(incoming)
    _, status = os.waitpid(child, 0)
    if text:
        return json.loads(text)  # type: ignore[no-any-return]
    ended = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    return {"arrays": [], "flags": [], "error": "", "signal": ended, "late": ended == signal.SIGKILL}


def _child(program: str, outgoing: int, names: Mapping[str, Any], seconds: float) -> None:
    try:
        silence = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(silence, stream)
        faulthandler.disable()
        signal.alarm(int(2 * seconds) + 1)
        os.write(outgoing, json.dumps(told(program, names)).encode())
    finally:
        os._exit(0)


def told(program: str, names: Mapping[str, Any]) -> dict[str, Any]:
    """What a program prints, as arrays and flags, or the error that ends it.

    >>> told("import numpy as np; print(np.ones(2)); print(True); print(x[3])", {"x": [0]})
    {'arrays': [{'shape': [2], 'dtype': 'float64', 'cells': ['1.0', '1.0']}], 'flags': [True], \
'error': 'IndexError: list index out of range', 'signal': 0, 'late': False}
    """
    shown: list[Any] = []
    answer: dict[str, Any] = {"arrays": [], "flags": [], "error": "", "signal": 0, "late": False}
    scope = {**names, "print": lambda *values, **_: shown.extend(values), "__name__": "__main__"}
    try:
        exec(compile(program, "<reproducer>", "exec"), scope)
    except Exception as error:  # it is what is looked for, or what is in its way
        answer["error"] = f"{type(error).__name__}: {error}"
    for value in shown:
        if isinstance(value, bool):
            answer["flags"].append(value)
        else:
            answer["arrays"] += [_array(part) for part in (value if isinstance(value, tuple) else (value,))]
    return answer


def _array(value: Any) -> dict[str, Any]:
    numpy = sys.modules["numpy"]
    for name in ("detach", "cpu", "get"):  # of PyTorch's tensors, on any device, and of CuPy's arrays
        value = getattr(value, name)() if hasattr(value, name) and not isinstance(value, dict) else value
    array = numpy.asarray(value)
    cells = [repr(cell) for cell in array.ravel()[:MOST_CELLS].tolist()]
    return {"shape": list(array.shape), "dtype": str(array.dtype), "cells": cells}


def import_first(program: str) -> None:
    """What a program imports, once for all copies; not libraries with threads, which a copy would lack."""
    lines = [line for line in program.splitlines() if line.startswith(("import ", "from "))]
    if not any(name in line for line in lines for name in ("torch", "jax", "onnx", "cupy")):
        with suppress(Exception):  # the program will meet it, too
            exec("\n".join(lines), {})


if __name__ == "__main__":
    request = json.load(sys.stdin)
    import_first(request["programs"][0])
    for answer in replay_programs(request["programs"], request["seconds"], {}):
        print(json.dumps(answer), flush=True)
