"""How a kernel computes, as far as the certified tolerance must know."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from flint import fmpq

from gradspec.conformance.model.problem import AVERAGES, CONVOLUTIONS
from gradspec.domains.exact import rational
from gradspec.domains.formats import F32, Format, format_named

ALGORITHMS: dict[str, tuple[str, tuple[str, ...]]] = {
    "fft": ("products of transforms: every output of a sample mixes its whole planes", CONVOLUTIONS),
    "winograd": ("products of small transforms: every output mixes the tiles around it", CONVOLUTIONS),
    "integral_image": ("differences of a summed-area table: every window mixes its whole plane", AVERAGES),
    "prefix_sum": ("differences of running sums: every window mixes its whole plane", AVERAGES),
}
"""Ways to add up that mix what an output does not read, and the operators whose sums can be computed so."""


@dataclass(frozen=True)
class Arithmetic:
    """What a kernel accumulates in, what it stores, and the liberties it declares; docs/tolerance.md derives each.

    - ``algorithm``: one of ``ALGORITHMS``, or None if every output sums its own leaves.
    - ``input_error``: the relative error of rounding inputs first. ``tf32``: float32 factors have 11 bits.
    - ``exp_error``, ``log_error``: the relative errors of exp and log in smooth pooling; 8u if they are not declared.

    In graphs, where every variable has a format of its own:

    - ``accumulators``: pairs of names, a storage format and the format that its sums are accumulated in; for all sums
      (``"f16"``), or for one kind (``"f16 conv"``: ``conv``, ``conv_transpose``, ``conv_weight_grad``, ``matmul`` or
      ``sum``).
    - ``parts``: names of sums whose parts are each stored and then added in the storage format.
    - ``function_error``: the relative error of elementary functions; 4u if it is not declared.
    - ``fast_math``: the errors of CUDA's intrinsics, and small results flushed to zero.
    - ``variance_by_moments``: squares of sums are multiplied out, as ``mean(x²) − mean(x)²``.
    - ``online_softmax``: the block size after which a softmax may be rescaled; 0 if it never is.
    - ``reassociated``: coefficients are multiplied with each other first, and sums of sums are one sum.
    - ``wide_intermediates``: what the graph converts to a narrower format is rounded once, when it is finished.
    - ``normwise``: convolutions and matrix products have this many times the error of the largest result. An estimate:
      nothing is proved about it.

    >>> Arithmetic.of("f16").accumulate.name
    'f32'
    """

    accumulate: Format
    storage: Format
    flush_to_zero: bool = False
    truncating: bool = False
    input_error: fmpq = fmpq(0)  # noqa: RUF009  (fmpq is immutable)
    exp_error: fmpq | None = None
    log_error: fmpq | None = None
    algorithm: str | None = None
    accumulators: tuple[tuple[str, str], ...] = ()
    parts: tuple[str, ...] = ()
    tf32: bool = False
    function_error: fmpq | None = None
    fast_math: bool = False
    variance_by_moments: bool = False
    online_softmax: int = 0
    reassociated: bool = False
    wide_intermediates: bool = False
    normwise: float = 0.0

    def __post_init__(self) -> None:
        if self.fast_math:
            object.__setattr__(self, "flush_to_zero", True)
        if self.tf32 and self.storage == F32:
            object.__setattr__(self, "input_error", max(self.input_error, fmpq(1, 2**11)))
        if self.algorithm is not None and self.algorithm not in ALGORITHMS:
            raise ValueError(f"there is no algorithm {self.algorithm!r}; declare one of {', '.join(ALGORITHMS)}")

    @staticmethod
    def of(storage: str | Format, accumulate: str | Format | None = None, **declared: Any) -> Arithmetic:
        """Storage in one format, by default accumulated in float32 (float64 for float64).

        >>> how = Arithmetic.of("f32", accumulators={"f16": "f16"}, online_softmax=64)
        >>> how.accumulator(format_named("f16")).name, how.accumulator(format_named("bf16")).name
        ('f16', 'f32')
        """
        stored = format_named(storage)
        wide = _usual_accumulator(stored) if accumulate is None else format_named(accumulate)
        unknown = declared.keys() - Arithmetic.__dataclass_fields__.keys()
        if unknown:
            raise TypeError(
                f"an arithmetic has no {', '.join(sorted(unknown))}; declare some of "
                f"{', '.join(list(Arithmetic.__dataclass_fields__)[2:])}"
            )
        if "accumulators" in declared:
            declared["accumulators"] = tuple(sorted(dict(declared["accumulators"]).items()))
        declared["parts"] = tuple(declared.get("parts", ()))
        numbers: dict[str, Any] = {k: rational(v) if k.endswith("error") else v for k, v in declared.items()}
        return Arithmetic(wide, stored, **numbers)

    def accumulator(self, storage: Format, kind: str = "sum") -> Format:
        """The format in which sums of a kind are accumulated, for results of the format ``storage``."""
        named = dict(self.accumulators)
        name = named.get(f"{storage.name} {kind}", named.get(storage.name))
        if name is not None:
            return format_named(name)
        return self.accumulate if storage == self.storage else _usual_accumulator(storage)

    def is_in_parts(self, storage: Format, kind: str) -> bool:
        return storage.name in self.parts or f"{storage.name} {kind}" in self.parts

    @property
    def multiplies_out(self) -> bool:
        """Whether products of sums may be computed as sums of products."""
        return self.reassociated or self.variance_by_moments

    def rounded_inputs(self, storage: Format) -> fmpq:
        """The relative error of factors, of the format ``storage``, that are rounded first."""
        return fmpq(0) if self.tf32 and storage != F32 else self.input_error

    @cached_property
    def u(self) -> fmpq:
        """The relative error of one rounding: twice as much when it truncates."""
        return rational(self.accumulate.unit) * (2 if self.truncating else 1)

    @cached_property
    def underflow(self) -> fmpq:
        """The absolute error of one product that underflows: η/2, or η when it truncates."""
        return rational(self.accumulate.tiniest) / (1 if self.truncating else 2)

    @cached_property
    def accumulator_limits(self) -> tuple[fmpq, fmpq]:
        """``Ω`` and ``Ω⁺`` of the accumulator."""
        return rational(self.accumulate.largest), rational(self.accumulate.overflow)

    @property
    def exact_sums_are_exact(self) -> bool:
        """Sums that fit the accumulator come out exact, unless inputs are rounded or small results flushed."""
        return not self.flush_to_zero and self.input_error == 0

    @cached_property
    def _hash(self) -> int:
        liberties = (self.flush_to_zero, self.truncating, self.input_error, self.algorithm, self.fast_math)
        return hash((self.accumulate, self.storage, *liberties))

    def __hash__(self) -> int:  # computed once: the bounds are looked up by arithmetic for every output
        return self._hash

    def relative_error(self, function: str) -> fmpq:
        declared = self.exp_error if function == "exp" else self.log_error
        return 8 * self.u if declared is None else declared


def _usual_accumulator(storage: Format) -> Format:
    return max(storage, F32, key=lambda f: f.precision)
