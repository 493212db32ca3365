"""Tenants: groups of requests that may share KV, and the digests under which they are recorded."""

from __future__ import annotations

import hashlib

PLAIN = "plain"
"""The tenant of requests without adapter and salt."""
OTHER = "other"
"""The tenant of the requests of those beyond the ones that are distinguished."""
DIGEST_BYTES = 8


def digest_of(adapter: str, salt: str) -> str:
    """The digest of what a request's KV depends on besides its tokens, as vLLM's own block hashes have it."""
    if not adapter and not salt:
        return PLAIN
    return hashlib.blake2b(f"{adapter}\0{salt}".encode(errors="replace"), digest_size=DIGEST_BYTES).hexdigest()
