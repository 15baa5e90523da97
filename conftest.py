"""Triton's interpreter runs the kernels for GPUs, on CPU tensors; without Triton, as on macOS, they are left out.
Programs that show defects of other libraries are run by their test alone. Examples in docstrings know `np` and `gs`."""

import os
from importlib.util import find_spec

import numpy as np
import pytest

import gradspec as gs

os.environ.setdefault("TRITON_INTERPRET", "1")  # which Triton reads when it is imported
collect_ignore_glob = ["docs/findings/*.py", *([] if find_spec("triton") else ["src/gradspec/backends/triton/*"])]


@pytest.fixture(autouse=True)
def usual_imports(request, doctest_namespace, monkeypatch):
    """What everyone who reads a docstring has imported; a page says all that it imports."""
    if request.node.path.suffix == ".py":
        monkeypatch.setitem(doctest_namespace, "np", np)
        monkeypatch.setitem(doctest_namespace, "gs", gs)
