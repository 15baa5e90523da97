"""From LLVM's intermediate code to the object code of this machine's processor."""

from __future__ import annotations

from typing import Any


def object_code(intermediate: str) -> bytes:
    """The optimised object code of a module, for this processor and all it can do."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = _machine(llvm)
    module = llvm.parse_assembly(intermediate)
    module.triple, module.data_layout = machine.triple, str(machine.target_data)
    module.verify()
    tuning = llvm.create_pipeline_tuning_options(speed_level=3)
    tuning.loop_unrolling = True  # vectors are written by hand
    builder = llvm.create_pass_builder(machine, tuning)
    builder.getModulePassManager().run(module, builder)
    code: bytes = machine.emit_object(module)
    return code


def _machine(llvm: Any) -> Any:
    features = llvm.get_host_cpu_features().flatten()
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(cpu=llvm.get_host_cpu_name(), features=features, opt=3, reloc="pic", jit=True)
