"""The online curve, beside the exact one of the same accesses."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from hashlib import blake2b
from math import sqrt
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from history import history
from saved import saved_of
from test_curve import curve_of, prefixes
from wire import encoded

from kvtrail.tracer.capacity import online_curve
from kvtrail.tracer.capacity.accesses import Access, wanted_of
from kvtrail.tracer.capacity.memory_curves import Curve, curve_of_measures, memory_curves
from kvtrail.tracer.capacity.online_curve import BEGUN, SAMPLED, STEPS, WANTED, OnlineMissRatioCurve
from kvtrail.tracer.events.events import Alloc, Lookup, RequestEnd, Reset, Schedule, Store
from kvtrail.tracer.events.spans import LATEST_NS
from kvtrail.tracer.ledger.facts import Breakdown, Copied, Ended, Ran
from kvtrail.tracer.savings.minute_sums import SavingsRow
from kvtrail.tracer.serve.metrics.metrics import Metrics
from kvtrail.tracer.serve.receive.pipeline import Pipeline
from kvtrail.tracer.store.sqlite.store import SqliteReader, SqliteWriter

CHUNK, BLOCK = 64, 32
Chain = list[bytes]


def chains(seed: int, count: int, *, salt: str = "", **shape: int) -> list[Chain]:
    """The block hashes of requests with prompts that branch like conversations; two blocks a chunk."""
    return [
        [blake2b(f"{salt}{key.hex()}/{half}".encode(), digest_size=8).digest() for key in access.keys for half in "ab"]
        for access in prefixes(seed, count, **shape)
        if access is not None
    ]


def admission(
    chain: Chain | None, *, request: str = "r", connector: str = "0", name: str = "OffloadConnector", blocks: int = 0
) -> Breakdown:
    common: dict[str, Any] = {
        "engine": "e", "recorder": "r", "sequence": 0, "connector": name, "connector_id": connector,
        "role": "scheduler", "start_ns": 1, "end_ns": 1, "request": request, "block_size": BLOCK, "chunk_size": CHUNK,
    }  # fmt: skip
    total = (blocks or len(chain or ())) * BLOCK + 1
    lookup = Lookup(**common, total=total, computed=0, returned=0)
    return Breakdown(Alloc(**common, total=total, allocated=0), lookup, [], chain, is_final=True)


def end(chain: Chain, *, first: int) -> RequestEnd:
    return RequestEnd(
        engine="e", recorder="r", sequence=1, start_ns=1, end_ns=2, request="r", computed=len(chain) * BLOCK,
        block_hashes=b"".join(chain[first:]), block_first=first,
    )  # fmt: skip


def step(computed: int, scheduled: int) -> Schedule:
    return Schedule(
        engine="e", recorder="r", sequence=2, start_ns=1, end_ns=2, request="r", computed=computed, scheduled=scheduled
    )


def reset(*, connector: str = "0", succeeded: bool | None = None) -> Reset:
    return Reset(
        engine="e", recorder="r", sequence=3, start_ns=1, end_ns=2, connector_id=connector, succeeded=succeeded
    )


def measured(online: OnlineMissRatioCurve, prompts: list[Chain]) -> Counter[str]:
    """The sums of all admissions."""
    sums: Counter[str] = Counter()
    for chain in prompts:
        sums += online.admitted(admission(chain))
        sums += online.enter(Ended(end(chain, first=len(chain)), ()))
    return sums


def exact(prompts: list[Chain]) -> Curve:
    """The same from the whole history."""
    accesses = []
    for chain in prompts:
        wanted = wanted_of(len(chain) // 2, CHUNK, computed=0, total=len(chain) * BLOCK + 1)
        accesses.append(Access(chain[1::2], wanted))
    return curve_of(accesses)


@pytest.mark.parametrize("seed", range(3))
def test_the_sums_are_exact_at_measured_capacities(seed: int) -> None:
    prompts = chains(seed, 1500)
    whole, kept = exact(prompts), curve_of_measures(measured(OnlineMissRatioCurve(), prompts))
    capacities = [int(2 ** (step / STEPS)) for step in (0, STEPS, 3 * STEPS, 5 * STEPS, 7 * STEPS)]
    assert kept.wanted == whole.wanted
    shares = [share.share for share in kept.hits(capacities)]
    assert shares == pytest.approx([share.share for share in whole.hits(capacities)])
    assert 0 < shares[1] < shares[-1]


def test_sums_of_two_ranges_add_up() -> None:
    prompts = chains(1, 800)
    online = OnlineMissRatioCurve()
    first, second = measured(online, prompts[:300]), measured(online, prompts[300:])
    assert (first[BEGUN], second[BEGUN]) == (1, 0)
    assert first + second == measured(OnlineMissRatioCurve(), prompts)


def test_a_reset_forgets_all_accesses() -> None:
    online, prompt = OnlineMissRatioCurve(), [bytes([n]) * 8 for n in range(8)]
    measured(online, [prompt])
    online.reset(reset(connector="another"))
    online.reset(reset(succeeded=False))
    assert "memory::" not in measured(online, [prompt])
    online.reset(reset())
    emptied = measured(online, [prompt])
    assert emptied["memory::"] == emptied[WANTED], "no store would have had it"
    assert emptied[BEGUN] == 0


def test_the_sidecar_applies_resets_in_order(tmp_path: Path) -> None:
    """The curve of what a sidecar took in is the one that `kvtrail audit --savings` makes of the whole history."""
    story = """
        {name}: start 128 of a b c d
        {name}: L 128 c0 h0 -> 0
        {name}: A 0
        {name}: S 0+128
        {name}: end computed 128
    """
    events = history(story.format(name="a") + story.format(name="b") + "reset\n" + story.format(name="c"), chunk=32)
    pipeline = Pipeline(SqliteWriter(tmp_path / "kvtrail.db"), Metrics())
    pipeline.ingest(encoded(events), transport="grpc")
    pipeline.close()
    rows = SqliteReader(tmp_path / "kvtrail.db").savings(since_ns=0, until_ns=LATEST_NS)
    (curve,) = memory_curves(rows)
    assert curve.since_s == min(row.at_s for row in rows if BEGUN in row.measures)
    (saved,) = saved_of(events)
    assert saved.memory is not None
    assert replace(saved.memory, since_s=curve.since_s) == curve  # a store keeps hours
    assert curve.wanted == 3 * 127
    assert curve.points[-1].share == pytest.approx(1 / 3)


def test_samples_differ_from_the_exact_curve_by_about_their_error() -> None:
    """The keys differ by sample, and so does what is followed; nothing else does."""
    capacities, apart, errors = (256, 1024), [], []
    whole = exact(chains(0, 6000, heads=400, chunks=12)).hits(capacities)
    for sample in range(6):
        prompts = chains(0, 6000, heads=400, chunks=12, salt=f"{sample}/")
        sums = measured(OnlineMissRatioCurve(most_followed=800), prompts)
        assert 0 < sums[SAMPLED] < sums[WANTED]
        for known, guess in zip(whole, curve_of_measures(sums).hits(capacities), strict=True):
            apart.append((guess.share - known.share) ** 2)
            errors.append(guess.error**2)
    assert 0.3 < sqrt(fmean(apart) / fmean(errors)) < 1.5
    assert sqrt(fmean(errors)) < 0.03


def test_what_a_request_has_generated_is_found_by_the_next_turn() -> None:
    online = OnlineMissRatioCurve()
    (prompt,) = chains(0, 1, chunks=2)
    answer = [bytes([n]) * 8 for n in range(4)]
    online.admitted(admission(prompt))
    assert (
        online.enter(Ended(end([*prompt, *answer], first=len(prompt)), ()))[online_curve.CHUNKS]
        == (len(prompt) + 4) // 2
    )
    turn = online.admitted(admission([*prompt, *answer]))
    assert "memory::" not in turn, "nothing of it is new"
    assert online.enter(Ended(end(prompt, first=0), ())), "it runs again"
    assert not online.enter(Ended(end(prompt, first=0), ())), "it is not known any more"


def test_lmcache_does_not_store_what_a_request_has_generated() -> None:
    online = OnlineMissRatioCurve()
    (prompt,) = chains(0, 1, chunks=2)
    answer = [bytes([n]) * 8 for n in range(4)]
    online.admitted(admission(prompt, name="LMCacheConnectorV1"))
    online.enter(Ended(end([*prompt, *answer], first=len(prompt)), ()))
    turn = online.admitted(admission([*prompt, *answer], name="LMCacheConnectorV1"))
    assert turn["memory::"] == len(answer) * BLOCK, "the answer is new to the store"


def test_hashes_after_a_hole_are_left_out() -> None:
    online, prompt = OnlineMissRatioCurve(), [bytes([n]) * 8 for n in range(4)]
    online.admitted(admission(prompt))
    ended = end([*prompt, *([b"answered"] * 4)], first=6)  # those of the fifth and the sixth block are lost
    assert online.enter(Ended(ended, ()))[online_curve.CHUNKS] == 2


def test_tokens_that_were_not_computed_are_in_no_store() -> None:
    online, prompt = OnlineMissRatioCurve(), [bytes([n]) * 8 for n in range(8)]
    online.admitted(admission(prompt))
    online.enter(Ran(step(0, 130), (), 200))
    again = online.admitted(admission(prompt))
    assert again["memory::"] == 128, "two of four chunks were computed"
    online.enter(Ran(step(0, 200), (), 200))
    assert online.admitted(admission(prompt))["memory::"] == 64


def test_a_request_without_hashes_wants_nothing() -> None:
    assert not OnlineMissRatioCurve().admitted(admission(None, blocks=8))


def test_what_is_held_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(online_curve, "MAX_CONNECTORS", 2)
    monkeypatch.setattr(online_curve, "MAX_RUNNING", 2)
    online, prompt = OnlineMissRatioCurve(), [bytes([n]) * 8 for n in range(2)]
    for name in ("0", "1", "2"):
        online.admitted(admission(prompt, request=f"r{name}", connector=name))
    online.admitted(admission(prompt, connector="2"))
    online.enter(Ended(end(prompt, first=2), ()))
    assert "memory::" in online.admitted(admission(prompt, connector="0")), "the first was dropped: it starts again"
    assert "memory::0" in online.admitted(admission(prompt, connector="2"))
    assert len(online._running) == 2
    most = len(measured(OnlineMissRatioCurve(most_followed=100), chains(0, 3000, heads=400, chunks=12)))
    assert most < 17 * STEPS * 16


def test_the_report_has_a_curve_for_each_connector() -> None:
    online, prompts = OnlineMissRatioCurve(), chains(2, 600)
    store = Store(engine="e", recorder="w", sequence=0, start_ns=1, end_ns=2, start=0, count=128, bytes=4096)
    sums = measured(online, prompts) + Counter(online.enter(Copied(store)))
    row = SavingsRow(at_s=0, engine="e", connector="OffloadConnector", epoch=0, measures={**sums, "admissions": 600})
    quiet = SavingsRow(at_s=0, engine="e", connector="Other", epoch=0, measures={"admissions": 1})
    (curve,) = memory_curves([row, quiet])
    assert (curve.engine, curve.connector, curve.chunk_size, curve.chunk_bytes) == ("e", "OffloadConnector", 64, 2048)
    shares = [point.share for point in curve.points]
    assert shares == sorted(shares)
    assert curve.points[-1].share == pytest.approx(exact(prompts).hits((10**6,))[0].share)
    assert {point.error for point in curve.points} == {0.0}
