"""Programs for readers: the page "From scratch", block by block, and the scripts in ``examples``."""

import ast
import importlib.util
import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import judge_autograd_function
import judge_fused_layer
import lenet5
import resnet18
from gradspec import library
from gradspec.ops.core import operators
from patience import PATIENCE

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "from_scratch.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CLAIM = re.compile(r"  # → (.*)$", re.MULTILINE)

# --- the page ---------------------------------------------------------------------------------------------------------


def printed(page: str) -> list[str]:
    """What the page's blocks print, run in order as one program."""
    output = StringIO()
    with redirect_stdout(output):
        exec(compile("\n".join(BLOCK.findall(page)), "from_scratch", "exec"), {"__name__": __name__})
    return output.getvalue().splitlines()


def claimed(page: str) -> list[str]:
    return [claim for block in BLOCK.findall(page) for claim in CLAIM.findall(block)]


def test_every_line_prints_what_the_page_says():
    assert printed(PAGE) == claimed(PAGE)
    assert len(claimed(PAGE)) == PAGE.count("print(")


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("if x[i] > x[best]", "if x[i] >= x[best]"),
        ("spread(g, operands[1]) if i == 0", "spread(g, operands[1]) if i == 1"),
        ("x[o + k] + g[o] * w[k]", "g[o] * w[k]"),
        ("add(cotangent[var], g) if var in cotangent else g", "g"),
        ("return reduce(add, terms)", "return terms[0]"),
        ("nextafter(min(ends), -inf)", "max(ends)"),
    ],
)
def test_a_wrong_program_is_found_out(right, wrong):
    """A mistake in the page's own code contradicts what the page says it prints, or stops it."""
    assert right in PAGE
    broken = PAGE.replace(right, wrong, 1)
    try:
        result = printed(broken)
    except Exception as error:
        result = [str(error)]
    assert result != claimed(broken)


def test_it_is_about_a_hundred_lines():
    """Specification, operators, graphs and both derivatives: what comes before the first network."""
    machinery, _, _ = PAGE.partition("## 5.")
    lines = [line for block in BLOCK.findall(machinery) for line in block.splitlines()]
    assert 80 <= sum(bool(line) and not line.startswith("print") for line in lines) <= 120
    assert "gradspec" not in "".join(BLOCK.findall(machinery))


# --- the operators ----------------------------------------------------------------------------------------------------


def test_the_page_on_graphs_lists_every_operator():
    page = (ROOT / "docs" / "graphs.md").read_text(encoding="utf-8")
    table = page[page.index("| operators |") : page.index("Arguments follow PyTorch")]
    listed = set(re.findall(r"`([a-z_]+)`", table))
    made = {name for name in library.__all__ if getattr(library, name).__module__.startswith("gradspec.ops.")}
    assert listed == made | (operators().keys() & {*library.__all__})


# --- quotations -------------------------------------------------------------------------------------------------------


def quotations(page: str) -> list[tuple[Path, str]]:
    """``(file, passage)`` of every block that begins with the name of a file; ``...`` stands for what is left out."""
    blocks = [block.partition("\n") for block in BLOCK.findall(page)]
    named = [(ROOT / name.removeprefix("# "), text) for name, _, text in blocks if name.startswith("# ")]
    return [(file, passage) for file, text in named for passage in text.split("...\n")]


GUIDE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_the_guide_quotes_the_operator_and_its_kernel_as_they_are():
    found = quotations(GUIDE)
    assert {file.parent.name for file, _ in found} == {"spec", "ops", "rows", "pool", "kernels", "backends"}
    assert [passage for file, passage in found if passage not in file.read_text(encoding="utf-8")] == []


@pytest.mark.parametrize(
    ("right", "wrong"),
    [("1 / Fraction(p)", "Fraction(p)"), ("args.p.head > 1.0", "args.p > 1.0"), ("p: Exponent", "p: float")],
)
def test_a_wrong_quotation_is_found_out(right, wrong):
    assert right in GUIDE
    changed = quotations(GUIDE.replace(right, wrong))
    assert any(passage not in file.read_text(encoding="utf-8") for file, passage in changed)


PLACED = re.compile(r"`([A-Za-z_][\w.]*)`\s+(?:in|of)\s+`(src/gradspec/[\w/]+\.py)`")


def definitions(file: Path) -> set[str]:
    """What a file defines: functions, classes and their methods, and names that are assigned."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found


def misplaced(page: str) -> list[tuple[str, str]]:
    """Names that a page puts into a file which does not define them."""
    pairs = PLACED.findall(page)
    return [(name, file) for name, file in pairs if name.rpartition(".")[2] not in definitions(ROOT / file)]


def test_the_guide_finds_everything_where_it_is():
    files = set(re.findall(r"`(src/gradspec/[\w/.]+)`", GUIDE))
    assert [file for file in files if not (ROOT / file).exists()] == []
    assert len(PLACED.findall(GUIDE)) > 30
    assert misplaced(GUIDE) == []
    assert misplaced("`reduce_axis` in `src/gradspec/cli.py`") == [("reduce_axis", "src/gradspec/cli.py")]


# --- the scripts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [["--size", "32"], ["--size", "32", "--batch", "2", "--fold"]], ids=str)
def test_resnet_is_compiled_and_timed(arguments):
    result = CliRunner().invoke(resnet18.main, arguments)
    assert result.exit_code == 0
    assert re.search(r"\narena (?s:.*)\ncompiled in \d+\.\d\d s\na call takes \d+\.\d ms\n$", result.stdout)
    assert ("batch_norm" in result.stdout) == ("--fold" not in arguments)


def test_lenet_is_compiled_with_its_gradient():
    result = CliRunner().invoke(lenet5.main, ["--batch", "2"])
    assert result.exit_code == 0
    value, _, gradient = result.stdout.partition("\n\n")
    assert value.startswith("value\nstep ")
    assert gradient.startswith("value and gradient\nstep ")


@pytest.mark.rows(1)
@pytest.mark.parametrize(
    ("script", "wrong", "told"),
    [
        (judge_fused_layer, "--unmasked", "unmasked_layer: The result is wrong"),
        (judge_autograd_function, "--short", "ShortRMSNorm: The gradient of the input is wrong"),
    ],
    ids=["fused layer", "autograd function"],
)
@pytest.mark.filterwarnings("ignore::gradspec.testing.FewCasesWarning")
def test_kernels_are_judged_and_a_mistake_is_shown(script, wrong, told):
    right = CliRunner().invoke(script.main, ["--cases", "24"])
    assert right.exit_code == 0, right.output
    assert re.search(r"\d cells .*were judged.* could hardly fail\.\n$", right.stdout)
    result = CliRunner().invoke(script.main, [wrong, "--cases", "24"])
    assert result.exit_code == 1
    assert told in result.output


@pytest.fixture(scope="module")
def lenet():
    source = importlib.util.spec_from_file_location("train_lenet", ROOT / "examples" / "train_lenet.py")
    script = importlib.util.module_from_spec(source)
    source.loader.exec_module(script)
    return script


def test_digits_are_drawn_the_same_from_one_seed_and_differ_between_seeds(lenet):
    images, labels = lenet.draw(40, np.random.default_rng(1))
    again, _ = lenet.draw(40, np.random.default_rng(1))
    others, _ = lenet.draw(40, np.random.default_rng(2))
    assert (images.shape, images.dtype, labels.shape) == ((40, 1, 28, 28), np.float32, (40,))
    assert np.array_equal(images, again)
    assert not np.array_equal(images, others)
    assert set(lenet.draw(400, np.random.default_rng(3))[1]) == set(range(10))


def test_the_distance_to_a_stroke(lenet):
    """From a pen moving along the row y = 3 from x = 2 to x = 5."""
    found = lenet.distance(np.float32([[[2, 5]]]), np.float32([[[3, 3]]]))[0]
    assert found[3, 2:6].tolist() == [0, 0, 0, 0]
    assert found[7, 3] == 4
    assert found[7, 8] == 5


def test_a_few_steps_of_training_lower_the_loss(lenet):
    losses = []
    params = lenet.train(steps=12, batch=16, seed=0, rate=0.003, seconds=PATIENCE, report=losses.append)
    assert len(losses) == 12
    assert np.mean(losses[-3:]) < 0.9 * np.mean(losses[:3])
    assert {layer: params[layer]["weight"].shape for layer in params} == lenet5.LAYERS


def test_the_command_trains_and_reports(lenet):
    result = CliRunner().invoke(lenet.main, ["--steps", "2", "--batch", "4", "--held-out", "8", "--seed", "5"])
    assert result.exit_code == 0
    assert re.search(r"after 2 steps\naccuracy \d+\.\d\d% on new images\n", result.stdout)
