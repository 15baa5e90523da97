"""The parameters, buffers and constants of an exported program, and which of them become inputs of the graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

PARAMETERS = (InputKind.PARAMETER, InputKind.BUFFER)


@dataclass(frozen=True)
class Held:
    """A tensor that the program holds, under the name it has in the model, and the node that stands for it."""

    name: str
    node: fx.Node
    tensor: Tensor
    is_parameter: bool

    @property
    def key(self) -> int:
        """The same for one tensor under several names, which is one variable of the graph."""
        return id(self.tensor)


def tensors_held(program: ExportedProgram) -> list[Held]:
    """Everything that the program takes besides the arguments of the model."""
    nodes = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    values = {**program.constants, **program.state_dict}
    return [
        Held(spec.target, nodes[spec.arg.name], values[spec.target], spec.kind in PARAMETERS)
        for spec in program.graph_signature.input_specs
        if spec.target is not None and isinstance(values.get(spec.target), Tensor)
    ]


def chosen_inputs(program: ExportedProgram, held: Sequence[Held], params: str | Sequence[str]) -> list[Held]:
    """What becomes an input: nothing, all of the state dict that the program reads, or what is named."""
    by_name = {h.name: h for h in held if h.is_parameter}
    if params == "constants":
        return []
    if params == "inputs":
        read = {h.key for h in held if h.node.users}
        return [by_name[name] for name in program.state_dict if name in by_name and by_name[name].key in read]
    if isinstance(params, str):
        raise ValueError(f'params={params!r} must be "constants", "inputs" or a list of the names of parameters')
    unknown = [name for name in params if name not in by_name]
    if unknown:
        raise ValueError(
            f"the model has no parameter or buffer called {', '.join(unknown)}; it has {', '.join(by_name) or 'none'}"
        )
    return [by_name[name] for name in params]
