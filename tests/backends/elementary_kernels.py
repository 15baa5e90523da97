"""Kernels that apply an elementary function to every number of an array: ``exp:f32`` and the like."""

from dataclasses import dataclass

from gradspec.codegen.formats import FORMATS
from gradspec.codegen.kernels import elementary
from gradspec.codegen.language import inlined, lanes, number_of
from gradspec.codegen.records import Operand, Record
from gradspec.codegen.translation import kernel_code


@dataclass(frozen=True)
class Arguments(Record):
    x: Operand
    y: Operand
    size: int
    parameter: float


@inlined
def power(x, q):
    """With an exponent that the format has."""
    return elementary.power(x, q, number_of(x)(0))


FUNCTIONS = {
    "exp": elementary.exp_of_negative,
    "any_exp": elementary.exp,
    "log": elementary.log_of_positive,
    "any_log": elementary.log,
    "log1p": elementary.log1p,
    "tanh": elementary.tanh,
    "sigmoid": elementary.sigmoid,
    "normal_cdf": elementary.normal_cdf,
    "normal_density": elementary.normal_density,
    "softplus": elementary.softplus,
    "power": power,
}
WITH_PARAMETER = {"softplus", "power"}


def build(name):
    operation, form = name.split(":")
    kernel = apply_with_parameter if operation in WITH_PARAMETER else apply
    return kernel_code(kernel, Arguments, FUNCTIONS[operation], FORMATS[form])


def apply(function, form, args, lo, hi, workspace):
    x, y = form.computed_at(args.x), form.computed_at(args.y)
    for i in lanes(form.computed, args.size):
        y[i] = function(x[i])


def apply_with_parameter(function, form, args, lo, hi, workspace):
    x, y, parameter = form.computed_at(args.x), form.computed_at(args.y), form.computed(args.parameter)
    for i in lanes(form.computed, args.size):
        y[i] = function(x[i], parameter)
