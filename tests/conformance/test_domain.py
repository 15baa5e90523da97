"""Declared domains: cases are drawn inside them, thoroughly, and what cannot be meant is refused with a sentence."""

from functools import partial

import numpy as np
import pytest

from gradspec.conformance.campaign.local import InProcess
from gradspec.conformance.cases.problems import Goal, draw_problem
from gradspec.conformance.cases.stream import Stream
from gradspec.conformance.model.case import CampaignSettings, Selection
from gradspec.conformance.model.domain import EVERYTHING, KernelDomain, frames
from gradspec.conformance.model.problem import Problem
from gradspec.conformance.report import html
from gradspec.conformance.report.words import describe_domain
from gradspec.conformance.targets.user.target import UserKernels
from gradspec.testing import check_kernel

check_here = partial(check_kernel, isolate=False)

NARROW = KernelDomain.of(
    kernel_size={(3, 3)}, stride=2, padding=1, channels=range(8, 1025, 8), batch=1, groups=1, dilation=1
)
DOMAINS = {
    "narrow": ("conv", NARROW),
    "by axis": (
        "conv",
        KernelDomain.of(kernel_size={(3, 5), (1, 7)}, padding={((0, 1), (2, 2)), 0}, stride=range(1, 3)),
    ),
    "grouped": ("conv", KernelDomain.of(groups={2, 4}, channels=range(4, 65, 4), out_channels=range(4, 65, 4))),
    "depthwise": ("conv", KernelDomain.of(channels={8, 16}, out_channels={8, 16}, groups={8, 16}, kernel_size=3)),
    "long rows": ("max_pool", KernelDomain.of(width=range(32, 4097, 32), kernel_size={2, 3}, ceil_mode=True)),
    "one plane": (
        "avg_pool",
        KernelDomain.of(batch=None, channels={None, 1}, count_include_pad=False, kernel_size=range(1, 6)),
    ),
    "transposed": (
        "conv_transpose",
        KernelDomain.of(kernel_size=4, stride=2, padding=1, output_padding={0, 1}, batch={1, 2}),
    ),
    "bins": ("adaptive_avg_pool", KernelDomain.of(output_size={1, 7}, channels=range(16, 129, 16))),
    "large image": (
        "max_pool",
        KernelDomain.of(width=224, height=224, kernel_size=2, stride=2, batch=1, channels={3, 64}),
    ),
    "fold": ("fold", KernelDomain.of(kernel_size=2, stride=2, padding=0, channels={1, 4}, batch=range(1, 9))),
    "global": ("global_max_pool", KernelDomain.of(width=range(7, 15, 7), height=7, channels=range(8, 65, 8), batch=2)),
}


@pytest.mark.parametrize("name", DOMAINS)
def test_every_case_is_drawn_inside_the_domain(name):
    op, domain = DOMAINS[name]
    asked = []

    def refusal(problem, mode):
        asked.append(problem)

    stream = Stream(3, Selection(ops=(op,), dtypes=("f32",), ranks=(2,)), refusal, domain)
    cases = [
        case for number in (*range(20), *range(stream.covering, stream.covering + 6)) for case in stream.batch(number)
    ]
    assert len({(case.problem.shapes, repr(case.problem.attributes)) for case in cases}) > 8
    assert not {domain.excludes(problem) for problem in (*asked, *(case.problem for case in cases))} - {None}


@pytest.mark.parametrize(
    ("domain", "possible", "impossible"),
    [
        (NARROW, "asymmetric overlapping non_divisible one_cell_axis large long_sum zero_channels", "dilated grouped"),
        (NARROW, "nan infinity huge subnormal signed_zero channels_last non_contiguous low_precision", "empty_batch"),
        (DOMAINS["grouped"][1], "grouped depthwise dilated many_hits_one_cell padding_only_window", "zero_channels"),
        (DOMAINS["depthwise"][1], "depthwise grouped overlapping large", "zero_channels"),
        (KernelDomain.of(layouts="channels_last", dtypes="f64"), "channels_last large", "non_contiguous low_precision"),
    ],
)
def test_features_that_are_possible_inside_are_met_and_others_are_not(domain, possible, impossible):
    stream = Stream(5, Selection(ops=("conv",), ranks=(2,)), lambda problem, mode: None, domain)
    met = {name for planned in map(stream.batch, range(100)) for case in planned for name in case.features}
    assert met >= set(possible.split())
    assert not met & set(impossible.split())


def test_one_domain_goes_before_another():
    own, other = KernelDomain.of(kernel_size={3, 5}, batch=1), KernelDomain.of(stride={1, 2}, batch=2)
    assert own.over(other) == KernelDomain.of(kernel_size={3, 5}, stride={1, 2}, batch=1)


@pytest.mark.parametrize("name", DOMAINS)
def test_domains_are_written_as_commands_have_them(name):
    assert KernelDomain.read(str(DOMAINS[name][1])) == DOMAINS[name][1]


def test_a_number_stands_for_every_axis_and_a_range_for_each():
    x = ((4, 9, 9),)

    def allows(kernel, **domain):
        return KernelDomain.of(**domain).excludes(Problem("max_pool", 2, x, {"kernel_size": kernel})) is None

    assert [allows(kernel, kernel_size={2, 3}) for kernel in [(2, 2), (3, 3), (2, 3), (4, 4)]] == [
        True,
        True,
        False,
        False,
    ]
    assert [allows(kernel, kernel_size=range(2, 4)) for kernel in [(2, 3), (4, 2)]] == [True, False]
    assert [allows(kernel, kernel_size=(2, 3)) for kernel in [(2, 3), (3, 2)]] == [True, False]
    assert frames(KernelDomain.of(kernel_size=(2, 3)), "max_pool", 1) == ()
    assert len(frames(EVERYTHING, "max_pool", 2)) == 1


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ({"kernel_size": set()}, r"kernel_size is set\(\), which allows no case; leave it out"),
        ({"channels": range(5, 5)}, r"channels is range\(5, 5\), which allows no case"),
        ({"kernel_size": 0}, "kernel_size names 0; give a whole number from 1 on"),
        ({"stride": "2"}, "stride names '2'; give a whole number"),
        ({"channels": 3.5}, "channels names 3.5"),
        ({"batch": True}, "batch names True"),
        ({"padding": {((1, 1, 1),)}}, "padding names .*; give pairs of the two sides"),
        ({"ceil_mode": 1}, "ceil_mode names 1; give True or False"),
        ({"layouts": "nhwc"}, "layouts names 'nhwc'; give some of contiguous, channels_last"),
        ({"kernel_sise": 3}, "there is no attribute or axis 'kernel_sise'; did you mean kernel_size?"),
    ],
)
def test_what_cannot_be_meant_is_refused_up_front(declared, words):
    with pytest.raises(ValueError, match=words):
        check_here(lambda x, kernel_size, stride: x, "max_pool2d", **declared)


@pytest.mark.parametrize("text", ["kernel_size", "channels=8..x", "stride=", "stride=fast", "kernel_size=3x"])
def test_a_domain_that_cannot_be_read_says_so(text):
    with pytest.raises(ValueError, match=text.partition("=")[0]):
        KernelDomain.read(text)


# --- a kernel with a domain -------------------------------------------------------------------------------------------


class Halving:
    """3 × 3 windows, stride 2, padding 1, channels in eights, one contiguous sample of float32, and nothing else."""

    kernel_size, stride, padding, dilation, groups = {(3, 3)}, 2, 1, 1, 1
    channels, batch, layouts, dtypes = range(8, 1025, 8), 1, ("contiguous",), ("f32",)

    def conv2d(self, x, weight, bias, stride, padding, dilation, groups):
        assert (x.ndim, len(x), x.shape[1] % 8, weight.shape[2:], stride, groups) == (4, 1, 0, (3, 3), (2, 2), 1)
        assert x.flags.c_contiguous
        assert x.dtype == np.float32
        padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), *padding))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))[:, :, ::2, ::2]
        y = np.einsum("nchwij,ocij->nohw", windows, weight.astype(np.float64))
        return (y if bias is None else y + bias.astype(np.float64)[:, None, None]).astype(np.float32)


class Forgetful(Halving):
    """Leaves out the channels behind the first sixteen of more than twenty-four."""

    def conv2d(self, x, weight, bias, stride, padding, dilation, groups):
        kept = 16 if x.shape[1] > 24 else None
        return super().conv2d(x[:, :kept].copy(), weight[:, :kept], bias, stride, padding, dilation, groups)


def test_a_kernel_is_judged_inside_what_it_declares():
    run = check_here(Halving, cases=30)
    assert (run.judged, run.findings) == (30, [])
    with pytest.raises(AssertionError, match=r"x = np.full\(\(1, 32, 1, 1\)"):
        check_here(Forgetful, cases=60)


def test_keywords_go_before_what_the_object_declares():
    run = check_here(Halving, cases=8, channels=16, width=range(4, 8))
    assert run.judged == 8


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"ranks": [1]}, r"no case fits ranks 1 and kernel_size 3x3 together"),
        (
            {"kernel_size": (3,), "ranks": [1], "height": 4, "padding": ((1, 1), (1, 1))},
            r"ranks 1 and padding 1\+1x1\+1",
        ),
        ({"features": ["dilated"]}, "features dilated and dilation 1 together"),
        ({"features": ["empty_batch"]}, "features empty_batch and batch 1 together"),
        ({"features": ["channels_last"]}, "features channels_last and layouts contiguous together"),
        (
            {"groups": 5, "channels": range(8, 33, 8)},
            r"channels 8\.\.32:8 and groups 5 together",
        ),
        ({"width": 1, "padding": 0}, "kernel_size 3x3, padding 0 and width 1 together"),
        ({"dtypes": ["i8"]}, "integers are for the value of maxima"),
        ({"ops": ["max_pool"]}, "it has no max_pool"),
    ],
)
def test_what_leaves_no_case_is_named(asked, words):
    declared = {"channels": range(8, 65, 8), **asked}
    with pytest.raises(ValueError, match=words):
        check_here(Halving, cases=5, **declared)


def test_one_thing_that_goes_with_nothing_is_named_with_what_it_does_not_go_with():
    domain = KernelDomain.of(kernel_size={(3, 3)}, ranks=2, stride=2)
    with pytest.raises(ValueError, match="no case fits ranks 1 with kernel_size=3x3 or ranks=2; change"):
        Stream(0, Selection(ops=("conv",), ranks=(1,)), lambda problem, mode: None, domain)


def test_other_dtypes_than_the_declared_are_named():
    selection = Selection(ops=("conv",), dtypes=("f64",))
    target = UserKernels(Halving)
    with pytest.raises(ValueError, match="no case fits dtypes f64 and dtypes f32 together"):
        Stream(0, selection, target.refusal, target.domain)


# --- a kernel that declares nothing -----------------------------------------------------------------------------------


def only(*conditions):
    if not all(conditions):
        raise NotImplementedError("not yet")


class Undeclared:
    """Kernels that compute nothing: what they take is all that is asked of them."""

    @staticmethod
    def halving(x, weight, stride, padding, dilation):
        only(x.ndim == 4, len(x) == 1, x.shape[1] % 8 == 0, weight.shape[2:] == (3, 3), stride == (2, 2))
        only(padding == ((1, 1), (1, 1)), dilation == (1, 1), x.flags.c_contiguous, x.dtype == np.float32)

    @staticmethod
    def pairs(x, kernel_size, stride):
        only(kernel_size == stride == (2, 2), x.shape[-1] % 4 == 0)

    @staticmethod
    def one_axis(x, kernel_size, stride, padding):
        only(len(kernel_size) == 1, padding == ((0, 0),))

    @staticmethod
    def depthwise(x, weight, groups):
        only(groups == x.shape[1] == len(weight) > 1, weight.shape[2:] in ((3, 3), (5, 5)))

    @staticmethod
    def averages(x, output_size):
        only(output_size in ((1, 1), (7, 7)), x.shape[1] == 3)


@pytest.mark.parametrize(
    ("kernel", "op", "found"),
    [
        ("halving", "conv2d", "kernel_size=3 stride=2 padding=1 dilation=1 channels=8..1024:8 batch=1 groups=1"),
        ("pairs", "max_pool2d", "kernel_size=2 stride=2 padding=0 dilation=1 width=4..1024:4"),
        ("one_axis", "avg_pool", "padding=0 dilation=1 ranks=1"),
        ("depthwise", "conv2d", "kernel_size=3,5 stride=1 padding=0 dilation=1"),
        ("averages", "adaptive_avg_pool2d", "output_size=1,7 channels=3"),
    ],
)
def test_what_a_kernel_takes_is_found_out(kernel, op, found):
    target = UserKernels(getattr(Undeclared, kernel), op=op)
    domain = KernelDomain.read(InProcess(target, CampaignSettings("mine")).find_domain(1e9))
    assert str(domain).startswith(found)


def test_a_kernel_is_tried_for_as_long_as_there_is_time():
    calls = []

    def conv(x, weight):
        calls.append(x)
        raise NotImplementedError

    judge = InProcess(UserKernels(conv), CampaignSettings("mine"), clock=lambda: float(len(calls)))
    assert judge.find_domain(30.0) == ""
    assert len(calls) == 31


class Quiet(Halving):
    """The same kernel, which raises instead of declaring."""

    kernel_size = stride = padding = dilation = groups = channels = batch = layouts = dtypes = None

    def conv2d(self, x, weight, bias, stride, padding, dilation, groups):
        Undeclared.halving(x, weight, stride, padding, dilation)
        only(groups == 1)
        return super().conv2d(x, weight, bias, stride, padding, dilation, groups)


def test_a_kernel_that_declares_nothing_is_judged_in_what_was_found():
    run = check_here(Quiet, cases=40)
    assert (run.judged, run.findings) == (40, [])
    words = "takes kernel_size 3, stride 2, padding 1, dilation 1, channels from 8 to 1024 that 8 divides, batch 1"
    assert describe_domain(run).startswith(words)
    assert words in html.page(run)


def tomorrow(x, **attributes):
    raise NotImplementedError("tomorrow")


def test_a_kernel_that_declines_everything_says_what_it_said():
    with pytest.raises(ValueError, match="no case could be judged: it raised NotImplementedError: tomorrow"):
        check_here(tomorrow, "max_pool", cases=5)


def test_problems_are_drawn_by_construction():
    """Without the domain, one in many thousands would fit: so it is not by luck that every one does."""
    rng = np.random.default_rng(0)
    assert all(draw_problem(rng, Goal("conv", 2, domain=NARROW)) for _ in range(50))
