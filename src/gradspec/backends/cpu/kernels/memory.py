from gradspec.codegen.formats import Format

Format.functions = lambda self: (self.widen, self.narrow)
