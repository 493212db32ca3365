"""LMCache in vLLM's process: the scheduler's side is LMCache's own, unchanged down to its lookup client. What the client asks
over the wire, how many tokens the store holds, is answered as recorded.

Known: LMCache 0.3.10, 0.3.11 and 0.5.6, and the adapter that comes with vLLM 0.32 (`use_native`). No engine, no lookup server
and no worker is started.
"""

from __future__ import annotations

import inspect
import os
from typing import Any

from kvtrail.connector.known.environment import Environment, Unusable
from kvtrail.tracer.events.events import Lookup

QUIET = {"LMCACHE_TRACK_USAGE": "false", "LMCACHE_LOG_LEVEL": "ERROR", "LMCACHE_DISABLE_BANNER": "1"}
"""Set before LMCache is imported, unless the user has set it."""


class FakeTransport:
    """A fake transport for LMCache's lookup client: the sockets of 0.3, and the transport of 0.5.

    Attributes:
        held: tokens of the request's prefix that the store holds.
        world_size: workers that answer.
    """

    world_size = 1

    def __init__(self) -> None:
        self.held = 0

    def send_and_recv_all(self, message: list[Any]) -> list[bytes]:
        """The transport's method in 0.5."""
        return [self.recv()]

    def send_multipart(self, message: list[Any], copy: bool = True) -> None:
        """A socket's method in 0.3: the question. Which request it is about is known already."""

    def recv(self) -> bytes:
        """A socket's method in 0.3: the answer, as LMCache's lookup server writes it."""
        return self.held.to_bytes(4, "big")

    def close(self, linger: int = 0) -> None:
        """Nothing is open."""


class LMCacheEnvironment(Environment):
    """Its lookups find the recorded number of tokens."""

    by_tokens = False  # its store answers as recorded, whatever the tokens are

    def settings(self) -> dict[str, Any]:
        chunk_size = self.recorded.chunk_size
        return {} if chunk_size is None else {"lmcache.chunk_size": chunk_size}

    def make(self, cls: type, vllm_config: Any, kv_cache_config: Any) -> Any:
        for name, value in QUIET.items():
            os.environ.setdefault(name, value)
        connector = super().make(cls, vllm_config, kv_cache_config)
        self._chunk_size = connector._lmcache_engine._lmcache_chunk_size
        self._transport = FakeTransport()
        self._client = connector._lmcache_engine.lookup_client
        if type(self._client).__name__ != "LMCacheLookupClient":
            raise Unusable(
                f"this LMCache asks its store through {type(self._client).__name__}; recorded answers can be given to its"
                " LMCacheLookupClient only (no asynchronous loading, no external lookup client)"
            )
        self._answer_lookups()
        return connector

    def before_lookup(self, event: Lookup) -> str:
        held, unknown = _held(event)
        if "num_computed_tokens" in inspect.signature(self._client.lookup).parameters:
            # 0.3.11 asks only for the chunks that vLLM does not have, and adds those that it has.
            held = max(0, held - event.computed // self._chunk_size * self._chunk_size)
        self._transport.held = held
        return unknown

    def _answer_lookups(self) -> None:
        client = self._client
        if hasattr(client, "sockets"):
            for socket in client.sockets:
                socket.close(linger=0)
            client.sockets = [self._transport] * client.num_ranks
        elif hasattr(client, "transport"):
            client.transport.close()
            client.transport = self._transport
        else:
            raise Unusable(
                "this LMCache's lookup client has neither sockets nor a transport; this version is not known"
            )


def _held(event: Lookup) -> tuple[int, str]:
    """Tokens that the store held at a recorded lookup, and what is unknown about them; empty if nothing is."""
    if event.matched is not None:
        return event.matched, ""
    if event.answer:
        return event.computed + event.answer, ""
    return 0, "how much the store held is not recorded"


ENVIRONMENT = LMCacheEnvironment
