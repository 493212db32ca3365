"""Decides which spans are sent on, and when.

Foreign spans go at once. Those of a request are held until there is a reason to forward it; from then on they go at once,
too, and if there is none when it has ended, they are left out. Only the root always waits a little, since the findings become
its events.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Any

from opentelemetry.proto.trace.v1.trace_pb2 import Status

from kvtrail.tracer.events import semconv
from kvtrail.tracer.events.bounded import BoundedDict
from kvtrail.tracer.events.events import Event, Heartbeat, RequestStart
from kvtrail.tracer.ingest.protobuf import Parts
from kvtrail.tracer.model.findings import Finding
from kvtrail.tracer.serve.forward.figures import LEFT_OUT, Figures, Reason
from kvtrail.tracer.serve.forward.findings import IsKnown, as_piece, with_findings
from kvtrail.tracer.serve.forward.pieces import OVERHEAD_BYTES, Cutter, Piece, size
from kvtrail.tracer.serve.forward.request import ROOTS, STATE_BYTES, Request, is_sampled, went_wrong
from kvtrail.tracer.serve.forward.sender import Sender
from kvtrail.tracer.serve.forward.target import Headers, Settings
from kvtrail.tracer.serve.forward.transport import transport

LINGER_S = 3.0
"""How long after its end a request waits for what its other processes, and the rules, still have to say of it."""
HOLD_S = 600.0
"""How long spans are held at most."""
MAX_ENDED = 10_000
"""Ended requests that are remembered for spans and findings that come late."""
DRAIN_S = 5.0
"""How long sending may take when the process is to end."""
Key = tuple[str, str]
"""Engine and request."""


class Forwarder:
    """Sends on what matters. Its methods are called by one thread at a time, and none of them waits for the receiver.

    Attributes:
        is_known: says whether a finding is known, by which it is labelled; a pipeline says it by the file of known findings.
    """

    is_known: IsKnown = staticmethod(lambda finding: False)

    def __init__(
        self, settings: Settings, sender: Sender, figures: Figures, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings, self._sender, self._figures, self._clock = settings, sender, figures, clock
        self._cutter = Cutter()
        self._out: list[Piece] = []
        self._requests: OrderedDict[Key, Request] = OrderedDict()
        """Those that have not ended, or have only just, in the order in which they came."""
        self._undecided: OrderedDict[Key, Request] = OrderedDict()
        """Those of them with held spans."""
        self._ending: deque[tuple[float, Request]] = deque()
        """Those with a root that has come, and when they are to be finished."""
        self._ended: BoundedDict[Key, Request] = BoundedDict(MAX_ENDED)
        self._held_spans = self._held_bytes = 0

    @classmethod
    def to(cls, settings: Settings, figures: Figures) -> Forwarder:
        """One that sends to the receiver of the settings. Raises BadTarget if the file of headers cannot be used."""
        target = settings.target
        to_receiver = transport(target, Headers(target.headers_file))
        return cls(settings, Sender(to_receiver, figures, most_bytes=settings.most_bytes), figures)

    def received(self, payload: bytes, events: Sequence[Event], findings: Sequence[Finding]) -> None:
        """A batch was stored: an `ExportTraceServiceRequest` with readable spans, the events in it, and what was found at
        that."""
        by_id = {event.trace_id + event.span_id: event for event in events}
        guilty = {(finding.engine, finding.request) for finding in findings}
        for origin, spans in self._cutter.cut(payload):
            if origin.scope_name != semconv.SCOPE:
                self._out += [Piece(origin, encoded) for encoded in spans]
                continue
            for encoded in spans:
                span = Parts.Span.FromString(encoded)
                event = by_id.get((span.trace_id + span.span_id).hex())
                if event is None or event.request is None or span.name == semconv.STEP_SPAN:
                    self._of_engine(event, Piece(origin, encoded), span)
                else:
                    key = (event.engine, event.request)
                    self._of_request(key, event, Piece(origin, encoded), span, is_guilty=key in guilty)
        self._keep_bounds()
        self.found(findings)

    def found(self, findings: Sequence[Finding]) -> None:
        """Findings that are new, or were seen again."""
        for finding in findings:
            key = (finding.engine, finding.request)
            request = self._requests.get(key) or self._ended.get(key) or self._remember(Request(key, self._clock()))
            self._keep(request, Reason.FINDING)
            if finding.id not in request.findings:
                place = request.trace_id or finding.trace_id
                piece = as_piece(
                    finding,
                    known=self.is_known(finding),
                    trace_id=place,
                    root_id=request.root_id,
                    origin=request.origin,
                )
                if piece is not None:
                    self._out.append(piece)
            request.findings[finding.id] = finding
        self._send()

    def tidy(self) -> None:
        """Finish what has ended, and decide what has been held for too long. To be called every second or so."""
        now_s = self._clock()
        while self._ending and self._ending[0][0] <= now_s:
            _, request = self._ending.popleft()
            if self._requests.get(request.key) is request:
                self._finish(request)
        while self._undecided and (oldest := next(iter(self._undecided.values()))).since_s <= now_s - HOLD_S:
            self._shed(oldest)
        self._send()

    def close(self) -> None:
        """Decide all that is held by what is known of it, and send what is to be sent, within `DRAIN_S`."""
        for request in list(self._requests.values()):
            self._finish(request)
        self._send()
        self._sender.close(drain_s=DRAIN_S)

    def state(self) -> dict[str, Any]:
        """Where it sends to, whether that is well, and what waits."""
        return {
            "to": self._settings.target.url,
            "status": self._sender.trouble or "ok",
            "queued": self._sender.queued,
            "held": self._held_spans,
        }

    def _of_engine(self, event: Event | None, piece: Piece, span: Any) -> None:
        """A span that concerns no request, or no one alone. Its trace is a minute of its engine."""
        if isinstance(event, Heartbeat) and not event.recorder_closed:
            self._figures.left_out.inc()
        elif is_sampled(span.trace_id, self._settings.sample) or span.status.code == Status.STATUS_CODE_ERROR:
            self._out.append(piece)
        else:
            self._figures.left_out.inc()

    def _of_request(self, key: Key, event: Event, piece: Piece, span: Any, *, is_guilty: bool) -> None:
        if type(event) is RequestStart:
            self._begin(key)
        if (ended := self._ended.get(key)) is not None:
            self._late(ended, event, piece, is_guilty=is_guilty)
            return
        request = self._requests.get(key) or self._new(key, event, span)
        request.place(event, span, piece.origin)
        if (reason := self._reason(request, event, is_guilty=is_guilty)) is not None:
            self._keep(request, reason)
        if type(event) in ROOTS:
            if request.root is None:  # otherwise it came again
                self._hold(request, piece)
            request.root = piece
            self._ending.append((self._clock() + LINGER_S, request))
        elif request.reason is not None:
            self._out.append(piece)
        elif request.is_shed:
            self._figures.left_out.inc()
        else:
            request.held.append(piece)
            self._hold(request, piece)

    def _reason(self, request: Request, event: Event, *, is_guilty: bool) -> Reason | None:
        """Why this event makes its request matter, if it does."""
        waited_ns, slow_ns = request.waited_ns(event), self._settings.slow_ns
        if is_guilty:
            return Reason.FINDING
        if went_wrong(event):
            return Reason.ERROR
        return Reason.SLOW if slow_ns is not None and waited_ns >= slow_ns else None

    def _begin(self, key: Key) -> None:
        """A request begins: what is known under its id is another one's, if that has ended."""
        before = self._requests.get(key)
        if before is not None and before.root is not None:
            self._finish(before)
        self._ended.pop(key, None)

    def _new(self, key: Key, event: Event, span: Any) -> Request:
        request = self._requests[key] = Request(key, self._clock())
        self._held_bytes += STATE_BYTES
        if event.sampled is not False and is_sampled(span.trace_id, self._settings.sample):
            request.reason = Reason.SAMPLED
        else:
            self._undecided[key] = request
        return request

    def _late(self, request: Request, event: Event, piece: Piece, *, is_guilty: bool) -> None:
        """A span of a request that is finished already."""
        if request.reason is None and not is_guilty and not went_wrong(event):
            self._figures.left_out.inc()
        elif type(event) in ROOTS:
            self._out.append(self._rooted(request, piece))
        else:
            self._out.append(piece)

    def _keep(self, request: Request, reason: Reason) -> None:
        """There is a reason to forward a request. The first one counts, but that it was sampled."""
        if request.reason in (None, Reason.SAMPLED):
            request.reason = reason
        if self._undecided.pop(request.key, None) is not None:
            self._out += self._release(request)

    def _finish(self, request: Request) -> None:
        """The end: there was a reason, or there was none."""
        del self._requests[request.key]
        self._undecided.pop(request.key, None)
        self._held_bytes -= STATE_BYTES
        root, request.root = request.root, None
        held = self._release(request)
        self._held_spans -= root is not None
        self._figures.requests.labels(request.reason or LEFT_OUT).inc()
        if request.reason is None:
            self._figures.left_out.inc(len(held) + (root is not None))
        elif root is not None:
            self._out.append(self._rooted(request, root))
        self._remember(request)

    def _remember(self, request: Request) -> Request:
        self._ended[request.key] = request
        return request

    def _shed(self, request: Request) -> None:
        """Hold nothing of a request any more. If a reason comes later, what comes after it is forwarded."""
        del self._undecided[request.key]
        self._figures.early.inc()
        self._figures.left_out.inc(len(self._release(request)))
        request.is_shed = True

    def _keep_bounds(self) -> None:
        """Make room: of the requests that came first, the spans; then the requests."""
        while self._held_bytes > self._settings.most_bytes:
            if self._undecided:
                self._shed(next(iter(self._undecided.values())))
            else:
                self._figures.early.inc()
                self._finish(next(iter(self._requests.values())))

    def _hold(self, request: Request, piece: Piece) -> None:
        taken = len(piece.span) + OVERHEAD_BYTES
        request.held_bytes += taken
        self._held_bytes += taken
        self._held_spans += 1

    def _release(self, request: Request) -> list[Piece]:
        """What was held of a request, but for its root."""
        held, request.held = request.held, []
        of_root = 0 if request.root is None else size([request.root])
        self._held_bytes -= request.held_bytes - of_root
        self._held_spans -= len(held)
        request.held_bytes = of_root
        return held

    def _send(self) -> None:
        out, self._out = self._out, []
        self._sender.put(out)
        self._figures.held_spans.set(self._held_spans)
        self._figures.held_bytes.set(self._held_bytes)

    def _rooted(self, request: Request, root: Piece) -> Piece:
        """The root with the request's findings as its events."""
        if not request.findings:
            return root
        return Piece(root.origin, with_findings(root.span, request.findings.values(), self.is_known))
