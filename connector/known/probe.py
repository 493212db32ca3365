"""Probes read what a connector does not pass to vLLM: matched prefixes, plans, evictions, the ends of transfers.

A connector without a probe is traced all the same; what only a probe can see is then absent from its spans.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kvtrail.connector.known import part_of
from kvtrail.tracer.events.events import FIELDS
from kvtrail.tracer.events.semconv import Kind

logger = logging.getLogger("vllm.kvtrail")

NO_PROBE = "it has none"
"""Why nothing is seen of a connector for which nobody has written a probe."""


class Moved(NamedTuple):
    """A transfer between KV blocks and the connector's store, in tokens, blocks and bytes, and the tokens that it was meant
    to move, where that is known."""

    request_id: str
    start: int
    tokens: int
    blocks: int
    bytes: int | None
    expected: int | None = None


class GroupHit(NamedTuple):
    """What a KV cache group holds of a request: its number, and the lengths, in order, at which it has what it needs."""

    group: int
    boundaries: tuple[int, ...]


class Evicted(NamedTuple):
    """A chunk that left the store: its key as short hex, its size in tokens and bytes, the request that pushed it out with a
    store, and the tier that it left. None is unknown; a store without tiers names none."""

    key: str
    tokens: int | None
    bytes: int | None
    request_id: str | None = None
    tier: str | None = None


class Planned(NamedTuple):
    """A transfer that the scheduler's side asks of its workers: tokens, blocks, chunk keys, and its number if it runs
    between steps. `present` chunks are in the store already, or their store is still open, and they are not copied; they
    have no blocks. A store of 0 tokens says that there was no room from its start on. With several KV cache groups, the
    blocks of one group come after those of another: `by_group` says how many each has, and `group_starts` the first token
    of the first one, where that is known."""

    request_id: str
    start: int | None
    tokens: int
    blocks: tuple[int, ...] | None
    keys: tuple[str, ...] | None = None
    job: int | None = None
    present: bool | None = None
    by_group: tuple[int, ...] | None = None
    group_starts: tuple[int, ...] | None = None


_FIELDS = {kind: dict.fromkeys(attribute.field for attribute in of_kind) for kind, of_kind in FIELDS.items()}
"""The names of the fields of each kind, in order."""


class ProbeEvent(NamedTuple):
    """Any other event of a connector: its kind, the request or None, and the values of `events.FIELDS[kind]`."""

    kind: Kind
    request_id: str | None
    values: tuple[Any, ...]

    @classmethod
    def of(cls, kind: Kind, request_id: str | None, **values: Any) -> ProbeEvent:
        """An event with these values, by the names of its fields; the others are None."""
        fields = _FIELDS[kind]
        if not values.keys() <= fields.keys():
            raise TypeError(f"{kind} has no {', '.join(values.keys() - fields.keys())}")
        return cls(kind, request_id, tuple(map(values.get, fields)))


class Seen(NamedTuple):
    """What a probe sees of a scheduling step: planned loads and stores, evictions, the numbers of transfers that the workers
    must wait for, and other events. The evictions come before the stores: a step stores nothing that it evicts."""

    loads: Sequence[Planned] = ()
    stores: Sequence[Planned] = ()
    evicted: Sequence[Evicted] = ()
    flushed: Sequence[int] = ()
    events: Sequence[ProbeEvent] = ()


CLEARED = None
Change = bytes | tuple[bytes] | None
"""A key that a cache holds now, one that it does not hold any more, in a tuple, or `CLEARED`."""


MAX_PENDING = 65_536
"""Changes that wait to be asked for; beyond them the oldest are dropped, which the caller notices by their number."""


class StoreContents:
    """All that a connector's store gains and loses, by the hashes of its chunks' last blocks. With several KV cache groups
    the number of the group follows the hash. Subclasses note changes as the store's calls say them.

    Attributes:
        tier: the store's name.
        changes_in_plans: whether it changes while vLLM plans a step, after vLLM's own cache has.
    """

    tier: str
    changes_in_plans: bool

    def __init__(self) -> None:
        self._changes: deque[tuple[Change, str | None]] = deque(maxlen=MAX_PENDING)
        self._failure: Exception | None = None
        """What could not be noted of a change."""

    def changed(self) -> Sequence[tuple[Change, str | None]]:
        """What has changed since the last call, in order, each with the request that did it with a store. Of chunks with one
        hash the first that comes and the last that leaves are changes.

        Raises:
            Exception: something of it is not known.
        """
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        changes = list(self._changes)
        self._changes.clear()
        return changes

    def held(self) -> Sequence[bytes]:
        """All that it holds, with these changes."""
        raise NotImplementedError

    def _failed(self, error: Exception) -> None:
        self._failure = error


class Probe:
    """Sees nothing. Subclasses read the connector's own state and must not change it; each connector object has a probe of
    its own. A method that raises costs that answer, which is logged and counted; after a hundred failures in a row the probe
    is switched off.

    Attributes:
        load_call, store_call: names of the connector's methods on a worker that copy, after which `loads` and `stores` are
            asked; None where they would see nothing.
        report_calls: names of those of its methods on a worker that report what has ended, after which `reported` is asked.
        sees_reports: whether `reported` is asked on the scheduler's side, too.
    """

    load_call: str | None = None
    store_call: str | None = None
    report_calls: tuple[str, ...] = ()
    sees_reports = False

    def made(self, connector: Any) -> None:
        """On each side, once, when the connector has been made."""

    def knows_plans(self) -> bool:
        """Whether the plans of the connector that is installed here have a form that `stepped` can read."""
        return True

    def chunk_size(self, connector: Any) -> int | None:
        """Tokens per chunk of the connector's store."""
        return None

    def lookup(self, connector: Any, request: Any) -> tuple[int | None, bool | None]:
        """After a lookup: the matched tokens, and whether the answer was remembered from an earlier one. None is unknown."""
        return None, None

    def groups(self, connector: Any, request: Any, computed: int, claimed: int) -> Sequence[GroupHit]:
        """With several KV cache groups, at level `detailed`, after a lookup that claims the first `claimed` tokens: what each
        group holds of the request near that length. Nothing where that cannot be seen."""
        return ()

    def keys(self, connector: Any, request: Any) -> tuple[str, ...] | None:
        """After a lookup: the keys of the chunks that it claims. Only for a store with no other writer."""
        return None

    def held_keys(self, connector: Any) -> Sequence[Any] | None:
        """On the scheduler's side, seldom: the keys of all chunks that the store holds, as the store has them; None where
        that cannot be seen. Only for a store with no other writer and with plans that name their keys."""
        return None

    def still_held(self, connector: Any, keys: Sequence[Any]) -> tuple[str, ...]:
        """Of a part of these keys, those that the store still holds, as other events name them."""
        return ()

    def contents(self, connector: Any) -> StoreContents | None:
        """On the scheduler's side, at lookups until there is an answer: what follows the store's contents, where that shows
        all of them and no other engine writes to it. Plans of such a probe say nothing of what the store holds."""
        return None

    def held_bytes(self, connector: Any) -> int | None:
        """With each heartbeat, on the recorder's own thread: the bytes of KV that the connector holds in host memory.
        The scheduler's side returns the bytes on each worker, a worker its own. None if this side cannot know."""
        return None

    def stepped(self, connector: Any, metadata: Any) -> Seen | None:
        """On the scheduler's side, after `build_connector_meta`: what happened since the last call. None is nothing, as in
        most steps."""
        return None

    def forgotten(self, connector: Any) -> Sequence[Evicted]:
        """On the scheduler's side, after `update_connector_output`: the chunks that left the store because of it."""
        return ()

    def ended(self, connector: Any, output: Any) -> Sequence[int]:
        """On the scheduler's side, before `update_connector_output`: the numbers of planned transfers that have ended."""
        return ()

    def temporary(self, connector: Any) -> Mapping[str, int]:
        """On the scheduler's side, asked by `kvtrail check` when no request is left: pins, leases, kept blocks, pending jobs,
        whatever must be 0 then, under its name."""
        return {}

    def loads(self, connector: Any) -> Sequence[Moved]:
        """On a worker, after its `load_call`: what this step loaded."""
        return ()

    def stores(self, connector: Any) -> Sequence[Moved]:
        """On a worker, after its `store_call`: what this step stored."""
        return ()

    def reported(self, connector: Any, report: Any) -> Sequence[ProbeEvent]:
        """On a worker, after one of its `report_calls` has returned `report`, and on the scheduler's side, if it
        `sees_reports`, after `update_connector_output` with this report: what other engines said, and what was done about it,
        in order."""
        return ()


def probe_for(cls: type) -> Probe:
    """A probe that knows this class, for one connector object; or one that sees nothing. One that cannot be imported or made
    is logged and sees nothing: the engine goes on."""
    try:
        probe: Probe = (part_of(cls, "probe") or Probe)()
    except Exception:
        logger.exception("kvtrail: the probe of %s cannot be loaded", cls.__name__)
        return Probe()
    return probe
