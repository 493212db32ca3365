"""Ids of requests as they are recorded, with a bounded length: a caller may choose an id of a megabyte."""

from __future__ import annotations

import hashlib

from kvtrail.tracer.events.semconv import external_id

MOST = 200
"""Maximum size of an external id that is recorded unchanged, in bytes of UTF-8."""
_KEPT = 120
"""Bytes of a longer id that are recorded; its digest follows them."""


def bounded(request_id: str) -> str:
    """The recorded form of a request id. If its external id is too long, this is the beginning of the external id, a digest
    of all of it, and the engine's suffix. Equal ids have equal recorded ids, and a recorded id maps to itself, so a request
    can be found by its whole id."""
    if len(request_id) <= MOST and request_id.isascii():
        return request_id
    external = external_id(request_id)
    text = external.encode("utf-8", "surrogatepass")
    if len(text) <= MOST:
        return request_id
    digest = hashlib.blake2b(text, digest_size=16).hexdigest()
    return f"{text[:_KEPT].decode('utf-8', 'ignore')}~{digest}{request_id[len(external) :]}"
