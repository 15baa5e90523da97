"""Small kernels for the tests of the kernel cache, each with what it does to a number."""

import math
from collections.abc import Callable

from numba import cfunc, njit, types
from numba.core.ccallback import CFunc

SIGNATURE = types.void(types.CPointer(types.int64), types.intp, types.intp, types.CPointer(types.uint8))

only_numba_has = types.ExternalFunction("numba_fptoui", types.uint64(types.float64))


@njit(error_model="numpy")
def step(n):
    return 1


@njit(error_model="numpy")
def factorial(n):
    return 1 if n <= 1 else n * factorial(n - 1)


@njit(error_model="numpy")
def whole_exp(n):
    return int(math.exp(float(n)))


def increment(args, lo, hi, workspace):
    for i in range(lo, hi):
        args[i] += step(i)


def decrement(args, lo, hi, workspace):
    for i in range(lo, hi):
        args[i] -= step(i)


def recursive(args, lo, hi, workspace):
    for i in range(lo, hi):
        args[i] = factorial(args[i])


def external(args, lo, hi, workspace):
    for i in range(lo, hi):
        args[i] = whole_exp(args[i]) + int(math.log1p(float(args[i])))


def raising(args, lo, hi, workspace):
    for i in range(lo, hi, args[0]):
        args[i] += 1


def foreign(args, lo, hi, workspace):
    for i in range(lo, hi):
        args[i] = only_numba_has(float(args[i]))


KERNELS: dict[str, Callable[..., None]] = {
    f.__name__: f for f in (increment, decrement, recursive, external, raising, foreign)
}


def build(name: str) -> CFunc:
    return cfunc(SIGNATURE, nopython=True, error_model="numpy")(KERNELS[name.partition(":")[0]])
