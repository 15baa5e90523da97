"""The pooling kernels by name: ``operation:format``."""

from gradspec.backends.cpu.kernels.memory import FORMATS
from gradspec.backends.cpu.kernels.soft import soft_mean, soft_spread, soft_value
from gradspec.backends.cpu.kernels.target import kernel_code
from gradspec.backends.cpu.kernels.ties import tied_cells
from gradspec.backends.cpu.kernels.values import max_value, sum_value
from gradspec.backends.cpu.kernels.winners import max_winners, recorded_winners

KERNELS = {
    "max": max_value,
    "winners": max_winners,
    "tape": recorded_winners,
    "ties": tied_cells,
    "sum": sum_value,
    "soft": soft_value,
    "soft_mean": soft_mean,
    "soft_spread": soft_spread,
}


def build(name: str) -> str:
    """LLVM's intermediate code of a kernel, whose entry is ``kernel``."""
    operation, form = name.split(":")
    return kernel_code(KERNELS[operation](FORMATS[form]))
