"""Probes read facts that a connector does not pass to vLLM: matched prefixes, plans, evictions, and ends of transfers.

A connector without a probe is traced too, but its spans lack the facts that only a probe can see.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from kvtrail.connector.known import part_of
from kvtrail.tracer.events.events import FIELDS
from kvtrail.tracer.events.semconv import Kind

logger = logging.getLogger("vllm.kvtrail")

NO_PROBE = "it has none"
"""The reason why nothing is seen of a connector without a probe."""


class Moved(NamedTuple):
    """A transfer between KV blocks and the connector's store, in tokens, blocks and bytes, with the number of tokens that it
    was meant to move, if known."""

    request_id: str
    start: int
    tokens: int
    blocks: int
    bytes: int | None
    expected: int | None = None


class GroupHit(NamedTuple):
    """A KV cache group's part of a hit: its number, and the lengths, in order, at which it holds all that it needs."""

    group: int
    boundaries: tuple[int, ...]


class Evicted(NamedTuple):
    """A chunk that left the store: its key as short hex, its size in tokens and bytes, the request whose store evicted it,
    and the tier that it left. None means unknown; a store without tiers names none."""

    key: str
    tokens: int | None
    bytes: int | None
    request_id: str | None = None
    tier: str | None = None


class Planned(NamedTuple):
    """A transfer that the scheduler's side assigns to its workers: tokens, blocks, chunk keys, and its number if it runs
    between steps. `present` chunks are in the store already, or their store is still open; they are not copied and have no
    blocks. A store of 0 tokens means that the store was full from `start` on. With several KV cache groups, the blocks are
    listed group after group: `by_group` has the number of blocks of each, and `group_starts` the first token of each group's
    first block, if known."""

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
    """A probe's observations of a scheduling step: planned loads and stores, evictions, the numbers of transfers for which
    the workers must wait, and other events. The evictions come before the stores: a step stores nothing that it evicts."""

    loads: Sequence[Planned] = ()
    stores: Sequence[Planned] = ()
    evicted: Sequence[Evicted] = ()
    flushed: Sequence[int] = ()
    events: Sequence[ProbeEvent] = ()


CLEARED = None
Change = bytes | tuple[bytes] | None
"""A key that a cache now holds; a key that it no longer holds, in a tuple; or `CLEARED`."""


MAX_PENDING = 65_536
"""Maximum number of changes that wait for the caller. Beyond it the oldest are dropped; the caller notices by the count."""


class StoreContents:
    """All changes of a connector's store, by the hashes of its chunks' last blocks. With several KV cache groups, the number
    of the group follows the hash. Subclasses note the changes that the store's calls show.

    Attributes:
        tier: the store's name.
        changes_in_plans: whether it changes while vLLM plans a step, after the changes of vLLM's own cache.
    """

    tier: str
    changes_in_plans: bool

    def __init__(self) -> None:
        self._changes: deque[tuple[Change, str | None]] = deque(maxlen=MAX_PENDING)
        self._failure: Exception | None = None
        """The error that prevented a change from being noted."""

    def changed(self) -> Sequence[tuple[Change, str | None]]:
        """The changes since the last call, in order, each with the request whose store caused it. If several chunks have the
        same hash, only the first to arrive and the last to leave are changes.

        Raises:
            Exception: a change is unknown.
        """
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        changes = list(self._changes)
        self._changes.clear()
        return changes

    def held(self) -> Sequence[bytes]:
        """The keys that it holds after these changes."""
        raise NotImplementedError

    def _note(self, changes: Iterable[Change], request_id: str | None) -> None:
        """Note changes that the store of this request caused."""
        self._changes.extend([(change, request_id) for change in changes])

    def _on_reset(self, *_: Any, **named: Any) -> None:
        """Note that the store was cleared."""
        self._changes.append((CLEARED, None))

    def _failed(self, error: Exception) -> None:
        self._failure = error


class Probe:
    """A probe that sees nothing. Subclasses read the connector's own state and must not change it. Each connector object has
    its own probe. If a method raises, its answer is lost, and the failure is logged and counted. After a hundred consecutive
    failures the probe is switched off.

    Attributes:
        load_call, store_call: names of the connector's worker methods that copy, after which `loads` and `stores` are called;
            None if they would see nothing.
        report_calls: names of its worker methods that report ended transfers, after which `reported` is called.
    """

    load_call: str | None = None
    store_call: str | None = None
    report_calls: tuple[str, ...] = ()

    def made(self, connector: Any) -> None:
        """Called once on each side, after the connector has been created."""

    def knows_plans(self) -> bool:
        """Whether `stepped` can read the plans of the installed connector."""
        return True

    def chunk_size(self, connector: Any) -> int | None:
        """Tokens per chunk of the connector's store."""
        return None

    def lookup(self, connector: Any, request: Any) -> tuple[int | None, bool | None]:
        """After a lookup: the matched tokens, and whether the answer was cached by an earlier lookup. None means unknown."""
        return None, None

    def groups(self, connector: Any, request: Any, computed: int, claimed: int) -> Sequence[GroupHit]:
        """After a lookup that claims the first `claimed` tokens, with several KV cache groups at level `detailed`: the part
        of the request that each group holds near that length. Empty if this cannot be seen."""
        return ()

    def keys(self, connector: Any, request: Any) -> tuple[str, ...] | None:
        """After a lookup: the keys of the chunks that it claims. Only for a store with no other writer."""
        return None

    def held_keys(self, connector: Any) -> Sequence[Any] | None:
        """Called rarely, on the scheduler's side: the keys of all chunks that the store holds, in the store's own form; None
        if they cannot be seen. Only for a store with no other writer and with plans that name their keys."""
        return None

    def still_held(self, connector: Any, keys: Sequence[Any]) -> tuple[str, ...]:
        """The keys among `keys`, a part of `held_keys`, that the store still holds, in the form of other events."""
        return ()

    def contents(self, connector: Any) -> StoreContents | None:
        """Called on the scheduler's side at lookups until it returns an object: the object that follows the store's contents.
        Only for a store whose contents are all visible and to which no other engine writes. The plans of such a probe do not
        report the store's contents."""
        return None

    def held_bytes(self, connector: Any) -> int | None:
        """Called with each heartbeat, on the recorder's own thread: the bytes of KV that the connector holds in host memory.
        The scheduler's side returns the bytes on each worker, a worker its own bytes. None if this side cannot know."""
        return None

    def stepped(self, connector: Any, metadata: Any) -> Seen | None:
        """Called on the scheduler's side after `build_connector_meta`: the observations since the last call. None means none,
        as in most steps."""
        return None

    def forgotten(self, connector: Any) -> Sequence[Evicted]:
        """Called on the scheduler's side after `update_connector_output`: the chunks that it removed from the store."""
        return ()

    def ended(self, connector: Any, output: Any) -> Sequence[int]:
        """Called on the scheduler's side before `update_connector_output`: the numbers of planned transfers that ended."""
        return ()

    def temporary(self, connector: Any) -> Mapping[str, int]:
        """Called on the scheduler's side by `kvtrail check` when no request is left: counts that must then be 0, by name,
        such as pins, leases, kept blocks and pending jobs."""
        return {}

    def loads(self, connector: Any) -> Sequence[Moved]:
        """Called on a worker after its `load_call`: the loads of this step."""
        return ()

    def stores(self, connector: Any) -> Sequence[Moved]:
        """Called on a worker after its `store_call`: the stores of this step."""
        return ()

    def reported(self, connector: Any, report: Any) -> Sequence[ProbeEvent]:
        """Called on a worker after one of its `report_calls` has returned `report`. Returns the messages of other engines and
        the connector's reactions, in order."""
        return ()


def probe_for(cls: type) -> Probe:
    """A new probe for a connector object of this class, or one that sees nothing. If a probe cannot be imported or created,
    the error is logged, and the engine continues with one that sees nothing."""
    try:
        probe: Probe = (part_of(cls, "probe") or Probe)()
    except Exception:
        logger.exception("kvtrail: the probe of %s cannot be loaded", cls.__name__)
        return Probe()
    return probe
