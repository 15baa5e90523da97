from gradspec.codegen.language import *
from gradspec.codegen.types import *
