"""What causes each failure of the conformance matrix: the section of `docs/findings.md` that says which upstream lines do."""

from __future__ import annotations

import re

KEYS = "LMCache 0.5.6: keys do not tell adapters apart, and in one process not cache salts either"
AFTER_RESET = "LMCache 0.5.6: after a reset, requests that wait are answered as before"
IN_PROCESS = r"LMCacheConnectorV1(Dynamic|-native)?"
MULTIPROCESS = r"LMCacheMPConnector(-vllm)?"
OFFLOADING = r"OffloadingConnector(-tiers)?|MultiConnector"
DEADLOCK = "vLLM 0.22's scheduler and before: asynchronous loads hold all blocks, and none can go on"
EMPTY = "MultiConnector of vLLM 0.25 and before: connectors that are not chosen get no blocks"

CAUSES: tuple[tuple[str, str, str], ...] = (
    (r"ExampleConnector", "hits: ", "ExampleConnector of vLLM 0.32: tokens that were never computed"),
    (r"ExampleConnector", "rule: over-report", "ExampleConnector of vLLM 0.32: a negative answer"),
    (IN_PROCESS, "hits: ", KEYS),
    (IN_PROCESS, "rule: reset-hit", AFTER_RESET),
    (IN_PROCESS, "_requests_priority remembers", "LMCache 0.3.11 to 0.5.6: the priority of a preempted request leaks"),
    (IN_PROCESS, "load_specs remembers", "LMCache 0.5.6: what an aborted request was to load is remembered for ever"),
    (IN_PROCESS, "rule: stale-lookup", "LMCache 0.3.10: a remembered lookup answer (known: #2158)"),
    (
        "LMCacheConnectorV1-native",
        "rule: (plan-blocks|store-uncomputed)",
        "LMCacheConnectorV1 of vLLM 0.32 (`use_native`): KV of the wrong blocks after a preemption",
    ),
    (MULTIPROCESS, "hits: ", KEYS),
    (MULTIPROCESS, "rule: reset-hit", AFTER_RESET),
    (
        MULTIPROCESS,
        "rule: retried-lookup",
        "LMCacheMPConnector of vLLM 0.32: a repeated lookup moves the start of the store (known: LMCache #4508)",
    ),
    (
        MULTIPROCESS,
        "rule: store-gap",
        "LMCacheMPConnector of vLLM 0.32: tokens that vLLM had computed are not counted",
    ),
    (
        MULTIPROCESS,
        "rule: store-uncomputed",
        "LMCacheMPConnector of LMCache 0.5.6: after a failed load, KV is stored before it is computed",
    ),
    (
        "LMCacheMPConnector-vllm",
        "rule: stuck-load",
        "LMCacheMPConnector of vLLM 0.32: after a failed load, the request waits forever",
    ),
    (
        MULTIPROCESS,
        "rule: load-range",
        "LMCacheMPConnector of vLLM 0.29 and before: it loads although another connector was chosen",
    ),
    (
        OFFLOADING,
        r"rule: failed-call.*AssertionError.*in build_connector_meta",
        "OffloadingConnector of vLLM 0.21 to 0.32: a reset preempts a request that then loads in the same step",
    ),
    (
        OFFLOADING,
        r"rule: failed-call.*AssertionError.*_build_store_jobs",
        "OffloadingConnector of vLLM 0.26: a request is aborted before its prompt is computed",
    ),
    (IN_PROCESS, "rule: failed-call", "LMCache 0.4.5 to 0.5.0: an abort ends the engine (known: LMCache #3337)"),
    (MULTIPROCESS, "rule: plan-blocks", EMPTY),
    ("MultiConnector", "rule: (plan-blocks|unreported-blocks)", EMPTY),
    (
        "SimpleCPUOffloadConnector",
        "rule: failed-call.*NotImplementedError",
        "SimpleCPUOffloadConnector of vLLM 0.23 and before: a reset raises an error",
    ),
    (
        "NixlPushConnector",
        "rule: (stuck-load|late-free)",
        "vLLM 0.32, NixlPushConnector: a write that fails, or a registration that comes late, is answered by nobody",
    ),
    (
        "NixlPushConnector",
        "rule: unacknowledged-handoff|_recving_metadata(.remote)? remembers",
        "vLLM 0.32, NixlPushConnector: the engine that prefilled is not notified of a request that left the queue",
    ),
    (
        "NixlPushConnector",
        r"^vLLM 0\.2[4-7]\.\d+: bytes: a request has read KV that is not its own",
        "NixlPushConnector of vLLM 0.27 and before: where the decoding engine has a part of the prompt, the wrong blocks are"
        " written",
    ),
    (
        "NixlPushConnector",
        "rule: stale-handoff.*own write",
        "vLLM 0.32, NixlPushConnector: blocks are given back while they are written to the other engine",
    ),
    (
        "NixlPushConnector",
        r"^vLLM 0\.2[4-9]\.\d+: rule: failed-call.*not found in recving_metadata",
        "NixlPushConnector of vLLM 0.29 and before: a write that fails ends the engine that prefills",
    ),
    (
        "NixlConnector",
        r"^vLLM 0\.2[6-9]\.\d+: rest: .*_recving_metadata(.remote)? remembers",
        "NixlConnector of vLLM 0.29 and before: a request that left the queue is remembered for ever",
    ),
    (
        r".*",
        r"^vLLM 0\.26\.\d+: rule: null-block: .*\(mamba\)",
        "vLLM 0.26's scheduler: with recurrent states, the longest hit of any KV cache group counts (known: #46453)",
    ),
    (
        r".*",
        r"^vLLM 0\.2[0-2]\.\d+: (rule: never-scheduled|hang: requests never end|rest: a reset is refused)",
        DEADLOCK,
    ),
    (
        OFFLOADING,
        r"rule: failed-call.*KeyError",
        "OffloadingConnector of vLLM 0.22 to 0.25: a reset while a running request has an open store",
    ),
)
"""Rows and failures, as regular expressions of the row's id and of version, id and text; and the section's heading."""


def cause(row: str, version: str, failure: str, text: str) -> str | None:
    """The heading of the section about a failure's cause; None where it has not been looked into."""
    for rows, failures, section in CAUSES:
        if re.fullmatch(rows, row) and re.search(failures, f"{version}: {failure}: {text}", re.DOTALL):
            return section
    return None


def anchor(heading: str) -> str:
    """Where GitHub's rendering of Markdown puts a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
