"""Systems other than Linux, as far as they can be imitated here: what they lack is taken away."""

import os
import re
import subprocess
import sys
from collections.abc import Iterable

from gradspec.system import machine

WINDOWS = """
import ctypes, importlib, os, signal, sys
for module in "multiprocessing.connection subprocess tempfile flint ml_dtypes numpy safetensors.numpy".split():
    importlib.import_module(module)  # they are made for Windows, too, and ask where they are

load = ctypes.CDLL
def library(name, *rest, **more):
    if name is None:
        raise TypeError("Windows has no such library")
    return load(name, *rest, **more)

ctypes.CDLL = library
lacking = "fork geteuid killpg register_at_fork sched_getaffinity sched_setaffinity sysconf waitid O_NONBLOCK"
for name in lacking.split():
    delattr(os, name)
del signal.SIGKILL, signal.SIGSTOP
sys.modules["fcntl"] = sys.modules["resource"] = None
sys.platform = "win32"

import numpy as np
import gradspec as gs

x = np.ones((1, 4, 4), np.float32)
w = np.ones((1, 1, 3, 3), np.float32)
"""

WHAT_RUNS = {
    "operators": "gs.max_pool2d(x, 2).tolist() == [[[1, 1], [1, 1]]]",
    "graphs": "gs.compile(lambda x: gs.relu(gs.conv2d(x, w)), gs.f32[1, 4, 4])(x).tolist() == [[[9, 9], [9, 9]]]",
    "plans": "{s.task for s in gs.compile(lambda x: gs.max_pool2d(x, 2), gs.f32[1, 4, 4]).plan.steps} == {None}",
    "derivatives": "gs.grad(lambda x: gs.sum(gs.conv2d(x, w)))(x)[0, 1, 1] == 4",
    "bounds": "gs.bounds(gs.trace(lambda x: gs.conv2d(x, w), gs.f32[1, 4, 4]), x, x).upper.min() >= 9",
    "the judge": "gs.conformance.meaning('max_pool', x, kernel_size=(2, 2)).judge(gs.max_pool(x, (2, 2))).passed",
}
REFUSALS = {
    "gs.compile(lambda x: x + x, gs.f32[2], backend='cpu')": 'this system is win32; .* backend="numpy"',
    "gs.conformance.check('native', cases=1)": "this system is Windows; judge a kernel in this process instead",
}


def on_windows(lines: Iterable[str]) -> list[str]:
    """What is printed by a process that lacks what Windows lacks."""
    program = [sys.executable, "-c", WINDOWS + "\n".join(lines)]
    return subprocess.run(program, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()


def test_windows_has_the_numpy_backend_by_itself():
    printed = on_windows(f"print(bool({expression}))" for expression in WHAT_RUNS.values())
    assert dict(zip(WHAT_RUNS, printed, strict=True)) == dict.fromkeys(WHAT_RUNS, "True")


def test_windows_is_told_what_it_lacks():
    printed = on_windows(f"try: {call}\nexcept gs.UnsupportedError as error: print(error)" for call in REFUSALS)
    assert all(map(re.search, REFUSALS.values(), printed)), printed
    assert len(printed) == len(REFUSALS)


def test_where_affinity_is_not_told_all_processors_count(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 12)
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert machine.processors() == machine.machine()["cores"] == 12
