"""What a graph cannot express of a model, with the places in its source, told all at once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import fx

from gradspec.spec.errors import UnsupportedError

_FRAME = re.compile(r'File "(?P<file>.+)", line (?P<line>\d+), in .*\n\s*(?P<code>.*)')
_LIBRARY = str(Path(torch.__file__).parent)
MOST_PLACES = 5
"""Places that are listed for each operator."""


@dataclass
class TorchRefusals:
    """The places of every refused node, by operator and reason."""

    places: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    def add(self, node: fx.Node, reason: str) -> None:
        self.places.setdefault((str(node.target), reason), []).append(place_of(node))

    def as_reason(self) -> str:
        """The reason why an operator that is made of these is refused; nobody writes those of the library ``prims``."""
        parts = [
            f"{name}: {reason}" if reason else name for name, reason in self.places if not name.startswith("prims")
        ]
        return f"PyTorch makes it of {'; '.join(parts)}" if parts else ""

    def raise_any(self) -> None:
        if self.places:
            listing = "\n".join(line for kind in self.places for line in self._lines(*kind))
            operators = len({operator for operator, _ in self.places})
            raise UnsupportedError(
                f"the model has {operators} operator{'s' if operators > 1 else ''} that a graph cannot express:\n"
                f"{listing}\nwrite these parts with operators that it can, or import the parts around them"
            )

    def _lines(self, operator: str, reason: str) -> Iterator[str]:
        places = self.places[operator, reason]
        times = f"{len(places)} times" if len(places) > 1 else "once"
        yield f"  {operator}, {times}" + (f": {reason}" if reason else "")
        seen = dict.fromkeys(places)
        yield from (f"    {place}" for place in [*seen][:MOST_PLACES])
        if len(seen) > MOST_PLACES:
            yield f"    and {len(seen) - MOST_PLACES} more places"


def place_of(node: fx.Node) -> str:
    """The innermost line outside PyTorch that led to a node, or its innermost line and the part of the model."""
    frames = [match.groupdict() for match in _FRAME.finditer(node.meta.get("stack_trace") or "")]
    own = [frame for frame in frames if not frame["file"].startswith(_LIBRARY)]
    if own:
        return "{file}:{line}: {code}".format(**own[-1])
    parts = [path for path, _ in (node.meta.get("nn_module_stack") or {}).values() if path]
    inside = f" (in {parts[-1]})" if parts else ""
    return ("{file}:{line}: {code}".format(**frames[-1]) if frames else f"node {node.name}") + inside
