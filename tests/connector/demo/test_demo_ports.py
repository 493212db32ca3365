"""Which ports the demo takes where others listen already."""

from __future__ import annotations

import socket

from kvtrail.connector.demo.demo import free_port


def test_beside_somebody_else_the_demo_takes_another_port() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        free = free_port(taken - 10)
        assert free != taken
        assert free % 10 == taken % 10
        assert free_port(taken) not in (taken, taken + 1)
