"""The formats that people have become what the judge takes, and what is wrong with a problem is said."""

from pathlib import Path

import numpy as np
import pytest
import torch

from gradspec.referee.campaign import list_submissions
from gradspec.referee.formats import (
    ProblemSource,
    fill_pattern,
    find_source,
    load_problem,
    operator_of_folder,
    pattern_of,
    write_types,
)
from gradspec.referee.timing import timed_types
from gradspec.spec.errors import FormatError

HERE = Path(__file__).parent

SCALED = """
import torch

class Model(torch.nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x, offset):
        return x * self.scale + offset

rows = 4096
columns = 2048

def get_inputs():
    return [torch.rand(rows, columns), 2.5]

def get_init_inputs():
    return [3.0]
"""
REFERENCE = """
import torch
from task import Data
from utils import checked

def ref_kernel(data):
    a, b, out = data
    with checked():
        out[...] = a + b
    return out

def generate_input(size, seed):
    generator = torch.Generator(device="cuda")
    generator.manual_seed(seed)
    a = torch.randn(size, 3, device="cuda", generator=generator)
    return a, a.clone(), torch.empty(size, 3, device="cuda")
"""
TASK = """
files:
  - {"name": "submission.py", "source": "@SUBMISSION@"}
  - {"name": "utils.py", "source": "../utils.py"}
  - {"name": "task.py", "source": "task.py"}

lang: "py"
tests:
  - {"size": 7, "seed": 4242}
  - {"size": 33, "seed": 5}
  - {"size": 1000000, "seed": 6}

benchmarks:
  - {"size": 1024, "seed": 31232}
"""
SUBMISSION = """
from task import Data

def custom_kernel(data):
    a, b, out = data
    out.copy_(a).add_(b)
    return out
"""
TRACE = """Operator: aten.mul.Tensor
cnt: 3, ((T([4], f32), T([4], f32)), {})
Operator: aten.sum.dim_IntList
cnt: 9, ((T([8, 6], f32), [1]), {})
cnt: 2, ((T([5, 6], f32), [1]), {})
cnt: 1, ((T([5, 6], f32), [0]), {})
cnt: 1, ((T([5, 6], c64), [1]), {})
Operator: aten.relu.default
"""


def written(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    return folder


# --- KernelBench ------------------------------------------------------------------------------------------------------


def test_a_problem_of_kernelbench_is_made_smaller(tmp_path):
    problem = written(tmp_path, problem=SCALED) / "problem.py"
    loaded = load_problem(find_source(str(problem), most_cells=4096))
    assert write_types(loaded.types) == "f32[64,32]"
    assert loaded.call.init == (3.0,)
    assert loaded.notes == ("its constants were divided by 64 to have at most 4,096 cells",)
    x = np.ones((64, 32), np.float32)
    assert np.all(np.asarray(loaded.reference.graph(loaded.types[0])(x)) == 5.5)


def test_a_solution_is_made_and_called_as_its_problem_is(tmp_path):
    problem = written(tmp_path, problem=SCALED, solution=SCALED.replace("Model", "ModelNew")) / "problem.py"
    loaded = load_problem(find_source(str(problem)))
    kernel = loaded.call.solution(str(tmp_path / "solution.py"))
    assert torch.equal(kernel(torch.ones(2, 3)), torch.full((2, 3), 5.5))


def test_parameters_are_those_that_the_seed_gives():
    loaded = load_problem(find_source(str(HERE / "kernelbench_mlp.py")))
    kernel = loaded.call.solution(str(HERE / "honest" / "torch_module.py"))
    x = torch.rand(3, 16)
    torch.testing.assert_close(kernel(x), loaded.eager(x))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("raise OSError('no weights')", "no weights"),
        ("import nonsense_that_is_not_there", "nonsense_that_is_not_there"),
        ("class Model: pass", "no get_inputs"),
        ("def f(:", "invalid syntax"),
        (SCALED.replace("4096", "4096 ** 3"), "more than"),
    ],
)
def test_what_is_wrong_with_a_problem_is_raised(tmp_path, text, said):
    problem = written(tmp_path, problem=text) / "problem.py"
    with pytest.raises(Exception, match=said):
        load_problem(find_source(str(problem), most_cells=1000))


# --- GPU MODE ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def task(tmp_path):
    folder = tmp_path / "vectoradd"
    folder.mkdir()
    (folder / "task.yml").write_text(TASK)
    written(folder, reference=REFERENCE, task="Data = tuple", submission=SUBMISSION)
    written(tmp_path, utils="from contextlib import nullcontext as checked")
    return folder


def test_a_task_of_gpu_mode(task):
    loaded = load_problem(find_source(str(task / "task.yml")))
    assert write_types(loaded.types) == "f32[7,3],f32[7,3],f32[7,3]; f32[33,3],f32[33,3],f32[33,3]"
    assert "1000000" in loaded.notes[0]
    kernel = loaded.call.solution(str(task / "submission.py"))
    arrays = torch.ones(2, 3), torch.ones(2, 3), torch.zeros(2, 3)
    assert torch.equal(kernel(*arrays), torch.full((2, 3), 2.0))
    assert torch.equal(arrays[2], torch.zeros(2, 3))  # what it wrote into is a copy


def test_a_buffer_has_the_size_of_the_result(task):
    text = REFERENCE.replace("out[...] = a + b", "out = a + b")  # which would tell by itself
    loaded = load_problem(find_source(str(written(task, reference=text))))
    types = loaded.types[0]
    larger = tuple(t.dtype[(8, 3)] for t in types)
    assert loaded.reference.graph(larger).outputs[0].shape == (8, 3)
    with pytest.raises(ValueError, match="another shape"):
        loaded.reference.graph((*larger[:2], types[2]))


# --- BackendBench -----------------------------------------------------------------------------------------------------


def test_operators_have_usual_inputs():
    loaded = load_problem(ProblemSource("backendbench", "mm.default"))
    assert write_types(loaded.types) == "f32[16,32],f32[32,16]"
    assert loaded.call.entry == "mm__default_kernel_impl"
    assert "judged on f32[16,32],f32[32,16]" in loaded.notes[0]


def test_an_operator_has_the_traces_beside_it(tmp_path):
    for name in ("relu__default", "sum__dim_IntList"):
        (tmp_path / name).mkdir()
        written(tmp_path / name, **{f"{name}_implementation_v1": ""})
    (tmp_path / "traces.txt").write_text(TRACE)
    assert [Path(one.source.inputs).name for one in list_submissions(str(tmp_path))] == ["", "traces.txt"]
    given = list_submissions(str(tmp_path), inputs="f32[4]")
    assert [one.source.inputs for one in given] == ["f32[4]", "f32[4]"]


def test_kernels_are_timed_on_the_sizes_asked_for():
    loaded = load_problem(ProblemSource("backendbench", "mm.default", sizes="f32[9,8],f32[8,7]"))
    assert write_types([timed_types(loaded)]) == "f32[9,8],f32[8,7]"
    assert write_types(loaded.types) == "f32[16,32],f32[32,16]"
    with pytest.raises(FormatError, match="one list of types"):
        load_problem(ProblemSource("backendbench", "mm.default", sizes="f32[9,8],f32[8,7]; f32[1,1],f32[1,1]"))


def test_traces_are_read_without_running_them(tmp_path):
    (tmp_path / "trace.txt").write_text(TRACE)
    source = ProblemSource("backendbench", "sum.dim_IntList", str(tmp_path / "trace.txt"))
    loaded = load_problem(source)
    assert write_types(loaded.types) == "f32[8,6]; f32[5,6]"
    assert fill_pattern(loaded.call.pattern, ["x"]) == ("x", (1,))
    assert [note.partition(":")[0][-12:] for note in loaded.notes] == ["was left out", "were left out"[-12:]]
    with pytest.raises(FormatError, match="no call of relu"):
        load_problem(ProblemSource("backendbench", "relu.default", str(tmp_path / "trace.txt")))


def test_a_folder_of_operators_is_a_list_of_submissions(tmp_path):
    for name in ("relu__default", "add__Tensor"):
        (tmp_path / name).mkdir()
        written(tmp_path / name, **{f"{name}_implementation_v1": ""})
    found = list_submissions(str(tmp_path))
    assert [one.source.path for one in found] == ["add.Tensor", "relu.default"]
    assert operator_of_folder("nn__add__Tensor") == "nn__add.Tensor"


# --- which problem a solution is for ----------------------------------------------------------------------------------


def test_samples_find_their_problem(tmp_path):
    (tmp_path / "level1").mkdir()
    (tmp_path / "runs").mkdir()
    written(tmp_path / "level1", **{"1_a": SCALED, "23_b": SCALED})
    written(tmp_path / "runs", **{"level_1_problem_23_sample_0_kernel": "", "1_a": ""})
    found = list_submissions(str(tmp_path / "level1"), str(tmp_path / "runs"))
    assert [Path(one.source.path).name for one in found] == ["1_a.py", "23_b.py"]
    written(tmp_path / "runs", other="")
    with pytest.raises(FormatError, match="no problem"):
        list_submissions(str(tmp_path / "level1"), str(tmp_path / "runs"))


@pytest.mark.parametrize("name", ["nowhere.py", "nonsense", "."])
def test_what_is_no_problem_is_said(name):
    with pytest.raises(FormatError):
        list_submissions(name, "solution.py" if name != "." else None)


def test_patterns_keep_what_is_no_array():
    arrays = []
    pattern = pattern_of([np.ones(2), {"a": (np.ones(3), 4)}, "word", None], arrays)
    first, inner, *rest = fill_pattern(pattern, arrays)
    assert first is arrays[0]
    assert inner == {"a": (arrays[1], 4)}
    assert rest == ["word", None]
    with pytest.raises(FormatError, match="object"):
        pattern_of([object()], [])
