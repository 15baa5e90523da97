"""The page "From TorchLean to gradspec": all 108 definitions, each with a call that runs and gives the value listed."""

import ast
import math
import re
from collections import Counter
from fractions import Fraction
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "from_torchlean.md").read_text(encoding="utf-8")

DEFINITIONS = {
    "P": """MaxPool2DSpec AvgPool2DSpec pool2dOutShape pool2dMultiOutShape pool2dOutShapePad pool2dMultiOutShapePad
        smoothMaxPool2dSpec smoothMaxPool2dMultiSpec smoothMaxPool2dJvpSpec smoothMaxPool2dMultiJvpSpec maxPool2dSpec
        maxPool2dMultiSpec maxPool2dJvpSpec maxPool2dMultiJvpSpec avgPool2dSpec avgPool2dMultiSpec AdaptiveAvgPool2DSpec
        AdaptiveMaxPool2DSpec adaptiveStart adaptiveEnd adaptiveAvgPool2dSpec adaptiveMaxPool2dSpec
        maxPool2dBackwardSpec maxPool2dMultiBackwardSpec avgPool2dBackwardSpec""",
    "Q": """unpadImage unpadMultiChannel maxPool2dMultiSpecPad maxPool2dMultiJvpSpecPad avgPool2dMultiSpecPad
        maxPool2dMultiBackwardSpecPad avgPool2dMultiBackwardSpecPad smoothMaxPool2dBackwardSpec
        smoothMaxPool2dMultiBackwardSpec""",
    "N": """MaxPoolSpec AvgPoolSpec poolOutSpatial poolOutSpatialPad poolOutShape poolMultiOutShape poolOutShapePad
        poolMultiOutShapePad tensorOfDims foldlIndices' paddedCoords? unpadCoords? coordsInBounds
        getPaddedAverageInputVal getPaddedMaxInputVal? kernelProd maxPoolValue maxPoolJvpValue avgPoolValue
        smoothMaxPoolValue smoothMaxPoolJvpValue maxPoolSpatialSpec maxPoolSpatialJvpSpec avgPoolSpatialSpec
        maxPoolSpatialBackwardSpec avgPoolSpatialBackwardSpec maxPoolSpec maxPoolJvpSpec avgPoolSpec maxPoolBackwardSpec
        avgPoolBackwardSpec smoothMaxPoolSpatialSpec smoothMaxPoolSpatialJvpSpec smoothMaxPoolSpec smoothMaxPoolJvpSpec
        smoothMaxPoolSpatialBackwardSpec smoothMaxPoolBackwardSpec maxPool avgPool smoothMaxPool maxPoolBackward
        avgPoolBackward smoothMaxPoolBackward""",
    "G": """GlobalAvgPool2DSpec GlobalMaxPool2DSpec globalPool2dOutShape globalPool2dFlatOutShape reduceSpatial
        channelSpatialMax globalChannelReduce broadcastScalar1x1 globalPool2d1x1 globalPool2dFlat globalAvgPool2dSpec
        globalMaxPool2dSpec globalAvgPool2dFlatSpec globalMaxPool2dFlatSpec globalAvgPool2dBackwardSpec
        globalAvgPool2dFlatBackwardSpec globalMaxPool2dBackwardSpec globalMaxPool2dFlatBackwardSpec
        globalMaxPool2dBackwardDistributedSpec""",
    "M": """maxPool avgPool smoothMaxPool maxPool2d maxPool2dPad smoothMaxPool2d avgPool2d avgPool2dPad conv
        convTranspose conv2d convTranspose2d""",
    "C": """tensorOfFnList foldlIndices mkInputIdx? mkTransposeInputIdx? matchesInputPos ConvSpec convOutDim
        convOutSpatial convOutShape convMultiOutShape convSpec convKernelDerivSpec convBiasDerivSpec convInputDerivSpec
        convBackwardSpec ConvTransposeSpec convTransposeOutDim convTransposeOutSpatial convTransposeOutShape
        convTransposeMultiOutShape convTransposeSpec convTransposeKernelDerivSpec convTransposeBiasDerivSpec
        convTransposeInputDerivSpec convTransposeBackwardSpec Conv2DSpec conv2dOutShape conv2dMultiOutShape conv2dSpec
        conv2dKernelDerivSpec conv2dBiasDerivSpec conv2dInputDerivSpec conv2dBackwardSpec ConvTransposeKernel
        ConvTranspose2DSpec convTranspose2dOutShape convTranspose2dMultiOutShape convTranspose2dSpec
        convTranspose2dWeightsDerivSpec convTranspose2dBiasDerivSpec convTranspose2dInputDerivSpec
        convTranspose2dBackwardSpec conv convBackward convKernelDeriv convBiasDeriv convInputDeriv""",
}

EXPECTED = [
    (f"{module}{number}", name)
    for module, names in DEFINITIONS.items()
    for number, name in enumerate(names.split(), start=1)
]

# --- the page as data -------------------------------------------------------------------------------------------------

Row = dict[str, str]


def table_rows(page: str) -> list[Row]:
    """Every row of every table, by column title."""
    rows: list[Row] = []
    titles: list[str] = []
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if not titles or not cells:
            titles = cells
        elif set("".join(cells)) != {"-"}:
            rows.append(dict(zip(titles, cells, strict=True)))
    return rows


def code(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def names_on(page: str) -> list[tuple[str, str]]:
    """``(number, TorchLean name)`` of every numbered row."""
    numbered = [row for row in table_rows(page) if "#" in row]
    return [
        pair for row in numbered for pair in zip_longest(row["#"].split(", "), code(row["TorchLean"]), fillvalue="")
    ]


def samples(page: str) -> dict[str, Any]:
    """What the page's own sample block defines, and nothing of Python but ``len``."""
    block = re.search(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(block[1], "samples", "exec"), names)
    return names | {"__builtins__": {"len": len}}


# --- values -----------------------------------------------------------------------------------------------------------

SPECIAL = {"nan": float("nan"), "inf": float("inf")}


def listed(text: str) -> Any:
    """A value as the page writes it: nested lists of Fractions, None, and the floats that are not rational."""

    def read(node: ast.expr) -> Any:
        match node:
            case ast.List() | ast.Tuple():
                return [read(element) for element in node.elts]
            case ast.Constant(value=None):
                return None
            case ast.Constant():
                return Fraction(ast.get_source_segment(text, node))
            case ast.Name():
                return SPECIAL[node.id]
            case ast.UnaryOp(op=ast.USub()):
                return -read(node.operand) or -0.0
            case ast.BinOp(op=ast.Div()):
                return read(node.left) / read(node.right)
        raise ValueError(f"{text} is not a value")

    return read(ast.parse(text, mode="eval").body)


def equal(given: Any, value: Any, within: Fraction) -> bool:
    """Whether a result is the listed value: the same nesting, and every number no farther away than ``within``."""
    given = given.tolist() if hasattr(given, "tolist") else given
    if isinstance(value, list):
        return (
            isinstance(given, list | tuple | range)
            and len(given) == len(value)
            and all(equal(g, v, within) for g, v in zip(given, value, strict=True))
        )
    if isinstance(given, list | tuple | range) or value is None or given is None:
        return value is given
    if isinstance(value, float) or not math.isfinite(given):
        return repr(float(given)) == repr(value)
    return abs(rational(given) - value) <= within


def rational(number: Any) -> Fraction:
    """The number itself; python-flint's rationals are no Fractions, but read like them."""
    return Fraction(number if isinstance(number, int | float) else str(number))


def half_a_unit(text: str) -> Fraction:
    """Half a unit of the last digit that is shown."""
    digits = min(len(decimals) for decimals in re.findall(r"\.(\d+)", text))
    return Fraction(1, 2 * 10**digits)


def gives(call: str, value: str, rounded: bool, names: dict[str, Any]) -> bool:
    try:
        result = eval(call, names)
    except Exception as error:
        return type(error).__name__ == value
    if value.endswith("Error"):
        return False
    return equal(result, listed(value), half_a_unit(value) if rounded else Fraction(0))


# --- what can be wrong with the page ----------------------------------------------------------------------------------


def wrong_definitions(page: str) -> list[str]:
    found, expected = Counter(names_on(page)), Counter(EXPECTED)
    missing = [f"missing: {number} {name}" for number, name in expected - found]
    return missing + [f"not expected: {number} {name}" for number, name in found - expected]


def wrong_values(page: str) -> list[str]:
    names = samples(page)
    faults = []
    for row in (row for row in table_rows(page) if "#" in row or "gradspec call" in row):
        calls, values = code(row["gradspec call"]), re.findall(r"(≈ )?`([^`]+)`", row["value"])
        if not calls or len(calls) != len(values):
            faults.append(f"{row}: {len(calls)} calls and {len(values)} values")
            continue
        pairs = zip(calls, values, strict=True)
        faults += [
            f"{call} is not {value}" for call, (mark, value) in pairs if not gives(call, value, bool(mark), names)
        ]
    return faults


def wrong_differences(page: str) -> list[str]:
    rows = table_rows(page)
    explained = {row["difference"] for row in rows if row.get("how and why")}
    used = {key for row in rows for key in row.get("differs", "").split(", ") if key}
    return [f"explained or used, but not both: {key}" for key in explained ^ used]


CHECKS = [wrong_definitions, wrong_values, wrong_differences]


@pytest.mark.parametrize("check", CHECKS)
def test_the_page_is_right(check):
    assert check(PAGE) == []


def test_the_page_has_the_108_definitions():
    assert sum(not number.startswith("C") for number, _ in names_on(PAGE)) == 108


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        pytest.param("| N16 |", "| N15 |", id="number given twice"),
        pytest.param("| G19 |", "", id="row left out"),
        pytest.param("`adaptiveEnd`", "`adaptiveStop`", id="name"),
        pytest.param("`gs.spec.max_pool2d_jvp(p, dp, 2, 1)`", "", id="no call"),
        pytest.param("`gs.spec.max_pool2d_jvp(p, dp, 2, 1)` | `[[50, 60], [80, 90]]`", " | ", id="no call, no value"),
        pytest.param("gs.spec.max_pool2d_jvp(p, dp, 2, 1)", "gs.spec.max_pool2d_jvp(p, dq, 2, 1)", id="unknown name"),
        pytest.param("gs.spec.avg_pool2d(p, 2, 1)", "gs.spec.max_pool2d(p, 2, 1)", id="another operator"),
        pytest.param("`[[50, 60], [80, 90]]`", "`[[50, 60], [80, 91]]`", id="integer"),
        pytest.param("`[[50, 60], [80, 90]]`", "`[[50, 60, 80, 90]]`", id="nesting"),
        pytest.param("`[[-10/9]]`", "`[[-1.1111111]]`", id="rounded rational"),
        pytest.param("6.350980524", "6.350980525", id="last digit"),
        pytest.param("≈ `[[6.350980524", "`[[6.350980524", id="rounded without a mark"),
        pytest.param("max_pool([-0.0, 0.0]", "max_pool([0.0, -0.0]", id="sign of zero"),
        pytest.param("`([nan], [1])`", "`([1], [1])`", id="NaN"),
        pytest.param("`ValueError`<br>", "`ShapeError`<br>", id="another error"),
        pytest.param("| phantom, NaN", "| phantoms, NaN", id="unexplained difference"),
        pytest.param("| crop | There", "| crops | There", id="unused explanation"),
        pytest.param("gp = [[1, 1], [1, 1]]", "gp = [[1, 1], [1, 2]]", id="sample"),
    ],
)
def test_a_wrong_page_is_found_out(right, wrong):
    assert right in PAGE
    assert any(check(PAGE.replace(right, wrong, 1)) for check in CHECKS)
