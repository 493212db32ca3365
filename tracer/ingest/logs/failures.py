"""Exceptions of a connector's calls in a log, from a traceback or from a known message.

A process that dies prints a traceback, and other processes print it again. It shows which call of the connector failed. If
only its last line is in the log, the text must be a known one of a connector of vLLM 0.32 or of LMCache.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from kvtrail.tracer.events.messages import kept
from kvtrail.tracer.events.semconv import Kind
from kvtrail.tracer.ingest.logs.line_patterns import ID_STOPS, NUMBER, LinePattern, Reading, Role, pattern_of
from kvtrail.tracer.ingest.logs.lines import Record

WORKER_CALLS = frozenset(
    {
        "bind_connector_metadata", "clear_connector_metadata", "get_block_ids_with_load_errors", "get_finished",
        "handle_preemptions", "register_cross_layers_kv_cache", "register_kv_caches", "save_kv_layer", "start_load_kv",
        "wait_for_layer_load", "wait_for_save",
    }
)  # fmt: skip
SCHEDULER_CALLS = frozenset(
    {
        "build_connector_meta", "get_num_new_matched_tokens", "on_new_request", "request_finished",
        "request_finished_all_groups", "reset_cache", "take_events", "update_connector_output", "update_state_after_alloc",
    }
)  # fmt: skip

_FRAME = re.compile(r'^\s*File "(?P<path>[^"]{1,500})", line \d+(?:, in (?P<function><\w{1,50}>|[\w.]{1,200}))?')
_RAISED = re.compile(
    r"^(?P<name>(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception|Timeout|Breach))(?::\s*(?P<text>.*))?$"
)
_FATAL_FRAMES = frozenset({"run_engine_core", "run_mp_engine"})
"""The outermost functions of an engine's process. A traceback shows them if no inner function caught the exception."""
_CARETS = re.compile(r"^[\s^~]*$")
_BEGINS = "Traceback (most recent call last)"
_CONNECTORS_FILE = re.compile(r"kv_connector|kv_offload|lmcache|kvtrail|[/_]connectors?[/._]", re.IGNORECASE)
_INSTALLED = re.compile(r".*(?:/(?:site|dist)-packages/|/lib/python3\.\d+/)")
_PACKAGE = re.compile(r".*(?<!/integration)(?=/(?:vllm(?:_\w+)?|lmcache|kvtrail/(?:connector|dashboard|tracer))/)")
"""The path up to the last known package. LMCache has a package `vllm` in `lmcache/integration`."""
CAUGHT = frozenset({"DEBUG", "INFO", "WARNING"})
"""Levels at which a process logs exceptions that it caught and survives."""
_REQUEST = re.compile(
    rf"\b(?:[Rr]equest|[Rr]eq)(?:[ _]?id)?[ :=]+['\"]?(?P<id>[^{ID_STOPS}:]+)|^KeyError: ['\"](?P<key>[^'\"]+)"
)
_MAX_FRAMES = 200
_MAX_OTHERS = 5
"""Maximum number of lines in a traceback that are neither a frame nor its source."""


@dataclass(slots=True)
class _Traceback:
    """The lines of a traceback that were read so far: the path, the function and the source of each frame."""

    frames: list[list[str]] = field(default_factory=list)
    wants_source: bool = False
    others: int = 0
    is_fatal: bool = False
    """Whether it reaches the outermost function of an engine's process."""


class Tracebacks:
    """Follows the tracebacks of each process."""

    def __init__(self) -> None:
        self._open: dict[str, _Traceback] = {}

    def close(self, process: str) -> bool:
        """Note that a readable line has ended the process's traceback. Returns whether nothing caught its exception."""
        held = self._open.pop(process, None)
        return held is not None and held.is_fatal

    def read(self, record: Record) -> Reading | None:
        """Enter a line. Returns the reading of a traceback that it ends, if the traceback is about a connector."""
        text = record.text
        if _BEGINS in text:
            self._open[record.process] = _Traceback()
            return None
        held = self._open.get(record.process)
        if match := _FRAME.match(text):
            held = self._open.setdefault(record.process, _Traceback())
            held.frames.append([match["path"], match["function"] or "", ""])
            held.is_fatal |= match["function"] in _FATAL_FRAMES
            del held.frames[:-_MAX_FRAMES]
            held.wants_source = True
        elif held is not None and held.frames:
            if match := _RAISED.match(text):
                self.close(record.process)
                if record.level in CAUGHT:
                    return None
                return _failure(held, match["name"].rpartition(".")[2], match["text"])
            if held.wants_source:
                held.frames[-1][2], held.wants_source = text, False
            elif not _CARETS.match(text):
                held.others += 1
                if held.others > _MAX_OTHERS:
                    self.close(record.process)
        return None


def _failure(held: _Traceback, name: str, text: str | None) -> Reading | None:
    """The reading of a traceback: a call of the connector that raised, or another exception that ended the engine."""
    source = held.frames[-1][2]
    error = kept(f"{name}: {text}" if text else f"{name}: {source}" if source else name)
    calls = SCHEDULER_CALLS | WORKER_CALLS
    call = next((function for _, function, _ in held.frames if function in calls), None)
    call = call or next((function for path, function, _ in held.frames if _is_connectors(path)), None)
    if call is not None:
        return failed(call, error, is_fatal=held.is_fatal)
    return Reading(Role.DEATH, error=error, is_fatal=True) if held.is_fatal else None


def _is_connectors(path: str) -> bool:
    """Whether a file belongs to a connector, by its path within its package: the folder of an installation or checkout may
    have any name. For an unknown package, the names of the file and its folder decide."""
    path = path.replace("\\", "/")
    for ahead in (_INSTALLED, _PACKAGE):
        if (match := ahead.match(path)) is not None:
            return _CONNECTORS_FILE.search("/" + path[match.end() :].lstrip("/")) is not None
    return _CONNECTORS_FILE.search("/" + "/".join(path.split("/")[-2:])) is not None


def failed(call: str, error: str, *, is_fatal: bool = False) -> Reading:
    """The reading of a connector's call that raised. The assembler decides whether the named request is a real one."""
    match = _REQUEST.search(error)
    request = None if match is None else (match["id"] or match["key"]).rstrip(".;)")
    return Reading(Role.FAILURE, request, Kind.FAILURE, {"call": call}, error=error, is_fatal=is_fatal)


def _died(match: re.Match[str]) -> Reading:
    return Reading(Role.DEATH, error=match[0].strip().rstrip(":"))


def _raised(call: str, hint: str, pattern: str) -> LinePattern:
    """The last line of an exception that a call of a connector raises."""
    pattern = rf"(?:\b\w+(?:Error|Exception): )?{pattern}"
    return pattern_of(hint, pattern, lambda match: failed(call, match[0].strip()))


FAILURES = (
    # vLLM, about the end of its engine
    pattern_of("EngineCore ", r"^EngineCore (?:encountered a fatal error|hit an exception|failed to start)", _died),
    pattern_of("EngineDeadError", r"^(?:[A-Za-z_][\w.]*\.)?(?:Async|MQ)?EngineDeadError\b.{0,200}", _died),
    pattern_of(" died", r"^Engine (?:core )?proc(?:ess)?\b.{1,80}? died\b.{0,40}", _died),
    pattern_of(
        " died unexpectedly",
        r"^(?:Ray)?Worker ?[Pp]roc\b.{1,80}? died unexpectedly.{0,30}, shutting down executor",
        _died,
    ),
    pattern_of("Process EngineCore", r"^Process EngineCore[\w-]*:$", _died),
    pattern_of("(engine dead)", r"^Request \S+ failed \(engine dead\)", _died),
    pattern_of("Engine background task failed", r"^Engine background task failed", _died),
    pattern_of("Background loop has errored", r"^Background loop has errored already", _died),
    # vLLM, SimpleCPUOffloadConnector
    _raised(
        "update_state_after_alloc",
        " is not aligned to hash_block_size",
        rf"num_external_tokens={NUMBER} is not aligned to hash_block_size={NUMBER}",
    ),
    _raised(
        "update_state_after_alloc",
        "SimpleCPU external loads must start",
        r"SimpleCPU external loads must start at a scheduler-block boundary",
    ),
    # vLLM, HF3FSConnector
    _raised(
        "update_state_after_alloc",
        "Block count mismatch for ",
        rf"Block count mismatch for [^\s:]+: expected {NUMBER}, got {NUMBER}",
    ),
    # LMCache in vLLM's process
    _raised(
        "build_connector_meta",
        "has num_computed_tokens",
        rf"Preempted request [^\s,]+ has num_computed_tokens {NUMBER} but expected {NUMBER}",
    ),
    _raised(
        "build_connector_meta",
        "was not given a load spec",
        r"Request [^\s,]+ is preempted but was not given a load spec",
    ),
    # LMCache in a process of its own
    _raised(
        "build_connector_meta",
        "The number of LMCache hit blocks should be",
        r"The number of LMCache hit blocks should be a multiple of the number of blocks in a lmcache chunk",
    ),
    _raised(
        "build_connector_meta",
        "The number of block hashes should be",
        r"The number of block hashes should be greater than or equal to the number of LMCache hit blocks",
    ),
    _raised("build_connector_meta", "Request tracker for ", r"Request tracker for request_id [^\s,]+ not found"),
    # vLLM, MultiConnector
    _raised(
        "request_finished",
        "Key clash in kv_transfer_params",
        r"Key clash in kv_transfer_params from multiple connectors",
    ),
)
