"""The properties of a request, besides its tokens, on which its KV depends."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from typing import Any

from kvtrail.tracer.events.semconv import Kind
from kvtrail.tracer.model.tenants import DIGEST_BYTES, digest_of


def identity_of(request: Any) -> str:
    """A digest of the properties besides the tokens that vLLM's block hashes include."""
    adapter, salt = getattr(request, "lora_request", None), getattr(request, "cache_salt", None)
    return digest_of(getattr(adapter, "lora_name", ""), salt or "")


WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin", "adapter_model.pt")
"""The files in which vLLM looks for an adapter's weights, in this order."""
SAMPLES = 16
SAMPLE_BYTES = 4096
"""Bytes read at each of `SAMPLES` positions of a file. Training changes nearly all bytes, so a few positions show it."""
MAX_ADAPTERS = 1000
"""Maximum number of adapters with a remembered version."""
_Loaded = tuple[str, int, str]
"""vLLM's identification of a loaded adapter: name, number and path."""


class Adapters:
    """The versions of the adapters that requests name. The name does not identify the weights: an adapter may be loaded again
    from another path, or in place from an overwritten file."""

    def __init__(self) -> None:
        self._versions: dict[_Loaded, tuple[tuple[int, int] | None, str]] = {}
        """By adapter, the size and time of its file and the version; None if there is no file to read."""

    def recorded(self, request: Any, not_recorded: Callable[..., None]) -> str | None:
        """The version, or None if it cannot be read, which `not_recorded` then counts: the start is still recorded."""
        try:
            return self.version_of(request)
        except Exception:
            not_recorded(Kind.REQUEST_START, (), gap=False)
            return None

    def version_of(self, request: Any) -> str | None:
        """A digest of the weights of the request's adapter, from some positions in its file; of the path, if that is not a
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
    """The size of a file, and bytes at positions spread over it."""
    parts = [str(size).encode()]
    with open(path, "rb", buffering=0) as file:
        for number in range(SAMPLES):
            file.seek(max(0, size - SAMPLE_BYTES) * number // (SAMPLES - 1))
            parts.append(file.read(SAMPLE_BYTES))
    return b"".join(parts)


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).hexdigest()
