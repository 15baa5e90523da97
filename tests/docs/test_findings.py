"""The pages of defects in other libraries: their programs do what they say, with the versions that are installed."""

import platform
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "docs" / "findings"
SHARED = "run_onnx"
PACKAGES = {"PyTorch": "torch", "JAX": "jax", "ONNX Runtime": "onnxruntime", "torchao": "torchao"}
MACHINES = {"AArch64": "aarch64", "x86-64": "x86_64"}
SEEN = re.compile(rf"^Seen with ({'|'.join(PACKAGES)}) ([\d.]+), CPU, ({'|'.join(MACHINES)})", re.MULTILINE)
PROGRAMS = sorted(file.stem for file in FOLDER.glob("*.py") if file.stem != SHARED)


@pytest.mark.rows(2)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_shows_its_defect_where_it_was_seen(name):
    page = (FOLDER / f"{name}.md").read_text("utf-8")
    library, number, machine = SEEN.search(page).groups()
    try:
        here = version(PACKAGES[library]).partition("+")[0], platform.machine()
    except PackageNotFoundError:
        pytest.skip(f"{library} is not installed")
    result = subprocess.run([sys.executable, f"{name}.py"], cwd=FOLDER, capture_output=True, text=True)
    (printed,) = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    if here != (number, MACHINES[machine]) and result.stdout.endswith("\nfixed\n"):
        pytest.skip(f"fixed in {library} {here[0]} on {here[1]}: say so on docs/findings/{name}.md")
    assert result.stdout == printed, result.stderr


def test_a_page_shows_its_program_and_the_index_has_all():
    for name in PROGRAMS:
        page, program = (FOLDER / f"{name}.md").read_text("utf-8"), (FOLDER / f"{name}.py").read_text("utf-8")
        assert re.findall(r"```python\n(.*?)```", page, re.DOTALL) == [program], name
        assert re.findall("^## (.*)$", page, re.MULTILINE) == ["What is right", "Where", "A fix"], name
    index = (FOLDER / "index.md").read_text("utf-8")
    assert sorted(re.findall(r"\]\((\w+)\.md\)", index)) == PROGRAMS
