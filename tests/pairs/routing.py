"""What a router does with a pair, well or badly, and what comes of it.

`python tests/pairs/routing.py FOLDER [NAME ...]` plays them, and writes the trace file of each and what really happened. It
takes kvtrail and the other modules of `tests` from PYTHONPATH.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pair import DECODE, PREFILL, REMOTE_DECODE, Engine, EngineDied, Pair, alone, at_once, beside_offload, nixl, pair
from paired_engine import Answer
from processes import SLOW_S

from kvtrail.connector.demo import workload
from kvtrail.connector.demo.workload import DemoRequest
from kvtrail.connector.simulate.tiny_model import VOCABULARY

PROMPT_TOKENS = 720
"""23 blocks: the pool of an engine holds two such requests."""
SHORT_LEASE_S = 2
"""A lease whose end is waited for; vLLM's own default is 30 s."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """A request of the engine that decodes.

    Attributes:
        job: what was asked.
        params: the `kv_transfer_params` with which it was asked.
        answer: None if the engine died meanwhile.
        of: the request that the params were returned for.
    """

    job: DemoRequest
    params: Mapping[str, Any]
    answer: Answer | None
    of: str


def healthy(pair: Pair) -> list[Decoded]:
    """Each request is prefilled, then decoded, two at a time; prompts share prefixes."""
    return _routed(pair, workload.shared_prefixes(requests=12))


def late(pair: Pair) -> list[Decoded]:
    """Of four requests the decoding engine is asked only when the lease has ended and other prompts have been prefilled into
    the blocks. Two before and two after them are sound."""
    found = _one_by_one(pair, _prompts("before", 2))
    for number in range(2):
        jobs = _prompts(f"late-{number}", 2)
        params = at_once(pair.prefilled, jobs)
        _rewrite(pair, f"other-{number}")
        found += _decoded_with(pair, jobs, params, jobs)
    return found + _one_by_one(pair, _prompts("after", 2))


def late_unwritten(pair: Pair) -> list[Decoded]:
    """Of three requests the decoding engine is asked only when the lease has ended, but nobody has written the blocks since.
    Two before and two after them are sound."""
    found = _one_by_one(pair, _prompts("before", 2))
    for job in _prompts("late", 3):
        params = pair.prefilled(job)
        pair.wait_until_nothing_is_kept()
        found.append(_decoded(pair, job, params, job.id))
    return found + _one_by_one(pair, _prompts("after", 2))


def exchanged(pair: Pair) -> list[Decoded]:
    """Three times two requests of equal length get each other's params. Two before and two after them are sound."""
    found = _routed(pair, _prompts("before", 2))
    for number in range(3):
        jobs = _prompts(f"exchanged-{number}", 2)
        params = at_once(pair.prefilled, jobs)
        found += _decoded_with(pair, jobs, params[::-1], jobs[::-1])
    return found + _routed(pair, _prompts("after", 2))


def read_again(pair: Pair) -> list[Decoded]:
    """Three requests are sound. Then other prompts are prefilled into their blocks, the decoding engine's prefix cache is
    emptied, and the same three prompts come again, with the params of the first time: vllm #52234."""
    found = []
    for job in _prompts("first", 3):
        params = pair.prefilled(job)
        found.append(_decoded(pair, job, params, job.id))
        _rewrite(pair, f"other-{job.id}")
        pair.decode.forget()
        again = DemoRequest(job.id.replace("first", "again"), job.prompt, job.max_tokens)
        found.append(_decoded(pair, again, params, job.id))
    return found


def shared(pair: Pair) -> list[Decoded]:
    """Three times two requests with one prompt get the same params at the same time: both read, and both notify."""
    found = []
    for job in _prompts("shared", 3):
        params = pair.prefilled(job)
        twins = [DemoRequest(f"{job.id}-{which}", job.prompt, job.max_tokens) for which in ("a", "b")]
        found += _decoded_with(pair, twins, [params, params], [job, job])
    return found


def killed(pair: Pair) -> list[Decoded]:
    """Two requests are sound. Two more are prefilled, then the prefilling engine is killed before the decoding one is asked.
    Two requests without params come last."""
    found = _routed(pair, _prompts("before", 2))
    jobs = _prompts("orphan", 2)
    params = at_once(pair.prefilled, jobs)
    pair.prefill.kill()
    found += _decoded_with(pair, jobs, params, jobs)
    return found + at_once(lambda job: _decoded(pair, job, {}, ""), _prompts("after", 2))


def unfetched(pair: Pair) -> list[Decoded]:
    """Two requests are prefilled whose client has gone when the decoding engine should be asked: nobody asks it, and the
    leases end. Another is aborted in the middle of its prefill. Two before and two after them are sound."""
    found = _one_by_one(pair, _prompts("before", 2))
    at_once(pair.prefilled, _prompts("unfetched", 2))
    pair.wait_until_nothing_is_kept()
    (gone,) = _prompts("gone", 1)
    pair.prefill.ask(gone, REMOTE_DECODE, aborted_after=3).result(SLOW_S)
    return found + _one_by_one(pair, _prompts("after", 2))


def full(pair: Pair) -> list[Decoded]:
    """Six requests are prefilled at once, and the decoding engine is never asked: the pool of the prefilling engine is full
    with two of them, and the others wait for the ends of their leases. Two before and two after them are sound."""
    found = _one_by_one(pair, _prompts("before", 2))
    for prefilled in [pair.prefill.ask(replace(job, max_tokens=1), REMOTE_DECODE) for job in _prompts("full", 6)]:
        prefilled.result(SLOW_S)
    pair.wait_until_nothing_is_kept()
    return found + _one_by_one(pair, _prompts("after", 2))


def aborted(pair: Pair) -> list[Decoded]:
    """Three requests are aborted after the decoding engine has them: before it schedules them, in the step after that, and
    three steps later. Two before and two after them are sound."""
    found = _routed(pair, _prompts("before", 2))
    for job, steps in zip(_prompts("aborted", 3), (0, 1, 4), strict=True):
        params = pair.prefilled(job)
        found.append(Decoded(job, params, pair.decode.ask(job, params, aborted_after=steps).result(SLOW_S), job.id))
    pair.wait_until_nothing_is_kept()
    return found + _routed(pair, _prompts("after", 2))


SHORT = nixl(kv_lease_duration=SHORT_LEASE_S)
STORIES: dict[str, tuple[Callable[[Pair], list[Decoded]], dict[str, Any]]] = {
    "healthy": (healthy, nixl()),
    "late": (late, SHORT),
    "late-unwritten": (late_unwritten, SHORT),
    "exchanged": (exchanged, nixl()),
    "read-again": (read_again, nixl()),
    "shared": (shared, nixl()),
    "killed": (killed, nixl()),
    "unfetched": (unfetched, SHORT),
    "full": (full, SHORT),
    "aborted": (aborted, nixl()),
    "healthy-push": (healthy, nixl("NixlPushConnector")),
    "healthy-multi": (healthy, beside_offload()),
}
"""What a router does, by name, and the `kv_transfer_config` of both engines."""


@dataclass(frozen=True, slots=True)
class Played:
    """What came of a story.

    Attributes:
        decoded: the requests of the engine that decodes.
        expected: the tokens of one engine alone, by request.
        findings, requests, engines: what the sidecar's API says of them afterwards.
    """

    name: str
    decoded: Sequence[Decoded]
    expected: Mapping[str, tuple[int, ...]]
    findings: Sequence[Mapping[str, Any]]
    requests: Sequence[Mapping[str, Any]]
    engines: Sequence[Mapping[str, Any]]

    def answered(self) -> set[str]:
        """The requests that got tokens, right or wrong."""
        return {each.job.id for each in self.decoded if each.answer is not None and each.answer.reason == "length"}

    def wrong(self) -> set[str]:
        """The requests that got tokens which are not those of one engine alone."""
        tokens = {each.job.id: each.answer.tokens for each in self.decoded if each.answer is not None}
        return {request for request in self.answered() if tokens[request] != self.expected[request]}

    def write(self, file: Path) -> None:
        """Write as JSON what really happened, beside what kvtrail says."""
        story, connector = STORIES[self.name]
        wrong = self.wrong()
        decoded = [
            {
                "request": each.job.id,
                "decode_id": None if each.answer is None else each.answer.engine_id,
                "params_of": each.of,
                "remote_request_id": each.params.get("remote_request_id"),
                "reason": "engine died" if each.answer is None else each.answer.reason,
                "wrong_tokens": each.job.id in wrong,
            }
            for each in self.decoded
        ]
        truth = {
            "story": " ".join((story.__doc__ or "").split()),
            "connector": connector,
            "wrong": f"{len(wrong)} of {len(self.answered())} answered",
            "decoded": decoded,
            "kvtrail": {
                "findings": dict(Counter(each["rule"] for each in self.findings)),
                "found": self.findings,
                "verdicts": {each["request"]: each["verdict"] for each in self.requests},
                "engines": self.engines,
            },
        }
        file.write_text(json.dumps(truth, indent=1))


def play(name: str, folder: Path, trace: Path, sound: Engine) -> Played:
    """Play a story in an empty folder. `sound` is an engine without a connector."""
    story, connector = STORIES[name]
    with pair(folder, trace, connector) as both:
        decoded = story(both)
        both.end()
        findings = both.sidecar.get("/api/findings", limit=1000)
        requests = both.sidecar.get("/api/requests", limit=1000)
        engines = both.sidecar.get("/api/fleet")["engines"]
    answers = at_once(lambda job: sound.ask(job).result(SLOW_S), [each.job for each in decoded])
    expected = {answer.id: answer.tokens for answer in answers}
    return Played(name, decoded, expected, findings, requests, engines)


def _routed(pair: Pair, jobs: Iterable[DemoRequest]) -> list[Decoded]:
    """As a sound router does."""
    return at_once(lambda job: _decoded(pair, job, pair.prefilled(job), job.id), list(jobs))


def _one_by_one(pair: Pair, jobs: Iterable[DemoRequest]) -> list[Decoded]:
    """As a sound router does, where leases are short: should one end too soon, nobody has written the blocks."""
    return [_decoded(pair, job, pair.prefilled(job), job.id) for job in jobs]


def _decoded_with(
    pair: Pair, jobs: Sequence[DemoRequest], params: Sequence[Mapping[str, Any]], of: Sequence[DemoRequest]
) -> list[Decoded]:
    """Each of the jobs with these params, which were returned for the requests `of`."""
    given = {job.id: (each, owner.id) for job, each, owner in zip(jobs, params, of, strict=True)}
    return at_once(lambda job: _decoded(pair, job, *given[job.id]), jobs)


def _decoded(pair: Pair, job: DemoRequest, params: Mapping[str, Any], of: str) -> Decoded:
    try:
        answer = pair.decode.ask(job, params or None).result(SLOW_S)
    except EngineDied:
        answer = None
    return Decoded(job, params, answer, of)


def _rewrite(pair: Pair, name: str) -> None:
    """Have the prefilling engine write every block of its pool."""
    pair.wait_until_nothing_is_kept()
    for answer in [pair.prefill.ask(job) for job in _prompts(name, 4)]:
        answer.result(SLOW_S)


def _prompts(name: str, number: int) -> list[DemoRequest]:
    """Requests of one length that have nothing in common with others."""
    rng = random.Random(name)
    tokens = [tuple(rng.randrange(3, VOCABULARY) for _ in range(PROMPT_TOKENS)) for _ in range(number)]
    return [DemoRequest(f"{name}-{n}", prompt, 24) for n, prompt in enumerate(tokens)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"by default all: {', '.join(STORIES)}")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        sound = stack.enter_context(alone(Path(stack.enter_context(tempfile.TemporaryDirectory()))))
        for name in arguments.names or STORIES:
            _write(name, arguments.folder, sound)


def _write(name: str, to: Path, sound: Engine) -> None:
    trace = to / f"{name}.jsonl"
    trace.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        played = play(name, Path(folder), trace, sound)
        played.write(to / f"{name}.json")
        for engine in (PREFILL, DECODE):
            shutil.copy(Path(folder, f"{engine}.log"), to / f"{name}.{engine}.log")
    of = Counter(each["rule"] for each in played.findings)
    print(f"{name}: wrong {len(played.wrong())} of {len(played.answered())}; found: {dict(of)}", flush=True)


if __name__ == "__main__":
    main()
