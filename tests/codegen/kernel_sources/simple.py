"""Small kernels for the tests of the kernel cache, each with what it does to a number."""

from llvmlite import ir

from gradspec.codegen.language import Intrinsic, Value, f64, i64
from gradspec.codegen.translation import kernel_code


def c_function(name):
    """A function of the C library, of one float64."""

    def emit(builder, x):
        known = builder.module.globals.get(name)
        function = known or ir.Function(builder.module, ir.FunctionType(f64.llvm, [f64.llvm]), name)
        return Value(f64, builder.call(function, [x.llvm]))

    return Intrinsic(emit)


exp, log1p, no_such_function = (c_function(name) for name in ("exp", "log1p", "no_such_function"))
whole = Intrinsic(lambda builder, x: Value(i64, builder.fptosi(x.llvm, i64.llvm)))


def step(n):
    return 1


def times_factorial(args, i, n):
    if n > 1:
        args[i] *= n
        times_factorial(args, i, n - 1)


def increment(args, lo, hi, workspace):
    for i in range(lo, hi):
        args[i] += step(i)


def decrement(args, lo, hi, workspace):
    for i in range(lo, hi):
        args[i] -= step(i)


def recursive(args, lo, hi, workspace):
    for i in range(lo, hi):
        n = args[i]
        args[i] = 1
        times_factorial(args, i, n)


def external(args, lo, hi, workspace):
    for i in range(lo, hi):
        args[i] = whole(exp(f64(args[i]))) + whole(log1p(f64(args[i])))


def foreign(args, lo, hi, workspace):
    for i in range(lo, hi):
        args[i] = whole(no_such_function(f64(args[i])))


KERNELS = {f.__name__: f for f in (increment, decrement, recursive, external, foreign)}


def build(name: str) -> str:
    return kernel_code(KERNELS[name.partition(":")[0]], i64)
