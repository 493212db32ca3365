"""The API's answers about the day: every route that reads, from the tracer's own file and from ClickHouse."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, get_args

from fastapi.routing import APIRoute
from fastapi.testclient import TestClient

from kvtrail.tracer.model.grouping import OfRequests
from kvtrail.tracer.model.outcomes import Outcome
from kvtrail.tracer.store import Sort
from kvtrail.tracer.store.reader import Reader
from pins import plain, written
from pins.day import BEGIN_NS, DIGEST, HOUR_NS, MINUTE_NS, NOW_NS, Day

IN_FULL = 3
"""Records of a list that are pinned whole, where it has more than twice as many; of the others, a digest each."""
VERY_LONG = 4000
"""Characters."""
WHOLE = {"since_ns": BEGIN_NS, "until_ns": NOW_NS}
LAST_HOUR = {"since_ns": NOW_NS - HOUR_NS, "until_ns": NOW_NS}
NAMED = ("request", "rule", "engine", "name", "kind", "span_id", "measure", "of", "at_s", "from_ns", "at_ns")
"""Fields that name a record, as far as it has them."""
MACHINE = re.compile(r"^kvtrail_(internal|ingest|store_bytes|received_timestamp|\w*_seconds|\w*_bytes|build)")
"""Metrics of the process itself, and durations on this machine."""
FILES = ("/api/otlp",)
A_REQUEST = "/api/requests/"
OF_CLICKHOUSE = {"/api/requests": 8, A_REQUEST: 3, "/api/latency/groups": 2}
"""By path, the questions that ClickHouse is asked; one for any other path. A question takes it ten times as long, and the
tests of `tracer/store/clickhouse` compare every answer of its reader with that of a tracer's own file."""
NOT_OF_CLICKHOUSE = ("/metrics", "/healthz", "/readyz", "/api/health", "/api/rules")
"""What no store answers."""
REQUESTS = {
    "opt-stale-0-0123abcd": "opt-stale", "opt-stale-1-0123abcd": "opt-stale", "b-phi-a-0-0123abcd": "phi-a",
    "b-phi-lossy-0-0123abcd": "phi-lossy", "a-opt-resets-0-0123abcd": "opt-resets", "b-opt-resets-0-0123abcd": "opt-resets",
    "gemma-0-0123abcd": "gemma", "prefill-0123abcd": "prefill", "mistral-b-4-0123abcd": "mistral-b",
    "opt-lossy-0-0123abcd": "opt-lossy", "opt-killed-0-0123abcd": "opt-killed",
}  # fmt: skip
"""Requests that are asked about one by one, with their engines."""


def questions() -> Iterator[tuple[str, dict[str, Any]]]:
    """What is asked: a path and its parameters."""
    yield from (("/healthz", {}), ("/readyz", {}), ("/api/health", {}), ("/api/rules", {}))
    yield "/api/totals", {}
    yield from (("/api/fleet", {}), ("/api/fleet", {"service": "chat"}), ("/api/fleet", {"model": "phi"}))
    yield from (("/api/spans", {"after": 100, "limit": 3}), ("/api/spans", {"limit": 1000}))
    yield "/api/requests", {"limit": 1000}
    yield from (("/api/requests", {"sort": sort.value, "limit": 8}) for sort in Sort)
    yield from (("/api/requests", {"outcome": outcome.value, "limit": 3}) for outcome in Outcome)
    some: tuple[dict[str, Any], ...] = (
        {"verdict": "drift"}, {"status": "failed"}, {"search": "phi"}, {"where": "duration > 1s and computed >= 300"},
        {"where": f"tenant = {DIGEST}"}, {"engine": "opt-stale"}, {"node": "node-1"}, {"where": "preemptions >= 1"},
        {"near": "opt-stale-1-0123abcd"}, {"before_ns": BEGIN_NS + 12 * HOUR_NS},
    )  # fmt: skip
    yield from (("/api/requests", {"limit": 8, **each}) for each in some)
    yield from ((f"/api/requests/{request}", {"engine": engine}) for request, engine in REQUESTS.items())
    yield "/api/requests/nobody", {}
    yield from (
        (path, {"request": request}) for path in FILES for request in ("opt-stale-0-0123abcd", "b-phi-a-0-0123abcd")
    )
    yield "/api/lanes", {"from_ns": NOW_NS - HOUR_NS, "to_ns": NOW_NS}
    yield "/api/lanes", {"from_ns": BEGIN_NS, "to_ns": NOW_NS, "limit": 5}
    yield from (("/api/latency", {"of": of, **LAST_HOUR}) for of in ("duration", "first_token", "queued"))
    yield from (("/api/latency/measures", WHOLE), ("/api/latency/measures", {"where": "evicted >= 1", **WHOLE}))
    yield from (("/api/latency/groups", {"by": by.value, **WHOLE}) for by in get_args(OfRequests))
    yield from (("/api/markers", WHOLE), ("/api/markers", {"engine": "llama-a", **LAST_HOUR}))
    yield from (("/api/findings", {}), ("/api/findings", {"rule": "stale-lookup", "order": "oldest"}))
    yield from (("/api/findings", {"severity": "crash", **LAST_HOUR}), ("/api/findings", {"engine": "mistral-b"}))
    yield from (("/api/findings/trend", {}), ("/api/findings/trend", {"rule": "stale-lookup", **WHOLE}))
    yield from (("/api/findings/rules", {}), ("/api/findings/rules", WHOLE))
    yield from (("/api/efficiency", WHOLE), ("/api/efficiency", {"engine": "phi-b", **LAST_HOUR}))
    yield from (("/api/efficiency", {"model": "mistral", **LAST_HOUR}),)
    yield from (("/api/status", {}), ("/api/status", WHOLE), ("/api/status", {"model": "phi", **WHOLE}))
    yield from (("/api/waste", WHOLE), ("/api/waste", {"tenant": DIGEST, **LAST_HOUR}))
    yield from (("/api/changes", {"at_ns": NOW_NS - 57 * MINUTE_NS, "since_ns": NOW_NS - 2 * HOUR_NS}),)
    yield "/metrics", {}


def api_sqlite(day: Day) -> dict[str, Any]:
    """The answers from the tracer's own file."""
    return _answers(day, day.local, day.tracer.local, questions())


def api_clickhouse(day: Day) -> dict[str, Any]:
    """The answers from ClickHouse."""
    asked: Counter[str] = Counter()
    chosen = []
    for path, parameters in questions():
        kind = A_REQUEST if path.startswith(A_REQUEST) else path
        asked[kind] += 1
        if kind not in NOT_OF_CLICKHOUSE and asked[kind] <= OF_CLICKHOUSE.get(kind, 1):
            chosen.append((path, parameters))
    return _answers(day, day.fleet, day.tracer.fleet, chosen)


def routes_not_asked(client: TestClient) -> set[str]:
    """The routes that read and that no question is about."""
    asked = [path for path, _ in questions()]
    return {
        route.path
        for route in client.app.routes  # type: ignore[attr-defined]  # an ASGI application in general has none
        if isinstance(route, APIRoute)
        and "GET" in route.methods
        and route.include_in_schema
        and not any(route.path_regex.match(path) for path in asked)
    }


def _answers(
    day: Day, client: TestClient, reader: Reader, asked: Iterable[tuple[str, dict[str, Any]]]
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with day.clock():
        for path, parameters in asked:
            response = client.get(path, params=parameters)
            name = " ".join((path, *(f"{name}={_readable(value)}" for name, value in parameters.items())))
            assert name not in found
            found[name] = {"status": response.status_code, "answer": _content(path, response.text)}
    return found


def _readable(value: Any) -> Any:
    """A moment as minutes before the end of the day."""
    return f"{(value - NOW_NS) // MINUTE_NS} min" if type(value) is int and value >= BEGIN_NS else value


def _content(path: str, text: str) -> Any:
    if path == "/metrics":
        return _families(text)
    if path == "/api/otlp":
        return {"sha256": digest(text), "begins": text[:300]}
    answer = plain(json.loads(text))
    if path == "/api/rules":
        return [{**rule, "text": digest(rule["text"])} for rule in answer]
    if path == "/api/lanes":  # the stores give them in no order
        answer["marks"] = _sorted(answer["marks"])
    return condensed(answer)


def _families(text: str) -> dict[str, Any]:
    """By family of metrics, the series that are not 0, and how many are."""
    found: dict[str, Any] = {}
    for line in sorted(text.splitlines()):
        if line.startswith("kvtrail_") and not MACHINE.match(line):
            family, rest = re.match(r"\w+", line)[0], line  # type: ignore[index]  # it begins with a word
            entry = found.setdefault(family, {"zero": 0, "series": []})
            if rest.endswith(" 0.0"):
                entry["zero"] += 1
            else:
                entry["series"].append(rest.removeprefix(family))
    return found


def _sorted(columns: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """The same rows, in an order of their own."""
    rows = sorted(zip(*columns.values(), strict=True), key=str)
    return dict(zip(columns, map(list, zip(*rows, strict=True)), strict=True)) if rows else dict(columns)


def condensed(value: Any, *, whole: int = IN_FULL) -> Any:
    """A value whose long lists of records have the first ones whole, and of each other one its name and a digest. Very long
    lists of numbers or texts are digests."""
    if isinstance(value, dict):
        return {name: condensed(each, whole=whole) for name, each in value.items()}
    if not isinstance(value, list):
        return value
    if not any(isinstance(each, dict | list) for each in value):
        return value if len(written(value)) <= VERY_LONG else f"{len(value)} items, {digest(value)}"
    first, rest = value, []
    if len(value) > 2 * whole and all(isinstance(each, dict) for each in value):
        first, rest = value[:whole], value[whole:]
    names = [" ".join(str(each[name]) for name in NAMED if each.get(name)) for each in rest]
    return [
        *(condensed(each, whole=whole) for each in first),
        *(f"{name}: {digest(each)}" for name, each in zip(names, rest, strict=True)),
    ]


def digest(value: Any) -> str:
    """A digest of a text, or of a value as JSON."""
    text = value if isinstance(value, str) else written(plain(value))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def as_the_other(pinned: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Answers in which those that are the same as the other store's are left out: their names have `SAME`."""
    return {name: SAME if other.get(name) == answer else answer for name, answer in pinned.items()}


def resolved(pinned: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """The reverse of `as_the_other`."""
    return {name: other.get(name) if answer == SAME else answer for name, answer in pinned.items()}


SAME = "as from SQLite"
