"""What building and installing do besides copying: write the stubs, which are not kept in the repository."""

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class StubsHook(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        sys.path[:0] = [str(Path(self.root, folder)) for folder in ("src", "tools")]
        import stubs

        stubs.write()
