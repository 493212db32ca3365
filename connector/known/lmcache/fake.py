"""LMCache in vLLM's process: its lookup client, and the store that answers it.

Known: LMCache 0.3.10, 0.3.11 and 0.5.6, with their own adapters and with the one that comes with vLLM 0.32 (`use_native`).
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from kvtrail.connector.known.fake import Chunks, Fake, Job

CHUNK_SIZE = "lmcache.chunk_size"
QUIET = {"LMCACHE_TRACK_USAGE": "false", "LMCACHE_LOG_LEVEL": "ERROR", "LMCACHE_DISABLE_BANNER": "1"}
"""Set before LMCache is imported, unless the user has set it."""
MATCHED = "matched"
"""A key of the fake's settings: for each request, the number of tokens that the recorded store held at each lookup."""


class LMCacheFake(Fake):
    """Replaces the workers' lookup server, the socket to it, and the workers' copies: the tokens that a step saves are stored
    when the step ends. LMCache's own lookup client keeps its state of requests.

    When a recording is driven again, the store holds at each lookup the tokens that the recorded store held. That store may
    have been filled before the recording or by other engines, and may have evicted chunks."""

    def __init__(self, extra: Any) -> None:
        super().__init__(extra)
        self._chunks = Chunks(extra.get(CHUNK_SIZE, 256))
        self._matched = {name: list(tokens)[::-1] for name, tokens in self.settings.get(MATCHED, {}).items()}

    def extra(self, folder: Path) -> dict[str, Any]:
        return {CHUNK_SIZE: self._chunks.size, "lmcache.save_unfull_chunk": False, "lmcache.local_cpu": True}

    @contextmanager
    def installed(self) -> Iterator[None]:
        for name, value in QUIET.items():
            os.environ.setdefault(name, value)
        clients: Any = importlib.import_module("lmcache.v1.lookup_client")
        theirs: Any = importlib.import_module("lmcache.v1.lookup_client.lmcache_lookup_client").LMCacheLookupClient
        chunks, recorded = self._chunks, self._matched

        class Client(theirs):  # type: ignore[misc]  # its class is known at run time only
            def __init__(self) -> None:
                self.reqs_status: dict[str, int] = {}

            def lookup(self, token_ids: Any, lookup_id: str, *_: Any, num_computed_tokens: int = 0, **__: Any) -> int:
                if left := recorded.get(lookup_id):
                    chunks.hold(token_ids, left.pop())
                matched = chunks.prefix(token_ids, num_computed_tokens // chunks.size * chunks.size)
                self.reqs_status[lookup_id] = matched
                return matched

            def close(self) -> None:
                """Nothing is open."""

        with mock.patch.object(clients.LookupClientFactory, "create_lookup_client", return_value=Client()):
            yield

    def jobs(self, connector: Any, plan: Any) -> Iterator[Job]:
        for request in plan.requests:
            spec = request.save_spec
            if spec is not None and spec.can_save:
                start = spec.skip_leading_tokens // self._chunks.size * self._chunks.size
                self._chunks.store(list(request.token_ids), start, len(request.token_ids))
        yield from ()


FAKE = LMCacheFake
