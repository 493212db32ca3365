"""An engine in a process of its own: steps vLLM's whole engine and answers over a pipe.

`python -m kvtrail.connector.demo.engine_process` takes the arguments of `serve` as JSON, the pipe by its file descriptor.

A call has the name of a method of `_Served`, a number, and the arguments. An answer has this number, whether it is the last
answer to the call, and the value.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvtrail.connector.demo.workload import DemoRequest

PAUSE_S = 0.001
"""Pause in seconds between two steps, as in vLLM's own loop after a step that computes nothing. An engine that only keeps
blocks continues to step: a step shows whether they were read, or a lease has ended."""
READY, END = 0, "end"
"""The number of the message that it takes requests, and the call that ends it with an end record."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A request has ended.

    Attributes:
        engine_id: vLLM's own id of the request.
        reason: vLLM's finish reason.
        params: the `kv_transfer_params` that the engine returned.
    """

    engine_id: str
    tokens: tuple[int, ...]
    reason: str | None
    params: Mapping[str, Any] | None = None


def serve(
    connection: Connection,
    folder: Path,
    connector: Mapping[str, Any] | None,
    hybrid: bool,
    metrics_port: int = 0,
    **overrides: Any,
) -> None:
    """Run until `END`, or until the other end of the pipe is closed.

    Args:
        folder: the folder for the model.
        connector: the `kv_transfer_config`; None for an engine without any.
        hybrid: half of the model's layers have a sliding window.
        metrics_port: serve vLLM's own metrics there, as `vllm serve` does; 0 does not serve them.
        overrides: arguments of vLLM's engine.
    """
    from kvtrail.connector.recording.recorder import recorders
    from kvtrail.connector.simulate import tiny_hybrid, tiny_model

    options: dict[str, Any] = {"write": tiny_hybrid.write, **tiny_hybrid.OPTIONS} if hybrid else {}
    llm = tiny_model.build(folder, connector, disable_log_stats=not metrics_port, **options | overrides)
    if metrics_port:
        from prometheus_client import start_http_server  # a dependency of vLLM, which counts in its registry

        start_http_server(metrics_port, "127.0.0.1")
    connection.send((READY, True, None))
    with suppress(EOFError):  # the calling process has ended
        _Served(connection, llm).run()
    for recorder in recorders():
        recorder.flush()
    llm.llm_engine.engine_core.shutdown()


class _Served:
    """The engine, and the connection to its caller."""

    def __init__(self, connection: Connection, llm: Any) -> None:
        self._connection = connection
        self._llm = llm
        self._engine = llm.llm_engine
        self._scheduler = llm.llm_engine.engine_core.engine_core.scheduler
        self._ids: dict[str, tuple[int, str]] = {}
        """By the external id of a request, the number of its call, and vLLM's id."""

    def run(self) -> None:
        while True:
            while self._connection.poll(PAUSE_S if self._scheduler.has_requests() else None):
                method, *arguments = self._connection.recv()
                if method == END:
                    return
                getattr(self, method)(*arguments)
            for output in self._engine.step():
                if output.finished:
                    (of,) = output.outputs
                    self._answer(output.request_id, tuple(of.token_ids), of.finish_reason, output.kv_transfer_params)

    def _answer(
        self, external_id: str, tokens: tuple[int, ...], reason: str | None, params: Mapping[str, Any] | None = None
    ) -> None:
        number, engine_id = self._ids.pop(external_id)
        self._connection.send((number, True, Answer(engine_id, tokens, reason, params)))

    def ask(
        self,
        number: int,
        external_id: str,
        prompt: Sequence[int],
        max_tokens: int,
        params: Mapping[str, Any] | None,
    ) -> None:
        """Run a request; the answer is an `Answer`, when it has ended.

        Args:
            external_id: the id that vLLM treats as chosen by the client.
            params: its `kv_transfer_params`.
        """
        from vllm import SamplingParams

        extra = None if params is None else {"kv_transfer_params": dict(params)}
        sampling = SamplingParams(
            temperature=0, max_tokens=max_tokens, ignore_eos=True, detokenize=False, extra_args=extra
        )
        engine_id = self._engine.add_request(external_id, {"prompt_token_ids": list(prompt)}, sampling)
        self._ids[external_id] = number, engine_id

    def run_all(self, number: int, jobs: Sequence[DemoRequest]) -> None:
        """Run requests to their ends, each from its step on, in an engine that runs no others. It answers with the number of
        ended requests whenever one ends, and finally with the generated tokens of each, by id."""
        from kvtrail.connector.demo import workload
        from kvtrail.connector.recording.recorder import recorders

        tokens = workload.run(self._llm, jobs, lambda done: self._connection.send((number, False, done)))
        for recorder in recorders():
            recorder.flush()
        self._connection.send((number, True, tokens))

    def forget(self, number: int) -> None:
        """Empty vLLM's prefix cache."""
        self._connection.send((number, True, self._llm.reset_prefix_cache()))

    def kept(self, number: int) -> None:
        """Answer with the number of ended requests whose blocks the engine keeps."""
        running, waiting = self._scheduler.get_request_counts()
        self._connection.send((number, True, len(self._scheduler.requests) - running - waiting))


def main() -> None:
    descriptor, folder, connector, hybrid, metrics_port = json.loads(sys.argv[1])
    serve(Connection(descriptor), Path(folder), connector, hybrid, metrics_port=metrics_port)


if __name__ == "__main__":
    # The class of the answers must come from the module by its name, in this process and in the calling one.
    from kvtrail.connector.demo import engine_process

    engine_process.main()
