"""The demo: tracer, dashboard and a real engine, started together, watched, and ended together."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import click
import httpx

from kvtrail.connector.demo.children import Child, Children
from kvtrail.connector.demo.engine import Order
from kvtrail.tracer.model import words
from kvtrail.tracer.reports import terminal

READY_WITHIN_S = 60.0
JUDGED_WITHIN_S = 15.0
WIDEST = 100
"""Columns of a line, however wide the terminal is."""
OTHER_PORTS = 20
"""Ports that are tried where one is taken."""
OPT, HYBRID = "opt", "hybrid"
"""The tiny models."""
STALE_HANDOFF = "stale-handoff"
"""The bug of the demo of two engines, and the rule that finds it."""
T = TypeVar("T")


class DemoError(RuntimeError):
    """The demo cannot go on; the text says why, and what to do."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of `kvtrail demo`; see its --help."""

    once: bool
    pd: bool
    model: str
    bug: str | None
    guard: str
    trace_file: Path | None
    folder: Path
    grpc_port: int
    http_port: int
    dashboard_port: int
    metrics_port: int | None

    @property
    def api(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"

    @property
    def page(self) -> str:
        return f"http://127.0.0.1:{self.dashboard_port}"

    @property
    def is_hybrid(self) -> bool:
        """Whether the model has several KV cache groups."""
        return self.model == HYBRID

    @property
    def is_safe(self) -> bool:
        """Whether the engine must neither die nor generate other tokens than one without a connector."""
        return not self.bug or self.guard == "heal"


def run(options: Options, children: Children, play: Callable[[Options, Children], None]) -> None:
    """Run a demo to its end, or until its children are stopped: `play` with what it needs reserved.

    Raises:
        DemoError, ChildDied: see there; of children that are stopped, any error. All have ended when this returns or raises.
    """
    for port, option in (
        (options.grpc_port, "--grpc-port"),
        (options.http_port, "--http-port"),
        (options.dashboard_port, "--dashboard-port"),
        (options.metrics_port or 0, "--metrics-port"),  # 0 is always free
    ):
        _require_free(port, option)
    options.folder.mkdir(parents=True, exist_ok=True)
    with (options.folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DemoError(
                f"another demo is running in {options.folder}; choose another folder with --folder"
            ) from None
        for old in options.folder.glob("kvtrail.db*"):
            old.unlink()
        play(options, children)


def play(options: Options, children: Children) -> None:
    """The demo of one engine.

    Raises:
        DemoError, ChildDied: see there.
    """
    with children:
        tracer, dashboard = start_servers(options, children)
        watched = [tracer, dashboard]
        plain = _engine(options, children, watched, plain=True) if options.is_safe else None
        engine = _engine(options, children, watched)
        tokens = engine.one_round()
        if tokens is None and options.is_safe:
            _died(engine)
        death = _death(options, engine) if tokens is None else None
        summarize(options)
        if plain is not None and tokens is not None:
            _compare(tokens, plain)
        if options.bug:
            report_findings(options)
        report_addresses(options)
        if options.metrics_port and death is None:
            click.echo(f"vLLM's metrics: http://127.0.0.1:{options.metrics_port}/metrics")
        if not options.once:
            click.echo(f"The {'workload repeats gently' if death is None else 'dashboard stays'} until Ctrl-C.")
        if death is not None:
            _report_death(death)
        if not options.once:
            _go_on(watched, engine if death is None else None)


class _Engine:
    """The engine's process, and the lines that it reports."""

    def __init__(self, child: Child, watched: list[Child], *, quiet: bool) -> None:
        self.child = child
        self._watched = watched
        self._quiet = quiet
        assert child.process.stdout is not None
        self._lines: Iterator[bytes] = iter(child.process.stdout)

    def one_round(self) -> dict[str, list[int]] | None:
        """Wait for a round, and say how far it is; the tokens that it generated, or None if the engine died."""
        ready = self._next("ready")
        if ready is None:
            return None
        if self._quiet:
            ended = self._next("round")
        else:
            with terminal.status() as say:
                ended = self._next("round", lambda done: say(f"  serving: {done} of {ready['requests']} requests"))
            if ended is not None:
                click.echo(f"  {words.some(ready['requests'], 'request')} served.")
        return None if ended is None else ended["tokens"]

    def _next(self, kind: str, progress: Callable[[int], None] | None = None) -> dict[str, Any] | None:
        for line in self._lines:
            for other in self._watched:
                other.check()
            report: dict[str, Any] = json.loads(line)
            if report["kind"] == kind:
                return report
            if report["kind"] == "progress" and progress is not None:
                progress(report["done"])
        return None


def start_servers(options: Options, children: Children) -> tuple[Child, Child]:
    """Start the tracer and the dashboard, and wait until both answer."""
    folder = options.folder
    click.echo("Starting the tracer and the dashboard ...")
    ports = ["--grpc-port", str(options.grpc_port), "--http-port", str(options.http_port)]
    trace = ["--trace-file", str(options.trace_file)] if options.trace_file else []
    tracer = children.start(
        "tracer",
        ["-m", "kvtrail", "serve", "--store", str(folder / "kvtrail.db"), *ports, *trace],
        log=folder / "tracer.log",
        env=os.environ,
    )
    dashboard = children.start(
        "dashboard",
        ["-m", "kvtrail", "dashboard", "--tracer", options.api, "--port", str(options.dashboard_port)],
        log=folder / "dashboard.log",
        env=os.environ,
    )
    _wait_for(f"{options.api}/api/health", tracer)
    _wait_for(f"{options.page}/_stcore/health", dashboard)
    click.echo(f"The dashboard is at {options.page}")
    return tracer, dashboard


def _engine(options: Options, children: Children, watched: list[Child], *, plain: bool = False) -> _Engine:
    if not plain:
        bug = f" and the bug {options.bug!r} (guard: {options.guard})" if options.bug else ""
        hybrid = ", a hybrid model" if options.is_hybrid else ""
        click.echo(f"Starting a real vLLM engine on the CPU{hybrid} with the OffloadConnector{bug} ...")
    name = "plain engine" if plain else "engine"
    order = Order(
        model=str(options.folder / "model"),
        hybrid=options.is_hybrid,
        bug=options.bug or "",
        guard=options.guard,
        plain=plain,
        once=plain or options.once,
        metrics_port=0 if plain else options.metrics_port or 0,
    )
    env = {
        **os.environ,
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"http://127.0.0.1:{options.grpc_port}",
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc",
        "OTEL_SERVICE_NAME": os.environ.get("OTEL_SERVICE_NAME", "vllm-demo"),
    }
    child = children.start(
        name,
        ["-m", "kvtrail.connector.demo.engine", json.dumps(asdict(order))],
        log=options.folder / f"{name.replace(' ', '-')}.log",
        env=env,
        piped=True,
    )
    return _Engine(child, watched, quiet=plain)


def report_addresses(options: Options) -> None:
    """Say where to look."""
    click.echo(f"\nThe dashboard:  {options.page}")
    click.echo(f"The api:        {options.api}/docs")
    click.echo(f"The metrics:    {options.api}/metrics")


def summarize(options: Options) -> None:
    """Say what the tracer has counted."""
    totals = httpx.get(f"{options.api}/api/overview").json()["totals"]
    click.echo(
        "\nSummary\n"
        f"  requests            {totals['requests']:>9,}\n"
        f"  lookups             {totals['lookups']:>9,}\n"
        f"  tokens matched      {totals['matched']:>9,}   longest match of each request\n"
        f"  tokens loaded       {totals['loaded']:>9,}   from host memory into KV blocks\n"
        f"  tokens stored       {totals['stored']:>9,}   from KV blocks into host memory\n"
        f"  preemptions         {totals['preemptions']:>9,}\n"
        f"  findings            {totals['findings']:>9,}"
    )


def _compare(tokens: dict[str, list[int]], plain: _Engine) -> None:
    expected = plain.one_round()
    if expected is None:
        _died(plain)
    if tokens != expected:
        raise DemoError("the generated tokens differ from those of an engine without a connector")
    click.echo("  The generated tokens are the same as those of an engine without a connector.")


def _died(engine: _Engine) -> None:
    """Raise the ChildDied of an engine that stopped reporting before its round had ended."""
    engine.child.process.wait(READY_WITHIN_S)
    engine.child.check()


def report_findings(options: Options) -> None:
    """Say what was found, one finding of each rule, with the addresses of its requests.

    Raises:
        DemoError: nothing was found.
    """

    def found() -> list[dict[str, Any]]:
        return httpx.get(f"{options.api}/api/findings").json()  # type: ignore[no-any-return]

    if not (findings := waited_for(found)):
        raise DemoError(f"the tracer has no finding: this workload does not bring the bug {options.bug!r} out")
    for rule, of_rule in _by_rule(findings).items():
        finding, *others = of_rule
        times = words.ending(finding["count"])
        click.echo()
        click.secho(_wrapped(f"{rule}, {times}: {finding['title']}"), fg="yellow")
        click.echo(f"  It could: {finding['severity']}. It did: {finding['did']}.")
        click.echo(_wrapped(finding["explanation"], indent="  "))
        click.echo(f"  {options.page}/request?id={finding['request']}")
        if "giver" in finding["numbers"]:
            click.echo(f"  {options.page}/request?id={finding['numbers']['other']} (on the engine that prefilled it)")
        if others:
            click.echo(f"  And {words.some(len(others), 'more finding')} of this rule: {options.page}/findings")


def _by_rule(findings: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The findings of each rule, in their order."""
    by_rule: dict[str, list[dict[str, Any]]] = {}
    for finding in findings:
        by_rule.setdefault(finding["rule"], []).append(finding)
    return by_rule


def _death(options: Options, engine: _Engine) -> dict[str, Any]:
    """What the tracer knows of the engine, which has died. Raises ChildDied if it does not know of what."""

    def ended() -> dict[str, Any] | None:
        (known,) = httpx.get(f"{options.api}/api/fleet").json()["engines"]
        return known if known["state"] == "died" else None

    if (death := waited_for(ended)) is None:
        _died(engine)
    assert death is not None
    click.echo("The engine raised")
    click.echo(_wrapped(death["ended_by"], indent="  "))
    return death


def _report_death(death: dict[str, Any]) -> None:
    """The last lines: what died, of what, what was lost by it, and why."""
    _one_line(f"The engine died, {words.some(death['lost'], 'request')} lost: {death['ended_by']}")
    cause = death["cause"]
    _one_line(f"Why: {cause['rule']}: {cause['title']}" if cause else "Why: nothing was found before it.")


def _one_line(text: str) -> None:
    """Print a line in red, cut at the width of the terminal: the last line stays in sight."""
    columns = terminal.width()
    click.secho(text if columns is None or len(text) <= columns else f"{text[: columns - 3]}...", fg="red")


def _wrapped(text: str, *, indent: str = "") -> str:
    """The text in lines that fit the terminal and can be read."""
    return "\n".join(terminal.wrapped(text, min(terminal.width() or WIDEST, WIDEST), first=indent))


def waited_for(answer: Callable[[], T]) -> T:
    """The tracer's answer once there is one; else its last one."""
    deadline = time.monotonic() + JUDGED_WITHIN_S
    while not (answered := answer()) and time.monotonic() < deadline:
        time.sleep(0.2)
    return answered


def _go_on(watched: list[Child], engine: _Engine | None) -> None:
    """Watch these, and the engine if it has not died, until one of them ends, or is stopped. An engine that has died may take
    a while to be gone."""
    if engine is not None:
        # Nobody needs its progress any more, but a full pipe would block it.
        threading.Thread(target=lambda: [None for _ in engine._lines], daemon=True).start()
        watched = [*watched, engine.child]
    while True:
        for child in watched:
            child.check()
        time.sleep(0.5)


def free_port(port: int) -> int:
    """This port, or the next free one, ten further each time: those beside it are other defaults."""
    return next((each for each in range(port, port + 10 * OTHER_PORTS, 10) if _taken(each) is None), port)


def _require_free(port: int, option: str) -> None:
    if (reason := _taken(port)) is not None:
        raise DemoError(f"port {port} on 127.0.0.1 is taken ({reason}); choose another with {option}")


def _taken(port: int) -> str | None:
    """Why nobody can listen on a port; None if somebody can."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            return error.strerror
    return None


def _wait_for(url: str, child: Child) -> None:
    deadline = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < deadline:
        child.check()
        try:
            if httpx.get(url, timeout=1).is_success:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise DemoError(f"the {child.name} did not answer within {READY_WITHIN_S:.0f} s; its log: {child.log}")
