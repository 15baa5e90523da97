"""What the nodes of a graph, of a branch or of a function see: names, and what a call has settled."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from onnx import AttributeProto, defs

from gradspec.interop.onnx.interface import Declared
from gradspec.interop.onnx.node import Value
from gradspec.interop.onnx.refusals import Refused
from gradspec.spec.errors import UnsupportedError

FIRST_OPSET, LAST_OPSET = 1, 28
UNNAMED = 0
OWN_DOMAIN = ("", "ai.onnx")


@dataclass(slots=True)
class NameFrame:
    """Values by name: variables, arrays, what was refused, or None for an input that a caller leaves out."""

    version: int
    """The opset that the nodes are written for; UNNAMED if none is."""

    place: str = ""
    """Where the nodes are, if not in the model's own graph."""

    around: NameFrame | None = None
    """A branch sees the names of the graph that it is in; a function sees its own alone."""

    attributes: Mapping[str, AttributeProto] = field(default_factory=dict)
    """Those that a function was called with."""

    values: dict[str, Value | Refused | None] = field(default_factory=dict)
    stated: dict[str, Declared] = field(default_factory=dict)
    """Types that the model states of values it computes, to be compared with what they turn out to be."""

    def holder(self, name: str) -> NameFrame | None:
        """The frame that has a value of this name."""
        frame: NameFrame | None = self
        while frame is not None and name not in frame.values:
            frame = frame.around
        return frame


def version_of(imports: Iterable[Any], default: int) -> int:
    """The version of ONNX's own operators: the highest that is imported, as ONNX says; ``default`` if none is."""
    versions = [int(entry.version) for entry in imports if entry.domain in OWN_DOMAIN]
    if not versions:
        return default
    version, last = max(versions), min(LAST_OPSET, defs.onnx_opset_version())
    if not FIRST_OPSET <= version <= last:
        raise UnsupportedError(f"the model is written for opset {version}, and {FIRST_OPSET} to {last} are read")
    return version
