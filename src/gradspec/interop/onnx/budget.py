"""Limits to how much is read of a model, by its size: functions and branches let a small file ask for endless work."""

from __future__ import annotations

from collections.abc import Iterable

from onnx import AttributeProto, FunctionProto, GraphProto, NodeProto

from gradspec.spec.errors import FormatError

MAX_NODES = 250_000
"""The most nodes that are read of any model."""

FREE_NODES, BYTES_PER_NODE = 20_000, 4
"""A model may come to so many nodes, and to one more for each of so many bytes. A node takes more bytes than that."""

NAMES_PER_NODE = 8
"""A node counts once more for each of so many inputs and outputs."""

FREE_BYTES, TIMES_READ = 2**24, 16
"""Functions, branches and attributes of calls may come to so many bytes, and to the size of the model so many times."""


class ReadingBudget:
    """The nodes and bytes that may still be read; whatever is read again is charged again."""

    def __init__(self, model_bytes: int) -> None:
        self._model_bytes = model_bytes
        self._max_nodes = min(MAX_NODES, FREE_NODES + model_bytes // BYTES_PER_NODE)
        self._max_bytes = FREE_BYTES + TIMES_READ * model_bytes
        self._nodes = self._bytes = 0

    def charge_nodes(self, nodes: Iterable[NodeProto]) -> None:
        self._nodes += sum(1 + (len(node.input) + len(node.output)) // NAMES_PER_NODE for node in nodes)
        if self._nodes > self._max_nodes:
            raise FormatError(
                f"the model has {self._model_bytes} bytes and comes to {self._nodes} nodes or more, counting those of "
                f"functions and branches each time they are read; at most {self._max_nodes} are read of a model of "
                "this size: inline its functions (onnx.inliner.inline_local_functions), or split the model"
            )

    def charge_bytes(self, part: GraphProto | FunctionProto | AttributeProto) -> None:
        self._bytes += part.ByteSize()
        if self._bytes > self._max_bytes:
            raise FormatError(
                f"the model has {self._model_bytes} bytes, and its functions and branches come to {self._bytes} or "
                f"more, counted each time they are read; at most {self._max_bytes} are read of a model of this size: "
                "make large tensors initializers, and pass them to functions as inputs"
            )
