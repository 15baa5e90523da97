# ruff: noqa
from gradspec.codegen.language import *
from gradspec.codegen.translation import SIDE_BY_SIDE, Module
