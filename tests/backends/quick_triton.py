"""Triton's interpreter without half of its work, with bfloat16 as on a GPU, and with a check of what kernels claim of
addresses.

Whenever a kernel calls a function, it puts its own operators in the place of Triton's, though they have been there
since the kernel was launched: the functions of one module see one ``triton.language``. Those of Triton's own modules
see another, whose operators it never puts back, so that the first of their calls does for all.
"""

from math import nan

import numpy as np
import pytest
import triton.language as tl
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpretedFunction, ReduceOps

from gradspec import bf16
from gradspec.backends.triton import plans, pool, pool_kernels

_call = InterpretedFunction.__call__


_patched_modules = {pool_kernels.__name__}


def _call_quickly(self, *args, **kwargs):
    if self.fn.__module__ in _patched_modules:
        return self.rewrite()(*args, **kwargs)
    _patched_modules.add(self.fn.__module__)
    return _call(self, *args, **kwargs)


_np_dtypes = {}


def _np_dtype(dtype, find=interpreter._get_np_dtype):
    """By name: Triton makes a table of all whenever it looks for one."""
    name = dtype.scalar.name
    if name not in _np_dtypes:
        _np_dtypes[name] = find(dtype)
    return _np_dtypes[name]


_FORMATS = {tl.bfloat16: bf16.numpy, tl.float32: np.dtype(np.float32)}


def _convert_float(data, source, target, rounding_mode, convert=interpreter._convert_float):
    """bfloat16 as on a GPU: Triton's interpreter cuts numbers off to it, and reads subnormal ones wrongly."""
    if source not in _FORMATS or target not in _FORMATS:
        return convert(data, source, target, rounding_mode)
    found = data.view(_FORMATS[source]).astype(_FORMATS[target])
    return found.view(np.uint16 if target == tl.bfloat16 else np.uint32)


_WIDE = {"add": np.add, "sub": np.subtract, "mul": np.multiply}


def _require_no_overflow(self, lhs, rhs, operator):
    """In two steps of NumPy: those of Triton took nearly half of the time."""
    dtype = lhs.type.scalar
    if dtype.int_bitwidth < 64:
        found = _WIDE[operator.__name__](lhs.handle.data.astype(np.int64), rhs.handle.data.astype(np.int64))
        lowest, largest = dtype.get_int_min_value(), dtype.get_int_max_value()
        assert lowest <= found.min() <= found.max() <= largest, f"{dtype} overflows"


_blocks = {}


def _init_block(self, element_ty, shape, init=tl.block_type.__init__):
    """What follows from a shape and a type, worked out once."""
    sizes = tuple(getattr(size, "value", size) for size in shape)
    if (element_ty.name, sizes) not in _blocks:
        init(self, element_ty, shape)
        self.shape, self.numel = _blocks.setdefault(sizes, (self.shape, self.numel))
        _blocks[element_ty.name, sizes] = self.name
    self.element_ty, self.name = element_ty, _blocks[element_ty.name, sizes]
    self.shape, self.numel = _blocks[sizes]


_shapes = {}


def _init_tensor(self, handle, type, init=tl.tensor.__init__):
    key = tuple(type.shape) if type.is_block() else ()
    if key not in _shapes:
        init(self, handle, type)
        _shapes[key] = self.shape, self.numel
    self.handle, self.type, self.dtype = handle, type, type.scalar
    self.shape, self.numel = _shapes[key]


def _broadcast(self, lhs, rhs, broadcast=TritonSemantic.broadcast_impl_value):
    is_done = lhs.type.is_block() and rhs.type.is_block() and lhs.type.shape is rhs.type.shape
    return (lhs, rhs) if is_done else broadcast(self, lhs, rhs)


def _filled(device, allocator=plans.allocator):
    """Memory that shows where nothing is written."""
    make = allocator(device)
    return lambda shape, strides, dtype: make(shape, strides, dtype).fill_(nan if dtype.is_floating_point else 99)


def _multiple_of(x, values):
    """On a GPU vectors are read by this; the interpreter would believe anything."""
    data = x.handle.data.astype(np.int64)
    if isinstance(values, list):  # of the second axis, along which all numbers follow each other
        data, values = data[:, :1], values[1]
        assert (np.diff(x.handle.data.astype(np.int64)) * x.handle.data.shape[1] == values).all()
    assert not (data % int(getattr(values, "value", values))).any()
    return x


def _patched(lang, scope, patch=interpreter._patch_lang_core):
    patch(lang, scope)
    scope.set_attr(lang, "multiple_of", _multiple_of)


def _reduced(self, input):
    """States along an axis, joined one after another as Triton's interpreter does, but those of other axes at once."""
    assert self.axis is not None
    assert not self.keep_dims
    rows = [[self.to_tensor(row, t.dtype) for row in np.moveaxis(t.handle.data, self.axis, 0)] for t in input]
    found, *others = zip(*rows, strict=True)
    for other in others:
        found = self.combine_fn.fn(*found, *other)
        found = (found,) if len(input) == 1 else found
    return found


def speed_up(put):
    """Put these functions in the place of Triton's: ``put`` is ``setattr``, or a test's own.

    The interpreter's time goes with the number of programs, not with that of lanes, so these are many.
    """
    put(InterpretedFunction, "__call__", _call_quickly)
    put(interpreter, "_patch_lang_core", _patched)
    put(interpreter, "_get_np_dtype", _np_dtype)
    put(interpreter, "_convert_float", _convert_float)
    put(ReduceOps, "generic_reduce", _reduced)
    put(TritonSemantic, "binary_op_sanitize_overflow_impl", _require_no_overflow)
    put(TritonSemantic, "broadcast_impl_value", _broadcast)
    put(tl.block_type, "__init__", _init_block)
    put(tl.tensor, "__init__", _init_tensor)
    put(pool, "LANES", 1024)
    put(plans, "allocator", _filled)
    plans.operator.cache_clear()


@pytest.fixture
def quick_interpreter(monkeypatch):
    speed_up(monkeypatch.setattr)
