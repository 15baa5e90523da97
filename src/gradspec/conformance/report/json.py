"""A run as JSON, for programs."""

from __future__ import annotations

import json

from gradspec.conformance.model.codec import encode
from gradspec.conformance.model.run import Run


def text(run: Run) -> str:
    """The fields of `Run`, in JSON that every reader takes: what is not finite is written as words.

    >>> json.loads(text(Run("native", "gradspec 0.1", "a machine", seed=7)))["seed"]
    7
    """
    return json.dumps(encode(run), indent=1, allow_nan=False) + "\n"
