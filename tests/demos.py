"""The demo as a process, on free ports, with nothing left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
from processes import PLAIN, SLOW_S, free_port, until


class Servers:
    """The tracer and the dashboard of a demo."""

    http_port: int
    dashboard_port: int

    @property
    def api(self) -> str:
        """The tracer's address."""
        return f"http://127.0.0.1:{self.http_port}"

    @property
    def page(self) -> str:
        """The dashboard's address."""
        return f"http://127.0.0.1:{self.dashboard_port}"

    def get(self, path: str, **params: str | int) -> Any:
        response = httpx.get(f"{self.api}{path}", params=params or None, **PLAIN)
        response.raise_for_status()
        return response.json()


class Demo(Servers):
    """A `kvtrail demo` process.

    Args:
        program: what runs instead of `-m kvtrail`.
        metrics_port: where vLLM's own metrics are served, 0 for nowhere.
    """

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        program: Sequence[str] = ("-m", "kvtrail"),
        metrics_port: int = 0,
    ) -> None:
        self.http_port, self.dashboard_port, self.grpc_port = free_port(), free_port(), free_port()
        self.metrics_port = metrics_port
        self.out = folder / "demo.out"
        ports = ["--grpc-port", self.grpc_port, "--http-port", self.http_port, "--dashboard-port", self.dashboard_port]
        ports += ["--metrics-port", metrics_port] if metrics_port else []
        with self.out.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, *program, "demo", *map(str, ports), *arguments],
                cwd=folder,
                stdout=file,
                stderr=file,
            )

    def output(self) -> str:
        return self.out.read_text()

    def wait_for_output(self, text: str) -> None:
        def is_there() -> bool:
            assert self.process.poll() is None or text in self.output(), self.output()
            return text in self.output()

        until(is_there, why=self.output)

    def interrupt(self) -> None:
        """End it by Ctrl-C, which it takes well."""
        self.process.send_signal(signal.SIGINT)
        assert self.finish() == 0, self.output()
        assert "nothing is left running" in self.output()
        assert "Traceback" not in self.output()

    def finish(self) -> int:
        return self.process.wait(SLOW_S)

    def tracer(self) -> psutil.Process:
        """Its `kvtrail serve`."""
        (tracer,) = [child for child in self.children() if "serve" in child.cmdline()]
        return tracer

    def children(self) -> list[psutil.Process]:
        """Those of its processes that live."""
        children = psutil.Process(self.process.pid).children()
        return [child for child in children if child.status() != psutil.STATUS_ZOMBIE]


@contextmanager
def demo(folder: Path, *arguments: str, **options: Any) -> Iterator[Demo]:
    """A demo with the options of `Demo`, which is ended by Ctrl-C if it still runs at the end."""
    run = Demo(folder, *arguments, **options)
    try:
        yield run
        if run.process.poll() is None:
            run.interrupt()
    finally:
        if run.process.poll() is None:
            run.process.send_signal(signal.SIGINT)
            run.finish()
        until(lambda: children_left(folder) == [], why=lambda: children_left(folder))


def total(output: str, what: str) -> int:
    """A number of the demo's summary."""
    found = re.search(rf"^  {what}\s+([\d,]+)", output, flags=re.MULTILINE)
    assert found is not None, output
    return int(found[1].replace(",", ""))


def children_left(folder: Path) -> list[str]:
    """The processes that still run in the demo's folder."""
    left = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if os.readlink(entry / "cwd") == str(folder.resolve()):
                    left.append((entry / "cmdline").read_text().replace("\0", " "))
            except OSError:
                continue
    return left
