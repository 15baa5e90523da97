"""``gradspec.torch`` beside ``torch.nn.functional``: the same calls, the same values, gradients, shapes and errors."""

import importlib.util
import inspect
import pickle
import re
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as theirs
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch._subclasses import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

import gradspec as gs
import gradspec.torch as F  # noqa: N812  (its usual name)
from gradspec.graph.lru import LRUCache
from gradspec.interop.torch import dropin, functional
from gradspec.interop.torch.functional import FUNCTIONS
from gradspec.ops.pointwise import relu as rectified
from gradspec.ops.shape import reshape
from gradspec.runtime import calls
from train_torch import Training

NAN, INF = float("nan"), float("inf")


@pytest.fixture(autouse=True)
def _all_sizes_are_taken(monkeypatch):
    monkeypatch.setattr(functional, "LEAST_CELLS", 0)
    monkeypatch.setattr(functional, "LEAST_PRODUCTS", 0)
    monkeypatch.setattr(functional, "LEAST_BINS", 0)
    monkeypatch.setattr(calls, "_calls", LRUCache(calls.MOST_CALLS))


@dataclass(frozen=True)
class Case:
    """A call: shapes of the tensors (None: not given), and the other arguments. ``taken``: a graph carries it out."""

    name: str
    shapes: tuple
    args: tuple = ()
    kwargs: dict = field(default_factory=dict)
    taken: bool = True

    def __str__(self):
        return f"{self.name} {self.shapes} {self.args} {self.kwargs}"


def conv(rank, shape, weight, *args, bias=False, **kwargs):
    return Case(f"conv{rank}d", (shape, weight, weight[:1] if bias else None), args, kwargs)


def transposed(rank, shape, weight, *args, bias=None, **kwargs):
    return Case(f"conv_transpose{rank}d", (shape, weight, bias), args, kwargs)


def case(name, shape, *args, taken=True, **kwargs):
    return Case(name, (shape,), args, kwargs, taken)


def norm(shape, *, taken=True, weight=True, bias=True, **kwargs):
    per_channel = shape[1:2]
    shapes = (shape, per_channel, per_channel, per_channel if weight else None, per_channel if bias else None)
    return Case("batch_norm", shapes, (), kwargs, taken)


IMAGE = (2, 3, 7, 6)

CASES = [
    conv(1, (2, 3, 9), (4, 3, 3)),
    conv(1, (3, 9), (4, 3, 3), 2, 1, bias=True),
    conv(2, IMAGE, (4, 3, 3, 2), bias=True),
    conv(2, IMAGE, (4, 3, 3, 2), (2, 1), (1, 0), (1, 2)),
    conv(2, IMAGE, (6, 1, 3, 3), padding=1, groups=3),
    conv(2, IMAGE, (4, 3, 3, 2), padding="same", dilation=2, bias=True),
    conv(2, IMAGE, (4, 3, 3, 2), padding="valid", stride=[2, 3]),
    conv(2, (3, 7, 6), (4, 3, 3, 2), padding=5),
    conv(2, (0, 3, 7, 6), (4, 3, 3, 2), bias=True),
    conv(3, (1, 2, 4, 5, 3), (3, 2, 2, 3, 2), padding=1, bias=True),
    transposed(1, (2, 3, 5), (3, 2, 4), 2, 1, 1),
    transposed(2, IMAGE, (3, 2, 3, 2), (2, 3), 1, 1, bias=(2,)),
    transposed(2, (4, 5, 6), (4, 2, 3, 3), groups=2, dilation=2, bias=(4,)),
    transposed(3, (1, 2, 3, 2, 3), (2, 2, 2, 2, 2), stride=2),
    case("max_pool1d", (2, 3, 9), 3),
    case("max_pool1d", (3, 9), 3, 2, 1, ceil_mode=True),
    case("max_pool2d", IMAGE, 2),
    case("max_pool2d", IMAGE, (3, 2), (2, 1), (1, 1), 1, True, True),
    case("max_pool2d", (3, 7, 6), 2, None, 0, 2, return_indices=True),
    case("max_pool2d", (0, 3, 7, 6), 2),
    case("max_pool3d", (1, 2, 5, 4, 6), 3, 2, padding=1, return_indices=True),
    case("avg_pool1d", (2, 3, 9), 4, 3, 2, True, False),
    case("avg_pool2d", IMAGE, 3, 2, 1),
    case("avg_pool2d", IMAGE, [3, 2], 2, (1, 0), True, False),
    case("avg_pool2d", (3, 7, 6), 2, divisor_override=3, ceil_mode=True),
    case("avg_pool3d", (1, 2, 5, 4, 6), 2, 1, 1, False, True, -2),
    case("adaptive_max_pool1d", (2, 3, 9), 4),
    case("adaptive_max_pool2d", IMAGE, (3, 4), True),
    case("adaptive_max_pool2d", (3, 7, 6), (None, 4)),
    case("adaptive_max_pool3d", (1, 2, 5, 4, 6), (2, 3, 7), return_indices=True),
    case("adaptive_avg_pool1d", (3, 9), (4,)),
    case("adaptive_avg_pool2d", IMAGE, 1),
    case("adaptive_avg_pool2d", (0, 3, 7, 6), (9, None)),
    case("adaptive_avg_pool3d", (1, 2, 5, 4, 6), [2, None, 7]),
    case("lp_pool1d", (2, 3, 9), 2, 3),
    case("lp_pool2d", IMAGE, 4.0, (3, 2), 1),
    case("lp_pool2d", (3, 7, 6), 2.0, 2, stride=(2, 1)),
    case("lp_pool3d", (1, 2, 5, 4, 6), 2, 3, 2),
    case("lp_pool2d", IMAGE, 3, 2, taken=False),
    case("lp_pool2d", IMAGE, 1.5, 2, taken=False),
    case("lp_pool2d", IMAGE, INF, 2, taken=False),
    case("lp_pool2d", IMAGE, 2, 3, 2, True, taken=False),
    norm(IMAGE),
    norm((4, 3), eps=0.1, weight=False),
    norm((2, 3, 5), bias=False),
    norm(IMAGE, training=True, taken=False),
    case("unfold", IMAGE, (3, 2), 2, 1, (1, 2)),
    case("unfold", (3, 7, 6), 2),
    case("fold", (2, 12, 30), (7, 6), 2),
    case("fold", (8, 6), (5, 5), (2, 2), padding=1, stride=(2, 3), dilation=(1, 2)),
    case("interpolate", (2, 3, 7), 17, None, "linear"),
    case("interpolate", IMAGE, None, (3.0, 0.5), "bilinear"),
    case("interpolate", IMAGE, (9, 6), mode="bilinear", align_corners=True),
    case("interpolate", (2, 3, 1, 4), 5, mode="bilinear", align_corners=True),
    case("interpolate", (1, 2, 3, 4, 2), (4, 3, 5), mode="trilinear", align_corners=False),
    case("interpolate", IMAGE, scale_factor=2, taken=False),
    case("interpolate", IMAGE, (5, 5), mode="bilinear", taken=False),
    case("interpolate", IMAGE, scale_factor=1.3, mode="bilinear", taken=False),
    case("interpolate", IMAGE, (9, 9), mode="bicubic", taken=False),
    case("interpolate", IMAGE, (9, 9), mode="bilinear", antialias=True, taken=False),
    conv(1, (2, 3, 9), (4, 3, 3), [2], (1,), [1]),
    conv(2, IMAGE, (4, 3, 3, 2), [2], (1,), [1], bias=True),
    conv(3, (1, 2, 4, 5, 3), (3, 2, 2, 3, 2), padding=(1,)),
    transposed(2, IMAGE, (3, 2, 3, 2), [2], (1,), [1], dilation=[1]),
    case("max_pool1d", (2, 3, 9), [3], []),
    case("max_pool2d", IMAGE, (2,), ()),
    case("max_pool2d", IMAGE, 3, [2], [1], (1,), return_indices=True),
    case("max_pool3d", (1, 2, 5, 4, 6), [3], [], padding=[1]),
    case("avg_pool1d", (2, 3, 9), (4,), []),
    case("avg_pool2d", IMAGE, [3], [], (1,)),
    case("avg_pool3d", (1, 2, 5, 4, 6), [2], stride=(1,)),
]


def tensors_of(case, dtype=torch.float64, seed=0):
    """Random tensors, those that torch differentiates by marked so; variances are positive."""
    random = torch.Generator().manual_seed(seed)
    made = [None if s is None else torch.randn(s, generator=random, dtype=torch.float64) for s in case.shapes]
    if case.name == "batch_norm" and made[2] is not None:
        made[2] = made[2].abs() + 0.5
    is_given = [case.name != "batch_norm" or i not in (1, 2) for i in range(len(made))]
    return [None if t is None else t.to(dtype).requires_grad_(moves) for t, moves in zip(made, is_given, strict=True)]


def results(function, case, tensors):
    found = function(*tensors, *case.args, **case.kwargs)
    return found if isinstance(found, tuple) else (found,)


def gradients(outputs, tensors):
    moving = [t for t in tensors if t is not None and t.requires_grad]
    y = outputs[0]
    seed = torch.linspace(-1, 2, y.numel(), dtype=torch.float64).reshape(y.shape).to(y.dtype)
    return torch.autograd.grad(y, moving, seed)


@contextmanager
def counted():
    """A list of the graphs that calls inside are carried out by."""
    graphs = []

    def call(graph, tensors, carry_out=dropin.call):
        graphs.append(graph)
        return carry_out(graph, tensors)

    with patch.object(dropin, "call", call):
        yield graphs


def agree(case, tensors, **tolerance):
    ours, reference = (results(getattr(module, case.name), case, tensors) for module in (F, theirs))
    assert [t.is_contiguous() for t in ours] == [True] * len(reference)
    for found, wanted in zip(
        (*ours, *gradients(ours, tensors)), (*reference, *gradients(reference, tensors)), strict=True
    ):
        torch.testing.assert_close(found, wanted, **tolerance)


# --- the table -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=str)
def test_values_and_gradients_are_torchs(case):
    with counted() as graphs:
        agree(case, tensors_of(case), rtol=1e-7, atol=1e-7, equal_nan=True)  # powers of negative numbers are NaN
    assert len(graphs) == case.taken


@pytest.mark.parametrize("case", [c for c in CASES if c.taken][::4], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_other_precisions(case, dtype):
    """Sums are rounded once here, and may be rounded more often there: two units in the last place of the largest."""
    if case.name == "avg_pool3d" and dtype is not torch.float32:
        pytest.skip("PyTorch has none on CPUs")
    tolerance = {"rtol": 0, "atol": 64 * torch.finfo(dtype).eps}
    agree(case, tensors_of(case, dtype), **tolerance)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_arguments_by_name_and_by_position_are_the_same(case):
    function, tensors = getattr(F, case.name), tensors_of(case)
    bound = inspect.signature(function).bind(*tensors, *case.args, **case.kwargs)
    by_name = function(**bound.arguments)
    bound.apply_defaults()
    by_place = function(*bound.arguments.values())
    torch.testing.assert_close(by_name, by_place, rtol=0, atol=0, equal_nan=True)


def torch_parameters(name):
    """Names and defaults, from the function, or from the first line of what a built-in one says of itself."""
    function = getattr(theirs, f"{name}_with_indices", getattr(theirs, name))
    if inspect.isbuiltin(function):
        line = re.search(rf"{name}\((.*?)\) -> Tensor", function.__doc__)[1]
        return re.split(r", ?", line)
    return [str(p.replace(annotation=p.empty)) for p in inspect.signature(function).parameters.values()]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_signatures_are_torchs(name):
    parameters = inspect.signature(getattr(F, name)).parameters.values()
    assert [str(p.replace(annotation=p.empty)) for p in parameters] == torch_parameters(name)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_pickled_by_name(name):
    assert pickle.loads(pickle.dumps(getattr(F, name))) is getattr(F, name)


def test_every_name_of_torch_is_there():
    names = {name for name in dir(theirs) if not name.startswith("_")}
    assert names < {*dir(F)} == names | {*F.OWN}
    assert {name for name in names if getattr(F, name) is not getattr(theirs, name)} == {*FUNCTIONS}
    assert names < {*F.__all__}
    with pytest.raises(AttributeError, match="no_such_function"):
        F.no_such_function  # noqa: B018


# --- special values --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "cells", "args"),
    [
        ("max_pool1d", [1, 4, 4, 3, 4, 4], (3, 1)),
        ("max_pool1d", [0.0, -0.0, -0.0, 0.0], (2,)),
        ("max_pool1d", [-INF, -INF, 1, -INF], (2,)),
        ("max_pool1d", [INF, 2, INF, INF], (3, 1, 1)),
        ("max_pool1d", [1, NAN, 3, 2, 5, 4], (2,)),
        ("avg_pool1d", [INF, 1, NAN, 2, -INF, INF], (2,)),
        ("adaptive_max_pool1d", [1, 4, 4, 3, 4, 4, -INF], (3,)),
        ("adaptive_max_pool1d", [1, NAN, 3, 2, 5, 4], (4,)),
        ("adaptive_avg_pool1d", [INF, 1, NAN, 2, -INF, INF], (4,)),
        ("lp_pool1d", [0.0, -0.0, 3, 4, -0.0, 2, NAN, 1], (2, 2)),
    ],
)
def test_ties_and_special_values(name, cells, args):
    x = torch.tensor([cells], dtype=torch.float64, requires_grad=True)
    kwargs = {"return_indices": True} if "max_pool1d" in name else {}
    agree(Case(name, (x.shape,), args, kwargs), [x], rtol=0, atol=0, equal_nan=True)


def test_of_several_nans_the_first_wins():
    x = torch.tensor([[1.0, NAN, 2.0, NAN]], requires_grad=True)
    value, index = F.max_pool1d(x, 4, return_indices=True)
    assert value.isnan()
    assert index.tolist() == [[1]]  # torch: 3
    assert torch.autograd.grad(value.sum(), x)[0].tolist() == [[0, 1, 0, 0]]


# --- errors ----------------------------------------------------------------------------------------------------------

WRONG = [
    conv(2, IMAGE, (4, 2, 3, 2)),
    conv(2, (7, 6), (4, 3, 3, 2)),
    conv(2, IMAGE, (4, 3, 8, 2)),
    conv(2, IMAGE, (4, 3, 3, 2), 0),
    conv(2, IMAGE, (4, 3, 3, 2), 1.5),
    conv(2, IMAGE, (4, 3, 3, 2), []),
    case("unfold", IMAGE, [3]),
    case("max_pool2d", IMAGE, []),
    conv(2, IMAGE, (4, 3, 3, 2), 2, "same"),
    conv(2, IMAGE, (4, 3, 3, 2), padding="full"),
    conv(2, IMAGE, (4, 3, 3, 2), groups=2),
    Case("conv2d", (IMAGE, (4, 3, 3, 2), (3,))),
    transposed(2, IMAGE, (3, 2, 3, 2), 1, 0, 1),
    case("max_pool2d", IMAGE, 2, 1, 2),
    case("max_pool2d", IMAGE, 9),
    case("max_pool2d", (2, 2, 3, 7, 6), 2),
    case("max_pool2d", (2, 3, 0, 6), 2),
    case("adaptive_max_pool2d", IMAGE, (3,)),
    case("adaptive_max_pool2d", IMAGE, (3, -1)),
    case("adaptive_max_pool1d", (9,), 3),
    case("adaptive_max_pool3d", IMAGE, 1.5),
    case("adaptive_avg_pool2d", IMAGE, (1, 2, 3)),
    case("adaptive_avg_pool2d", (2, 3, 0, 6), 2),
    case("adaptive_avg_pool2d", IMAGE, None),
    case("lp_pool2d", IMAGE, 2, 9),
    case("lp_pool2d", IMAGE, 2, 2, 0),
    case("lp_pool2d", IMAGE, "2", 2),
    case("avg_pool2d", IMAGE, 2, divisor_override=0),
    case("avg_pool2d", IMAGE, 2, 0),
    norm(IMAGE, eps=-1.0),
    Case("batch_norm", (IMAGE, (2,), (2,))),
    Case("batch_norm", (IMAGE, None, None)),
    case("unfold", IMAGE, (8, 2)),
    case("fold", (2, 12, 29), (7, 6), 2),
    case("interpolate", IMAGE),
    case("interpolate", IMAGE, (14, 9), 2.0),
    case("interpolate", IMAGE, (14, 9), mode="linear"),
    case("interpolate", IMAGE, (0, 9)),
]


@pytest.mark.parametrize("case", WRONG, ids=str)
def test_errors_are_torchs(case):
    tensors, messages = tensors_of(case), []
    for module in (theirs, F):
        with pytest.raises(Exception) as caught:  # noqa: PT011  (torch's, whichever that is)
            results(getattr(module, case.name), case, tensors)
        messages.append((caught.type, re.split(" - got|\n", str(caught.value))[0]))
    assert messages[0] == messages[1]


def test_options_that_compare_equal_are_not_taken_for_each_other():
    x = torch.randn(1, 2, 6, 6)
    F.max_pool2d(x, 2, 1)
    with pytest.raises(TypeError):
        F.max_pool2d(x, 2, 1.0)
    mixed = torch.randn(1, 2, 6, 6, dtype=torch.float64), torch.randn(3, 2, 3, 3)
    with pytest.raises(RuntimeError, match="Double but found Float"):
        F.conv2d(*mixed)


# --- memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t.transpose(2, 3),
        lambda t: t.flip(3)[:, :, ::2],
        lambda t: t[:, :1].expand(2, 3, 7, 6),
        lambda t: t[..., 1:],
    ],
)
def test_views_are_read_where_they_lie(view):
    x = torch.randn(IMAGE)
    before = x.clone()
    with counted() as graphs:
        torch.testing.assert_close(F.max_pool2d(view(x), 2), theirs.max_pool2d(view(x), 2))
    assert len(graphs) == 1
    assert torch.equal(x, before)


def as_channels_last(t):
    return t.contiguous(memory_format=torch.channels_last if t.ndim == 4 else torch.channels_last_3d)


LAYOUTS = {
    "contiguous": lambda t: t,
    "channels last": as_channels_last,
    "channels last by strides alone": lambda t: t.movedim(1, -1).contiguous().movedim(-1, 1),
    "part of channels last": lambda t: as_channels_last(torch.cat([t, t], 3))[:, :, :, : t.shape[3]],
    "some channels of channels last": lambda t: as_channels_last(torch.cat([t, t], 1))[:, : t.shape[1]],
    "transposed": lambda t: t.mT.contiguous().mT,
    "batch last": lambda t: t.movedim(0, -1).contiguous().movedim(-1, 0),
    "expanded": lambda t: t[:1].expand(t.shape),
}
LAID_OUT = [
    *(conv(2, (2, c, 6, 5), (4, c, k, k), padding=k // 2) for c in (3, 1) for k in (3, 1)),
    conv(2, (2, 3, 1, 1), (4, 3, 1, 1)),
    conv(3, (2, 3, 4, 5, 6), (4, 3, 3, 3, 3)),
    transposed(2, (2, 3, 6, 5), (3, 4, 3, 3)),
    *(case(name, (2, c, 6, 5), 2, 1) for name in ("max_pool2d", "avg_pool2d") for c in (3, 1)),
    case("max_pool2d", (2, 3, 6, 5), 2, 1, return_indices=True),
    case("max_pool3d", (2, 3, 4, 5, 6), 2),
    norm((2, 3, 6, 5)),
    case("interpolate", (2, 3, 6, 5), scale_factor=2.0, mode="bilinear"),
]


@pytest.mark.parametrize("case", LAID_OUT, ids=str)
def test_results_lie_where_torchs_lie(case):
    """In channels_last memory, if that is how torch takes the strides of an image or of a weight."""
    tensors = tensors_of(case, torch.float32)
    images = [i for i, t in enumerate(tensors[:2]) if t is not None and t.ndim > 1]
    for layouts in product(LAYOUTS, repeat=len(images)):
        laid = list(tensors)
        for i, layout in zip(images, layouts, strict=True):
            laid[i] = LAYOUTS[layout](tensors[i].detach())
        ours, reference = (results(getattr(module, case.name), case, laid) for module in (F, theirs))
        with F.accelerated():
            inside = results(getattr(theirs, case.name), case, laid)
        wanted = [t.stride() for t in reference]
        assert [t.stride() for t in ours] == [t.stride() for t in inside] == wanted, layouts


def test_a_changed_input_is_noticed():
    x, weight = torch.randn(1, 2, 4, 4), torch.randn(2, 2, 3, 3, requires_grad=True)
    y = F.conv2d(x, weight)
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_results_are_no_views_of_what_was_given():
    x = torch.randn(1, 1, 4, 4)
    for y in (F.max_pool2d(x, 1), F.avg_pool2d(x, 1), F.interpolate(x, (4, 4), mode="bilinear"), F.unfold(x, 1)):
        y.zero_()
    assert x.all()


# --- what stays with torch -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("small", "large"),
    [
        (conv(2, (1, 8, 14, 14), (8, 8, 3, 3)), conv(2, (4, 8, 28, 28), (8, 8, 3, 3))),
        (transposed(2, (1, 8, 8, 8), (8, 8, 2, 2)), transposed(2, (8, 8, 16, 16), (8, 8, 4, 4))),
        (case("max_pool2d", (1, 8, 14, 14), 2), case("max_pool2d", (8, 8, 28, 28), 2)),
    ],
    ids=lambda c: f"{c.name} {c.shapes[0]}",
)
def test_what_is_done_in_no_time_stays_with_torch(monkeypatch, small, large):
    monkeypatch.undo()
    monkeypatch.setattr(calls, "_calls", LRUCache(calls.MOST_CALLS))
    for one, taken in ((small, 0), (large, 1)):
        with counted() as graphs:
            results(getattr(F, one.name), one, tensors_of(one, torch.float32))
        assert len(graphs) == taken


@pytest.mark.parametrize(("name", "args"), [("adaptive_max_pool2d", (7,)), ("lp_pool2d", (2, 2))])
def test_bins_and_norms_stay_with_torch_on_cpus(monkeypatch, name, args):
    monkeypatch.undo()
    monkeypatch.setattr(calls, "_calls", LRUCache(calls.MOST_CALLS))
    with counted() as graphs:
        results(getattr(F, name), case(name, (8, 8, 64, 64), *args), [torch.ones(8, 8, 64, 64)])
    assert graphs == []


class Marked(torch.Tensor):
    """A tensor whose kind goes through torch's functions."""


class Silent(torch.Tensor):
    """A tensor of another kind that torch's functions take for one of their own."""

    __torch_function__ = torch._C._disabled_torch_function_impl


def channels_last(t):
    return t.to(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(IMAGE, dtype=torch.complex64).real.to(torch.complex64),
        torch.ones(IMAGE, dtype=torch.int64),
        torch.randn(IMAGE).as_subclass(Marked),
        torch.randn(IMAGE).as_subclass(Silent),
        channels_last(torch.randn(IMAGE)),
        torch.randn(IMAGE, device="meta"),
    ],
    ids=["complex", "integers", "subclass", "silent subclass", "channels_last", "meta"],
)
def test_other_tensors_stay_with_torch(x):
    weight = torch.ones(4, 3, 3, 3, dtype=x.dtype, device=x.device)
    with counted() as graphs:
        ours, reference = (m.conv2d(x, weight, padding=1) for m in (F, theirs))
    assert not graphs
    assert (type(ours), ours.stride(), ours.device) == (type(reference), reference.stride(), reference.device)
    if not x.is_meta:
        assert torch.equal(ours, reference)


def test_an_operator_that_gives_another_type_is_not_used(monkeypatch):
    monkeypatch.setattr(dropin, "_known", {})
    flat = dropin.DropIn("relu", lambda x: reshape(x, (x.type.size,)), lambda graph: True)
    x = torch.randn(2, 3)
    assert torch.equal(flat((x,), ()), theirs.relu(x))


@pytest.mark.parametrize("error", [TypeError, KeyError, AttributeError])
def test_an_error_of_our_own_is_not_left_to_torch(monkeypatch, error):
    def broken(x):
        raise error("a bug")

    monkeypatch.setattr(dropin, "_known", {})
    relu = dropin.DropIn("relu", broken, lambda graph: True)
    with pytest.raises(error, match="a bug"):
        relu((torch.randn(2, 5),), ())


@pytest.mark.parametrize("error", [dropin.LeftToTorchError, gs.ShapeError, gs.DTypeError, gs.UnsupportedError])
def test_a_refusal_is_left_to_torch(monkeypatch, error):
    def refusing(x):
        raise error

    monkeypatch.setattr(dropin, "_known", {})
    x = torch.randn(2, 7)
    assert torch.equal(dropin.DropIn("relu", refusing, lambda graph: True)((x,), ()), theirs.relu(x))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_rows_of_unequal_length_stay_with_torch():
    rows, relu = [torch.randn(3, 4), torch.randn(2, 4)], dropin.DropIn("relu", rectified, lambda graph: True)
    ours = relu((torch.nested.nested_tensor(rows),), ())
    torch.testing.assert_close(list(ours.unbind()), [row.relu() for row in rows])


def test_a_fake_tensor_gives_a_fake_tensor():
    with FakeTensorMode(), counted() as graphs:
        y = F.conv2d(torch.randn(IMAGE), torch.randn(4, 3, 3, 3))
    assert y.shape == (2, 4, 5, 4)
    assert not graphs


def test_modes_see_torchs_operators():
    """Those of functions, and those of operators, such as a counter of floating-point operations."""
    seen = []

    class Watching(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    x, w = torch.randn(IMAGE), torch.randn(4, 3, 3, 3)
    with Watching():
        F.conv2d(x, w)
    assert seen == [theirs.conv2d]
    with FlopCounterMode(display=False) as counter:
        F.conv2d(x, w)
    assert counter.get_total_flops() == 2 * 2 * 4 * 5 * 4 * 27


def test_autocast_sees_torchs_operators():
    x, w = torch.randn(IMAGE), torch.randn(4, 3, 3, 3)
    with torch.autocast("cpu", torch.bfloat16):
        assert F.conv2d(x, w).dtype == torch.bfloat16


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("capture", ["trace", "export"])
def test_captured_programs_hold_torchs_operators(capture):
    class Pool(torch.nn.Module):
        def forward(self, x):
            return F.max_pool2d(F.conv2d(x, x[:, :, :3, :3]), 2)

    x = torch.randn(3, 3, 7, 6)
    if capture == "trace":
        graph = str([node.kind() for node in torch.jit.trace(Pool(), x).inlined_graph.nodes()])
        assert "aten::_convolution" in graph
    else:
        graph = str(torch.export.export(Pool(), (x,)).graph)
        assert "aten.conv2d" in graph
    assert "gradspec::" not in graph
    assert "gradspec." not in graph


class EveryFunction(torch.nn.Module):
    """A module that uses all that is replaced, with arguments by name and by position."""

    def forward(self, x: torch.Tensor, w: torch.Tensor, channel: torch.Tensor) -> list[torch.Tensor]:
        row, row_w = x[:, :, 0], w[:, :, 0]
        cube, cube_w = x.unsqueeze(2), w.unsqueeze(2)
        winners = F.max_pool2d(x, 2, return_indices=True)
        patches = F.unfold(x, (2, 2), stride=2)
        return [
            F.conv1d(row, row_w, padding=1),
            F.conv2d(x, w, channel, stride=2),
            F.conv3d(cube, cube_w, padding="same"),
            F.conv_transpose1d(row, row_w, stride=2),
            F.conv_transpose2d(x, w, channel, 2, output_padding=1),
            F.conv_transpose3d(cube, cube_w),
            F.max_pool1d(row, 2),
            winners[0],
            winners[1],
            F.max_pool3d(cube, (1, 2, 2), ceil_mode=True),
            F.avg_pool1d(row, 2),
            F.avg_pool2d(x, 2, divisor_override=3),
            F.avg_pool3d(cube, (1, 2, 2), count_include_pad=False),
            F.adaptive_max_pool1d(row, 3),
            F.adaptive_max_pool2d(x, (3, 5)),
            F.adaptive_max_pool3d(cube, (1, 2, 3)),
            F.adaptive_avg_pool1d(row, 3),
            F.adaptive_avg_pool2d(x, output_size=(3, 5)),
            F.adaptive_avg_pool3d(cube, (1, 2, 3)),
            F.lp_pool1d(row, 2.0, 2),
            F.lp_pool2d(x, 2.0, 2, stride=1),
            F.lp_pool3d(cube, 2.0, (1, 2, 2)),
            F.batch_norm(x, channel, channel * channel + 1, training=self.training),
            patches,
            F.fold(patches, (x.size(2), x.size(3)), 2, stride=2),
            F.interpolate(x, scale_factor=2.0, mode="bilinear"),
            F.relu(x),
        ]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_script_holds_torchs_operators():
    assert not [name for name in FUNCTIONS if f"F.{name}(" not in inspect.getsource(EveryFunction)]
    given = torch.randn(2, 4, 6, 8), torch.randn(4, 4, 3, 3), torch.randn(4)
    module = EveryFunction().eval()
    script = torch.jit.script(module)
    assert not [node for node in script.inlined_graph.nodes() if node.kind().startswith(("gradspec", "prim::Python"))]
    torch.testing.assert_close(script(*given), module(*given))


# --- other derivatives, torch.func and torch.compile -----------------------------------------------------------------

SMOOTH = [
    conv(2, (1, 2, 4, 3), (2, 2, 2, 2), padding=1, bias=True),
    transposed(1, (1, 2, 3), (2, 2, 2), 2),
    case("max_pool2d", (1, 1, 4, 4), 2, 1),
    case("avg_pool2d", (1, 1, 4, 3), 2, 1),
    case("adaptive_max_pool2d", (1, 1, 4, 3), 2),
    case("adaptive_avg_pool2d", (1, 1, 4, 3), (3, 2)),
    case("lp_pool2d", (1, 1, 4, 3), 2.0, 2, 1),
    norm((2, 2, 2)),
]


@pytest.mark.parametrize("case", SMOOTH, ids=str)
def test_derivatives_by_differences(case):
    tensors = tensors_of(case)

    def function(*moving):
        given = iter(moving)
        whole = [next(given) if t is not None and t.requires_grad else t for t in tensors]
        return getattr(F, case.name)(*whole, *case.args, **case.kwargs)

    moving = [t for t in tensors if t is not None and t.requires_grad]
    assert torch.autograd.gradcheck(function, moving, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(function, moving)


def network(module, x, w, b):
    return module.max_pool2d(module.relu(module.conv2d(x, w, b, padding=1)), 2).square().sum()


def network_tensors(batch=2):
    random = torch.Generator().manual_seed(batch)
    return [torch.randn(s, generator=random, dtype=torch.float64) for s in ((batch, 3, 6, 5), (4, 3, 3, 3), (4,))]


@pytest.mark.parametrize(
    "transformed",
    [
        lambda f: torch.func.grad(f, argnums=(0, 1, 2)),
        lambda f: torch.func.vmap(f, in_dims=(0, None, None)),
        lambda f: torch.func.vmap(torch.func.grad(f, argnums=1), in_dims=(0, None, None)),
        lambda f: torch.func.jacfwd(f, argnums=1),
        lambda f: lambda *given: torch.func.jvp(f, given, tuple(torch.ones_like(t) for t in given)),
    ],
    ids=["grad", "vmap", "gradients of samples", "jacfwd", "jvp"],
)
def test_transformations_of_torch(transformed):
    given = network_tensors()
    ours, reference = (transformed(lambda *t, m=m: network(m, *t))(*given) for m in (F, theirs))
    torch.testing.assert_close(ours, reference)


@pytest.mark.parametrize("strategy", ["reverse-mode", "forward-mode"])
def test_vectorized_jacobians(strategy):
    x, w, b = network_tensors()

    def maps(module, w):
        return module.avg_pool2d(module.max_pool2d(module.conv2d(x, w, b, padding=1), 2), 2).square()

    found = torch.autograd.functional.jacobian(lambda w: maps(F, w), w, vectorize=True, strategy=strategy)
    torch.testing.assert_close(found, torch.func.jacrev(lambda w: maps(theirs, w))(w))


def test_compiled_whole_with_any_batch():
    def step(module, compiled, given):
        moving = [t.clone().requires_grad_() for t in given]
        value = compiled(module, *moving)
        return value, *torch.autograd.grad(value, moving)

    torch._dynamo.reset()
    compiled = torch.compile(network, backend="aot_eager", fullgraph=True)
    for batch in (2, 3, 4):
        given = network_tensors(batch)
        torch.testing.assert_close(step(F, compiled, given), step(theirs, network, given))


def test_a_compiled_program_of_known_sizes_runs_our_kernels():
    captured = []

    def capture(program, _):
        captured.append(str(program.graph))
        return make_boxed_func(program)

    torch._dynamo.reset()
    backend = aot_autograd(fw_compiler=capture)
    torch.compile(network, backend=backend, fullgraph=True)(F, *network_tensors())
    (program,) = captured
    assert program.count("torch.ops.gradspec.graph.default]") == 2
    assert "aten.conv" not in program


# --- modules ---------------------------------------------------------------------------------------------------------


def test_modules_are_accelerated_inside_the_block_only():
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Flatten(), torch.nn.Linear(36, 5),
    ).double()  # fmt: skip
    x = network_tensors()[0][:, :, :, :].repeat(1, 1, 1, 2)[..., :6].requires_grad_()
    model.eval()
    with F.accelerated(), counted() as graphs:
        ours = model(x)
        ours.square().sum().backward()
    assert len(graphs) == 3
    found, x.grad = x.grad, None
    with counted() as graphs:
        reference = model(x)
        reference.square().sum().backward()
    assert not graphs
    torch.testing.assert_close((ours, found), (reference, x.grad))


def test_modules_are_accelerated_where_they_are_compiled():
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.MaxPool2d(2))
    x = torch.randn(IMAGE)
    reference = model(x)
    torch._dynamo.reset()
    with F.accelerated(), counted() as graphs:
        ours = torch.compile(model, backend="aot_eager", fullgraph=True)(x)
    assert len({graph.nodes[0].op.name for graph in graphs}) == 2
    torch.testing.assert_close(ours, reference)


# --- training --------------------------------------------------------------------------------------------------------


def test_the_example_trains_alike_with_both():
    losses = []
    for functions in (F, theirs):
        training = Training(functions, batch=16, seed=0, rate=0.003)
        with counted() as graphs:
            for _ in range(12):
                training.step()
        assert bool(graphs) == (functions is F)
        losses.append(torch.tensor(training.losses))
    torch.testing.assert_close(losses[0][:5], losses[1][:5], rtol=1e-3, atol=0)
    for found in losses:
        assert found[-4:].mean() < 0.9 * found[0]


def test_the_benchmark_measures_the_same_training():
    file = Path(__file__).parents[2] / "benchmarks" / "torch_training.py"
    source = importlib.util.spec_from_file_location("torch_training", file)
    script = importlib.util.module_from_spec(source)
    source.loader.exec_module(script)
    small = script.Network((2, 1, 28, 28), script.NETWORKS["LeNet-5, batch 64"].weights, script.lenet5)
    times, losses = script.measured(small, turns=2, steps=1)
    assert {name: [len(parts) for parts in turns] for name, turns in times.items()} == {
        name: [3, 3] for name in script.CONTENDERS
    }
    assert max(losses.values()) - min(losses.values()) < 1e-4
