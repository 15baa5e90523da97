"""Triton's interpreter without half of its work, and with a check of what kernels claim of addresses.

Whenever a kernel calls a function, it puts its own operators in the place of Triton's, though they have been there
since the kernel was launched: the functions of one module see one ``triton.language``.
"""

from math import nan

import numpy as np
import pytest
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpretedFunction

from gradspec.backends.triton import plans, pool, pool_kernels

_call = InterpretedFunction.__call__


def _call_quickly(self, *args, **kwargs):
    is_ours = self.fn.__globals__ is vars(pool_kernels)
    return self.rewrite()(*args, **kwargs) if is_ours else _call(self, *args, **kwargs)


def _filled(device, allocator=plans.allocator):
    """Memory that shows where nothing is written."""
    make = allocator(device)
    return lambda shape, strides, dtype: make(shape, strides, dtype).fill_(nan if dtype.is_floating_point else 99)


def _multiple_of(x, values):
    """On a GPU vectors are read by this; the interpreter would believe anything."""
    assert not (x.handle.data.astype(np.int64) % int(getattr(values, "value", values))).any()
    return x


def _patched(lang, scope, patch=interpreter._patch_lang_core):
    patch(lang, scope)
    scope.set_attr(lang, "multiple_of", _multiple_of)


@pytest.fixture
def quick_interpreter(monkeypatch):
    """Its time goes with the number of programs, not with that of lanes, so these are many."""
    monkeypatch.setattr(InterpretedFunction, "__call__", _call_quickly)
    monkeypatch.setattr(interpreter, "_patch_lang_core", _patched)
    monkeypatch.setattr(pool, "LANES", 1024)
    monkeypatch.setattr(plans, "allocator", _filled)
    plans.operator.cache_clear()
