"""Kernels for campaigns to meet: right, wrong and deadly ones, ``conformance.kernel_doubles:Crashing`` and so on."""

import ctypes
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

PR_SET_NAME = 15


class Right:
    """Max pooling without padding or dilation."""

    dtypes = ("f32",)

    def max_pool(self, x, kernel_size, stride):
        axes = tuple(range(-len(kernel_size), 0))
        windows = np.lib.stride_tricks.sliding_window_view(x, kernel_size, axes)
        steps = tuple(slice(None, None, step) for step in stride)
        batch = (slice(None),) * (x.ndim - len(kernel_size))
        return windows[(*batch, *steps)].max(axes)


class Wrong(Right):
    """Forgets the last window of long axes."""

    def max_pool(self, x, kernel_size, stride):
        y = super().max_pool(x, kernel_size, stride).copy()
        if y.size > 1:
            y.flat[-1] = y.flat[0]
        return y


def is_deadly(x):
    """About one array in eight, told by its bits."""
    return x.size > 0 and int(np.ascontiguousarray(x).view(np.uint32).sum(dtype=np.uint64)) * 0x9E3779B1 >> 20 & 7 == 0


class Crashing(Right):
    def max_pool(self, x, kernel_size, stride):
        if is_deadly(x):
            print("abandon ship", file=sys.stderr, flush=True)
            os.abort()
        return super().max_pool(x, kernel_size, stride)


class Overrunning(Right):
    """Aborts for axes of more than three cells."""

    def max_pool(self, x, kernel_size, stride):
        if x.size and x.shape[-1] > 3:
            os.abort()
        return super().max_pool(x, kernel_size, stride)


def leave(mark):
    """Have the test make a file, and wait for it: it looks for processes of this name."""
    before = Path("/proc/self/comm").read_text().strip()
    rename(Path(mark).parent.name)
    while not os.path.exists(mark):
        time.sleep(0.001)
    rename(before)


def rename(name):
    ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode(), 0, 0, 0)


class Hanging(Right):
    """Leaves a file, if one is named."""

    def max_pool(self, x, kernel_size, stride):
        if is_deadly(x):
            if mark := os.environ.get("TEST_MARK"):
                leave(mark)
            time.sleep(3600)
        return super().max_pool(x, kernel_size, stride)


class Unlucky(Right):
    """Killed once by somebody else, at a case that is right."""

    def max_pool(self, x, kernel_size, stride):
        mark = os.environ["TEST_MARK"]
        if is_deadly(x) and not os.path.exists(mark):
            leave(mark)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().max_pool(x, kernel_size, stride)


class Chatty(Right):
    """Prints what looks like an answer."""

    def max_pool(self, x, kernel_size, stride):
        print('{"judged": {}}', flush=True)
        return super().max_pool(x, kernel_size, stride)


class Rude(Right):
    """Raises what no terminal and no XML should be given as it is."""

    def max_pool(self, x, kernel_size, stride):
        raise RuntimeError("\x1b[31mred\x00 <tag> & \udcff 'β'")


class Unstartable:
    def __init__(self):
        raise RuntimeError("no licence")


class Ending:
    """Its process ends before it can be asked anything."""

    def __init__(self):
        os._exit(3)


def doubled(x):
    return x + x


def doubled_unless_one(x):
    """Judged by ``doubled``."""
    if len(x) == 1:
        os.kill(os.getpid(), signal.SIGSEGV)
    return x * 2


def kill_this_process_once(mark):
    """A task that ends its process, once."""
    if not os.path.exists(mark):
        with open(mark, "w"):
            os.kill(os.getpid(), signal.SIGKILL)
