"""Drives a recorded history again on vLLM's real scheduler, with the recorded connector or another one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvtrail.connector.known import has_other_writers, part_of, plain_name
from kvtrail.connector.known.recorded import RecordedStore
from kvtrail.connector.registration import configuration, resolve
from kvtrail.connector.simulate import tiny_model
from kvtrail.connector.simulate.redrive.comparison import Comparison, compare
from kvtrail.connector.simulate.redrive.recorded import RecordedRequest
from kvtrail.connector.simulate.redrive.workload import NotDrivable, Workload, begun, workload_of
from kvtrail.connector.simulate.run import Played, Unbuildable, play
from kvtrail.connector.tracing.traced import Tracing
from kvtrail.tracer.events.events import Event, Lookup
from kvtrail.tracer.history.history import History


@dataclass(frozen=True, kw_only=True)
class Redriven:
    """The result of a re-drive.

    Attributes:
        connector: its name.
        settings: its `kv_connector_extra_config`.
        workload: the scenario, with notes about what is not recorded.
        played: the run.
        comparison: the run beside the recording.
    """

    connector: str
    settings: Mapping[str, Any]
    workload: Workload
    played: Played
    comparison: Comparison


def redrive(
    history: History,
    *,
    connector: str | None = None,
    config: Mapping[str, Any] | None = None,
    recorder: str | None = None,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Redriven:
    """Make a scenario of a history, play it, and compare each answer of the connector with the recorded one.

    Args:
        connector: a name that vLLM knows, `module:Class`, or `Faulty:<fault>:<connector>`; by default the recorded one, if
            vLLM knows it by its name.
        config: its `kv_connector_extra_config`; overrides the recorded numbers and what the recording shows of the store.
        recorder: a recorder, or its engine, if the history has several.
        progress: called with the number of steps so far, and the step in which the last request arrives.

    Raises:
        NotDrivable: the history lacks what is needed.
        Unbuildable: vLLM refuses the settings or the connector, or it cannot be imported.
    """
    workload = workload_of(history, recorder=recorder)
    name = connector or _recorded(workload)
    recorded, notes = _settings(name, workload)
    if any(lookup.refused is not None for request in workload.requests.values() for lookup in request.lookups):
        recorded = {"kvtrail": {"guard": "heal"}, **recorded}  # the scheduler acted on the guard's answers
    settings = {**recorded, **(config or {})}
    last = max((each.at_step for each in workload.scenario.arrivals), default=0)
    played = play(
        workload.scenario,
        configuration(name, settings),
        on_step=lambda step: progress(step, last),
    )
    doubts = (*workload.notes, *notes)
    return Redriven(
        connector=name,
        settings=settings,
        workload=workload,
        played=played,
        comparison=compare(workload.requests, history.events, _requests(played.events), played, doubts),
    )


def _recorded(workload: Workload) -> str:
    """The name of the recorded connector.

    Raises:
        NotDrivable: vLLM does not know it, and its module would have to be imported.
    """
    if ":" in workload.connector:
        raise NotDrivable(
            f"the connector was recorded as {workload.connector}, which vLLM does not know by a name, and no file chooses"
            f" what is imported. If you trust this module, name it: `kvtrail replay --against {workload.connector}`"
            f" or `kvtrail minimize --connector {workload.connector}`"
        )
    return workload.connector


def _settings(name: str, workload: Workload) -> tuple[Mapping[str, Any], list[str]]:
    """The configuration of the connector, with the store that the recording shows, and notes about what it does not show.

    Raises:
        Unbuildable: there is no such connector here; the text says why.
    """
    tiny_model.prepare_environment()
    try:
        traced = resolve(configuration(name, {})["kv_connector"])
    except (AttributeError, ImportError, TypeError) as error:
        why = str(error).removeprefix("kvtrail: ").partition(" For a class of your own")[0]
        raise Unbuildable(
            f"{name}: {why} A class of your own is module:Class, with its package on PYTHONPATH."
        ) from error
    plain = next(base for base in traced.__mro__ if not issubclass(base, Tracing))
    same = plain_name(plain) == workload.connector_class
    known = part_of(plain, "recorded")
    notes = []
    if known is None and has_other_writers(plain):
        notes.append(f"What others had written into the store of {name} is not recorded.")
    block_size, declared = workload.scenario.block_size, workload.scenario.groups
    groups = tiny_model.kv_cache(1, block_size, groups=declared).kv_cache_groups
    store = RecordedStore(
        settings=workload.settings if same else {},
        same_connector=same,
        chunk_size=workload.chunk_size,
        block_size=block_size,
        block_bytes=sum(group.kv_cache_spec.page_size_bytes * len(group.layer_names) for group in groups),
        events=workload.events,
        matched={name: list(_matched(request)) for name, request in workload.requests.items()},
        notes=notes,
    )
    return store.settings if known is None else known(store), notes


def _matched(request: RecordedRequest) -> list[int]:
    """The number of tokens that the store held at each lookup of a request, without lookups answered from memory."""
    asked = (lookup for lookup in request.lookups if not lookup.cached)
    held = [
        lookup.computed + (lookup.answer or 0) if lookup.matched is None and lookup.answer else lookup.matched
        for lookup in asked
    ]
    known = held.index(None) if None in held else len(held)
    return [tokens for tokens in held[:known] if tokens is not None]


def _requests(events: Sequence[Event]) -> dict[str, RecordedRequest]:
    """The requests of a run. Only the first child of a MultiConnector is compared."""
    first_id = next((e.connector_id for e in events if isinstance(e, Lookup)), None)
    return begun([e for e in events if not isinstance(e, Lookup) or e.connector_id == first_id])
