# ruff: noqa
from gradspec.codegen.types import *
from gradspec.codegen.language import *
