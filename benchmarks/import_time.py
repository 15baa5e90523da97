"""What ``import gradspec`` costs beyond ``import numpy``: medians over fresh processes, in milliseconds.

python benchmarks/import_time.py [runs]

The processes read compiled bytecode from a folder of their own, so that neither a read-only checkout nor
``PYTHONDONTWRITEBYTECODE`` adds the time to compile.
"""

import os
import subprocess
import sys
from statistics import median
from tempfile import TemporaryDirectory

CHILD = """
from time import perf_counter
start = perf_counter()
import numpy
middle = perf_counter()
import gradspec
print(middle - start, perf_counter() - middle)
"""


def one_run(bytecode: str) -> tuple[float, float]:
    """Milliseconds for numpy, then for gradspec after it, in one new process."""
    environment = os.environ | {"PYTHONPYCACHEPREFIX": bytecode, "PYTHONDONTWRITEBYTECODE": ""}
    command = [sys.executable, "-c", CHILD]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
    numpy, gradspec = (1e3 * float(seconds) for seconds in printed.split())
    return numpy, gradspec


def main(runs: int) -> None:
    with TemporaryDirectory() as bytecode:
        one_run(bytecode)  # writes the bytecode and fills the file cache
        numpy, gradspec = zip(*(one_run(bytecode) for _ in range(runs)), strict=True)
    print(f"median of {runs} processes")
    print(f"import numpy                  {median(numpy):6.1f} ms   ({min(numpy):.1f} to {max(numpy):.1f})")
    print(f"import gradspec after numpy   {median(gradspec):6.1f} ms   ({min(gradspec):.1f} to {max(gradspec):.1f})")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 21)
