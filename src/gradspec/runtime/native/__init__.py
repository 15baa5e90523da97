"""Machine code that the runtime itself needs, as LLVM's intermediate code."""
