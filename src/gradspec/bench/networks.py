"""A network of the grid, run on any contender's operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from gradspec.bench.grid import Network


class NetworkOperators(Protocol):
    """What a contender must have to run the networks; arrays are its own."""

    def relu(self, x: Any) -> Any: ...
    def flatten(self, x: Any) -> Any: ...
    def add(self, x: Any, y: Any) -> Any: ...
    def conv(self, x: Any, weight: Any, bias: Any, stride: int, padding: int) -> Any: ...
    def linear(self, x: Any, weight: Any, bias: Any) -> Any: ...
    def max_pool(self, x: Any, kernel: int, stride: int, padding: int) -> Any: ...


def run(network: Network, operators: NetworkOperators, x: Any, parameters: Sequence[Any]) -> Any:
    """The network's result; ``parameters`` are weight and bias of every layer that has them, in order."""
    remaining, kept = iter(parameters), x
    for layer in network.layers:
        if layer.kind == "conv":
            x = operators.conv(x, next(remaining), next(remaining), layer.stride, layer.padding)
        elif layer.kind == "linear":
            x = operators.linear(x, next(remaining), next(remaining))
        elif layer.kind == "max_pool":
            x = operators.max_pool(x, layer.kernel, layer.stride, layer.padding)
        elif layer.kind == "keep":
            kept = x
        elif layer.kind == "add":
            x = operators.add(x, kept)
        else:
            x = getattr(operators, layer.kind)(x)
    return x
