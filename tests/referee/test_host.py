"""Kernels in a process of their own: what they do there is nothing to the judge, and all that is checked still is."""

import os
import signal
import socket
import struct
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import gradspec as gs
from gradspec.conformance.cases.target_stream import TargetStream
from gradspec.conformance.checks import CHECKS
from gradspec.conformance.judge.verdicts import judge_call
from gradspec.conformance.model.case import CampaignSettings, Selection
from gradspec.conformance.model.problem import Problem
from gradspec.conformance.model.reference import on_zeros
from gradspec.conformance.targets import target_of
from gradspec.conformance.targets.reference.kernel import loaded_kernel
from gradspec.system import host, hosting
from gradspec.system.forking import fate
from gradspec.system.hosting import ChannelError, HostedFunction, HostLostError, KernelHost, LeftBehindError, stand_in

pytestmark = pytest.mark.skipif(not hosting.CAN_HOST, reason="kernels have no process of their own here")
HEAD = "import ctypes, gc, json, os, signal, socket, struct, sys, threading, time\nimport numpy as np\n"


@pytest.fixture
def kernel_file(tmp_path, monkeypatch):
    """Writes a module of kernels, and forgets it again."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(source, name="hosted_kernels"):
        (tmp_path / f"{name}.py").write_text(HEAD + textwrap.dedent(source))
        return name

    yield write
    for name in [name for name, module in sys.modules.items() if str(tmp_path) in str(getattr(module, "__file__", ""))]:
        del sys.modules[name]


@pytest.fixture
def hosted(kernel_file):
    """The function of a kernel's source, in its host."""
    hosts = []

    def make(body):
        source = f"def kernel(x):\n{textwrap.indent(textwrap.dedent(body), '    ')}\n"
        kernel_file(source)
        hosts.append(KernelHost("hosted_kernels:kernel"))
        return HostedFunction(hosts[-1], "", None)

    yield make
    for one in hosts:
        one.close()


X = np.linspace(-2, 2, 20, dtype=np.float32).reshape(4, 5)


def reference_target(kernel_file, source, is_hosted=True, inputs="f32[4,5]", spec="gs.relu(x)", name="kernel"):
    kernel_file(source)
    kernel_file(f"import gradspec as gs\ndef spec(x):\n    return {spec}\n", "hosted_reference")
    return loaded_kernel(f"hosted_kernels:{name}", "hosted_reference:spec", inputs, is_hosted=is_hosted)


def call_on(target, x=X, layout="contiguous"):
    problem = target.reference.problem(target.reference.types[0])
    call = on_zeros(problem, "value")
    (name,) = call.arrays()
    return replace(call.with_arrays({name: x.copy()}), layout=layout).in_layout()


# --- exploits ---------------------------------------------------------------------------------------------------------

EXPLOITS = {
    "it replaces the constructor of verdicts": (
        """
        def kernel(x):
            for name, module in list(sys.modules.items()):
                if name.endswith("model.verdict"):
                    old = module.Verdict.__init__
                    module.Verdict.__init__ = lambda self, kind, *more, **named: old(self, "pass")
            return np.zeros_like(x)
        """,
        "spec",
    ),
    "it writes a verdict to every open file": (
        """
        def kernel(x):
            for descriptor in range(3, 64):
                try:
                    os.write(descriptor, b'{"judged": {"op": "spec", "kind": "pass"}}\\n')
                except OSError:
                    pass
            return np.zeros_like(x)
        """,
        "channel",
    ),
    "it is right only while the judge is loaded": (
        """
        def kernel(x):
            return np.maximum(x, 0) if "gradspec" in sys.modules else np.zeros_like(x)
        """,
        "spec",
    ),
    "it patches what it finds by gc": (
        """
        def kernel(x):
            for found in gc.get_objects():
                if type(found).__name__ in ("Judge", "InProcess", "Verdict", "Meaning"):
                    found.__dict__.clear()
            return np.zeros_like(x)
        """,
        "spec",
    ),
    "it answers in the place of its host": (
        """
        def kernel(x):
            told = b"\\1"
            for descriptor in range(3, 64):
                try:
                    os.write(descriptor, struct.pack("<4sQI", b"host", 1, len(told)) + told)
                except OSError:
                    pass
            return np.zeros_like(x)
        """,
        "channel",
    ),
    "it says that its output is larger than memory": (
        """
        def kernel(x):
            told = b"\\1" + struct.pack("<BBBq2q", 11, 2, 1, 0, 1 << 40, 4)
            for number in range(50):
                for descriptor in range(3, 64):
                    try:
                        os.write(descriptor, struct.pack("<4sQI", b"host", number, len(told)) + told)
                    except OSError:
                        pass
            return np.zeros_like(x)
        """,
        "channel",
    ),
    "it sends files along": (
        """
        def kernel(x):
            for descriptor in range(3, 64):
                try:
                    socket.send_fds(socket.socket(fileno=os.dup(descriptor)), [b"x"], [0])
                except OSError:
                    pass
            return np.zeros_like(x)
        """,
        "channel",
    ),
    "its child returns, too": (
        """
        def kernel(x):
            if os.fork() == 0:
                return np.maximum(x, 0)
            time.sleep(0.2)
            return np.zeros_like(x)
        """,
        "channel",
    ),
    "it leaves a process behind": (
        """
        def kernel(x):
            if os.fork() == 0:
                if os.fork() == 0:
                    os.setsid()
                    time.sleep(30)
                os._exit(0)
            return np.maximum(x, 0)
        """,
        "left_behind",
    ),
    "it cuts shared memory off": (
        """
        def kernel(x):
            for descriptor in range(3, 64):
                try:
                    os.ftruncate(descriptor, 0)
                except OSError:
                    pass
            return np.zeros_like(x)
        """,
        "spec",
    ),
}


@pytest.mark.parametrize("name", EXPLOITS)
def test_an_exploit_is_a_finding(name, kernel_file):
    source, rule = EXPLOITS[name]
    target = reference_target(kernel_file, source)
    (verdict,) = judge_call(target, call_on(target))
    assert verdict.kind == "defect"
    assert verdict.rule.startswith(rule)
    target.host.close()


def test_an_honest_kernel_passes_after_one_that_was_not(kernel_file):
    source = """
    def kernel(x):
        if x[0, 0] == 7:
            any(map(_write, range(3, 64)))
        return np.maximum(x, 0)
    def _write(descriptor):
        try:
            os.write(descriptor, b"forged")
        except OSError:
            pass
    """
    target = reference_target(kernel_file, source)
    rules = []
    for first in (0, 7, 0):
        x = X.copy()
        x[0, 0] = first
        (verdict,) = judge_call(target, call_on(target, x))
        rules.append(verdict.rule if verdict.kind != "pass" else "pass")
    assert rules == ["pass", "channel", "pass"]
    target.host.close()


@pytest.mark.exhaustive
@pytest.mark.rows(1)
@pytest.mark.parametrize(
    ("name", "titles"),
    [
        ("it replaces the constructor of verdicts", None),
        ("it writes a verdict to every open file", ["It wrote to the channel of the judge"]),
    ],
)
def test_a_campaign_reports_it(name, titles, kernel_file):
    kernel_file(EXPLOITS[name][0])
    kernel_file("import gradspec as gs\ndef spec(x):\n    return gs.relu(x)\n", "hosted_reference")
    run = gs.conformance.check(
        "hosted_kernels:kernel", spec="hosted_reference:spec", inputs="f32[4,5]", cases=6, seed=1, jobs=1
    )
    assert run.judged == 6
    assert run.errors == []
    assert run.by_kind("defect")
    assert "no new privileges" in run.containment
    assert titles in (None, [finding.title for finding in run.findings])


def test_a_module_that_speaks_while_it_is_imported_is_its_own_error(kernel_file):
    kernel_file(
        """
        for descriptor in range(3, 64):
            try:
                os.write(descriptor, b'{"versions": {}, "domain": ""}')
            except OSError:
                pass
        def kernel(x):
            return x
        """
    )
    with pytest.raises(ValueError, match="failed: it wrote to the channel of the judge"):
        _ = KernelHost("hosted_kernels:kernel").facts


def test_facts_that_no_host_tells_are_the_error_of_a_module(kernel_file):
    kernel_file(
        """
        names = "kind can_fork name signature library mentioned parameters versions"
        said = {1: {**dict.fromkeys(names.split()), "names": []}, 2: {"members": {}}}
        for descriptor in range(3, 64):
            for number, message in said.items():
                text = json.dumps(message).encode()
                try:
                    os.write(descriptor, struct.pack("<4sQI", b"host", number, len(text)) + text)
                except OSError:
                    pass
        def kernel(x):
            return x
        """
    )
    host = KernelHost("hosted_kernels:kernel")
    with pytest.raises(ValueError, match="failed: it wrote to the channel of the judge"):
        stand_in(host, lambda name: True)


# --- what ends a process ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("ctypes.string_at(0)", signal.SIGSEGV),
        ("os.abort()", signal.SIGABRT),
        ("sys.exit(3)", 3 << 8),
        ("os._exit(0)", 0),
        ("os.kill(os.getppid(), 9); time.sleep(5)", signal.SIGKILL),
        ("os.kill(-1, 9); time.sleep(5)", signal.SIGKILL),
    ],
    ids=["segmentation fault", "abort", "exit", "exit at once", "kills its parent", "kills all that it can"],
)
def test_what_a_process_ends_with_is_known(body, status, hosted):
    kernel = hosted(body)
    with pytest.raises(HostLostError) as caught:
        kernel(X)
    assert caught.value.status == status


def test_the_next_call_has_a_new_process(hosted):
    kernel = hosted("if x[0, 0] > 5: os.abort()\nreturn 2 * x")
    assert np.array_equal(kernel(X), 2 * X)
    with pytest.raises(HostLostError):
        kernel(X + 9)
    assert np.array_equal(kernel(X), 2 * X)


def test_a_kernel_may_have_worked_in_threads_when_it_was_imported(kernel_file):
    torch = pytest.importorskip("torch")
    if torch.get_num_threads() < 2:
        pytest.skip("PyTorch has one thread here")
    kernel_file(
        "import torch\nONES = torch.ones(400, 400).exp() @ torch.ones(400, 400)\ndef kernel(x):\n    return x\n"
    )
    host = KernelHost("hosted_kernels:kernel")
    host.limit = 60.0
    assert HostedFunction(host, "", None)(X).tolist() == X.tolist()
    host.close()


def test_processes_end_with_the_host(hosted):
    kernel = hosted("return np.float64(os.getpid())")
    kernel(X)
    pid = kernel.host._session.pid
    assert Path(f"/proc/{pid}").exists()
    kernel.host.close()
    assert not Path(f"/proc/{pid}").exists()


# --- what a kernel can see and do -------------------------------------------------------------------------------------


def what_it_sees(hosted, expression):
    """The text of an expression of the kernel's."""
    with pytest.raises(KeyError) as caught:
        hosted(f"raise KeyError({expression})")(X)
    return str(caught.value)


@pytest.mark.parametrize(
    "expression",
    [
        "[name for name in sys.modules if 'gradspec' in name]",
        "[name for name, value in os.environ.items() if name.startswith('GRADSPEC')]",
        "[open('/proc/self/cmdline').read() for _ in '1' if 'gradspec' in open('/proc/self/cmdline').read()]",
        "[a for a in sys.argv if 'gradspec' in a]",
        "[found for found in gc.get_objects() if 'gradspec' in type(found).__module__]",
    ],
)
def test_nothing_there_names_the_judge(expression, hosted, monkeypatch):
    monkeypatch.setenv("GRADSPEC_NUM_THREADS", "1")
    monkeypatch.setenv("GRADSPEC_CACHE_DIR", os.environ.get("GRADSPEC_CACHE_DIR", "off"))
    assert what_it_sees(hosted, expression) == "[]"


def test_no_file_of_the_judge_is_open(hosted):
    there = "[f'/proc/self/fd/{n}' for n in os.listdir('/proc/self/fd') if int(n) > 2]"
    files = eval(what_it_sees(hosted, f"[os.readlink(file) for file in {there} if os.path.exists(file)]"))
    assert len([file for file in files if file.startswith(("socket", "pipe"))]) == 1
    assert not [file for file in files if "gradspec" in file]


def tried(hosted, statement):
    """The error that a statement of the kernel's raises."""
    with pytest.raises(OSError) as caught:  # noqa: PT011
        hosted(f"{statement}\nreturn x")(X)
    return type(caught.value).__name__, str(caught.value)


def is_contained_by(words):
    host = KernelHost("math")
    try:
        return any(words in told for told in host.contained)
    finally:
        host.close()


def test_it_writes_nothing_but_in_its_scratch_folder(hosted, tmp_path):
    if not is_contained_by("read-only"):
        pytest.skip("Landlock is not there")
    name, text = tried(hosted, f"open({str(tmp_path / 'note')!r}, 'w')")
    assert name == "PermissionError" or "[Errno 30]" in text
    assert not (tmp_path / "note").exists()
    kernel = hosted("import tempfile\nwith tempfile.TemporaryFile() as file: file.write(b'x')\nreturn x")
    assert np.array_equal(kernel(X), X)


@pytest.mark.parametrize("change", ["os.chmod({!r}, 0o400)", "os.utime({!r})", "os.chown({!r}, -1, os.getgid())"])
def test_it_changes_no_rights_and_no_times(change, hosted, tmp_path):
    if not is_contained_by("scratch folder of its own"):
        pytest.skip("there are no namespaces")
    kept = tmp_path / "kept"
    kept.touch()
    before = kept.stat()
    assert "[Errno 30]" in tried(hosted, change.format(str(kept)))[1]
    assert kept.stat() == before
    again = "ctypes.CDLL(None).syscall(442, -100, b'/', 0x8000, struct.pack('4Q', 0, 1, 0, 0), 32)"
    assert "[Errno 30]" in tried(hosted, f"{again}\n{change.format(str(kept))}")[1]


def test_it_leaves_nothing_in_memory_that_all_see(hosted):
    if not is_contained_by("scratch folder of its own"):
        pytest.skip("there are no namespaces")
    kernel = hosted("open('/dev/shm/left-by-a-kernel', 'w').write('x')\nreturn x")
    assert np.array_equal(kernel(X), X)
    assert not Path("/dev/shm/left-by-a-kernel").exists()


def test_all_its_processes_stand_still_when_they_are_told_to(kernel_file):
    kernel_file(
        """
        def work():
            while True:
                time.sleep(1e-4)
        threading.Thread(target=work, daemon=True).start()
        os.register_at_fork(after_in_child=lambda: threading.Thread(target=work, daemon=True).start())
        def kernel(x):
            return 2 * x
        """
    )
    host = KernelHost("hosted_kernels:kernel")
    call = HostedFunction(host, "", None)
    call(X)
    stopped = host.stop()
    assert host.pid in stopped
    assert len(stopped) >= 3  # the host, what waits for its copy, and that
    states = {file.read_text().rpartition(")")[2].split()[0] for p in stopped for file in tasks_of(p)}
    assert states == {"T"}
    later = host.prepared(call, (X,), 1)
    for process in stopped:
        os.kill(process, signal.SIGCONT)
    assert np.array_equal(later(), 2 * X)
    host.close()


def tasks_of(process):
    return Path(f"/proc/{process}/task").glob("*/stat")


def test_it_has_no_network(hosted):
    if not is_contained_by("no network"):
        pytest.skip("there are no namespaces")
    tried(hosted, "socket.create_connection(('192.0.2.1', 80), 1)")
    tried(hosted, "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('192.0.2.1', 53))")


REFUSED = {
    "a socket of a file": "socket.socket(socket.AF_UNIX).connect({file!r})",
    "a socket of a file, without a connection": "socket.socket(1, socket.SOCK_DGRAM).sendto(b'x', {file!r})",
    "the host of a virtual machine": "socket.socket(40, socket.SOCK_STREAM)",
    "the keys of the session": "call(keys, b'user', b'left', b'x', 1, -3)",
    "a ring of system calls": "call(425, 4, ctypes.create_string_buffer(256))",
}


@pytest.mark.parametrize("statement", REFUSED.values(), ids=REFUSED)
def test_it_reaches_nothing_that_others_have(statement, hosted, tmp_path):
    if not is_contained_by("no UNIX sockets"):
        pytest.skip("no system calls are filtered")
    file = str(tmp_path / "socket")
    call = "os.strerror((ctypes.CDLL(None, use_errno=True).syscall(*of) >= 0) or ctypes.get_errno())"
    keys = 248 if os.uname().machine == "x86_64" else 217
    head = f"def call(*of):\n    said = {call}\n    raise OSError(said)\nkeys = {keys}\n"
    with socket.socket(socket.AF_UNIX) as stream, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams:
        (datagrams if "DGRAM" in statement else stream).bind(file)
        if "DGRAM" not in statement:
            stream.listen()
        assert "not permitted" in tried(hosted, head + statement.format(file=file))[1]


CLONE = {"x86_64": 56, "aarch64": 220}.get(os.uname().machine)


@pytest.mark.parametrize(
    "call",
    [
        "unshare(0x10000000)",
        f"syscall({CLONE}, 0x10000000 | 17, 0, 0, 0, 0)",
        "setns(os.open('/proc/self/ns/net', 0), 0)",
        "memfd_create(b'x', 0)",
    ],
)
def test_what_no_namespace_keeps_is_refused(call, hosted):
    if not is_contained_by("further namespaces"):
        pytest.skip("there is no filter")
    if "memfd" in call and not is_contained_by("nameless files"):
        pytest.skip("a driver of a GPU needs them")
    lines = (
        "libc = ctypes.CDLL(None, use_errno=True)",
        f"made = libc.{call}",
        "if made == 0: os._exit(0)",
        "if made < 0: raise OSError(ctypes.get_errno(), 'no')",
    )
    assert tried(hosted, "\n".join(lines)) == ("PermissionError", "[Errno 1] no")


def test_shared_memory_of_system_v_ends_with_it(hosted):
    if not is_contained_by("scratch folder of its own"):
        pytest.skip("there are no namespaces")
    key = f"ctypes.CDLL(None).shmget({0x67730000 + os.getpid() % 0x10000}, 4096, 0o3600)"
    for _ in range(2):  # the second host finds no such memory, which it is told to make
        assert hosted(f"return np.array([{key} >= 0])")(X).all()


def test_it_writes_to_no_terminal(hosted):
    if not is_contained_by("read-only"):
        pytest.skip("Landlock is not there")
    ours, theirs = os.openpty()
    try:
        assert tried(hosted, f"os.open({os.ttyname(theirs)!r}, os.O_WRONLY | os.O_NOCTTY)")[0] == "PermissionError"
    finally:
        os.close(ours)
        os.close(theirs)
    assert hosted("open('/dev/null', 'w').write('x')\nreturn x")(X).shape == X.shape


def test_it_cannot_keep_memory_for_inputs_from_growing(hosted):
    kernel = hosted(
        """
        for descriptor in range(3, 64):
            for seal in (4, 8, 16):
                try:
                    import fcntl
                    fcntl.fcntl(descriptor, 1033, seal)
                except OSError:
                    pass
        return x
        """
    )
    for larger in (X, np.tile(X, (1 << 15, 1))):
        assert np.array_equal(kernel(larger), larger)


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the number of the system call is that of x86-64")
def test_a_process_that_it_starts_beside_itself_is_left_behind(hosted):
    kernel = hosted(
        """
        if ctypes.CDLL(None).syscall(56, 0x8000 | 17, 0, 0, 0, 0) == 0:
            time.sleep(20)
            os._exit(0)
        return x
        """
    )
    with pytest.raises(LeftBehindError):
        kernel(X)


def test_numbers_in_the_other_order_of_bytes_are_none_of_ours(hosted):
    assert hosted("return x.astype(x.dtype.newbyteorder())")(X).dtype.kind == "V"


@pytest.mark.parametrize("file", ["mem", "environ"])
def test_it_reads_no_memory_of_its_judge(file, hosted):
    if not is_contained_by("read-only") and not is_contained_by("no network"):
        pytest.skip("nothing keeps it from that")
    error, *_ = tried(hosted, f"open('/proc/{os.getpid()}/{file}', 'rb').read(1)")
    assert error in ("PermissionError", "FileNotFoundError")  # where it sees its own processes alone


def test_it_signals_no_other_process(hosted):
    if not is_contained_by("its own processes"):
        pytest.skip("there are no namespaces")
    assert tried(hosted, f"os.kill({os.getpid()}, 0)")[0] in ("PermissionError", "ProcessLookupError")


def test_it_fills_no_disk_and_no_memory(hosted):
    if is_contained_by("scratch folder of its own"):
        fill = "import tempfile\nwith tempfile.TemporaryFile() as file: os.posix_fallocate(file.fileno(), 0, 3 << 30)"
        assert "Errno 28" in tried(hosted, fill)[1]
    with pytest.raises(MemoryError):
        hosted("return np.ones(1 << 46)")(X)


# --- results ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int64", "float16", "float32", "float64", "bfloat16"])
@pytest.mark.parametrize("layout", [slice(None), slice(None, None, 2), slice(None, None, -1)], ids=str)
def test_arrays_arrive_and_return_as_they_are(dtype, layout, kernel_file):
    given = np.arange(24).reshape(4, 6).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)[:, layout]
    kernel_file(
        "def kernel(x, scale, *, pairs):\n    return x.copy(), np.array(x.strides), pairs[1][0] * scale, None\n"
    )
    host = KernelHost("hosted_kernels:kernel")
    same, strides, number, nothing = HostedFunction(host, "", None)(given, 3, pairs=((1, 2), (5, 6)))
    assert same.dtype == given.dtype
    assert same.tobytes() == given.tobytes()
    assert tuple(strides) == given.strides
    assert number == 15
    assert nothing is None
    host.close()


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_an_array_whose_numbers_change_is_the_same_object_there(library, hosted):
    pytest.importorskip(library)
    function = hosted("global KNOWN\nKNOWN = globals().get('KNOWN', x)\nreturn np.array([x is KNOWN, x.sum()])")
    function.host.library = library
    x = np.ones((2, 3), np.float32)
    assert function(x).tolist() == [1, 6]
    x[...] = 2
    assert function(x).tolist() == [1, 12]
    assert function(x[:1]).tolist() == [0, 6]


def test_results_in_inputs_share_their_memory(hosted):
    kernel = hosted("x[0, 0] = 9\nreturn x[1:, ::-1]")
    x = X.copy()
    y = kernel(x)
    assert np.shares_memory(x, y)
    assert x[0, 0] == 9
    assert np.array_equal(y, x[1:, ::-1])


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ("KeyError('no such tile')", KeyError),
        ("UnicodeDecodeError('utf-8', b'x', 0, 1, 'no')", UnicodeDecodeError),
        ("OSError(5, 'no')", OSError),
        ("type('OutOfMemoryError', (RuntimeError,), {})('full')", RuntimeError),
    ],
    ids=["key", "decode", "os", "own"],
)
def test_errors_keep_name_kind_and_text(error, kind, hosted):
    with pytest.raises(kind) as caught:
        hosted(f"raise {error}")(X)
    meant = eval(error)
    assert (type(caught.value).__name__, str(caught.value)) == (type(meant).__name__, str(meant))


FLOAT32, INT8 = host.NUMBERED["float32"], host.NUMBERED["int8"]


def claim(dtype, where, start, size, stride):
    return host.SEVERAL + host.ARRAY.pack(dtype, where, 1, start) + struct.pack("<2q", size, stride)


@pytest.mark.parametrize(
    "answer",
    [
        {"parts": []},
        host.ONE,
        host.ONE + host.ARRAY.pack(0, host.NOTHING, 0, 0) * 2,
        host.SEVERAL + b"cut off",
        host.SEVERAL + host.ARRAY.pack(FLOAT32, host.OUTPUTS, 1, 0) + struct.pack("<q", 1),
        claim(FLOAT32, host.OUTPUTS, 0, -1, 4),
        claim(99, host.OUTPUTS, 0, 1, 4),
        claim(FLOAT32, 7, 0, 1, 4),
        claim(host.NUMBERED["object"], host.OUTPUTS, 0, 1, 8),
        claim(INT8, host.INPUTS, 0, 1, 1),
        claim(INT8, host.INPUTS, 9**9, 1, 1),
        claim(INT8, host.OUTPUTS, 9**9, 1, 1),
        claim(INT8, host.OUTPUTS, -1, 1, 1),
        claim(FLOAT32, host.OUTPUTS, 0, 1 << 40, 4),
        {"error": "text"},
        {"error": {"type": "a b", "bases": [], "text": ""}},
        {"error": {"type": "E", "bases": ["SystemExit"], "text": 3}},
    ],
    ids=str,
)
def test_any_other_answer_is_refused(answer, hosted):
    kernel = hosted("return x")
    kernel(X)
    session = kernel.host._session
    with pytest.raises(ChannelError):
        hosting._given(answer, lambda claim: session.taken(claim, hosting._Packing()))


def test_outputs_that_are_too_large_together_are_refused():
    many = claim(FLOAT32, host.OUTPUTS, 0, hosting.MOST_BYTES // 32, 4)
    with pytest.raises(ChannelError, match="too large"):
        hosting._given(many + many[1:] * 2, lambda claim: pytest.fail("it was copied"))


def test_it_holds_so_much_memory_together_with_its_processes(kernel_file):
    kernel_file(
        """
        def kernel(x):
            for _ in range(3 * int(x[0, 0])):
                if os.fork() == 0:
                    kept = np.ones(1 << 26, np.float64)
                    time.sleep(20 * float(kept[0]))
            time.sleep(20 * float(x[0, 0]))
            return x
        """
    )
    one = KernelHost("hosted_kernels:kernel", 1 << 30)  # OpenBLAS alone takes 32 MiB for each core
    kernel = HostedFunction(one, "", None)
    assert kernel(0 * X).shape == X.shape
    with pytest.raises(HostLostError) as caught:
        kernel(1 + 0 * X)
    assert caught.value.status == signal.SIGKILL
    assert kernel(0 * X).shape == X.shape  # in a new host
    one.close()


def test_what_it_prints_fills_no_file(hosted):
    seen = what_it_sees(hosted, "[os.readlink(f'/proc/self/fd/{n}')[:5] for n in range(3)]")
    assert seen == str(["/dev/", "pipe:", "pipe:"])


# --- what is checked of kernels, in a host as without one -------------------------------------------------------------

KERNELS = {
    "honest": "def kernel(x):\n    return np.maximum(x, 0)\n",
    "changes its input": "def kernel(x):\n    x[...] = np.maximum(x, 0)\n    return x.copy()\n",
    "keeps its result": """
        kept = {}
        def kernel(x):
            y = kept.setdefault(x.shape, np.empty_like(x))
            return np.maximum(x, 0, out=y)
        """,
    "keeps results by address": """
        kept = {}
        def kernel(x):
            key = x.ctypes.data, x.shape
            return kept.setdefault(key, np.maximum(x, 0)).copy()
        """,
    "gives an input": "fresh_results = True\ndef kernel(x):\n    return x\nkernel.fresh_results = True\n",
    "reads beyond its input": """
        def kernel(x):
            flat = np.ctypeslib.as_array(ctypes.cast(x.ctypes.data, ctypes.POINTER(ctypes.c_float)), (x.size + 1,))
            return np.maximum(x, 0) if x.flags.c_contiguous and np.isnan(flat[-1]) else 0 * flat[-1] + np.maximum(x, 0)
        """,
    "leaves cells of out": """
        def kernel(x, out=None):
            y = np.maximum(x, 0) if out is None else out
            y.reshape(-1)[:-1] = np.maximum(x, 0).reshape(-1)[:-1]
            return y
        """,
    "races": """
        table = {}
        def kernel(x):
            table["x"] = x
            time.sleep(1e-5)
            return np.maximum(table["x"], 0)
        """,
    "raises": "def kernel(x):\n    raise ArithmeticError('no')\n",
    "gives a wrong shape": "def kernel(x):\n    return np.maximum(x, 0)[:, :2]\n",
    "gives a wrong dtype": "def kernel(x):\n    return np.maximum(x, 0).astype(np.float64)\n",
    "gives no array": "def kernel(x):\n    return 'zero'\n",
}


def rules_of(target):
    call = call_on(target)
    verdicts = judge_call(target, call) + judge_call(target, call_on(target, -X))
    for check in CHECKS:
        verdicts += check.look(target, call)
    return {verdict.rule for verdict in verdicts if verdict.kind == "defect"}


@pytest.mark.parametrize("name", [name for name in KERNELS if name != "reads beyond its input"])
def test_the_same_is_found_in_a_host(name, kernel_file):
    here = rules_of(reference_target(kernel_file, KERNELS[name], is_hosted=False))
    target = reference_target(kernel_file, KERNELS[name])
    there = rules_of(target)
    assert there >= here  # memory is used again at once there, so that more may show
    assert bool(there) == (name != "honest")
    target.host.close()


def test_reading_beyond_an_input_ends_the_host(kernel_file):
    target = reference_target(kernel_file, KERNELS["reads beyond its input"])
    with pytest.raises(HostLostError) as caught:
        rules_of(target)
    assert caught.value.status == signal.SIGSEGV
    target.host.close()


def test_a_copy_of_the_process_has_a_host_of_its_own(kernel_file):
    target = reference_target(
        kernel_file, "def kernel(x):\n    x[0, 0] > 5 and os.abort()\n    return np.maximum(x, 0)\n"
    )
    deadly, harmless = call_on(target, X + 9), call_on(target)
    target.run(harmless)
    assert fate(lambda: target.run(deadly), 20) == "crash"
    assert fate(lambda: target.run(harmless), 20) == ""
    assert judge_call(target, harmless)[0].kind == "pass"
    target.host.close()


# --- libraries --------------------------------------------------------------------------------------------------------

TORCH = """
import torch
def kernel(x):
    return torch.nn.functional.softplus(x) * 2
class Module(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.linear = torch.nn.Linear(5, 3)
    def forward(self, x):
        return torch.relu(self.linear(x))
"""
JAX = "import jax, jax.numpy as jnp\nONE = jnp.ones(())\ndef kernel(x):\n    return jnp.tanh(x) * ONE\n"


@pytest.mark.rows(1)
@pytest.mark.parametrize(
    ("library", "source", "name"),
    [("jax", JAX, "kernel"), ("torch", TORCH, "kernel"), ("torch", TORCH, "Module")],
    ids=["jax", "torch", "module"],
)
def test_all_modes_give_the_same_bits(library, source, name, kernel_file):
    pytest.importorskip(library)
    kernel_file(source)
    given = ("hosted_kernels:" + name, "hosted_kernels:" + name, "f32[4,5]")
    here, there = (loaded_kernel(*given, is_hosted=is_hosted) for is_hosted in (False, True))
    assert there.versions() == here.versions()
    rng = np.random.default_rng(0)
    for mode in ("value", "jvp", "vjp", "second"):
        problem = here.reference.problem(here.reference.types[0])
        call = on_zeros(problem, mode).mapped(lambda a: rng.standard_normal(a.shape).astype(a.dtype))
        assert here.refusal(problem, mode) == there.refusal(problem, mode)
        expected = here.run(call)
        got = there.run(call)
        assert got.keys() == expected.keys()
        for key, array in expected.items():
            assert np.asarray(array).tobytes() == np.asarray(got[key]).tobytes(), (mode, key)
    assert "too, with its reference" in there.containment()
    there.host.close()


def test_operators_of_users_are_called_there(kernel_file):
    kernel_file(
        """
        class Kernels:
            dtypes = ("f32",)
            ranks = {1}
            array = "numpy"
            kernel_size = range(1, 4)
            def max_pool(self, x, kernel_size, stride):
                if "gradspec" in sys.modules:
                    raise RuntimeError("the judge is here")
                return np.lib.stride_tricks.sliding_window_view(x, kernel_size[0], -1)[..., :: stride[0], :].max(-1)
        """
    )
    target = target_of(CampaignSettings("hosted_kernels:Kernels"))
    assert (target.ops, target.ranks, target.dtypes) == (("max_pool",), (1,), ("f32",))
    assert target.domain.get("kernel_size") == range(1, 4)
    problem = Problem("max_pool", 1, ((2, 6),), {"kernel_size": (2,), "stride": (2,)})
    assert target.run(on_zeros(problem, "value"))["y"].shape == (2, 3)
    assert "hosted_kernels" not in sys.modules
    assert "from hosted_kernels import Kernels" in target.reproducer(on_zeros(problem, "value"))
    target.host.close()


# --- numbers that are declined ----------------------------------------------------------------------------------------

DECLINES = """
def kernel(x):
    if not np.isfinite(x).all() or x.max() > {largest}:
        raise NotImplementedError("such numbers")
    return np.maximum(x, 0)
"""


@pytest.mark.parametrize(
    ("largest", "declared", "kinds"),
    [
        (1, "", ["defect", "defect"]),
        (100, "", ["pass", "defect"]),
        (100, "kernel.numbers = 'finite'", ["pass", "not_offered"]),
        (1, "kernel.numbers = 'finite'", ["defect", "not_offered"]),
        (1, "kernel.numbers = 'some'", ["not_offered", "not_offered"]),
        (-100, "", ["not_offered", "not_offered"]),
    ],
)
def test_numbers_are_declined_only_if_that_is_declared(largest, declared, kinds, kernel_file):
    target = reference_target(kernel_file, DECLINES.format(largest=largest) + declared, is_hosted=False)
    special = X.copy()
    special[0, 0] = np.nan
    verdicts = [judge_call(target, call_on(target, x))[0] for x in (X, special)]
    assert [verdict.kind for verdict in verdicts] == kinds
    assert {verdict.rule for verdict in verdicts if verdict.kind == "defect"} <= {"declined_numbers"}


def test_sizes_go_beyond_what_a_kernel_of_triton_is_launched_with(monkeypatch):
    """In a host, which may say anything of that."""
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    names = "conformance.tuned_kernels:tripled", "conformance.tuned_kernels:triple"

    def first_sizes(modes):
        """Of the first batches of the largest axis."""
        target = loaded_kernel(*names, "f32[2,5]", is_hosted=True)
        stream = TargetStream.of(target, Selection(modes=modes), 0)
        largest = {max(case.problem.shapes[0]) for number in range(9) for case in stream.batch(number)}
        return target.observed(), largest

    assert first_sizes(("value",))[0] == ()  # nothing was launched when sizes were chosen
    seen, sizes = first_sizes(("value", "vjp"))
    assert seen == (48,)
    assert 49 in sizes
    monkeypatch.setattr(
        KernelHost, "launched", lambda _: ["a", -4, 4, 1 << 70, True, [9], 9.0, 16, 11, 12, 2048, 3000, 8]
    )
    assert first_sizes(("value", "vjp"))[0] == (2048, 16, 12, 11)


@pytest.mark.exhaustive
def test_each_configuration_of_triton_is_judged_on_some_sizes(monkeypatch):
    """Which one is chosen by the sizes alone, without a time; and what is added up while it is tuned shows."""
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")

    def results(name, sizes):
        one = KernelHost(f"conformance.tuned_kernels:{name}")
        one.library = "torch"
        try:
            return [HostedFunction(one, "", None)(np.ones(size, np.float32)).tolist() for size in sizes]
        finally:
            one.close()

    doubled = results("doubled", range(1, 13))
    assert doubled == results("doubled", range(1, 13))
    assert {n for row in doubled for n in row} == {2, 3}  # one of three is wrong
    assert results("added", [5, 5]) == [[2] * 5, [1] * 5]
