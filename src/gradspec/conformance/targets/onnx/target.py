"""ONNX Runtime: values only, from models of one node."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from itertools import starmap
from math import prod
from typing import Any

from gradspec.conformance.model.device import HOST
from gradspec.conformance.model.geometry import geometry_of, with_defaults
from gradspec.conformance.model.problem import CONVOLUTIONS, SLIDING_POOLS, Call, Problem, Results
from gradspec.conformance.model.reference import on_zeros
from gradspec.conformance.model.target import ExpectedError, NotOfferedError, Target
from gradspec.conformance.targets.layers import LayeredTarget
from gradspec.conformance.targets.onnx import model as models
from gradspec.conformance.targets.onnx.model import ARITHMETICS, ERROR_ROWS, ONE_BY_ONE, JudgedNode, undocumented
from gradspec.graph.lru import LRUCache

MOST_SESSIONS = 64
FATAL = 4
POOLS = ("max_pool", "avg_pool", "global_max_pool", "global_avg_pool", "max_unpool")
NO_KERNEL = (
    *("NOT_IMPLEMENTED", "Unsupported pooling size", "can't be converted to MLDataType"),
    "fallback to CPU EP has been explicitly disabled",
)
"""What ONNX Runtime answers where it has no kernel, or its Python interface no arrays of a type."""


NO_FALLBACK = ("session.disable_cpu_ep_fallback", "1")
CUDA_PROVIDER = "https://onnxruntime.ai/docs/execution-providers/CUDA-ExecutionProvider.html"


class OnnxRuntimeTarget(LayeredTarget):
    """``onnxruntime.InferenceSession`` with the provider of the device.

    Weights belong to the model, as in exported files (``plain``, and ``unoptimised``, with the graph as it is), or are
    fed (``weights_fed``): only weights that belong to the model are packed beforehand. ``values_only`` asks MaxPool for
    no indices, which is another kernel.
    """

    name = "onnxruntime"
    packages = ("onnxruntime", "onnx")
    library = "onnxruntime"
    arithmetics = ARITHMETICS

    def __init__(self) -> None:
        super().__init__()
        self._sessions = LRUCache[Any](MOST_SESSIONS)
        self._threads = 0
        self._missing: dict[tuple[str, str], str | None] = {}

    def refusal(self, problem: Problem, mode: str) -> str | None:
        return undocumented(problem, mode) or next(_declined(problem), None) or self._without_kernel(problem)

    def variants(self, problem: Problem, mode: str) -> tuple[str, ...]:
        found = ["unoptimised"]
        if problem.op == "max_pool":
            found.append("values_only")
        if "weight" in problem.named_shapes():
            found.append("weights_fed")
        return (*found, ONE_BY_ONE) if models.has_samples(problem) else tuple(found)

    def _run(self, call: Call) -> Results:
        if call.variant == ONE_BY_ONE:
            return models.one_by_one(call, self._run)
        try:
            return models.named_results(call, models.node_of_call(call), self._outputs(call, models.node_of_call(call)))
        except Exception as error:
            if _is_declined(error):
                raise NotOfferedError(_message(error)) from error
            raise

    def set_threads(self, count: int) -> bool:
        self._threads = count
        self._sessions = LRUCache[Any](MOST_SESSIONS)
        return True

    def reproducer(self, call: Call) -> str:
        return _written(call, models.node_of_call(call), self.device.provider)

    def run(self, call: Call) -> Results:
        with self.device.told():
            return self._run(call)

    def reduced(self) -> dict[str, str]:
        return {} if self.device.is_host else {"tf32": f"the option use_tf32, which is on ({CUDA_PROVIDER})"}

    def expected_errors(self) -> Sequence[ExpectedError]:
        def expected(rule: str, call: Call, node: JudgedNode) -> ExpectedError:
            source = _written(call, node, self.device.provider)
            return ExpectedError(call.problem.op, lambda: self._outputs(call, node), (Exception,), source, rule)

        return list(starmap(expected, ERROR_ROWS))

    def _outputs(self, call: Call, node: JudgedNode) -> list[Any]:
        weights = _weights(call)
        given = {name: array for name, array in models.arguments(call).items() if name not in weights}
        return list(self._session(call, node, weights).run(list(node.outputs), given))

    def _session(self, call: Call, node: JudgedNode, weights: Sequence[str]) -> Any:
        """A session without weights serves every call of its problem."""
        if weights:
            return self._new_session(call, node, weights)
        key = (repr(call.problem), repr(node), call.variant)
        return self._sessions.get_or_make(key, lambda: self._new_session(call, node, weights))

    def _without_kernel(self, problem: Problem) -> str | None:
        """What ONNX Runtime says if it has no kernel for this operator and dtype; asked once."""
        key = (problem.op, problem.dtype)
        if key not in self._missing:
            try:
                self._new_session(on_zeros(problem, "value"), models.node_of(problem))
                self._missing[key] = None
            except Exception as error:
                self._missing[key] = _message(error) if _is_declined(error) else None
        return self._missing[key]

    def _new_session(self, call: Call, node: JudgedNode, weights: Sequence[str] = ()) -> Any:
        model, bare = models.model_of(call, node, weights), call.variant == "unoptimised"
        return session_of(model, self._threads, bare, self.device.provider)


def session_of(model: Any, threads: int, unoptimised: bool = False, provider: str = HOST.provider) -> Any:
    """A session that runs a model on so many threads of the CPU, where 0 lets ONNX Runtime choose; or all of it on
    another device: what has no kernel there is an error.
    """
    onnxruntime = import_module("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads, options.log_severity_level = threads, 1, FATAL
    if unoptimised:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    if provider != HOST.provider:
        options.add_session_config_entry(*NO_FALLBACK)
    return onnxruntime.InferenceSession(model.SerializeToString(), options, [provider])


def _written(call: Call, node: JudgedNode, provider: str) -> str:
    lines = ["options = onnxruntime.SessionOptions()"]
    if call.variant == "unoptimised":
        lines.append("options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL")
    lines.append(f'providers = ["{provider}"]')
    lines.append("session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers)")
    lines += models.printed(call, "session.run(None, given)")
    return models.program(call, node, _weights(call), "onnxruntime", lines)


def _is_declined(error: Exception) -> bool:
    return any(words in str(error) for words in NO_KERNEL)


def _message(error: Exception) -> str:
    """What is said beside numbers and places in its sources: ``NOT_IMPLEMENTED : Could not find ...``."""
    return str(error).partition(" : ")[2].partition(" : ")[2] or str(error)


def _weights(call: Call) -> list[str]:
    """The inputs that belong to the model."""
    return [name for name in call.named() if name in ("weight", "bias") and call.variant != "weights_fed"]


def _declined(problem: Problem) -> Iterator[str]:
    """What the standard has and ONNX Runtime turns down with an error of its own that says so, in its words."""
    has_f16_kernel = problem.dtype == "f16" and problem.op in ("max_pool", "avg_pool", "global_avg_pool")
    if problem.op in POOLS and problem.rank > 3 and not has_f16_kernel:
        yield "pools have one to three axes: Unsupported pooling size"
    if problem.op in POOLS and problem.op != "max_unpool" and problem.x_shape[1] == 0:
        yield "Invalid input shape. Only N can be zero."
    if problem.op in SLIDING_POOLS and any(max(a.lo, a.hi) >= a.kernel for a in geometry_of(problem).sliding):
        yield "Pad should be smaller than kernel."
    if problem.op == "conv_transpose":
        given = with_defaults(problem.op, problem.rank, problem.attributes)
        if any(extra >= step for extra, step in zip(given["output_padding"], given["stride"], strict=True)):
            yield "output_padding must be less than the stride: Computed output shape is inconsistent"


# --- the reference implementation -------------------------------------------------------------------------------------


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
