"""The router between an engine that prefills and one that decodes: it gives the one's `kv_transfer_params` to the other, and
makes the mistakes that a scenario asks for."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from kvtrail.connector.simulate.scenario import Mistake, Point, Request, When, tokens
from kvtrail.connector.simulate.stages import BareScheduler
from kvtrail.connector.simulate.tiny_model import BLOCK_SIZE

ASKED_TO_PREFILL = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
"""What a router says to the engine that prefills."""
AGAIN_TICKS = 8
"""Within this many ticks a router that makes the mistake asks a second time."""


class Server(Protocol):
    """An engine, as a router sees it.

    Attributes:
        stage: the engine itself.
        error: what it died of; None as long as it lives.
    """

    stage: BareScheduler
    error: str | None

    def ask(self, request_id: str, prompt: list[int], max_tokens: int, transfer: Mapping[str, Any] | None) -> None: ...

    def abort(self, request_id: str) -> None: ...


@dataclass(slots=True, eq=False)
class _Served:
    """A client's request on its way.

    Attributes:
        prompt: all of it.
        prefill_id, decode_id: its id in each engine, once that was asked.
        returned: what the engine that prefills has returned.
        due: the tick from which on the other one is asked.
        over: the client has its answer, or nobody waits for one.
    """

    request: Request
    prompt: list[int]
    prefill_id: str | None = None
    decode_id: str | None = None
    returned: dict[str, Any] | None = None
    due: int = 0
    over: bool = False


class Router:
    """Serves a scenario's requests.

    Attributes:
        answered: the clients' ids of the requests that were decoded to their end.
        names: the client's id of each request of either engine, by the engine's id.
        planted: the clients' ids of the requests that met the mistake of theirs.
        left: where each client disconnected that did, by its id.
    """

    def __init__(self, requests: Sequence[Request], prefill: Server, decode: Server, *, seed: int) -> None:
        self.answered: set[str] = set()
        self.names: dict[str, str] = {}
        self.planted: set[str] = set()
        self.left: dict[str, Point] = {}
        self._prefill, self._decode, self._tick = prefill, decode, 0
        self._rng = random.Random(f"router {seed}")
        self._served = [_Served(each, tokens(each.prompt)) for each in requests]
        self._later: list[tuple[int, Callable[[], None]]] = []
        prefill.stage.on_outputs.append(self._prefilled)
        decode.stage.on_outputs.append(self._decoded)

    def prefill_with(self, engine: Server) -> None:
        """From now on another engine prefills: the one that did has died."""
        self._prefill = engine
        engine.stage.on_outputs.append(self._prefilled)

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits for an answer any more."""
        return not self._later and all(each.over for each in self._served)

    def tick(self, tick: int) -> None:
        """Ask whom it is time to ask, and abort what clients have left."""
        self._tick = tick
        for served in self._served:
            if served.prefill_id is None and served.request.at_tick <= tick:
                served.prefill_id = self._named(served)
                alike = {"transfer_id": "alike"} if served.request.mistake is Mistake.NAMED_ALIKE else {}
                self._prefill.ask(served.prefill_id, self._sent(served), 1, ASKED_TO_PREFILL | alike)
        due = [
            each for each in self._served if each.returned is not None and each.decode_id is None and each.due <= tick
        ]
        self._hand_on([each for each in due if not each.over])
        for later in [each for each in self._later if each[0] <= tick]:
            self._later.remove(later)
            later[1]()
        for served in self._served:
            if served.request.leaves is not None and not served.over and self._leaves(served, served.request.leaves):
                served.over = True
                self.left[served.request.id] = served.request.leaves
            engine = self._prefill if served.returned is None else self._decode
            served.over |= engine.error is not None

    def _sent(self, served: _Served) -> list[int]:
        """The prompt that the engine that prefills gets."""
        whole = len(served.prompt)
        match served.request.mistake:
            case Mistake.SHORT:
                return served.prompt[: (whole - 1) // BLOCK_SIZE * BLOCK_SIZE + 1]
            case Mistake.CUT:
                return served.prompt[: whole - BLOCK_SIZE]
        return served.prompt

    def _hand_on(self, due: Sequence[_Served]) -> None:
        exchanged = [each for each in due if each.request.mistake is Mistake.EXCHANGED]
        for served in due:
            if served not in exchanged:
                self._ask_to_decode(served, served.returned)
        for one, other in zip(exchanged[::2], exchanged[1::2], strict=False):
            self._ask_to_decode(one, other.returned)
            self._ask_to_decode(other, one.returned)
        if len(exchanged) % 2 and self._alone(exchanged[-1]):
            self._ask_to_decode(exchanged[-1], exchanged[-1].returned, wrongly=False)

    def _alone(self, served: _Served) -> bool:
        """Whether no other request will come to exchange with."""
        others = (each for each in self._served if each is not served and each.request.mistake is Mistake.EXCHANGED)
        return all(each.over or each.decode_id is not None for each in others)

    def _ask_to_decode(self, served: _Served, returned: Mapping[str, Any] | None, *, wrongly: bool = True) -> None:
        request = served.request
        served.decode_id = self._named(served)
        if request.mistake is not None and wrongly and self._decode.error is None:
            self.planted.add(request.id)
        if request.mistake is Mistake.ALTERED and returned is not None:
            returned = _altered(returned)
        self._load(served, served.decode_id, returned)
        if request.mistake is Mistake.TWICE:
            again, at = self._named(served), self._tick + self._rng.randrange(AGAIN_TICKS)
            self._later.append((at, lambda: self._load(served, again, returned)))

    def _load(self, served: _Served, request_id: str, returned: Mapping[str, Any] | None) -> None:
        self._decode.ask(request_id, list(served.prompt), served.request.max_tokens, json.loads(json.dumps(returned)))

    def _leaves(self, served: _Served, point: Point) -> bool:
        """Abort a request, if it is at the point where its client disconnects; returns whether it was."""
        match point:
            case Point.PREFILLING:
                there = served.prefill_id in self._prefill.stage.scheduler.requests and served.returned is None
                there = there and self._rng.random() < 0.5  # not always in its first step
                if there:
                    self._prefill.abort(str(served.prefill_id))
            case Point.HANDED_OVER:  # neither engine hears of it
                there = served.returned is not None and served.decode_id is None
            case _:
                there = served.decode_id is not None and self._is_at(served.decode_id, point)
                if there:
                    self._decode.abort(str(served.decode_id))
        return there

    def _is_at(self, request_id: str, point: Point) -> bool:
        from vllm.v1.request import RequestStatus

        request = self._decode.stage.scheduler.requests.get(request_id)
        if request is None or request.is_finished():
            return False
        match point:
            case Point.QUEUED:
                return bool(request.status is RequestStatus.WAITING)
            case Point.LOADING:
                return self._decode.stage.is_in(request_id, When.LOADING)
        return bool(request.num_output_tokens)

    def _prefilled(self, outputs: Sequence[Any]) -> None:
        for served, output in self._ended(outputs, lambda each: each.prefill_id):
            served.returned, served.due = output.kv_transfer_params, self._tick + served.request.kept_ticks
            served.over |= served.returned is None

    def _decoded(self, outputs: Sequence[Any]) -> None:
        for served, output in self._ended(outputs, lambda each: each.decode_id):
            served.over = True
            if output.finish_reason.name != "ERROR":
                self.answered.add(served.request.id)

    def _ended(self, outputs: Sequence[Any], id_of: Callable[[_Served], str | None]) -> list[tuple[_Served, Any]]:
        ended = {each.request_id: each for each in outputs if each.finish_reason is not None}
        return [(each, ended[name]) for each in self._served if (name := id_of(each)) in ended and name is not None]

    def _named(self, served: _Served) -> str:
        """An engine's id of a request, as vLLM makes it of the client's."""
        name = f"{served.request.id}-{self._rng.getrandbits(32):08x}"
        self.names[name] = served.request.id
        return name


def _altered(returned: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters with another block in place of the last one."""
    *before, last = returned["remote_block_ids"][-1]
    groups = [*returned["remote_block_ids"][:-1], [*before, last - 1 if last > 1 else last + 1]]
    return {**returned, "remote_block_ids": groups}
