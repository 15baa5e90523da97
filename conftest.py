"""Triton's interpreter runs the kernels for GPUs, on CPU tensors; without Triton, as on macOS, they are left out.
Programs that show defects of other libraries are run by their test alone."""

import os
from importlib.util import find_spec

os.environ.setdefault("TRITON_INTERPRET", "1")  # which Triton reads when it is imported
collect_ignore_glob = ["docs/findings/*.py", *([] if find_spec("triton") else ["src/gradspec/backends/triton/*"])]
