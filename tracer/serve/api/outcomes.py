"""What answers of the api say beyond what is stored: what became of requests and engines, and what findings did."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from kvtrail.tracer.detect.tracked import Key
from kvtrail.tracer.liveness.recorders import SILENT_NS
from kvtrail.tracer.model.launches import FINAL, Launch, State, latest
from kvtrail.tracer.model.outcomes import Outcome, did, outcome
from kvtrail.tracer.serve.api.process_state import Live
from kvtrail.tracer.serve.receive.reception import NOTE_ENGINE_NS
from kvtrail.tracer.store import Reader

_OF_ENGINE = ("service", "model")
"""What a request says of its engine."""


class Fates:
    """What became of requests and engines, and what findings did, as it is known at one moment: for one answer.

    Attributes:
        engines: each engine's `name`, its description, and how many of its requests are `open`, as the store has them.
        launches: each engine's last launch, as it is now.
    """

    def __init__(self, process: Live, reader: Reader) -> None:
        self._reader = reader
        self.engines = reader.engines()
        stored = reader.launches()
        self._causes = {launch.cause.id for launch in stored if launch.cause is not None}
        self.launches = _now(latest(stored), self.engines, process.running(), reader.heard())

    def name(self, engine: str) -> str:
        """An engine's name for people."""
        return str(self.engines[engine]["name"]) if engine in self.engines else engine

    def state(self, engine: str) -> State:
        """How an engine is."""
        return self.launches[engine].state if engine in self.launches else State.UNSEEN

    def engine(self, engine: str) -> dict[str, Any]:
        """How an engine is, or how it ended, as JSON-ready data."""
        launch = self.launches[engine]
        cause = launch.cause
        return {
            "state": launch.state,
            "ended_ns": launch.ended_ns,
            "ended_by": launch.ended_by,
            "lost": launch.lost,
            "cause": None if cause is None else asdict(cause),
        }

    def request(self, account: Mapping[str, Any]) -> dict[str, Any]:
        """An account with what became of its request, and what its engine is."""
        about = self.engines.get(account["engine"], {})
        return {
            **account,
            "engine_name": self.name(account["engine"]),
            **{name: about.get(name, "") for name in _OF_ENGINE},
            "outcome": self._outcome(account["engine"], account["status"], account["outcome"]),
            "reason": account["outcome"],
        }

    def findings(self, findings: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Findings with what they did, and what their engine is."""
        became = self._became({(finding["engine"], finding["request"]) for finding in findings if finding["request"]})
        return [
            {
                **finding,
                "engine_name": self.name(finding["engine"]),
                "model": self.engines.get(finding["engine"], {}).get("model", ""),
                "did": did(
                    became.get((finding["engine"], finding["request"])),
                    rule=finding["rule"],
                    healed=finding["healed"],
                    count=finding["count"],
                    is_cause=finding["id"] in self._causes,
                ),
            }
            for finding in findings
        ]

    def _became(self, requests: Collection[Key]) -> dict[Key, Outcome]:
        known = self._reader.outcomes(requests) if requests else {}
        return {(engine, request): self._outcome(engine, *about) for (engine, request), about in known.items()}

    def _outcome(self, engine: str, status: str, ended: str | None) -> Outcome:
        return outcome(status, ended, self.state(engine))


def _now(
    last: Mapping[str, Launch],
    engines: Mapping[str, Mapping[str, Any]],
    heard: Collection[str],
    noted: Mapping[str, int],
) -> dict[str, Launch]:
    """The engines' last launches as they are now. `heard` are those that are heard, and `noted` has when that was last
    written down."""
    now_ns = time.time_ns()
    launches = {}
    for engine, about in engines.items():
        launch = last.get(engine) or Launch(engine=engine, launch="", state=State.UNSEEN, began_ns=0)
        if launch.state not in FINAL:
            if engine in heard:
                launch = replace(launch, state=State.RUNNING, ended_ns=None, lost=0)
            elif launch.state is State.RUNNING:
                launch = _unheard(launch, noted.get(engine, 0), open_requests=about["open"], now_ns=now_ns)
        launches[engine] = launch
    return launches


def _unheard(launch: Launch, noted_ns: int, *, open_requests: int, now_ns: int) -> Launch:
    """A launch that was running when its tracer was last heard of: the tracer may have been started a moment ago, or have
    gone with the engine."""
    if now_ns - noted_ns <= SILENT_NS + NOTE_ENGINE_NS:
        return replace(launch, state=State.UNSEEN)
    return replace(launch, state=State.SILENT, ended_ns=noted_ns, lost=open_requests)


def deaths(launches: Iterable[Launch]) -> list[dict[str, Any]]:
    """The deaths among launches, as JSON-ready data."""
    died = sorted((each for each in launches if each.state is State.DIED), key=lambda each: each.ended_ns or 0)
    return [{"engine": d.engine, "at_ns": d.ended_ns, "ended_by": d.ended_by, "lost": d.lost} for d in died]
