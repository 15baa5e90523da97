"""The reference implementation that the ``onnx`` package brings: NumPy and loops, values only."""

from __future__ import annotations

from math import prod

from gradspec.conformance.model.geometry import geometry_of
from gradspec.conformance.model.problem import CONVOLUTIONS, Call, Problem, Results
from gradspec.conformance.model.target import NotOfferedError, Target
from gradspec.conformance.targets.onnx import model as models
from gradspec.conformance.targets.onnx.model import ONE_BY_ONE, undocumented

MOST_STEPS = 200_000
"""Steps of Python loops, a second or so; what takes more is left out of the judgement to save time."""


class OnnxReferenceTarget(Target):
    """``onnx.reference.ReferenceEvaluator``. ``values_only`` asks MaxPool for no indices, which is other code."""

    name = "onnx.reference"
    packages = ("onnx", "numpy")

    def refusal(self, problem: Problem, mode: str) -> str | None:
        if reason := undocumented(problem, mode):
            return reason
        if problem.op == "max_unpool" and problem.rank > 3:
            return f"Unsupported pooling size {problem.rank} for operator MaxUnpool."
        if _steps(problem) > MOST_STEPS:
            return f"offered, but left out to save time: more than {MOST_STEPS:,} steps of Python loops"
        return None

    def variants(self, problem: Problem, mode: str) -> tuple[str, ...]:
        found = ("values_only",) if problem.op == "max_pool" else ()
        return (*found, ONE_BY_ONE) if models.has_samples(problem) else found

    def run(self, call: Call) -> Results:
        from onnx.reference import ReferenceEvaluator

        if call.variant == ONE_BY_ONE:
            return models.one_by_one(call, self.run)
        node = models.node_of_call(call)
        evaluator, given = ReferenceEvaluator(models.model_of(call, node)), models.arguments(call)
        try:
            return models.named_results(call, node, list(evaluator.run(None, given)))
        except NotImplementedError as error:
            raise NotOfferedError(str(error)) from error

    def reproducer(self, call: Call) -> str:
        printed = models.printed(call, "evaluator.run(None, given)")
        lines = ["evaluator = onnx.reference.ReferenceEvaluator(model)", *printed]
        return models.program(call, models.node_of_call(call), (), "onnx.reference", lines)


def _steps(problem: Problem) -> int:
    """About how many cells its loops visit: every tap of every cell, for every output channel."""
    channels = max((problem.shapes[1] or (1,))[:2]) if problem.op in CONVOLUTIONS else 1
    taps = prod(geometry_of(problem).each("kernel"))
    return prod(problem.x_shape) * taps * channels
