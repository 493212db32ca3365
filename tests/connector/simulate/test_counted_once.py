"""What a MultiConnector and its children report is counted once: as vLLM counts it, whichever of them are traced."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from bare_scheduler import scheduler

from kvtrail.connector.simulate import in_memory
from kvtrail.tracer.ingest import otlp_json
from kvtrail.tracer.savings.sums import savings_of
from kvtrail.tracer.serve.metrics.metrics import Metrics
from kvtrail.tracer.serve.receive.pipeline import Pipeline
from kvtrail.tracer.store.sqlite.store import SqliteReader, SqliteWriter

TOKENS, REQUESTS = 350, 12


def served(folder: Path, outer: str, child: str) -> tuple[list[bytes], Counter[str]]:
    """Requests that share a prefix, on a connector with two children: what was recorded, and what vLLM counted."""
    children = [
        {"kv_connector": child, "kv_role": "kv_both", "kv_connector_extra_config": {"chunk_size": size}}
        for size in (64, 32)
    ]
    counted: Counter[str] = Counter()
    with in_memory.exporters() as exporters:
        bare = scheduler(folder, outer, {"connectors": children}, disable_hybrid_kv_cache_manager=True, num_blocks=16)
        real: Any = bare.scheduler
        make_stats, schedule = real.make_stats, real.schedule

        def counting(*arguments: Any, **named: Any) -> Any:
            stats = make_stats(*arguments, **named)
            if stats is not None and (cache := stats.connector_prefix_cache_stats) is not None:
                counted.update(queries=cache.queries, hits=cache.hits)
            return stats

        def scheduling(*arguments: Any, **named: Any) -> Any:
            output = schedule(*arguments, **named)
            counted["preempted"] += len(output.preempted_req_ids or ())
            return output

        real.make_stats, real.schedule = counting, scheduling
        lookup = real.connector.get_num_new_matched_tokens

        def looking_up(*arguments: Any) -> Any:
            counted["asked"] += 1
            return lookup(*arguments)

        real.connector.get_num_new_matched_tokens = looking_up
        dice = random.Random(0)
        head = [dice.randrange(3, 512) for _ in range(300)]
        for number in range(REQUESTS // 2):
            for twin in range(2):  # together they do not fit: one is preempted
                prompt = head + [dice.randrange(3, 512) for _ in range(TOKENS - len(head))]
                bare.add(f"r-{number}-{twin}", prompt, 40)
            bare.run()
            real.reset_prefix_cache()
        in_memory.flush()
    lines = (otlp_json.spans_to_json_line(each.spans()) for each in exporters)
    return [otlp_json.to_protobuf(json.loads(line)) for line in lines], counted


@pytest.mark.parametrize("outer", ["TracedMultiConnector", "MultiConnector"])
@pytest.mark.parametrize("child", ["OffloadConnector", "UntracedOffloadConnector"])
def test_hits_are_those_of_vllm(tmp_path: Path, outer: str, child: str) -> None:
    if outer == "MultiConnector" and child == "UntracedOffloadConnector":
        return  # nothing is traced
    payloads, counted = served(tmp_path, outer, child)
    metrics = Metrics()
    pipeline = Pipeline(SqliteWriter(tmp_path / "s.db"), metrics)
    for payload in payloads:
        pipeline.ingest(payload, transport="grpc")
    ours: Counter[str] = Counter()
    for sample in (sample for family in metrics.registry.collect() for sample in family.samples):
        if sample.labels.get("epoch") in (None, "first"):
            ours[sample.name] += int(sample.value)
    assert counted["hits"] > TOKENS
    assert ours["kvtrail_hit_tokens_total"] == counted["hits"]
    assert ours["kvtrail_preemptions_total"] == counted["preempted"] > 0
    assert ours["kvtrail_requests_total"] == REQUESTS
    pipeline.storage.write_rows()
    asked = {row["external"]: row["lookups"] for row in SqliteReader(tmp_path / "s.db").requests(limit=1000)}
    assert len(asked) == REQUESTS
    assert sum(asked.values()) == counted["asked"], "however many connectors were asked each time"
    worth = savings_of(SqliteReader(tmp_path / "s.db").savings(since_ns=0, until_ns=2**63 - 1))
    assert worth.preemptions == counted["preempted"]
    assert worth.taken >= counted["hits"], "after preemptions it counts, too"
    if outer == "MultiConnector":
        return  # each of its children counts what it was asked
    preempted = {
        sample.labels["connector"]
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == "kvtrail_preemptions_total" and sample.value
    }
    assert preempted == {"MultiConnector"}, "it answers for its children, who report first"
    assert ours["kvtrail_queried_tokens_total"] == counted["queries"]
    assert ours["kvtrail_admissions_total"] == REQUESTS
    assert worth.admissions == REQUESTS + counted["preempted"]
