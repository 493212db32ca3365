"""Findings in connectors that others wrote, each with the smallest scenario that shows it: data for the tests, and for the
traces in tests/golden/findings, which
`PYTHONPATH=tests python tests/connector/simulate/check/known_findings.py` writes again.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import forks
import real_lmcache

from kvtrail.connector.simulate.scenario import Arrival, CachesReset, Scenario, Workers

TRACES = real_lmcache.ROOT / "tests" / "golden" / "findings"
HEAD = "head"


@dataclass(frozen=True, kw_only=True)
class KnownFinding:
    """A scenario that shows a finding in a connector that others wrote.

    Attributes:
        id: of its trace.
        rule: the rule that reports it.
        scenario: what shows it.
        connector, extra: the connector and its configuration.
        lmcache: the version of LMCache that it needs.
        environment: variables that it needs.
        mended: the same connector without the defect, where a test has one.
    """

    id: str
    rule: str
    scenario: Scenario
    connector: str
    extra: Mapping[str, Any] = field(default_factory=dict)
    lmcache: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    mended: str | None = None

    @property
    def trace(self) -> Path:
        return TRACES / f"{self.id}.jsonl"

    def play(self, *, connector: str | None = None, trace: Path | None = None) -> dict[str, Any]:
        """Play its scenario in a process of its own, perhaps with another connector: `failures`, by id, and `hits`."""
        paths = [real_lmcache.PROGRAMS]
        paths += real_lmcache.folders(self.lmcache) if self.lmcache else []
        task = {
            "connector": connector or self.connector,
            "extra": dict(self.extra),
            "scenario": self.scenario.as_dict(),
            "trace": None if trace is None else str(trace),
        }
        quiet = {"VLLM_LOGGING_LEVEL": "ERROR", "LMCACHE_LOG_LEVEL": "ERROR", "LMCACHE_TRACK_USAGE": "false"}
        path = {"PYTHONPATH": os.pathsep.join(map(str, paths))}
        process = forks.run(
            [real_lmcache.PROGRAMS / "scheduler.py", json.dumps(task)],
            environment={**os.environ, **quiet, **self.environment, **path},
        )
        lines = [line for line in process.stdout.splitlines() if line.startswith("{")]
        assert lines, (process.stdout + process.stderr)[-4000:]
        answer: dict[str, Any] = json.loads(lines[-1])
        return answer


_IN_VLLM = {"LMCACHE_USE_UPSTREAM_MP": "1"}
_SMALL_CHUNKS = {"kvtrail.fake": {"chunk_size": 64}}
_STORED = Arrival("stores", ((HEAD, 128), ("a", 10)))
_AT_ONCE = Workers(latest_steps=0)
_FAILING = Workers(latest_steps=0, load_failures=1.0)
_PREEMPTED = Scenario(
    arrivals=(Arrival("grows", (("a", 90),), 12), Arrival("preempted", (("b", 330),), at_step=3)),
    num_blocks=13,
    workers=_AT_ONCE,
)

FINDINGS = (
    KnownFinding(
        id="lmcache-mp-in-vllm-retried-lookup",
        rule="retried-lookup",
        connector="LMCacheMPConnector",
        extra=_SMALL_CHUNKS,
        lmcache="0.5.6",
        environment=_IN_VLLM,
        mended="mended:LMCacheMPConnectorSets",
        scenario=Scenario(
            arrivals=(
                _STORED,
                Arrival("fills", (("b", 630),), 2, at_step=6),
                Arrival("waits", ((HEAD, 128), ("c", 400)), at_step=10),
            ),
            resets=(CachesReset(5),),
            num_blocks=24,
            settings={"max_num_batched_tokens": 160},
            workers=_AT_ONCE,
        ),
    ),
    KnownFinding(
        id="lmcache-mp-in-vllm-hangs-after-failed-load",
        rule="stuck-load",
        connector="LMCacheMPConnector",
        extra=_SMALL_CHUNKS,
        lmcache="0.5.6",
        environment=_IN_VLLM,
        mended="mended:LMCacheMPConnectorForgets",
        scenario=Scenario(
            arrivals=(_STORED, Arrival("loads", ((HEAD, 128), ("c", 40)), at_step=6)),
            resets=(CachesReset(5),),
            workers=_FAILING,
        ),
    ),
    KnownFinding(
        id="lmcache-mp-in-vllm-stores-too-little",
        rule="store-gap",
        connector="LMCacheMPConnector",
        extra=_SMALL_CHUNKS,
        lmcache="0.5.6",
        environment=_IN_VLLM,
        scenario=Scenario(
            arrivals=(Arrival("short", ((HEAD, 60),)), Arrival("longer", ((HEAD, 60), ("b", 70)), at_step=4)),
            workers=_AT_ONCE,
        ),
    ),
    KnownFinding(
        id="lmcache-mp-0.5.6-stores-uncomputed",
        rule="store-uncomputed",
        connector="LMCacheMPConnector",
        extra=_SMALL_CHUNKS,
        lmcache="0.5.6",
        scenario=Scenario(
            arrivals=(
                _STORED,
                Arrival("short", ((HEAD, 66),), at_step=6),
                Arrival("loads", ((HEAD, 128), ("c", 120)), at_step=12),
            ),
            resets=(CachesReset(5),),
            settings={"max_num_batched_tokens": 40},
            workers=_FAILING,
        ),
    ),
    KnownFinding(
        id="lmcache-in-vllm-wrong-blocks",
        rule="plan-blocks",
        connector="LMCacheConnectorV1",
        extra={"use_native": True, "lmcache.chunk_size": 64},
        lmcache="0.3.11",
        scenario=_PREEMPTED,
    ),
    KnownFinding(
        id="lmcache-0.3.11-stores-uncomputed",
        rule="store-uncomputed",
        connector="LMCacheConnectorV1",
        extra={"lmcache.chunk_size": 64},
        lmcache="0.3.11",
        scenario=Scenario(
            arrivals=(_STORED, Arrival("loads", ((HEAD, 128), ("c", 70)), at_step=6)),
            resets=(CachesReset(5),),
            workers=_FAILING,
        ),
    ),
    KnownFinding(
        id="lmcache-0.3.10-stale-lookup",
        rule="stale-lookup",
        connector="LMCacheConnectorV1",
        extra={"lmcache.chunk_size": 64},
        lmcache="0.3.10",
        scenario=_PREEMPTED,
    ),
    KnownFinding(
        id="example-negative-answer",
        rule="over-report",
        connector="ExampleConnector",
        scenario=Scenario(
            arrivals=(Arrival("grows", (("a", 90),), 12), Arrival("preempted", (("b", 64),), 12, at_step=1)),
            num_blocks=7,
            workers=_AT_ONCE,
        ),
    ),
)

if __name__ == "__main__":
    for finding in [each for each in FINDINGS if each.id in sys.argv[1:] or not sys.argv[1:]]:
        answer = finding.play(trace=finding.trace)
        print(finding.id, finding.trace.stat().st_size if finding.trace.exists() else 0, answer, flush=True)
