"""The mutation tester changes one place at a time, leaves out what it says, and reads its results. No kernel runs."""

import ast
import sys
from functools import cache
from time import perf_counter

import pytest

import mutation
from mutation import Mutant, Result, Runner, Walk, find_mutants
from patience import PATIENCE

FILE = "backends/cpu/pool/kernels/ties.py"


@cache
def every() -> list[Mutant]:
    return find_mutants()[0]


def mutated(source: str) -> list[str]:
    """What a source becomes by each change, in the order of places."""
    data = source.encode()
    changes = [(start, end, after) for start, end, after, excluded in Walk(data).changes() if not excluded]
    return [(data[:start] + after.encode() + data[end:]).decode() for start, end, after in changes]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("y = 7", ["y = 6", "y = 8"]),
        ("y = x[0]", ["y = x[1]"]),
        ("y = a < b <= c", ["y = a <= b <= c", "y = a < b < c"]),
        ("y = a > b >= c", ["y = a >= b >= c", "y = a > b > c"]),
        ("y = a == b != c", ["y = a != b != c", "y = a == b == c"]),
        ("y = (a) + (b)  # x + y", ["y = (a) - (b)  # x + y"]),
        ("y = (a  # −, not + nor -\n  - b)", ["y = (a  # −, not + nor -\n  + b)"]),
        ("y -= a", ["y += a"]),
        ("y = a & b | c", ["y = a | b | c", "y = a & b & c"]),
        ("y = a and b and c", ["y = a or b and c", "y = a and b or c"]),
        ("y = not (a)", ["y = (a)"]),
        ("y = min(a, b)", ["y = max(a, b)"]),
        ("y = np.maximum(a, b)", ["y = np.minimum(a, b)"]),
        ("y = maximum(a, b)", []),  # of the kernel language, where the other may not be imported
        ("y = a * b // c if a is b else True", []),
        ("y = a + 'a' + f'{1 + 1}' + 'b'", []),
    ],
)
def test_the_changes_of_a_line(source, expected):
    assert mutated(source) == expected


@pytest.mark.parametrize(
    ("source", "excluded"),
    [
        ("MOST, FEW = 1 << 20, 3 + 1", "schedule"),
        ("__all__ = ['a'] * 2", "schedule"),
        ("UNITS += [1]", "schedule"),
        ("prefetch(p, at + 1)", "prefetch"),
        ("for i in range(0, n, 64):\n  if i < n:\n    prefetch_to_write(p, i)", "prefetch"),
        ("assert n > 0, n + 1", "check"),
        ("raise ValueError(1 + 1)", "check"),
        ("def f(a: int | None) -> int | None: pass", "annotation"),
        ("a: Literal[1] = b", "annotation"),
    ],
)
def test_excluded_classes_are_excluded(source, excluded):
    changes = Walk(source.encode()).changes()
    assert changes
    assert {change[-1] for change in changes} == {excluded}
    assert excluded in mutation.EXCLUDED


@pytest.mark.parametrize("source", ["def f():\n  MOST = 3", "most = 3", "for i in range(3):\n  prefetch(p)\n  g(p)"])
def test_others_are_not(source):
    assert len(mutated(source)) == 2


@pytest.mark.rows(1)
@pytest.mark.parametrize("part", range(4))
def test_every_mutant_of_a_file_is_python_that_differs_in_one_place(part):
    source, several = (mutation.PACKAGE / FILE).read_bytes(), [m for m in every() if m.file == FILE][part::4]
    tree, seen = ast.dump(ast.parse(source)), {source}
    assert len(several) > 12
    for mutant in several:
        changed, grown = mutant.apply(source), len(mutant.after.encode()) - (mutant.end - mutant.start)
        compile(changed, FILE, "exec")
        assert ast.dump(ast.parse(changed)) != tree
        assert changed[: mutant.start] == source[: mutant.start]
        assert changed[mutant.end + grown :] == source[mutant.end :]
        assert source[mutant.start : mutant.end].decode() == mutant.before != mutant.after
        assert source.decode().split("\n")[mutant.line - 1].strip() == mutant.text
        seen.add(changed)
    assert len(seen) == 1 + len(several)


def test_numbers_are_those_of_places():
    mutants, left_out = find_mutants()
    assert mutants == every()
    assert [mutant.number for mutant in mutants] == [*range(1, len(mutants) + 1)]
    assert mutants == sorted(mutants, key=lambda mutant: (mutant.file, mutant.start))
    assert {mutant.family for mutant in mutants} == set(mutation.TESTS)
    assert set(left_out) == set(mutation.EXCLUDED)


def test_the_test_files_are_there():
    for files in mutation.TESTS.values():
        for name in files:
            assert (mutation.ROOT / f"tests/backends/test_{name}.py").is_file()


def chosen(*arguments: str) -> list[int]:
    return [mutant.number for mutant in mutation.choose(every(), mutation.options().parse_args(arguments))]


def test_a_sample_follows_from_its_seed_and_shards_share_it():
    sample = chosen("--sample", "10", "--seed", "3")
    assert len(set(sample)) == 10
    assert sample == chosen("--sample", "10", "--seed", "3") != chosen("--sample", "10", "--seed", "4")
    shards = [chosen("--sample", "10", "--seed", "3", "--shard", f"{i}/3") for i in (1, 2, 3)]
    assert sorted(n for shard in shards for n in shard) == sorted(sample)
    assert chosen("--only", "5", "--only", "17") == [5, 17]
    assert len(chosen("--family", "triton")) == sum(mutant.family == "triton" for mutant in every())


OUTPUTS = [
    (0, "all fine", ""),
    (5, "no tests ran", ""),
    (1, "tests/a.py::t[1] PASSED [ 1%]\nFAILED tests/a.py::t[x - y] - assert 1 == 2\n", "tests/a.py::t[x - y]"),
    (2, "ERROR tests/a.py - NameError: name\n", "tests/a.py"),
    (1, "seed 1: 600 trials\ntrial 42: Trial(number=42)\n  against spec", "fuzz trial 42"),
    (
        -11,
        "tests/a.py::t PASSED [ 1%]\ntests/a.py::u[b c] Fatal Python error: Segm",
        "tests/a.py::u[b c] (exit code -11)",
    ),
    (None, "tests/a.py::t[1] PASSED [ 1%]\ntests/a.py::u ", "tests/a.py::u (hangs)"),
    (3, "tests/a.py::t[1] PASSED [100%]\n", "(exit code 3)"),
]


@pytest.mark.parametrize(("code", "output", "test"), OUTPUTS)
def test_what_failed_first_is_read(code, output, test):
    assert mutation.first_failure(code, output) == test


RUNS = {  # what runs in place of the two stages, and what comes of it
    "default": ("print('FAILED tests/a.py::t - no'); exit(1)", "", "tests/a.py::t"),
    "ci": ("", "import time; time.sleep(9000)", "(hangs)"),
    "survived": ("", "", ""),
}


@pytest.mark.parametrize("outcome", RUNS)
def test_a_run_ends_at_the_stage_that_notices(outcome, tmp_path, monkeypatch):
    default, ci, test = RUNS[outcome]
    source = tmp_path / "gradspec" / FILE
    source.parent.mkdir(parents=True)
    source.write_bytes((mutation.PACKAGE / FILE).read_bytes())
    planted = f"import pathlib, sys; assert pathlib.Path(sys.path[1], 'gradspec', '{FILE}').stat().st_nlink == 1\n"
    code = {"default": default, "ci": ci}

    def commands(_family: str, stage: str) -> list[tuple[list[str], float]]:
        return [([sys.executable, "-c", planted + code[stage]], 1.0 if "sleep" in code[stage] else PATIENCE)]

    monkeypatch.setattr(mutation, "commands", commands)
    monkeypatch.setenv("GRADSPEC_CACHE_DIR", str(tmp_path / "no kernels"))
    mutant, before = next(mutant for mutant in every() if mutant.file == FILE), perf_counter()
    (result,) = Runner(tmp_path / "gradspec", mutation.STAGES, 1).run([mutant])
    assert perf_counter() - before < PATIENCE
    assert (result.mutant, result.outcome, result.test) == (mutant, outcome, test)
    assert list(result.seconds) == (["default"] if outcome == "default" else ["default", "ci"])
    assert source.read_bytes() == (mutation.PACKAGE / FILE).read_bytes()


def test_results_are_written_and_read(tmp_path):
    first, second, third, *_ = every()
    results = [
        Result(first, "default", "tests/a.py::t", {"default": 1.5}),
        Result(second, "survived", "", {"default": 1.0}),
        Result(third, "survived", "", {"default": 1.0, "ci": 2.0}),
    ]
    path = tmp_path / "results.jsonl"
    assert mutation.read_results(path, every(), ["default"]) == []
    stale = Result(Mutant(4, "conv", "elsewhere.py"), "ci", "", {})
    lines = [result.to_json() for result in (*results, stale)]
    path.write_text("\n".join([*lines, lines[0][:40]]))
    assert mutation.read_results(path, every(), ["default"]) == results
    assert mutation.read_results(path, every(), ["default", "ci"]) == [results[0], results[2]]
    assert mutation.read_results(path, [second], ["default"]) == [results[1]]
    table = mutation.summarize(results).splitlines()
    assert table[2].split() == ["all", "3", "1", "0", "2"]
    assert [line.split()[1] for line in table[3:]] == ["2", "3"]
