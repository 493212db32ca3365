"""Outcomes of requests, states of engines and the impact of findings for API answers, and filtering of requests by outcome.
`liveness/` has the rules; stores do not hold outcomes, since these depend on the engine's state."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from kvtrail.tracer.liveness.engine import EngineState, Launch, at_present, last_launches
from kvtrail.tracer.liveness.markers import of_launches
from kvtrail.tracer.liveness.request_outcome import impact_of, of_ending, outcome_of
from kvtrail.tracer.model.conditions import AMONG, ENDING, Condition
from kvtrail.tracer.model.known import KnownFindings, place_of
from kvtrail.tracer.model.markers import Marker
from kvtrail.tracer.model.outcomes import Outcome
from kvtrail.tracer.serve.api.process_state import Live
from kvtrail.tracer.serve.receive.engines import NOTE_ENGINE_NS
from kvtrail.tracer.store import Selection
from kvtrail.tracer.store.reader import Reader
from kvtrail.tracer.store.request_rows import StoredRequest

MOST_OF_A_KIND = 2_000
"""Maximum number of stored markers that are read for each kind, the latest first."""
_OF_ENGINE = ("service", "model")
"""The fields of a request that describe its engine."""


class OutcomeResolver:
    """The states of engines at one moment, and the outcomes of requests and the impact of findings that follow from them.
    Used for one answer.

    Attributes:
        engines: each engine's `name`, its description, and its number of `open` requests, from the store.
        names, models: display names and models of the engines, by id.
        launches: each engine's last launch in its current state.
        every_launch: the same and all earlier launches.
        known: the known findings.
    """

    def __init__(self, process: Live, reader: Reader) -> None:
        self._reader = reader
        self.engines = reader.engines()
        self.names = {engine: str(about["name"]) for engine, about in self.engines.items()}
        self.models = {engine: str(about["model"]) for engine, about in self.engines.items()}
        stored = reader.launches()
        self._causes = {launch.cause.id for launch in stored if launch.cause is not None}
        last, heard, noted, now_ns = last_launches(stored), process.running(), reader.heard(), time.time_ns()
        self.launches = {
            engine: at_present(
                last.get(engine) or Launch(engine=engine, launch="", state=EngineState.NOT_OBSERVED, began_ns=0),
                is_heard=engine in heard,
                heard_ns=noted.get(engine, 0),
                note_every_ns=NOTE_ENGINE_NS,
                open_requests=about["open"],
                now_ns=now_ns,
            )
            for engine, about in self.engines.items()
        }
        present = (*stored, *self.launches.values())
        self.every_launch = list({(each.engine, each.launch): each for each in present}.values())
        self.known = KnownFindings(process.known_findings.content, self.engines, at_ns=now_ns)

    def name(self, engine: str) -> str:
        """An engine's display name."""
        return self.names.get(engine, engine)

    def state(self, engine: str) -> EngineState:
        """The state of an engine."""
        return self.launches[engine].state if engine in self.launches else EngineState.NOT_OBSERVED

    def engine(self, engine: str) -> dict[str, Any]:
        """The state of an engine, and how it ended, as JSON-ready data."""
        launch = self.launches[engine]
        cause = launch.cause
        return {
            "state": launch.state,
            "ended_ns": launch.ended_ns,
            "ended_by": launch.ended_by,
            "lost": launch.lost,
            "cause": None if cause is None else asdict(cause),
        }

    def about(self, request: StoredRequest) -> dict[str, Any]:
        """Fields that an answer adds to the JSON of a request: its outcome and its engine's description."""
        engine = self.engines.get(request.engine, {})
        return {
            "engine_name": self.name(request.engine),
            **{name: engine.get(name, "") for name in _OF_ENGINE},
            "outcome": self.outcome_of(request.engine, request.status, request.outcome),
        }

    def findings(self, findings: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Findings with their impact, the reason if they are known, and their engine's description."""
        return [
            {
                **finding,
                "known": None if (known := self.known.of(place_of(finding))) is None else known.as_dict(),
                "engine_name": self.name(finding["engine"]),
                "model": self.models.get(finding["engine"], ""),
            }
            for finding in self.impacts(findings)
        ]

    def impacts(self, findings: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Findings with their impact (`did`)."""
        requests = {(finding["engine"], finding["request"]) for finding in findings if finding["request"]}
        known = self._reader.outcomes(requests)
        outcomes = {key: self.outcome_of(key[0], *about) for key, about in known.items()}
        return [
            {
                **finding,
                "did": impact_of(
                    outcomes.get((finding["engine"], finding["request"])),
                    rule=finding["rule"],
                    severity=finding["severity"],
                    healed=finding["healed"],
                    count=finding["count"],
                    is_cause=finding["id"] in self._causes,
                    was_stopped=self.state(finding["engine"]) is EngineState.DRAINED,
                ),
            }
            for finding in findings
        ]

    def outcome_counts(self, *, since_ns: int, before_ns: int, engines: Sequence[str] | None) -> dict[str, int]:
        """The number of requests by outcome, among those that began at or after `since_ns` and before `before_ns`."""
        counts = dict.fromkeys(map(str, Outcome), 0)
        for engine, ending, count in self._reader.endings(
            Selection(since_ns=since_ns, before_ns=before_ns, engines=engines)
        ):
            counts[of_ending(Outcome(ending), self.state(engine))] += count
        return counts

    def markers(self, *, since_ns: int, until_ns: int, chosen: Collection[str] | None = None) -> list[Marker]:
        """The single markers of a range; with `chosen`, only markers of these engines."""
        every = [
            *of_launches(self.every_launch, self.engines, since_ns=since_ns, until_ns=until_ns),
            *self._reader.markers(since_ns=since_ns, until_ns=until_ns, limit=MOST_OF_A_KIND),
        ]
        return [each for each in every if chosen is None or each.engine in chosen]

    def condition(self, outcome: Outcome) -> Condition:
        """The store's conditions for requests with this outcome: a store knows how requests ended."""
        meant = (
            f"{engine} {ending}"
            for engine in self.engines
            for ending in Outcome
            if of_ending(ending, self.state(engine)) is outcome
        )
        return Condition(ENDING, AMONG, tuple(meant))

    def outcome_of(self, engine: str, status: str, reason: str | None) -> Outcome:
        """The outcome of a request of this engine, by the `status` and `outcome` of its account."""
        return outcome_of(status, reason, self.state(engine))


def deaths(launches: Iterable[Launch], *, since_ns: int, until_ns: int) -> list[dict[str, Any]]:
    """The launches that died in a time range, including its end, as JSON-ready data."""
    died = [
        {"engine": each.engine, "at_ns": each.ended_ns, "ended_by": each.ended_by, "lost": each.lost}
        for each in launches
        if each.state is EngineState.DIED and each.ended_ns is not None and since_ns <= each.ended_ns <= until_ns
    ]
    return sorted(died, key=lambda death: death["at_ns"])
