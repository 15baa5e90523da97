"""The Triton kernels of pooling as a target, ``conformance.triton_kernels:Pooling``, run by Triton's interpreter.

Triton reads ``TRITON_INTERPRET=1`` from the environment when it is imported.
"""

import warnings

from backends.quick_triton import speed_up
from gradspec.backends.triton import pool
from gradspec.ops.pool import AvgPool, AvgTranspose, MaxPool, adaptive_windows, sliding_windows
from gradspec.ops.smooth_pool import SmoothPool

WINDOW = ("kernel_size", "stride", "padding", "dilation", "ceil_mode")


def attributes_of(record, x, attributes):
    """The attribute record of an operator on ``x``."""
    others = {name: value for name, value in attributes.items() if name not in (*WINDOW, "output_size")}
    if "output_size" in attributes:
        return record(**adaptive_windows("pool", x, attributes["output_size"]), **others)
    return record(**sliding_windows("pool", x, **{name: attributes[name] for name in WINDOW}), **others)


def run(name, attrs, *tensors):
    results = pool.kernel(name, attrs)(*tensors)
    return results if len(results) > 1 else results[0]


class Pooling:
    array, strict, threadsafe = "torch", True, False
    dtypes, ranks = ("f32", "f16", "bf16", "f64"), (1, 2, 3)

    def __init__(self):
        speed_up(setattr)
        warnings.simplefilter("ignore", RuntimeWarning)  # of NumPy, which interprets the kernels

    def max_pool(self, x, **attributes):
        return run("max_pool", attributes_of(MaxPool, x, attributes), x)

    def max_pool_jvp(self, x, dx, **attributes):
        return run("max_pool_gather", attributes_of(MaxPool, x, attributes), x, dx)

    def max_pool_vjp(self, x, g, **attributes):
        return run("max_pool_scatter", attributes_of(MaxPool, x, attributes), x, g)

    def avg_pool(self, x, **attributes):
        return run("avg_pool", attributes_of(AvgPool, x, attributes), x)

    def avg_pool_jvp(self, x, dx, **attributes):
        return self.avg_pool(dx, **attributes)

    def avg_pool_vjp(self, x, g, **attributes):
        attrs = attributes_of(AvgPool, x, attributes)
        return run("avg_pool_transpose", AvgTranspose(**vars(attrs), sizes=attrs.window(x).sizes), g)

    def smooth_max_pool(self, x, **attributes):
        return run("smooth_max_pool", attributes_of(SmoothPool, x, attributes), x)

    def smooth_max_pool_jvp(self, x, dx, **attributes):
        return run("smooth_max_mean", attributes_of(SmoothPool, x, attributes), x, dx)

    def smooth_max_pool_vjp(self, x, g, **attributes):
        return run("smooth_max_spread", attributes_of(SmoothPool, x, attributes), x, g)

    adaptive_max_pool, adaptive_max_pool_jvp, adaptive_max_pool_vjp = max_pool, max_pool_jvp, max_pool_vjp
    adaptive_avg_pool, adaptive_avg_pool_jvp, adaptive_avg_pool_vjp = avg_pool, avg_pool_jvp, avg_pool_vjp
