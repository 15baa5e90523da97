"""The cases that ship inside the ``onnx`` package. Its list takes ten seconds to build, so a process builds it once."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests

SUITES = ("node", "pytorch-converted", "pytorch-operator", "simple")

Array = np.ndarray


@dataclass(frozen=True)
class Case:
    """A model with inputs and the outputs they should give."""

    name: str
    model: onnx.ModelProto
    source: TestCase

    @property
    def operators(self) -> set[str]:
        return {node.op_type for node in self.model.graph.node}

    def data_sets(self) -> Iterator[tuple[list[Any], list[Any]]]:
        """Inputs and expected outputs, in memory or on disk."""
        if self.source.data_sets is not None:
            for inputs, outputs in self.source.data_sets:
                yield list(map(_array, inputs)), list(map(_array, outputs))
            return
        for folder in sorted(Path(self.source.model_dir).glob("test_data_set_*")):
            yield _stored(folder, "input"), _stored(folder, "output")


@cache
def shipped() -> tuple[Case, ...]:
    with warnings.catch_warnings():
        # Some cases overflow and divide by zero on purpose while the package builds its list.
        warnings.filterwarnings("ignore", category=RuntimeWarning, module=r"onnx\.backend\.test\.case\.node\.")
        found = [case for suite in SUITES for case in load_model_tests(kind=suite)]
    return tuple(Case(case.name, case.model or _model(case), case) for case in found)


def _model(case: TestCase) -> onnx.ModelProto:
    return onnx.load(Path(case.model_dir) / "model.onnx")


def _stored(folder: Path, kind: str) -> list[Array]:
    files = sorted(folder.glob(f"{kind}_*.pb"), key=lambda file: int(file.stem.removeprefix(f"{kind}_")))
    return [_array(onnx.load_tensor(file)) for file in files]


def _array(value: Any) -> Any:
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value
