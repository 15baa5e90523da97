"""JAX compiles quickly where its results matter and its speed does not."""

from functools import partial
from importlib import import_module
from importlib.util import find_spec

import pytest


@pytest.fixture
def quick_jit(monkeypatch):
    if find_spec("jax"):
        jax, options = import_module("jax"), import_module("interop.quick_jax").QUICK
        monkeypatch.setattr(jax, "jit", partial(jax.jit, compiler_options=options))
