"""The kernel cache: what is damaged, foreign or out of date is never loaded, and no directory can break a kernel."""

import array
import contextlib
import errno
import importlib
import json
import math
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from gradspec.codegen import cache
from gradspec.spec.errors import UnsupportedError
from patience import PATIENCE

SOURCE = "codegen.kernel_sources.simple"
INTERMEDIATE = "codegen.kernel_sources.intermediate"
TESTS = Path(__file__).parents[1]
WHAT_IT_DOES = {
    "increment": lambda n: n + 1,
    "decrement": lambda n: n - 1,
    "recursive": math.factorial,
    "external": lambda n: int(math.exp(n)) + int(math.log1p(n)),
}


@pytest.fixture(autouse=True)
def fresh_process(monkeypatch, tmp_path):
    """Nothing in memory, and a directory of the test's own that does not exist yet."""
    monkeypatch.setattr(cache, "_LOADED", {})
    monkeypatch.setenv("GRADSPEC_CACHE_DIR", str(tmp_path / "kernels"))


@pytest.fixture(scope="module")
def compiled():
    """The entry of ``increment``, compiled once."""
    return cache._compile(cache._identity(SOURCE, "increment"))


@pytest.fixture
def count(monkeypatch, compiled):
    """Compilations of ``increment``, which cost nothing here."""
    made = []

    def compile(identity):
        made.append(identity)
        header, code = cache._verify_entry(compiled, cache._identity(SOURCE, "increment"))
        return cache._entry({**header, "identity": identity}, code)

    monkeypatch.setattr(cache, "_compile", compile)
    return made


@pytest.fixture
def stored(compiled):
    """The file of ``increment``, whole."""
    path = cache._path(cache._identity(SOURCE, "increment"))
    cache._store(path, compiled)
    return path


def applied(kernel, numbers=range(6)):
    """The numbers after the kernel has been over all but the first and the last."""
    memory = array.array("q", numbers)
    kernel(memory.buffer_info()[0], 1, len(memory) - 1, 0)
    return list(memory)


def works(kernel, name="increment"):
    return applied(kernel) == [0, *map(WHAT_IT_DOES[name], range(1, 5)), 5]


def files():
    directory = cache.cache_directory()
    return sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []


def forget():
    """As if the process had just begun."""
    cache._LOADED.clear()


# --- from the source to the machine -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("source", "name"), [*((SOURCE, name) for name in WHAT_IT_DOES), (INTERMEDIATE, "increment")])
def test_a_kernel_is_compiled_once_and_then_comes_from_disk(source, name):
    before = cache.compilations()
    first = cache.kernel(source, name)
    assert cache.kernel(source, name) is first
    forget()
    second = cache.kernel(source, name)
    assert second is not first
    assert cache.compilations() == before + 1
    assert works(first, name)
    assert works(second, name)
    assert len(files()) == 1


def test_kernels_with_equal_symbols_stay_apart(compiled):
    """Two engines hold the same names; the second must not become the first."""
    identity = cache._identity(SOURCE, "increment")
    one, two = (cache._load(compiled, identity) for _ in range(2))
    assert works(one)
    assert works(two)
    assert one is not two


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("foreign", UnsupportedError, "'foreign' of codegen.kernel_sources.simple calls no_such_function"),
        ("absent", KeyError, "absent"),
    ],
)
def test_what_cannot_be_a_kernel_is_refused(name, error, message):
    with pytest.raises(error, match=message):
        cache.kernel(SOURCE, name)
    assert files() == []


WARM = f"""
import array, sys
sys.path.insert(0, {str(TESTS)!r})
from gradspec.codegen import cache
for name in ("increment", "external", "recursive"):
    memory = array.array("q", [1, 2, 3])
    cache.kernel({SOURCE!r}, name)(memory.buffer_info()[0], 0, 3, 0)
    print(*memory)
print(cache.compilations(), any("kernels" in name or "kernel_sources" in name for name in sys.modules))
"""


def python(script, **keywords):
    return subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, **keywords)


def test_processes_fill_the_cache_at_once_and_a_later_one_compiles_nothing():
    together = [python(WARM) for _ in range(2)]
    results = [process.communicate()[0].splitlines() for process in together]
    results.append(python(WARM).communicate()[0].splitlines())
    assert [lines[:3] for lines in results] == [["2 3 4", "2 8 21", "1 2 6"]] * 3
    assert results[2][3] == "0 False"
    assert len(files()) == 3


def test_many_threads_compile_a_kernel_once(count):
    start, got = threading.Barrier(32), []

    def ask():
        start.wait()
        got.append(cache.kernel(SOURCE, "increment"))

    threads = [threading.Thread(target=ask) for _ in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(count) == 1
    assert len(got) == 32
    assert len(set(map(id, got))) == 1


# --- what is on disk --------------------------------------------------------------------------------------------------


def damaged(entry):
    """Copies of an entry with damage in every region of it."""
    header = entry.index(b"\n") + 1
    body = entry.index(b"\n", header) + 1
    for region, (start, stop) in {
        "format": (0, len(cache.FORMAT)),
        "digest": (len(cache.FORMAT), header),
        "header": (header, body),
        "code": (body, len(entry)),
    }.items():
        for place in (start, (start + stop) // 2, stop - 1):
            yield f"{region}-{place}", entry[:place] + bytes([entry[place] ^ 1]) + entry[place + 1 :]
        yield f"cut in {region}", entry[: (start + stop) // 2]
        yield f"without {region}", entry[:start] + entry[stop:]
    yield "longer", entry + b"\0"
    yield "empty", b""
    yield "garbage", bytes(range(256)) * 100
    yield "one line", b"\n"
    yield "of another format", entry.replace(b"kernel 2", b"kernel 1")


def test_a_damaged_entry_is_compiled_again_and_replaced(stored, compiled, count):
    cases = dict(damaged(compiled))
    for kind, content in cases.items():
        stored.write_bytes(content)
        forget()
        assert works(cache.kernel(SOURCE, "increment")), kind
        assert stored.read_bytes() == compiled, kind
    assert len(count) == len(cases)
    assert files() == [stored.name]


IDENTITY = ("source", "kernel", "sources", "llvmlite", "target", "cpu", "features")


def changed(entry, **changes):
    """A whole entry with another header."""
    header, code = cache._verify_entry(entry, cache._identity(SOURCE, "increment"))
    return cache._entry({**header, **changes}, code)


@pytest.mark.parametrize("field", IDENTITY)
def test_an_entry_made_elsewhere_or_earlier_is_not_loaded(stored, compiled, count, field):
    identity = cache._identity(SOURCE, "increment")
    assert set(identity) == set(IDENTITY)
    stored.write_bytes(changed(compiled, identity={**identity, field: identity[field] + "0"}))
    assert works(cache.kernel(SOURCE, "increment"))
    assert stored.read_bytes() == compiled
    assert count == [identity]


def test_an_entry_that_needs_an_unknown_function_is_compiled_again(stored, compiled, count):
    stored.write_bytes(changed(compiled, needs=["no_such_function"]))
    assert works(cache.kernel(SOURCE, "increment"))
    assert len(count) == 1


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666, 0o000])
def test_an_entry_that_others_may_write_is_not_loaded(stored, count, mode):
    stored.chmod(mode)
    assert works(cache.kernel(SOURCE, "increment"))
    assert len(count) == (0 if mode == 0 and os.geteuid() == 0 else 1)


def test_an_entry_of_another_user_is_not_loaded(stored, count, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: stored.stat().st_uid + 1)
    assert works(cache.kernel(SOURCE, "increment"))
    assert len(count) == 1


def test_new_sources_replace_the_entry(tmp_path, monkeypatch, count):
    package = tmp_path / "changing_kernels"
    package.mkdir()
    imported = "from changing_kernels.helper import A"
    for file, text in {"__init__.py": "", "one.py": imported, "helper.py": "A = 1"}.items():
        (package / file).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    for text, expected in (("A = 1", 1), ("A = 2", 2), ("A = 2", 2), ("A = 1", 3)):
        (package / "helper.py").write_text(text)
        cache._sources.cache_clear()
        forget()
        cache.kernel("changing_kernels.one", "increment")
        assert len(count) == expected
    assert len(files()) == 1


def test_sources_are_what_a_kernel_is_made_of(tmp_path, monkeypatch):
    """Its module, what that imports from its package or from this one, and so on; not what only lies beside it."""
    texts = {
        "made/one.py": "from made.two import B\nfrom made.below import (\n three,\n four,\n)\nimport made.five",
        "made/two.py": "B = 1",
        "made/below/__init__.py": "",
        "made/below/three.py": "from made import six",
        "made/below/four.py": "",
        "made/five.py": "",
        "made/six.py": "",
        "made/beside.py": "",
    }
    monkeypatch.syspath_prepend(tmp_path)
    for file, text in texts.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    importlib.invalidate_caches()

    def digest():
        cache._sources.cache_clear()
        return cache._sources("made.one")

    before = digest()
    assert digest() == before
    for file in texts:
        (tmp_path / file).write_text(texts[file] + "\n")
        assert (digest() == before) == (file == "made/beside.py"), file
        (tmp_path / file).write_text(texts[file])
    assert digest() == before


def test_sources_that_cannot_be_read_might_be_any(monkeypatch):
    monkeypatch.setattr(cache, "_file", lambda module: None)
    cache._sources.cache_clear()
    first = cache._sources("made.one")
    cache._sources.cache_clear()
    assert cache._sources("made.one") != first
    cache._sources.cache_clear()


@pytest.mark.parametrize("module", cache.TRANSLATION)
def test_what_compiles_kernels_is_one_of_their_sources(tmp_path, monkeypatch, module):
    cache._sources.cache_clear()
    before, found = cache._sources(SOURCE), cache._file
    (tmp_path / "changed.py").write_bytes(found(module).read_bytes() + b"#")
    monkeypatch.setattr(cache, "_file", lambda name: tmp_path / "changed.py" if name == module else found(name))
    cache._sources.cache_clear()
    assert cache._sources(SOURCE) != before
    cache._sources.cache_clear()


def test_entries_are_private_and_say_what_they_are(stored, compiled):
    assert stat.S_IMODE(stored.stat().st_mode) == 0o600
    assert stat.S_IMODE(stored.parent.stat().st_mode) == 0o700
    assert stored.name.startswith("simple-increment-")
    assert json.loads(compiled.splitlines()[1])["identity"]["kernel"] == "increment"


@pytest.mark.parametrize("name", ["max_value:f32", "../../etc/passwd", "a" * 500, "", "\0", "é:/\\"])
def test_any_kernel_name_gives_a_file_in_the_directory(name):
    path = cache._path(cache._identity(SOURCE, name))
    assert path.parent == cache.cache_directory()
    assert len(path.name) < 120
    assert path.name.isascii()
    assert path != cache._path(cache._identity(SOURCE, name + "x"))


# --- directories that do not serve ------------------------------------------------------------------------------------


def no_space(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def is_a_file(directory, _):
    directory.write_text("")


def is_below_a_file(directory, monkeypatch):
    directory.write_text("")
    monkeypatch.setenv("GRADSPEC_CACHE_DIR", str(directory / "below"))


def has_a_folder_in_the_way(directory, _):
    cache._path(cache._identity(SOURCE, "increment")).mkdir(parents=True)


def has_a_pipe_in_the_way(directory, _):
    directory.mkdir()
    os.mkfifo(cache._path(cache._identity(SOURCE, "increment")))


def is_read_only(directory, monkeypatch):
    monkeypatch.setattr(cache, "_private", lambda *_: no_space())


def cannot_be_made(directory, monkeypatch):
    monkeypatch.setattr(Path, "mkdir", lambda *_, **__: no_space())


def is_full(directory, monkeypatch):
    """Opening works, writing does not: ``/dev/full`` says so."""
    monkeypatch.setattr(cache, "_private", lambda path, flags: os.open("/dev/full", os.O_WRONLY))


def cannot_rename(directory, monkeypatch):
    monkeypatch.setattr(os, "replace", no_space)


def is_switched_off(directory, monkeypatch):
    monkeypatch.setenv("GRADSPEC_CACHE_DIR", "OFF")


@pytest.mark.parametrize(
    "spoil",
    [
        is_a_file,
        is_below_a_file,
        has_a_folder_in_the_way,
        has_a_pipe_in_the_way,
        is_read_only,
        cannot_be_made,
        is_full,
        cannot_rename,
        is_switched_off,
    ],
)
def test_a_directory_that_does_not_serve_costs_only_time(tmp_path, monkeypatch, count, spoil):
    spoil(tmp_path / "kernels", monkeypatch)
    first = cache.kernel(SOURCE, "increment")
    assert works(first)
    assert cache.kernel(SOURCE, "increment") is first
    assert len(count) == 1
    assert not list(tmp_path.rglob("*.tmp"))


FILE_LIMIT = f"""
import resource, signal, sys
sys.path.insert(0, {str(TESTS)!r})
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
from gradspec.codegen import cache
sys.stdout.write(str(callable(cache.kernel({SOURCE!r}, "increment"))))
"""


def test_a_file_cut_off_by_the_system_is_removed():
    """The limit is below the size of an entry, so writing stops in the middle."""
    assert python(FILE_LIMIT).communicate()[0] == "True"
    assert files() == []


@pytest.mark.parametrize(
    ("environment", "directory"),
    [
        ({"GRADSPEC_CACHE_DIR": "/a/b"}, "/a/b"),
        ({"GRADSPEC_CACHE_DIR": "~/b", "HOME": "/h"}, "/h/b"),
        ({"GRADSPEC_CACHE_DIR": "", "XDG_CACHE_HOME": "/x"}, None),
        ({"GRADSPEC_CACHE_DIR": "off", "XDG_CACHE_HOME": "/x"}, None),
        ({"XDG_CACHE_HOME": "/x", "HOME": "/h"}, "/x/gradspec"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/h"}, "/h/.cache/gradspec"),
        ({"XDG_CACHE_HOME": "", "HOME": "/h"}, "/h/.cache/gradspec"),
        ({"HOME": "/h"}, "/h/.cache/gradspec"),
    ],
)
def test_the_directory_follows_the_environment(monkeypatch, environment, directory):
    for name in ("GRADSPEC_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert cache.cache_directory() == (None if directory is None else Path(directory))


# --- interrupted ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["_compile", "_entry", "_private", "_load"])
def test_an_interrupted_compilation_leaves_nothing_and_the_next_call_compiles(monkeypatch, count, where):
    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(cache, where, interrupted)
        with pytest.raises(KeyboardInterrupt):
            cache.kernel(SOURCE, "increment")
    assert files() == []
    assert works(cache.kernel(SOURCE, "increment"))


INTERRUPTED = f"""
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are started without it
sys.path.insert(0, {str(TESTS)!r})
from gradspec.codegen import cache
import {SOURCE} as source
try:
    print("ready", flush=True)
    while True:
        cache._LOADED.clear()
        cache._store = lambda *_: None
        cache.kernel({SOURCE!r}, "external")
except KeyboardInterrupt:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    print("interrupted", flush=True)
print(callable(cache.kernel({SOURCE!r}, "external")), flush=True)
"""


def test_ctrl_c_in_the_middle_of_a_compilation_is_survived():
    process = python(INTERRUPTED)
    assert process.stdout.readline() == "ready\n"
    told = ""
    while not told:
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)  # Python drops an interrupt that comes while an object is finalised
        with contextlib.suppress(subprocess.TimeoutExpired):
            told = process.communicate(timeout=5)[0]
    assert told.split() == ["interrupted", "True"]


FORKED = f"""
import os, sys, threading
sys.path.insert(0, {str(TESTS)!r})
from gradspec.codegen import cache
import warnings
warnings.simplefilter("ignore")
compiling = threading.Event()
compile = cache._compile
def slow(identity):
    compiling.set()
    return compile(identity)
cache._compile = slow
threading.Thread(target=cache.kernel, args=({SOURCE!r}, "increment")).start()
compiling.wait()
child = os.fork()
if child == 0:
    os._exit(0 if callable(cache.kernel({SOURCE!r}, "decrement")) else 1)
print(os.waitpid(child, 0)[1])
"""


def test_a_child_forked_while_another_thread_compiles_can_compile():
    assert python(FORKED).communicate(timeout=PATIENCE)[0] == "0\n"


# --- object files -----------------------------------------------------------------------------------------------------

MODULE = """
@common = common global i64 0
@elsewhere = external global i64
declare double @exp(double)
declare double @a_function_with_a_long_name(double)
define double @defined(double %x) {
  %y = call double @exp(double %x)
  %z = call double @a_function_with_a_long_name(double %y)
  %i = load i64, ptr @elsewhere
  %w = sitofp i64 %i to double
  %s = fadd double %z, %w
  ret double %s
}
"""


@pytest.mark.parametrize(
    "triple",
    ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu", "x86_64-apple-macosx13", "arm64-apple-macosx13"],
)
def test_undefined_symbols_are_found(triple):
    llvm = cache._llvm()
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(triple).create_target_machine()
    code = machine.emit_object(llvm.parse_assembly(MODULE))
    assert cache.undefined_symbols(code) == {"exp", "a_function_with_a_long_name", "elsewhere"}


def test_an_object_file_of_another_kind_is_refused():
    with pytest.raises(UnsupportedError, match=r"64-bit ELF or Mach-O .* begins with 64860500"):
        cache.undefined_symbols(b"\x64\x86\x05\0")
