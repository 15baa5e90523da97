"""The places in a model's source that led to a node, and those of what a graph cannot express."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch import fx

from gradspec.interop.refusals import Refusals

_FRAME = re.compile(r'File "(?P<file>.+)", line (?P<line>\d+), in .*\n\s*(?P<code>.*)')
_LIBRARY = str(Path(torch.__file__).parent)


class TorchRefusals(Refusals):
    def add_node(self, node: fx.Node, reason: str) -> None:
        self.add(str(node.target), reason, place_of(node))

    def as_reason(self) -> str:
        """The reason why an operator that is made of these is refused; nobody writes those of the library ``prims``."""
        parts = [
            f"{name}: {reason}" if reason else name for name, reason in self.places if not name.startswith("prims")
        ]
        return f"PyTorch makes it of {'; '.join(parts)}" if parts else ""


def place_of(node: fx.Node) -> str:
    """The innermost line outside PyTorch that led to a node, or its innermost line and the part of the model."""
    frames = [match.groupdict() for match in _FRAME.finditer(node.meta.get("stack_trace") or "")]
    own = [frame for frame in frames if not frame["file"].startswith(_LIBRARY)]
    if own:
        return "{file}:{line}: {code}".format(**own[-1])
    parts = [path for path, _ in (node.meta.get("nn_module_stack") or {}).values() if path]
    inside = f" (in {parts[-1]})" if parts else ""
    return ("{file}:{line}: {code}".format(**frames[-1]) if frames else f"node {node.name}") + inside
