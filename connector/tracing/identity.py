"""What a request's KV depends on besides its tokens."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from typing import Any

from kvtrail.tracer.events.semconv import Kind
from kvtrail.tracer.model.tenants import DIGEST_BYTES, digest_of


def identity_of(request: Any) -> str:
    """The digest of what the request's KV depends on besides its tokens, as vLLM's own block hashes have it."""
    adapter, salt = getattr(request, "lora_request", None), getattr(request, "cache_salt", None)
    return digest_of(getattr(adapter, "lora_name", ""), salt or "")


WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin", "adapter_model.pt")
"""The files in which vLLM looks for an adapter's weights, in this order."""
SAMPLES = 16
SAMPLE_BYTES = 4096
"""Read of a file at each of `SAMPLES` places, since a worker has to load all of it anyway. Training changes
nearly all bytes of it, so that a few places show it."""
MAX_ADAPTERS = 1000
"""Adapters remembered with their version."""
_Loaded = tuple[str, int, str]
"""How vLLM names an adapter that was loaded: name, number and path."""


class Adapters:
    """The versions of the adapters that requests name. The name alone says nothing of the weights: an adapter may be loaded
    again from another path, or in place from a file that was overwritten."""

    def __init__(self) -> None:
        self._versions: dict[_Loaded, tuple[tuple[int, int] | None, str]] = {}
        """By adapter, the size and time of its file and the version; None where there is no file to read."""

    def recorded(self, request: Any, not_recorded: Callable[..., None]) -> str | None:
        """The version, or None where it cannot be read, which `not_recorded` then counts: a start without it is a start all
        the same."""
        try:
            return self.version_of(request)
        except Exception:
            not_recorded(Kind.REQUEST_START, (), gap=False)
            return None

    def version_of(self, request: Any) -> str | None:
        """A digest of the weights of the request's adapter, from some places in its file; of the path, where that names no
        directory of this host. None without an adapter.

        The file is read when an adapter is named for the first time, and again after it changed if vLLM is asked to load it
        in place.
        """
        adapter = getattr(request, "lora_request", None)
        if adapter is None:
            return None
        loaded = (adapter.lora_name, adapter.lora_int_id, adapter.lora_path)
        known = self._versions.get(loaded)
        if known is not None and not getattr(adapter, "load_inplace", False):
            return known[1]
        path = next((file for name in WEIGHTS if os.path.isfile(file := os.path.join(adapter.lora_path, name))), None)
        if path is None:
            state, version = None, _digest(adapter.lora_path.encode(errors="replace"))
        else:
            facts = os.stat(path)
            state = (facts.st_size, facts.st_mtime_ns)
            if known is not None and known[0] == state:
                return known[1]
            version = _digest(_sample(path, facts.st_size))
        if len(self._versions) >= MAX_ADAPTERS:
            self._versions.clear()
        self._versions[loaded] = (state, version)
        return version


def _sample(path: str, size: int) -> bytes:
    """Bytes at places spread over a file, after its size."""
    parts = [str(size).encode()]
    with open(path, "rb", buffering=0) as file:
        for number in range(SAMPLES):
            file.seek(max(0, size - SAMPLE_BYTES) * number // (SAMPLES - 1))
            parts.append(file.read(SAMPLE_BYTES))
    return b"".join(parts)


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).hexdigest()
