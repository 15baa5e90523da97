"""The pooling kernels by name: ``operation:format``, where the format may be ``stored f16``: computed with as it is."""

from __future__ import annotations

from functools import partial
from typing import Any

from gradspec.backends.cpu.pool.arguments import PoolArguments
from gradspec.backends.cpu.pool.kernels.smooth import Derivative, SmoothCotangent, SmoothMaximum
from gradspec.backends.cpu.pool.kernels.ties import TiedCotangent, TiedShares, WithTies
from gradspec.backends.cpu.pool.kernels.values import Average, MaxOfHalves, MaxValue
from gradspec.backends.cpu.pool.kernels.walk import kernel
from gradspec.backends.cpu.pool.kernels.winners import FromTape, WithTangents, WithWinners
from gradspec.codegen.formats import FORMATS, NumberFormat
from gradspec.codegen.language import bf16
from gradspec.codegen.translation import kernel_code


def largest(form: NumberFormat) -> MaxValue:
    return MaxOfHalves() if form.computed == bf16 else MaxValue(form.as_selected)


FORMS = FORMATS | {form.as_stored.name: form.as_stored for form in FORMATS.values()}
REDUCTIONS: dict[str, Any] = {
    "max": largest,
    "winners": WithWinners,
    "tangents": WithTangents,
    "tape": FromTape,
    "ties": WithTies,
    "tied_shares": TiedShares,
    "tied_cotangent": TiedCotangent,
    "sum": Average,
    "soft": partial(SmoothMaximum, derivative=Derivative.NONE),
    "soft_mean": partial(SmoothMaximum, derivative=Derivative.MEAN),
    "soft_shares": partial(SmoothMaximum, derivative=Derivative.SHARES),
    "soft_cotangent": SmoothCotangent,
    "soft_spread": partial(SmoothMaximum, derivative=Derivative.SPREAD),
}


def build(name: str) -> str:
    """LLVM's intermediate code of a kernel, whose entry is ``kernel``."""
    operation, form = name.split(":")
    return kernel_code(kernel, PoolArguments, REDUCTIONS[operation](FORMS[form]))
