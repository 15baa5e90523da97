"""Kernels that apply an elementary function to every number of an array: ``exp:f32`` and the like."""

from gradspec.backends.cpu.kernels.compiler import lanes
from gradspec.backends.cpu.kernels.elementary import exp_of, log_of
from gradspec.backends.cpu.kernels.memory import FORMATS, pointer_to
from gradspec.backends.cpu.kernels.target import kernel_code

FUNCTIONS = {"exp": exp_of, "log": log_of}


def build(name):
    operation, form = name.split(":")
    number = FORMATS[form].computed
    function, to_numbers = FUNCTIONS[operation](number), pointer_to(number)

    def kernel(args, lo, hi, workspace):
        x, y = to_numbers(args[0]), to_numbers(args[1])
        for i in lanes(number, args[2]):
            y[i] = function(x[i])

    return kernel_code(kernel)
