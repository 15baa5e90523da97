"""The exact meaning of every operator on float arrays, fast enough to judge kernels by.

``meaning("conv_vjp", x, w, b, g, stride=2)`` takes the arguments of ``gs.spec.conv_vjp`` and gives, for each array that
it returns, a `Meaning`: something that rounds to the correct result and judges a kernel's. The geometry, the choice of
winners and the checks of shapes are the specification's; only the arithmetic is done here, in bulk.
"""

from __future__ import annotations

import inspect
from functools import wraps
from typing import Any

from gradspec import spec
from gradspec.conformance.oracle import conv, pool, smooth_pool
from gradspec.conformance.oracle.meaning import Judgement, Meaning, MeaningRule
from gradspec.spec.ranked import ranked_operator


def meaning(name: str, *args: Any, **attributes: Any) -> Any:
    """The exact meaning of ``gs.spec.<name>(*args, **attributes)`` on float arrays.

    >>> import numpy as np
    >>> x = np.array([1, 2**-30, -1], np.float32)
    >>> total = meaning("avg_pool", x, (3,), divisor_override=1)
    >>> total.judge(np.array([2**-30], np.float32)).passed, total.judge(np.array([2**-20], np.float32)).passed
    (True, False)
    """
    if name not in _MEANINGS:
        ranked = ranked_operator(name, spec.OPERATORS, {known: _named(known) for known in _MEANINGS})
        if ranked is not None:
            return ranked(*args, **attributes)
        raise ValueError(f"{name!r} is not an operator or derivative the oracle knows; it knows {', '.join(_MEANINGS)}")
    try:
        call = inspect.signature(getattr(spec, name)).bind(*args, **attributes)
    except TypeError as error:
        raise TypeError(f"{name}() {error}") from None
    call.apply_defaults()
    return _MEANINGS[name](**call.arguments)


def _named(name: str) -> MeaningRule:
    """``meaning`` of one operator, with the signature of its specification."""

    @wraps(getattr(spec, name))
    def of(*args: Any, **attributes: Any) -> Any:
        return meaning(name, *args, **attributes)

    return of


_MEANINGS: dict[str, MeaningRule] = {**pool.MEANINGS, **smooth_pool.MEANINGS, **conv.MEANINGS}

__all__ = ["Judgement", "Meaning", "meaning"]
