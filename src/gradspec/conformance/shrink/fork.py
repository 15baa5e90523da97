"""What becomes of a process that makes a call: tried in a child, so that this one lives on."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from time import monotonic, sleep
from typing import NoReturn

CAN_FORK = sys.platform == "linux"
"""Elsewhere there is no such thing, or libraries do not survive it."""
LOOKS = 0.001
"""Seconds between two looks at a child."""


def fate(action: Callable[[], object], seconds: float) -> str:
    """``crash`` if an action ends its process, ``hang`` if it has not ended within so many seconds, or nothing.

    >>> fate(lambda: 1 / 0, 5), fate(os.abort, 5) if CAN_FORK else "crash"
    ('', 'crash')
    """
    if not CAN_FORK:
        return ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that other threads are not in the child: the action needs none
        child = os.fork()
    if child == 0:
        _act(action, seconds)
    deadline = monotonic() + seconds
    while monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return "crash" if status else ""
        sleep(LOOKS)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "hang"


def _act(action: Callable[[], object], seconds: float) -> NoReturn:
    """Act in silence and end; by a clock of its own too, for nobody may be left to wait for the child."""
    status = 1
    try:
        silence = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(silence, stream)
        faulthandler.disable()
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, 2 * seconds + 1)
        with suppress(Exception):
            action()
        status = 0
    finally:
        os._exit(status)
