"""``gradspec doctor``: it says what is there, and what is missing with the command that gets it."""

import json
from importlib.metadata import PackageNotFoundError

import pytest
from click.testing import CliRunner

from gradspec import cli, doctor


def test_it_finds_nothing_wrong_here():
    result = CliRunner().invoke(cli.main, ["doctor", "--json"])
    told = json.loads(result.stdout)
    assert result.exit_code == 0
    assert told["problems"] == []
    assert told["extras"][""]["numpy"]


@pytest.fixture
def parts(monkeypatch):
    """Without the parts that load a framework and compile."""
    monkeypatch.setattr(doctor, "_examine_devices", lambda found: None)
    monkeypatch.setattr(doctor, "_run_kernel", lambda found: None)


@pytest.mark.usefixtures("parts")
def test_a_missing_package_is_named_with_the_command_that_gets_it(monkeypatch):
    def version(name):
        if name in ("onnx", "llvmlite"):
            raise PackageNotFoundError(name)
        return "2.0"

    monkeypatch.setattr(doctor, "version", version)
    monkeypatch.setattr(doctor, "requires", lambda _: ["llvmlite>=0.45", "numpy>=2.0", 'onnx>=1.23; extra == "onnx"'])
    found = doctor.examine()
    (problem,) = found.problems
    assert 'pip install "llvmlite>=0.45"' in problem
    assert any('pip install "gradspec[onnx]"' in text for text in found.missing)
    assert "PROBLEM" in "\n".join(found.lines())


@pytest.mark.usefixtures("parts")
def test_limits_and_the_cache_are_told(monkeypatch, tmp_path):
    monkeypatch.setenv("GRADSPEC_CACHE_DIR", str(tmp_path / "kernels"))
    monkeypatch.setattr(doctor.os, "access", lambda *_: False)
    monkeypatch.setitem(doctor.LEAST, "temporary files", 1 << 80)
    missing = "\n".join(doctor.examine().missing)
    assert f"{tmp_path} cannot be written" in missing
    assert "temporary files" in missing
    monkeypatch.setenv("GRADSPEC_CACHE_DIR", "off")
    assert "off" in doctor.examine().caches["kernel cache"]
