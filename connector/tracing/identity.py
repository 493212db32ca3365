"""What a request's KV depends on besides its tokens."""

from __future__ import annotations

import hashlib
from typing import Any

IDENTITY_BYTES = 8
PLAIN = "plain"
"""The identity of a request without adapter and salt."""


def identity_of(request: Any) -> str:
    """The digest of what the request's KV depends on besides its tokens, as vLLM's own block hashes have it."""
    adapter, salt = getattr(request, "lora_request", None), getattr(request, "cache_salt", None)
    if adapter is None and not salt:
        return PLAIN
    text = f"{getattr(adapter, 'lora_name', '')}\0{salt or ''}"
    return hashlib.blake2b(text.encode(errors="replace"), digest_size=IDENTITY_BYTES).hexdigest()
