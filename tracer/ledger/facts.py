"""The facts about a request, derived from its calls; its account establishes each fact once.

A single call says little. Which allocation uses which answer, whether a step is the first after an admission, whether a
preemption was reported before by another child of a MultiConnector: that follows from earlier calls. Code that sums up,
draws or explains requests reads these facts, not events.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from kvtrail.tracer.events.events import (
    Alloc,
    Event,
    Free,
    Load,
    Lookup,
    Plan,
    Preempt,
    Received,
    RequestEnd,
    RequestStart,
    Schedule,
    Sent,
    Store,
    TransferEnd,
)
from kvtrail.tracer.model.causes import Part
from kvtrail.tracer.model.prefixes import blocks_of_prefix, prefix_of


class Offer(Struct, eq=False):
    """A connector's answer to a lookup, until the request runs.

    Attributes:
        lookup: the latest one of this connector.
        deferred_since_ns: when the connector first answered 'ask me later'; None after it has answered.
        alloc: the allocation that used the answer; None if there is none yet.
    """

    lookup: Lookup
    deferred_since_ns: int | None = None
    alloc: Alloc | None = None


class Began(Struct, eq=False):
    """A request arrived."""

    event: RequestStart


class LookedUp(Struct, eq=False):
    """A connector was asked.

    Attributes:
        deferred_for_ns: how long it had answered 'ask me later' before this answer; None if it had not.
        unused: its previous answer, if no allocation used it.
    """

    event: Lookup
    deferred_for_ns: int | None
    unused: Lookup | None


class Admitted(Struct, eq=False):
    """Blocks were allocated for a request, including those for a connector's offer.

    Attributes:
        offer: the offer of this connector.
        others: other connectors' offers for the same admission.
    """

    event: Alloc
    offer: Offer
    others: Sequence[Offer]

    @property
    def lookup(self) -> Lookup:
        """The lookup whose answer this allocation used."""
        return self.offer.lookup

    @property
    def is_last(self) -> bool:
        """Whether all connectors that answered have received their blocks."""
        return all(other.alloc is not None or other.lookup.returned is None for other in self.others)


class LoadReceived(Struct, eq=False):
    """An asynchronous load has ended, with success or failure."""

    event: Received
    alloc: Alloc

    @property
    def waited_ns(self) -> int:
        """How long the request has waited since the allocation."""
        return max(0, self.event.end_ns - self.alloc.end_ns)


class Ran(Struct, eq=False):
    """A step runs a request.

    Attributes:
        admitted: the offers used, if this is the first step after an admission; otherwise empty.
        total: the request's tokens before it; None if unknown.
    """

    event: Schedule
    admitted: Sequence[Offer]
    total: int | None


class Preempted(Struct, eq=False):
    """A connector reports that a request was preempted.

    Attributes:
        is_repeated: whether another connector reported it before.
    """

    event: Preempt
    is_repeated: bool


class Copied(Struct, eq=False):
    """A worker or a log reports a copy."""

    event: Load | Store


class Transferred(Struct, eq=False):
    """A numbered transfer has ended, successfully or not."""

    event: TransferEnd
    plan: Plan


class Ended(Struct, eq=False):
    """A request has ended.

    Attributes:
        unused: answers that no allocation used.
    """

    event: RequestEnd
    unused: Sequence[Lookup]


class Released(Struct, eq=False):
    """The kept blocks of an ended request are freed."""

    event: Sent | Free | Received


class Failed(Struct, eq=False):
    """A call about a request raised, and establishes no other fact."""

    event: Event


class Breakdown(Struct, eq=False):
    """An admission of a request, and the parts of its prompt.

    Attributes:
        event: the allocation.
        lookup: its lookup; with a MultiConnector, the last child's.
        parts: the parts in order; they add up to the request's tokens at the lookup.
        chain: the hashes of its full blocks; None if unknown.
        is_final: whether the parts cannot change any more: before that, promised tokens may fail to load.
        identity: the request's cache salt and adapter, if it has any and its start was recorded.
        block_size: number of tokens in a block of the chain; 0 if unknown.
    """

    event: Alloc
    lookup: Lookup
    parts: list[Part]
    chain: list[bytes] | None
    is_final: bool = False
    identity: str | None = None
    block_size: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether the parts cover the prompt contiguously."""
        end = 0
        for part in self.parts:
            if part.start != end:
                return False
            end += part.tokens
        return end == self.lookup.total

    @property
    def prefix(self) -> str:
        """The prefix of the prompt (`prefix_of`). Empty if hashes are unknown, and after a preemption: then outputs are part
        of the chain."""
        return "" if self.event.epoch else prefix_of(self.chain or (), self.block_size)

    def shorten(self) -> None:
        """Drop the hashes that the prefix does not need: an explained admission needs no others, and the hashes of a long
        prompt take more memory than the rest of its state."""
        if self.chain is not None:
            self.chain = self.chain[: blocks_of_prefix(self.block_size)]

    def as_dict(self) -> dict[str, Any]:
        """As JSON-ready data."""
        event, prefix = self.event, self.prefix
        return {
            **({"prefix": prefix} if prefix else {}),
            "epoch": event.epoch,
            "total": self.lookup.total,
            "at_ns": event.end_ns,
            "span_id": event.span_id,
            "connector": event.connector,
            "final": self.is_final,
            "parts": [part.as_dict() for part in self.parts],
        }


Fact = Began | LookedUp | Admitted | LoadReceived | Ran | Preempted | Copied | Transferred | Ended | Released | Failed


def tiers_of(alloc: Alloc) -> dict[str, int]:
    """The tokens that an allocation is to load, by source tier; empty if the connector names no tiers, or its numbers do not
    add up. vLLM counts such tokens with an unspecified source (`get_external_cache_hit_sources`)."""
    tiers: dict[str, int] = {}
    for source in alloc.hit_sources or ():
        tier, _, tokens = source.rpartition(":")
        if tokens.isdecimal() and (count := int(tokens)):
            tiers[tier] = tiers.get(tier, 0) + count
    return tiers if sum(tiers.values()) == alloc.allocated else {}


class Offers(dict[str, Offer]):
    """The offers for one admission of a request, by connector: relates lookups to allocations."""

    __slots__ = ()

    def enter(self, event: Lookup) -> None:
        """Enter a lookup, which replaces the connector's offer."""
        offer = self.get(event.connector_id)
        if event.error is not None:
            if offer is not None:
                del self[event.connector_id]
        elif offer is None or offer.alloc is not None:
            self[event.connector_id] = Offer(event, event.end_ns if event.returned is None else None)
        else:  # asked again before it was used
            offer.lookup = event
            if event.returned is not None:
                offer.deferred_since_ns = None
            elif offer.deferred_since_ns is None:
                offer.deferred_since_ns = event.end_ns

    def look_up(self, event: Lookup) -> LookedUp:
        """Enter a lookup; returns its fact."""
        before = self.get(event.connector_id)
        unused = lasted_ns = None
        if before is not None and before.alloc is None:
            unused = before.lookup
            if before.deferred_since_ns is not None and event.returned is not None and event.error is None:
                lasted_ns = max(0, event.end_ns - before.deferred_since_ns)
        self.enter(event)
        return LookedUp(event, lasted_ns, unused)

    def allocate(self, event: Alloc) -> Admitted | None:
        """Enter an allocation. None if it uses no offer: it failed, or is the second allocation after an asynchronous load,
        which admits nothing new."""
        offer = self.get(event.connector_id)
        if offer is None or offer.alloc is not None or offer.lookup.returned is None or event.error is not None:
            return None
        offer.alloc = event
        return Admitted(event, offer, [other for other in self.values() if other is not offer] if len(self) > 1 else ())

    @property
    def allocs(self) -> list[Alloc]:
        """The allocations that have used them."""
        return [offer.alloc for offer in self.values() if offer.alloc is not None]

    def use(self) -> Sequence[Offer]:
        """Enter that the request runs: return the used offers, and forget all."""
        if not self:
            return ()
        admitted = [offer for offer in self.values() if offer.alloc is not None]
        self.clear()
        return admitted

    def unused(self) -> Sequence[Lookup]:
        """The answers that no allocation used."""
        return [offer.lookup for offer in self.values() if offer.alloc is None]
