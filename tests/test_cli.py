"""The command line, and its demo: true numbers, lines one can type, and a page that reads well anywhere."""

import code
import gzip
import html
import os
import pickle
import re
import struct
import subprocess
import sys
import tracemalloc
import zipfile
from fractions import Fraction
from importlib.metadata import version
from operator import mul
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner

import gradspec as gs
from gradspec.cli import main
from gradspec.interop.model_files import file_names as archive_names
from patience import PATIENCE

COMMANDS = [(), *((name,) for name in main.commands)]
ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


def run(*arguments, width=80, charset="utf-8", **env):
    environment = {"NO_COLOR": None, "FORCE_COLOR": None, "TTY_COMPATIBLE": None, "COLUMNS": str(width), **env}
    return CliRunner(charset=charset).invoke(main, arguments, env=environment)


def demo(**settings):
    result = run("demo", **settings)
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


@pytest.fixture(scope="module", autouse=True)
def judged_once():
    """The kernel of the demo is judged once, however often the demo is shown."""
    runs, check = {}, gs.conformance.check

    def cached(kernel, **asked):
        if repr(asked) not in runs:
            runs[repr(asked)] = check(kernel, **asked)
        return runs[repr(asked)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gs.conformance, "check", cached)
        yield


@pytest.fixture(scope="module")
def page():
    return demo()


def is_code(line):
    return line.startswith((">>>", "..."))


@pytest.fixture(scope="module")
def session(page):
    """The names a reader has after typing every line of the page at a Python prompt."""

    class Prompt(code.InteractiveConsole):
        def write(self, complaint):
            raise AssertionError(complaint)

    prompt = Prompt()
    pending = [prompt.push(line[4:]) for line in page.splitlines() if is_code(line)]
    assert not pending[-1]
    return prompt.locals


@pytest.fixture(scope="module")
def shown(page):
    """What the page shows in answer, line by line, with single spaces."""
    return [" ".join(line.split()) for line in page.splitlines() if not is_code(line)]


# --- what the demo shows, computed here in another way ----------------------------------------------------------------

WINDOWS = [[(2 * i - 1 + r, 2 * j - 1 + c) for r in range(3) for c in range(3)] for i in range(3) for j in range(3)]


def real_cells(window):
    return [(r, c) for r, c in window if 0 <= r < 5 and 0 <= c < 5]


def winner(image, window):
    return max(real_cells(window), key=lambda place: image[place[0]][place[1]])  # max keeps the first of equals


def test_demo_draws_values_and_their_winners_in_brackets(session, shown):
    image = session["image"]
    winners = [winner(image, window) for window in WINDOWS]
    for r, row in enumerate(image):
        drawn = [f"[{cell}]" if (r, c) in winners else str(cell) for c, cell in enumerate(row)]
        assert any(line.startswith(" ".join(drawn)) for line in shown)
    values = [image[r][c] for r, c in winners]
    for i in (0, 3, 6):
        assert any(line.startswith(" ".join(map(str, values[i : i + 3]))) for line in shown)
    assert any(v < 0 and len(real_cells(w)) < 9 for v, w in zip(values, WINDOWS, strict=True)), "zeros would win"


def test_demo_shares_the_gradient_of_ties(session, shown):
    image, shares = session["image"], {(r, c): Fraction(0) for r in range(5) for c in range(5)}
    for window in WINDOWS:
        cells = real_cells(window)
        tied = [place for place in cells if image[place[0]][place[1]] == max(image[r][c] for r, c in cells)]
        for place in tied:
            shares[place] += Fraction(1, len(tied))
    assert Fraction(1, 3) in shares.values()
    for r in range(5):
        assert any(line.endswith(" ".join(str(shares[r, c] or "-") for c in range(5))) for line in shown)


def test_demo_intervals_are_what_images_in_the_box_attain(session, shown):
    image = session["image"]
    bounds = [f"[{image[r][c] - 0.5}, {image[r][c] + 0.5}]" for r, c in (winner(image, w) for w in WINDOWS)]
    assert [any(line.endswith(" ".join(bounds[i : i + 3])) for line in shown) for i in (0, 3, 6)] == [True] * 3


def test_demo_judges_a_kernel_whose_smallest_wrong_case_is_wrong(session, shown):
    assert session["passes"]
    found = session["found"]
    assert f"defect {found.title}" in shown
    assert "np.allclose True" in shown
    ((cell,),) = (entry["cells"] for entry in found.case["inputs"])
    assert {f"smallest input [{cell}]", "got 0.0", f"expected {cell}"} <= set(shown)
    ((low, high),) = found.case["problem"]["attributes"]["padding"]
    wrong = session["max_pool1d"](np.float32([cell]), (low + 1 + high,), (1,), [(low, high)])
    assert cell < 0
    assert wrong.tolist() == [0.0]


def test_demo_bounds_hold_and_the_counterexample_is_one(session, shown):
    """By sums in NumPy, over images drawn from the box and its corners."""

    def edges(x):
        windows = np.lib.stride_tricks.sliding_window_view(x[0].astype(np.float64), (3, 3))
        return np.maximum(np.einsum("ijkl,ckl->cij", windows, session["masks"][:, 0]), 0).sum((1, 2))

    seen, pick = session["seen"], np.random.default_rng(0)
    rows = [next(line.split() for line in shown if line.startswith(f"{edge} ")) for edge in ("vertical", "horizontal")]
    low, high = (np.array([float(row[i]) for row in rows]) for i in (2, 3))
    for _ in range(100):
        y = edges(seen + 0.05 * np.sign(pick.standard_normal(seen.shape)))
        assert np.all((low <= y) & (y <= high))
        assert y[0] > y[1]
    assert "1/20 proved certificate accepted" in shown
    (witness,) = session["wider"].witness
    vertical, horizontal = edges(witness)
    assert np.abs(witness - seen).max() <= 0.5
    assert vertical <= horizontal
    assert f"1/2 refuted vertical {vertical:.3f}, horizontal {horizontal:.3f}" in shown


def test_demo_imports_a_model_and_its_gradient(session, shown):
    x = session["x"][0, 0]
    y = [max(0, *(-2 * x[r : r + 2, c : c + 2]).flat) for r in (0, 2) for c in (0, 2)]
    assert session["result"].tolist() == [y]
    assert session["pulled"].sum() == -2 * sum(value > 0 for value in y)
    assert "conv conv(x, w) f32[1, 1, 4, 4]" in shown


def test_demo_differentiates_a_graph_twice(shown):
    """By hand: the first window wins with its second cell, y = x[1]·w[0] + x[2]·w[1], and the other is 0."""
    x, w, along = [Fraction(1, 2), Fraction(2)], [Fraction(3, 10), Fraction(7, 10)], [1, 0]
    y, dy = sum(map(mul, x, w)), sum(map(mul, x, along))
    gradient, hessian = [3 * y**2 * c for c in x], [6 * y * dy * c for c in x]
    expected = [str(y**3), *(f"[[[{a}, {b}]]]" for a, b in (gradient, hessian, hessian))]
    start = shown.index("nodes exactly") + 1
    assert [right in line for line, right in zip(shown[start : start + 4], expected, strict=True)] == [True] * 4
    first = shown.index("variable is type") + 1
    names = ["conv", "relu", "max_pool", "mul", "mul_1", "sum"]
    assert [line.split()[0] for line in shown[first : first + 6]] == names
    assert shown[first] == "conv conv(signal, w) f32[1, 4]"


# --- how the page looks -----------------------------------------------------------------------------------------------


LINES = 40
"""Of a screen."""


def test_demo_shows_an_idea_a_screen(page):
    screens = re.split(r"^\d\. ", page, flags=re.MULTILINE)
    assert len(screens) == 6
    assert max(len(screen.strip().splitlines()) for screen in screens) <= LINES


def test_demo_writes_the_same_as_one_page(page, tmp_path):
    assert run("demo", "--html", str(tmp_path / "demo.html")).exit_code == 0
    written = (tmp_path / "demo.html").read_text(encoding="utf-8")
    assert not re.search(r"<(?:script|link|img)\b|https?://", written)
    body = re.sub(r"</?(?:pre|p)\b[^>]*>", "\n", written.partition("<body>")[2])
    text = html.unescape(re.sub(r"<[^>]*>", "", body))
    assert [line for line in page.splitlines() if is_code(line) and line not in text.splitlines()] == []
    words = " ".join(text.split())
    headless = re.sub(r"^\d\. .*$", "", page, flags=re.MULTILINE)
    prose = [" ".join(p.split()) for p in headless.split("\n\n") if p.strip()[:1].isalpha() and not p.startswith("  ")]
    assert len(prose) == 8
    assert [sentence for sentence in prose if sentence not in words] == []


@pytest.mark.parametrize("width", [60, 80, 200])
def test_demo_fits_the_terminal(width, page):
    lines = demo(width=width).splitlines()
    assert max(map(len, lines)) <= width
    assert all(line == line.rstrip() for line in lines)

    def unwrapped(text):
        return [line for line in text if is_code(line) or line.startswith("  ")]

    assert unwrapped(lines) == unwrapped(page.splitlines()), "only sentences may wrap"


def test_demo_is_ascii_everywhere(page):
    assert page.isascii()
    assert demo(charset="ascii") == page


def test_demo_reads_the_same_without_colour(page):
    coloured = demo(FORCE_COLOR="1", TERM="xterm-256color")
    assert "\x1b[" in coloured
    assert ESCAPES.sub("", coloured) == page
    assert demo(FORCE_COLOR="1", TERM="dumb") == page
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]", demo(FORCE_COLOR="1", TERM="xterm-256color", NO_COLOR="1"))


# --- the command line itself ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_every_command_has_help(command, flag):
    result = run(*command, flag)
    assert result.exit_code == 0
    assert result.stdout.startswith("Usage: ")
    described = (main.commands[command[0]] if command else main).help
    assert described.partition(".")[0] in " ".join(result.stdout.split())


def test_version():
    result = run("--version")
    assert (result.exit_code, result.stdout.split()[-1]) == (0, gs.__version__)
    assert gs.__version__ == version("gradspec")


def test_the_package_can_be_run():
    result = subprocess.run([sys.executable, "-m", "gradspec", "--version"], capture_output=True, text=True, check=True)
    assert result.stdout.split()[-1] == gs.__version__


def test_a_wrong_command_complains_on_stderr():
    result = run("no-such-command")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "no-such-command" in result.stderr


def python(program, **settings):
    return subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, **settings)


def test_demo_needs_no_framework():
    process = python(
        "import sys, gradspec.cli\n"
        "early = {'rich', 'flint', 'numpy'} & set(sys.modules)\n"
        "sys.modules['onnx'] = None\n"
        "gradspec.cli.main(['demo'], standalone_mode=False)\n"
        "late = {'torch', 'jax', 'onnxruntime'} & set(sys.modules)\n"
        "sys.exit(f'imported {early | late}' if early | late else 0)"
    )
    _, complaint = process.communicate(timeout=PATIENCE)
    assert (process.returncode, complaint) == (0, b"")


def test_a_closed_pipe_is_silent():
    process = python("import sys, gradspec.cli; sys.argv = ['gradspec', 'demo']; gradspec.cli.main()")
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    process.wait(timeout=PATIENCE)


# --- models on arrays from files --------------------------------------------------------------------------------------


def network(x, w):
    return gs.max_pool1d(gs.relu(gs.conv1d(x, w)), 2)


NETWORK = gs.trace(network, gs.f32[1, 5], gs.f32[1, 1, 2])
ARRAYS = {
    "x": np.float32([[1, 2, 0, 4, 3]]),
    "w": np.float32([[[0.5, -0.25]]]),
    "dx": np.float32([[1, 0, 2, 0, 1]]),
    "dw": np.float32([[[1, 1]]]),
    "g": np.float32([[2, 3]]),
    "double": np.ones((1, 5)),
    "short": np.ones((1, 4), np.float32),
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, array in ARRAYS.items():
        np.save(f"{name}.npy", array)
    NETWORK.save("net.gradspec")
    return tmp_path


def onnx_model(path, shape, op="Relu", **attributes):
    """One operator from x to y, made with onnx alone."""
    from onnx import helper

    onnx_models([helper.make_node(op, ["x"], ["y"], **attributes)], path, shape)


def onnx_models(nodes, path, shape, **initializers):
    from onnx import TensorProto, checker, helper, numpy_helper

    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)
    arrays = [numpy_helper.from_array(array, name) for name, array in initializers.items()]
    model = helper.make_model(
        helper.make_graph(nodes, "small", [x], [y], arrays), opset_imports=[helper.make_opsetid("", 17)]
    )
    checker.check_model(model)
    Path(path).write_bytes(model.SerializeToString())


def cast_model(path):
    """x plus integers that are converted while the model is read."""
    from onnx import TensorProto, helper

    nodes = [helper.make_node("Cast", ["c"], ["d"], to=TensorProto.FLOAT), helper.make_node("Add", ["x", "d"], ["y"])]
    onnx_models(nodes, path, [1, 5], c=np.arange(5))


def succeeds(*arguments):
    result = run("run", *arguments)
    assert (result.exit_code, result.stderr) == (0, ""), result.stderr
    return result.stdout


def fails(*arguments, command="run"):
    result = run(command, *arguments)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith("Error: ")
    return " ".join(result.stderr.split())


# By hand: x ⋆ w is [0, 1, −1, 1.25], so the second cell wins the first window and the fourth wins the other.
VALUE = [[1, 1.25]]
NET, OUT = "net.gradspec", ("--output", "y.npy")
BOTH = (NET, "--input", "x.npy", "--input", "w.npy")


def test_run_writes_the_value(folder):
    said = succeeds(*BOTH, "--output", "y.npy")
    assert np.load("y.npy").tolist() == VALUE
    assert all(word in said for word in ("3 operators", "f32[1, 5]", "x.npy", "f32[1, 2]", "y.npy", "thread"))


def test_run_takes_files_by_name_and_in_order(folder, monkeypatch):
    monkeypatch.setattr("gradspec.interop.command.SECONDS_OF_TIMING", 0.01)
    for files in (("w=w.npy", "x=x.npy"), ("w=w.npy", "x.npy")):
        succeeds("net.gradspec", "--input", files[0], "--input", files[1], "--output", "y.npy", "--threads", "1")
        assert np.load("y.npy").tolist() == VALUE
    os.rename("x.npy", "a=b.npy")
    succeeds("net.gradspec", "--input", "a=b.npy", "--input", "w.npy", "--output", "z.npy", "--time")
    assert np.load("z.npy").tolist() == VALUE


@pytest.mark.parametrize("mode", [(), ("--jvp", "x=dx.npy"), ("--vjp", "g.npy")], ids=["value", "jvp", "vjp"])
def test_run_needs_nothing_that_was_imported_before(mode, folder):
    process = python(f"import gradspec.cli; gradspec.cli.main(['run', *{BOTH}, *{mode}, '--output', 'y.npz'])")
    _, complaint = process.communicate(timeout=PATIENCE)
    assert (process.returncode, complaint) == (0, b"")
    assert np.load("y.npz")["max_pool"].tolist() == VALUE


@pytest.mark.parametrize(
    ("files", "tangent"),
    [(["x=dx.npy"], [[-0.5, -0.25]]), (["w=dw.npy"], [[2, 7]]), (["dx.npy", "dw.npy"], [[1.5, 6.75]])],
)
def test_run_in_forward_mode(files, tangent, folder):
    succeeds(*BOTH, *(part for file in files for part in ("--jvp", file)), "--output", "y.npz")
    with np.load("y.npz") as found:
        assert {name: found[name].tolist() for name in found} == {"max_pool": VALUE, "dmax_pool": tangent}


def test_run_in_reverse_mode(folder):
    succeeds(*BOTH, "--vjp", "g.npy", "--output", "y.npz")
    with np.load("y.npz") as found:
        assert {name: found[name].tolist() for name in found} == {
            "max_pool": VALUE,
            "ct_x": [[0, 1, -0.5, 1.5, -0.75]],
            "ct_w": [[[16, 9]]],
        }


def test_cotangents_that_are_not_named_are_zero(folder):
    gs.trace(lambda x: (x * 2.0, x * 3.0), gs.f32[1, 5]).save("two.gradspec")
    succeeds("two.gradspec", "--input", "x.npy", "--vjp", "mul_1=dx.npy", "--output", "y.npz")
    assert np.load("y.npz")["ct_x"].tolist() == (3 * ARRAYS["dx"]).tolist()


def test_inputs_can_be_fixed(folder):
    succeeds("net.gradspec", "--constant", "w=w.npy", "--input", "x.npy", "--vjp", "g.npy", "--output", "y.npz")
    assert sorted(np.load("y.npz")) == ["ct_x", "max_pool"]


def test_bfloat16_passes_through_files(folder):
    gs.trace(lambda x: x * 2.0, gs.bf16[2]).save("b.gradspec")
    np.save("b.npy", np.array([1.5, 3], ml_dtypes.bfloat16))
    succeeds("b.gradspec", "--input", "b.npy", "--output", "y.npy")
    assert np.load("y.npy").view(ml_dtypes.bfloat16).tolist() == [3, 6]


FAULTS = {
    "no such model": (["none.gradspec", *OUT], "none.gradspec"),
    "not a model": (["x.npy", *OUT], "x.npy: "),
    "no such input": (
        [*BOTH, "--input", "g.npy", *OUT],
        "nothing left to give this to; there are x: f32[1, 5]",
    ),
    "no input of that name": ([NET, "--input", "z=x.npy", *OUT], "nothing is called z; there are x: f32[1, 5]"),
    "no output of that name": ([*BOTH, "--vjp", "z=g.npy", *OUT], "nothing is called z; there are max_pool"),
    "an input twice": ([*BOTH, "--input", "x=g.npy", "--input", "x=g.npy", *OUT], "x was given before"),
    "an input missing": (
        [NET, "--input", "w=w.npy", *OUT],
        "no file is given for x: f32[1, 5]",
    ),
    "no such file": ([NET, "--input", "n.npy", "--input", "w.npy", *OUT], "n.npy"),
    "not an array": (
        [NET, "--input", NET, "--input", "w.npy", *OUT],
        "neither an .npy nor an .npz",
    ),
    "wrong dtype": (
        [NET, "--input", "double.npy", "--input", "w.npy", *OUT],
        "holds float64",
    ),
    "wrong shape": (
        [NET, "--input", "short.npy", "--input", "w.npy", *OUT],
        "float32 (1, 4)",
    ),
    "a wrong tangent": ([*BOTH, "--jvp", "x=dw.npy", "--output", "y.npz"], "dw.npy holds float32 (1, 1, 2), and dx"),
    "a tangent missing": ([*BOTH, "--jvp", "dx.npy", "--output", "y.npz"], "no file for w: f32[1, 1, 2]"),
    "both modes": ([*BOTH, "--jvp", "dx.npy", "--vjp", "g.npy", "--output", "y.npz"], "one of them at a time"),
    "several results": (
        [*BOTH, "--vjp", "g.npy", *OUT],
        "3 results, max_pool, ct_x, ct_w; give an .npz",
    ),
    "another suffix": ([*BOTH, "--output", "y.txt"], "an .npy or .npz file"),
    "no such folder": ([*BOTH, "--output", "none/y.npy"], "no such folder"),
    "a shape for a saved graph": ([*BOTH, "--shape", "N=8", *OUT], "--shape is for ONNX models"),
    "a constant of no input": ([*BOTH, "--constant", "z=x.npy", *OUT], "nothing is called z; there are x: f32[1, 5]"),
    "a constant without a name": ([*BOTH, "--constant", "x.npy", *OUT], "expected NAME=VALUE"),
}


@pytest.mark.parametrize(("arguments", "complaint"), FAULTS.values(), ids=FAULTS)
def test_what_does_not_fit_is_said_before_any_work(arguments, complaint, folder, monkeypatch):
    monkeypatch.setattr("gradspec.runtime.compiled.Executable.run", None)
    before = sorted(os.listdir())
    assert complaint in fails(*arguments)
    assert sorted(os.listdir()) == before


def test_all_arrays_that_do_not_fit_are_listed(folder):
    said = fails("net.gradspec", "--input", "double.npy", "--input", "x.npy", "--output", "y.npy")
    assert "double.npy holds float64 (1, 5), and x: f32[1, 5] is needed" in said
    assert "x.npy holds float32 (1, 5), and w: f32[1, 1, 2] is needed" in said


def npy(shape, descr="<f4", data=b""):
    """An .npy file, made by hand so that it may lie."""
    header = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data


@pytest.mark.parametrize(
    "content",
    [
        b"",
        npy("(1, 1000000000000)"),
        npy("(1180591620717411303424,)"),
        npy("(-1,)"),
        npy("(1, 5)", data=b"12"),
        npy("(1, 5)", "|O", bytes(40)),
        npy("(1, 5)")[:40],
        pickle.dumps(ARRAYS["x"]),
    ],
)
def test_hostile_arrays_are_refused(content, folder):
    with open("bad.npy", "wb") as file:
        file.write(content)
    assert "bad.npy" in fails("net.gradspec", "--input", "bad.npy", "--input", "w.npy", "--output", "y.npy")


def test_names_in_an_archive_lead_nowhere(folder):
    builder = gs.Builder()
    x = builder.input(gs.f32[1, 5], "../../x\x1b[31m")
    builder.build(x * builder.input(gs.f32[1, 5], "/x")).save("odd.gradspec")
    said = succeeds("odd.gradspec", "--input", "x.npy", "--input", "x.npy", "--vjp", "x.npy", "--output", "y.npz")
    assert "\x1b" not in said
    with zipfile.ZipFile("y.npz") as archive:
        assert len(set(archive.namelist())) == 3
        assert all(re.fullmatch(r"[A-Za-z0-9_-]+\.npy", name) for name in archive.namelist())


def test_names_in_an_archive_are_short_and_many_may_be_alike(folder):
    """An archive holds no name of 70 000 letters; the inputs' names are those of their cotangents."""
    builder = gs.Builder()
    names = ["a?", "a!", "a__2", "y" * 70_000]
    x = [builder.input(gs.f32[1, 5], name) for name in names]
    builder.build(x[0] * x[1] + x[2] * x[3]).save("odd.gradspec")
    succeeds("odd.gradspec", *["--input", "x.npy"] * 4, "--vjp", "x.npy", "--output", "y.npz")
    assert np.load("y.npz").files == ["add", "ct_a_", "ct_a__3", "ct_a__2", f"ct_{'y' * 97}"]
    many = archive_names(f"a{chr(0x4E00 + i)}" for i in range(20_000))
    assert len(set(many)) == 20_000


def test_a_run_that_does_not_fit_into_memory_is_refused(folder):
    b = gs.Builder()
    huge = gs.broadcast_to(b.input(gs.f32[1, 5], "x"), (2**28, 5))
    b.build(gs.matmul(gs.exp(huge), gs.transpose(gs.exp(huge)))).save("huge.gradspec")
    said = fails("huge.gradspec", "--input", "x.npy", "--output", "y.npy")
    assert re.search(r"needs [\d,]{20,} bytes of memory, and there are [\d,]+; give smaller shapes", said)


def test_the_old_output_stays_if_the_new_one_cannot_be_written(folder, monkeypatch):
    def full(*_, **__):
        raise OSError("no space left")

    succeeds(*BOTH, "--output", "y.npy")
    monkeypatch.setattr(np, "save", full)
    assert "no space left" in fails(*BOTH, "--output", "y.npy")
    assert np.load("y.npy").tolist() == VALUE
    assert not [name for name in os.listdir() if name.startswith(".")]


def test_run_and_show_an_onnx_model(folder):
    onnx_model("one.onnx", ["N", 5])
    assert "'N': …} on the command line: --shape NAME=SIZE" in fails("one.onnx", command="show")
    succeeds("one.onnx", "--shape", "N=1", "--input", "x=x.npy", "--jvp", "dx.npy", "--output", "y.npz")
    assert np.load("y.npz")["dy"].tolist() == [[1, 0, 0, 0, 1]]
    shown = run("show", "one.onnx", "--shape", "x=3,5").stdout
    assert shown == str(gs.from_onnx("one.onnx", {"N": 3})) + "\n"
    assert "y : f32[3, 5] = relu(x)" in shown
    assert run("show", "one.onnx", "--shape", "N=3", "--html", "one.html").exit_code == 0
    assert "f32[3, 5]" in (folder / "one.html").read_text()
    assert "neither a size" in fails("one.onnx", "--shape", "N=many", command="show")


def test_stale_shapes_are_one_plain_sentence(folder):
    from onnx import helper

    onnx_models([helper.make_node("Transpose", ["x"], ["y"])], "stale.onnx", [1, 5])
    result = run("show", "stale.onnx")
    assert result.exit_code == 0
    assert result.stderr.startswith("Warning: ")
    assert "[5, 1], but the model states float32 [1, 5]" in result.stderr
    assert ".py" not in result.stderr


def test_unsupported_operators_are_named(folder):
    onnx_model("odd.onnx", [1, 5], "Bernoulli")
    assert "the operator Bernoulli" in fails("odd.onnx", command="show")


def test_what_must_be_installed_is_said(folder, monkeypatch):
    onnx_model("one.onnx", [1, 5])
    monkeypatch.setitem(sys.modules, "onnx", None)
    for command in (["show"], ["run", "--output", "y.npy"]):
        said = fails("one.onnx", *command[1:], command=command[0])
        assert 'needs onnx, which is not installed; run: pip install "gradspec[onnx]"' in said


def test_show_prints_a_saved_graph(folder):
    assert run("show", "net.gradspec").stdout == f"{NETWORK}\n"
    assert "x.npy: " in fails("x.npy", command="show")


# --- files as they come -----------------------------------------------------------------------------------------------


FRESH = {
    "show": "gradspec.cli.main(['show', 'cast.onnx'])",
    "run": "gradspec.cli.main(['run', 'cast.onnx', '--input', 'x.npy', '--output', 'y.npy'])",
    "from_onnx": "from gradspec.interop import from_onnx; print(from_onnx('cast.onnx'))",
}


@pytest.mark.parametrize("program", FRESH.values(), ids=FRESH)
def test_what_is_known_at_import_is_computed_in_a_fresh_process(program, folder):
    cast_model("cast.onnx")
    process = python(f"import gradspec.cli; {program}")
    said, complaint = process.communicate(timeout=PATIENCE)
    assert (process.returncode, complaint) == (0, b"")
    assert b"add" in said or np.load("y.npy").tolist() == [[1, 3, 2, 7, 7]]


def test_one_size_is_the_shape_of_an_input_with_one_axis(folder):
    onnx_model("row.onnx", ["n"])
    np.save("row.npy", np.float32([1, -2, 3, -4]))
    for option in ("x=4", "x=4,", "n=4"):
        assert "x: f32[4]" in run("show", "row.onnx", "--shape", option).stdout
    succeeds("row.onnx", "--shape", "x=4", "--input", "row.npy", "--output", "y.npy")
    assert np.load("y.npy").tolist() == [1, 0, 3, 0]
    onnx_model("image.onnx", ["n", 5])
    assert "(4,) does not have its rank" in fails("image.onnx", "--shape", "x=4", command="show")
    onnx_model("named.onnx", ["x", 5])  # where the size of a dimension is meant
    assert "x: f32[4, 5]" in run("show", "named.onnx", "--shape", "x=4").stdout


@pytest.mark.parametrize("shape", [["N", 5], [None, None], ["N", "M"]])
def test_open_sizes_are_those_of_the_arrays(shape, folder):
    onnx_model("open.onnx", shape)
    succeeds("open.onnx", "--input", "x.npy", *OUT)
    assert np.load("y.npy").tolist() == ARRAYS["x"].tolist()
    assert "x: f32[1, 5]" in run("show", "open.onnx", "--input", "x=x.npy").stdout
    assert "leaves sizes open" in fails("open.onnx", *OUT)


def test_sizes_that_are_given_twice_must_agree(folder):
    onnx_model("open.onnx", ["N", 5])
    assert "with 2 for N, so the shape (1, 5) does not fit" in fails(
        "open.onnx", "--shape", "N=2", "--input", "x.npy", *OUT
    )
    assert "so the shape (1, 4) does not fit" in fails("open.onnx", "--input", "short.npy", *OUT)
    assert "holds float64 (1, 5)" in fails("open.onnx", "--input", "double.npy", *OUT)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_archives_give_several_arrays_by_name(save, folder):
    save("in.npz", w=ARRAYS["w"], x=ARRAYS["x"])
    save("d.npz", x=ARRAYS["dx"])
    save("g.npz", max_pool=ARRAYS["g"])
    save("w.npz", w=ARRAYS["w"])
    save("order.npz", ARRAYS["x"], ARRAYS["w"])
    for inputs in (
        ["in.npz"],
        ["order.npz"],
        ["x=in.npz", "w=in.npz"],
        ["w.npz", "x.npy"],
        ["x.npy", "w=w.npz"],
    ):
        succeeds(NET, *(part for file in inputs for part in ("--input", file)), *OUT)
        assert np.load("y.npy").tolist() == VALUE
    succeeds(NET, "--input", "in.npz", "--jvp", "d.npz", "--output", "y.npz")
    assert np.load("y.npz")["dmax_pool"].tolist() == [[-0.5, -0.25]]
    succeeds(NET, "--input", "in.npz", "--vjp", "g.npz", "--output", "y.npz")
    assert np.load("y.npz")["ct_w"].tolist() == [[[16, 9]]]
    for constants in (["w.npz"], ["w=in.npz"]):
        succeeds(NET, "--input", "x.npy", *(part for file in constants for part in ("--constant", file)), *OUT)
        assert np.load("y.npy").tolist() == VALUE


def test_what_one_run_writes_another_reads(folder):
    builder = gs.Builder()
    x = builder.input(gs.f32[1, 5], "layer/x:0")
    two = builder.build([x * 2.0, x * 3.0])
    two.save("two.gradspec")
    succeeds("two.gradspec", "--input", "x.npy", "--output", "y.npz")
    onward = gs.trace(lambda mul, mul_1: mul + mul_1, gs.f32[1, 5], gs.f32[1, 5])
    onward.save("sum.gradspec")
    succeeds("sum.gradspec", "--input", "y.npz", "--output", "z.npy")
    assert np.load("z.npy").tolist() == (5 * ARRAYS["x"]).tolist()
    np.savez("odd.npz", layer_x_0=ARRAYS["x"])  # as the archive of a run would call it
    succeeds("two.gradspec", "--input", "odd.npz", "--output", "y.npz")


def archive(members, path="bad.npz", **settings):
    with zipfile.ZipFile(path, "w", **settings) as file:
        for name, content in members:
            file.writestr(name, content)


ZERO = npy("(1, 5)", data=bytes(20))
BAD_ARCHIVES = {
    "another name": ([("z.npy", ZERO)], "it holds z, and nothing is called so; there are x: f32[1, 5]"),
    "no array": ([("x.npy", b"hello")], "damaged, or not made by np.savez"),
    "cut short": ([("x.npy", npy("(1, 5)", data=bytes(19)))], "does not hold the float32 (1, 5)"),
    "a lie": ([("x.npy", npy("(1, 1000000000000)"))], "does not hold"),
    "below zero": ([("x.npy", npy("(-1, -5)", data=bytes(20)))], "negative size"),
    "objects": ([("x.npy", npy("(1, 5)", "|O", bytes(40)))], "Python objects"),
    "version": ([("x.npy", ZERO.replace(b"NUMPY\x01", b"NUMPY\x09"))], "version (9, 0)"),
    "twice": ([("x.npy", ZERO), ("x", ZERO)], "two arrays called 'x'"),
    "empty": ([], "bad.npz"),
}


@pytest.mark.parametrize(("members", "complaint"), BAD_ARCHIVES.values(), ids=BAD_ARCHIVES)
def test_hostile_archives_are_refused(members, complaint, folder):
    archive(members)
    assert complaint in fails(NET, "--input", "bad.npz", "--input", "w=w.npy", *OUT)


def test_an_archive_is_not_unpacked_unless_it_fits(folder, monkeypatch):
    onnx_model("open.onnx", ["N", 5])
    archive([("x.npy", npy("(100000, 5)", data=bytes(2_000_000)))], compression=zipfile.ZIP_DEFLATED)
    assert os.path.getsize("bad.npz") < 3_000
    monkeypatch.setattr("gradspec.interop.command.machine_bytes", lambda: 3_000_000)
    monkeypatch.setattr("gradspec.interop.array_files.StoredArray.load", None)
    assert re.search(
        r"needs [\d,]+ bytes of memory, and there are 3,000,000", fails("open.onnx", "--input", "bad.npz", *OUT)
    )
    assert "holds float32 (100000, 5), and x: f32[1, 5] is needed" in fails(
        NET, "--input", "bad.npz", "--input", "w=w.npy", *OUT
    )


@pytest.mark.parametrize("where", ["npy", "npz"])
def test_files_of_the_other_byte_order(where, folder):
    swapped = ARRAYS["x"].astype(">f4" if sys.byteorder == "little" else "<f4")
    np.save("s.npy", swapped) if where == "npy" else np.savez("s.npz", x=swapped)
    succeeds(NET, "--input", f"s.{where}", "--input", "w=w.npy", *OUT)
    assert np.load("y.npy").tolist() == VALUE
    succeeds(NET, "--constant", f"x=s.{where}", "--input", "w.npy", *OUT)
    assert np.load("y.npy").tolist() == VALUE


def test_models_are_known_by_what_they_hold(folder):
    onnx_model("one.onnx", [1, 5])
    content, saved = Path("one.onnx").read_bytes(), Path(NET).read_bytes()
    Path("packed.onnx.gz").write_bytes(gzip.compress(content))
    shown = run("show", "one.onnx").stdout
    for name in ("model", "model.pb", "model.gradspec", "MODEL.ONNX", "model.bin"):
        Path(name).write_bytes(content)
        assert run("show", name).stdout == shown
        assert str(gs.from_onnx(name)) + "\n" == shown
    for name in ("packed.onnx.gz", "packed"):
        os.path.exists(name) or os.rename("packed.onnx.gz", name)
        succeeds(name, "--input", "x.npy", *OUT)
        assert str(gs.from_onnx(name)) + "\n" == shown
    for name in ("graph.onnx", "graph"):
        Path(name).write_bytes(saved)
        assert run("show", name).stdout == f"{NETWORK}\n"


NO_MODELS = {
    "nothing": (b"", "it is empty"),
    "text": (b"# Models\n", "it begins with b'# Models"),
    "an array": (npy("(1,)", data=bytes(4)), "it is an .npy file, which holds an array; give it to --input"),
    "a PyTorch file": (b"PK\x03\x04archive", "gs.from_torch"),
    "text that begins like a model": (b"BERT is a model", "not an ONNX model, or is damaged"),
    "a message without a graph": (b"\x08\x08", "it holds no graph"),
    "gzip of nothing": (gzip.compress(b""), "it holds no graph"),
    "gzip, cut short": (gzip.compress(b"x" * 999)[:-9], "packed by gzip, and damaged"),
    "gzip, damaged": (b"\x1f\x8b\x08" + bytes(30), "packed by gzip, and damaged"),
}


@pytest.mark.parametrize(("content", "complaint"), NO_MODELS.values(), ids=NO_MODELS)
def test_what_is_no_model_is_said(content, complaint, folder):
    Path("model").write_bytes(content)
    assert complaint in fails("model", command="show")


def test_a_packed_file_is_not_unpacked_beyond_measure(folder, monkeypatch):
    monkeypatch.setattr("gradspec.interop.onnx.files.FREE_BYTES", 2**20)
    bomb = gzip.compress(bytes(2**26), 1)
    most = 2**20 + 64 * len(bomb)
    Path("bomb.onnx.gz").write_bytes(bomb)
    tracemalloc.start()
    said = fails("bomb.onnx.gz", command="show")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert f"has {len(bomb)} bytes and unpacks to more than {most}" in said
    assert peak < 2.5 * most < 2**26


# --- terminals without UTF-8 ------------------------------------------------------------------------------------------


def in_ascii(*arguments):
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "LC_ALL": "C", "COLUMNS": "80"}
    command = [sys.executable, "-c", "import gradspec.cli; gradspec.cli.main()", *arguments]
    return subprocess.run(command, capture_output=True, timeout=PATIENCE, env=environment)


def test_signs_are_written_in_ascii_where_there_is_nothing_else(folder):
    onnx_model("odd.onnx", [1, 3, 4, 4], "DepthToSpace", blocksize=2)
    reason = "3 channels do not make blocks of 2 {} 2 cells"
    result = in_ascii("show", "odd.onnx")
    assert result.returncode == 1
    assert reason.format("x").encode() in result.stderr
    assert reason.format("×") in fails("odd.onnx", command="show")  # and as it is where there is UTF-8


def test_every_command_prints_in_any_terminal(folder):
    builder = gs.Builder()
    x = builder.input(gs.f32[1, 5], "β→×\N{SNOWMAN}")
    builder.build(x * 2.0).save("β×.gradspec")
    succeeds("β×.gradspec", "--input", "x.npy", "--output", "y→.npy")
    for arguments in (
        ["show", "β×.gradspec"],
        ["run", "β×.gradspec", "--input", "x.npy", "--output", "y→.npy"],
        ["check", "native", "--list"],
        ["check", "--help"],
    ):
        result = in_ascii(*arguments)
        assert (result.returncode, result.stderr) == (0, b""), result.stderr
        assert result.stdout.isascii()


def test_names_do_not_reach_the_terminal_as_control_sequences(folder):
    builder = gs.Builder()
    builder.build(builder.input(gs.f32[1, 4], "a\x1b[31m\u202eb") * 2.0).save("odd.gradspec")
    said = run("run", "odd.gradspec", "--input", "x.npy", *OUT).stderr
    assert "a\\x1b[31m\\u202eb: f32[1, 4]" in said
    np.savez("odd.npz", **{"\x1b[31m": ARRAYS["x"]})
    assert "it holds \\x1b[31m, and" in run("run", NET, "--input", "odd.npz", *OUT).stderr
