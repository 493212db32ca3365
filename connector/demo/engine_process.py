"""An engine in a process of its own: steps vLLM's whole engine and answers over a pipe.

`python -m kvtrail.connector.demo.engine_process` takes the arguments of `serve` as JSON, is asked over its standard input,
and answers over its standard output.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from kvtrail.connector.demo.workload import DemoRequest

PAUSE_S = 0.001
"""Between two steps, as vLLM's own loop pauses after a step that computes nothing. An engine that only keeps blocks goes on
stepping: a step shows whether they were read, or a lease has ended."""


class Channel(Protocol):
    """Both ends of a pipe in both directions, such as a `Connection`."""

    def send(self, message: Any, /) -> None: ...

    def recv(self) -> Any: ...

    def poll(self, timeout: float | None = ..., /) -> bool: ...


class Pipes:
    """A channel of two pipes that each go in one direction, by their file descriptors."""

    def __init__(self, reading: int, writing: int) -> None:
        self._reading, self._writing = Connection(reading, writable=False), Connection(writing, readable=False)
        self.send, self.recv, self.poll = self._writing.send, self._reading.recv, self._reading.poll


@dataclass(frozen=True, slots=True)
class Ask:
    """Run a request. It is answered with an `Answer` when it has ended.

    Attributes:
        id: for the answer.
        external_id: what vLLM has as the id that the client chose.
        params: its `kv_transfer_params`.
        aborted_after: abort it after this many steps of the engine; None lets it end by itself.
    """

    id: str
    external_id: str
    prompt: tuple[int, ...]
    max_tokens: int
    params: Mapping[str, Any] | None
    aborted_after: int | None


@dataclass(frozen=True, slots=True)
class RunAll:
    """Run requests to their ends, each from its step on, in an engine that runs no others. It is answered with a `Progress`
    whenever one has ended, and with a `RanAll`."""

    id: str
    jobs: Sequence[DemoRequest]


@dataclass(frozen=True, slots=True)
class Progress:
    """So many requests of a `RunAll` have ended."""

    id: str
    done: int


@dataclass(frozen=True, slots=True)
class RanAll:
    """All requests of a `RunAll` have ended: the tokens that each generated, by its id."""

    id: str
    tokens: Mapping[str, Sequence[int]]


@dataclass(frozen=True, slots=True)
class Forget:
    """Empty vLLM's prefix cache."""


@dataclass(frozen=True, slots=True)
class AskKept:
    """It is answered with a `Kept`."""


@dataclass(frozen=True, slots=True)
class End:
    """Send the end record and end."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The engine takes requests."""


@dataclass(frozen=True, slots=True)
class Kept:
    """How many ended requests have blocks that the engine keeps."""

    requests: int


@dataclass(frozen=True, slots=True)
class Answer:
    """A request has ended.

    Attributes:
        id: as it was asked.
        engine_id: vLLM's own id of the request.
        reason: vLLM's finish reason.
        params: the `kv_transfer_params` that the engine returned.
    """

    id: str
    engine_id: str
    tokens: tuple[int, ...]
    reason: str | None
    params: Mapping[str, Any] | None = None


def serve(
    connection: Channel,
    folder: Path,
    connector: Mapping[str, Any] | None,
    hybrid: bool,
    step_tokens: int | None = None,
    metrics_port: int = 0,
) -> None:
    """Run until `End`, or until nobody can ask any more.

    Args:
        folder: for the model.
        connector: the `kv_transfer_config`; None for an engine without any.
        hybrid: half of the model's layers have a sliding window.
        step_tokens: vLLM's `max_num_batched_tokens`, if that is not the model's own.
        metrics_port: serve vLLM's own metrics there, as `vllm serve` does; 0 does not serve them.
    """
    import torch

    from kvtrail.connector.recording.recorder import recorders
    from kvtrail.connector.simulate import tiny_hybrid, tiny_model

    if connector is not None and connector["kv_connector"] == "MooncakeConnector":
        torch.accelerator.current_device_index = lambda: 0  # it asks for the number of its GPU
    options: dict[str, Any] = {"write": tiny_hybrid.write, **tiny_hybrid.OPTIONS} if hybrid else {}
    if step_tokens is not None:
        options["max_num_batched_tokens"] = step_tokens
    llm = tiny_model.build(folder, connector, disable_log_stats=not metrics_port, **options)
    if metrics_port:
        from prometheus_client import start_http_server  # a dependency of vLLM, which counts in its registry

        start_http_server(metrics_port, "127.0.0.1")
    connection.send(Ready())
    with suppress(EOFError):  # whoever asked has ended
        _Served(connection, llm).run()
    for recorder in recorders():
        recorder.flush()
    llm.llm_engine.engine_core.shutdown()


class _Served:
    """The engine, and who asks it. The ids of a request, by the external one, are those for its answer and of vLLM."""

    def __init__(self, connection: Channel, llm: Any) -> None:
        self._connection = connection
        self._llm = llm
        self._engine = llm.llm_engine
        self._scheduler = llm.llm_engine.engine_core.engine_core.scheduler
        self._ids: dict[str, tuple[str, str]] = {}
        self._to_abort: dict[str, int] = {}

    def run(self) -> None:
        while True:
            while self._connection.poll(PAUSE_S if self._scheduler.has_requests() else None):
                asked = self._connection.recv()
                if isinstance(asked, End):
                    return
                self._obey(asked)
            self._abort_those_due()
            for output in self._engine.step():
                if output.finished:
                    (of,) = output.outputs
                    self._answer(output.request_id, tuple(of.token_ids), of.finish_reason, output.kv_transfer_params)

    def _abort_those_due(self) -> None:
        """Before each step."""
        for external_id, steps in list(self._to_abort.items()):
            if steps > 0:
                self._to_abort[external_id] = steps - 1
                continue
            del self._to_abort[external_id]
            self._engine.abort_request([external_id])
            self._answer(external_id, (), "abort")

    def _answer(
        self, external_id: str, tokens: tuple[int, ...], reason: str | None, params: Mapping[str, Any] | None = None
    ) -> None:
        self._connection.send(Answer(*self._ids.pop(external_id), tokens, reason, params))

    def _obey(self, asked: Any) -> None:
        from vllm import SamplingParams

        from kvtrail.connector.demo import workload
        from kvtrail.connector.recording.recorder import recorders

        match asked:
            case Ask(id, external_id, prompt, max_tokens, params, aborted_after):
                extra = None if params is None else {"kv_transfer_params": dict(params)}
                sampling = SamplingParams(
                    temperature=0, max_tokens=max_tokens, ignore_eos=True, detokenize=False, extra_args=extra
                )
                engine_id = self._engine.add_request(external_id, {"prompt_token_ids": list(prompt)}, sampling)
                self._ids[external_id] = id, engine_id
                if aborted_after is not None:
                    self._to_abort[external_id] = aborted_after
            case RunAll(id, jobs):
                tokens = workload.run(self._llm, jobs, lambda done: self._connection.send(Progress(id, done)))
                for recorder in recorders():
                    recorder.flush()
                self._connection.send(RanAll(id, tokens))
            case Forget():
                self._llm.reset_prefix_cache()
            case AskKept():
                running, waiting = self._scheduler.get_request_counts()
                self._connection.send(Kept(len(self._scheduler.requests) - running - waiting))


def main() -> None:
    folder, connector, hybrid, metrics_port = json.loads(sys.argv[1])
    channel = Pipes(os.dup(0), os.dup(1))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # what else is printed, such as vLLM's log, goes to standard error
    serve(channel, Path(folder), connector, hybrid, metrics_port=metrics_port)


if __name__ == "__main__":
    # The messages are those of the module by its name, in this process and in that which asks.
    from kvtrail.connector.demo import engine_process

    engine_process.main()
