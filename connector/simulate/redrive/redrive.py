"""Drive a recorded history again: the real scheduler, the same lengths, arrivals and sharing, any connector."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kvtrail.connector.registration import configuration
from kvtrail.connector.simulate.redrive.compare import Closeness, compare
from kvtrail.connector.simulate.redrive.workload import Workload, workload_of
from kvtrail.connector.simulate.run import Played, play
from kvtrail.tracer.replay.history import History
from kvtrail.tracer.replay.judging import found_in


@dataclass(frozen=True, kw_only=True)
class Redriven:
    """What came of it.

    Attributes:
        connector: its name.
        workload: what the recording was taken for, with what had to be guessed.
        played: the run: its events, findings, and what the engine died of.
        closeness: the run beside the recording.
    """

    connector: str
    workload: Workload
    played: Played
    closeness: Closeness


def redrive(
    history: History,
    *,
    connector: str | None = None,
    config: Mapping[str, Any] | None = None,
    recorder: str | None = None,
    whole_engine: bool = False,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Redriven:
    """Make a scenario of a history and play it.

    `connector` is a name that vLLM knows, `module:Class`, or `Faulty:<fault>:<connector>`; the recorded one if none is given.
    `config` is its `kv_connector_extra_config`; the recorded numbers if none is given. `recorder` names one of several in
    the history, or its engine. With `whole_engine` the CPU engine runs it, model and worker included, instead of the bare
    scheduler.

    `progress` hears how many steps were made, and in which step the last request arrives: the run ends some time after it.

    Raises:
        NotDrivable: the history does not hold what it takes.
        Unbuildable: vLLM refuses the settings or the connector.
    """
    workload = workload_of(history, recorder=recorder)
    name = connector or workload.connector
    transfer = configuration(name, workload.settings if config is None else config)
    last = max((each.at_step for each in workload.scenario.arrivals), default=0)
    played = play(workload.scenario, transfer, whole_engine=whole_engine, on_step=lambda step: progress(step, last))
    recorded = list(found_in(history.events).values())
    return Redriven(
        connector=name,
        workload=workload,
        played=played,
        closeness=compare(workload.lives, recorded, played.events, played.findings),
    )
