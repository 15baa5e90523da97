"""Kernels that apply an elementary function to every number of an array: ``exp:f32`` and the like."""

from gradspec.backends.cpu.kernels import elementary
from gradspec.backends.cpu.kernels.compiler import inlined, lanes
from gradspec.backends.cpu.kernels.memory import FORMATS, float_of_bits, pointer_to
from gradspec.backends.cpu.kernels.target import kernel_code


def power_of(number):
    """With an exponent that the format has."""
    power = elementary.power_of(number)

    @inlined
    def function(x, q):
        return power(x, q, number(0))

    return function


FUNCTIONS = {
    "exp": elementary.exp_of,
    "any_exp": elementary.any_exp_of,
    "log": elementary.log_of,
    "any_log": elementary.any_log_of,
    "log1p": elementary.log1p_of,
    "tanh": elementary.tanh_of,
    "sigmoid": elementary.sigmoid_of,
    "normal_cdf": elementary.normal_cdf_of,
    "normal_density": elementary.normal_density_of,
    "softplus": elementary.softplus_of,
    "power": power_of,
}
WITH_PARAMETER = {"softplus", "power"}


def build(name):
    operation, form = name.split(":")
    number = FORMATS[form].computed
    function, to_numbers = FUNCTIONS[operation](number), pointer_to(number)

    def kernel(args, lo, hi, workspace):
        x, y = to_numbers(args[0]), to_numbers(args[1])
        for i in lanes(number, args[2]):
            y[i] = function(x[i])

    def kernel_with_parameter(args, lo, hi, workspace):
        x, y, parameter = to_numbers(args[0]), to_numbers(args[1]), float_of_bits(args[3])
        for i in lanes(number, args[2]):
            y[i] = function(x[i], number(parameter))

    return kernel_code(kernel_with_parameter if operation in WITH_PARAMETER else kernel)
