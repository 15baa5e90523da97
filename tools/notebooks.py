"""Run the notebooks and store what they print; as a hook of mkdocs, compare that. mkdocs-jupyter shows them.

    python tools/notebooks.py            # store the outputs of all
    python tools/notebooks.py FILE       # print one, run

A notebook runs in an interpreter of its own, where warnings are errors. What a cell prints, and the value of its last
expression, is a text; these notebooks print no times, so that the texts are the same in every run.
"""

import ast
import io
import json
import subprocess
import sys
from contextlib import redirect_stdout
from difflib import unified_diff
from pathlib import Path
from typing import Any

NOTEBOOKS = sorted((Path(__file__).parents[1] / "docs" / "notebooks").glob("*.ipynb"))

Notebook = dict[str, Any]


# --- on the site ------------------------------------------------------------------------------------------------------


def on_pre_build(**_: Any) -> None:
    for file in NOTEBOOKS:
        require_current(file)


def require_current(file: Path) -> None:
    """Refuse a notebook whose outputs are not those that it stores."""
    stored, run = file.read_text(), written(ran(file))
    if run != stored:
        changes = unified_diff(stored.splitlines(), run.splitlines(), "stored", "run", lineterm="", n=1)
        lines = "\n".join(changes)
        raise ValueError(
            f"{file.name} stores other outputs than it has. `python tools/notebooks.py` updates them.\n{lines}"
        )


# --- running ----------------------------------------------------------------------------------------------------------


def ran(file: Path) -> Notebook:
    """The notebook with the outputs that its cells have now."""
    command = [sys.executable, "-W", "error", __file__, str(file)]
    run = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if run.returncode:
        raise ValueError(f"{file.name} fails:\n{run.stderr}")
    return json.loads(run.stdout)


def _run_here(notebook: Notebook) -> Notebook:
    """Run all cells in order, in one namespace."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(code, 1):
        cell["execution_count"], cell["outputs"] = number, _outputs("".join(cell["source"]), number, namespace)
    return notebook


def _outputs(source: str, number: int, namespace: dict[str, Any]) -> list[dict[str, Any]]:
    """What a cell prints, and the value of its last statement if that is an expression."""
    tree, name, value = ast.parse(source), f"<cell {number}>", None
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    with redirect_stdout(io.StringIO()) as printed:
        exec(compile(tree, name, "exec"), namespace)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), name, "eval"), namespace)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append({"name": "stdout", "output_type": "stream", "text": printed.getvalue().splitlines(True)})
    if value is not None:
        data = {"data": {"text/plain": repr(value).splitlines(True)}, "execution_count": number, "metadata": {}}
        outputs.append({**data, "output_type": "execute_result"})
    return outputs


def written(notebook: Notebook) -> str:
    """As editors of notebooks write the file."""
    return json.dumps(notebook, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    if sys.argv[1:]:
        print(written(_run_here(json.loads(Path(sys.argv[1]).read_text()))), end="")
    else:
        for file in NOTEBOOKS:
            file.write_text(written(ran(file)))
            print(f"{file.name}: run")
