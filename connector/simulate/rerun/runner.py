"""Makes the recorded calls again, one after the other, on a connector object, and compares the answers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from msgspec.structs import fields, replace

from kvtrail.connector.known.environment import Environment
from kvtrail.connector.known.probe import Evicted, Planned, Probe, Seen
from kvtrail.connector.recording.messages import located, without_place
from kvtrail.connector.simulate.prefixes import Prefixes
from kvtrail.connector.simulate.rerun.calls import Call, Method, RecordedCalls
from kvtrail.connector.simulate.rerun.fakes import FakeCacheManager, FakeRequest, FakeRequests, NotRecorded, Run
from kvtrail.connector.simulate.rerun.forks import Forks
from kvtrail.connector.simulate.rerun.outcome import Compared, Outcome
from kvtrail.connector.simulate.rerun.plain_steps import is_plain
from kvtrail.tracer.events.events import (
    Alloc,
    Event,
    Evict,
    LoadError,
    LoadPlan,
    Lookup,
    Plan,
    Preempt,
    Received,
    RequestEnd,
    RequestStart,
    Reset,
    Schedule,
    Sent,
    StorePlan,
    TransferEnd,
)

Answer = dict[str, Any]
_EVENT_FIELDS = [field.name for field in fields(Event)]
_numbers = count()


@dataclass(frozen=True, slots=True)
class Made:
    """A call that was made, or could not be.

    Attributes:
        compared: how it compares, without its meaning.
        recorded, answered: the events of the recorded answer and of the new one, by which they are judged.
    """

    compared: Compared
    recorded: Sequence[Event]
    answered: Sequence[Event]


class Runner:
    """One re-run.

    Attributes:
        made: the calls so far.
        replaced: for each recorded event, by its span id, the events that would be recorded instead of it now.
        died_at: the call at which the connector raised what the recorded one had not.
    """

    def __init__(
        self, recorded: RecordedCalls, prefixes: Prefixes, environment: Environment, connector: Any, probe: Probe
    ) -> None:
        self.made: list[Made] = []
        self.replaced: dict[str, list[Event]] = {}
        self.died_at: int | None = None
        self._recorded = recorded
        self._prefixes = prefixes
        self._requests = FakeRequests(prefixes, one_process=recorded.one_process)
        self._environment = environment
        self._connector = connector
        if hasattr(connector, "bind_kv_cache_manager"):
            connector.bind_kv_cache_manager(FakeCacheManager(self._requests))
        self._probe = probe
        self._forks = Forks()
        self._astray = ""
        self._stopped = ""
        self._number = 0
        self._recorded_last: Event = recorded.calls[0].event

    def run(self, progress: Callable[[int, int], None]) -> None:
        """Make all calls; `progress` is called with how many have been made, and of how many."""
        makers: Mapping[Method, Callable[[Call], Made]] = {
            Method.BEGIN: self._begin,
            Method.LOOKUP: self._look_up,
            Method.ALLOC: self._allocate,
            Method.STEP: self._step,
            Method.REPORT: self._report,
            Method.END: self._end,
            Method.RESET: self._reset,
        }
        for number, call in enumerate(self._recorded.calls):
            self._number = number
            try:
                self.made.append(self._not_made(call) if self._stopped else makers[call.method](call))
            except NotRecorded as missing:
                self._stopped = f"at #{number} {missing}"
                self.made.append(self._not_made(call))
            progress(number + 1, len(self._recorded.calls))

    def _begin(self, call: Call) -> Made:
        event = call.event
        assert isinstance(event, RequestStart)
        held = self._requests.begin(
            event.request or "", event.total or 1, limit=event.limit, priority=event.request_priority or 0
        )
        self._forks.forget(event.request or "")
        _, error = self._ask(self._connector.on_new_request, held.request)
        return self._compare(call, {"total": event.total}, {}, _raised(error), [event])

    def _look_up(self, call: Call) -> Made:
        event = call.event
        assert isinstance(event, Lookup)
        held = self._at(event, event.total)
        held.request.num_computed_tokens = 0  # vLLM looks up only requests without computed tokens
        unknown = self._environment.before_lookup(event)
        answer, error = self._ask(self._connector.get_num_new_matched_tokens, held.request, event.computed)
        returned, is_async = (None, False) if error is not None else answer
        given, refused = returned, None
        if event.refused is not None and (returned, is_async) == (event.refused, event.is_async):
            given, refused = event.returned, event.refused  # the guard would replace it again
        new = replace(event, returned=given, is_async=is_async, refused=refused, error=error)
        if error is None:
            new.matched, new.cached = self._probe.lookup(self._connector, held.request)
            new.chunk_keys = None if event.chunk_keys is None else self._probe.keys(self._connector, held.request)
        reason = self._forks.why_not(event) or unknown
        self._forks.looked_up(self._number, event, new)
        was = {"returned": event.answer, "is_async": event.is_async} | _raised(event.error)
        now = {"returned": returned, "is_async": is_async} | _raised(error)
        promised = event.computed + event.answer if event.answer else 0
        found = promised if event.matched is None else event.matched
        known = not self._environment.by_tokens or self._prefixes.shows(held.name, found)
        unsure = "" if known else "which requests it shares tokens with is not recorded"
        asked = {"total": event.total, "computed": event.computed}
        return self._compare(call, asked, was, now, [new], reason, unsure=unsure)

    def _allocate(self, call: Call) -> Made:
        event = call.event
        assert isinstance(event, Alloc)
        held = self._at(event, event.total)
        external = self._forks.allocated(event)
        blocks = self._requests.allocate(held, event.blocks_ids, event.blocks_count)
        _, error = self._ask(self._connector.update_state_after_alloc, held.request, blocks, external)
        new = replace(event, allocated=external, error=error)
        reason = self._forks.why_not(event)
        if reason and external != event.allocated:
            reason += f"; it was called with {external} external tokens"
        asked = {"total": event.total, "external": event.allocated}
        return self._compare(call, asked, _raised(event.error), _raised(error), [new], reason)

    def _step(self, call: Call) -> Made:
        preempted = {event.request or "" for event in call.events if isinstance(event, Preempt)}
        runs = self._runs(call)
        metadata, error = self._ask(self._connector.build_connector_meta, self._requests.step(runs, preempted))
        self._requests.after(runs)
        planned = [] if error is not None else _planned(self._probe, self._connector, metadata, call.events)
        self._replace_step(call, runs, planned)
        reasons = {event.request: self._why_no_plans(event) for event in (*call.events, *planned) if event.request}
        known = {request for request, reason in reasons.items() if not reason}
        was: Answer = {"plans": _plans(event for event in call.events if event.request in known)}
        now: Answer = {"plans": _plans(event for event in planned if event.request in known)} | _raised(error)
        asked = {"runs": [[r.request, r.computed, r.scheduled] for r in runs], "preempted": sorted(preempted)}
        reason = "" if known or not reasons else next(iter(reasons.values()))
        recorded = [event for event in call.events if isinstance(event, Plan | Evict)]
        if not (reason or self._astray or self._forks.any_taken) and known == set(reasons):
            was, now = was | {"evicted": _evicted(recorded)}, now | {"evicted": _evicted(planned)}
        made = self._compare(call, asked, was, now, planned, reason, recorded=recorded)
        if self._environment.follows_plans and not self._astray and _stored(recorded) != _stored(planned):
            self._astray = f"since #{self._number} its store has held other chunks than then"
        return made

    def _report(self, call: Call) -> Made:
        from vllm.v1.outputs import KVConnectorOutput

        received = {e.request or "" for e in call.events if isinstance(e, Received) and not self._forks.never_loads(e)}
        sent = {event.request or "" for event in call.events if isinstance(event, Sent)}
        ended = [event.transfer_id for event in call.events if isinstance(event, TransferEnd)]
        failed = {block for event in call.events if isinstance(event, LoadError) for block in event.blocks_ids}
        output = KVConnectorOutput(
            finished_recving=received or None, finished_sending=sent or None, invalid_block_ids=failed
        )
        reason = self._environment.before_report(ended, output) if ended else ""
        _, error = self._ask(self._connector.update_connector_output, output)
        asked = {"received": sorted(received), "sent": sorted(sent), "ended": ended, "failed": sorted(failed)}
        return self._compare(call, asked, {}, _raised(error), call.events, reason)

    def _end(self, call: Call) -> Made:
        event = call.event
        assert isinstance(event, RequestEnd)
        request, blocks = self._requests.end(event)
        if hasattr(self._connector, "request_finished_all_groups"):
            answer, error = self._ask(self._connector.request_finished_all_groups, request, (blocks,))
        else:
            answer, error = self._ask(self._connector.request_finished, request, blocks)
        self._requests.forget(event.request or "")
        delayed = None if error is not None else bool(answer[0])
        new = replace(event, free_delayed=delayed, error=error)
        asked = {"total": event.total, "outcome": event.outcome}
        now = {"delayed": delayed} | _raised(error)
        return self._compare(call, asked, {"delayed": event.free_delayed}, now, [new], self._forks.why_not(event))

    def _reset(self, call: Call) -> Made:
        event = call.event
        assert isinstance(event, Reset)
        succeeded, error = self._ask(self._connector.reset_cache)
        new = replace(event, succeeded=succeeded, error=error)
        now = {"succeeded": succeeded} | _raised(error)
        return self._compare(call, {}, {"succeeded": event.succeeded}, now, [new])

    def _ask(self, method: Callable[..., Any], *arguments: Any) -> tuple[Any, str | None]:
        try:
            return method(*arguments), None
        except NotRecorded:
            raise
        except Exception as error:  # whatever a connector raises is its answer
            return None, located(error)

    def _at(self, event: Event, total: int | None = None) -> FakeRequest:
        return self._requests.at(event.request or "", epoch=event.epoch, total=total)

    def _runs(self, call: Call) -> list[Run]:
        """What the step runs. Where steps are not recorded, what was stored shows how far a request had got."""
        runs: dict[str, Run] = {}
        for event in call.events:
            if event.request is None:
                continue
            held = self._at(event)
            if isinstance(event, Schedule):
                runs[event.request] = self._forks.run(event, held)
            elif isinstance(event, StorePlan) and event.start is not None and event.request not in runs:
                end = event.start + event.count
                if self._recorded.drafts:  # what a step runs may still be rejected: it was computed before this step
                    runs[event.request] = Run(event.request, max(end, held.reached), 1)
                elif end > held.reached:
                    runs[event.request] = Run(event.request, held.reached, end - held.reached)
        made = list(runs.values())
        return self._requests.in_order(made) if any(map(is_plain, call.events)) else made

    def _replace_step(self, call: Call, runs: Sequence[Run], planned: list[Event]) -> None:
        """Replace the step's events by those that would be recorded now: what vLLM did, and this connector's plan."""
        now = {run.request: run for run in runs}
        for event in call.events:
            if isinstance(event, Plan | Evict):
                self.replaced[event.span_id] = []
            elif isinstance(event, Schedule):
                run = now[event.request or ""]
                self.replaced[event.span_id] = [replace(event, computed=run.computed, scheduled=run.scheduled)]
        last = self._recorded_last = next((e for e in reversed(call.events) if not is_plain(e)), self._recorded_last)
        self.replaced[last.span_id] = [*self.replaced.get(last.span_id, [last]), *planned]

    def _why_no_plans(self, event: Event) -> str:
        """Why the plans for a request cannot be compared in this step, or an empty text."""
        if not self._environment.same_connector:
            return f"{self._recorded.connector} was recorded, and another connector plans in its own way"
        if (event.request, event.epoch) not in self._recorded.in_detail:
            return "its steps are not recorded (level basic), so they are inferred from what was stored"
        return self._forks.why_not(event)

    def _not_made(self, call: Call) -> Made:
        return self._compare(call, {}, {}, {}, (), self._stopped)

    def _doubt(self, call: Call) -> str:
        """Why a different answer may not be due to the connector, or an empty text."""
        if not all(self._recorded.whole_at(event) for event in call.events):
            return "events before it, or of it, are missing in the recording"
        return self._environment.unsure or self._astray

    def _compare(
        self,
        call: Call,
        asked: Answer,
        was: Answer,
        now: Answer,
        events: Sequence[Event],
        reason: str = "",
        *,
        recorded: Sequence[Event] | None = None,
        unsure: str = "",
    ) -> Made:
        """Compare a call's answers.

        Args:
            was, now: the recorded answer and the new one.
            events: of the new answer.
            reason: why they cannot be compared; empty where they can.
            recorded: events of the recorded answer; by default all events of the call.
            unsure: why a difference would prove nothing; empty where it would.
        """
        outcome = Outcome.SAME if same(was, now) else Outcome.DIFFERENT
        event = call.event
        doubt = self._doubt(call) or unsure
        dies = "error" in now and "error" not in was
        if dies and doubt:
            outcome, reason = Outcome.NOT_COMPARABLE, f"it raised here: {now['error']}; but {doubt}"
            self._stopped = f"at #{self._number} it raised {now['error']}; but {doubt}"
        elif dies:
            outcome, reason = Outcome.DIFFERENT, ""
            self._stopped = f"the connector had raised at #{self._number}, which no engine survives"
            self.died_at = self._number
        elif reason:
            outcome = Outcome.NOT_COMPARABLE
        elif outcome is Outcome.DIFFERENT and doubt:
            outcome, reason = Outcome.NOT_COMPARABLE, doubt
        names = {e.request for e in call.events if e.request is not None and not is_plain(e)}
        compared = Compared(
            number=self._number,
            method=call.method.value,
            request=names.pop() if len(names) == 1 else None,
            epoch=event.epoch,
            at_ns=event.start_ns,
            asked=asked,
            recorded=was,
            answered=now,
            outcome=outcome,
            reason=reason,
        )
        if call.method is not Method.STEP and events:
            for old, new in zip(call.events, events, strict=True):
                self.replaced[old.span_id] = [new]
        return Made(compared, call.events if recorded is None else recorded, events)


def _raised(error: str | None) -> Answer:
    """An error as part of an answer."""
    return {} if error is None else {"error": error}


def same(recorded: Answer, now: Answer) -> bool:
    """Whether two answers are the same. Of errors only the class and the numbers count, and not where they were raised:
    versions word them differently."""
    if ("error" in recorded) is not ("error" in now):
        return False
    if "error" in recorded:
        return _signature(without_place(recorded["error"])) == _signature(without_place(now["error"]))
    return recorded == now


def _plans(events: Iterable[Event]) -> list[Answer]:
    """What workers are to copy, as far as the events show it."""
    return [
        {
            "what": "store" if isinstance(event, StorePlan) else "load",
            "request": event.request,
            "start": event.start,
            "count": event.count,
            "blocks": event.blocks_ids,
            "keys": event.chunk_keys,
            "present": getattr(event, "chunk_present", None),
        }
        for event in events
        if isinstance(event, Plan)
    ]


def _evicted(events: Iterable[Event]) -> list[str]:
    """The keys of evicted chunks, sorted: within a step their order means nothing."""
    return sorted(str(event.chunk_key) for event in events if isinstance(event, Evict))


def _stored(events: Sequence[Event]) -> tuple[list[str], list[tuple[str | None, int | None, int]]]:
    """What a step changes in the store: the chunks that leave it, and the tokens that enter it."""
    stored = [(e.request, e.start, e.count) for e in events if isinstance(e, StorePlan) and not e.chunk_present]
    return _evicted(events), sorted(stored, key=repr)


def _planned(probe: Probe, connector: Any, metadata: Any, recorded: Sequence[Event]) -> list[Event]:
    """The events of a step's plan and evictions, as the recorder would record them."""
    like = recorded[-1]
    epochs = {event.request: event.epoch for event in recorded if event.request}
    seen = probe.stepped(connector, metadata) or Seen()
    loads = [LoadPlan(**_plan(plan, like, epochs)) for plan in seen.loads]
    stores = [StorePlan(**_plan(plan, like, epochs), chunk_present=plan.present) for plan in seen.stores]
    return [*loads, *(_eviction(each, like) for each in seen.evicted), *stores]


def _signature(error: str) -> tuple[str, list[str]]:
    name, _, text = error.partition(":")
    return name, re.findall(r"\d+", text)


def _fields_like(event: Event, request: str | None, epoch: int) -> dict[str, Any]:
    """The fields of a new event that are those of a recorded one of the same step."""
    common = {name: getattr(event, name) for name in _EVENT_FIELDS}
    return {**common, "request": request, "epoch": epoch, "error": None, "span_id": f"again-{next(_numbers)}"}


def _plan(plan: Planned, like: Event, epochs: dict[str, int]) -> dict[str, Any]:
    """The fields of a plan's event."""
    return _fields_like(like, plan.request_id, epochs.get(plan.request_id, 0)) | {
        "start": plan.start,
        "count": plan.tokens,
        "blocks_ids": plan.blocks,
        "chunk_keys": plan.keys,
        "transfer_id": plan.job,
    }


def _eviction(evicted: Evicted, like: Event) -> Event:
    return Evict(**_fields_like(like, None, 0), chunk_key=evicted.key, count=evicted.tokens, bytes=evicted.bytes)
