"""The launches of engines in ClickHouse: how each went, as all tracers know together."""

from __future__ import annotations

from kvtrail.tracer.liveness.engine import CausingFinding, EngineState, Launch, agreed
from kvtrail.tracer.store.clickhouse.database import Database, from_text, to_text

FIELDS = ("engine", "launch", "state", "began_ns", "ended_ns", "ended_by", "lost")
"""The fields of a `Launch` that are columns."""


def settings_as_text(launch: Launch) -> bytes:
    """The settings as JSON; empty without any."""
    return to_text(launch.settings) if launch.settings else b""


def cause_as_text(launch: Launch) -> bytes:
    """The cause as JSON; empty without one."""
    return b"" if launch.cause is None else to_text(launch.cause)


class LaunchReader(Database):
    """The part of `Reader` that is about launches."""

    def launches(self, *, since_ns: int | None = None, until_ns: int | None = None) -> list[Launch]:
        reports: dict[tuple[str, str], list[Launch]] = {}
        for *about, cause, settings in self.query(
            f"SELECT {', '.join(FIELDS)}, cause, settings FROM kvtrail_launches FINAL"
        ):
            fields = dict(zip(FIELDS, about, strict=True))
            fields["state"] = EngineState(fields["state"])
            launch = Launch(
                **fields,
                cause=CausingFinding(**from_text(cause)) if cause else None,
                settings=from_text(settings) if settings else {},
            )
            reports.setdefault((launch.engine, launch.launch), []).append(launch)
        return [each for each in map(agreed, reports.values()) if _ended_within(each, since_ns, until_ns)]

    def heard(self) -> dict[str, int]:
        return dict(self.query("SELECT engine, toInt64(written) FROM kvtrail_engines FINAL"))


def _ended_within(launch: Launch, since_ns: int | None, until_ns: int | None) -> bool:
    if launch.ended_ns is None:
        return since_ns is None and until_ns is None
    return (since_ns is None or launch.ended_ns >= since_ns) and (until_ns is None or launch.ended_ns <= until_ns)
