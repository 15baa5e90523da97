"""From LLVM's intermediate code to the object code of this machine's processor."""

from __future__ import annotations

from typing import Any

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
    """Inline what is marked, then simplify each function by itself. Nothing that would round otherwise is done."""
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=SPEED_LEVEL))
    inlining = llvm.create_new_module_pass_manager()
    inlining.add_always_inliner_pass()
    inlining.add_global_dead_code_eliminate_pass()
    inlining.run(module, builder)
    simplification = builder.getFunctionPassManager()
    for function in module.functions:
        if not function.is_declaration:
            simplification.run(function, builder)
