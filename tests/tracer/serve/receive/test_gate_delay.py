"""The gate before gRPC passes answers on at once."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest
from processes import SLOW_S, until

from kvtrail.tracer.serve.limits import Limits
from kvtrail.tracer.serve.receive import gate as gate_module
from kvtrail.tracer.serve.receive.gate import Gate


def test_no_answer_waits_until_the_one_before_is_confirmed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The small frames of an answer would wait 40 ms for each other, and a request of more than a window twice."""
    opened: list[int] = []
    plain = Gate.opened

    async def noting(self: Gate, accepted: socket.socket) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        both = await plain(self, accepted)
        opened.append(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        return both

    monkeypatch.setattr(gate_module.Gate, "opened", noting)
    gate = Gate(
        listener := socket.create_server(("127.0.0.1", 0)), tmp_path / "behind", limits=Limits(), most_connections=8
    )
    try:
        with socket.create_connection(listener.getsockname(), timeout=SLOW_S):
            until(lambda: opened)
    finally:
        gate.close()
    assert opened[0] != 0
