"""Traffic for a big store: requests of several engines over days, as batches for the store.

Half of the ids are vLLM's own, made of random digits; the other half are the caller's, which count up. What the requests do
is in `big_stories.py`; the spans of all engines are mixed, as they would have come.
"""

from __future__ import annotations

import random
import statistics
from collections import Counter
from collections.abc import Iterator
from hashlib import sha256
from heapq import heappop, heappush

from big_stories import Stories, Story, StoryRequest
from fleet import Recorder

from kvtrail.tracer.model.engines import described
from kvtrail.tracer.model.findings import Finding
from kvtrail.tracer.savings.minute_sums import HOUR_S, MINUTE_S, StepKey
from kvtrail.tracer.store import Batch, Chunk
from kvtrail.tracer.store.request_rows import row_of
from kvtrail.tracer.store.sqlite.log import FOLDED_SPANS

ENGINES = 8
MODELS = ("small", "large")
CONNECTORS = ("OffloadConnector", "LMCacheConnectorV1")
DAYS = 3
DRIFTING, LASTING = 50, 1000
"""One in `DRIFTING` requests has a finding, as in a fleet with a real bug; one in `LASTING` lasts for hours, so that windows
must find requests that began long before."""
S = 10**9


class _Engine:
    """One engine: its recorder, what its requests do, and its spans that are not in the log yet."""

    def __init__(self, number: int) -> None:
        self.name = f"engine-{number}"
        model, connector = MODELS[number % len(MODELS)], CONNECTORS[number % 3 == 2]
        self.recorder = Recorder(self.name, random.Random(self.name), model=model, connector=connector)
        self.stories = Stories(self.name, model, connector)
        self.connector = connector
        self.spans: list[bytes] = []

    def story(self, number: int, dice: random.Random) -> Story:
        """What the request of this number does."""
        stories = self.stories
        if number % DRIFTING == 0:
            return stories.drifting[number // DRIFTING % len(stories.drifting)]
        return dice.choice(stories.long if number % LASTING == 1 else stories.lawful)


class Traffic:
    """The requests that run, and what the store still has to get of them."""

    def __init__(self) -> None:
        self._dice = random.Random(1)
        self._engines = [_Engine(number) for number in range(ENGINES)]
        self._running: list[tuple[int, int, StoryRequest]] = []
        """When each has its next step, its number, and itself."""
        self._touched: dict[int, StoryRequest] = {}
        """By number, those with rows to be written."""
        self._savings: Counter[StepKey] = Counter()
        self._findings: list[Finding] = []
        self._requests: set[tuple[str, str]] = set()
        self._traces: set[str] = set()
        self._spans = self._written = self._last_ns = 0

    def mean(self) -> float:
        """Spans of a request."""
        return statistics.mean(engine.stories.mean() for engine in self._engines)

    def begin(self, number: int, at_ns: int) -> None:
        """Let the request of this number begin."""
        engine = self._engines[number % ENGINES]
        external = f"chat-{number}" if number % 2 else f"chatcmpl-{self._dice.getrandbits(128):032x}-0"
        story = engine.story(number, self._dice)
        reported = StoryRequest(engine.recorder.begin(story.shape, at_ns, external), story, engine.name)
        heappush(self._running, (at_ns, number, reported))

    def advance(self, until_ns: int) -> Iterator[Chunk]:
        """Tell what happens until then, in chunks as large as folded ones: so nothing is compressed twice."""
        running = self._running
        while running and running[0][0] <= until_ns:
            at_ns, number, reported = heappop(running)
            self._tell(self._engines[number % ENGINES], reported, at_ns)
            self._touched[number] = reported
            if reported.next_ns is not None:
                heappush(running, (reported.next_ns, number, reported))
            if self._spans >= FOLDED_SPANS:
                yield self.chunk()

    def chunk(self) -> Chunk:
        """The spans that have not been stored."""
        payload = b"".join(engine.recorder.request_of(engine.spans) for engine in self._engines if engine.spans)
        chunk = Chunk(payload, self._spans, self._last_ns, requests=self._requests, traces=self._traces)
        self._written += self._spans
        self._spans, self._requests, self._traces = 0, set(), set()
        for engine in self._engines:
            engine.spans.clear()
        return chunk

    def batch(self, chunk: Chunk) -> Batch:
        """A chunk, with what the store gets with every request that comes."""
        recorders = [engine.recorder for engine in self._engines]
        return Batch(
            chunk,
            digest=sha256(chunk.payload).digest(),
            seen={recorder.id: f"0-{recorder.sequence}" for recorder in recorders},
            engines={engine.name: described(engine.recorder.resource) for engine in self._engines},
        )

    def touched(self) -> int:
        """How many rows are to be written."""
        return len(self._touched)

    def rows(self) -> Batch:
        """The rows of what has changed."""
        batch = Batch(findings=self._findings, savings=self._savings, settled=self._written)
        for number, reported in self._touched.items():
            known = reported.account(self._engines[number % ENGINES].recorder)
            batch.requests.append(row_of(known, reported.lane()))
        self._touched, self._findings, self._savings = {}, [], Counter()
        return batch

    def _tell(self, engine: _Engine, reported: StoryRequest, at_ns: int) -> None:
        """Tell the next step of a request."""
        recorder, request = engine.recorder, reported.request
        reported.sequences.append(recorder.sequence)
        recorder.advance(request, engine.spans, at_ns)
        reported.scheduler_steps.append(recorder.step)
        self._spans += recorder.sequence - reported.sequences[-1]
        self._requests.add((engine.name, request.id))
        self._traces.add(request.trace_id.hex())
        self._last_ns = at_ns
        state = reported.state
        for epoch, measures in state.sums.items():
            for step_s in (MINUTE_S, HOUR_S):
                where = (step_s, at_ns // S // step_s * step_s, engine.name, engine.connector, epoch)
                self._savings.update({(*where, measure): value for measure, value in measures.items()})
        if state.findings:
            self._findings += reported.findings(recorder)


def batches(spans: int, *, until_ns: int, of: int) -> Iterator[Batch]:
    """Batches for about `spans` spans, the oldest first, with the rows of `of` requests at a time. The last request begins at
    `until_ns`, and nothing happens later."""
    traffic = Traffic()
    count = max(1, int(spans / traffic.mean()))
    for number in range(count):
        at_ns = until_ns - (count - 1 - number) * DAYS * 86_400 * S // count
        traffic.begin(number, at_ns)
        is_last = number == count - 1
        for chunk in traffic.advance(at_ns):
            yield traffic.batch(chunk)
        if is_last or traffic.touched() >= of:
            yield traffic.batch(traffic.chunk())
            yield traffic.rows()
