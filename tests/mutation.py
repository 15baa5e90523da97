"""Mutation testing of kernels: would the tests notice one wrong constant, comparison or sign?

    python tests/mutation.py --list                 every mutant, and what is left out and why
    python tests/mutation.py --baseline             the package as it is: nothing may be noticed; this fills the cache
    python tests/mutation.py --sample 100 --seed 0 --jobs 8 --out mutation.jsonl
    python tests/mutation.py --only 1234 --stages default

A mutant is a copy of the package in which one place of one kernel, or of a module that feeds kernels, is changed. The
tests of its family and the fuzzer run on it, first as by default and then as in CI, until one notices: fails, crashes,
hangs or does not compile. A mutant that survives computes the same or shows a missing test. Every result is a line of
JSON, appended to a file; mutants that are in it are not run again. Mutants are numbered by their places in the sources,
and a result counts only while its place reads as it did.
"""

from __future__ import annotations

import argparse
import ast
import compileall
import contextlib
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from queue import SimpleQueue
from random import Random
from time import perf_counter
from typing import Any

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "gradspec"
FILES = re.compile(
    r"backends/cpu/(\w+)/(?:kernels/\w+|layout|axes|blocking|plan|gradient)\.py"
    r"|backends/(triton)/(?:pool_kernels|geometry|plans)\.py"
)
TESTS = {
    "conv": ("cpu_conv", "cpu_paths", "cpu_sweep", "cpu_conv_pool"),
    "layout": ("cpu_layout", "cpu_taps", "cpu_sweep"),
    "matmul": ("cpu_matmul_cuts", "cpu_matmul"),
    "pointwise": ("cpu_pointwise", "cpu_paths"),
    "pool": ("cpu_pool", "cpu_paths", "cpu_sweep", "cpu_ties", "cpu_taps", "cpu_smooth_pool", "cpu_conv_pool"),
    "reduce": ("cpu_reduce", "cpu_softmax", "cpu_loss", "cpu_paths"),
    "triton": ("triton_pool",),
}
"""The test files of each family, below ``tests/backends`` and without ``test_``."""
CUTS = "tests/fuzz/test_fuzz.py::test_small_geometries_reach_beyond_the_first_tile"
STAGES = {"default": ("not exhaustive", 1, 600, 600.0), "ci": ("exhaustive", 2, 6_000, 3_600.0)}
"""The marker of rows, the fuzzer's seed and trials, and the seconds after which a run hangs."""
MEMORY = 16 << 30
"""Bytes of addresses that a run may use: a wrong size may ask for any number."""

# --- what is changed --------------------------------------------------------------------------------------------------

EXCLUDED = {
    "schedule": "names in capitals at the top of a module: sizes of a schedule, on which no result depends",
    "prefetch": "what is fetched early, which changes the time and never a result",
    "check": "assertions and errors: their texts, and conditions that hold",
    "annotation": "types, which nothing computes with",
}
PAIRS = (("<", "<="), (">", ">="), ("==", "!="), ("+", "-"), ("+=", "-="), ("&", "|"), ("&=", "|="), ("and", "or"))
SWAPPED = {a: b for pair in PAIRS for a, b in (pair, pair[::-1])}
OPPOSITE = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum"}
Change = tuple[int, int, str, str]
"""Bytes from the first number to the second become a text; the class that forbids it, or nothing."""


class Walk:
    """The changes of one source, in which AST positions count bytes of lines."""

    def __init__(self, source: bytes) -> None:
        self.source, self.lines = source, [0]
        for line in source.splitlines(keepends=True):
            self.lines.append(self.lines[-1] + len(line))

    def changes(self) -> list[Change]:
        body = ast.parse(self.source).body
        return sorted(c for statement in body for c in self.visit(statement, "schedule" * is_schedule(statement)))

    def visit(self, node: ast.AST, excluded: str) -> Iterator[Change]:
        if isinstance(node, ast.JoinedStr):  # names and messages
            return
        excluded = excluded or "check" * isinstance(node, ast.Assert | ast.Raise) or "prefetch" * is_prefetch(node)
        yield from ((*change, excluded) for change in self.changes_at(node))
        for name, value in ast.iter_fields(node):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from self.visit(child, "annotation" if name in ("annotation", "returns") else excluded)

    def changes_at(self, node: ast.AST) -> Iterator[tuple[int, int, str]]:
        match node:
            case ast.Constant(value=int(n)) if not isinstance(n, bool):
                yield from ((*self.span(node), str(other)) for other in (n + 1, n - 1)[: 1 + (n > 0)])
            case ast.Compare(left, _, right):
                yield from self.swaps([left, *right])
            case ast.BinOp(left, _, right) | ast.AugAssign(left, _, right):
                yield from self.swaps([left, right])
            case ast.BoolOp(_, values):
                yield from self.swaps(values)
            case ast.UnaryOp(ast.Not()):
                start, end = self.span(node)
                yield (start, end - len(self.source[start + 3 : end].lstrip()), "")
            case ast.Call(ast.Name("min" | "max" as name) as function) | ast.Call(ast.Attribute(_, name) as function):
                if name in OPPOSITE:
                    end = self.span(function)[1]
                    yield (end - len(name), end, OPPOSITE[name])

    def swaps(self, operands: Sequence[ast.expr]) -> Iterator[tuple[int, int, str]]:
        """Between two operands lie an operator, brackets, spaces and comments. Strings and lists have no difference."""
        for left, right in pairwise(operands):
            start, end = self.span(left)[1], self.span(right)[0]
            gap = re.sub(rb"#[^\n]*|[()\\]", lambda text: b" " * len(text[0]), self.source[start:end])
            operator = gap.strip().decode()
            if operator in SWAPPED and not (operator in ("+", "+=") and (is_sequence(left) or is_sequence(right))):
                start += gap.index(operator.encode())
                yield (start, start + len(operator), SWAPPED[operator])

    def span(self, node: Any) -> tuple[int, int]:
        return self.lines[node.lineno - 1] + node.col_offset, self.lines[node.end_lineno - 1] + node.end_col_offset


def is_sequence(node: ast.AST) -> bool:
    text = isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    return text or isinstance(node, ast.JoinedStr | ast.List | ast.Tuple | ast.ListComp)


def is_schedule(statement: ast.AST) -> bool:
    """An assignment to names in capitals, or with two underscores."""
    if not isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign):
        return False
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    names = [getattr(node, "id", "") for target in targets for node in getattr(target, "elts", [target])]
    return all(re.fullmatch(r"[A-Z][A-Z0-9_]*|__\w+__", name) for name in names)


def is_prefetch(node: ast.AST) -> bool:
    """A call that fetches, or a loop or condition around nothing else."""
    match node:
        case ast.Call(ast.Name(name)):
            return name.startswith("prefetch")
        case ast.For(body=body, orelse=[]) | ast.If(body=body, orelse=[]):
            return all(is_prefetch(each.value if isinstance(each, ast.Expr) else each) for each in body)
    return False


@dataclass(frozen=True)
class Mutant:
    """Bytes start … end−1 of a file below the package become ``after``; number 0 is the package as it is."""

    number: int
    family: str
    file: str = ""
    line: int = 0
    column: int = 0
    start: int = 0
    end: int = 0
    before: str = ""
    after: str = ""
    text: str = ""
    """The line as it is."""

    def __str__(self) -> str:
        change = (
            f"{self.file}:{self.line}:{self.column}  {self.before.strip()} -> {self.after or '(nothing)'}  {self.text}"
        )
        return f"{self.number:5} {change if self.number else f'{self.family} as it is'}"

    def apply(self, source: bytes) -> bytes:
        return source[: self.start] + self.after.encode() + source[self.end :]

    def plant(self, package: Path) -> None:
        file = package / self.file
        source = self.apply(file.read_bytes())
        file.unlink()  # it is a link to the file as it is
        file.write_bytes(source)


def find_mutants(package: Path = PACKAGE) -> tuple[list[Mutant], Counter[str]]:
    """All mutants in the order of files and places, and how many each excluded class would have."""
    mutants, left_out = list[Mutant](), Counter[str]()
    for file in sorted(path.relative_to(package).as_posix() for path in package.rglob("*.py")):
        if not (matched := FILES.fullmatch(file)):
            continue
        source = (package / file).read_bytes()
        lines = source.decode().split("\n")
        for start, end, after, excluded in Walk(source).changes():
            if excluded:
                left_out[excluded] += 1
                continue
            line, column = source.count(b"\n", 0, start), start - source.rfind(b"\n", 0, start)
            place = (file, line + 1, column, start, end, source[start:end].decode(), after, lines[line].strip())
            mutants.append(Mutant(len(mutants) + 1, matched[1] or matched[2], *place))
    return mutants, left_out


# --- who notices ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Result:
    """Which stage noticed a mutant ("survived": none), what failed first, and how long every stage took."""

    mutant: Mutant
    outcome: str
    test: str
    seconds: dict[str, float]

    def __str__(self) -> str:
        times = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in self.seconds.items())
        return f"{self.outcome:8} {self.mutant}  [{times}]  {self.test}"

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(line: str) -> Result:
        data = json.loads(line)
        return Result(**{**data, "mutant": Mutant(**data["mutant"])})


def commands(family: str, stage: str) -> Iterator[tuple[list[str], float]]:
    """What runs in a stage: the tests of a family, and the fuzzer, which knows nothing of Triton."""
    marker, seed, trials, seconds = STAGES[stage]
    files = [f"tests/backends/test_{name}.py" for name in TESTS[family]] + [CUTS] * (family in ("conv", "pool"))
    once = ("-v", "-x", "--tb=short", "-p", "no:cacheprovider", "-o", "addopts=", "--import-mode=importlib")
    yield [sys.executable, "-m", "pytest", *once, "-m", marker, *files], seconds
    if family != "triton":
        libraries = "spec,torch" if find_spec("torch") else "spec"
        trial_options = f"--seed {seed} --trials {trials} --jobs 1 --libraries {libraries}".split(" ")
        yield [sys.executable, "-m", "gradspec.testing.fuzz", *trial_options], seconds


def first_failure(code: int | None, output: str) -> str:
    """Which test failed first, or was running at the end; nothing if all passed, or there were none (code 5)."""
    if code in (0, 5):
        return ""
    if failed := re.search(r"^(?:FAILED|ERROR) ([^\s\[]+(?:\[.*?\](?= - |$))?)|^(trial \d+):", output, re.MULTILINE):
        return failed[1] or f"fuzz {failed[2]}"
    started = re.findall(r"^(tests/\S+::.+?) *(PASSED|SKIPPED|XFAIL|Fatal|Traceback|$)", output, re.MULTILINE)
    running = [name for name, end in started[-1:] if end not in ("PASSED", "SKIPPED", "XFAIL")]
    return " ".join([*running, "(hangs)" if code is None else f"(exit code {code})"])


def link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


def prepare(mutant: Mutant, package: Path, folder: Path) -> dict[str, str]:
    """The environment in which the mutant is imported, with a kernel cache of its own, filled with the user's."""
    from gradspec.codegen.cache import cache_directory

    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "CI": "1"}  # by which Hypothesis draws the same in every run
    shutil.copytree(package, folder / "gradspec", copy_function=link)
    if mutant.number:
        mutant.plant(folder / "gradspec")
        kernels = cache_directory()
        if kernels is not None and kernels.is_dir():
            shutil.copytree(kernels, folder / "kernels", copy_function=link, ignore=shutil.ignore_patterns("*.tmp"))
        environment["GRADSPEC_CACHE_DIR"] = str(folder / "kernels")
    return environment


class Runner:
    """Runs stages on mutants, some at a time, each on cores of its own."""

    def __init__(self, package: Path, stages: Iterable[str], jobs: int) -> None:
        self.package, self.stages, self.jobs = package, tuple(stages), jobs
        self.groups, self.cores = set[int](), SimpleQueue[list[int]]()
        available = sorted(os.sched_getaffinity(0))
        for i in range(jobs):
            self.cores.put(available[i::jobs] or [available[i % len(available)]])

    def run(self, mutants: Iterable[Mutant]) -> Iterator[Result]:
        """Results as they come. Whatever ends it ends all processes."""
        pool = ThreadPoolExecutor(self.jobs)
        try:
            for future in as_completed([pool.submit(self.judge, mutant) for mutant in mutants]):
                yield future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            for group in tuple(self.groups):
                self.kill(group)

    def judge(self, mutant: Mutant) -> Result:
        seconds, cores = dict[str, float](), self.cores.get()
        try:
            with tempfile.TemporaryDirectory(dir=self.package.parent, ignore_cleanup_errors=True) as folder:
                environment = prepare(mutant, self.package, Path(folder))
                for stage in self.stages:
                    begun = perf_counter()
                    runs = (self.attempt(*each, environment, cores) for each in commands(mutant.family, stage))
                    test = next(filter(None, runs), "")
                    seconds[stage] = round(perf_counter() - begun, 1)
                    if test:
                        return Result(mutant, stage, test, seconds)
            return Result(mutant, "survived", "", seconds)
        finally:
            self.cores.put(cores)

    def attempt(self, command: list[str], seconds: float, environment: dict[str, str], cores: Collection[int]) -> str:
        """Run a command with its children, for so many seconds at most; what failed first."""
        with tempfile.TemporaryFile() as log:
            files: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT}
            run = subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True, **files)
            self.groups.add(run.pid)
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(run.pid, cores)
                resource.prlimit(run.pid, resource.RLIMIT_AS, (MEMORY, MEMORY))
            code = None
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = run.wait(seconds)
            self.kill(run.pid)
            run.wait()
            log.seek(0)
            return first_failure(code, log.read().decode(errors="replace"))

    def kill(self, group: int) -> None:
        self.groups.discard(group)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


# --- many mutants -----------------------------------------------------------------------------------------------------


def summarize(results: Sequence[Result]) -> str:
    """How many were noticed by which stage, for each family, and every survivor."""
    columns = (*STAGES, "survived")
    lines = [f"{'family':10}" + "".join(f"{name:>10}" for name in ("mutants", *columns))]
    for family in (*sorted({result.mutant.family for result in results}), "all"):
        counts = Counter(result.outcome for result in results if family in ("all", result.mutant.family))
        lines.append(f"{family:10}" + "".join(f"{n:10}" for n in (counts.total(), *(counts[name] for name in columns))))
    return "\n".join([*lines, *(str(result) for result in results if result.outcome == "survived")])


def read_results(path: Path, mutants: Iterable[Mutant], stages: Collection[str]) -> list[Result]:
    """The results in a file of these mutants, where their sources are still the same and no stage is missing."""
    lines, wanted = path.read_text().splitlines() if path.exists() else [], set(mutants)
    results = [Result.from_json(line) for line in lines if line.endswith("}}")]  # one may have been cut off
    latest = {result.mutant: result for result in results if result.mutant in wanted}
    return [r for r in latest.values() if r.outcome != "survived" or set(stages) <= set(r.seconds)]


def choose(mutants: Sequence[Mutant], given: argparse.Namespace) -> list[Mutant]:
    """The mutants that the options name; a sample is in random order, so that its beginning is a sample as well."""
    families = given.family or list(TESTS)
    if given.baseline:
        return [Mutant(0, family) for family in families]
    chosen = [m for m in mutants if m.family in families and (not given.only or m.number in given.only)]
    if given.sample is not None:
        chosen = Random(given.seed).sample(chosen, min(given.sample, len(chosen)))
    i, n = given.shard
    return chosen[i - 1 :: n]


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="show the chosen mutants, and run none")
    parser.add_argument("--baseline", action="store_true", help="run the package as it is, for every family")
    parser.add_argument("--only", type=int, action="append", help="the mutant of this number; may be repeated")
    parser.add_argument("--family", choices=TESTS, action="append", help="mutants of this family; may be repeated")
    parser.add_argument("--sample", type=int, help="so many, drawn at random")
    parser.add_argument("--seed", type=int, default=0, help="of the sample [0]")
    parser.add_argument("--shard", type=lambda text: [int(n) for n in text.split("/")], default=[1, 1], help="i/n")
    parser.add_argument("--stages", type=lambda text: text.split(","), default=list(STAGES), help="[default,ci]")
    parser.add_argument("--jobs", type=int, default=1, help="mutants at a time [1]")
    parser.add_argument("--out", type=Path, default=Path("mutation.jsonl"), help="file of results [mutation.jsonl]")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chosen mutants; 1 if the package as it is fails."""
    given = options().parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        package = Path(folder) / "gradspec"  # the sources may be edited meanwhile
        shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
        mutants, left_out = find_mutants(package)
        chosen = choose(mutants, given)
        if given.list:
            print(*chosen, f"{len(chosen)} of {len(mutants)} mutants; left out:", sep="\n")
            print(*(f"{left_out[name]:5} {name}: {reason}" for name, reason in EXCLUDED.items()), sep="\n")
            return 0
        compileall.compile_dir(package, quiet=2)
        results = [] if given.baseline else read_results(given.out, chosen, given.stages)
        done = {result.mutant for result in results}
        for result in Runner(package, given.stages, given.jobs).run(m for m in chosen if m not in done):
            print(result, flush=True)
            results.append(result)
            if not given.baseline:
                with given.out.open("a") as file:
                    file.write(result.to_json() + "\n")
    print(summarize(results))
    return int(given.baseline and any(result.outcome != "survived" for result in results))


if __name__ == "__main__":
    sys.exit(main())
