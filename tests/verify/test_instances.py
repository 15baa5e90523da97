"""Lists of problems: their lines, the files that they name, and what is refused."""

import gzip
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gradspec as gs
from gradspec.verify.campaign import Instance, read_instances


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "onnx").mkdir()
    for name in ("onnx/a.onnx", "onnx/b.onnx.gz", "p.vnnlib.gz", "q.vnnlib", "q.vnnlib.gz"):
        (tmp_path / name).touch()
    return tmp_path


def read(folder, content):
    (folder / "instances.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_instances(folder / "instances.csv")


LINES = "onnx/a.onnx,p.vnnlib,60\n./onnx/b.onnx, q.vnnlib ,0.5,sat,more\n"


@pytest.mark.parametrize(
    "content",
    [
        LINES,
        LINES.replace("\n", "\r\n"),
        "\n" + LINES.replace("\n", "\n\n").rstrip(),
        "network,property,seconds,answer\n" + LINES,
        LINES.replace("p.vnnlib", '"p.vnnlib"'),
        b"\xef\xbb\xbf" + LINES.encode(),
        gzip.compress(LINES.encode()),
    ],
    ids=["plain", "carriage returns", "blank lines", "heading", "quoted", "byte order mark", "packed"],
)
def test_lines_name_files_beside_the_list_packed_or_not(content, folder):
    assert read(folder, content) == [
        Instance(folder / "onnx/a.onnx", folder / "p.vnnlib.gz", 60.0),
        Instance(folder / "onnx/b.onnx.gz", folder / "q.vnnlib", 0.5, ("sat", "more")),
    ]


def test_an_empty_list_is_one(folder):
    assert read(folder, "") == []
    assert read(folder, "network,property,timeout\n") == []


WRONG = {
    "two columns": ("onnx/a.onnx,p.vnnlib", "line 1: 'onnx/a.onnx,p.vnnlib' was found; expected network,property,sec"),
    "no seconds": (LINES + "onnx/a.onnx,p.vnnlib,soon", "line 3: .* was found; expected network,property,seconds"),
    "no seconds at first": ("onnx/a.onnx,p.vnnlib,soon", "line 1: .* was found; expected network,property,seconds"),
    "seconds not a number": ("onnx/a.onnx,p.vnnlib,nan", "expected network,property,seconds"),
    "seconds without end": ("onnx/a.onnx,p.vnnlib,1e999", "expected network,property,seconds"),
    "no time": ("onnx/a.onnx,p.vnnlib,0", "expected network,property,seconds"),
    "two headings": ("network,property,seconds\nnetwork,property,seconds", "line 2: .* expected network"),
    "no network": (",p.vnnlib,5", "expected network,property,seconds"),
    "a network that is not there": (LINES + "c.onnx,p.vnnlib,5", "line 3: 'c.onnx' is not in the folder"),
    "a property that is not there": ("onnx/a.onnx,r.vnnlib,5", "line 1: 'r.vnnlib' is not in the folder"),
    "a folder": ("onnx,p.vnnlib,5", "'onnx' is not in the folder"),
    "a name that no file has": ("a\0.onnx,p.vnnlib,5", r"'a\\x00.onnx' is not in the folder"),
    "a long name": (f"{'a' * 5000},p.vnnlib,5", r"'a+'\.\.\. is not in the folder"),
    "an open quote": ('onnx/a.onnx,"p.vnnlib,5', "line 1: "),
    "a long field": (f"onnx/a.onnx,p.vnnlib,5,{'a' * 200_000}", "line 1: field larger"),
    "not UTF-8": (b"onnx/a.onnx,p.vnnlib,5,\xff", "byte 23 is not UTF-8"),
    "packed beyond measure": (gzip.compress(b"\n" * 15_000_000), "unpacks to more than"),
    "damaged": (gzip.compress(LINES.encode())[:-4], "packed by gzip, and damaged"),
}


@pytest.mark.parametrize(("content", "what"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_refused(content, what, folder):
    with pytest.raises(gs.FormatError, match=what):
        read(folder, content)


def test_several_networks_are_not_supported(folder):
    with pytest.raises(gs.UnsupportedError, match=r"line 1: .*several networks"):
        read(folder, "\"[('f', 'onnx/a.onnx'), ('g', 'onnx/b.onnx')]\",p.vnnlib,5")


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet='a.onx,"5\n\r\0[ /', max_size=60) | st.binary(max_size=60))
def test_any_list_is_read_or_refused(tmp_path_factory, content):
    with suppress(gs.FormatError, gs.UnsupportedError):
        assert isinstance(read(tmp_path_factory.getbasetemp(), content), list)
