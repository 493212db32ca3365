"""Spans as the bytes that they came as, and requests that are made of them.

Whose a span is (its resource and scope) is kept beside it, so spans of different batches can travel in one request. Nothing
of this is encoded anew: to a receiver it is what the sender wrote.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope

from kvtrail.tracer.ingest.protobuf import Parts

OVERHEAD_BYTES = 120
"""What a piece takes in memory beside its bytes."""
_MOST_REMEMBERED = 1024


class Whose(Struct, frozen=True, eq=False, gc=False):
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
    """A span: whose it is, and its bytes. Many are held at a time, so the garbage collector does not look at them."""

    whose: Whose
    span: bytes


def size(pieces: Sequence[Piece]) -> int:
    """Bytes of memory, about."""
    return sum([len(piece.span) for piece in pieces]) + OVERHEAD_BYTES * len(pieces)


class Cutter:
    """Cuts requests into spans. Remembers whose they are, so use one for as many requests as possible."""

    def __init__(self) -> None:
        self._known: dict[tuple[bytes, bytes], Whose] = {}

    def cut(self, payload: bytes) -> Iterator[tuple[Whose, Sequence[bytes]]]:
        """The spans of an `ExportTraceServiceRequest`, all of which can be read, by whose they are."""
        for resource_spans in Parts.Request.FromString(payload).resource_spans:
            of_resource = Parts.ResourceSpans.FromString(resource_spans)
            scopes = of_resource.scope_spans[:]
            of_resource.ClearField("scope_spans")
            resource = of_resource.SerializeToString()
            for scope_spans in scopes:
                of_scope = Parts.ScopeSpans.FromString(scope_spans)
                spans = of_scope.spans[:]
                of_scope.ClearField("spans")
                yield self._whose(resource, of_scope.SerializeToString()), spans

    def _whose(self, resource: bytes, scope: bytes) -> Whose:
        whose = self._known.get((resource, scope))
        if whose is None:
            name = InstrumentationScope.FromString(Parts.ScopeSpans.FromString(scope).scope).name
            if len(self._known) >= _MOST_REMEMBERED:
                self._known.clear()
            whose = self._known[resource, scope] = Whose(resource, scope, name)
        return whose


def joined(pieces: Iterable[Piece]) -> bytes:
    """An `ExportTraceServiceRequest` of these spans."""
    by_whose: dict[Whose, list[bytes]] = {}
    for piece in pieces:
        by_whose.setdefault(piece.whose, []).append(piece.span)
    by_resource: dict[bytes, list[bytes]] = {}
    for whose, spans in by_whose.items():
        of_scope = Parts.ScopeSpans.FromString(whose.scope)
        of_scope.spans.extend(spans)
        by_resource.setdefault(whose.resource, []).append(of_scope.SerializeToString())
    request = Parts.Request()
    for resource, scopes in by_resource.items():
        of_resource = Parts.ResourceSpans.FromString(resource)
        of_resource.scope_spans.extend(scopes)
        request.resource_spans.append(of_resource.SerializeToString())
    encoded: bytes = request.SerializeToString()
    return encoded
