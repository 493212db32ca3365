"""What somebody on call asks, and the pages answer, without a browser. `test_oncall_tasks.py` has journeys in a real one."""

from __future__ import annotations

from collections.abc import Iterator

import oncall_world as world_of
import pytest
from oncall_world import World, in_trouble
from processes import Tracer, serve
from without_browser import Opened, show


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("answers")
    tracer = serve(folder, *world_of.options(folder))
    yield in_trouble(tracer, "")
    tracer.kill()


@pytest.fixture
def world(known: World, monkeypatch: pytest.MonkeyPatch) -> World:
    show(known.tracer.url, monkeypatch)
    return known


def test_whether_the_offload_is_worth_its_memory(world: World) -> None:
    page = Opened("savings")
    page.sees(r"[Ww]orth its memory|of prefill saved|spared [\d.]+ % of prefill")
    page.sees("host memory")
    page.sees("By engine and connector")
    page.sees("now-1h to now")


def test_what_a_finding_says_and_what_is_to_be_done(world: World) -> None:
    page = Opened("").follow("died at .* of AssertionError with 3 open requests: a stale lookup")
    page.sees("severity: crash")
    page.sees("The connector answered")
    page.sees("upgrade from 0.3.10")


def test_which_deploy_made_prefill_grow(world: World) -> None:
    page = Opened("").follow("Hit rate beyond vLLM's cache fell")
    page.sees(rf"Engine {world_of.AFTER_DEPLOY} was started with vLLM 0\.31 → 0\.32")
    page.sees("Prompt tokens computed went from")
    page.open_row("changed").sees(r"[\d]+ requests?, latest first")


def test_what_changed_around_a_moment_that_is_chosen(world: World) -> None:
    page = Opened("")
    (moments,) = (each for each in page.app.selectbox if each.label == "Explain what changed at")
    moments.select(next(each for each in moments.options if f"{world_of.AFTER_DEPLOY} was started" in each))
    page.run()
    page.sees(f"Engine {world_of.AFTER_DEPLOY} was started with")
    page.sees("Prompt tokens computed went from")
    page.follow("Close")
    assert not any("What changed at" in each for each in page.texts())


def test_which_requests_have_a_part_of_an_id_or_a_trace(world: World) -> None:
    (request,) = world.tracer.get("/api/requests", search=world_of.SLOW)
    for text in (world_of.SLOW, "evicted-3", request["trace_id"]):
        page = Opened("requests")
        next(each for each in page.app.text_input if each.label == "Search").set_value(text)
        page.run()
        assert world_of.SLOW in [cells[0] for cells in page.rows("requests_table")], text


def test_what_is_known_and_why(world: World) -> None:
    page = Opened("").follow("1 known finding of stale-lookup")
    page.sees(f"Known: {world_of.WHY}")
    page.open_row("one_by_one").sees("Request known-1")


def test_which_tenant_pays_for_evictions(world: World) -> None:
    page = Opened("savings").open_row("waste_tenant", lambda cells: cells[0] == world_of.TENANT)
    page.sees(f"Only tenant {world_of.TENANT}: show all")
    assert world_of.SLOW in {cell for cells in page.rows("waste_requests") for cell in cells}


def test_which_requests_were_slow_and_had_their_prompt_evicted(world: World) -> None:
    page = Opened("requests")
    next(each for each in page.app.text_input if each.label == "Conditions").set_value(
        "duration > 2s and evicted >= 100"
    )
    page.run()
    assert {cells[0] for cells in page.rows("requests_table")} == {f"b-evicted-{n}-0123abcd" for n in range(4)}


def test_which_tenants_requests_are_slow(world: World) -> None:
    page = Opened("requests")
    next(each for each in page.app.selectbox if each.label == "Grouping").select("By tenant")
    page.run()
    page.open_row("groups", lambda cells: cells[0] == world_of.TENANT).sees("8 requests, latest first")


def test_which_blocks_a_request_of_a_hybrid_model_has(world: World) -> None:
    page = Opened(f"request?id={world_of.HYBRID}")
    page.sees("Its block tables, .* 2 KV cache groups")
    page.sees(r"1 \(sliding window\)")


def test_why_its_tokens_were_computed(world: World) -> None:
    page = Opened(f"request?id={world_of.SLOW}")
    page.sees("186 tokens of 250 were computed: 86 % evicted, 14 % unaligned")
    page.sees("64 to 224evicted from the connector's store")


def test_how_a_request_got_there_step_by_step(world: World) -> None:
    Opened(f"request?id={world_of.SLOW}&tab=replay").sees("Step 1 of 6")


@pytest.mark.parametrize(
    "path",
    ["", "requests", "requests?view=lanes", "requests?view=heat", "requests?by=engine", "findings", "savings",
     "findings?runbook=all", "findings?runbook=stale-lookup", "request?id=a", "request?id=a&tab=replay",
     "request?id=a&tab=compare&with=b"],
)  # fmt: skip
def test_a_page_of_an_empty_store_says_something(path: str, api: Tracer, monkeypatch: pytest.MonkeyPatch) -> None:
    show(api.url, monkeypatch)
    page = Opened(path)
    assert not page.app.error
    assert len("".join(page.texts())) > 200


@pytest.mark.parametrize("page", ["", "requests", "requests?view=heat", "findings", "savings", "request?id=r"])
def test_a_page_without_an_answer_says_that_the_tracer_is_away(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    show("http://127.0.0.1:9", monkeypatch)
    opened = Opened(page)
    opened.sees(r"The tracer at .* does not answer.*Trying again every 2 s\.")
    assert not any("Below is what was last known" in each for each in opened.texts())
