"""The race on a GPU, without one: its grid and clocks, what contenders compute on CPU tensors, what a run writes."""

import json
import os
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from itertools import cycle, islice
from math import prod
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from backends.quick_triton import quick_interpreter  # noqa: E402, F401  (a fixture)
from bench import gpu_doubles  # noqa: E402
from bench.gpu_doubles import MadeCopy, MadeTorch  # noqa: E402
from gradspec.bench import command  # noqa: E402
from gradspec.bench.contenders import gpu, peers, race_on  # noqa: E402
from gradspec.bench.grid import GPU_GRID, GPU_POOLS, GRID, SMALL_BITS, BenchProblem, Pool, data, problem, problems  # noqa: E402  # noqa: E402
from gradspec.bench.measure import LOOSE, disagreements  # noqa: E402
from gradspec.cli import main  # noqa: E402
from gradspec.conformance.model.target import NotOfferedError  # noqa: E402
from gradspec.conformance.targets import devices  # noqa: E402
from gradspec.graph.lru import LRUCache  # noqa: E402
from gradspec.interop.torch import device  # noqa: E402
from gradspec.runtime import calls  # noqa: E402


def bench(*arguments):
    environment = {"COLUMNS": "100", "NO_COLOR": "1"}
    return CliRunner().invoke(main, ["bench", "--device", "cuda", *arguments], env=environment)


# --- the grid ---------------------------------------------------------------------------------------------------------


def test_the_grid_is_that_of_the_cpu_in_larger_batches():
    *large, tiny = GRID["pool"]
    assert tiny.name == "P11"
    for ours, theirs in zip(GPU_POOLS, large, strict=True):
        assert (ours.name, ours.shape[1:], ours.windows) == (theirs.name, theirs.shape[1:], theirs.windows)
        assert 2 * prod(ours.shape) >= 100e6
    names = [cell.name for cell in GPU_GRID["pool"]]
    assert len(set(names)) == len(names) == 8 * 6 + 2 * 3
    assert names[:3] == ["P1-f32-first", "P1-f32-last", "P1-f16-first"]
    assert len(problems("pool", ["bf16-last"], ["max"], ["vjp"], GPU_GRID)) == 8


@pytest.mark.rows(10)
@pytest.mark.parametrize(
    ("names", "bytes"),
    [
        (("P1-f32-first", "max", "forward"), 4 * (51_380_224 + 12_845_056)),
        (("P1-f16-last", "max", "forward"), 128_450_560),
        (("P1-f16-last", "max", "vjp"), 256_901_120),
        (("P10-bf16-first", "avg", "jvp"), 2 * 2 * (128 * 512 * 28 * 28 + 128 * 512)),
        (("P6-f32-last", "smooth", "vjp"), 2 * 4 * (16 * 32 * 32 * 64 * 64 + 16 * 32 * 16 * 32 * 32)),
    ],
)
def test_the_copy_is_of_the_bytes_that_must_be_read_and_written(names, bytes, monkeypatch):
    asked = problem(*names)
    assert asked.bytes == bytes
    sizes = []
    monkeypatch.setattr(torch, "ones", lambda size, **how: sizes.append((size, how["dtype"])) or torch.empty(4))
    assert [*gpu.CopyOnGpu(torch, device="cpu").variants(asked)] == ["copy"]
    assert sizes == [(bytes // 2, torch.uint8)]  # each is read once and written once


@pytest.mark.rows(10)
@pytest.mark.parametrize("cell", GPU_POOLS, ids=lambda cell: cell.name)
def test_no_window_is_as_long_as_numbers_take_to_come_again(cell):
    sizes = cell.shape[2:]
    extent = cell.windows[0] if cell.kernel or cell.is_global else (3,) * cell.rank  # ⌈14 / 5⌉, rounded outwards
    span = sum((k - 1) * prod(sizes[axis + 1 :]) for axis, k in enumerate(extent))
    assert span < 2**SMALL_BITS


@pytest.mark.rows(10)
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_neighbours_are_unequal_in_every_format(dtype):
    made = data(BenchProblem(Pool("P", (1, 3, 2**SMALL_BITS), 2, 2, dtype=dtype), "max", "jvp"))
    for array in (*made.inputs, *made.tangents):
        numbers = array.astype(np.float32).ravel()
        assert np.all(np.isfinite(numbers) & (np.abs(numbers) <= 2))
        for start in (0, 777, 2**SMALL_BITS):
            assert len(np.unique(numbers[start:][: 2**SMALL_BITS])) == 2**SMALL_BITS
    assert not np.array_equal(made.inputs[0], made.tangents[0])


# --- clocks -----------------------------------------------------------------------------------------------------------


def test_events_enclose_the_call_and_not_the_flush_before_it():
    contender = MadeTorch(3.0)
    assert contender.seconds(lambda: contender.clock.work("call", 3.0), 4) == pytest.approx(3e-3)
    assert contender.clock.log == ["flush", "event", "call", "event"] * 4 + ["wait"]


class MadeJax(gpu.JaxOnGpu):
    platform = "cpu"


@pytest.mark.skipif(find_spec("jax") is None, reason="pip install jax")
def test_without_events_the_flushes_are_taken_off(monkeypatch):
    contender, clock = MadeJax(1), gpu_doubles.Clock()
    monkeypatch.setattr(gpu, "perf_counter", lambda: clock.now)
    contender._other_bytes = lambda: clock.work("flush", 7.0)
    assert contender.seconds(lambda: clock.work("call", 2.0), 3) == pytest.approx(2.0)
    assert clock.log == ["flush"] * 4 + ["flush"] + ["flush", "call"] * 3
    assert contender.seconds(lambda: clock.work("call", 0.0), 3) == gpu.SHORTEST


# --- contenders -------------------------------------------------------------------------------------------------------

SMALL = [
    Pool("P1", (2, 3, 9, 8), 3, 2, 1),
    Pool("P7", (2, 3, 11), 3, 2, 1),
    Pool("P6", (1, 2, 5, 6, 7), 3, 2, 1),
    Pool("P8", (1, 2, 4, 5, 4, 5), 2, 2, 1),
    Pool("P9", (2, 3, 7, 8), output_size=(3, 5)),
    Pool("P10", (2, 3, 7, 8), output_size=(1, 1)),
]
ASKED = [(pool, op, mode) for pool in SMALL for op in pool.ops for mode in pool.modes]
QUESTIONS = [
    BenchProblem(next(islice(cycle(pool.forms()), turn, None)), op, mode) for turn, (pool, op, mode) in enumerate(ASKED)
]
"""Formats and layouts in turn."""


@pytest.fixture
def cpu_as_device(monkeypatch):
    monkeypatch.setattr(calls, "_calls", LRUCache(calls.MOST_CALLS))
    device.DEVICES.add("cpu")
    yield
    device.DEVICES.remove("cpu")


def contenders():
    yield "ours", gpu.OursOnGpu(torch, device="cpu")
    yield "torch", gpu.TorchOnGpu(torch, device="cpu")
    if find_spec("jax"):
        yield "jax", MadeJax(1)


@pytest.mark.rows(3)
@pytest.mark.usefixtures("quick_interpreter", "cpu_as_device", "quick_jit")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of NumPy, which interprets the kernels
@pytest.mark.parametrize("question", QUESTIONS, ids=str)
def test_contenders_agree(question):
    found = {}
    for name, contender in contenders():
        known_gaps = {"ours": ()}.get(name, (NotOfferedError, NotImplementedError))  # the latter on the CPU
        with suppress(*known_gaps):
            for variant, call in contender.variants(question).items():
                results = contender.arrays(call())
                assert {array.dtype.name for array in results} == {data(question).inputs[0].dtype.name}
                found[f"{name} {variant}"] = [array.astype(np.float32) for array in results]
    by_both = question.cell.rank < 4 and question.op != "smooth"
    assert sum(name.startswith("ours") for name in found) >= 1 + by_both
    assert disagreements(found, LOOSE[question.cell.dtype]) == dict.fromkeys(found, "")


@pytest.mark.usefixtures("quick_interpreter", "cpu_as_device")
def test_tensors_are_laid_out_as_the_cell_says():
    first, last = [cell for cell in SMALL[0].forms() if cell.dtype == "f16"]
    for cell, form in ((first, torch.contiguous_format), (last, torch.channels_last)):
        for call in gpu.OursOnGpu(torch, device="cpu").variants(BenchProblem(cell, "max", "vjp")).values():
            assert [t.is_contiguous(memory_format=form) for t in call()] == [True, True]


def test_torch_compile_tries_kernels_with_and_without_cuda_graphs(monkeypatch):
    asked = []
    monkeypatch.setattr(torch, "compile", lambda f, **how: asked.append(how) or f)
    contender = gpu.CompiledOnGpu(torch, compiled=True, device="cpu")
    made = contender.variants(BenchProblem(SMALL[0], "max", "forward"))
    assert [*made] == ["max-autotune", "max-autotune-no-cudagraphs"]
    assert [how["mode"] for how in asked] == [*made]
    assert [tuple(call()[0].shape) for call in made.values()] == [(2, 3, 5, 4)] * 2


# --- a run ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def made_gpu(monkeypatch):
    monkeypatch.setattr(command, "race_on", lambda name: gpu_doubles.RACE)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]))


@pytest.mark.exhaustive
@pytest.mark.usefixtures("made_gpu")
def test_a_run_names_the_gpu_and_is_written_drawn_and_compared(tmp_path):
    file, picture = tmp_path / "then.json", tmp_path / "picture.png"
    wanted = partial(bench, "--cells", "P1-f16-last", "--ops", "max", "--modes", "vjp", "--quick", "--threads", "1")
    result = wanted("--json", str(file), *(["--plot", str(picture)] if find_spec("matplotlib") else []))
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("Made, driver 1.2, CUDA 12.8, cuDNN 91002\n")
    assert "P1-f16-last max" in result.stdout
    assert "Memory copy: 513.8 GB/s read and written.\n" in result.stdout  # 256,901,120 bytes in half a millisecond
    written = json.loads(file.read_text())
    assert {name: written["machine"][name] for name in ("GPU", "driver", "CUDA", "cuDNN")} == {
        "GPU": "Made", "driver": "1.2", "CUDA": "12.8", "cuDNN": "91002"
    }  # fmt: skip
    (row,) = written["results"]
    assert (row["dtype"], row["channels_last"], row["bytes"]) == ("f16", True, 256_901_120)
    times = {name: timing["median"] for name, timing in row["contenders"].items()}
    assert times == pytest.approx({"gradspec": 2e-3, "torch-eager": 3e-3})
    assert not any("disagrees" in timing for timing in row["contenders"].values())
    assert row["times_fastest_peer"] == pytest.approx(1.5)
    assert (row["copy_limit"], row["share_of_copy_limit"]) == pytest.approx((0.5e-3, 0.25))
    assert picture.exists() == bool(find_spec("matplotlib"))
    again = wanted("--compare", str(file))
    assert "0 of 1 problems moved beyond the noise" in again.stdout
    written["machine"]["GPU"] = "Another"
    file.write_text(json.dumps(written))
    assert "measure both runs alike" in " ".join(wanted("--compare", str(file)).stderr.split())


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.rows(10)
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "there is no NVIDIA GPU here: nvidia-smi"),
        (["--device", "cuda:3"], "there is no NVIDIA GPU here: nvidia-smi"),
        (["--device", "tpu"], "there is no device 'tpu'; use cpu, cuda or one GPU of several, such as cuda:1"),
    ],
)
def test_without_a_gpu_one_line_says_what_is_missing(arguments, words, monkeypatch):
    monkeypatch.setattr(devices, "gpus", tuple)
    result = bench(*arguments)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("Error: ")
    assert words in " ".join(result.stderr.split())


@pytest.mark.rows(10)
@pytest.mark.usefixtures("made_gpu")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["conv"], "there is no grid of conv for GPUs; choose from pool"),
        (["--cells", "P11"], "no cell 'P11'; choose from P1, f32, first, last, f16, bf16, P2"),
        (["--peers", "onnxruntime"], "there is no peer 'onnxruntime'; choose from torch, torch-eager"),
    ],
)
def test_what_is_not_measured_on_gpus_is_refused(arguments, words):
    result = bench(*arguments)
    assert (result.exit_code, result.stdout) == (1, "")
    assert words in " ".join(result.stderr.split())


def test_a_library_without_cuda_takes_no_part_and_says_so_if_named(monkeypatch):
    race = race_on("cuda")
    reason = {"torch": "", "jax": "jax has no CUDA here; install it"}
    monkeypatch.setattr(devices.CudaDevice, "missing", lambda self, library: reason[library])
    assert [peer.name for peer in peers(None, "pool", race)] == ["torch-eager", "torch-compile"]
    with pytest.raises(ImportError, match="jax has no CUDA here" if find_spec("jax") else "pip install jax"):
        peers(["jax"], "pool", race)


def test_a_worker_sees_the_gpu_that_is_asked_for(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(devices, "gpus", lambda: ({"GPU": "a"}, {"GPU": "b"}))
    shown = {name: race_on(name).environment()["CUDA_VISIBLE_DEVICES"] for name in ("cuda", "cuda:0", "cuda:1")}
    assert shown == {"cuda": "0", "cuda:0": "0", "cuda:1": "1"}
    assert race_on("cuda:1").facts()["GPU"] == "b"
    assert race_on("cpu").environment() == {}


def test_copies_stay_on_the_device():
    contender = MadeCopy(1.0)
    (call,) = contender.variants(problem("P1-f32-first", "max", "forward")).values()
    (copied,) = call()
    assert copied.numel() == 4 * 2 * 3 * (8 * 8 + 4 * 4) // 2
    assert bool((copied == 1).all())
    assert contender.arrays([copied]) == []
