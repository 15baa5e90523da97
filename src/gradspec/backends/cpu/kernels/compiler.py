from gradspec.codegen.language import *
