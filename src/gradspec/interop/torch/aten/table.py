"""The table of operators that the reader knows: a name of PyTorch's, and the function of variables that does the same.

A function takes what PyTorch's operator takes, in the same order and under the same names, with variables for tensors.
It is found by the operator's name, ``conv2d``, or by that of one overload, ``max.dim``; outside ``torch.ops.aten`` the
name begins with that of the library, ``gradspec::graph``. The argument ``wanted``, if it
has one, is the set of the results that the model uses, by position.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from inspect import Signature, signature
from typing import Any

import torch
from torch import fx

Function = Callable[..., Any]


@dataclass(frozen=True)
class AtenEntry:
    """One function of the table, and whether it writes its result over its first operand."""

    function: Function
    signature: Signature
    in_place: bool = False

    @property
    def chooses_results(self) -> bool:
        return "wanted" in self.signature.parameters


_ENTRIES: dict[str, AtenEntry] = {}


def reads(*names: str) -> Callable[[Function], Function]:
    """Register a function for operators or overloads; ``{1,2,3}`` in a name stands for each of the three.

    The function is told which, if it has an argument ``rank``.
    """

    def register(function: Function) -> Function:
        for name in names:
            for rank in "123" if "{1,2,3}" in name else "-":
                takes_rank = "rank" in signature(function).parameters
                known = partial(function, rank=int(rank)) if takes_rank else function
                _ENTRIES[name.replace("{1,2,3}", rank)] = AtenEntry(known, signature(known))
        return function

    return register


def entry_of(node: fx.Node) -> AtenEntry | None:
    """The entry for a node's operator, if it is there and takes the node's arguments."""
    entry = entry_for(node.target)
    return entry if entry and _takes(entry, node) else None


def entry_for(operator: Any) -> AtenEntry | None:
    if not isinstance(operator, torch._ops.OpOverload):
        return None
    packet = operator.overloadpacket.__name__
    if operator.namespace != "aten":
        return _ENTRIES.get(f"{operator.namespace}::{packet}")
    return _ENTRIES.get(f"{packet}.{operator._overloadname}") or _ENTRIES.get(packet) or _in_place(packet)


def _in_place(packet: str) -> AtenEntry | None:
    """``add_`` is ``add``, its result written over the first operand."""
    entry = _ENTRIES.get(packet.removesuffix("_")) if packet.endswith("_") else None
    return entry and AtenEntry(entry.function, entry.signature, in_place=True)


def _takes(entry: AtenEntry, node: fx.Node) -> bool:
    wanted = {"wanted": ()} if entry.chooses_results else {}
    try:
        entry.signature.bind(*node.args, **node.kwargs, **wanted)
    except TypeError:
        return False
    return True
