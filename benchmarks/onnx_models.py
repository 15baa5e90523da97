"""How many models of a folder come in, and agree with ONNX Runtime; and why the others do not.

    python benchmarks/onnx_models.py FOLDER [--verbose] [--seconds 60]

Every ``.onnx`` and ``.onnx.gz`` file of the folder and those in it is loaded by ONNX Runtime on the CPU and by
``gs.from_onnx``, and both are run on the same inputs: those of a ``test_data_set_*`` beside the model, else random ones
of the stated types, with sizes that the model leaves open bound to the first of SIZES with which ONNX Runtime runs it.
Inputs that shapes depend on are bound to what they are given.

ONNX Runtime runs the model as it is written, without its own optimisations. Integers and booleans agree if they are
equal. Floats agree if they differ by no more than TOLERANCE of the largest finite number of the output, for the least
precise format in the model: both sides add up in orders of their own, and a network multiplies the roundings of one
layer by the weights of the next, so that no bound relative to each cell holds; what a wrong operator computes is off by
about the output itself.

A model is tried in a process that may take so many seconds, and is given up with it.
"""

import argparse
import gzip
import re
import warnings
from collections import Counter, defaultdict
from functools import partial
from math import prod
from multiprocessing import get_context
from pathlib import Path

import numpy as np

SIZES = (2, 1, 4, 3, 8, 16, 32, 224)
MOST_CELLS = 2**24
"""Of one input."""

TOLERANCE = {"DOUBLE": 5e-4, "FLOAT": 5e-4, "FLOAT16": 2e-2, "BFLOAT16": 1e-1}
"""Relative to the largest number. ONNX Runtime computes some operators of float64 in float32; and where attention adds
−10,000 to the scores of what is masked, steps of float32 are 10⁻³.
"""

STEP = 2.0**-23
"""Two steps of float16 next to 0, which differences may come to in any case."""

FIRST_OPSET = 7
"""The first that ONNX Runtime supports."""

MEMORY = 8 << 30
AGREES, DIFFERS, NOT_RUN = "agrees", "differs", "ONNX Runtime does not run it with such inputs"
REFUSED, NO_ANSWER, NOT_LOADED = "does not come in", "no answer", "not loaded by ONNX Runtime"
VERDICTS = (AGREES, DIFFERS, NOT_RUN, REFUSED, NO_ANSWER, NOT_LOADED)

# --- one model --------------------------------------------------------------------------------------------------------


def verdict(path: Path) -> tuple[str, list[str]]:
    """What became of a model, and the reasons."""
    import onnx

    import gradspec as gs

    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else str(path)
    try:
        model = onnx.load_from_string(content) if path.suffix == ".gz" else onnx.load(path, load_external_data=False)
        session = loaded(content, model)
    except Exception as error:
        return NOT_LOADED, [reason_of(error)]
    try:
        feeds, expected = run_theirs(session, model, path.parent)
    except Exception as error:
        feeds, expected = {}, reason_of(error)
    try:
        graph = imported(model if path.suffix == ".gz" else path, session, feeds)
        if isinstance(expected, str):
            return NOT_RUN, [expected]
        ours = graph(*(feeds[v.name] for v in graph.inputs))
    except Exception as error:
        no_sizes = isinstance(expected, str) and isinstance(error, gs.ShapeError)
        return (NOT_RUN, [expected]) if no_sizes else (REFUSED, reasons_of(error))
    differences = compared(ours if isinstance(ours, tuple) else (ours,), expected, session, tolerance(model))
    return (DIFFERS, differences) if differences else (AGREES, [])


def loaded(content, model):
    """A session for the model; one of an opset that ONNX Runtime does not have is converted."""
    import onnxruntime
    from onnx.version_converter import convert_version

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented:
        if not any(entry.domain in ("", "ai.onnx") and entry.version < FIRST_OPSET for entry in model.opset_import):
            raise
        converted = convert_version(model, FIRST_OPSET).SerializeToString()
        return onnxruntime.InferenceSession(converted, options, providers=["CPUExecutionProvider"])


def imported(model, session, feeds):
    """The graph for inputs of these shapes; those that it must know are bound, as the error asks."""
    import gradspec as gs

    names = {i.name for i in session.get_inputs()}
    shapes = {name: array.shape for name, array in feeds.items() if name in names}
    constants = {}
    while True:
        try:
            return gs.from_onnx(model, {n: s for n, s in shapes.items() if n not in constants}, constants)
        except gs.UnsupportedError as error:
            asked = set(re.findall(r"'([^']*)': …", str(error))) & feeds.keys() - constants.keys()
            if not asked:
                raise
            constants |= {name: feeds[name] for name in asked}


# --- inputs -----------------------------------------------------------------------------------------------------------


def run_theirs(session, model, folder):
    """Inputs by name with which ONNX Runtime runs, and its results."""
    stored = stored_inputs(session, folder)
    candidates = [lambda: stored] if stored else [partial(random_inputs, session, size) for size in SIZES]
    for candidate in candidates:
        try:
            feeds = candidate()
            return feeds, session.run(None, feeds)
        except Exception as error:
            failure = error
    raise failure


def stored_inputs(session, folder):
    """The arrays of the first data set beside the model, if it has one for every input."""
    import onnx
    from onnx import numpy_helper

    sets = sorted(folder.glob("test_data_set_*"))
    files = sorted(sets[0].glob("input_*.pb"), key=lambda file: int(file.stem[6:])) if sets else []
    tensors = [onnx.TensorProto.FromString(file.read_bytes()) for file in files]
    inputs = session.get_inputs()
    if not tensors or len(tensors) != len(inputs):
        return None
    return {i.name: numpy_helper.to_array(tensor) for i, tensor in zip(inputs, tensors, strict=True)}


def random_inputs(session, size):
    """Normal floats, zeros and ones for integers; open sizes are ``size``."""
    random = np.random.default_rng(0)
    return {
        i.name: random_array(random, i.type, [n if isinstance(n, int) else size for n in i.shape])
        for i in session.get_inputs()
    }


def random_array(random, kind, shape):
    if "tensor(" not in kind or "string" in kind:
        raise TypeError(f"an input is a {kind}")
    word = re.search(r"tensor\((\w+)\)", kind)[1]
    if prod(shape) > MOST_CELLS:
        raise ValueError(f"an input has the shape {shape}")
    dtype = np.dtype({"float": "float32", "double": "float64"}.get(word, word))
    return (random.standard_normal(shape) if dtype.kind == "f" else random.integers(0, 2, shape)).astype(dtype)


# --- agreement --------------------------------------------------------------------------------------------------------


def tolerance(model):
    """That of the least precise format which the model mentions."""
    from onnx import TensorProto

    graph = model.graph
    kinds = {tensor.data_type for tensor in graph.initializer}
    kinds |= {i.type.tensor_type.elem_type for infos in (graph.input, graph.output, graph.value_info) for i in infos}
    kinds |= {a.i for node in graph.node for a in node.attribute if a.name == "to"}
    kinds |= {a.t.data_type for node in graph.node for a in node.attribute}
    return max(TOLERANCE.get(TensorProto.DataType.Name(kind), TOLERANCE["FLOAT"]) for kind in kinds)


def compared(ours, theirs, session, relative):
    """What differs."""
    outputs = [o.name for o in session.get_outputs()]
    found = [difference(a, np.asarray(b), relative) for a, b in zip(ours, theirs, strict=True)]
    return [f"output {name}: {text}" for name, text in zip(outputs, found, strict=True) if text]


def difference(ours, theirs, relative):
    if (ours.shape, ours.dtype) != (theirs.shape, theirs.dtype):
        return f"{ours.dtype}{list(ours.shape)} for {theirs.dtype}{list(theirs.shape)}"
    if theirs.dtype.kind in "iub":
        count = int((ours != theirs).sum())
        return f"{count} of {theirs.size} cells are not equal" if count else ""
    a, b = ours.astype(np.float64), theirs.astype(np.float64)
    with np.errstate(invalid="ignore"):
        apart = np.where((a == b) | np.isnan(a) & np.isnan(b), 0.0, np.abs(a - b))
    largest = np.abs(b, where=np.isfinite(b), out=np.zeros_like(b)).max(initial=0.0)
    worst = apart.max(initial=0.0)
    is_close = worst <= relative * largest + STEP * (relative > TOLERANCE["FLOAT"])
    return "" if is_close else f"{worst:.2g} apart, the largest is {largest:.2g}"


# --- reasons ----------------------------------------------------------------------------------------------------------


def reasons_of(error):
    """Why a model is refused: each thing it needs, without the places where."""
    lines = [line.strip() for line in str(error).splitlines() if re.match(r"  \S", line)]
    return sorted({re.sub(r", (once|\d+ times)$| \(bind it.*", "", line) for line in lines}) or [reason_of(error)]


def reason_of(error):
    """One line of an error, without what differs from model to model."""
    text = " ".join(str(error).split())[:200]
    return f"{type(error).__name__}: " + re.sub(r"node \d+ \((\S+) [^)]*\)", r"\1", text)


# --- all of them ------------------------------------------------------------------------------------------------------


def work(connection):
    """Answer for one path after another."""
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    except ImportError:  # not on this system
        pass
    warnings.simplefilter("ignore")
    while True:
        connection.send(verdict(connection.recv()))


class Worker:
    """A process that tries models."""

    def __init__(self):
        self._connection, theirs = get_context("spawn").Pipe()
        self._process = get_context("spawn").Process(target=work, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()

    def answer(self, path, seconds):
        """The verdict on a model; None if the process dies or takes too long."""
        self._connection.send(path)
        try:
            return self._connection.recv() if self._connection.poll(seconds) else None
        except EOFError:
            return None

    def stop(self):
        self._process.kill()
        self._process.join()


def verdicts(paths, seconds):
    """Each path with what became of it and why."""
    worker = Worker()
    for path in paths:
        answer = worker.answer(path, seconds)
        if answer is None:
            worker.stop()
            worker = Worker()
        yield path, *(answer or (NO_ANSWER, [f"its process died, or took more than {seconds} seconds"]))
    worker.stop()


def main(folder, seconds, verbose):
    paths = sorted(p for p in folder.rglob("*") if p.name.endswith((".onnx", ".onnx.gz")) and p.is_file())
    counts, because = Counter(), {verdict: defaultdict(list) for verdict in VERDICTS}
    for path, found, reasons in verdicts(paths, seconds):
        counts[found] += 1
        for reason in reasons:
            because[found][reason].append(path)
    run = len(paths) - counts[NOT_LOADED] - counts[NOT_RUN]
    ours = counts[AGREES] + counts[DIFFERS]
    print(f"{len(paths):5} models")
    print(f"{len(paths) - counts[NOT_LOADED]:5} are loaded by ONNX Runtime")
    print(f"{run:5} of these may run with such inputs")
    print(f"{ours:5} of these come in ({ours / max(run, 1):.1%})")
    print(f"{counts[AGREES]:5} of these agree with ONNX Runtime")
    for found in filter(because.get, VERDICTS):
        print(f"\n{found}: {counts[found]}")
        for reason, files in sorted(because[found].items(), key=lambda entry: -len(entry[1])):
            print(f"{len(files):5}  {reason}")
            for file in files if verbose else ():
                print(f"         {file.relative_to(folder)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=int, default=60, help="for one model")
    parser.add_argument("--verbose", action="store_true", help="list the files of every reason")
    arguments = parser.parse_args()
    main(arguments.folder, arguments.seconds, arguments.verbose)
