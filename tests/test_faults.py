"""A full disk, few files, little memory, no home: a clear line each, and nothing that was there is lost."""

import os
import resource
import subprocess
import sys
from contextlib import contextmanager
from io import StringIO

import numpy as np
import pytest
from rich.console import Console

import gradspec as gs
from gradspec.conformance.command import INCOMPLETE, CheckRequest, perform
from gradspec.conformance.model.run import Run, Tally
from patience import PATIENCE


@contextmanager
def full_disk():
    """No file may grow, which is told like a disk that is full: by an error of the system."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_graph_is_saved_as_a_whole_or_not_at_all(tmp_path):
    file = tmp_path / "graph.gs"
    gs.trace(lambda x: x + 1.0, gs.f32[2]).save(file)
    before = file.read_bytes()
    larger = gs.trace(lambda x: x + np.ones(1000, np.float32), gs.f32[1000])
    with full_disk(), pytest.raises(OSError, match="could not be written"):
        larger.save(file)
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]


def test_a_report_that_cannot_be_written_is_told_and_the_others_are_tried(tmp_path, capsys):
    files = {f"{kind}_file": str(tmp_path / kind) for kind in ("json", "junit")}
    console = Console(file=StringIO(), width=200)
    run = Run("native", "gradspec", "a machine", seed=1, cases=1, tally=Tally())
    with full_disk():
        code = perform(CheckRequest("native", {}, **files), console, judge=lambda target, **_: run)
    written = " ".join(console.file.getvalue().split())
    assert code == INCOMPLETE
    assert written.count("could not be written: File too large") == 2
    assert list(tmp_path.iterdir()) == []


CHECK = ("check", "native", "--ops", "max_pool", "--modes", "value", "--cases", "3", "--jobs", "1", "--seed", "1")
FAULTS = {
    "64 open files": "ulimit -n 64",
    "2 GB of address space": "ulimit -v 2097152",
    "a home that cannot be written": "export HOME=/proc XDG_CACHE_HOME= GRADSPEC_CACHE_DIR=",
    "no shared memory": "mount -t tmpfs -o ro,size=4k none /dev/shm",
    "a full folder for temporary files": "export TMPDIR=$(mktemp -d) && mount -t tmpfs -o ro,size=4k none $TMPDIR",
}


@pytest.mark.exhaustive  # minutes, as kernels are compiled and processes started
@pytest.mark.parametrize("fault", FAULTS)
def test_a_run_is_complete_in_spite_of(fault):
    apart = ["unshare", "--mount"] if "mount" in FAULTS[fault] else []
    if apart and subprocess.run([*apart, "true"], capture_output=True).returncode:
        pytest.skip("mounting takes rights that this process lacks")
    command = [*apart, "bash", "-c", f'{FAULTS[fault]} && exec "$0" -m gradspec "$@"', sys.executable, *CHECK]
    result = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=os.environ)
    assert result.returncode == 0, result.stderr
    assert "No defect found in 3 judged cases." in result.stdout
    assert "Traceback" not in result.stderr
