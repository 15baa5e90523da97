"""The stubs say what there is: every name, with the parameters that it has when it runs."""

import ast
import inspect

import pytest

import gradspec as gs
import stubs
import typed_program

MODULES = {"gs": gs, "gs.spec": gs.spec}
STUBS = dict(zip(MODULES, stubs.stubs().values(), strict=True))


def stated(stub: str) -> dict[str, ast.stmt]:
    """What a stub says of each public name; of several overloads the last, which takes the most."""
    found: dict[str, ast.stmt] = {}
    for statement in ast.parse(stub).body:
        if isinstance(statement, ast.ImportFrom):
            found |= {alias.asname: statement for alias in statement.names if alias.asname}
        elif isinstance(statement, ast.FunctionDef):
            found[statement.name] = statement
        elif isinstance(statement, ast.AnnAssign):
            found[ast.unparse(statement.target)] = statement
    return found


@pytest.mark.parametrize("module", MODULES)
def test_a_stub_has_the_names_that_there_are(module):
    assert sorted(stated(STUBS[module])) == sorted(dir(MODULES[module]))
    assert [name for name in dir(MODULES[module]) if not hasattr(MODULES[module], name)] == []


@pytest.mark.parametrize("module", MODULES)
def test_a_function_has_the_parameters_that_its_stub_says(module):
    said = {name: node for name, node in stated(STUBS[module]).items() if isinstance(node, ast.FunctionDef)}
    assert len(said) > 100
    for name, node in said.items():
        there = inspect.signature(getattr(MODULES[module], name))
        bare = [p.replace(annotation=p.empty) for p in there.parameters.values()]
        written = ast.unparse(without_annotations(node.args))
        assert written == ast.unparse(parsed(str(inspect.Signature(bare)))), name


def without_annotations(arguments: ast.arguments) -> ast.arguments:
    for argument in (*arguments.args, *arguments.kwonlyargs, *filter(None, [arguments.vararg])):
        argument.annotation = None
    return arguments


def parsed(signature: str) -> ast.arguments:
    (function,) = ast.parse(f"def f{signature}: ...").body
    assert isinstance(function, ast.FunctionDef)
    return function.args


def test_the_stubs_that_are_installed_are_up_to_date():
    outdated = [file for file, text in stubs.stubs().items() if not file.exists() or file.read_text("utf-8") != text]
    assert not outdated, "the stubs are not those of these sources; write them again: python tools/stubs.py"


def test_no_public_function_of_arrays_returns_just_anything():
    functions = [node for stub in STUBS.values() for node in stated(stub).values() if isinstance(node, ast.FunctionDef)]
    assert [node.name for node in functions if ast.unparse(node.returns) == "Any"] == []


@pytest.mark.parametrize("part", ["arrays", "graphs", "specification", "tensors"])
def test_a_program_with_types_runs(part):
    getattr(typed_program, part)()
