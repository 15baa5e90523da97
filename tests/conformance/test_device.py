"""The judge on a device, by a fake one: what is sent and fetched, what is found, and to which case it is pinned."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import gradspec as gs
from conformance import fake_device
from conformance.fake_device import FakeDevice
from gradspec.conformance.campaign import check as campaign
from gradspec.conformance.campaign import reproduce
from gradspec.conformance.campaign.local import TOGETHER, InProcess
from gradspec.conformance.cases.data import drawn
from gradspec.conformance.cases.stream import Stream
from gradspec.conformance.cases.target_stream import DATA_SETS, TargetStream
from gradspec.conformance.checks import Prepared, examine
from gradspec.conformance.judge.verdicts import judge_call
from gradspec.conformance.model.case import CampaignSettings, Selection
from gradspec.conformance.model.device import (
    HOST,
    MARGIN,
    NANS,
    ExhaustedError,
    OverrunError,
    PoisonedError,
    pack_arrays,
)
from gradspec.conformance.model.problem import DTYPES, LAYOUTS, Problem, lay_out
from gradspec.conformance.model.reference import on_zeros
from gradspec.conformance.model.verdict import Failure, Finding, Verdict
from gradspec.conformance.shrink.causes import explain_group
from gradspec.conformance.targets import devices, target_named
from gradspec.conformance.targets.devices import CudaDevice, CupyMemory, JaxMemory, TorchMemory, device_named
from gradspec.conformance.targets.user.target import UserKernels
from gradspec.system import forking
from gradspec.system.hosting import CAN_HOST
from gradspec.testing import check_kernel

torch = pytest.importorskip("torch")
DEVICE = "conformance.fake_device:FakeDevice"
FEW = {"cases": 20, "seed": 1, "device": DEVICE}


@pytest.fixture(autouse=True)
def new_device(monkeypatch):
    """As in a process that has not used it."""
    for name in ("user", "pending", "lost", "transfers", "room", "tf32"):
        monkeypatch.setattr(FakeDevice, name, getattr(FakeDevice, name))
    monkeypatch.setattr(forking, "unforkable", lambda: "")


def max_pool(size, lead=()):
    return Problem("max_pool", 1, ((*lead, size),), {"kernel_size": (2,), "stride": (2,)})


def on_ones(problem):
    return on_zeros(problem, "value").mapped(np.ones_like)


def fake(kernels):
    return UserKernels(kernels).on(FakeDevice())


# --- arrays there and back ----------------------------------------------------------------------------------------


ARRAYS = [
    *(np.arange(24).astype(dtype).reshape(2, 3, 4) for dtype in DTYPES.values()),
    *(lay_out(np.arange(24.0).reshape(2, 3, 4), layout, 1) for layout in LAYOUTS),
    np.array(3, np.float32),
    np.zeros((2, 0, 3)),
    np.array([True, False]),
]


class CupyDouble:
    """As much of CuPy as is used, on NumPy's arrays."""

    class ndarray(np.ndarray):  # noqa: N801  (as CuPy has it)
        def __new__(cls, shape, dtype, memptr, strides):
            buffer, offset = memptr
            return np.ndarray.__new__(cls, shape, dtype, buffer, offset, strides)

        @property
        def data(self):
            return Pointer((np.asarray(self), 0))

    class cuda:  # noqa: N801
        class Device:
            def __init__(self, index):
                self.use = lambda: None

        @staticmethod
        def get_current_stream():
            class Stream:
                def synchronize(self):
                    return

            return Stream()

    concatenate, array_equal, ascontiguousarray = np.concatenate, np.array_equal, np.ascontiguousarray

    @staticmethod
    def asarray(array):
        return np.array(array).view(CupyDouble.ndarray)

    @staticmethod
    def asnumpy(array):
        return np.asarray(array)


class Pointer(tuple):
    def __add__(self, offset):
        return Pointer((self[0], self[1] + offset))


@pytest.fixture(params=["fake", "torch", "jax", "cupy", "host"])
def memory(request, monkeypatch):
    if request.param == "jax":
        jax = pytest.importorskip("jax")
        with jax.enable_x64(True):
            yield JaxMemory(platform="cpu")
        return
    monkeypatch.setitem(sys.modules, "cupy", CupyDouble)
    made = {"fake": fake_device.FakeMemory, "torch": lambda: TorchMemory("cpu"), "cupy": lambda: CupyMemory(0)}
    yield made.get(request.param, lambda: HOST.memory("numpy"))()


def test_arrays_come_back_as_they_went(memory):
    turned = [a for a in ARRAYS if min(a.strides, default=0) >= 0 or isinstance(memory, fake_device.FakeMemory)]
    calls = [{"x": array, "g": array[..., :1] if array.ndim else array} for array in turned]
    cargo = memory.put(calls, NANS)
    assert cargo.is_whole()
    back = memory.get(cargo.calls)
    for call, found in zip(calls, back, strict=True):
        for name, array in call.items():
            assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
            assert found[name].tobytes() == array.tobytes()


def test_strides_and_alignment_are_kept():
    shifted = np.zeros(9, np.float32)[1:]
    arrays = [lay_out(np.zeros((2, 3, 4)), layout, 1) for layout in LAYOUTS if layout != "reversed"]
    (call,) = TorchMemory("cpu").put([{str(i): array for i, array in enumerate([*arrays, shifted])}], NANS).calls
    *tensors, moved = call.values()
    assert [t.stride() for t in tensors] == [tuple(s // 8 for s in a.strides) for a in arrays]
    assert (moved.data_ptr() - tensors[0].data_ptr()) % 16 == 4


def test_nans_lie_around_every_array():
    memory, places = pack_arrays([np.ones(3, np.float32), np.ones((2, 2))], NANS)
    for place in places:
        for side in (memory[place.start - MARGIN : place.start], memory[place.end : place.end + MARGIN]):
            assert np.isnan(side.view(place.array.dtype)).all()


def test_many_cases_are_one_transfer_each_way():
    calls = [on_ones(max_pool(size)) for size in range(2, 40)]
    target = fake(fake_device.Right)
    answers = target.run_all(calls)
    assert [answer["y"].shape for answer in answers] == [(size // 2,) for size in range(2, 40)]
    assert FakeDevice.transfers == 2
    for call in calls:
        target.run(call)
    assert FakeDevice.transfers == 2 + 2 * len(calls)


@pytest.mark.exhaustive
def test_results_are_those_of_the_cpu():
    """Of PyTorch, whose tensors are packed, on cases of every mode, dtype and layout."""
    here, there = target_named("torch"), target_named("torch").on(FakeDevice())
    stream = Stream(3, Selection(ops=("max_pool", "conv", "max_unpool")), here.refusal)
    cases = [case for number in range(4) for case in stream.batch(number)]
    for one in Prepared.together(there, cases):
        verdicts = [sorted(map(repr, examine(target, given)[1])) for target, given in ((here, one.case), (there, one))]
        assert verdicts[0] == verdicts[1]
    assert len(cases) > 10


def test_jax_is_given_its_arrays():
    pytest.importorskip("jax")

    class OnlyJax(FakeDevice):
        def missing(self, library):
            return ""

        def memory(self, library):
            return JaxMemory(platform="cpu")

    target, problem = target_named("jax").on(OnlyJax()), replace(max_pool(4, (1, 1)), dtype="f64")
    assert judge_call(target, on_ones(problem))[0].kind == "pass"


def test_kernels_get_the_arrays_that_they_declare():
    seen = []

    def kernel(x, kernel_size, stride):
        seen.append(type(x))
        return x.unfold(-1, 2, 2).amax(-1) if hasattr(x, "unfold") else NotImplemented

    kernels = {"max_pool1d": kernel, "array": "torch", "kernel_size": 2, "stride": 2, "padding": 0}
    assert check_kernel(kernels, cases=10, device=DEVICE, isolate=False, layouts=("contiguous",)).findings == []
    assert set(seen) == {torch.Tensor}
    with pytest.raises(ValueError, match=r"array is .tensorflow.; a kernel takes arrays of one of numpy, torch, "):
        check_kernel({"max_pool1d": kernel}, array="tensorflow")


# --- mistakes -----------------------------------------------------------------------------------------------------


MISTAKES = [
    (fake_device.Right, set()),
    (fake_device.NoMaskAtTheTail, {("defect", "guard"), ("defect", "special")}),
    (fake_device.WritesOneBeyond, {("defect", "guard")}),
    (fake_device.WritesIntoItsInput, {("defect", "input_changed")}),
    (fake_device.Unsteady, {("defect", "not_repeatable")}),
    (fake_device.UnsteadyAsDeclared, {("convention", "not_repeatable")}),
]


@pytest.mark.parametrize(("kernels", "found"), MISTAKES, ids=lambda v: getattr(v, "__name__", ""))
def test_a_planted_mistake_is_found(kernels, found):
    run = gs.conformance.check(kernels, **FEW | {"seed": 2})
    assert {(finding.kind, finding.rule) for finding in run.findings} == found
    assert run.machine.endswith("; Fake One, driver 1.5, TF32 off")
    assert run.errors == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("isolate", [True, False])
def test_a_lost_device_is_pinned_to_the_case_that_lost_it(isolate, monkeypatch):
    """The error comes at a synchronisation, in whichever call is next; no other case is lost in copies."""
    monkeypatch.setattr(campaign, "SHRINKING", 2.0)
    cases = _first_cases(fake(fake_device.Lost), 6)
    deadly = sum(fake_device.is_deadly(drawn(case).named()["x"]) for case in cases)
    assert 0 < deadly < 6
    run = gs.conformance.check(fake_device.Lost, isolate=isolate, **{**FEW, "cases": 6})
    (finding,) = run.findings
    assert finding.rule == "poisoned"
    assert finding.title.startswith("The device is lost (an illegal memory access was encountered)")
    assert finding.got == "LaunchError: FAKE error: an illegal memory access was encountered"
    if isolate:
        assert run.errors == []
        assert deadly <= run.tally.cases["defect"] < run.cases == 6  # a case calls its neighbours, too
    else:
        assert fake_device.is_deadly(finding.call.named()["x"])
        assert run.errors == [f"the device is lost to this process: {finding.got}; no more cases were tried"]


def _first_cases(target, most):
    pooled = TargetStream([Stream(1, Selection(), target.refusal, target.domain)], 1, compiled=True)
    return [case for number in range(most) for case in pooled.batch(number)][:most]


# --- kernels in hosts, which alone use the device -------------------------------------------------------------------


FAR = "conformance.fake_device:FarDevice"
KERNELS = """import ctypes, sys, torch
array, kernel_size, stride, padding, layouts = "torch", 2, 2, 0, ("contiguous",)


def beyond(tensor):
    address = tensor.data_ptr() + tensor.numel() * tensor.element_size()
    return (ctypes.c_uint8 * tensor.element_size()).from_address(address)


def max_pool1d(x, kernel_size, stride):
    if "gradspec" in sys.modules:
        raise RuntimeError("the judge is here")
    cut = x.clone()[..., : x.shape[-1] // 2 * 2]
    y = torch.empty((*x.shape[:-1], cut.shape[-1] // 2), dtype=x.dtype)
    y.copy_(torch.where(torch.isnan(cut[..., ::2]), cut[..., ::2], torch.maximum(cut[..., ::2], cut[..., 1::2])))
    {line}
    return y
"""
LINES = {
    "": [],
    "y.zero_()": ["value.selection"],
    "sys.modules.update({'gradspec.conformance.model.verdict': None}); y.zero_()": ["value.selection"],
    "x.numel() and x.view(-1)[:1].fill_(7)": ["input_changed"],
    "x.numel() and ctypes.memset(beyond(x), 3, 4)": ["guard"],
    "y.numel() and ctypes.memset(beyond(y), 3, 4)": ["guard"],
    "y.numel() and y.view(-1)[-1].fill_(float('nan') if beyond(x)[3] == 255 else 0)": ["guard", "special"],
    "raise RuntimeError('no')": ["raised"],
}


@pytest.mark.skipif(not CAN_HOST, reason="kernels have no process of their own here")
@pytest.mark.rows(1)
@pytest.mark.parametrize("line", LINES)
def test_what_a_kernel_does_on_a_device_is_found_in_its_host(line, tmp_path, monkeypatch):
    (tmp_path / "far_kernels.py").write_text(KERNELS.format(line=line))
    monkeypatch.syspath_prepend(tmp_path)
    for limit in ("SHRINKING", "VERIFYING"):  # on a device: test_a_deadly_call_is_shrunk_…
        monkeypatch.setattr(f"gradspec.conformance.campaign.check.{limit}", 1.0)
    run = gs.conformance.check("far_kernels", jobs=1, dtypes=["f32"], **FEW | {"device": FAR})
    assert {finding.rule for finding in run.by_kind("defect")} >= {*LINES[line][:1]}
    assert bool(run.findings) == bool(line)
    assert run.errors == []
    assert run.machine.endswith("; Far One")
    assert "no new privileges" in run.containment


# --- a device that is in use cannot be used by copies --------------------------------------------------------------


@pytest.mark.exhaustive
@pytest.mark.rows(1)
@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("target", ["conformance.fake_device:Right", "torch"])
def test_whoever_is_copied_has_not_used_the_device(target, jobs):
    """As PyTorch does for the version of cuDNN, `facts` uses it."""
    run = gs.conformance.check(target, jobs=jobs, dtypes=["f32"], **FEW)
    assert (run.cases, run.errors, run.findings) == (20, [], [])
    assert run.machine.endswith("; Fake One, driver 1.5, TF32 off")
    assert all("forked" not in probe.result for probe in run.probes)


LOST = """from conformance.fake_device import *

{first}
kernels = Lost
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("first", ["", "FakeDevice.use()"], ids=["by calls", "at import"])
def test_a_module_may_use_the_device_when_it_is_imported(first, monkeypatch, tmp_path):
    """Each loss then costs a process, and the case is told as it was met."""
    (tmp_path / "losing.py").write_text(LOST.format(first=first))
    monkeypatch.syspath_prepend(tmp_path)
    run = gs.conformance.check("losing:kernels", jobs=1, **{**FEW, "cases": 3})
    (finding,) = run.findings
    assert (finding.rule, run.cases, run.errors) == ("poisoned", 3, [])
    assert finding.got == "LaunchError: FAKE error: an illegal memory access was encountered"
    assert first or finding.call.named()["x"].size == 5


class AskingTheDevice(UserKernels):
    def refusal(self, problem, mode):
        FakeDevice.use()


class LostUnlessAlike(fake_device.Right):
    """Lost on all but twelve cells: a case with them has lost it by a call beside its own."""

    def write(self, x, y):
        super().write(x, y)
        if x.size not in (0, 12):
            FakeDevice.begin("an illegal memory access was encountered")


@pytest.mark.parametrize("kernels", [fake_device.Lost, LostUnlessAlike])
def test_a_deadly_call_is_shrunk_where_asking_what_is_offered_uses_the_device(kernels):
    met = Failure(on_ones(max_pool(12)).mapped(np.negative), Verdict("defect", "poisoned"), (), "0.0")
    target = AskingTheDevice(kernels).on(FakeDevice())
    assert explain_group(target, [met], 60.0)[0].call.named()["x"].size < 12
    assert target.device.is_in_use()  # when its programs were written
    assert explain_group(target, [met], 60.0)[0].call.named()["x"].size == 12


def test_a_late_error_is_not_that_of_the_next_call():
    """It is one that leaves the device in order: a launch that nobody looked at."""

    class Careless(fake_device.Right):
        def write(self, x, y):
            super().write(x, y)
            if x.size == 6:
                FakeDevice.begin("invalid configuration")
                FakeDevice.require_context = classmethod(_once)

    def _once(cls, now=False):
        if now and cls.pending:
            cls.pending = ""
            raise fake_device.LaunchError("invalid configuration")

    before = FakeDevice.__dict__["require_context"]
    try:
        answers = fake(Careless).run_all([on_ones(max_pool(size)) for size in (4, 6, 8)])
    finally:
        FakeDevice.require_context = before
    assert [isinstance(answer, Exception) for answer in answers] == [False, True, False]


def test_no_room_is_no_defect(monkeypatch):
    target, small, large = fake(fake_device.Right), on_ones(max_pool(4)), on_ones(max_pool(4000))
    monkeypatch.setattr(FakeDevice, "room", 4096)
    answers = target.run_all([small, large])
    assert answers[0]["y"].tolist() == [1, 1]
    assert isinstance(answers[1], ExhaustedError)
    assert [verdict.kind for verdict in judge_call(target, large)] == ["undecided"]


def test_a_lost_device_passes_every_net():
    with pytest.raises(PoisonedError, match="illegal"):
        judge_call(fake(fake_device.Lost), on_ones(max_pool(12)).mapped(np.negative))


# --- what kernels allocate ----------------------------------------------------------------------------------------


def one_beyond(x, kernel_size, stride):
    y = torch.empty((*x.shape[:-1], x.shape[-1] // 2))
    y[...] = x[..., : 2 * y.shape[-1]].unfold(-1, 2, 2).amax(-1)
    torch.as_strided(y, (y.numel() + 1,), (1,))[-1] = 0
    return y


def not_all(x, kernel_size, stride):
    y = torch.empty((*x.shape[:-1], x.shape[-1] // 2))
    y[..., 1:] = x[..., 2 : 2 * y.shape[-1]].unfold(-1, 2, 2).amax(-1)
    return y


def tensors(kernel):
    return {"max_pool1d": kernel, "array": "torch", "dtypes": ("f32",), "kernel_size": 2, "stride": 2}


@pytest.mark.filterwarnings("ignore:.*resized")
def test_what_a_kernel_allocates_is_watched():
    with pytest.raises(OverrunError):
        fake(tensors(one_beyond)).run(on_ones(max_pool(4, (1,))))
    assert np.isnan(fake(tensors(not_all)).run(on_ones(max_pool(4, (1,))))["y"]).tolist() == [[True, False]]
    with TorchMemory("cpu").watched(NANS) as watch:
        assert torch.zeros(2, 3).tolist() == [[0, 0, 0], [0, 0, 0]]
        assert torch.full((2,), 7, dtype=torch.int8).tolist() == [7, 7]
        assert torch.empty(2).isnan().all()
        assert torch.ones(2, 3, 4, 4).contiguous(memory_format=torch.channels_last).sum() == 96
    assert watch.is_whole()
    (verdict,) = judge_call(fake(tensors(one_beyond)), on_ones(max_pool(4, (1,))))
    assert (verdict.rule, verdict.detail) == ("guard", "the call wrote beside an array that it allocated")


# --- precision ----------------------------------------------------------------------------------------------------


def in_tf32(x, weight):
    """Factors of 11 bits."""
    x, weight = ((a.view(np.int32) + 0x1000 & -0x2000).view(np.float32) for a in (x, weight))
    windows = np.lib.stride_tricks.sliding_window_view(x, weight.shape[2:], tuple(range(2, x.ndim)))
    axes = "uvwz"[: x.ndim - 2]
    return np.einsum(f"bc...{axes},oc{axes}->bo...", windows, weight).astype(np.float32)


@pytest.mark.parametrize("documented", [True, False])
def test_tf32_is_found_and_told_and_its_tolerance_applied_where_it_is_documented(documented):
    kernels = {"conv": in_tf32, "dtypes": ("f32",), "stride": 1, "padding": 0, "dilation": 1, "groups": 1}
    kernels |= {"layouts": ("contiguous",), "batch": range(1, 65), "ranks": (1, 2)}
    kernels["reduced"] = {"tf32": "its page"} if documented else {}
    run = gs.conformance.check(kernels, ops=["conv"], **{**FEW, "cases": 12})
    assert run.allowed == (("tf32",) if documented else ())
    assert {finding.kind for finding in run.findings} == ({"reduced"} if documented else {"defect"})
    assert any(probe.result.startswith("11 of 24") for probe in run.probes)


# --- CUDA, as far as it shows without one -------------------------------------------------------------------------


ERRORS = [
    ("CUDA error: an illegal memory access was encountered", "lost"),
    ("CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered", "lost"),
    ("INTERNAL: Failed to synchronize: CUDA_ERROR_LAUNCH_FAILED: unspecified launch failure", "lost"),
    ("CUDA error: device-side assert triggered", "lost"),
    ("CUDA error: misaligned address", "lost"),
    ("cudaErrorIllegalAddress: an illegal memory access was encountered", "lost"),
    ("CUDA out of memory. Tried to allocate 200.00 GiB", "full"),
    ("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 bytes", "full"),
    ("Out of memory allocating 4,294,967,296 bytes", ""),
    ("CUDA error: invalid configuration argument", ""),
    ("expected 3 channels, got 2", ""),
]


@pytest.mark.parametrize(("words", "fate"), ERRORS)
def test_errors_of_cuda_are_known_by_their_words(words, fate):
    error, device = RuntimeError(words), CudaDevice()
    assert (device.is_lost_to(error), device.is_full(error)) == (fate == "lost", fate == "full")


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    answer = subprocess.CompletedProcess([], 0, 2 * "NVIDIA H200, 570.86.15, 12345 MiB\n")
    monkeypatch.setattr(devices.subprocess, "run", lambda *_, **__: answer)
    devices.gpus.cache_clear()
    yield
    devices.gpus.cache_clear()


@pytest.mark.usefixtures("two_gpus")
def test_every_gpu_has_as_many_processes_as_it_has_memory_for(monkeypatch):
    device = CudaDevice()
    assert (device.count, device_named("cuda:1").count) == (6, 3)
    shown = [device.environment(number)["CUDA_VISIBLE_DEVICES"] for number in range(4)]
    assert shown == ["0", "1", "0", "1"]
    assert "CUDA_VISIBLE_DEVICES" not in device_named("cuda:1").environment(0)
    assert CudaDevice().facts("numpy") == {
        "GPU": "NVIDIA H200",
        "driver": "570.86.15",
        "memory": "12345 MiB",
    }
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    devices.gpus.cache_clear()
    assert (device.count, device.environment(3)["CUDA_VISIBLE_DEVICES"]) == (3, "1")
    assert device_named("cuda:1").missing("numpy") == "there is no GPU 1 here"


@pytest.mark.parametrize(("file", "starts"), [("/dev/nvidiactl", False), ("/dev/null", True), ("/dev/null", False)])
def test_cuda_is_in_use_from_its_first_call_on(file, starts, monkeypatch):
    """`torch.cuda.is_available` opens the driver's file, and a copy could do nothing with it."""
    monkeypatch.setattr(forking, "_open_files", lambda: [file])
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: starts)
    assert CudaDevice().is_in_use() == (starts or file != "/dev/null")


@pytest.mark.usefixtures("two_gpus")
def test_settings_of_tf32_are_told(monkeypatch):
    facts = CudaDevice().facts("torch")
    assert facts["TF32"] == "convolutions"  # as PyTorch has it by default
    assert "cuda" not in facts["CUDA"]
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    assert CudaDevice().facts("torch")["TF32"] == "off"
    assert CudaDevice().rounding("torch") == frozenset()


def test_settings_of_tf32_in_jax_are_told():
    jax = pytest.importorskip("jax")
    assert CudaDevice().facts("jax")["TF32"] == "convolutions and matrix products"
    with jax.default_matmul_precision("float32"):
        assert CudaDevice().facts("jax")["TF32"] == "off"
    with jax.default_matmul_precision("high"):
        assert CudaDevice().rounding("jax") == {"tf32"}


MISSING = [
    ("torch", "torch", r"^torch cannot run on cuda: torch has no CUDA here; install a build of PyTorch with CUDA"),
    ("jax", "jax", r'^jax cannot run on cuda: jax has no CUDA here; run: pip install "jax\[cuda12\]"$'),
    ("onnxruntime", "onnxruntime", "onnxruntime has no CUDA here; run: pip install onnxruntime-gpu$"),
    ("native", "numpy", "native runs on CPUs alone, not on cuda; leave out device$"),
]


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(("name", "package", "words"), MISSING)
def test_what_is_missing_is_said_in_one_line(name, package, words):
    pytest.importorskip(package)
    with pytest.raises(ValueError, match=words) as caught:
        target_named(name).on(CudaDevice())
    assert "\n" not in str(caught.value)


def test_without_a_gpu_that_is_said(monkeypatch):
    monkeypatch.setattr(devices, "gpus", tuple)
    with pytest.raises(ValueError, match=r"one_beyond cannot run on cuda: there is no NVIDIA GPU here: nvidia-smi "):
        check_kernel(one_beyond, "max_pool1d", device="cuda")


# --- time, told by a clock that calls move -------------------------------------------------------------------------


LIMIT, A_CASE = 400.0, 60
"""Seconds, and more than the calls of one case."""


@pytest.mark.parametrize(("a_call", "most"), [(0.0, TOGETHER), (0.01, TOGETHER), (1.0, 1), (60.0, 1)])
def test_a_device_whose_calls_are_slow_is_given_few_at_a_time(a_call, most):
    """So that cases are heard of one by one, and no further one begins after its time."""
    target, seconds, made = fake(fake_device.Right), [0.0], []
    stream, run_all = Stream(1, Selection(), target.refusal, target.domain), target.run_all
    cases = [case for number in range(40) for case in stream.batch(number)]

    def slow(calls):
        made.append(len(calls))
        seconds[0] += a_call * len(calls)
        return run_all(calls)

    target.run_all, target.threadsafe = slow, False  # threads go by the machine's clock
    judge = InProcess(target, CampaignSettings("mine", 1, Selection()), lambda: seconds[0])
    judged = list(judge.judged(cases, LIMIT, together=True))
    assert max(made) == most
    assert 0 < len(judged) <= len(cases)
    assert (len(judged) == len(cases)) == (seconds[0] < LIMIT)
    assert seconds[0] < LIMIT + A_CASE * a_call
    made.clear()
    next(judge.judged(cases, together=True))
    assert made[0] == 1  # kernels are compiled for what a batch begins with


# --- cases --------------------------------------------------------------------------------------------------------


def test_geometries_have_several_data_sets_and_come_again(monkeypatch):
    monkeypatch.setattr("gradspec.conformance.cases.target_stream.GEOMETRIES", 3)
    pooled = TargetStream([Stream(0, Selection(ops=("max_pool",)), lambda problem, mode: None)], compiled=True)
    batches = [pooled.batch(number) for number in range(7)]
    assert len({repr(batch[0].problem) for batch in batches}) <= 3
    for batch in batches:
        problems, copies = [case.problem for case in batch], 1 if batch[0].is_quick else DATA_SETS
        assert problems == copies * problems[: len(problems) // copies]
    assert len({case.seed for batch in batches for case in batch}) == sum(map(len, batches))
    assert [case.name for case in batches[5]] == [f"5.{index}" for index in range(len(batches[5]))]


# --- compute-sanitizer --------------------------------------------------------------------------------------------


REPORT = """echo "========= COMPUTE-SANITIZER"
[ "$2" = memcheck ] && echo "========= Invalid __global__ write of size 4 bytes" && echo "=========     at kernel+0x90"
exec "$5" "$6"
"""


def test_programs_are_run_under_the_sanitizer_and_quote_it(monkeypatch, tmp_path):
    (tmp_path / reproduce.COMMAND).write_text(f"#!/bin/sh\n{REPORT}")
    (tmp_path / reproduce.COMMAND).chmod(0o755)
    with pytest.raises(ValueError, match="sanitize needs compute-sanitizer, which is not on the path"):
        reproduce.require_sanitizer("cuda")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    reproduce.require_sanitizer("cuda")
    with pytest.raises(ValueError, match="sanitize is for kernels on a GPU, and device is 'cpu'"):
        reproduce.require_sanitizer("cpu")
    told = Finding.of(Verdict("defect", "guard"), "max_pool", "value", reproducer="print(1)", case={"a": 1})
    quoted, other = reproduce.sanitize_findings([told, replace(told, kind="convention")], (), 60.0)
    assert quoted.reproducer.splitlines() == [
        "print(1)",
        "# compute-sanitizer memcheck: Invalid __global__ write of size 4 bytes",
        "#     at kernel+0x90",
        "# compute-sanitizer racecheck: nothing found",
    ]
    assert other.reproducer == "print(1)"


def test_programs_put_arrays_on_the_device():
    target = target_named("torch")
    target.device = CudaDevice()
    assert "x = torch.tensor([[1.0, 1.0]]).cuda()" in target.reproducer(on_ones(max_pool(2, (1,))))
    own = UserKernels(tensors(one_beyond))
    own.device = device_named("cuda:1")
    assert "one_beyond(torch.from_numpy(x).cuda(1), kernel_size" in own.reproducer(on_ones(max_pool(2, (1,))))


PAGE = Path(__file__).parents[2] / "docs" / "check_your_kernel.md"


@pytest.mark.exhaustive
def test_the_program_of_the_page_about_triton_shows_its_mistake(tmp_path):
    """In the interpreter; and the kernel is right when the mistake is mended."""
    pytest.importorskip("triton")
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    (program,) = (block for block in blocks if "triton_pool" in block)
    module = (PAGE.parents[1] / "examples" / "triton_pool.py").read_text("utf-8")
    assert module.count("(j + l <= width)") == 1
    (tmp_path / "triton_pool.py").write_text(module)
    (tmp_path / "mended.py").write_text(module.replace("(j + l <= width)", "(j + l < width)"))
    both = program + program.replace("triton_pool", "mended")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(tmp_path)}
    ended = subprocess.run([sys.executable, "-c", both], env=environment, capture_output=True, text=True, check=True)
    found = re.findall(r"\d\.", ended.stdout)
    gives, right = re.search(r"# gives: y\[0, 0\] = (\S+)\n# right: (\S+)", program).groups()
    assert (float(found[0]), float(found[2])) == (float(gives), float(right))
