# ruff: noqa
from gradspec.codegen.formats import FORMATS, Format
from gradspec.codegen.intrinsics import (address_of, call, float_function, float_of_bits, maximum, multiply_add, pointer_to, prefetch, same_bits)
Format.functions = lambda self: (self.widen, self.narrow)
