"""Whether a connector's own workers run here: a prompt is stored and loaded again, on KV caches in memory."""

from __future__ import annotations

from contextlib import suppress

from kvtrail.connector.known import has_other_writers, part_of
from kvtrail.connector.registration import resolve
from kvtrail.connector.simulate.check.connector_under_test import ConnectorUnderTest
from kvtrail.connector.simulate.run import Played, Unbuildable, play
from kvtrail.connector.simulate.scenario import Arrival, CachesReset, Scenario

NO_BYTES = "what they load changes no byte"
DIED = "they died in a rehearsal"
_TURNS = 4
REHEARSAL = Scenario(
    arrivals=tuple(Arrival(f"turn-{n}", (("head", 640), (f"tail-{n}", 40)), 2, 40 * n) for n in range(_TURNS)),
    resets=tuple(CachesReset(40 * n - 1) for n in range(1, _TURNS)),
    most_steps=400,
)
"""A prefix comes again and again; vLLM forgets it in between."""


def why_fake(tested: ConnectorUnderTest) -> tuple[str | None, Played | None]:
    """Why fake workers must stand in for the connector's own, None if its own do; and the rehearsal, if there was one.

    Raises:
        Unbuildable: the connector cannot be built even with fake workers.
    """
    with suppress(Exception):  # it cannot be imported: whoever plays says so
        cls = resolve(tested.configuration()["kv_connector"])
        if part_of(cls, "fake") is not None:
            return "kvtrail has a fake for what they talk to", None
        if has_other_writers(cls):
            return "what they load was computed elsewhere", None
    try:
        played = play(REHEARSAL, tested.configuration(), own_workers=True)
    except Unbuildable as refused:
        build(tested)
        return f"they cannot be made here ({str(refused).splitlines()[0]})", None
    if played.loads_read and not played.loads_copied:
        return NO_BYTES, played
    if played.error is not None and not played.loads_copied:
        return f"{DIED} ({played.error.splitlines()[0]})", played
    return None, played


def build(tested: ConnectorUnderTest) -> None:
    """Run it with fake workers and a model of one KV cache group.

    Raises:
        Unbuildable: the connector cannot be built at all.
    """
    play(REHEARSAL, tested.configuration())
