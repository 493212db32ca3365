"""Ids of requests as they are recorded: a caller may choose one of a megabyte."""

from __future__ import annotations

import hashlib

from kvtrail.tracer.events.semconv import external_id

MOST = 200
"""Bytes of UTF-8 of an external id that is recorded as it is."""
_KEPT = 120
"""Of a longer one; its digest follows."""


def bounded(request_id: str) -> str:
    """The id that is recorded: this one, or, where its external id is too long, the beginning of that and a digest of all of
    it, with the engine's own suffix. Equal ids have equal ones, and a recorded id has itself: so whoever knows the whole id
    finds its request."""
    if len(request_id) <= MOST and request_id.isascii():
        return request_id
    external = external_id(request_id)
    text = external.encode("utf-8", "surrogatepass")
    if len(text) <= MOST:
        return request_id
    digest = hashlib.blake2b(text, digest_size=16).hexdigest()
    return f"{text[:_KEPT].decode('utf-8', 'ignore')}~{digest}{request_id[len(external) :]}"
