"""Engines by the names that people know, wherever the sidecar and the audit speak of them."""

from __future__ import annotations

import time
from pathlib import Path

from command_line import DRIFT, run
from history import goodbyes, history
from processes import Tracer, until
from prometheus_client.parser import text_string_to_metric_families as families
from wire import encoded, to_json_line

from kvtrail.tracer.liveness.recorders import INFO

POD = "3f2a9c1b-5d0e-4c58-9a47-0f1b2c3d4e5f"
ONE = "77b0c2d4-5d0e-4c58-9a47-0f1b2c3d4e5f"
OTHER = "90c0ffee-5d0e-4c58-9a47-0f1b2c3d4e5f"
PLACE = {"service.name": "vllm", "host.name": "gpu-7"}
ABOUT = {POD: PLACE | {"k8s.pod.name": "llama-0", "service.instance.id": "blue"}, ONE: PLACE, OTHER: PLACE}
NAMES = {POD: "llama-0", ONE: "vllm on gpu-7 (77b0c2d4)", OTHER: "vllm on gpu-7 (90c0ffee)"}


def batches() -> list[bytes]:
    """Three unnamed engines, each with a drift."""
    reported = []
    for engine, about in ABOUT.items():
        events = history(DRIFT, request=f"r-{engine[:2]}", recorder=f"rec-{engine[:2]}", engine=engine)
        reported.append(encoded([*events, *goodbyes(events)], about))
    return reported


def test_the_api_names_them_everywhere(api: Tracer) -> None:
    for batch in batches():
        api.post(batch)
    assert {e["engine"]: e["name"] for e in api.get("/api/fleet")["engines"] if e["engine"] in NAMES} == NAMES
    (engine,) = (e for e in api.get("/api/fleet")["engines"] if e["engine"] == POD)
    assert [engine[field] for field in ("pod", "instance", "service", "host")] == ["llama-0", "blue", "vllm", "gpu-7"]
    for answer in (
        api.get("/api/requests", search="r-"),
        api.get("/api/findings"),
        api.get("/api/health")["recorders"],
        [api.get(f"/api/requests/r-{engine[:2]}")["request"] for engine in NAMES],
    ):
        assert {row["engine"]: row["engine_name"] for row in answer if row["engine"] in NAMES} == NAMES
    ends = {"from_ns": api.get("/api/requests/r-3f")["request"]["started_ns"] - 1, "to_ns": time.time_ns()}
    ends["to_ns"] = min(ends["to_ns"], ends["from_ns"] + 10**12)
    since = {"since_ns": ends["from_ns"], "until_ns": ends["to_ns"]}
    for answer in (
        api.get("/api/lanes", **ends),
        api.get("/api/efficiency", **since),
    ):
        assert answer["engine_names"].items() >= NAMES.items()


def test_prometheus_gets_the_names_on_the_info_series(api: Tracer) -> None:
    for batch in batches():
        api.post(batch)

    def infos() -> dict[str, dict[str, str]]:
        page = families(api.read("/metrics"))
        return {s.labels["engine"]: s.labels for f in page if f.name == "kvtrail_engine_info" for s in f.samples}

    until(lambda: NAMES.keys() <= infos().keys(), why=infos)
    reported = [infos()[POD][label] for label in INFO]
    assert reported == ["llama-0", "", "vllm", "blue", "llama-0", "gpu-7", "", ""]
    assert infos()[ONE]["engine_name"] == NAMES[ONE]


def test_reports_name_them(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(f"{to_json_line(batch)}\n" for batch in batches()))
    text = run("audit", str(path)).output
    for name in NAMES.values():
        assert f"engine {name};" in text
    assert "llama-0  r-3f" in run("replay", str(path)).output
    alone = tmp_path / "alone.jsonl"
    alone.write_text(f"{to_json_line(batches()[0])}\n")
    assert '"engine_name": "llama-0"' in run("audit", "--json", str(alone)).output
