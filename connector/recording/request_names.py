"""Names of requests outside of the engine: their ids or, with `KVTRAIL_HASH_IDS`, keyed hashes of the ids.

A caller's ids may reveal its identity. The same key gives the same names in all processes and engines, so that a request can
be found by the hash of its id; without the key, ids cannot be guessed and verified.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping

from kvtrail.tracer.events.ids import bounded
from kvtrail.tracer.events.semconv import external_id

VARIABLE = "KVTRAIL_HASH_IDS"
"""The key: any text."""
_BYTES = 12
"""Length of a hash."""
_SUFFIX = 8
"""Number of digits with which vLLM distinguishes requests with the same external id."""


def naming(environ: Mapping[str, str] = os.environ) -> Callable[[str], str]:
    """A function that maps a request id to its name: without a key, to the id, shortened if it is too long."""
    secret = environ.get(VARIABLE)
    if not secret:
        return bounded
    key = hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()

    def hashed(text: str) -> str:
        return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), key=key, digest_size=_BYTES).hexdigest()

    def named(request_id: str) -> str:
        request_id = bounded(request_id)  # so that the shortened id gives the same name
        external = external_id(request_id)
        own = "" if external == request_id else f"-{hashed(request_id)[:_SUFFIX]}"
        return hashed(external) + own

    return named
