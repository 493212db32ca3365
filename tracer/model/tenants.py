"""Tenants: groups of requests that may share KV, and the digests under which they are recorded."""

from __future__ import annotations

import hashlib

PLAIN = "plain"
"""The tenant of requests with neither adapter nor salt."""
OTHER = "other"
"""The tenant of all requests beyond the maximum number of distinguished tenants."""
DIGEST_BYTES = 8


def digest_of(adapter: str, salt: str) -> str:
    """The digest of all that a request's KV depends on besides its tokens, the same as in vLLM's own block hashes."""
    if not adapter and not salt:
        return PLAIN
    return hashlib.blake2b(f"{adapter}\0{salt}".encode(errors="replace"), digest_size=DIGEST_BYTES).hexdigest()
