"""A node as its handler sees it: operands and attributes, checked against ONNX's own record of the operator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import isfinite
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias

from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, defs

from gradspec.graph.ir import Array, Var
from gradspec.saving.strict_json import brief
from gradspec.spec.errors import FormatError, UnsupportedError

Value: TypeAlias = Array | Var
"""What a name of the model stands for: an array if it is known while the model is read, else a variable."""

Handler: TypeAlias = Callable[["OnnxNode"], Any]
"""Gives one value, or a sequence of them."""

MOST_INTS = 2**16
"""Sizes, axes and the like in one list."""

_CONTENTS: dict[int, Callable[[AttributeProto], Any]] = {
    AttributeProto.FLOAT: lambda a: float(a.f),
    AttributeProto.INT: lambda a: int(a.i),
    AttributeProto.STRING: lambda a: a.s.decode("utf-8", "backslashreplace"),
    AttributeProto.TENSOR: lambda a: a.t,
    AttributeProto.FLOATS: lambda a: list(a.floats),
    AttributeProto.INTS: lambda a: list(a.ints),
    AttributeProto.GRAPH: lambda a: a.g,
}


@dataclass(frozen=True)
class Signature:
    """What ONNX says of an operator in one version."""

    kinds: dict[str, int]
    required: frozenset[str]
    defaults: dict[str, Any]
    operands: range
    results: range
    is_strict: bool = True
    """Whether an attribute that is not among these is refused."""


_KINDS = {
    int: AttributeProto.INT,
    float: AttributeProto.FLOAT,
    str: AttributeProto.STRING,
    list: AttributeProto.INTS,
    tuple: AttributeProto.FLOATS,
}


Count: TypeAlias = int | tuple[int, int]
"""How many operands or results there are: a number, or the least and the most."""


def foreign(operands: Count, results: Count = 1, needed: str = "", **defaults: Any) -> Signature:
    """The record of an operator that ONNX has none of: its attributes are those that have defaults, by their kinds."""
    kinds = {name: int(_KINDS[type(value)]) for name, value in defaults.items()}
    (least, most), (fewest, last) = ((n, n) if isinstance(n, int) else n for n in (operands, results))
    return Signature(kinds, frozenset(needed.split()), defaults, range(least, most + 1), range(fewest, last + 1))


SINCE = {"LayerNormalization": 17}
"""Operators that ONNX took over from ONNX Runtime, which had them in every opset, and took any attributes with them."""


@cache
def signature(op_type: str, version: int) -> Signature:
    schema = defs.get_schema(op_type, max(version, SINCE.get(op_type, 0)), "")
    attributes = schema.attributes
    defaults = {name: a.default_value for name, a in attributes.items() if a.default_value.type in _CONTENTS}
    return Signature(
        {name: int(a.type) for name, a in attributes.items()},  # type: ignore[call-overload]
        frozenset(name for name, a in attributes.items() if a.required),
        {name: _CONTENTS[a.type](a) for name, a in defaults.items()},
        range(schema.min_input, schema.max_input + 1),
        range(schema.min_output, schema.max_output + 1),
        version >= SINCE.get(op_type, 0),
    )


class Scope(Protocol):
    """What a node asks of the model around it."""

    def lift(self, array: Array, name: str) -> Var:
        """A known array as a constant of the graph, the same for every node that uses it."""

    def sources(self, var: Var) -> list[str]:
        """The inputs of the model that a variable is computed from, and that ``constants`` could bind."""

    def array(self, tensor: TensorProto) -> Array:
        """The array of a tensor in an attribute."""

    def charge(self, cells: int) -> None:
        """Count cells that are computed while the model is read; too many are refused."""

    def branch(self, graph: GraphProto, operands: Sequence[Any] = ()) -> Sequence[Any]:
        """The results of a graph in an attribute, with these for its inputs."""


@dataclass(slots=True)
class OnnxNode:
    """One node: ``version`` is the model's opset, ``operands`` has None where an optional input is left out."""

    op_type: str
    version: int
    names: tuple[str, ...]
    operands: tuple[Value | None, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any]
    scope: Scope

    # --- operands -----------------------------------------------------------------------------------------------------

    def has(self, i: int) -> bool:
        return i < len(self.operands) and self.operands[i] is not None

    def value(self, i: int) -> Value:
        """Operand ``i`` as it is."""
        operand = self.operands[i] if i < len(self.operands) else None
        if operand is None:
            raise FormatError(f"its input {i} is left out, and {self.op_type} needs it")
        return operand

    def variable(self, i: int) -> Var:
        """Operand ``i`` as a variable: a known array becomes a constant of the graph."""
        operand = self.value(i)
        return operand if isinstance(operand, Var) else self.scope.lift(operand, self.names[i])

    def variables(self) -> list[Var]:
        """All operands as variables."""
        return [self.variable(i) for i in range(len(self.operands))]

    def optional(self, i: int) -> Var | None:
        return self.variable(i) if self.has(i) else None

    def known(self, i: int) -> Array:
        """Operand ``i``, which must be known while the model is read."""
        operand = self.value(i)
        if isinstance(operand, Var):
            sources = ", ".join(f"{brief(name)}: …" for name in self.scope.sources(operand))
            raise UnsupportedError(
                f"{self.op_type} with an input {i} that is not known at import (bind it: constants={{{sources}}})"
            )
        return operand

    def known_ints(self, i: int) -> list[int]:
        """Operand ``i`` as a list of integers."""
        array = self.known(i)
        if array.dtype.kind not in "iu" or array.ndim > 1 or array.size > MOST_INTS:
            raise FormatError(f"its input {i} is {array.dtype}{list(array.shape)}, and a list of integers is needed")
        return [int(n) for n in array.reshape(-1)]

    def known_number(self, i: int) -> Any:
        """Operand ``i`` as one number."""
        array = self.known(i)
        if array.size != 1:
            raise FormatError(f"its input {i} has the shape {array.shape}, and one number is needed")
        return array.item() if array.dtype.kind in "iub" else float(array.reshape(-1)[0])

    # --- attributes ---------------------------------------------------------------------------------------------------

    def attribute(self, name: str) -> Any:
        """An attribute, or the default that ONNX gives it in this version; None where it gives none."""
        return self.attributes.get(name)

    def axis(self, rank: int) -> int:
        """The attribute ``axis`` of a tensor of ``rank``, counted from the front."""
        return normal_axes([self.attribute("axis")], rank)[0]

    def axes(self) -> list[int] | None:
        """The axes that are named, by an attribute in early versions and by an input in later ones; None: left out."""
        named: list[int] | None = self.attribute("axes")
        return self.known_ints(1) if named is None and self.has(1) else named

    def flag(self, name: str) -> bool:
        return bool(self.attributes.get(name, 0))

    def choice(self, name: str, *choices: str) -> str:
        """An attribute that is one of a few words."""
        word = self.attributes.get(name, choices[0])
        if word not in choices:
            raise FormatError(f"its {name} is {brief(word)}; ONNX has {', '.join(choices)}")
        return str(word)

    def wants(self, i: int) -> bool:
        """Whether output ``i`` has a name."""
        return i < len(self.outputs) and self.outputs[i] != ""


def attributes_of(
    proto: NodeProto, known: Signature, of_caller: Mapping[str, AttributeProto] = MappingProxyType({})
) -> dict[str, Any]:
    """The attributes of a node and the defaults of those it leaves out, each of the kind that ONNX says.

    In a function they may refer to those that it was called with; where it was called without, they are left out.
    """
    given: dict[str, Any] = dict(known.defaults)
    seen: set[str] = set()
    for attribute in proto.attribute:
        name = attribute.name
        if name not in known.kinds and not known.is_strict:
            continue
        if attribute.ref_attr_name:
            if attribute.ref_attr_name not in of_caller:
                continue
            attribute = of_caller[attribute.ref_attr_name]
        if known.kinds.get(name) != attribute.type or name in seen:
            raise FormatError(f"its attribute {brief(name)} is not one that {proto.op_type} has, or given twice")
        seen.add(name)
        if attribute.type not in _CONTENTS:
            raise UnsupportedError(f"{proto.op_type} with {name}")
        given[name] = _CONTENTS[attribute.type](attribute)
        require_allowed(proto.op_type, name, given[name])
    if missing := known.required - seen:
        raise FormatError(f"it lacks the attribute {', '.join(sorted(missing))}, which {proto.op_type} needs")
    return given


def require_counts(proto: NodeProto, known: Signature) -> None:
    for what, names, allowed in (("inputs", proto.input, known.operands), ("outputs", proto.output, known.results)):
        if len(names) not in allowed:
            raise FormatError(f"it has {len(names)} {what}; {proto.op_type} has {_range(allowed)}")


def _range(counts: range) -> str:
    low, high = counts.start, counts.stop - 1
    return str(low) if low == high else f"{low} or more" if high >= 2**31 - 1 else f"{low} to {high}"


def normal_axes(axes: Sequence[int], rank: int) -> tuple[int, ...]:
    """Axes counted from the front, each once."""
    places = [a + rank if a < 0 else a for a in axes]
    if any(not 0 <= a < rank for a in places) or len(set(places)) != len(places):
        raise FormatError(f"its axis or axes {brief(list(axes)[:8])} are out of range for rank {rank}, or repeated")
    return tuple(places)


def apply_to_operands(function: Callable[..., Any], *attributes: str) -> Handler:
    """The handler that calls a function on all operands as variables, and then on these attributes."""
    return lambda node: function(*node.variables(), *(node.attribute(name) for name in attributes))


# --- values that attributes may have by ONNX's text -------------------------------------------------------------------


Limit = tuple[Callable[[Any], bool], str]

ELEMENTS = frozenset(TensorProto.DataType.values()) - {TensorProto.UNDEFINED}

FLAG: Limit = (lambda value: value in (0, 1), "0 or 1 is needed")
POSITIVE: Limit = (lambda value: value >= 1, "numbers of 1 or more are needed")
NOT_NEGATIVE: Limit = (lambda value: value >= 0, "numbers of 0 or more are needed")
FINITE: Limit = (isfinite, "a finite number is needed")
KIND: Limit = (lambda value: value in ELEMENTS, "the number of an element type is needed")


def _each(limit: Limit, names: str) -> dict[str, Limit]:
    return dict.fromkeys(names.split(), limit)


LIMITS: dict[str, Limit] = {
    **_each(
        FLAG,
        "align_corners allowzero antialias broadcast ceil_mode count_include_pad detect_negative detect_positive "
        "exclude_outside exclusive fmod keepdims largest noop_with_empty_axes reverse select_last_index sorted spatial "
        "storage_order training_mode transA transB upper",
    ),
    **_each(POSITIVE, "blocksize dilations group kernel_shape num_groups num_outputs p size strides"),
    **_each(NOT_NEGATIVE, "output_padding output_shape pads split"),
    **_each(FINITE, "alpha beta bias cubic_coeff_a epsilon gamma lambd momentum ratio"),
    "to": KIND,
}
"""What a number of an attribute must be, or each of them if there are several."""

EXCEPT = {("Pad", "pads")}
"""Where an attribute of that name means something else: to pad by less than 0 is to cut off."""


def require_allowed(op_type: str, name: str, content: Any) -> None:
    """Refuse a value that no operator of ONNX gives a meaning to."""
    if name not in LIMITS or (op_type, name) in EXCEPT:
        return
    allowed, needed = LIMITS[name]
    values: Iterable[Any] = content if isinstance(content, list) else (content,)
    if not all(allowed(value) for value in values if isinstance(value, int | float)):  # Cast-1 has words
        raise FormatError(f"its {name} is {brief(content)}; {needed}")
