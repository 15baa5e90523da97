"""The first program of a process that kernels are called in: it gives up what they have no need of.

It is read on standard input, with a socket in the place of standard output, and is not named on the command line. It
imports the libraries that it is told and no kernel: copies of it are the hosts, each of which contains itself before it
runs the program that was sent.
"""

from __future__ import annotations

import ctypes
import errno
import glob
import importlib
import marshal
import os
import re
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

LONGEST = 1 << 17
"""Bytes of a packet."""
LOOKING, LAST = 200, 1 << 12
"""Milliseconds between two looks at the memory of a kernel's processes, and bytes of what it printed last."""
PROCESSES = 1024 + 16 * (os.cpu_count() or 1)
"""Of a kernel, threads among them, at most."""
PR_SET_PDEATHSIG, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, PR_SET_NO_NEW_PRIVS = 1, 22, 2, 38
_WRITES = sum(1 << bit for bit in (1, 4, 5, 6, 7, 8, 9, 10, 11, 12))
_REFER, _TRUNCATE, _WRITE_FILE = 1 << 13, 1 << 14, 1 << 1
DEVICES = ("null", "zero", "full", "random", "urandom", "nvidia*", "kfd", "dri/*", "dxg")
"""Of ``/dev``, what may be written to: no terminal and no disk, which a read-only file system does not keep."""
_CALLS = {
    "x86_64": (0xC000003E, 41, 56, 319, 248, 249, 250, 272, 308),
    "aarch64": (0xC00000B7, 198, 220, 279, 217, 218, 219, 97, 268),
}
"""By the machine, its number in filters, and those of ``socket``, ``clone``, ``memfd_create``, ``add_key``,
``request_key``, ``keyctl``, ``unshare`` and ``setns``."""
_IO_URING, _CLONE3, _NEW_USER, _AF_UNIX, _AF_VSOCK = 425, 435, 0x10000000, 1, 40


def contain(control: int, scratch: str, memory: int) -> Iterator[str]:
    """Give up what a kernel has no need of, and say what that is. This process goes on as a child of itself where it
    can have namespaces of its own: with the first process of that, all end that it started.
    """
    import resource

    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # where memory ends, a kernel does before its judge
    libc = ctypes.CDLL(None, use_errno=True)
    has_namespaces = _unshare(libc, control, scratch)
    if has_namespaces:
        yield "no network, its own processes, a scratch folder of its own"
    limits = {"CORE": 0, "FSIZE": 1 << 32, "NOFILE": 4096, "CPU": 4 * 3600, "DATA": memory, "NPROC": PROCESSES}
    for name, most in limits.items():
        number = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(number)[1]
        if most or name == "CORE":
            least = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(number, (least, least))
    is_counted = (has_namespaces and _limit_processes()) or os.getuid() != 0  # Linux does not count root's
    told = ["memory"] * bool(memory) + ["processes"] * is_counted + ["open files", "file sizes", "processor time"]
    yield f"limits ({', '.join(told)})"
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0:
        yield "no new privileges"
        has_gpu = os.path.exists("/dev/nvidiactl")  # whose driver makes sockets of its own
        if _filter(libc, () if has_gpu else (_AF_UNIX, _AF_VSOCK)):
            others = "" if has_gpu else "UNIX sockets, nameless files, "
            yield f"no {others}session keys, further namespaces or io_uring"
    writable = {scratch: _WRITES, "/dev/shm": _WRITES}
    writable |= {place: _WRITE_FILE for name in DEVICES for place in glob.glob(f"/dev/{name}")}
    if os.path.exists("/dev/nvidiactl") and has_namespaces and _keep_settings(libc):
        writable["/proc"] = _WRITE_FILE  # CUDA names its threads there, and does not start where it cannot
    if words := _landlock(libc, writable):
        yield words
    may_read_all = struct.pack("6I", *(1 << 2, 1 << 2, 0, 0, 0, 0))
    libc.capset(struct.pack("Ii", 0x20080522, 0), may_read_all)


def _unshare(libc: Any, control: int, scratch: str) -> bool:
    """Go on in new namespaces of users, processes, networks, mounts and System V's memory; False where not allowed."""
    user, group, private, quiet = os.getuid(), os.getgid(), 0x4000 | 0x40000, 0x2 | 0x4
    if sys.platform != "linux" or libc.unshare(0x10000000 | 0x20000000 | 0x40000000 | 0x08000000 | 0x20000) != 0:
        return False
    try:
        for file, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{file}", "w") as written:
                written.write(text)
        libc.mount(b"none", b"/", None, ctypes.c_ulong(private), None)
        read_only = struct.pack("4Q", 1, 0, 0, 0)  # for Landlock minds neither rights of files nor their times
        libc.syscall(442, -100, b"/", 0x8000, read_only, len(read_only))
        for folder, most in ((scratch, b"2g"), ("/dev/shm", b"1g")):  # nor is anything left there for another process
            libc.mount(b"tmpfs", folder.encode(), b"tmpfs", ctypes.c_ulong(quiet), b"mode=700,size=" + most)
    finally:
        _go_on_as_child(libc, control)
    libc.mount(b"proc", b"/proc", b"proc", ctypes.c_ulong(quiet | 0x8), None)  # which knows the new processes alone
    return True


def _limit_processes() -> bool:
    """Limit the processes and threads of this namespace; False where Linux has one number for the whole system."""
    version = re.match(r"(\d+)\.(\d+)", os.uname().release)
    if version is None or (int(version[1]), int(version[2])) < (6, 14):
        return False
    with suppress(OSError), open("/proc/sys/kernel/pid_max", "w") as file:
        file.write(str(PROCESSES))
        return True
    return False


def _keep_settings(libc: Any) -> bool:
    """Let nobody here write what the whole system reads in ``/proc``; False where that is not allowed."""
    bind, unchanged = 0x1000, 0x1 | 0x2 | 0x4 | 0x8 | 0x20 | 0x1000
    places = [name for name in ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus") if os.path.exists(name)]
    return not any(
        libc.mount(place.encode(), place.encode(), None, ctypes.c_ulong(flags), None)
        for place in places
        for flags in (bind, unchanged)
    )


def _go_on_as_child(libc: Any, control: int) -> None:
    """Go on in the second process of a namespace; the first, and this one, wait for its end and end in the same way."""
    life = os.dup(control)
    read, write = os.pipe()
    first = os.fork()
    if first:
        os.close(write)
        wait_or_kill(life, first)
        told = os.read(read, 4)
        end_like(struct.unpack("i", told)[0] if len(told) == 4 else signal.SIGKILL)
    os.close(read)
    second = os.fork()
    if not second:
        os.close(write)
        os.close(life)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        return
    os.close(life)
    os.close(control)
    while True:
        ended, status = os.wait()
        if ended == second:
            with suppress(BrokenPipeError):
                os.write(write, struct.pack("i", status))
            os._exit(0)


def wait_or_kill(life: int, child: int, memory: int = 0, printed: int = -1) -> int:
    """The status that a child ends with; it is killed when nobody is at the other end any longer, and with all that it
    has started when they hold more than so much memory. Of what it has ``printed`` the last is passed on.
    """
    poll, ending, last, looked = select.poll(), os.pidfd_open(child), b"", time.monotonic()
    poll.register(life, 0)
    poll.register(ending, select.POLLIN)
    if printed >= 0:
        poll.register(printed, select.POLLIN)
    while not (events := {descriptor for descriptor, _ in poll.poll(LOOKING if memory else None)}) - {printed}:
        if events:
            said = os.read(printed, LONGEST)
            last = (last + said)[-LAST:]
            if not said:
                poll.unregister(printed)
        if memory and time.monotonic() > looked + LOOKING / 1000:
            looked = time.monotonic()
            for process in _holders(child, memory):
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
    if ending not in events:
        os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    if printed >= 0:
        os.set_blocking(printed, False)
        with suppress(BlockingIOError):  # somebody may still have the other end, and is not heard to its end
            last = (last + os.read(printed, LONGEST))[-LAST:]
        os.write(2, last)
    return status


def _holders(first: int, memory: int) -> list[int]:
    """A process and all that descend from it, if they hold more than so much memory; none otherwise."""
    processes, pages = [first], 0
    for process in processes:
        with suppress(OSError):  # it has ended
            for children in glob.glob(f"/proc/{process}/task/*/children"):
                processes += map(int, _read(children).split())
            pages += int(_read(f"/proc/{process}/statm").split()[1])
    if pages * os.sysconf("SC_PAGE_SIZE") <= memory:  # which counts what they share once for each
        return []
    held = 0
    for process in processes:
        with suppress(OSError):
            found = re.findall(r"^(?:Pss|SwapPss): +(\d+)", _read(f"/proc/{process}/smaps_rollup"), re.MULTILINE)
            held += 1024 * sum(map(int, found))
    return processes if held > memory else []


def _read(file: str) -> str:
    with open(file) as opened:
        return opened.read()


def end_like(status: int) -> None:
    """End as a process did that ended with a status of ``waitpid``."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if os.WIFSIGNALED(status):
        if os.WTERMSIG(status) not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
        time.sleep(1)
    os._exit(os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 1)


def _filter(libc: Any, families: Sequence[int]) -> bool:
    """Refuse what no namespace keeps: sockets of families that a file names or the host of a virtual machine listens
    on and, beside them, files without a name, whose memory no limit counts; keys of the session, other namespaces, and
    rings, which make system calls that no filter sees; False where that is not allowed. No filter sees the flags of
    ``clone3`` either: libraries use ``clone`` where there is none.
    """
    if os.uname().machine not in _CALLS:
        return False
    machine, open_socket, clone, make_file, *others = _CALLS[os.uname().machine]
    load, equal, at_least, has_bits = 0x20, 0x15, 0x35, 0x45
    refuse, unknown, allow = ((0x06, 0, 0, end) for end in (0x50000 | errno.EPERM, 0x50000 | errno.ENOSYS, 0x7FFF0000))
    rows = [(load, 0, 0, 4), (equal, 1, 0, machine), refuse, (load, 0, 0, 0), (at_least, 0, 1, 1 << 30), refuse]
    for number in (*others, _IO_URING, *[make_file] * bool(families)):
        rows += [(equal, 0, 1, number), refuse]
    rows += [(equal, 0, 1, _CLONE3), unknown]
    rows += [(equal, 0, 4, clone), (load, 0, 0, 16), (has_bits, 0, 1, _NEW_USER), refuse, allow]
    rows += [(equal, 1, 0, open_socket), allow, (load, 0, 0, 16)]
    for family in families:
        rows += [(equal, 0, 1, family), refuse]
    rows.append(allow)
    program = b"".join(struct.pack("HBBI", *row) for row in rows)
    held = ctypes.create_string_buffer(program, len(program))
    told = struct.pack("HxxxxxxP", len(rows), ctypes.addressof(held))
    return bool(libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, told, 0, 0) == 0)


def _landlock(libc: Any, writable: Mapping[str, int]) -> str:
    """Let some files and files in some folders alone be written, and say so; nothing where Linux has no Landlock."""
    version = libc.syscall(444, None, 0, 1) if sys.platform == "linux" else -1
    if version < 1:
        return ""
    own = _WRITES | _REFER * (version > 1) | _TRUNCATE * (version > 2)
    asked = struct.pack("QQQ", own, 3, 3)[: 24 if version > 5 else 16 if version > 3 else 8]
    rules = libc.syscall(444, asked, len(asked), 0)
    if rules < 0:
        return ""
    for name, rights in writable.items():
        if not os.path.exists(name):
            continue
        place = os.open(name, os.O_PATH | os.O_CLOEXEC)
        rights |= own & (_TRUNCATE | (_REFER if rights == _WRITES else 0))
        libc.syscall(445, rules, 1, struct.pack("=Qi", rights, place), 0)
        os.close(place)
    ended = libc.syscall(446, rules, 0)
    os.close(rules)
    return "" if ended else "a file system that is read-only outside of the scratch folder"


def main() -> None:
    """Import libraries, and become the host of every kernel that is asked for, in a copy of this process each."""
    control = socket.socket(fileno=os.dup(1))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    config = marshal.loads(control.recv(LONGEST))
    sys.path[:] = config["path"]
    program: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(config["program"], "<host>", "exec"), program)
    for library in config["libraries"]:
        with suppress(ImportError):
            importlib.import_module(library)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, LONGEST, 2)
        if not data:
            return
        if program["fork"]() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            control.close()
            _host(program["main"], marshal.loads(data), *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _host(run: Callable[..., None], config: Mapping[str, Any], channel: int, status: int) -> None:
    """Be the host of a kernel in a child, and tell what that ended with; it ends when nobody is there to be told."""
    child = os.fork()
    if child:
        os.close(channel)
        told = struct.pack("i", wait_or_kill(status, child, config["total"]))
        with suppress(BrokenPipeError):
            os.write(status, told)
        os._exit(0)
    os.close(status)
    os.setsid()
    sys.path[:] = config["path"]
    control = socket.socket(fileno=channel)
    run(control, list(contain(channel, config["scratch"], config["memory"])), config, wait_or_kill)
    os._exit(0)


if __name__ == "__main__":
    main()
