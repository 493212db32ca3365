"""Spans as the bytes that they came as, and requests that are assembled from them.

The origin of a span (its resource and scope) is held beside it, so spans of different batches can travel in one request.
Nothing of this is encoded again: to a receiver it is what the sender wrote.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope

from kvtrail.tracer.events.bounded import BoundedDict
from kvtrail.tracer.ingest.protobuf import Parts

OVERHEAD_BYTES = 120
"""What a piece takes in memory beside its bytes."""
_MAX_REMEMBERED = 1024


class Origin(Struct, frozen=True, eq=False, gc=False):
    """What spans have in common. There is one for each pair of resource and scope.

    Attributes:
        resource: a `ResourceSpans` without its scopes.
        scope: a `ScopeSpans` without its spans.
        scope_name: the name of the scope.
    """

    resource: bytes
    scope: bytes
    scope_name: str


class Piece(Struct, frozen=True, eq=False, gc=False):
    """A span: origin it is, and its bytes. Many are held at a time, so the garbage collector does not look at them."""

    origin: Origin
    span: bytes


def size(pieces: Sequence[Piece]) -> int:
    """Bytes of memory, about."""
    return sum([len(piece.span) for piece in pieces]) + OVERHEAD_BYTES * len(pieces)


class Cutter:
    """Cuts requests into spans. Remembers origin they are, so use one for as many requests as possible."""

    def __init__(self) -> None:
        self._known: BoundedDict[tuple[bytes, bytes], Origin] = BoundedDict(_MAX_REMEMBERED)

    def cut(self, payload: bytes) -> Iterator[tuple[Origin, Sequence[bytes]]]:
        """The spans of an `ExportTraceServiceRequest`, all readable, by their origin."""
        for resource_spans in Parts.Request.FromString(payload).resource_spans:
            of_resource = Parts.ResourceSpans.FromString(resource_spans)
            scopes = of_resource.scope_spans[:]
            of_resource.ClearField("scope_spans")
            resource = of_resource.SerializeToString()
            for scope_spans in scopes:
                of_scope = Parts.ScopeSpans.FromString(scope_spans)
                spans = of_scope.spans[:]
                of_scope.ClearField("spans")
                yield self._origin(resource, of_scope.SerializeToString()), spans

    def _origin(self, resource: bytes, scope: bytes) -> Origin:
        origin = self._known.get((resource, scope))
        if origin is None:
            name = InstrumentationScope.FromString(Parts.ScopeSpans.FromString(scope).scope).name
            origin = self._known[resource, scope] = Origin(resource, scope, name)
        return origin


def joined(pieces: Iterable[Piece]) -> bytes:
    """An `ExportTraceServiceRequest` of these spans."""
    by_origin: dict[Origin, list[bytes]] = {}
    for piece in pieces:
        by_origin.setdefault(piece.origin, []).append(piece.span)
    by_resource: dict[bytes, list[bytes]] = {}
    for origin, spans in by_origin.items():
        of_scope = Parts.ScopeSpans.FromString(origin.scope)
        of_scope.spans.extend(spans)
        by_resource.setdefault(origin.resource, []).append(of_scope.SerializeToString())
    request = Parts.Request()
    for resource, scopes in by_resource.items():
        of_resource = Parts.ResourceSpans.FromString(resource)
        of_resource.scope_spans.extend(scopes)
        request.resource_spans.append(of_resource.SerializeToString())
    encoded: bytes = request.SerializeToString()
    return encoded
