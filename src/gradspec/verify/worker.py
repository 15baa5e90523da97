"""A process that proves: ``python -m gradspec.verify.worker``. It may be stopped at any moment, or fail.

It reads one JSON request per line, ``{"network", "property", "seconds", "kernels", "seed", "explain", "certificate",
"device"}``,
and answers with JSON lines:

    (greeting)          {"ready": true}
    a warning           {"warning": sentence}
    as it goes          {"progress": {"proved", "waiting", "margin"}}
    the answer          {"answer": Answer}
    if asked, after it  {"explained": [RootView, …]}, or {"explained": null, "why": sentence}
    what is wrong       {"wrong": sentence}, with the files or the request

The network of the request before is kept, with what was compiled for it.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from time import monotonic
from typing import Any

import gradspec.wiring  # noqa: F401  (what graphs can do)
from gradspec.graph.graph import Graph
from gradspec.interop.model_files import read_model
from gradspec.spec.errors import AmbiguityError, DTypeError, ShapeError, UnsupportedError
from gradspec.system.processes import Lines, to_parent
from gradspec.verify.explain import views
from gradspec.verify.property import Property
from gradspec.verify.prove import ProofProgress, Result, prove
from gradspec.verify.solving import Answer
from gradspec.verify.vnnlib import read_vnnlib

IDLE = 120.0
"""Seconds without a request after which a worker ends."""
BETWEEN = 0.25
"""Seconds between two messages of progress."""

WRONG = (OSError, ImportError, MemoryError, ValueError, DTypeError, ShapeError, UnsupportedError, AmbiguityError)
"""What files and requests may be wrong with."""

Say = Callable[[dict[str, Any]], None]


class VerifyWorker:
    """Answers requests, one after the other."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._graph: tuple[Any, Graph] | None = None
        self._told = 0.0

    def answer(self, request: dict[str, Any]) -> None:
        begun = monotonic()
        try:
            graph, property = self._network(request["network"]), read_vnnlib(request["property"])
            left = request["seconds"] - (monotonic() - begun)
            options = {name: request[name] for name in ("kernels", "seed", "device")}
            result = prove(graph, property, timeout=max(0.0, left), report=self._tell, **options)
        except WRONG as error:
            self._say({"wrong": str(error) or type(error).__name__})
            return
        answer = Answer.of(result, graph, property)
        if request["certificate"] is not None and result.status == "proved":
            answer = replace(answer, error=_save_certificate(result, request["certificate"]))
        self._say({"answer": answer.as_json()})
        if request["explain"]:
            self._explain(graph, property, request["kernels"])

    def _explain(self, graph: Graph, property: Property, kernels: str) -> None:
        try:
            self._say({"explained": [view.as_json() for view in views(graph, property, kernels)]})
        except WRONG as error:
            self._say({"explained": None, "why": str(error) or type(error).__name__})

    def _network(self, path: str) -> Graph:
        """Sizes that a model leaves open, those of batches, are 1."""
        state = os.stat(path)
        key = os.path.realpath(path), state.st_mtime_ns, state.st_size
        if self._graph is None or self._graph[0] != key:
            self._graph = None
            self._graph = key, read_model(path, open_size=1)
        return self._graph[1]

    def _tell(self, progress: ProofProgress) -> None:
        if monotonic() > self._told + BETWEEN:
            self._told = monotonic()
            fields = {"proved": progress.proved, "waiting": progress.waiting, "margin": float(progress.margin)}
            self._say({"progress": fields})


def _save_certificate(result: Result, path: str) -> str:
    """Save the certificate of a proof; what is wrong if that fails."""
    if result.certificate is None:
        return "this proof has no certificate"
    try:
        result.certificate.save(path)
    except WRONG as error:
        return f"the certificate could not be saved: {error}"
    return ""


def main() -> None:
    say = to_parent()
    warnings.simplefilter("always")
    warnings.showwarning = lambda message, *where: say({"warning": str(message)})
    worker = VerifyWorker(say)
    say({"ready": True})
    requests = Lines(sys.stdin.fileno())
    try:
        while (line := requests.next(IDLE)) is not None:
            worker.answer(json.loads(line))
    except EOFError:
        return


if __name__ == "__main__":
    main()
