"""The savings of the offload in a recorded history: the same sums as a tracer's, computed while an audit reads it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from kvtrail.tracer.capacity.memory_curves import MemoryCurve, memory_curves
from kvtrail.tracer.capacity.online_curve import STRETCH_S, OnlineMissRatioCurve
from kvtrail.tracer.events.events import Event
from kvtrail.tracer.events.semconv import ENGINE_ID
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.ledger.facts import Breakdown, Fact
from kvtrail.tracer.model.engines import memory_limit
from kvtrail.tracer.savings.counter import SavingsCounter
from kvtrail.tracer.savings.minute_sums import SavingsRow
from kvtrail.tracer.savings.sums import Savings, prefill_rates, savings_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """The savings of one connector of an engine.

    Attributes:
        engine, connector: their ids.
        worth: the sums.
        memory: the hit rates at other capacities of its store; None if no admission has block hashes.
        limit: bytes that the store may hold on each worker; None if the engine's settings do not say.
        prefill_rate: the engine's rate in tokens per second; None if its steps do not show it.
    """

    engine: str
    connector: str
    worth: Savings
    memory: MemoryCurve | None
    limit: int | None
    prefill_rate: float | None

    def as_dict(self, engine_names: Mapping[str, str]) -> dict[str, Any]:
        """JSON-ready data."""
        return {**asdict(self), "engine_name": engine_names.get(self.engine, self.engine)}


class RecordedSavings:
    """Listens to a detector.

    Attributes:
        listeners: the detector's callbacks, by argument name.
    """

    def __init__(self) -> None:
        self._counter = SavingsCounter()
        self._curve = OnlineMissRatioCurve()
        self.listeners: dict[str, Any] = {
            "on_fact": self._sum_up,
            "on_causes": self._explain,
            "on_reset": self._curve.reset,
        }

    def _sum_up(self, fact: Fact, account: Account) -> None:
        """Enter a fact."""
        self._counter.enter(fact, account)
        self._add(fact.event, self._curve.enter(fact))

    def _explain(self, _: Event, breakdown: Breakdown) -> None:
        """Enter the parts of a prompt that an event has made final."""
        self._counter.explain(breakdown)
        self._add(breakdown.event, self._curve.admitted(breakdown))

    def _add(self, event: Event, measures: Mapping[str, int]) -> None:
        self._counter.sums.add(event, measures, stretch_s=STRETCH_S)
        self._counter.facts.clear()  # they are not written one by one

    def saved(self, resources: Iterable[Mapping[str, Any]]) -> list[Saved]:
        """The savings of each connector of each engine; `resources` are those of their recorders."""
        limits: dict[object, int] = {}
        for resource in resources:
            if (limit := memory_limit(resource)) is not None:
                engine = resource.get(ENGINE_ID.key)
                limits[engine] = max(limit, limits.get(engine, 0))
        rows = self._counter.sums.rows()
        rates = prefill_rates(rows)
        curves = {(curve.engine, curve.connector): curve for curve in memory_curves(rows)}
        places: dict[tuple[str, str], list[SavingsRow]] = {}
        for row in rows:
            places.setdefault((row.engine, row.connector), []).append(row)
        found = [
            Saved(
                engine=engine,
                connector=connector,
                worth=savings_of(own, rates=rates),
                memory=curves.get((engine, connector)),
                limit=limits.get(engine),
                prefill_rate=rates.get(engine),
            )
            for (engine, connector), own in sorted(places.items())
        ]
        return [each for each in found if each.worth.admissions]
