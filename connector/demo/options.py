"""The options of `kvtrail demo`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

OPT, HYBRID = "opt", "hybrid"
"""The tiny models."""
STALE_HANDOFF = "stale-handoff"
"""The bug of the demo of two engines, and the rule that finds it."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of `kvtrail demo`; see its --help."""

    once: bool
    pd: bool
    model: str
    bug: str | None
    guard: str
    folder: Path
    grpc_port: int
    http_port: int
    dashboard_port: int
    metrics_port: int | None

    @property
    def api(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"

    @property
    def page(self) -> str:
        return f"http://127.0.0.1:{self.dashboard_port}"

    @property
    def is_hybrid(self) -> bool:
        """Whether the model has several KV cache groups."""
        return self.model == HYBRID

    @property
    def is_safe(self) -> bool:
        """Whether the engine must neither die nor generate other tokens than one without a connector."""
        return not self.bug or self.guard == "heal"
