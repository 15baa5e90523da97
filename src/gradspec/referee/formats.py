"""The formats that kernels and their problems come in: KernelBench, GPU MODE, BackendBench, and our own names.

A `ProblemSource` says where a problem is. `load_problem` runs its code, which only the process of that problem does,
and gives what the judge takes: a reference, the types of its inputs, and how a solution is called.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any, TypeAlias

from gradspec.conformance.model.reference import Types
from gradspec.conformance.targets.objects import object_named
from gradspec.conformance.targets.reference.loading import read_inputs, tracer
from gradspec.graph.graph import Graph
from gradspec.graph.ir import Var
from gradspec.graph.types import DTYPES, TensorType
from gradspec.ops.select import greater, where
from gradspec.ops.shape import sum as sum_over
from gradspec.spec.errors import FormatError, UnsupportedError
from gradspec.system.host import TENSOR, Solution, fill_pattern, library_of, made_module, run_file
from gradspec.transforms.copy import inline

MOST_CELLS = 1 << 18
"""Cells of all inputs and parameters that a problem is judged on, unless more are asked for."""
LEAST_SIZE = 8
"""A constant of a problem is not made smaller than this."""
USUAL_SHAPES = (
    *(((16, 32),), ((16, 32), (32, 16)), ((2, 8, 16), (2, 16, 8))),
    *(((16,), (16, 32), (32, 16)), ((2, 4, 8, 8),)),
)
"""Shapes that an operator is tried with where none are given: elementwise, products, images."""

Pattern: TypeAlias = Any
"""Arguments as plain data, with places for arrays."""


@dataclass(frozen=True)
class ProblemSource:
    """Where a problem is, and in whose format: plain data, from which any process can load it.

    ``path`` is a file, a folder, an operator (``add.Tensor``) or ``module:reference``. ``inputs`` are types, or a file
    of BackendBench's traces. With ``fixed`` sizes, a kernel is judged on the given types alone. ``sizes`` are the types
    that it is timed on, if not the first that it is judged on.
    """

    format: str
    path: str
    inputs: str = ""
    array: str = ""
    fixed: bool = False
    most_cells: int = MOST_CELLS
    sizes: str = ""


@dataclass(frozen=True)
class SolutionCall:
    """How a solution is called: the fields of a `gradspec.system.host.Solution`, and the library of its arrays."""

    entry: str
    pattern: tuple[Any, ...] | None = None
    """Positional arguments; None for the arrays as they are."""
    keywords: Mapping[str, Any] = field(default_factory=dict)
    init: tuple[Any, ...] | None = None
    """Arguments of the class that the entry is; None where it is the kernel itself."""
    array: str = "torch"
    modules: Mapping[str, str] = field(default_factory=dict)
    """Files that it may import, by name."""

    @property
    def options(self) -> dict[str, Any]:
        """As a process takes them that knows nothing of this class."""
        return {name: value for name, value in vars(self).items() if name != "array"}

    def solution(self, name: str) -> Solution:
        """The solution in a file, or of ``module:object``; its code runs when it is first called."""
        return Solution(name, **self.options)


@dataclass(frozen=True)
class LoadedProblem:
    """What the judge takes of a problem."""

    reference: TracedReference
    types: tuple[Types, ...]
    call: SolutionCall
    eager: Callable[..., Any]
    """The reference as a function of arrays of its own library."""
    notes: tuple[str, ...] = ()
    """What of the problem is not judged, and what was changed."""
    timed: Types = ()
    """The types that it is timed on, where they were asked for."""
    source: ProblemSource | None = None
    """Where another process can load it from; None of objects."""
    spec: Any = None
    """What the judge is given instead of the reference: a module whose parameters a kernel shares."""


class TracedReference:
    """A reference as a function of variables, whose graphs are kept: copies of this process need not trace again."""

    def __init__(self, trace: Callable[[Types], Graph], only: frozenset[Types] = frozenset()) -> None:
        self._trace, self._only = trace, only
        self._graphs: dict[Types, Graph | Exception] = {}

    def graph(self, types: Types) -> Graph:
        if types not in self._graphs:
            try:
                self._graphs[types] = self._trace(types)
            except Exception as error:  # of whatever library it is written in
                self._graphs[types] = error
        found = self._graphs[types]
        if isinstance(found, Exception):
            raise found
        return found

    def __call__(self, *variables: Var) -> tuple[Var, ...]:
        types = tuple(v.type for v in variables)
        if self._only and types not in self._only:
            raise UnsupportedError(f"{', '.join(map(str, types))} are not the types of the problem")
        graph = self.graph(types)
        unused = set(graph.inputs) - {v for node in graph.nodes for v in node.inputs} - set(graph.outputs)
        outputs = inline(graph, variables)
        spare = [new for old, new in zip(graph.inputs, variables, strict=True) if old in unused]
        return tuple(_mention(spare, y) for y in outputs)


def _mention(spare: Sequence[Var], y: Var) -> Var:
    """The same variable, in whose graph the inputs that nothing reads, such as buffers for results, are not missing."""
    for x in spare:
        y = where(greater(sum_over(x), 0), y, y)
    return y


# --- patterns ---------------------------------------------------------------------------------------------------------


def pattern_of(value: Any, arrays: list[Any]) -> Pattern:
    """A value with places for its arrays, which are appended to the list."""
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        arrays.append(value)
        return {TENSOR: len(arrays) - 1}
    if isinstance(value, list | tuple):
        return [pattern_of(part, arrays) for part in value]
    if isinstance(value, Mapping):
        return {"items": {str(key): pattern_of(part, arrays) for key, part in value.items()}}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise FormatError(f"an input is {type(value).__name__}; problems have arrays, numbers, words, and lists of those")


def torch_types(arrays: Sequence[Any]) -> Types:
    """The types of tensors; a `FormatError` for what is not judged."""
    found = []
    for array in arrays:
        name = re.sub(r"^(\w)[a-z]*?(\d+)$", r"\1\2", str(array.dtype).removeprefix("torch."))
        name = {"b16": "bf16"}.get(name, name)
        if name not in DTYPES:
            raise FormatError(
                f"an input has dtype {array.dtype}, which is not judged; it is one of {', '.join(DTYPES)}"
            )
        found.append(DTYPES[name][tuple(array.shape)])
    return tuple(found)


def count_cells(types: Types) -> int:
    return sum(prod(t.shape) for t in types)


def write_types(lists: Sequence[Types]) -> str:
    """As ``inputs`` of the judge are written.

    >>> write_types(read_inputs("f32[8, 64], i64[8]; f32[1,64],i64[1]")[0])
    'f32[8,64],i64[8]; f32[1,64],i64[1]'
    """
    return "; ".join(",".join(f"{t.dtype.name}[{','.join(map(str, t.shape))}]" for t in types) for types in lists)


# --- loading ----------------------------------------------------------------------------------------------------------


def load_problem(source: ProblemSource) -> LoadedProblem:
    """Run the code of a problem; whatever is wrong with it is raised."""
    loaders = {"kernelbench": _kernelbench, "gpumode": _gpumode, "backendbench": _backendbench, "own": _own}
    loaded = replace(loaders[source.format](source), source=source)
    return with_timed_types(loaded, source.sizes) if source.sizes else loaded


def with_timed_types(loaded: LoadedProblem, sizes: str) -> LoadedProblem:
    """The same problem, timed on other types."""
    types, *more = read_inputs(sizes)[0]
    if more:
        raise FormatError(f"sizes are {sizes!r}; give one list of types to time on")
    loaded.reference.graph(types)  # or why there is none
    return replace(loaded, timed=types)


def _of_torch(
    source: ProblemSource, module: Any, lists: Sequence[Types], call: SolutionCall, notes: Sequence[str]
) -> LoadedProblem:
    from gradspec.interop.torch.reference import torch_tracer

    only = frozenset(lists) if source.fixed else frozenset[Types]()
    reference = TracedReference(torch_tracer(module, "constants"), only)
    reference.graph(lists[0])  # or why there is none
    return LoadedProblem(reference, tuple(lists), call, module, tuple(notes))


def _own(source: ProblemSource) -> LoadedProblem:
    spec: Any = source.path if source.path.endswith(".onnx") else object_named(source.path)
    return load_objects(spec, source.inputs, source.array, source.fixed)


def load_objects(spec: Any, inputs: Any, array: str = "", fixed: bool = False) -> LoadedProblem:
    """The problem that a reference and the types of its inputs are."""
    spec = spec() if isinstance(spec, type) else spec
    library = "" if isinstance(spec, str) else library_of(spec)
    lists, draw = read_inputs(inputs)
    if draw is not None:
        raise FormatError("inputs are types here, such as f32[8,64]: a problem's numbers are not its own to choose")
    array = array or (library if library in ("torch", "jax") else "numpy")
    only = frozenset(lists) if fixed else frozenset[Types]()
    reference = TracedReference(tracer(spec), only)
    for types in lists:
        reference.graph(types)
    eager = spec if callable(spec) else reference.graph(lists[0])
    return LoadedProblem(reference, tuple(lists), SolutionCall("kernel", array=array), eager)


@contextmanager
def _without_gpu(device: str) -> Iterator[None]:
    """Make tensors on ``device`` wherever a problem says: its shapes are wanted, and numbers come from the judge."""
    import torch
    from torch.overrides import TorchFunctionMode

    class DeviceReplacing(TorchFunctionMode):
        def __torch_function__(self, function: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
            options = dict(kwargs or {})
            name = getattr(function, "__name__", "")
            if name == "cuda":
                return args[0]
            if name == "to":
                args = (args[0], *(a for a in args[1:] if not isinstance(a, str | torch.device)))
                options.pop("device", None)
                if len(args) == 1 and not options:
                    return args[0]
            elif "device" in options:
                options["device"] = device
            if device == "meta":
                options.pop("generator", None)
            return function(*args, **options)

    own = torch.Generator
    torch.Generator = lambda *_, **__: own()  # type: ignore[assignment, misc]
    try:
        with torch.device(device), DeviceReplacing():
            yield
    finally:
        torch.Generator = own  # type: ignore[misc]


def _drawn(make: Callable[[], Any]) -> Any:
    """What a problem makes: without memory where that is possible."""
    try:
        with _without_gpu("meta"):
            return make()
    except Exception:  # it looks at numbers
        with _without_gpu("cpu"):
            return make()


# --- KernelBench: Model, get_inputs, get_init_inputs; ModelNew --------------------------------------------------------


def _kernelbench(source: ProblemSource) -> LoadedProblem:
    tree = ast.parse(Path(source.path).read_text(encoding="utf-8"))
    last = ""
    for divisor in (2**n for n in range(16)):
        try:
            init, arrays, pattern, model = _small_model(tree, source.path, divisor)
            types = torch_types(arrays)
        except Exception as error:
            if divisor == 1:
                raise
            last = f": {type(error).__name__}: {error}"
            continue
        cells = count_cells(types) + sum(p.numel() for p in model.parameters())
        if cells <= source.most_cells:
            break
    else:
        raise FormatError(f"{source.path} has more than {source.most_cells:,} cells; allow more{last}")
    notes = [f"its constants were divided by {divisor} to have at most {source.most_cells:,} cells"] * (divisor > 1)
    is_plain = pattern == [{TENSOR: i} for i in range(len(arrays))]
    call = SolutionCall("ModelNew", None if is_plain else tuple(pattern), init=tuple(init))
    module = model if is_plain else as_module(lambda *a: model(*fill_pattern(pattern, a)), model)
    return _of_torch(source, module, [types], call, notes)


def _small_model(tree: ast.Module, path: str, divisor: int) -> tuple[list[Any], list[Any], list[Any], Any]:
    """A problem whose constants are divided: its initial inputs, tensors without memory, their pattern, its model."""
    names = _run_divided(tree, path, divisor)
    init, arrays = list(names["get_init_inputs"]() if "get_init_inputs" in names else []), list[Any]()
    if ast.literal_eval(repr(init)) != init:
        raise FormatError("get_init_inputs gives something else than numbers, words and lists")
    pattern = pattern_of(_drawn(names["get_inputs"]), arrays)
    tried = _drawn(lambda: names["Model"](*init))
    if all(array.is_meta for array in arrays) and all(p.is_meta for p in tried.parameters()):
        tried(*fill_pattern(pattern, arrays))
    return init, arrays, pattern, made_module(names["Model"], init)


def _run_divided(tree: ast.Module, path: str, divisor: int) -> dict[str, Any]:
    """The names of a file whose constants, numbers that are given names, are divided; small ones are not."""

    class Divided(ast.NodeTransformer):
        def visit_Constant(self, node: ast.Constant) -> ast.Constant:
            if type(node.value) is int and node.value > LEAST_SIZE:
                return ast.copy_location(ast.Constant(max(node.value // divisor, LEAST_SIZE)), node)
            return node

    body = [Divided().visit(s) if isinstance(s, ast.Assign) and divisor > 1 else s for s in deepcopy(tree).body]
    names: dict[str, Any] = {"__name__": Path(path).stem, "__file__": path}
    exec(compile(ast.Module(body, []), path, "exec"), names)
    missing = [name for name in ("Model", "get_inputs") if name not in names]
    if missing:
        raise FormatError(f"{path} has no {' and no '.join(missing)}, which a problem of KernelBench has")
    return names


def as_module(function: Callable[..., Any], inner: Any = None) -> Any:
    """A function as a module of PyTorch, with the parameters of another one."""
    from torch import nn

    class Called(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, *arrays: Any) -> Any:
            return function(*arrays)

    return Called()


# --- GPU MODE: task.yml, reference.py with ref_kernel and generate_input; submission.py with custom_kernel ------------


def _gpumode(source: ProblemSource) -> LoadedProblem:
    folder = Path(source.path)
    task = read_task((folder / "task.yml").read_text(encoding="utf-8"))
    files = {name.removesuffix(".py"): str(folder / origin) for name, origin in task.files.items()}
    modules = {name: file for name, file in files.items() if name != "submission" and Path(file).is_file()}
    reference = run_file(str(folder / "reference.py"), modules)
    lists, pattern, notes = list[Types](), None, list[str]()
    for test in task.tests:
        arrays = list[Any]()
        found = pattern_of(_drawn(lambda test=test: reference.generate_input(**test)), arrays)  # type: ignore[misc]
        types = torch_types(arrays)
        if count_cells(types) > source.most_cells:
            notes.append(f"test {test} has {count_cells(types):,} cells and was left out")
        elif pattern not in (None, found):
            notes.append(f"test {test} has inputs of another kind and was left out")
        else:
            pattern = found
            lists.append(types)
    if pattern is None:
        raise FormatError(f"{source.path}: none of {len(task.tests)} tests can be judged; {'; '.join(notes)}")
    called = as_module(_copying(reference.ref_kernel, pattern))
    call = SolutionCall("custom_kernel", (pattern,), modules={"reference": str(folder / "reference.py"), **modules})
    loaded = _of_torch(source, called, list(dict.fromkeys(lists)), call, notes)
    return _with_buffers(source, loaded, reference.ref_kernel, pattern)


def _copying(kernel: Callable[..., Any], pattern: Pattern, tied: Sequence[int] = ()) -> Callable[..., Any]:
    """A reference that may write into what it is given, as a function of arrays that leaves them alone."""

    def called(*arrays: Any) -> Any:
        result = kernel(fill_pattern(pattern, [array.clone() for array in arrays]))
        if any(arrays[i].shape != result.shape for i in tied):
            raise ValueError("the buffer for the result has another shape")
        return result

    return called


def _with_buffers(source: ProblemSource, loaded: LoadedProblem, kernel: Any, pattern: Pattern) -> LoadedProblem:
    """Inputs that nothing reads are buffers for the result; they have its size, and a kernel may write into a copy."""
    graph = loaded.reference.graph(loaded.types[0])
    read = {v for node in graph.nodes for v in node.inputs} | set(graph.outputs)
    buffers = [i for i, v in enumerate(graph.inputs) if v not in read]
    tied = [i for i in buffers if len(graph.outputs) == 1 and graph.inputs[i].shape == graph.outputs[0].shape]
    if not buffers:
        return loaded
    marked = _mark_buffers(pattern, frozenset(buffers))
    call = SolutionCall("custom_kernel", (marked,), modules=loaded.call.modules)
    return _of_torch(source, as_module(_copying(kernel, pattern, tied)), loaded.types, call, loaded.notes)


def _mark_buffers(pattern: Pattern, buffers: frozenset[int]) -> Pattern:
    if isinstance(pattern, list):
        return [_mark_buffers(part, buffers) for part in pattern]
    if isinstance(pattern, dict) and set(pattern) == {TENSOR} and pattern[TENSOR] in buffers:
        return {"buffer": pattern[TENSOR]}
    if isinstance(pattern, dict) and set(pattern) == {"items"}:
        return {"items": {key: _mark_buffers(part, buffers) for key, part in pattern["items"].items()}}
    return pattern


@dataclass(frozen=True)
class TaskFile:
    """What is read of a ``task.yml``."""

    files: Mapping[str, str]
    tests: tuple[Mapping[str, Any], ...]


def read_task(text: str) -> TaskFile:
    """The files and tests of a task, which are lists of rows in braces.

    >>> task = read_task('files:\\n  - {"name": "u.py", "source": "../u.py"}\\ntests:\\n  - {size: 12; seed: 3}\\n')
    >>> task.files, task.tests
    ({'u.py': '../u.py'}, ({'size': 12, 'seed': 3},))
    """
    section, rows = "", dict[str, list[dict[str, Any]]]()
    for line in text.splitlines():
        if heading := re.match(r"(\w+):", line):
            section = heading[1]
        elif row := re.match(r"\s*-\s*\{(.*)\}\s*$", line):
            pairs = re.findall(r"""["']?(\w+)["']?\s*:\s*("[^"]*"|'[^']*'|\[[^\]]*\]|[^,;\s]+)""", row[1])
            rows.setdefault(section, []).append({key: _read_scalar(value) for key, value in pairs})
    files = {row["name"]: row["source"] for row in rows.get("files", []) if {"name", "source"} <= set(row)}
    if "tests" not in rows:
        raise FormatError('the task has no tests; it needs rows such as - {"size": 127, "seed": 4242}')
    return TaskFile(files, tuple(rows["tests"]))


def _read_scalar(text: str) -> Any:
    words = {"true": True, "false": False, "null": None}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


# --- BackendBench: <op>/<op>_implementation*.py with <op>_kernel_impl; traces of inputs -------------------------------


def operator_of_folder(folder: str) -> str:
    """The operator that a folder of BackendBench is for.

    >>> operator_of_folder("add__Tensor"), operator_of_folder("add___Tensor"), operator_of_folder("relu")
    ('add.Tensor', 'add_.Tensor', 'relu.default')
    """
    base, escape, overload = folder.rpartition("__")
    return f"{base}.{overload}" if escape else f"{folder}.default"


def _backendbench(source: ProblemSource) -> LoadedProblem:
    import torch

    base, _, overload = source.path.partition(".")
    operator = getattr(getattr(torch.ops.aten, base), overload)
    notes = list[str]()
    if Path(source.inputs).is_file():
        args, keywords, lists = _read_trace(source, notes)
    elif source.inputs:
        lists = list(read_inputs(source.inputs)[0])
        args, keywords = _default_arguments(operator, len(lists[0])), {}
    else:
        args, lists = _accepted(operator)
        keywords = {}
        notes.append(f"no inputs were given: it is judged on {write_types(lists)} and sizes around it")
    folder = source.path.replace(".", "__")
    call = SolutionCall(f"{folder}_kernel_impl", tuple(args), keywords)
    # one whose name ends in an underscore writes into its input, and is judged by the other
    reference = as_module(lambda *a: operator(*fill_pattern(args, [x.clone() for x in a]), **fill_pattern(keywords, a)))
    return _of_torch(source, reference, lists, call, notes)


def _default_arguments(operator: Any, tensors: int) -> list[Pattern]:
    """Positional arguments: arrays for tensors, and what is the default or most usual for the rest."""
    found, number = list[Pattern](), itertools.count()
    for argument in operator._schema.arguments:
        kind = str(argument.type)
        if kind == "Tensor" and next(number) < tensors:
            found.append({TENSOR: sum(isinstance(part, dict) for part in found)})
        elif argument.has_default_value() or kind.startswith("Optional"):
            break
        else:
            found.append({"int": -1, "float": 0.5, "number": 2, "List[int]": [-1], "bool": False}.get(kind))
    return found


def _accepted(operator: Any) -> tuple[list[Pattern], list[Types]]:
    """Sizes that an operator takes, where none are given."""
    import torch

    count = sum(str(argument.type) == "Tensor" for argument in operator._schema.arguments)
    args = _default_arguments(operator, count)
    for sizes in USUAL_SHAPES:
        shapes = [sizes[min(i, len(sizes) - 1)] for i in range(count)]
        try:
            operator(*fill_pattern(args, [torch.zeros(shape) for shape in shapes]))
        except (RuntimeError, TypeError, IndexError):
            continue
        return args, [tuple(DTYPES["f32"][shape] for shape in shapes)]
    raise FormatError(f"no inputs are known for {operator}; give their types, or a file of traces, as --inputs")


def _traced_calls(file: Path, operator: str) -> list[str]:
    """The calls of an operator in a file of traces."""
    text = file.read_text(encoding="utf-8", errors="replace")
    section = re.search(rf"^Operator: aten\.{re.escape(operator)}\s*$(.*?)(?=^Operator:|\Z)", text, re.M | re.S)
    return re.findall(r"^cnt: \d+, (.*)$", section[1], re.M) if section else []


def has_calls(file: Path, operator: str) -> bool:
    return bool(_traced_calls(file, operator))


def _read_trace(source: ProblemSource, notes: list[str]) -> tuple[list[Pattern], dict[str, Pattern], list[Types]]:
    """The calls of an operator in a file of traces: those with the arguments that most have beside arrays."""
    calls = dict[str, list[Types]]()
    for row in _traced_calls(Path(source.inputs), source.path):
        try:
            types = list[TensorType]()
            pattern = _read_call(ast.parse(row.strip("'"), mode="eval").body, types)
        except (FormatError, SyntaxError) as error:
            notes.append(f"{row[:80]} was left out: {error}")
            continue
        if count_cells(tuple(types)) > source.most_cells or not types:
            notes.append(f"{row[:80]} was left out: {count_cells(tuple(types)):,} cells")
        else:
            calls.setdefault(repr(pattern), []).append(tuple(types))
    if not calls:
        raise FormatError(f"{source.inputs} has no call of {source.path} that can be judged; {'; '.join(notes[:3])}")
    chosen = max(calls, key=lambda pattern: len(calls[pattern]))
    others = sum(len(lists) for pattern, lists in calls.items() if pattern != chosen)
    notes += [f"{others} calls with other arguments were left out"] * bool(others)
    args, keywords = ast.literal_eval(chosen)
    return args, keywords["items"], list(dict.fromkeys(calls[chosen]))


def _read_call(node: ast.expr, types: list[TensorType]) -> Pattern:
    """A call of a trace, ``((T([5, 5], f32), 2), {'alpha': 1})``, without running it."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "T":
        shape, dtype = ast.literal_eval(node.args[0]), ast.unparse(node.args[1]).strip("'")
        dtype = {"b8": "bool"}.get(dtype, dtype)
        if dtype not in DTYPES:
            raise FormatError(f"dtype {dtype} is not judged")
        types.append(DTYPES[dtype][tuple(shape)])
        return {TENSOR: len(types) - 1}
    if isinstance(node, ast.Tuple | ast.List):
        return [_read_call(part, types) for part in node.elts]
    if isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        return {"items": {str(ast.literal_eval(key)): _read_call(v, types) for key, v in pairs if key is not None}}
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise FormatError(f"{ast.unparse(node)} is no number, word or list") from None


def solution_in_folder(folder: Path) -> Path | None:
    """The implementation in a folder of BackendBench: of several the first by name, as BackendBench takes it."""
    return min(folder.glob(f"{folder.name}_implementation*.py"), default=None)


def top_names(file: Path) -> set[str]:
    """What a file defines, without running it; nothing if it cannot be read."""
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return set()
    defined = (ast.ClassDef, ast.FunctionDef)
    assigned = {ast.unparse(t) for s in tree.body if isinstance(s, ast.Assign) for t in s.targets}
    return {s.name for s in tree.body if isinstance(s, defined)} | assigned


def find_source(problem: str, **options: Any) -> ProblemSource:
    """The problem that a path or a name is."""
    path = Path(problem)
    if problem.startswith("aten."):
        return ProblemSource("backendbench", problem.removeprefix("aten."), **options)
    folder = path.parent if path.name in ("task.yml", "reference.py") else path
    if (folder / "task.yml").is_file():
        return ProblemSource("gpumode", str(folder.absolute()), **options)
    if path.suffix == ".py":
        if not path.is_file():
            raise FormatError(f"there is no file {problem}")
        return ProblemSource("kernelbench", str(path.absolute()), **options)
    if ":" in problem or problem.endswith(".onnx"):
        return ProblemSource("own", problem, **options)
    raise FormatError(
        f"{problem} is no problem: give a file with Model and get_inputs, a folder with task.yml, or module:reference"
    )
