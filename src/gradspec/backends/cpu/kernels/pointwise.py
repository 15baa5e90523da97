"""Pointwise chains: one kernel for each float format runs any program over blocks that stay in the cache.

The words of ``args`` are
- the number of cells, the cells of a block, the word where the instructions begin, their number, and how many of them,
  the first ones, run for the first block only;
- the addresses of the arrays;
- the places: ``origin, step, local``; if ``local`` is 1, a block begins ``origin`` bytes into the workspace, and else,
  if its first cell is ``s``, ``s·step`` bytes after the address that the word ``origin`` holds;
- the instructions, whose operands and results are places, named by the word where they are described;
- views, of arrays that are not contiguous: the word of the address, the number of axes, sizes, and strides in bytes.

Every instruction is a loop over one block. Contiguous arrays are read and written where they lie; of others a block
lies in the workspace, where further instructions bring it or fetch it from. A result lies in no place that its
instruction reads, so that the loops vectorise. Products and sums are made by different loops, so that each is rounded.
"""

from __future__ import annotations

from math import sqrt
from typing import Any

import numba
from llvmlite import ir
from numba import int64, types, void
from numba.extending import intrinsic

from gradspec.backends.cpu.kernels.opcodes import (
    ABS,
    ADD,
    CLAMP,
    COPY,
    DIV,
    FIRST_BINARY,
    FIRST_TRANSFER,
    GATE,
    GATHER,
    INSTRUCTION_WORDS,
    LEAKY_RELU,
    MAX_SHARE,
    MAXIMUM,
    MINIMUM,
    MUL,
    NEG,
    RELU,
    SCALE,
    SQRT,
    STEP,
    SUB,
    WITHIN,
)

SCALARS = {"f32": types.float32, "f64": types.float64}
WORDS = types.CPointer(int64)
KERNEL = void(WORDS, types.intp, types.intp, types.CPointer(types.uint8))

njit: Any = numba.njit  # their stubs know neither all of their options nor what an intrinsic takes
cfunc: Any = numba.cfunc


def build(name: str) -> Any:
    """The kernel called ``"program:f32"`` or ``"program:f64"``."""
    return _program(SCALARS[name.removeprefix("program:")])


def _part(signature: Any) -> Any:
    """A part of a kernel, for these types only and not to be called from Python, which halves the time to compile."""
    return njit(signature, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)


# --- what Numba has no words for --------------------------------------------------------------------------------------


def _emits(result: Any, operands: Any, emit: Any) -> Any:
    """The function for which ``emit(builder, LLVM type of the result, *operands)`` writes the code."""

    def code(context, builder, signature, args):
        return emit(builder, context.get_value_type(result), *args)

    signature = result(*operands)
    if len(operands) == 1:
        return intrinsic(lambda typing, a: (signature, code))
    return intrinsic(lambda typing, a, b: (signature, code))


def _pointer(scalar: Any) -> Any:
    """A pointer from an address."""
    return _emits(types.CPointer(scalar), [int64], lambda builder, kind, address: builder.inttoptr(address, kind))


def _maximum(scalar: Any) -> Any:
    """The larger of two numbers, NaN if one is; 0 exceeds −0."""

    def emit(builder, kind, a, b):
        larger = builder.module.declare_intrinsic("llvm.maximum", [kind], ir.FunctionType(kind, [kind, kind]))
        return builder.call(larger, [a, b])

    return _emits(scalar, [scalar, scalar], emit)


words_at = _pointer(int64)
address_of = _emits(int64, [types.CPointer(types.uint8)], lambda builder, kind, p: builder.ptrtoint(p, kind))
float_of_bits = _emits(types.float64, [int64], lambda builder, kind, bits: builder.bitcast(bits, kind))


# --- loops over one block ---------------------------------------------------------------------------------------------


def _unary(scalar: Any) -> Any:
    zero, one = scalar(0), scalar(1)
    cells = types.CPointer(scalar)

    @_part(void(int64, cells, cells, int64, scalar, scalar, scalar))
    def run(opcode, y, x, n, p, q, r):
        if opcode == COPY:
            for i in range(n):
                y[i] = x[i]
        elif opcode == NEG:
            for i in range(n):
                y[i] = -x[i]
        elif opcode == ABS:
            for i in range(n):
                y[i] = abs(x[i])
        elif opcode == SQRT:
            for i in range(n):
                y[i] = sqrt(x[i])
        elif opcode == SCALE:
            for i in range(n):
                y[i] = x[i] * p
        elif opcode == RELU:
            for i in range(n):
                y[i] = zero if x[i] <= zero else x[i]
        elif opcode == LEAKY_RELU:
            for i in range(n):
                y[i] = p * x[i] if x[i] <= zero else x[i]
        elif opcode == CLAMP:
            for i in range(n):
                above = p if x[i] < p else x[i]
                y[i] = q if above > q else above
        elif opcode == STEP:
            for i in range(n):
                y[i] = p if x[i] < zero else (q if x[i] == zero else r)
        elif opcode == WITHIN:
            for i in range(n):
                y[i] = zero if (x[i] < p) | (x[i] > q) else one

    return run


def _binary(scalar: Any) -> Any:
    zero, half, one = scalar(0), scalar(0.5), scalar(1)
    cells, maximum = types.CPointer(scalar), _maximum(scalar)

    @_part(void(int64, cells, cells, cells, int64))
    def run(opcode, y, a, b, n):
        if opcode == ADD:
            for i in range(n):
                y[i] = a[i] + b[i]
        elif opcode == SUB:
            for i in range(n):
                y[i] = a[i] - b[i]
        elif opcode == MUL:
            for i in range(n):
                y[i] = a[i] * b[i]
        elif opcode == DIV:
            for i in range(n):
                y[i] = a[i] / b[i]
        elif opcode == MAXIMUM:
            for i in range(n):
                y[i] = maximum(a[i], b[i])
        elif opcode == MINIMUM:
            for i in range(n):
                y[i] = -maximum(-a[i], -b[i])
        elif opcode == MAX_SHARE:
            for i in range(n):
                above = (b[i] == b[i]) & (not a[i] <= b[i])  # a NaN exceeds every number
                below = (a[i] == a[i]) & (not b[i] <= a[i])
                y[i] = one if above else (zero if below else half)
        elif opcode == GATE:
            for i in range(n):
                product = a[i] * b[i]
                y[i] = zero if a[i] == zero else product

    return run


def _transfer(scalar: Any) -> Any:
    cells_at, width = _pointer(scalar), scalar.bitwidth // 8

    @_part(void(int64, int64, int64, int64, int64))
    def copy_row(target, target_stride, source, source_stride, n):
        if target_stride == width and source_stride == width:
            y, x = cells_at(target), cells_at(source)
            for i in range(n):
                y[i] = x[i]
        elif target_stride == width and source_stride == 0:
            y, number = cells_at(target), cells_at(source)[0]
            for i in range(n):
                y[i] = number
        else:
            for i in range(n):
                cells_at(target + i * target_stride)[0] = cells_at(source + i * source_stride)[0]

    @_part(void(int64, WORDS, int64, int64, int64, int64, WORDS))
    def run(opcode, args, at, local, start, n, position):
        """Cells ``start … start + n − 1`` of the view described at a word, to ``local`` or from there, row by row.

        ``position`` has room for the place of a row along every axis.
        """
        row, rank = args[args[at]], args[at + 1]
        sizes, strides = at + 2, at + 2 + rank
        last = rank - 1
        rest = start
        for axis in range(last, -1, -1):
            position[axis] = rest % args[sizes + axis]
            rest //= args[sizes + axis]
            if axis < last:
                row += position[axis] * args[strides + axis]
        size, stride, first = args[sizes + last], args[strides + last], position[last]
        while n > 0:
            count = min(n, size - first)
            if opcode == GATHER:
                copy_row(local, width, row + first * stride, stride, count)
            else:
                copy_row(row + first * stride, stride, local, width, count)
            n, local, first = n - count, local + count * width, 0
            for axis in range(last - 1, -1, -1):
                row += args[strides + axis]
                position[axis] += 1
                if position[axis] < args[sizes + axis]:
                    break
                row -= args[sizes + axis] * args[strides + axis]
                position[axis] = 0

    return run


# --- the program ------------------------------------------------------------------------------------------------------


def _program(scalar: Any) -> Any:
    unary, binary, transfer = _unary(scalar), _binary(scalar), _transfer(scalar)
    cells_at = _pointer(scalar)

    @_part(int64(WORDS, int64, int64, int64))
    def place(args, at, start, workspace):
        origin = args[at]
        return workspace + origin if args[at + 2] else args[origin] + start * args[at + 1]

    @cfunc(KERNEL, nopython=True, error_model="numpy")
    def kernel(args, lo, hi, workspace_pointer):
        size, block, first, length, once = args[0], args[1], args[2], args[3], args[4]
        workspace = address_of(workspace_pointer)
        for unit in range(lo, hi):
            start = unit * block
            n = min(block, size - start)
            for i in range(once if unit > lo else 0, length):
                at = first + i * INSTRUCTION_WORDS
                opcode, result = args[at], place(args, args[at + 1], start, workspace)
                if opcode >= FIRST_TRANSFER:
                    transfer(opcode, args, args[at + 2], result, start, n, words_at(workspace))
                    continue
                a = cells_at(place(args, args[at + 2], start, workspace))
                if opcode >= FIRST_BINARY:
                    b = cells_at(place(args, args[at + 3], start, workspace))
                    binary(opcode, cells_at(result), a, b, n)
                else:
                    p, q, r = float_of_bits(args[at + 4]), float_of_bits(args[at + 5]), float_of_bits(args[at + 6])
                    unary(opcode, cells_at(result), a, n, scalar(p), scalar(q), scalar(r))

    return kernel
