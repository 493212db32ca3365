"""The router between a prefill engine and a decoding engine. It passes the `kv_transfer_params` on."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvtrail.connector.simulate.pairs.engine import Engine
from kvtrail.connector.simulate.scenario import Point, Request, When, tokens

ASKED_TO_PREFILL = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
"""The `kv_transfer_params` that a router sends to the prefill engine."""


@dataclass(slots=True, eq=False)
class Served:
    """The state of a client's request.

    Attributes:
        prompt: its token ids.
        prefill_id, decode_id: its id in each engine; None before the engine has received it.
        returned: the `kv_transfer_params` that the prefill engine returned.
        due: the tick from which on the router sends it to the decoding engine.
        over: whether the client has its answer or no longer waits for one.
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
        names: the client's id of each request of either engine, by the engine's id.
    """

    def __init__(self, requests: Sequence[Request], prefill: Engine, decode: Engine, *, seed: int) -> None:
        self.names: dict[str, str] = {}
        self._prefill, self._decode, self._tick = prefill, decode, 0
        self._rng = random.Random(f"router {seed}")
        self._served = [Served(each, tokens(each.prompt)) for each in requests]
        prefill.stage.on_outputs.append(self._prefilled)
        decode.stage.on_outputs.append(self._decoded)

    @property
    def is_idle(self) -> bool:
        """Whether no client waits for an answer."""
        return all(each.over for each in self._served)

    def tick(self, tick: int) -> None:
        """Send the requests that are due to the engines, and abort those whose clients disconnect."""
        self._tick = tick
        for served in self._served:
            if served.prefill_id is None and served.request.at_tick <= tick:
                served.prefill_id = self._named(served)
                self._ask_to_prefill(served, served.prefill_id, served.prompt)
        due = [
            each for each in self._served if each.returned is not None and each.decode_id is None and each.due <= tick
        ]
        self._hand_on([each for each in due if not each.over])
        for served in self._served:
            if served.request.leaves is not None and not served.over and self._leaves(served, served.request.leaves):
                served.over = True
            engine = self._prefill if served.returned is None else self._decode
            served.over |= engine.error is not None

    def _ask_to_prefill(self, served: Served, request_id: str, prompt: list[int]) -> None:
        self._prefill.ask(request_id, prompt, 1, ASKED_TO_PREFILL)

    def _hand_on(self, due: Sequence[Served]) -> None:
        """Send these requests to the decoding engine; called in each tick."""
        for served in due:
            self._ask_to_decode(served, served.returned)

    def _ask_to_decode(self, served: Served, returned: Mapping[str, Any] | None) -> None:
        served.decode_id = self._named(served)
        params = json.loads(json.dumps(returned))
        self._decode.ask(served.decode_id, list(served.prompt), served.request.max_tokens, params)

    def _leaves(self, served: Served, point: Point) -> bool:
        """Abort a request if it has reached the point at which its client disconnects; returns whether it has."""
        match point:
            case Point.PREFILLING:
                there = served.prefill_id in self._prefill.stage.scheduler.requests and served.returned is None
                there = there and self._rng.random() < 0.5  # not always in its first step
                if there:
                    self._prefill.abort(str(served.prefill_id))
            case Point.HANDED_OVER:  # no engine is notified
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
        for served, _ in self._ended(outputs, lambda each: each.decode_id):
            served.over = True

    def _ended(self, outputs: Sequence[Any], id_of: Callable[[Served], str | None]) -> list[tuple[Served, Any]]:
        ended = {each.request_id: each for each in outputs if each.finish_reason is not None}
        return [(each, ended[name]) for each in self._served if (name := id_of(each)) in ended and name is not None]

    def _named(self, served: Served) -> str:
        """An engine's id of a request, which extends the client's id, as in vLLM."""
        name = f"{served.request.id}-{self._rng.getrandbits(32):08x}"
        self.names[name] = served.request.id
        return name
