"""The process of a target on a device: it uses none itself, and judges in copies of itself that do.

A call that ends its copy's use of the device costs a copy, and not the start of Python and of a framework. It is asked,
and answers, as `worker` is. Where the device is in use as soon as the target is loaded, as by a module that looks for
GPUs when it is imported, no copy could use it, and this is a `worker`.
"""

from __future__ import annotations

import atexit
from collections.abc import Iterator
from typing import Any

from gradspec.conformance.campaign.isolated import DeviceLostError, Isolated
from gradspec.conformance.campaign.worker import Answering, TargetWorker, judged_messages, serve
from gradspec.conformance.model.case import CampaignSettings
from gradspec.conformance.model.target import Target
from gradspec.system.forking import CAN_FORK
from gradspec.system.processes import ProcessLostError, describe


class TemplateWorker:
    """Answers requests by copies of this process."""

    def __init__(self, target: Target, settings: CampaignSettings) -> None:
        self._copies = Isolated(settings, target, goes_on=True)
        atexit.register(self._copies.close)  # before the end of Python waits for all copies

    def answers(self, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
        try:
            if request["do"] == "judge":
                del request["do"]
                yield from judged_messages(self._copies, **request)
            else:
                yield self._copies.forwarded(request)
        except DeviceLostError as loss:
            yield {"poisoned": loss.what}
        except ProcessLostError as loss:
            yield {"failed": describe(loss)}
        except Exception as error:
            yield {"failed": str(error)}


def template_or_worker(target: Target, settings: CampaignSettings) -> Answering:
    can_be_copied = CAN_FORK and not target.device.is_in_use()
    return TemplateWorker(target, settings) if can_be_copied else TargetWorker(target, settings)


if __name__ == "__main__":
    serve(template_or_worker)
