"""What every part of a campaign must know to make the same cases and judge them alike: plain data."""

from __future__ import annotations

from dataclasses import dataclass, field

from gradspec.conformance.model.case import Selection

DEFAULT_SECONDS = 60.0
DEFAULT_TIMEOUT = 60.0


@dataclass(frozen=True)
class CampaignSettings:
    """A target by name, and what of it is judged.

    ``threads`` is how many each process may use, ``timeout`` how many seconds a case may take, ``path`` where user
    kernels are imported from, and ``token`` tells the campaign from others in the same process.
    """

    target: str
    seed: int = 0
    selection: Selection = field(default_factory=Selection)
    allow: tuple[str, ...] = ()
    threads: int = 1
    timeout: float = DEFAULT_TIMEOUT
    path: tuple[str, ...] = ()
    token: str = ""

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise ValueError(f"seed is {self.seed}; give a whole number that is not negative")
        if not self.timeout > 0:
            raise ValueError(f"timeout is {self.timeout:g}; give a positive number of seconds")
