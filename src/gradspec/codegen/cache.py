"""Compiled kernels, kept in memory and on disk.

A kernel is machine code behind one signature,
``void kernel(const int64_t *args, intptr_t lo, intptr_t hi, char *workspace)``.
It is compiled once per machine, stored as object code, and from then on loaded: a process that finds its kernels on
disk imports neither their sources nor what translates them.

A kernel is named by its module and its name there, such as ``"max:f32"``.

A stored kernel is one file: a line with the format's name and the SHA-256 of all that follows, a line of JSON, and the
object code. It is loaded only if the digest is right, the JSON says exactly what this process would write (sources,
compiler, CPU), the file belongs to this user and nobody else may write to it, and every function the code calls is
known; otherwise the kernel is compiled again and the file replaced. A directory that cannot be read or written costs
time, never a result.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import importlib
import importlib.util
import json
import math
import os
import re
import secrets
import stat
import threading
from collections.abc import Callable, Collection, Iterable
from functools import cache
from pathlib import Path
from typing import Any

from gradspec.codegen.objects import object_code, undefined_symbols
from gradspec.spec.errors import UnsupportedError

Kernel = Callable[[int, int, int, int], None]

FORMAT = b"gradspec kernel 2"
ENTRY = "kernel"
LARGEST = 1 << 28  # bytes; no kernel comes near, and nothing larger is read
KERNEL_TYPE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_ssize_t, ctypes.c_void_p)

_LOADED: dict[tuple[str, str], Kernel] = {}
_ENGINES: list[Any] = []  # they own the machine code of the kernels
_LOCK = threading.RLock()  # held while anything is loaded or compiled: LLVM does one thing at a time anyway
_compilations = 0


def kernel(source: str, name: str) -> Kernel:
    """The kernel ``name`` of the module ``source``: from memory, from disk, or compiled now.

    The module has a function ``build(name)`` that gives LLVM's intermediate code, in which the kernel is called
    ``kernel``. It is imported only when something must be compiled. The result is called with addresses and bounds,
    and without the GIL.
    """
    found = _LOADED.get((source, name))
    return found if found is not None else _load_or_compile(source, name)


def compilations() -> int:
    """How many kernels this process has compiled; those loaded from disk do not count.

    >>> compilations() >= 0
    True
    """
    return _compilations


def cache_directory() -> Path | None:
    """Where kernels are stored, or None where they are not.

    ``GRADSPEC_CACHE_DIR`` names the directory (empty or ``off``: none); without it, it is ``gradspec`` in the user's
    cache directory.

    >>> import os
    >>> os.environ["GRADSPEC_CACHE_DIR"] = "off"
    >>> print(cache_directory())
    None
    >>> del os.environ["GRADSPEC_CACHE_DIR"]
    """
    chosen = os.environ.get("GRADSPEC_CACHE_DIR")
    if chosen is not None:
        return None if chosen.lower() in {"", "off"} else Path(os.path.abspath(os.path.expanduser(chosen)))
    base = os.environ.get("XDG_CACHE_HOME", "")
    base = base if os.path.isabs(base) else os.path.expanduser("~/.cache")
    return Path(base) / "gradspec" if os.path.isabs(base) else None


def _load_or_compile(source: str, name: str) -> Kernel:
    with _LOCK:
        if (source, name) not in _LOADED:
            identity = _identity(source, name)
            path = _path(identity)
            loaded = _load(_read(path), identity)
            if loaded is None:
                entry = _compile(identity)
                _store(path, entry)
                loaded = _load(entry, identity)
                assert loaded is not None, "what was compiled just now loads"
            _LOADED[source, name] = loaded
        return _LOADED[source, name]


# --- what a kernel depends on ----------------------------------------------------------------------------------------


def _identity(source: str, name: str) -> dict[str, str]:
    """Everything that the machine code of a kernel depends on."""
    return {"source": source, "kernel": name, "sources": _sources(source), **_compiler()}


TRANSLATION = ("gradspec.codegen.translation", "gradspec.codegen.objects")
_IMPORT = re.compile(r"^(?:from ([\w.]+) import (?:\(([^)]*)\)|(.*))|import ([\w.]+))", re.MULTILINE)


@cache
def _sources(source: str) -> str:
    """The digest of all that a kernel is made of: its module and what that imports, and what translates and compiles.

    Files that cannot be read, in an archive, might be any.
    """
    digest, seen, pending = hashlib.sha256(), set[str](), [source, *TRANSLATION]
    while pending:
        module = pending.pop()
        file = _file(module)
        if file is None or module in seen:
            continue
        seen.add(module)
        content = file.read_bytes()
        digest.update(f"{module} {len(content)}\n".encode() + content)
        pending += _imports(content.decode(), {source.partition(".")[0], "gradspec"})
    return digest.hexdigest() if source in seen else secrets.token_hex()


def _imports(text: str, packages: Collection[str]) -> list[str]:
    """The modules of these packages that a module imports, in their order; names that are not modules do no harm."""
    found = []
    for package, several, few, module in _IMPORT.findall(text):
        if (package or module).partition(".")[0] in packages:
            names = re.findall(r"\w+", several or few)
            found += [package or module, *(f"{package}.{name}" for name in names)]
    return found


def _file(module: str) -> Path | None:
    """Where a module's source lies; packages above it are not imported for this."""
    top, *rest = module.split(".")
    spec = importlib.util.find_spec(top)
    for folder in [] if spec is None else spec.submodule_search_locations or [os.path.dirname(spec.origin or "")]:
        path = Path(folder, *rest) if spec.submodule_search_locations else Path(folder, top)  # type: ignore[union-attr]
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            if file.is_file():
                return file
    return None


@cache
def _compiler() -> dict[str, str]:
    """The compiler and the processor it compiles for."""
    import llvmlite
    import llvmlite.binding as llvm

    features = llvm.get_host_cpu_features()
    return {
        "llvmlite": llvmlite.__version__,
        "target": llvm.get_process_triple(),
        "cpu": llvm.get_host_cpu_name(),
        "features": ",".join(name for name in sorted(features) if features[name]),
    }


def _path(identity: dict[str, str]) -> Path | None:
    """One file per kernel, compiler and processor; new sources replace it."""
    directory = cache_directory()
    if directory is None:
        return None
    described = f"{identity['source'].rpartition('.')[2]}-{identity['kernel']}"
    stem = re.sub(r"[^A-Za-z0-9_]+", "-", described).strip("-")[:80]
    told_apart = json.dumps({key: identity[key] for key in sorted(identity) if key != "sources"})
    return directory / f"{stem}-{hashlib.sha256(told_apart.encode()).hexdigest()[:16]}.kernel"


# --- on disk ---------------------------------------------------------------------------------------------------------


def _read(path: Path | None) -> bytes | None:
    """The file's bytes, if it is an ordinary file that only this user can have written."""
    if path is None:
        return None
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        with open(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            return file.read() if _is_ours(status) and status.st_size <= LARGEST else None
    except OSError:
        return None


def _is_ours(status: os.stat_result) -> bool:
    if not stat.S_ISREG(status.st_mode):
        return False
    if not hasattr(os, "geteuid"):
        return True
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _store(path: Path | None, entry: bytes) -> None:
    """All of the entry or nothing: it is written under another name first. What cannot be stored is not."""
    if path is None:
        return
    unfinished = path.with_name(f"{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(unfinished, "xb", opener=_private) as file:
            file.write(entry)
        os.replace(unfinished, path)
    except BaseException as failure:
        with contextlib.suppress(OSError):
            os.unlink(unfinished)
        if not isinstance(failure, OSError):
            raise


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _entry(header: dict[str, object], code: bytes) -> bytes:
    rest = json.dumps(header).encode() + b"\n" + code
    return b"%s %s\n%s" % (FORMAT, hashlib.sha256(rest).hexdigest().encode(), rest)


def _verify_entry(entry: bytes, identity: dict[str, str]) -> tuple[dict[str, Any], bytes] | None:
    """The header and the code of an entry that is whole and means this kernel."""
    first, _, rest = entry.partition(b"\n")
    if first != b"%s %s" % (FORMAT, hashlib.sha256(rest).hexdigest().encode()):
        return None
    line, _, code = rest.partition(b"\n")
    header = json.loads(line)
    return (header, code) if header["identity"] == identity else None


# --- machine code ----------------------------------------------------------------------------------------------------


def _compile(identity: dict[str, str]) -> bytes:
    """The entry of a kernel, compiled from its source."""
    global _compilations
    source, name = identity["source"], identity["kernel"]
    code = object_code(importlib.import_module(source).build(name))
    _compilations += 1
    needs = sorted(undefined_symbols(code))
    unknown = [symbol for symbol in needs if _address(symbol) is None]
    if unknown:
        raise UnsupportedError(
            f"kernel {name!r} of {source} calls {', '.join(unknown)}, which this process does not have; "
            "kernels may call the C library and allocate nothing"
        )
    return _entry({"identity": identity, "needs": needs}, code)


def _load(entry: bytes | None, identity: dict[str, str]) -> Kernel | None:
    """The function in an entry; None if it must be compiled anew."""
    checked = None if entry is None else _verify_entry(entry, identity)
    if checked is None:
        return None
    header, code = checked
    if not _provide(header["needs"]):
        return None
    engine = _engine()
    engine.add_object_file(_llvm().ObjectFileRef.from_data(code))
    engine.finalize_object()
    address = engine.get_function_address(ENTRY)
    if not address:
        return None
    _ENGINES.append(engine)
    return KERNEL_TYPE(address)


def _engine() -> Any:
    """An empty engine: one per kernel, so that equal names in two kernels are two things.

    It cannot be made without a module, and would spend a millisecond on compiling an empty one.
    """
    llvm = _llvm()
    module = llvm.parse_assembly("")
    machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.remove_module(module)
    return engine


@cache
def _llvm() -> Any:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm


def _provide(symbols: Iterable[str]) -> bool:
    """Make every symbol known to LLVM, which aborts the process for one that is not. False if one is unknown.

    What LLVM knows already stays as it is: it may belong to someone else.
    """
    llvm = _llvm()
    addresses = {symbol: _address(symbol) for symbol in symbols}
    for symbol, address in addresses.items():
        if address is not None and llvm.address_of_symbol(symbol) is None:
            llvm.add_symbol(symbol, address)
    return None not in addresses.values()


def _address(symbol: str) -> int | None:
    """Where a function that a kernel calls is: in the C library, the mathematical one, the compiler's, or Python."""
    for library in _libraries():
        with contextlib.suppress(AttributeError):
            return ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value
    return None


@cache
def _libraries() -> tuple[ctypes.CDLL, ...]:
    found: list[ctypes.CDLL] = [ctypes.pythonapi]
    for name in (None, math.__dict__.get("__file__"), "libm.so.6", "libgcc_s.so.1"):
        with contextlib.suppress(OSError, TypeError):
            found.append(ctypes.CDLL(name))
    return tuple(found)


# --- fork ------------------------------------------------------------------------------------------------------------


def _before_fork() -> None:
    """A child forked in the middle of a compilation would find LLVM's locks held for ever."""
    _LOCK.acquire(timeout=10)


def _after_fork_in_parent() -> None:
    with contextlib.suppress(RuntimeError):  # the wait may have ended without the lock
        _LOCK.release()


def _after_fork_in_child() -> None:
    global _LOCK
    _LOCK = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
