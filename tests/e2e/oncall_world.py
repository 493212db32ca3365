"""What an on-call engineer's sidecar knows: a day's trouble of a dozen engines; none needs vLLM.

All of it is made up: an engine that died of LMCache #2158, a deploy that lost the cache, an engine without hits beside two
with them, evictions that one tenant pays for, a hand-off, a model with two KV cache groups, and a fault that is
known.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import yaml
from evicted_story import ABOUT as TELLS_CHUNKS
from evicted_story import CHUNK
from history import goodbyes, groups_declared, history
from live_traffic import goodbye
from msgspec.structs import replace
from processes import Tracer
from served_pairs import DECODE, PREFILL
from stories import HEALED, STALE, feed, feed_over_time, middle_of_a_minute_ns
from traffic import Engine
from wire import encoded

from kvtrail.tracer.events import semconv
from kvtrail.tracer.events.events import Event

DEAD = "vllm-0123abcd"
"""The engine that died."""
CHAT = ("llama-a", "llama-b")
"""The engines that keep serving."""
BEFORE_DEPLOY, AFTER_DEPLOY = "mistral-a", "mistral-b"
WITH_HITS, WITHOUT_HITS = ("qwen-a", "qwen-b"), "qwen-c"
EVICTS = "phi-a"
TENANT, DIGEST = "Acme", "5a17c0ffee5a17c0"
GIVES, TAKES = "prefill", "d"
"""The engines of the hand-off: `served_pairs` names the second one."""
HANDED_OVER = "pair-0123abcd"
HYBRID = "hybrid-0123abcd"
SLOW = "b-evicted-3-0123abcd"
"""A request of the tenant that waited for its prefill, since its prompt had been evicted."""
KNOWN_AT = "phi-b"
"""The engine with known findings."""
WHY = "LMCache #2158, fixed in 0.33"
HITS = "L 2500 c0 h1696 -> 1696\nA 1696\nS 1696+804\nend"
FEW_HITS = "L 2500 c0 h64 -> 64\nA 64\nS 64+2436\nend"
OPEN = "L 640 c0 h512 -> 512\nA 512\nS 512+48"
STORING = HITS.replace("end", "store 1696+804\nend")
NO_HITS = "L 2500 c0 h0 -> 0\nA 0\nS 0+2500\nstore 0+2500\nend"
TOO_MUCH = "L 2500 c0 h1696 -> 1728\nA 1728\nS 1728+772\nend"
"""An answer beyond what the store held: rule over-report."""
EVICTED = f"""
    cache
    a: start 224 as {DIGEST} of p q r s t u v
    a: L 224 c0 h0 -> 0
    a: A 0
    cache + p q r s t u v
    a: S 0+224
    a: plan store 0+224 keys =p,=q,=r,=s,=t,=u,=v
    a: end computed 224
    cache - r s t u v
    evict =r
    evict =s
    evict =t
    evict =u
    evict =v
    b: start 250 as {DIGEST} of p q r s t u v
    b: L 250 c64 h64 -> 0
    wait 3
    b: L 250 c64 h64 -> 0
    b: A 0
    b: S 64+186
    b: end computed 250
"""
TWO_GROUPS = "L 96 c64 h0 -> 0\nA 0 [1-3 | 0 20-21]\nS 64+32\nend"
RULES = Path(__file__).parents[2] / "deploy/prometheus/kvtrail.rules.yml"


@dataclass(frozen=True)
class World:
    """The dashboard's address, its tracer, and the engine that died, by its id."""

    url: str
    tracer: Tracer
    dead: str

    def alert(self, name: str) -> str:
        """The address that an alert about the dead engine carries, as Prometheus fills it in from our rules."""
        rules = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
        found: str
        (found,) = (each["annotations"]["dashboard_url"] for each in rules if each.get("alert") == name)
        to_ms = time.time_ns() // 10**6
        return (
            found.strip()
            .replace("{{ $labels.engine | urlquery }}", quote(self.dead, safe=""))
            .replace('{{ query "1e3 * (time() - 3600)" | first | value | printf "%.0f" }}', str(to_ms - 3_600_000))
            .replace('{{ query "1e3 * time()" | first | value | printf "%.0f" }}', str(to_ms))
            .replace("http://localhost:8501", self.url)
        )


def options(folder: Path) -> list[str]:
    """The options with which its tracer names the tenant, and knows of the fault."""
    tenants, known = folder / "tenants.yaml", folder / "known.yaml"
    tenants.write_text(f"{DIGEST}: {TENANT}\n")
    known.write_text(yaml.safe_dump([{"rule": "stale-lookup", "engine": KNOWN_AT, "why": WHY}]))
    return ["--tenants", str(tenants), "--known-findings", str(known)]


def in_trouble(tracer: Tracer, url: str) -> World:
    """Send all of it to a tracer, which a dashboard at `url` shows."""
    _feed_death(tracer)
    _feed_all(tracer)
    return World(url, tracer, DEAD)


def _feed_death(tracer: Tracer) -> None:
    engine, events = Engine(DEAD), list[Event]()
    for number, text in enumerate((STALE.replace("!", "!AssertionError: "), OPEN, OPEN)):
        recorder = f"recorder-of-{DEAD}"
        own = history(text, request=f"bug-{number:02d}-0123abcd", engine=DEAD, recorder=recorder)
        events += [replace(each, sequence=each.sequence + len(events)) for each in begun_ago(own, 60)]
    error = "AssertionError: Mismatch in tokens to load"
    ended = goodbye(engine, sequence=len(events), at_ns=time.time_ns() - 50 * 10**9, ended_by=error)
    tracer.post(encoded([*events, ended], {"service.name": "vllm"}))


def _feed_all(tracer: Tracer) -> None:
    now_ns = middle_of_a_minute_ns()
    deployed = {9: TOO_MUCH}  # what was never found before the deploy
    feed_over_time(
        tracer, BEFORE_DEPLOY, "0.31", dict.fromkeys(range(40, 20, -1), HITS), model="mistral", ends=True, now_ns=now_ns
    )
    feed_over_time(
        tracer,
        AFTER_DEPLOY,
        "0.32",
        {**dict.fromkeys(range(20, 1, -1), FEW_HITS), **deployed},
        model="mistral",
        ends=True,
        now_ns=now_ns,
    )
    for engine in (*WITH_HITS, WITHOUT_HITS):
        story = NO_HITS if engine == WITHOUT_HITS else STORING
        feed_over_time(
            tracer, engine, "0.32", dict.fromkeys(range(40, 1, -5), story), model="qwen", ends=True, now_ns=now_ns
        )
    for number in range(4):
        events = history(
            EVICTED,
            chunk=CHUNK,
            request=f"evicted-{number}-0123abcd",
            engine=f"{EVICTS}{number}",
            recorder=f"r{number}",
        )
        tracer.post(
            encoded(
                begun_ago([*events, *goodbyes(events)], 600 - 60 * number), {**TELLS_CHUNKS, semconv.MODEL.key: "phi"}
            )
        )
    feed(tracer, HEALED, request="known-1-0123abcd", engine=KNOWN_AT)
    pair = history(
        f"{PREFILL}{DECODE}<d> R\nread\nsent\n<d> A 0\n<d> S 599+1\n<d> S 600+1\n<d> end",
        request=HANDED_OVER, engine=GIVES, recorder=GIVES, connector="NixlConnector",
    )  # fmt: skip
    for _, part in itertools.groupby(begun_ago([*pair, *goodbyes(pair)], 30), key=lambda event: event.recorder):
        tracer.post(encoded(list(part), {semconv.POOL_BLOCKS.key: 50}))
    hybrid = history(TWO_GROUPS, request=HYBRID, engine="gemma-a", recorder="gemma-a")
    groups = {semconv.GROUPS.key: groups_declared("full 32, window 32 32") or ""}
    tracer.post(encoded(begun_ago([*hybrid, *goodbyes(hybrid)], 40), groups))


def begun_ago(events: Sequence[Event], seconds: int) -> list[Event]:
    """The same history, begun this number of seconds ago."""
    later_ns = time.time_ns() - seconds * 10**9 - events[0].start_ns
    return [replace(e, start_ns=e.start_ns + later_ns, end_ns=e.end_ns + later_ns) for e in events]
