"""Compiling with little optimisation: most of the time of the tests goes into it, and the programs run once."""

import jax

WANTED = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
}


def is_known(name, setting):
    """Whether this version's compiler has the option; they come and go."""
    try:
        jax.jit(lambda: 0, compiler_options={name: setting}).lower().compile()
    except jax.errors.JaxRuntimeError as error:
        if "No such compile option" not in str(error):
            raise
        return False
    return True


QUICK = {name: setting for name, setting in WANTED.items() if is_known(name, setting)}
