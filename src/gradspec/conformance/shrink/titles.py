"""What is wrong, in one sentence, and how bad that is: read off the rule that is broken and the smallest case."""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import inf, isfinite, isnan

from gradspec.conformance.judge.conventions import CONVENTIONS, NEEDS_DOCUMENTATION
from gradspec.conformance.model.case import FEATURES, REFERENCE_FEATURES
from gradspec.conformance.model.geometry import geometry_of, is_usual
from gradspec.conformance.model.problem import AVERAGES, CONVOLUTIONS, SELECTIONS
from gradspec.conformance.model.verdict import FINDINGS, Finding
from gradspec.conformance.shrink.search import conventions

SEVERITIES = ("memory", "wrong results", "precision", "conventions")
"""From worst to least."""
MEMORY = (
    "channel",
    "left_behind",
    "crash",
    "poisoned",
    "guard",
    "hang",
    "input_changed",
    "index_range",
    "state",
    "concurrent",
)
REPEATED = ("not_repeatable", "threads")
NEAR = {"bf16": 0.02, "f16": 0.01, "f32": 0.004, "f64": 0.004}
"""A sum that is wrong by less than this part of it, by dtype, has all its terms."""
SOMEWHAT = 0.02
"""A sum that is wrong by less than this part of it is said to be so in percent."""


def severity(finding: Finding) -> str:
    """Which of `SEVERITIES` a finding is of."""
    if finding.rule in (*MEMORY, *REPEATED):
        return "memory"
    chosen = conventions(finding.explanation)
    if finding.kind == "convention" or (
        chosen and finding.rule != "adjoint" and NEEDS_DOCUMENTATION.isdisjoint(chosen)
    ):
        return "conventions"
    return "precision" if finding.kind == "reduced" or _is_near(finding) else "wrong results"


def rank(finding: Finding) -> tuple[int, int]:
    """For sorting, the worst first."""
    return FINDINGS.index(finding.kind), SEVERITIES.index(severity(finding))


def title(finding: Finding) -> str:
    """What is wrong, in a sentence without its full stop.

    >>> title(Finding("conv", "value", "defect", (), "f32", {}, "KeyError: 'x'", "", "raised", ""))
    'It raises KeyError'
    """
    said = next(_candidates(finding))
    return said[:1].upper() + said[1:]


def _candidates(finding: Finding) -> Iterator[str]:
    """Sentences, the most telling first; the last one always fits."""
    yield from _of_the_call(finding)
    liberty = re.search(r"within the tolerance of ([\w+]+)", finding.explanation, re.IGNORECASE)
    if finding.kind == "reduced" and liberty:
        yield f"{_noun(finding)} has the precision of {liberty[1]}"
    if finding.suspicion:
        yield finding.suspicion.replace("it is wrong", f"{_noun(finding)} is wrong")
    chosen = conventions(finding.explanation)
    if chosen:
        yield " and ".join(CHOICES.get(name, CONVENTIONS[name]) for name in chosen)
    if finding.case:
        yield from _of_the_shape(finding)
        yield from _of_the_numbers(finding)
    yield _where(finding, f"{_noun(finding)} is wrong")


CHOICES = {
    "nan_ignored": "a NaN in the window is ignored",
    "padding_competes": "padding wins where all else is the lowest number",
    "zero_sign": "a zero has the wrong sign",
    "another_subgradient": "at a kink, another subgradient is taken than the reference's",
    "unpool_overwrites": "of cells that are unpooled to one place only one is kept",
}
"""Conventions that are said more plainly than by their definitions."""

CALLS = {
    "hang": "the call does not return",
    "promised_error": "no error comes where one is promised",
    "adjoint": "the VJP is not the transpose of the JVP",
    "not_repeatable": "the same call gives another result",
    "threads": "the result depends on the number of threads",
    "state": "the result depends on earlier calls",
    "concurrent": "calls from several threads disturb each other",
    "index_range": "an index names no cell",
    "channel": "it wrote to the channel of the judge",
    "declined_numbers": "it declines by the numbers of its input",
    "left_behind": "it leaves processes behind",
}
MEMORY_DETAILS = {
    "wrote beside": "it writes outside the array it was given",
    "torch.empty full of": "it returns cells of torch.empty that it never wrote",
    "not written": "it leaves cells of its output unwritten",
    "out= full of": "it reads its output before writing it",
    "later calls wrote": "a later call overwrites an earlier result",
    "lies in the memory": "the result lies in the memory of an input",
    "around the inputs": "it reads memory outside its inputs",
    "where memory does": "it reads memory outside its inputs",
}
"""By what a verdict of ``guard`` says of the circumstances."""


def _of_the_call(finding: Finding) -> Iterator[str]:
    if finding.rule in CALLS:
        yield CALLS[finding.rule]
    if finding.rule == "crash":
        how = re.search(r"SIG\w+|status \d+", finding.got)
        yield _where(finding, f"it crashes{f' ({how[0]})' if how else ''}")
    if finding.rule == "poisoned":
        yield _where(finding, f"the device is lost ({finding.got.rpartition('error: ')[2].strip('. ')})")
    if finding.rule == "raised":
        yield _where(finding, f"it raises {finding.got.partition(':')[0]}")
    if finding.rule == "input_changed":
        is_input = not finding.case or finding.result in finding.call.named()
        yield f"it changes its {'input ' * is_input}{finding.result}"
    if finding.rule == "dtype":
        yield f"the result has dtype {finding.got} in the place of {finding.expected}"
    if finding.rule == "guard":
        yield from (said for words, said in MEMORY_DETAILS.items() if words in finding.explanation.lower())
        yield "it uses memory that is not its own"
    if finding.rule == "padding_only":
        yield f"a window without a real cell gives {finding.got}"


def _of_the_shape(finding: Finding) -> Iterator[str]:
    if finding.rule != "shape":
        return
    got, due = (tuple(map(int, re.findall(r"\d+", text))) for text in (finding.got, finding.expected))
    if finding.case["problem"]["attributes"].get("ceil_mode") and len(got) == len(due):
        fewer = any(a < b for a, b in zip(got, due, strict=True))
        yield "the last window of ceil_mode is dropped" if fewer else "ceil_mode adds a window too many"
    yield _where(finding, f"{_noun(finding)} has the wrong shape")


def _of_the_numbers(finding: Finding) -> Iterator[str]:
    got, due = _number(finding.got), _number(finding.expected)
    if got is None or due is None or finding.result == "indices":
        return
    if isnan(due) and not isnan(got):
        yield "a NaN in the window is ignored" if finding.op in SELECTIONS else "a NaN is lost"
    if isnan(got) or (not isfinite(got) and isfinite(due)):
        what = "a NaN" if isnan(got) else "an infinity"
        yield _where(finding, f"{_noun(finding)} is wrongly {what}")
    if finding.op == "max_pool" and finding.result == "y" and got == 0 > due and _has_padding(finding):
        yield "padding wins over negative values"
    if "subnormal" in finding.features and got == 0 != due:
        yield "subnormal numbers become zero"
    if finding.result.startswith("grad") and finding.op in SELECTIONS and got == 0 != due:
        yield _where(finding, "a cell that won gets no gradient")
    if _is_near(finding):
        yield f"{_noun(finding)} is not as precise as {finding.dtype} allows"
    if 0 < (off := _relative_error(finding)) <= SOMEWHAT:
        yield f"{_noun(finding)} is off by {100 * off:.2g} %"


def _number(text: str) -> float | None:
    """The first number of a text: of an interval, its lower end."""
    found = re.match(r"\[?(-?inf|nan|-?[\d.]+(?:e[-+]?\d+)?)", text)
    return None if found is None else float(found[1])


def _is_near(finding: Finding) -> bool:
    """Whether a wrong sum has all its terms."""
    return 0 < _relative_error(finding) <= NEAR.get(finding.dtype, 0.0)


def _relative_error(finding: Finding) -> float:
    """How far a wrong sum is from what is permitted, in proportion; infinite where it is none."""
    numbers = [float(text) for text in re.findall(r"-?[\d.]+(?:e[-+]?\d+)?", finding.expected)]
    got = _number(finding.got)
    is_sum = finding.rule.endswith(("sum", "smooth", "hits", "second"))
    if not is_sum or got is None or not numbers or not isfinite(got):
        return inf
    return min(abs(got - number) for number in numbers) / (max(abs(got), *map(abs, numbers)) or 1.0)


def _has_padding(finding: Finding) -> bool:
    """Whether the window of the wrong output reads padding."""
    window, place = geometry_of(finding.call.problem).window, finding.place or ()
    if window is None or len(place) < window.rank:
        return False
    outputs = place[len(place) - window.rank :]
    return any(
        not 0 <= p < n for axis, o, n in zip(window.axes, outputs, window.sizes, strict=True) for p in axis.positions(o)
    )


# --- words ------------------------------------------------------------------------------------------------------------

RESULTS = {"indices": "the index", "dy": "the tangent"}
INPUT_NAMES = {"x": "the input", "weight": "the weight", "bias": "the bias"}


def _noun(finding: Finding) -> str:
    result = finding.result
    if finding.case and result == f"second_{finding.call.problem.cotangent}":
        return "the second derivative"
    if result in RESULTS:
        return RESULTS[result]
    if result.startswith(("grad_", "second_")):
        kind, _, name = result.partition("_")
        return f"the {'gradient' if kind == 'grad' else 'second derivative'} of {INPUT_NAMES.get(name, name)}"
    if finding.op in SELECTIONS:
        return "the maximum"
    if finding.op in AVERAGES:
        return "the average"
    return "the convolution" if finding.op in CONVOLUTIONS else "the result"


ATTRIBUTES = {
    "padding": "with padding",
    "dilation": "with dilation",
    "ceil_mode": "with ceil_mode",
    "count_include_pad": "without count_include_pad",
    "divisor_override": "with divisor_override",
    "groups": "with groups",
    "output_padding": "with output_padding",
    "ties": "with this tie rule",
    "keepdims": "without keepdims",
}
"""What attributes that are not at their defaults amount to; shrinking has left those that are needed."""
NUMBERS = {
    "ties": "where cells tie",
    "nan": "beside a NaN",
    "infinity": "beside an infinity",
    "signed_zero": "where zeros have signs",
    "subnormal": "on subnormal numbers",
    "huge": "on numbers near the largest",
    "empty_batch": "on an empty batch",
    "zero_channels": "without channels",
    "non_contiguous": "on arrays with gaps in memory",
    "channels_last": "with channels last in memory",
    "long_sum": "in long sums",
    "large": "in large arrays",
    "integer": "on integers",
    "large_numbers": "on large numbers",
    "tiny_numbers": "on tiny numbers",
    "cancelling": "where terms cancel",
    "offset": "on numbers that differ little from a large one",
    "block_width": "on long rows",
    "block_height": "on long columns",
    "block_channels": "with many channels",
    "block_out_channels": "with many output channels",
    "block_groups": "with many groups",
    "block_batch": "with many samples",
}
MOST = 2
"""Circumstances that a title names."""


def _where(finding: Finding, sentence: str) -> str:
    """A sentence with what the smallest case needs to fail."""
    found = list(_circumstances(finding))
    every = {**FEATURES, **REFERENCE_FEATURES}
    found += [NUMBERS[name] for name in every if name in finding.causes and name in NUMBERS]
    if not found and finding.dtype not in ("", "f32") and not any(where.endswith(" f32") for where in finding.seen):
        found.append(f"in {finding.dtype}")
    return " ".join([sentence, *[" and ".join(found[:MOST])] * bool(found)])


def _circumstances(finding: Finding) -> Iterator[str]:
    """What attributes and inputs that could be left out amount to."""
    if not finding.case:
        return
    problem = finding.call.problem
    usual = {name for name in problem.attributes if is_usual(problem.op, problem.rank, problem.attributes, name)}
    yield from (ATTRIBUTES[name] for name in ATTRIBUTES if name in problem.attributes and name not in usual)
    if problem.op in CONVOLUTIONS and problem.shapes[2] is not None:
        yield "with a bias"
    if "stride" in problem.attributes and "stride" not in usual and "kernel_size" in problem.attributes:
        yield "where windows overlap" if "overlapping" in finding.features else "where windows lie apart"
