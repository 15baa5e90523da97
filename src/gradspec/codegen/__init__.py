"""From Python functions to machine code.

``language`` has the words and types that kernels are written in, ``records`` the arguments that host and kernels share;
``translation`` writes LLVM's intermediate code, with ``instructions``; ``intrinsics``, ``formats`` and
``kernels.elementary`` are what kernels call. ``processor`` describes the machine, ``objects`` makes object code
for it, and ``cache`` keeps it. The host imports ``records``, ``processor``, ``cache`` and ``addresses`` only: the rest
needs LLVM, and is imported when something must be compiled.
"""
