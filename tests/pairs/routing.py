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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from command_line import exported
from pair import Engine, Pair, alone, beside_offload, example, mooncake, pair
from processes import SLOW_S

from kvtrail.connector.demo import workload
from kvtrail.connector.demo.engine_process import Answer
from kvtrail.connector.demo.pair import DECODE, PREFILL, EngineDied, at_once, nixl
from kvtrail.connector.demo.workload import DemoRequest
from kvtrail.connector.simulate.pairs.router import ASKED_TO_PREFILL
from kvtrail.connector.simulate.tiny_model import VOCABULARY

PROMPT_TOKENS = 720
"""23 blocks: the pool of an engine holds two such requests."""
SHORT_LEASE_S = 2
"""A lease short enough to wait for its end; vLLM's own default is 30 s."""
STEPS_UNTIL_GONE = 1000
"""A step that computes nothing takes at least a millisecond."""


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
    """Of three requests the decoding engine is asked only when the lease has ended, but the blocks have not been written
    since. Two before and two after them are sound."""
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


def taken_over(pair: Pair) -> list[Decoded]:
    """Two requests get each other's params, and the same prompts come again without: the decoding engine finds the wrong
    blocks in its prefix cache. They come a third time when that has been emptied. Two before and two after are sound."""
    found = _routed(pair, _prompts("before", 2))
    jobs = _prompts("exchanged", 2)
    params = at_once(pair.prefilled, jobs)
    found += _decoded_with(pair, jobs, params[::-1], jobs[::-1])
    found += [_decoded(pair, replace(job, id=f"again-{job.id}"), {}, "") for job in jobs]
    pair.decode.forget()
    found += [_decoded(pair, replace(job, id=f"fresh-{job.id}"), {}, "") for job in jobs]
    return found + _routed(pair, _prompts("after", 2))


def read_again(pair: Pair) -> list[Decoded]:
    """Three requests are sound. Then other prompts are prefilled into their blocks, the decoding engine's prefix cache is
    emptied, and the same three prompts come again, with the params of the first time: vllm #52234."""
    found = []
    for job in _prompts("read", 3):
        params = pair.prefilled(job)
        found.append(_decoded(pair, job, params, job.id))
        _rewrite(pair, f"other-{job.id}")
        pair.decode.forget()
        found.append(_decoded(pair, replace(job, id=f"again-{job.id}"), params, job.id))
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
    """Two requests are prefilled, but their client has gone when the decoding engine should be asked: it is never asked, and
    the leases end. Another is aborted in the middle of its prefill. Two before and two after them are sound."""
    found = _one_by_one(pair, _prompts("before", 2))
    at_once(pair.prefilled, _prompts("unfetched", 2))
    pair.wait_until_nothing_is_kept()
    (gone,) = _prompts("gone", 1)
    pair.prefill.ask(gone, ASKED_TO_PREFILL, aborted_after=3).result(SLOW_S)
    return found + _one_by_one(pair, _prompts("after", 2))


def full(pair: Pair) -> list[Decoded]:
    """Six requests are prefilled at once, and the decoding engine is never asked: the pool of the prefilling engine is full
    with two of them, and the others wait for the ends of their leases. Two before and two after them are sound."""
    found = _one_by_one(pair, _prompts("before", 2))
    for prefilled in [pair.prefill.ask(replace(job, max_tokens=1), ASKED_TO_PREFILL) for job in _prompts("full", 6)]:
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


def passed_on(pair: Pair) -> list[Decoded]:
    """Two requests are read when others have written the blocks. Then the decoding engine's prefix cache is emptied, and the
    same prompts come again without params: it has what its other connector stored of them. Two before and two after are
    sound."""
    found = _one_by_one(pair, _prompts("before", 2))
    for job in _prompts("late", 2):
        params = pair.prefilled(job)
        _rewrite(pair, f"other-{job.id}")
        found.append(_decoded(pair, job, params, job.id))
        pair.decode.forget()
        found.append(_decoded(pair, replace(job, id=f"again-{job.id}"), {}, ""))
    return found + _one_by_one(pair, _prompts("after", 2))


def never_pushed(pair: Pair) -> list[Decoded]:
    """Of two requests the decoding engine is asked only when the lease has ended. It waits for a push that never comes,
    until the client goes away, and keeps the blocks for good: vllm #51637. Two before them are sound; after them there is
    no room."""
    found = _one_by_one(pair, _prompts("before", 2))
    for job in _prompts("late", 2):
        params = pair.prefilled(job)
        pair.wait_until_nothing_is_kept()
        answer = pair.decode.ask(job, params, aborted_after=STEPS_UNTIL_GONE).result(SLOW_S)
        found.append(Decoded(job, params, answer, job.id))
    return found


def same_id(pair: Pair) -> list[Decoded]:
    """Twice two requests with different prompts have the same id from their clients. Both are prefilled before the second,
    then the first is decoded, each with its own params. Two before and two after them are sound."""
    found = _routed(pair, _prompts("before", 2))
    for number in range(2):
        jobs = _prompts(f"same-{number}", 2)
        params = [pair.prefilled(job, external_id=f"same-{number}") for job in jobs]
        for job, own in reversed([*zip(jobs, params, strict=True)]):
            answer = pair.decode.ask(job, own, external_id=f"same-{number}").result(SLOW_S)
            found.append(Decoded(job, own, answer, job.id))
    return found + _routed(pair, _prompts("after", 2))


def exchanged_files(pair: Pair) -> list[Decoded]:
    """Three times two requests of equal length are prefilled, and their files exchanged before they are decoded. Two before
    and two after them are sound."""
    found = _routed(pair, _prompts("before", 2))
    for number in range(3):
        jobs = _prompts(f"exchanged-{number}", 2)
        one, other = (_files_of(pair, job) for job in jobs)
        one.rename(aside := one.with_name("aside"))
        other.rename(one)
        aside.rename(other)
        found += [_decoded(pair, job, {}, owner.id) for job, owner in zip(jobs, jobs[::-1], strict=True)]
    return found + _routed(pair, _prompts("after", 2))


def stale_files(pair: Pair) -> list[Decoded]:
    """Of three requests the files are those of an earlier prompt. Two before and two after them are sound."""
    found = _routed(pair, _prompts("before", 2))
    for job, earlier in zip(_prompts("stale", 3), _prompts("earlier", 3), strict=True):
        old, new = _files_of(pair, earlier), _files_of(pair, job)
        shutil.copytree(old, new, dirs_exist_ok=True)
        found.append(_decoded(pair, job, {}, earlier.id))
    return found + _routed(pair, _prompts("after", 2))


def removed_files(pair: Pair) -> list[Decoded]:
    """One of the files of a request is gone when it is decoded: the decoding engine dies. Two before it are sound."""
    found = _routed(pair, _prompts("before", 2))
    (job,) = _prompts("removed", 1)
    sorted(_files_of(pair, job).iterdir())[-1].unlink()
    return [*found, _decoded(pair, job, {}, job.id)]


def _files_of(pair: Pair, job: DemoRequest) -> Path:
    """Have a request prefilled, by an engine that stores it in files: their folder."""
    shared = pair.folder / "shared"
    before = {*shared.iterdir()}
    pair.prefilled(job)
    (files,) = {*shared.iterdir()} - before
    return files


@dataclass(frozen=True, slots=True)
class Story:
    """What a router does, and the `kv_transfer_config` of both engines.

    Attributes:
        hybrid: whether their model is the hybrid one.
        step_tokens: vLLM's `max_num_batched_tokens`, if that is not the model's own.
    """

    play: Callable[[Pair], list[Decoded]]
    connector: Mapping[str, Any]
    hybrid: bool = False
    step_tokens: int | None = None


SHORT = nixl(kv_lease_duration=SHORT_LEASE_S)
PUSH = nixl("NixlPushConnector")
WHOLE = 4096
"""Tokens of a step in which all prompts fit: the ExampleConnector stores only what a request's first step computes."""
STORIES = {
    "healthy": Story(healthy, nixl()),
    "late": Story(late, SHORT),
    "late-unwritten": Story(late_unwritten, SHORT),
    "exchanged": Story(exchanged, nixl()),
    "taken-over": Story(taken_over, nixl()),
    "read-again": Story(read_again, nixl()),
    "shared": Story(shared, nixl()),
    "same-id": Story(same_id, nixl()),
    "killed": Story(killed, nixl()),
    "unfetched": Story(unfetched, SHORT),
    "full": Story(full, nixl(kv_lease_duration=10)),
    "aborted": Story(aborted, nixl()),
    "healthy-push": Story(healthy, PUSH),
    "exchanged-push": Story(exchanged, PUSH),
    "same-id-push": Story(same_id, PUSH),
    "never-pushed": Story(never_pushed, nixl("NixlPushConnector", kv_lease_duration=SHORT_LEASE_S)),
    "healthy-multi": Story(healthy, beside_offload()),
    "passed-on-multi": Story(passed_on, beside_offload(kv_lease_duration=SHORT_LEASE_S)),
    "healthy-mooncake": Story(healthy, mooncake()),
    "exchanged-mooncake": Story(exchanged, mooncake()),
    "healthy-example": Story(healthy, example(), step_tokens=WHOLE),
    "exchanged-example": Story(exchanged_files, example(), step_tokens=WHOLE),
    "stale-example": Story(stale_files, example(), step_tokens=WHOLE),
    "removed-example": Story(removed_files, example(), step_tokens=WHOLE),
    "healthy-hybrid": Story(healthy, nixl(), hybrid=True),
    "late-hybrid": Story(late, SHORT, hybrid=True),
}


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

    def named(self, findings: Iterable[Mapping[str, Any]]) -> set[str]:
        """The requests of the decoding engine that these findings name."""
        names = {each.answer.engine_id: each.job.id for each in self.decoded if each.answer is not None}
        return {names[each["request"]] for each in findings if each["request"] in names}

    def write(self, file: Path) -> None:
        """Write as JSON what really happened, beside what kvtrail says."""
        story = STORIES[self.name]
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
            "story": " ".join((story.play.__doc__ or "").split()),
            "connector": story.connector,
            "hybrid": story.hybrid,
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


def play(name: str, folder: Path, sound: Engine) -> Played:
    """Play a story in an empty folder. `sound` is an engine with the story's model and without a connector."""
    story = STORIES[name]
    with pair(folder, story.connector, hybrid=story.hybrid, step_tokens=story.step_tokens) as both:
        decoded = story.play(both)
        both.end()
        findings = both.sidecar.get("/api/findings", limit=1000)
        requests = both.sidecar.get("/api/requests", limit=1000)
        engines = both.sidecar.get("/api/fleet")["engines"]
    jobs = [each.job for each in decoded]
    answers = at_once(lambda job: sound.ask(job).result(SLOW_S), jobs)
    expected = {job.id: answer.tokens for job, answer in zip(jobs, answers, strict=True)}
    return Played(name, decoded, expected, findings, requests, engines)


def _routed(pair: Pair, jobs: Iterable[DemoRequest]) -> list[Decoded]:
    """As a sound router does."""
    return at_once(lambda job: _decoded(pair, job, pair.prefilled(job), job.id), list(jobs))


def _one_by_one(pair: Pair, jobs: Iterable[DemoRequest]) -> list[Decoded]:
    """As a sound router does, where leases are short: should one end too soon, the blocks have not been written."""
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
    names = arguments.names or STORIES
    for hybrid in (False, True):
        if of_model := [name for name in names if STORIES[name].hybrid is hybrid]:
            with tempfile.TemporaryDirectory() as folder, alone(Path(folder), hybrid=hybrid) as sound:
                for name in of_model:
                    _write(name, arguments.folder, sound)


def _write(name: str, to: Path, sound: Engine) -> None:
    with tempfile.TemporaryDirectory() as folder:
        played = play(name, Path(folder), sound)
        played.write(to / f"{name}.json")
        exported(Path(folder, "kvtrail.db"), to / f"{name}.jsonl")
        for engine in (PREFILL, DECODE):
            shutil.copy(Path(folder, f"{engine}.log"), to / f"{name}.{engine}.log")
    of = Counter(each["rule"] for each in played.findings)
    print(f"{name}: wrong {len(played.wrong())} of {len(played.answered())}; found: {dict(of)}", flush=True)


if __name__ == "__main__":
    main()
