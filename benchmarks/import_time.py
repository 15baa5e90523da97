"""What ``import gradspec`` costs beyond ``import numpy``: medians over fresh processes, in milliseconds.

python benchmarks/import_time.py [runs]
python benchmarks/import_time.py models  # milliseconds of CPU per node to import a PyTorch model and to derive it

The processes read compiled bytecode from a folder of their own, so that neither a read-only checkout nor
``PYTHONDONTWRITEBYTECODE`` adds the time to compile.
"""

import os
import subprocess
import sys
from statistics import median
from tempfile import TemporaryDirectory
from time import process_time

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


def models() -> None:
    """A transformer and a network whose layers see all layers before them, whose derivative has many buffers."""
    import torch
    from torch import nn

    import gradspec as gs

    class Dense(nn.Module):
        def __init__(self, layers: int) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Conv2d(4 * n + 4, 4, 3, padding=1) for n in range(layers))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = torch.cat([x, torch.relu(layer(x))], 1)
            return x

    block = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    encoder = nn.TransformerEncoder(block, 12, enable_nested_tensor=False)
    for model, x in ((encoder, torch.zeros(2, 16, 64)), (Dense(80), torch.zeros(1, 4, 8, 8))):
        times, start = [], process_time()
        graph = gs.from_torch(model.eval(), x)
        for step in (lambda g: g.vjp(), lambda g: g.vjp().simplify(), lambda g: gs.compile(g.vjp())):
            times.append(process_time() - start)
            start = process_time()
            step(graph)
        times.append(process_time() - start)
        said = zip(("import", "vjp", "vjp and simplify", "vjp and compile"), times, strict=True)
        per_node = ", ".join(f"{name} {1e3 * seconds / len(graph.nodes):.2f}" for name, seconds in said)
        print(f"{type(model).__name__}, {len(graph.nodes)} nodes, ms of CPU per node: {per_node}")


def main(runs: int) -> None:
    with TemporaryDirectory() as bytecode:
        one_run(bytecode)  # writes the bytecode and fills the file cache
        numpy, gradspec = zip(*(one_run(bytecode) for _ in range(runs)), strict=True)
    print(f"median of {runs} processes")
    print(f"import numpy                  {median(numpy):6.1f} ms   ({min(numpy):.1f} to {max(numpy):.1f})")
    print(f"import gradspec after numpy   {median(gradspec):6.1f} ms   ({min(gradspec):.1f} to {max(gradspec):.1f})")


if __name__ == "__main__":
    models() if sys.argv[1:] == ["models"] else main(int(sys.argv[1]) if len(sys.argv) > 1 else 21)
