"""How much the sidecar takes at a time. The defaults are meant for a process of 512 MiB."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

MIB = 2**20
MOST_REQUESTS = 25_000
"""Of vLLM, whose accounts are held: 9 KB each, whether they run or have ended lately."""
RETRY_S = 6
"""After how many seconds a sender is asked to try again. An exporter of OpenTelemetry's SDK for Python tries six times: so it
lasts 30 seconds where its own timeout is as long, and with its default of 10 seconds it still tries twice."""


def _limit(default: int, text: str) -> int:
    """An option of `kvtrail serve`, with its text."""
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True, slots=True)
class Limits:
    """The options of `kvtrail serve` that bound what it takes in."""

    max_request_mib: int = _limit(8, "MiB of one OTLP request, as it comes and unpacked.")
    max_waiting: int = _limit(
        256, "OTLP requests that may wait over each protocol; the sender of the next tries again."
    )
    max_waiting_mib: int = _limit(64, "MiB of bodies that may be received or wait over HTTP.")
    max_connections: int = _limit(500, "Connections over HTTP.")
    max_readers: int = _limit(200, "Readers of /api/tail at a time.")
    receive_seconds: int = _limit(30, "Seconds that a body may take to arrive, and a connection to ask for something.")

    @property
    def request_bytes(self) -> int:
        """The largest request."""
        return self.max_request_mib * MIB

    @property
    def waiting_bytes(self) -> int:
        """Of bodies."""
        return self.max_waiting_mib * MIB


DEFAULTS = Limits()


def texts() -> dict[str, str]:
    """What each option means, by its name."""
    return {each.name: each.metadata["help"] for each in fields(Limits)}
