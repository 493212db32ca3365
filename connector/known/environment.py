"""The environment of a re-run: what a connector is made with, and what its store held when it was recorded.

`environment` in a connector's folder restores the store of that connector; any other connector starts with an empty store.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvtrail.connector.known import part_of, plain_name
from kvtrail.tracer.events.events import Event, Lookup


class Unusable(ValueError):
    """A recording or a connector that cannot be run again; the text says what is missing."""


@dataclass(frozen=True, slots=True)
class RecordedStore:
    """What a recording says about the store of one connector object.

    Attributes:
        connector: class name of the recorded connector.
        chunk_size: tokens per chunk of its store; None where unknown.
        block_size: tokens per KV block, recorded or assumed.
        block_bytes: bytes of a KV block of the model that the re-run uses.
        calls: the events of each recorded call, in their order.
    """

    connector: str
    chunk_size: int | None
    block_size: int
    block_bytes: int
    calls: tuple[tuple[Event, ...], ...]


class Environment:
    """The environment of a connector about whose store nothing is known. Subclasses restore the recorded store.

    Attributes:
        by_tokens: whether the store's content depends on which requests share tokens.
        same_connector: whether the recorded connector is of this class, in whichever version.
        notes: what was assumed, in sentences.
        unsure: why a difference may be due to the environment and not to the connector; empty where the environment is the
            recorded one.
    """

    by_tokens = True

    def __init__(self, cls: type, recorded: RecordedStore) -> None:
        self.recorded = recorded
        self.same_connector = plain_name(cls) == recorded.connector
        self.notes: list[str] = []
        self.unsure = ""

    @property
    def follows_plans(self) -> bool:
        """Whether the recorded plans show what the store held."""
        return self.by_tokens and self.same_connector

    def settings(self) -> dict[str, Any]:
        """The settings that can be inferred, for `kv_connector_extra_config`. They override the recorded ones."""
        return {}

    def make(self, cls: type, vllm_config: Any, kv_cache_config: Any) -> Any:
        """The scheduler's side of the connector."""
        from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole

        return cls(vllm_config, KVConnectorRole.SCHEDULER, kv_cache_config)

    def before_lookup(self, event: Lookup) -> str:
        """Make the store answer as it did then. Returns why it cannot, or an empty text."""
        return ""

    def before_report(self, ended: list[int], output: Any) -> str:
        """Put the ends of numbered transfers into the workers' report. Returns why that cannot be done, or an empty text."""
        return "the numbers of transfers that ended mean something to the recorded connector only"


def environment_for(cls: type, recorded: RecordedStore) -> Environment:
    """The environment that knows this class, or the one that knows nothing."""
    known = part_of(cls, "environment")
    made: Environment = (known or Environment)(cls, recorded)
    events = (event for call in recorded.calls for event in call)
    if known is None and any(isinstance(event, Lookup) and (event.matched or event.answer) for event in events):
        made.unsure = f"what {plain_name(cls)} had in its store cannot be provided"
    return made
