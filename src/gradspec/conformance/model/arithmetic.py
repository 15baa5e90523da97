"""How a kernel computes, as far as the certified tolerance must know."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

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
    """What a kernel accumulates in, what it stores, and the liberties it declares.

    ``algorithm`` is one of ``ALGORITHMS``, or None where every output adds up its own leaves. ``input_error`` is the
    relative error of rounding inputs first (TF32: 2^−11). ``exp_error`` and ``log_error`` are the relative errors of
    the kernel's exp and log; four units in the last place unless declared.

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

    def __post_init__(self) -> None:
        if self.algorithm is not None and self.algorithm not in ALGORITHMS:
            raise ValueError(f"there is no algorithm {self.algorithm!r}; declare one of {', '.join(ALGORITHMS)}")

    @staticmethod
    def of(storage: str | Format, accumulate: str | Format | None = None, **declared: object) -> Arithmetic:
        """Storage in one format, by default accumulated in float32 (float64 for float64)."""
        stored = format_named(storage)
        wide = format_named(accumulate) if accumulate is not None else max(stored, F32, key=lambda f: f.precision)
        return Arithmetic(wide, stored, **{k: rational(v) if k.endswith("error") else v for k, v in declared.items()})  # type: ignore[arg-type]

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
        liberties = (self.flush_to_zero, self.truncating, self.input_error, self.algorithm)
        return hash((self.accumulate, self.storage, *liberties))

    def __hash__(self) -> int:  # computed once: the bounds are looked up by arithmetic for every output
        return self._hash

    def relative_error(self, function: str) -> fmpq:
        declared = self.exp_error if function == "exp" else self.log_error
        return 8 * self.u if declared is None else declared
