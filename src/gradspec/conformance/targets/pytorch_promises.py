"""Calls for which PyTorch's documentation promises an error."""

from __future__ import annotations

from dataclasses import dataclass

from gradspec.conformance.targets import Promise
from gradspec.conformance.targets.pytorch_functions import Function

DOCUMENTATION = "https://docs.pytorch.org/docs/stable/generated/torch.nn."


@dataclass(frozen=True)
class Mistake:
    """A function on tensors of ones of these shapes, and what its page says of such settings."""

    op: str
    function: Function
    shapes: tuple[tuple[int, ...], ...]
    documented: str

    def promise(self) -> Promise:
        ones = [f"torch.ones({shape})" for shape in self.shapes]
        source = f"import torch\n\nprint({self.function.source(*ones)})\n"
        return Promise(self.op, self._call, (RuntimeError, ValueError, TypeError), source, self.documented)

    def _call(self) -> object:
        import torch

        return self.function.resolved()(*map(torch.ones, self.shapes))


def _function(name: str, **settings: object) -> Function:
    return Function(f"nn.functional.{name}", settings)


def _said(page: str, words: str) -> str:
    return f"{words} ({DOCUMENTATION}{page}.html)"


_HALF = "padding is at least 0 and at most half of the kernel"
_DIVISIBLE = "input and output channels are divisible by groups"
_PLANE, _SPACE = (1, 4, 4, 4), (1, 4, 4, 4, 4)

MISTAKES = (
    Mistake(
        "max_pool",
        _function("max_pool1d", kernel_size=2, padding=2),
        ((1, 4, 4),),
        _said("functional.max_pool1d", _HALF),
    ),
    Mistake(
        "max_pool", _function("max_pool2d", kernel_size=2, padding=2), (_PLANE,), _said("functional.max_pool2d", _HALF)
    ),
    Mistake(
        "max_pool", _function("max_pool2d", kernel_size=2, padding=-1), (_PLANE,), _said("functional.max_pool2d", _HALF)
    ),
    Mistake(
        "max_pool", _function("max_pool3d", kernel_size=2, padding=2), (_SPACE,), _said("functional.max_pool3d", _HALF)
    ),
    Mistake(
        "max_pool",
        _function("max_pool2d", kernel_size=2, dilation=0),
        (_PLANE,),
        _said("functional.max_pool2d", "dilation is greater than 0"),
    ),
    Mistake(
        "avg_pool", _function("avg_pool2d", kernel_size=3, padding=2), (_PLANE,), _said("functional.avg_pool2d", _HALF)
    ),
    Mistake("conv", _function("conv2d", groups=2), (_PLANE, (3, 2, 2, 2)), _said("Conv2d", _DIVISIBLE)),
    Mistake("conv", _function("conv3d", groups=3), (_SPACE, (3, 1, 2, 2, 2)), _said("Conv3d", _DIVISIBLE)),
    Mistake(
        "conv",
        _function("conv2d", padding="same", stride=2),
        (_PLANE, (2, 4, 2, 2)),
        _said("functional.conv2d", 'padding="same" is not for strides other than 1'),
    ),
    Mistake(
        "conv_transpose",
        _function("conv_transpose2d", groups=3),
        (_PLANE, (4, 1, 2, 2)),
        _said("ConvTranspose2d", _DIVISIBLE),
    ),
    Mistake(
        "fold",
        _function("fold", output_size=(4, 4), kernel_size=2),
        ((1, 8, 8),),
        _said("Fold", "there are as many columns as windows on the output"),
    ),
)


def promises() -> list[Promise]:
    """Every one of them.

    >>> print(promises()[1].source)
    import torch
    <BLANKLINE>
    print(torch.nn.functional.max_pool2d(torch.ones((1, 4, 4, 4)), kernel_size=2, padding=2))
    <BLANKLINE>
    """
    return [mistake.promise() for mistake in MISTAKES]
