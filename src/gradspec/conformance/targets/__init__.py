"""The targets that are known by name, each in the folder of its library; nothing here imports one."""

from __future__ import annotations

from importlib import import_module

from gradspec.conformance.model.case import CampaignSettings
from gradspec.conformance.model.target import Target
from gradspec.interop.extras import require
from gradspec.system.hosting import CAN_HOST

TARGETS: dict[str, tuple[str, tuple[str, ...]]] = {
    "native": ("native.target:NativeTarget", ()),
    "torch": ("torch.target:TorchTarget", ("torch",)),
    "torch.compile": ("torch.target:TorchCompileTarget", ("torch",)),
    "torch:channels_last": ("torch.target:TorchChannelsLastTarget", ("torch",)),
    "to_torch": ("torch.target:ModuleTarget", ("torch",)),
    "jax": ("jax.target:JaxTarget", ("jax",)),
    "onnxruntime": ("onnx.target:OnnxRuntimeTarget", ("onnxruntime", "onnx")),
    "onnx.reference": ("onnx.target:OnnxReferenceTarget", ("onnx",)),
}
"""Where each is, and the packages that it needs."""


def target_of(settings: CampaignSettings) -> Target:
    """The target that a campaign is about, with what is declared of it."""
    device = import_module(f"{__name__}.devices").device_named(settings.device)
    asked, is_hosted = settings.reference, CAN_HOST and bool(device.in_host)
    hosted = is_hosted, None if device.is_host else 0
    if asked is None:
        target = target_named(settings.target, *hosted)
    else:
        kernel = import_module(f"{__name__}.reference.kernel")
        own = (asked.spec, asked.inputs, asked.params, asked.array)
        target = kernel.loaded_kernel(settings.target, *own, *hosted)
    declared = {"algorithm": settings.algorithm, "array": None if asked else settings.array}
    return target.declaring(**declared).within(settings.selection.domain).on(device)


def target_named(name: str, is_hosted: bool = False, memory: int | None = None) -> Target:
    """The target of this name, or of ``module:object``, which may be called in a process of its own.

    >>> target_named("native").name
    'native'
    """
    if name not in TARGETS:
        return import_module(f"{__name__}.user.target").loaded(name, is_hosted, memory)  # type: ignore[no-any-return]
    where, needs = TARGETS[name]
    for package in needs:
        require(package, f"gradspec check {name}")
    module, _, factory = where.partition(":")
    return getattr(import_module(f"{__name__}.{module}"), factory)()  # type: ignore[no-any-return]
