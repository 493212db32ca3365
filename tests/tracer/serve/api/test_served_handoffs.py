"""What the api and the pages say of hand-offs between two engines."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from history import history
from wire import encoded

from kvtrail.dashboard.content import fleet
from kvtrail.tracer.events.events import Event
from kvtrail.tracer.events.semconv import POOL_BLOCKS
from kvtrail.tracer.serve.api.routes import application
from kvtrail.tracer.serve.metrics.metrics import Metrics
from kvtrail.tracer.serve.receive.pipeline import Pipeline
from kvtrail.tracer.store.sqlite.store import SqliteReader, SqliteWriter

PREFILL = """
    start 600
    L 600 c0 -> 0
    A 0
    S 0+600
    gives h1 600/600 of a
    end delayed length_capped handoff computed 600 lease 30
"""
DECODE = """
    <d> start 600
    <d> takes h1 600/600 of a
    <d> L 600 c0 -> 599 async
    <d> A 599
    wait 2
"""


class Served:
    """The api of a tracer in this process."""

    def __init__(self, folder: Path) -> None:
        store = folder / "s.db"
        metrics = Metrics()
        self.pipeline = Pipeline(SqliteWriter(store), metrics, grace_ns=0)
        self._client = TestClient(application(self.pipeline, SqliteReader(store), metrics))

    def hear(self, events: Sequence[Event]) -> None:
        """Take the events of several engines."""
        for _, part in itertools.groupby(events, key=lambda event: event.recorder):
            self.pipeline.ingest(encoded(list(part), {POOL_BLOCKS.key: 50}), transport="grpc")
        self.pipeline.tidy()

    def get(self, path: str, **query: str) -> Any:
        return self._client.get(path, params=query).raise_for_status().json()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    made = Served(tmp_path)
    yield made
    made.pipeline.close()


def nixl(text: str) -> list[Event]:
    return history(text, connector="NixlConnector")


def test_the_fleet_shows_who_gives_to_whom_and_what_became_of_it(served: Served) -> None:
    served.hear(nixl(f"{PREFILL}{DECODE}<d> R\nread\nsent"))
    answer = served.get("/api/fleet")
    (pair,) = answer["pairs"]
    assert pair["mean_wait_ns"] == pytest.approx(2e9, rel=0.1)
    assert fleet.pair_rows(answer["pairs"]) == [
        {
            "Prefills": pair["giver_name"],
            "Decodes": pair["taker_name"],
            "Hand-offs": 1,
            "Tokens": 600,
            "Loaded": 1,
            "Failed": None,
            "Not loaded": None,
            "Leases expired": None,
            "Mean wait": "2.00 s",
        }
    ]
    assert (pair["giver"], pair["taker"], answer["kept"]) == ("engine", "d", [])


@pytest.mark.parametrize("is_claimed_first", [True, False])
def test_a_lease_that_ran_out_is_that_of_the_pair_whichever_side_is_heard_first(
    served: Served, is_claimed_first: bool
) -> None:
    events = nixl(f"{PREFILL}{DECODE}wait 30\nfreed expired\nsent")
    sides = [[each for each in events if (each.engine == "d") is is_decode] for is_decode in (True, False)]
    for side in sides if is_claimed_first else sides[::-1]:
        served.hear(side)
    (pair,) = served.get("/api/fleet")["pairs"]
    assert (pair["taker"], pair["handoffs"], pair["outcomes"]) == ("d", 1, {"expired": 1})


def test_a_lease_that_ran_out_with_nobody_there_is_nobodys(served: Served) -> None:
    served.hear(nixl(f"{PREFILL}wait 30\nfreed expired\nsent"))
    answer = served.get("/api/fleet")
    assert [(each["giver"], each["taker"], each["outcomes"]) for each in answer["pairs"]] == [
        ("engine", None, {"expired": 1})
    ]
    (row,) = fleet.pair_rows(answer["pairs"])
    assert (row["Decodes"], row["Leases expired"]) == ("nobody", 1)


@pytest.mark.parametrize(
    ("decode", "kept_for", "words"),
    [
        ("", None, "nobody has claimed it"),
        (DECODE, "d", "a request that is to load it"),
        (f"{DECODE}<d> R", "d", "loaded; to be given back"),
        (f"{DECODE}<d> end aborted", "d", "nobody: its request has ended"),
    ],
)
def test_the_fleet_shows_what_an_engine_keeps_for_whom(
    served: Served, decode: str, kept_for: str | None, words: str
) -> None:
    served.hear(nixl(PREFILL + decode))
    answer = served.get("/api/fleet")
    (kept,) = answer["kept"]
    (row,) = fleet.kept_rows(answer["kept"])
    assert (kept["engine"], kept["taker"], kept["tokens"]) == ("engine", kept_for, 600)
    assert (row["Which is"], row["Blocks"], row["Of its pool"]) == (words, 19, 0.38)
    is_for_nobody = words.startswith("nobody")
    assert bool(fleet.unfetched(answer["kept"])) is is_for_nobody, "which is more than a quarter of the pool"
