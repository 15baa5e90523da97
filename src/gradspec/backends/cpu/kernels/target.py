# ruff: noqa
from gradspec.codegen.processor import processor
from gradspec.codegen.translation import kernel_code as new_code
from gradspec.codegen.language import i64
def kernel_code(function): return new_code(function, i64)
def vector_bytes(features): return processor().loop_bytes
