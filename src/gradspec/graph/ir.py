"""The intermediate representation: variables, operators, and nodes that apply operators to variables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from types import MappingProxyType
from typing import Any, Generic, NoReturn, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from gradspec.graph.hints import as_method
from gradspec.graph.types import DType, TensorType
from gradspec.spec.errors import UnsupportedError
from gradspec.spec.tensor import Tensor

Array = NDArray[Any]

Operand: TypeAlias = "Var | Array | np.generic | float | Sequence[Any]"
"""What an operator computes with: a parameter declared so takes a number as an array without axes, of the dtype of the
array beside it.

Operators have the types that they have while a graph is built: they take operands and give variables. Without a
variable among their operands they compute at once and give arrays, as the stubs tell users.
"""

Power = TypeVar("Power", int, "Var")

TypedOperand: TypeAlias = Operand
"""An operand that takes no dtype from the array beside it."""
# --- functions of later packages --------------------------------------------------------------------------------------

Record = TypeVar("Record")


class Provided(Generic[Record]):
    """A record of functions that later packages provide.

    Variables are added by an operator and graphs are derived by transformations, but imports point one way. So a
    package declares the functions that it needs, with their types, and ``gradspec.wiring`` provides them.

    >>> lengths = Provided[int]()
    >>> lengths.provide(3)
    >>> lengths()
    3
    """

    def __init__(self) -> None:
        self._record: Record | None = None

    def provide(self, record: Record) -> None:
        self._record = record

    def __call__(self) -> Record:
        if self._record is None:
            raise RuntimeError("the packages that carry this out are not loaded; import gradspec.wiring first")
        return self._record


# --- variables --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Overloads:
    """What Python's operators do to variables; the other operand may be an array or a number."""

    add: Callable[[Operand, Operand], Var]
    sub: Callable[[Operand, Operand], Var]
    mul: Callable[[Operand, Operand], Var]
    div: Callable[[Operand, Operand], Var]
    matmul: Callable[[Operand, Operand], Var]
    neg: Callable[[Var], Var]
    abs: Callable[[Var], Var]
    invert: Callable[[Var], Var]
    and_: Callable[[Operand, Operand], Var]
    or_: Callable[[Operand, Operand], Var]
    xor: Callable[[Operand, Operand], Var]
    lshift: Callable[[Operand, Operand], Var]
    rshift: Callable[[Operand, Operand], Var]
    getitem: Callable[[Var, object], Var]


OVERLOADS = Provided[Overloads]()

UFUNCS = {
    "add": "add",
    "subtract": "sub",
    "multiply": "mul",
    "divide": "div",
    "matmul": "matmul",
    "bitwise_and": "and_",
    "bitwise_or": "or_",
    "bitwise_xor": "xor",
    "left_shift": "lshift",
    "right_shift": "rshift",
}
"""What NumPy calls for ``array + variable`` and so on, and the overload that it is."""
COMPARISONS = frozenset(["equal", "greater", "greater_equal", "less", "less_equal", "not_equal"])


def whole_power(x: Power, n: int) -> Power:
    """``x^n`` for ``n`` of at least 1, by squaring: ``(x²)^(n/2)``, times ``x`` once more for an odd ``n``.

    >>> whole_power(3, 5)
    243
    """
    if n == 1:
        return x
    half = whole_power(x * x, n // 2)
    return half * x if n % 2 else half


def _overloaded(name: str) -> tuple[Callable[[Var, Operand], Var], Callable[[Var, Operand], Var]]:
    """The methods of a variable that is the first operand of an overload, and of one that is the second."""

    def overload(first: Operand, second: Operand) -> Var:
        made: Var = getattr(OVERLOADS(), name)(first, second)
        return made

    return overload, lambda second, first: overload(first, second)


class Var:
    """A variable of one graph. Python's ``+ - * / @ ** & | ^ << >> ~``, unary ``-`` and ``abs`` are its operators."""

    __slots__ = ("name", "owner", "type")

    def __init__(self, name: str, type: TensorType, owner: Any) -> None:
        self.name, self.type, self.owner = name, type, owner

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def ndim(self) -> int:
        return self.type.ndim

    def __repr__(self) -> str:
        return f"{self.name}: {self.type}"

    __add__, __radd__ = _overloaded("add")
    __sub__, __rsub__ = _overloaded("sub")
    __mul__, __rmul__ = _overloaded("mul")
    __truediv__, __rtruediv__ = _overloaded("div")
    __matmul__, __rmatmul__ = _overloaded("matmul")
    __and__, __rand__ = _overloaded("and_")
    __or__, __ror__ = _overloaded("or_")
    __xor__, __rxor__ = _overloaded("xor")
    __lshift__, __rlshift__ = _overloaded("lshift")
    __rshift__, __rrshift__ = _overloaded("rshift")

    def __pow__(self, exponent: object) -> Var:
        if isinstance(exponent, Integral) and int(exponent) >= 1:
            return whole_power(self, int(exponent))
        raise TypeError(
            f"{self.name} ** {exponent!r} is no product; a variable takes whole exponents from 1, gs.sqrt(x) is the "
            "square root, 1 / x the inverse, and gs.exp(y * gs.log(x)) any power of what is positive"
        )

    def __rpow__(self, base: object) -> NoReturn:
        raise TypeError(
            f"{base!r} ** {self.name} has no operator; gs.exp(x * log(base)) is the same of a positive base"
        )

    def __invert__(self) -> Var:
        return OVERLOADS().invert(self)

    def __neg__(self) -> Var:
        return OVERLOADS().neg(self)

    def __pos__(self) -> Var:
        return self

    def __abs__(self) -> Var:
        return OVERLOADS().abs(self)

    def __getitem__(self, key: object) -> Var:
        return OVERLOADS().getitem(self, key)

    def __eq__(self, other: object) -> bool:
        """Whether they are the same variable; a comparison of values would be decided while the graph is built."""
        if not isinstance(other, Var):
            self._uncomparable(other)
        return self is other

    __hash__ = object.__hash__

    def _uncomparable(self, other: object) -> NoReturn:
        raise TypeError(
            f"{self!r} has no value while the graph is built, so it cannot be compared with {other!r}; "
            "gs.greater, gs.less and gs.equal compare when it runs, and gs.where chooses by them"
        )

    __lt__ = __le__ = __gt__ = __ge__ = _uncomparable

    def __bool__(self) -> bool:
        raise TypeError(
            f"{self!r} has no value while the graph is built, so Python cannot branch on it; gs.where(condition, a, b) "
            "chooses when it runs"
        )

    def _valueless(self, *args: object, **kwargs: object) -> NoReturn:
        raise TypeError(
            f"{self!r} has no value while the graph is built, so it cannot be made a number or an array; apply "
            "functions of gs to it, and run the graph on arrays"
        )

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *operands: Operand, **settings: object) -> Var:
        """``array * variable`` is ours; NumPy has no other function of variables."""
        name = ufunc.__name__
        if method == "__call__" and not settings and name in UFUNCS:
            overload: Callable[..., Var] = getattr(OVERLOADS(), UFUNCS[name])
            return overload(*operands)
        if name in COMPARISONS:
            self._uncomparable(next((other for other in operands if other is not self), self))
        raise TypeError(
            f"np.{name} computes with arrays, and {self!r} has no value while the graph is built; {as_method(name)}"
        )

    __float__ = __int__ = __index__ = __complex__ = __array__ = __array_function__ = _valueless

    @classmethod
    def __torch_function__(cls, function: object, types: object, args: object = (), kwargs: object = None) -> NoReturn:
        raise TypeError(
            f"PyTorch's {getattr(function, '__name__', function)} was given a variable of a graph, which has no value "
            "while the graph is built; apply functions of gs to it, or read a model of PyTorch by "
            "gs.from_torch(module, example)"
        )

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a variable has no {name!r}; {as_method(name)}", name=name, obj=self)


# --- attributes -------------------------------------------------------------------------------------------------------

Attributes: TypeAlias = Any
"""A frozen dataclass of numbers, strings, bools, None, tuples of them, and graphs without constants."""

IMPLIED = {"implied": True}
"""Metadata of an attribute that follows from types, which printing omits."""

LATER = {"later": True}
"""Metadata of an attribute that older files lack: it then has its default."""


def usual(entry: object) -> dict[str, Any]:
    """Metadata of an attribute that printing omits if all its entries are equal to this one."""
    return {"usual": entry}


@dataclass(frozen=True)
class NoAttributes:
    """An operator without attributes."""


Reads: TypeAlias = Sequence[tuple[int, int, int]]
"""What a patch reads of an operand: along each axis its stride, its offset and the cells it needs."""

Crop: TypeAlias = tuple[Attributes, Sequence[Reads | None]] | None
"""What ``Op.crop`` gives."""

JvpResult: TypeAlias = tuple[Sequence[Var], Sequence[Var | None]]
"""Outputs and their tangents; a tangent is None where it is zero."""

# --- operators and nodes ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sums:
    """Sums of products of an operator's operands, as bounds need to know them.

    - ``max_roundings(attrs, *types)``: the most roundings per term, products included; 0 if numbers are only moved.
    - ``terms(attrs, *types)``: the most terms that are added up; None if as many as roundings.
    - ``factors``: operands that are multiplied with each other; the operator is linear in one if the others are held.
    - ``fixed``: operands that must be held for it to be linear at all (a divisor, a condition).
    - ``divisor``: the one of these that all terms are divided by.
    - ``bias``: the operand that is added without a factor.
    - ``absolute(attrs, *operands)``: the sum of the magnitudes of the terms, given those of the operands; None if the
      operator itself computes it, because its coefficients are not negative.
    - ``linear(attrs)``: the attributes without constant terms.
    - ``coefficient_quantum(attrs, *types)``: a power of two of which all coefficients are multiples, 1 if they are all
      1 or −1. It is 0 if there is none, or none is known; then no sum counts as exact.
    - ``unscaled(attrs)``: the attributes of the same sum without coefficients, if there are such.
    - ``kind``: the name that arithmetics use for such sums, which a library may add up in a particular order.
    - ``parts(attrs, *types)``: how many partial sums a kernel adds up that sums channels, or the like, separately.
    """

    max_roundings: Callable[..., int] = lambda attrs, *types: 0
    terms: Callable[..., int] | None = None
    factors: tuple[int, ...] = ()
    fixed: tuple[int, ...] = ()
    divisor: int | None = None
    bias: int | None = None
    absolute: Callable[..., Var] | None = None
    linear: Callable[[Any], Any] = lambda attrs: attrs
    coefficient_quantum: Callable[..., float] = lambda attrs, *types: 0.0
    unscaled: Callable[[Any], Any] | None = None
    kind: str = "sum"
    parts: Callable[..., int] | None = None


def ones(attrs: Attributes, *types: TensorType) -> int:
    """The ``coefficient_quantum`` of operators without coefficients, and the ``terms`` of those that add nothing up."""
    return 1


MOVED = Sums()
"""Data movement."""

INDEXED = Sums(fixed=(1,))
"""Data movement by the indices in the second operand."""


@dataclass(frozen=True)
class Op:
    """One operator: what it means and how it transforms. It holds no state and no kernels.

    Rules are functions of the node's attribute record and its operands.

    - ``types(attrs, *types)``: the types of the outputs, or a ShapeError or DTypeError.
    - ``spec(attrs, *tensors)``: the outputs on any scalar, from ``gradspec.spec``.
    - ``linear``: ``"jointly"`` if the operator is one linear map of all its float operands, ``"each"`` if it is linear
      in each of them while the others are held. Both need no JVP rule.
    - ``jvp(attrs, primals, tangents)``: ``(outputs, output tangents)``; a tangent is None where it is zero, and at
      least one is not.
    - ``transpose(attrs, cotangents, operands, i)``: the cotangent of operand ``i``, in which the operator is linear.
      ``operands`` holds the others; for a jointly linear operator it holds types only.
    - ``pull_back(attrs, cotangents, operands)``: the cotangents of operands by their places, all at once, instead of
      ``transpose``.
    - ``batch(op, attrs, operands, batched)``: the outputs with a leading axis, given which operands have one.
    - ``decompose(attrs, *operands)``: the outputs, made of other operators. None for an operator of the core, which
      ``gradspec.ops.core`` lists.
    - ``sums``: how it is a sum of products, from which its bounds follow.
    - ``enclosure(node, *boxes)``: boxes of the outputs, given those of the operands, if it is no sum.
    - ``relaxation(node, boxes, share)``: lines below and above the output over the boxes of the operands. ``share``, a
      number from 0 to 1 for each cell or None for the usual choice, says which of the possible lines to take.
    """

    name: str
    attributes: type
    types: Callable[..., tuple[TensorType, ...]]
    spec: Callable[..., tuple[Tensor, ...]]
    batch: Callable[..., tuple[Var, ...]]
    linear: str | None = None
    jvp: Callable[..., JvpResult] | None = None
    transpose: Callable[..., Var] | None = None
    pull_back: Callable[..., Mapping[int, Var]] | None = None
    decompose: Callable[..., tuple[Var, ...]] | None = None
    sums: Sums | None = None
    enclosure: Callable[..., Any] | None = None
    relaxation: Callable[..., Any] | None = None
    crop: Callable[..., Crop] | None = None
    """``crop(attrs, types, sizes)``: how to compute a patch of the result, of ``sizes`` cells along its last axes, away
    from padding: attributes, and for each operand, along each axis, its stride, its offset and the cells it needs.
    An entry is None for an operand that is needed whole, and the result is None if patches are not alike."""
    kinks: Callable[[Any], tuple[float, ...]] | None = None
    """``kinks(attrs)``: the operands at which the operator, else linear in its one operand, bends."""
    selects: bool = False
    """The operator compares cells, or operands, and goes by which is larger: where they tie, its derivative jumps."""
    is_data_movement: bool = False
    """The operator only moves numbers, so that applying it to constants while compiling is exact."""
    fuse_adjacent: Callable[[Attributes, Attributes, TensorType], Attributes | None] | None = None
    """``fuse_adjacent(first, second, type)``: the attributes of one application that replaces two in a row to an
    operand of ``type``; None if the two are the identity. Without the rule, they are not fused."""
    constant: bool = False
    """The outputs do not change with the operands as far as derivatives go (comparisons, detach)."""
    surrogate: Callable[..., Var] | None = None
    """``surrogate(attrs, *operands)``: a function that grows with the output, and has slopes where it has none, or next
    to none. What looks for inputs goes by these."""

    is_composite: bool = False
    """The operator has no kernels and no bounds; what runs or bounds graphs takes what it decomposes into."""

    def __repr__(self) -> str:
        return self.name

    def missing(self, rule: str, why: str = "") -> UnsupportedError:
        """The error for a rule that this operator lacks."""
        return UnsupportedError(
            f"{self.name} has no {rule} rule{why and f' ({why})'}; add it to its record in src/gradspec/ops"
        )


@dataclass(frozen=True, eq=False)
class Node:
    """One application of an operator."""

    op: Op
    attrs: Attributes
    inputs: tuple[Var, ...]
    outputs: tuple[Var, ...]


@dataclass(frozen=True, eq=False, repr=False)
class Body:
    """Inputs, constants, nodes in order of execution, and outputs: all that a graph holds.

    Every variable is assigned once, before it is used.
    """

    inputs: tuple[Var, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Var, ...]
    constants: Mapping[Var, Array] = field(default_factory=lambda: MappingProxyType({}))
