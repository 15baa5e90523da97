"""From LLVM's intermediate code to the object code of this machine's processor, and what object code needs."""

from __future__ import annotations

import struct
from typing import Any

from gradspec.spec.errors import UnsupportedError

SPEED_LEVEL = 1
"""Kernels write their vectors and say what is inlined, so more gains nothing and takes three times as long."""


def object_code(intermediate: str) -> bytes:
    """The optimised object code of a module, for this processor and all it can do."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_default_triple()
    return compiled(intermediate, target, llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten())


def compiled(intermediate: str, target: Any, cpu: str, features: str = "") -> bytes:
    """The same for any processor."""
    import llvmlite.binding as llvm

    # Code for x86 that may lie anywhere in memory would refer to a table of addresses that only a linker makes.
    reloc = "static" if target.triple.startswith("x86") else "pic"
    machine = target.create_target_machine(cpu=cpu, features=features, opt=2, reloc=reloc, jit=True)
    module = llvm.parse_assembly(intermediate)
    module.triple, module.data_layout = machine.triple, str(machine.target_data)
    module.verify()
    _optimise(llvm, module, machine)
    code: bytes = machine.emit_object(module)
    return code


def _optimise(llvm: Any, module: Any, machine: Any) -> None:
    """Inline what is marked, simplify each function by itself, and drop the parameters that none of its code needs, as
    shifts where no winner is kept. Nothing that would round otherwise is done."""
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=SPEED_LEVEL))
    inlining = llvm.create_new_module_pass_manager()
    inlining.add_always_inliner_pass()
    inlining.add_global_dead_code_eliminate_pass()
    inlining.run(module, builder)
    simplification = builder.getFunctionPassManager()
    for function in module.functions:
        if not function.is_declaration:
            simplification.run(function, builder)
    parameters = llvm.create_new_module_pass_manager()
    parameters.add_dead_arg_elimination_pass()
    parameters.run(module, builder)


# --- symbols ---------------------------------------------------------------------------------------------------------


def undefined_symbols(code: bytes) -> set[str]:
    """The names that an object file uses and does not define."""
    if code.startswith(b"\x7fELF\x02\x01"):
        return _undefined_in_elf(code)
    if code.startswith(b"\xcf\xfa\xed\xfe"):
        return _undefined_in_mach_o(code)
    raise UnsupportedError(
        f"compiled kernels are 64-bit ELF or Mach-O files (Linux, macOS), and this one begins with {code[:4].hex()}; "
        'use backend="numpy"'
    )


def _undefined_in_elf(code: bytes) -> set[str]:
    """A symbol is (name, info, other, section, value, size); section 0 is elsewhere, and the first one has no name."""
    (start,) = struct.unpack_from("<Q", code, 40)
    size, count = struct.unpack_from("<HH", code, 58)
    sections = [struct.unpack_from("<IIQQQQII", code, start + size * i) for i in range(count)]
    undefined = set()
    for _, kind, _, _, offset, length, link, _ in sections:
        if kind == 2:
            symbols = struct.iter_unpack("<IBBHQQ", code[offset : offset + length])
            names = sections[link][4]
            undefined |= {_text(code, names + name) for name, _, _, section, _, _ in symbols if name and section == 0}
    return undefined


def _undefined_in_mach_o(code: bytes) -> set[str]:
    """A symbol is (name, type, section, description, value); type 1 is external and elsewhere, unless it has a size."""
    command, (count,) = 32, struct.unpack_from("<I", code, 16)
    undefined = set()
    for _ in range(count):
        kind, size = struct.unpack_from("<II", code, command)
        if kind == 2:
            offset, number, names = struct.unpack_from("<III", code, command + 8)
            symbols = struct.iter_unpack("<IBBHQ", code[offset : offset + 16 * number])
            undefined |= {_text(code, names + name) for name, kind, _, _, value in symbols if kind == 1 and value == 0}
        command += size
    return {name.removeprefix("_") for name in undefined}


def _text(code: bytes, start: int) -> str:
    return code[start : code.index(b"\0", start)].decode()
