"""`kvtrail` with a demo whose engines are stubs: `python tests/stub_demo.py ENDLESS demo ...`.

Each says at once that its requests are over, but for the one of the name ENDLESS. They wait for the demo's end.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from kvtrail.__main__ import main
from kvtrail.connector.demo.children import Child, Children
from kvtrail.connector.demo.engine_process import END, READY

START = Children.start


def start(children: Children, name: str, arguments: Sequence[str], **options: Any) -> Child:
    """`Children.start`, which starts this file in place of an engine."""
    if name.endswith("engine"):
        arguments = [__file__, "endless" if name == sys.argv[1] else "short", *arguments]
    return START(children, name, arguments, **options)


def engine(kind: str, descriptor: int) -> None:
    """A stub."""
    channel = Connection(descriptor)
    channel.send((READY, True, None))
    with suppress(EOFError):
        while (asked := channel.recv())[0] != END:
            if asked[0] == "run_all" and kind != "endless":
                channel.send((asked[1], True, {job.id: () for job in asked[2]}))


if __name__ == "__main__":
    if sys.argv[1] in ("endless", "short"):
        engine(sys.argv[1], json.loads(sys.argv[-1])[0])
    else:
        Children.start = start  # type: ignore[assignment,method-assign]
        main(sys.argv[2:])
