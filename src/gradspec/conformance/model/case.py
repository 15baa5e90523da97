"""The cases a target is judged on: what they may have, what a user selects of them, and what a campaign must know."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from gradspec.conformance.model.problem import INPUTS, MODES, Problem

FEATURES: dict[str, str] = {
    "asymmetric": "sizes, kernels, strides or paddings that differ between axes or sides",
    "overlapping": "a stride less than the window's extent",
    "non_divisible": "a stride or output size that does not divide the axis",
    "strided": "a stride above 1 along an axis of several windows",
    "dilated": "gaps between the cells of a window",
    "common_factor": "a stride and a dilation of one axis that have a common factor",
    "kernel_2": "windows of two cells along every axis",
    "kernel_3": "windows of three cells along every axis",
    "padding_only_window": "a window without a real cell",
    "ceil_mode": "a last window added by rounding up",
    "count_exclude_pad": "an average over the real cells only",
    "divisor_override": "an average with a given divisor",
    "grouped": "channels in groups",
    "depthwise": "one group per input channel",
    "output_padding": "a transposed convolution with a longer output",
    "ties": "equal cells in a window",
    "nan": "NaNs among the inputs",
    "infinity": "infinities among the inputs",
    "signed_zero": "zeros of both signs",
    "subnormal": "numbers below the smallest normal one",
    "huge": "numbers near the largest one",
    "empty_batch": "a leading axis of size 0",
    "zero_channels": "no channels",
    "one_cell_axis": "a spatial axis of size 1",
    "non_contiguous": "arrays with gaps in memory, or with strides that are negative or zero",
    "channels_last": "arrays with channels fastest in memory",
    "low_precision": "float16 or bfloat16",
    "long_sum": "sums of a thousand leaves or more",
    "many_hits_one_cell": "one cell that many windows read or choose",
    "integer": "an integer dtype",
    "large": "arrays of many thousand cells, more than one cache or one thread's share",
    "rank4": "four spatial axes",
    "block_width": "a last axis of several blocks: 31 cells or more, of the input or the output",
    "block_height": "another spatial axis of several blocks",
    "block_channels": "several blocks of a convolution's input channels",
    "block_out_channels": "several blocks of a convolution's output channels",
    "block_groups": "31 groups or more",
    "block_batch": "31 samples or more",
}
"""The tags of cases, with what they mean."""
REFERENCE_FEATURES: dict[str, str] = {
    "kink": "an operand at a kink or a branch of the reference, or a tie",
    "block_size": "an axis of several blocks: 31 cells or more, of a size that blocks divide or do not",
    "empty": "an axis of size 0",
    "cancelling": "neighbours that cancel",
    "offset": "numbers that differ little from a large one",
    "large_numbers": "numbers whose exponentials overflow",
    "tiny_numbers": "numbers far below 1",
    "masked": "masks or labels that are all the same",
    **{name: FEATURES[name] for name in ("ties", "nan", "infinity", "signed_zero", "subnormal", "huge")},
    **{name: FEATURES[name] for name in ("one_cell_axis", "non_contiguous", "low_precision")},
}
"""The tags of the cases of a reference."""
PLAIN = "plain"
"""The feature of a case that has none."""
MASKING = ("nan", "infinity", "huge", "empty_batch", "zero_channels")
"""Features that hide others: at most one in a case, in at most a quarter of its windows."""
REGIMES = ("impulse", "exact_sum", "rounding")
MOST_BLOCK = 1 << 16


def check_blocks(given: Iterable[int]) -> tuple[int, ...]:
    """The blocks that were given, if they are sizes.

    >>> check_blocks([96, 0])
    Traceback (most recent call last):
        ...
    ValueError: 0 is no block of a kernel; a block has from 2 to 65536 cells, channels or samples
    """
    blocks = tuple(given)
    for block in blocks:
        if not isinstance(block, int | np.integer) or not 2 <= block <= MOST_BLOCK:
            limits = f"a block has from 2 to {MOST_BLOCK} cells, channels or samples"
            raise ValueError(f"{block!r} is no block of a kernel; {limits}")
    return tuple(map(int, blocks))


@dataclass(frozen=True)
class Selection:
    """What a user asked for; empty means everything."""

    ops: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    modes: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    domain: str = ""
    """What goes before the target's own domain, as `KernelDomain.read` takes it."""
    sizes: tuple[int, ...] = ()
    """Blocks that a kernel works in; cases have sizes around them, too."""

    def around(self, blocks: tuple[int, ...]) -> Selection:
        """The same with sizes around further blocks."""
        return replace(self, sizes=tuple(dict.fromkeys((*self.sizes, *blocks))))

    @property
    def of_windows(self) -> Selection | None:
        """What of it is about operators of the specification."""
        ops = tuple(op for op in self.ops if op in INPUTS)
        return replace(self, ops=ops) if ops or not self.ops else None

    @property
    def of_references(self) -> Selection | None:
        """What of it is about layers beside them, which have no ranks, no domains, and features of their own."""
        ops = tuple(op for op in self.ops if op not in INPUTS)
        other = self.ranks or self.domain or (self.features and not {*self.features} & {*REFERENCE_FEATURES})
        return replace(self, ops=ops) if ops or not (self.ops or other) else None

    @property
    def chosen_ops(self) -> tuple[str, ...]:
        return self.ops or tuple(INPUTS)

    @property
    def chosen_modes(self) -> tuple[str, ...]:
        return self.modes or MODES


@dataclass(frozen=True)
class CheckCase:
    """A problem in one mode, and how its numbers are drawn: ``cases.drawn`` makes the same call of it anywhere."""

    batch: int
    index: int
    problem: Problem
    mode: str
    regime: str
    special: str | None
    """The feature of the numbers, if they have one: ties, nan, infinity, signed_zero, subnormal, huge; and of the
    indices of unpooling, padding_only_window (some name no cell) or many_hits_one_cell (many name one)."""
    layout: str
    seed: int
    features: frozenset[str] = frozenset()
    is_quick: bool = False
    """Whether one call of it is judged, in one of the target's ways to make it, and nothing beside."""

    @property
    def name(self) -> str:
        """``batch.index``: with the seed of a run, it makes the case again."""
        return f"{self.batch}.{self.index}"


DEFAULT_SECONDS = 60.0
DEFAULT_TIMEOUT = 60.0


@dataclass(frozen=True)
class ReferenceRequest:
    """A reference by name, ``module:object`` or an ONNX file, and the types that a kernel is judged on."""

    spec: str
    inputs: str | None = None
    """None for those that it declares."""
    params: str | None = None
    array: str | None = None


@dataclass(frozen=True)
class CampaignSettings:
    """A target by name, and what of it is judged.

    ``threads`` is how many each process may use, ``timeout`` how many seconds a case may take, ``path`` where user
    kernels are imported from, and ``token`` tells the campaign from others in the same process. ``device`` names where
    kernels run, and ``array`` the library whose arrays kernels of one's own take.
    """

    target: str
    seed: int = 0
    selection: Selection = field(default_factory=Selection)
    allow: tuple[str, ...] = ()
    algorithm: str | None = None
    reference: ReferenceRequest | None = None
    threads: int = 1
    timeout: float = DEFAULT_TIMEOUT
    path: tuple[str, ...] = ()
    token: str = ""
    device: str = "cpu"
    array: str | None = None
    sanitize: bool = False

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise ValueError(f"seed is {self.seed}; give a whole number that is not negative")
        if not self.timeout > 0:
            raise ValueError(f"timeout is {self.timeout:g}; give a positive number of seconds")
