"""Errors that a target's documentation promises."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gradspec.conformance.checks.repeat import in_words
from gradspec.conformance.model.problem import Array, Shape
from gradspec.conformance.model.target import Promise, Target
from gradspec.conformance.model.verdict import Verdict
from gradspec.spec.errors import DTypeError, ShapeError


def broken(target: Target) -> list[tuple[Promise, Verdict]]:
    """The promised errors that do not come, and what comes in their place.

    >>> from gradspec.conformance.targets import target_named
    >>> broken(target_named("native"))
    []
    """
    pairs = ((promise, _came(promise)) for promise in target.promises())
    return [(promise, _verdict(promise, came)) for promise, came in pairs if came is not None]


def _came(promise: Promise) -> str | None:
    """What came in place of the error."""
    try:
        result = promise.call()
    except promise.raises:
        return None
    except Exception as error:  # another one than was promised
        return in_words(error)
    return _described(result)


def _described(result: object) -> str:
    if isinstance(result, tuple | list):
        return f"({', '.join(map(_described, result))})"
    shape = getattr(result, "shape", None)
    return repr(result) if shape is None else f"an array of shape {tuple(shape)}"


def _verdict(promise: Promise, came: str) -> Verdict:
    wanted = " or ".join(error.__name__ for error in promise.raises)
    return Verdict("defect", "promised_error", promise.op, got=came, expected=wanted, detail=promise.documented)


# --- the errors of the specification ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mistake:
    """A call that the specification refuses: arrays of zeros of these shapes, and attributes."""

    rule: str
    op: str
    shapes: tuple[Shape, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    dtype: str = "float32"
    raises: type[Exception] = ShapeError

    def arrays(self) -> tuple[Array, ...]:
        return tuple(np.zeros(shape, self.dtype) for shape in self.shapes)

    def source(self) -> str:
        """The call as a program of the specification's functions."""
        arrays = [f"np.zeros({shape}, np.{self.dtype})" for shape in self.shapes]
        attributes = [f"{name}={value!r}" for name, value in self.attributes.items()]
        call = f"gs.{self.op}({', '.join(arrays + attributes)})"
        return f"import gradspec as gs\nimport numpy as np\n\nprint({call})\n"


PLANE, WEIGHT, IMAGE = (1, 2, 4, 5), (2, 2, 3, 3), (1, 2, 5, 5)
LEAST_ONE = "kernel, stride and dilation are at least 1"
WHOLE = "a bool is not an int"

MISTAKES = (
    Mistake(LEAST_ONE, "max_pool", (PLANE,), {"kernel_size": (2, 0)}),
    Mistake(LEAST_ONE, "avg_pool", (PLANE,), {"kernel_size": (2, 2), "stride": (0, 1)}),
    Mistake(LEAST_ONE, "smooth_max_pool", (PLANE,), {"kernel_size": (2, 2), "stride": (1, -1), "beta": 1.0}),
    Mistake(LEAST_ONE, "max_pool", (PLANE,), {"kernel_size": (2, 2), "dilation": (1, 0)}),
    Mistake(LEAST_ONE, "conv", (IMAGE, WEIGHT), {"stride": (0, 1)}),
    Mistake(LEAST_ONE, "conv", (IMAGE, WEIGHT), {"dilation": (-1, 1)}),
    Mistake(LEAST_ONE, "conv", (IMAGE, (2, 2, 0, 3))),
    Mistake(LEAST_ONE, "conv_transpose", (IMAGE, WEIGHT), {"stride": (1, 0)}),
    Mistake(LEAST_ONE, "unfold", (IMAGE,), {"kernel_size": (0, 2)}),
    Mistake("padding is not negative", "max_pool", (PLANE,), {"kernel_size": (2, 2), "padding": ((-1, 0), (0, 0))}),
    Mistake("padding is not negative", "avg_pool", (PLANE,), {"kernel_size": (2, 2), "padding": ((0, 0), (0, -1))}),
    Mistake("padding is not negative", "conv", (IMAGE, WEIGHT), {"padding": ((0, -1), (0, 0))}),
    Mistake("padding is not negative", "conv_transpose", (IMAGE, WEIGHT), {"padding": ((0, -1), (0, 0))}),
    Mistake(WHOLE, "max_pool", (PLANE,), {"kernel_size": (True, 2)}),
    Mistake(WHOLE, "conv", (IMAGE, WEIGHT), {"stride": (True, 1)}),
    Mistake(WHOLE, "adaptive_avg_pool", (PLANE,), {"output_size": (True, 2)}),
    Mistake("a spatial axis has a cell", "max_pool", ((1, 2, 0, 5),), {"kernel_size": (1, 1)}),
    Mistake("a spatial axis has a cell", "conv", ((1, 2, 5, 0), WEIGHT), {"padding": ((2, 2), (2, 2))}),
    Mistake("a spatial axis has a cell", "global_avg_pool", ((1, 2, 0, 5),)),
    Mistake("a window fits the padded axis", "max_pool", (PLANE,), {"kernel_size": (5, 2)}),
    Mistake("a window fits the padded axis", "avg_pool", (PLANE,), {"kernel_size": (2, 3), "dilation": (1, 3)}),
    Mistake("a window fits the padded axis", "conv", ((1, 2, 2, 5), WEIGHT)),
    Mistake("a window fits the padded axis", "unfold", (IMAGE,), {"kernel_size": (6, 1)}),
    Mistake("there are as many axes as the window has", "max_pool", ((5,),), {"kernel_size": (2, 2)}),
    Mistake("there are as many axes as the window has", "conv", ((5, 5), WEIGHT)),
    Mistake("channels match", "conv", ((1, 3, 5, 5), WEIGHT)),
    Mistake("channels match", "conv_transpose", ((1, 3, 5, 5), WEIGHT)),
    Mistake("groups divide the channels", "conv", ((1, 4, 5, 5), (3, 2, 3, 3)), {"groups": 2}),
    Mistake("groups divide the channels", "conv_transpose", ((1, 3, 5, 5), (3, 2, 3, 3)), {"groups": 2}),
    Mistake("bias has one number per output channel", "conv", (IMAGE, WEIGHT, (3,))),
    Mistake("bias has one number per output channel", "conv_transpose", (IMAGE, WEIGHT, (3,))),
    Mistake("an output size is at least 1", "adaptive_max_pool", (PLANE,), {"output_size": (2, 0)}),
    Mistake("an output size is at least 1", "adaptive_avg_pool", (PLANE,), {"output_size": (-1, 2)}),
    Mistake("a divisor is not 0", "avg_pool", (PLANE,), {"kernel_size": (2, 2), "divisor_override": 0}),
    Mistake("an output has a cell", "conv_transpose", ((1, 2, 1, 1), WEIGHT), {"padding": ((2, 2), (1, 1))}),
    Mistake(
        "output padding is less than the stride or the dilation",
        "conv_transpose",
        (IMAGE, WEIGHT),
        {"stride": (2, 2), "output_padding": (2, 0)},
    ),
    Mistake("columns fold onto the output", "fold", ((1, 8, 5),), {"output_size": (4, 4), "kernel_size": (2, 2)}),
    Mistake("beta is not 0", "smooth_max_pool", (PLANE,), {"kernel_size": (2, 2), "beta": 0.0}, raises=ValueError),
    Mistake("integers have no average", "avg_pool", (PLANE,), {"kernel_size": (2, 2)}, "int32", DTypeError),
    Mistake("integers have no average", "global_avg_pool", (PLANE,), {}, "int64", DTypeError),
)
"""The errors that the specification names for single operators, each at least once."""


def of_the_specification(
    run: Callable[[str, Sequence[Array], Mapping[str, Any]], object], offers: Callable[[str], bool] = lambda op: True
) -> list[Promise]:
    """Every mistake as a promise of a target that follows the specification, made by ``run(op, arrays, attributes)``.

    >>> import gradspec as gs
    >>> made = of_the_specification(lambda op, arrays, attributes: getattr(gs.spec, op)(*arrays, **attributes))
    >>> all(_came(promise) is None for promise in made)
    True
    """
    return [_promise(mistake, run) for mistake in MISTAKES if offers(mistake.op)]


def _promise(mistake: Mistake, run: Callable[[str, Sequence[Array], Mapping[str, Any]], object]) -> Promise:
    def call() -> object:
        return run(mistake.op, mistake.arrays(), mistake.attributes)

    return Promise(mistake.op, call, (mistake.raises,), mistake.source(), mistake.rule)
