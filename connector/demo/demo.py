"""The demo: tracer, dashboard and real engines, started together, watched, and ended together."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import click
import httpx

from kvtrail.connector.demo.children import Child, Children
from kvtrail.connector.demo.engines import BOTH, Engines, Served
from kvtrail.connector.demo.options import STALE_HANDOFF, Options
from kvtrail.connector.demo.pair import ALONE, DECODE, PREFILL, EngineDied
from kvtrail.connector.settings import Guard
from kvtrail.tracer.model import words
from kvtrail.tracer.reports import terminal

READY_WITHIN_S = 60.0
JUDGED_WITHIN_S = 15.0
WIDEST = 100
"""Maximum width of a line in columns, even in a wider terminal."""
OTHER_PORTS = 20
"""Number of further ports that are tried if one is taken."""
GENTLY_S = 5.0
"""Pause between two rounds."""
SAME_TOKENS = "  The generated tokens are the same as those of an engine without a connector."
T = TypeVar("T")


class DemoError(RuntimeError):
    """The demo cannot continue; the text says why, and what to do."""


def run(options: Options, children: Children) -> None:
    """Run a demo to its end, or until its children are stopped.

    Raises:
        DemoError, ChildDied: see there. If the children are stopped, any error. All children have ended when this returns or
            raises.
    """
    for port, option in (
        (options.grpc_port, "--grpc-port"),
        (options.http_port, "--http-port"),
        (options.dashboard_port, "--dashboard-port"),
        (options.metrics_port or 0, "--metrics-port"),  # 0 is always free
    ):
        if (reason := _taken(port)) is not None:
            raise DemoError(f"port {port} on 127.0.0.1 is taken ({reason}); choose another with {option}")
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
        _start(options, children)


def _start(options: Options, children: Children) -> None:
    """Run the demo to its end, or until its children are stopped.

    Raises:
        DemoError, ChildDied: see there.
    """
    with children:
        watched = _start_servers(options, children)
        bug = f" and the bug {options.bug!r} (guard: {options.guard})" if options.bug else ""
        if options.pd:
            what = f"two real vLLM engines on the CPU with vLLM's NixlConnector{bug}: {PREFILL}, {DECODE}"
        else:
            hybrid = ", a hybrid model" if options.is_hybrid else ""
            what = f"a real vLLM engine on the CPU{hybrid} with the OffloadConnector{bug}"
        click.echo(f"Starting {what} ...")
        engines = Engines(options, children)
        try:
            _play(options, engines, watched)
        except EngineDied as died:
            engines.check()
            raise DemoError(str(died)) from died


def _play(options: Options, engines: Engines, watched: Sequence[Child]) -> None:
    served, death = _first_round(options, engines)
    wrong: set[str] = set()
    if served and (options.pd or options.is_safe):
        sound = engines.alone(served)
        wrong = {
            each.engine_id or each.job.id for each, tokens in zip(served, sound, strict=True) if each.tokens != tokens
        }
        engines.end(ALONE)
    late = {each.engine_id for each in served if each.late}
    named = _named(options, late) if late else {}
    _summarize(options, len(wrong), len(served))
    if late:
        _compare(options, wrong, late, named)
    elif wrong:
        raise DemoError("the generated tokens differ from those of an engine without a connector")
    elif served and options.is_safe:
        click.echo(SAME_TOKENS)
    if options.bug:
        _report_findings(options)
    if options.once:
        store = options.folder / "kvtrail.db"
        click.echo(f"\nIts store: {store}. To look at it: `kvtrail serve --store {store}`, and `kvtrail dashboard`.")
    else:
        click.echo(f"\nThe dashboard:  {options.page}")
        click.echo(f"The api:        {options.api}/docs")
        click.echo(f"The metrics:    {options.api}/metrics")
        if options.metrics_port and death is None:
            click.echo(f"vLLM's metrics: http://127.0.0.1:{options.metrics_port}/metrics")
        click.echo(f"The {'workload repeats gently' if death is None else 'dashboard stays'} until Ctrl-C.")
    if death is not None:
        _report_death(death)
    elif options.once:
        engines.end(DECODE, PREFILL, BOTH)
    if not options.once:
        _go_on(watched, engines, is_dead=death is not None)


def _first_round(options: Options, engines: Engines) -> tuple[list[Served], dict[str, Any] | None]:
    """Serve the first round. Returns the served requests and, if the bug killed the engine, the tracer's record of that."""
    try:
        with terminal.status() as say:
            served = engines.one_round(0, lambda count: say(f"  served: {words.some(count, 'request')}"))
    except EngineDied:
        if options.pd or options.is_safe:
            raise
        return [], _death(options, engines)
    how = ": each prefilled by one engine, decoded by the other" if options.pd else ""
    click.echo(f"  {words.some(len(served), 'request')} served{how}.")
    return served, None


def _start_servers(options: Options, children: Children) -> list[Child]:
    """Start the tracer and the dashboard, and wait until both answer."""
    folder = options.folder
    click.echo("Starting the tracer and the dashboard ...")
    ports = ["--grpc-port", str(options.grpc_port), "--http-port", str(options.http_port)]
    tracer = children.start(
        "tracer",
        ["-m", "kvtrail", "serve", "--store", str(folder / "kvtrail.db"), *ports],
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
    return [tracer, dashboard]


def _summarize(options: Options, wrong: int, served: int) -> None:
    """Print the tracer's counts, and the number of wrong answers of two engines."""
    totals = _asked(options, "totals")
    rows = [("requests", totals["requests"], "of both engines" if options.pd else "")]
    if not options.pd:
        rows += [
            ("lookups", totals["lookups"], ""),
            ("tokens matched", totals["matched"], "longest match of each request"),
            ("tokens loaded", totals["loaded"], "from host memory into KV blocks"),
            ("tokens stored", totals["stored"], "from KV blocks into host memory"),
            ("preemptions", totals["preemptions"], ""),
        ]
    rows.append(("findings", totals["findings"], ""))
    if options.pd:
        rows.append(("wrong answers", wrong, f"of {served}: other tokens than those of an engine without a connector"))
    click.echo("\nSummary")
    for name, count, text in rows:
        click.echo(f"  {name:<18}  {count:>9,}   {text}".rstrip())


def _compare(options: Options, wrong: set[str], late: set[str], found: Mapping[str, bool]) -> None:
    """Print which of the wrong answers were named. `found` has the named requests, and whether they were healed.

    Raises:
        DemoError: not all of them were named, or some of the requests that were handed on too `late` were not healed.
    """
    click.echo(f"  named by kvtrail    {len(found):>9,}   as {STALE_HANDOFF}, {sum(found.values())} of them healed")
    if harmless := [each for each, healed in found.items() if each not in wrong and not healed]:
        click.echo(f"  {words.some(len(harmless), 'request')} of these came before anybody had overwritten the blocks.")
    if options.guard == Guard.HEAL:
        if wrong or not all(found.get(each) for each in late):
            raise DemoError("the bug was not healed")
        click.echo(SAME_TOKENS)
        return
    if not wrong:
        raise DemoError(f"this workload does not bring the bug {options.bug!r} out")
    if unnamed := wrong - found.keys():
        raise DemoError(f"wrong answers were not named: {sorted(unnamed)}")
    click.echo("  Each request with a wrong answer is named, though both engines called it a success.")


def _asked(options: Options, path: str, **query: str | int) -> Any:
    """The answer of the tracer's API."""
    return httpx.get(f"{options.api}/api/{path}", params=query).json()


def _named(options: Options, late: set[str]) -> dict[str, bool]:
    """The requests that the rule about stale hand-offs names, and whether they were healed. Waits for a limited time until
    the `late` ones are among them."""
    named: dict[str, bool] = {}

    def are_named() -> bool:
        found = _asked(options, "findings", rule=STALE_HANDOFF, limit=1000)
        named.update({each["request"]: each["healed"] == each["count"] for each in found})
        return late <= named.keys()

    _waited_for(are_named)
    return named


def _report_findings(options: Options) -> None:
    """Print one finding of each rule, with the addresses of its requests.

    Raises:
        DemoError: nothing was found.
    """
    if not (findings := _waited_for(lambda: _asked(options, "findings"))):
        raise DemoError(f"the tracer has no finding: this workload does not bring the bug {options.bug!r} out")
    for rule in dict.fromkeys(each["rule"] for each in findings):
        finding, *others = [each for each in findings if each["rule"] == rule]
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


def _death(options: Options, engines: Engines) -> dict[str, Any]:
    """The tracer's record of the dead engine. Raises ChildDied if the tracer does not know the cause of death."""

    def ended() -> dict[str, Any] | None:
        (known,) = _asked(options, "fleet")["engines"]
        return known if known["state"] == "died" else None

    if (death := _waited_for(ended)) is None:
        engines.check()
    assert death is not None
    click.echo("The engine raised")
    click.echo(_wrapped(death["ended_by"], indent="  "))
    return death


def _report_death(death: dict[str, Any]) -> None:
    """Print the last lines: the dead engine, the exception, the lost requests, and the cause."""
    _one_line(f"The engine died, {words.some(death['lost'], 'request')} lost: {death['ended_by']}")
    cause = death["cause"]
    _one_line(f"Why: {cause['rule']}: {cause['title']}" if cause else "Why: nothing was found before it.")


def _one_line(text: str) -> None:
    """Print a line in red, cut at the width of the terminal: the last line stays in sight."""
    columns = terminal.width()
    click.secho(text if columns is None or len(text) <= columns else f"{text[: columns - 3]}...", fg="red")


def _wrapped(text: str, *, indent: str = "") -> str:
    """The text wrapped to the width of the terminal, or to a readable width."""
    return "\n".join(terminal.wrapped(text, min(terminal.width() or WIDEST, WIDEST), first=indent))


def _waited_for(answer: Callable[[], T], within_s: float = JUDGED_WITHIN_S) -> T:
    """The first true answer, or after the time limit, the last one."""
    deadline = time.monotonic() + within_s
    while not (answered := answer()) and time.monotonic() < deadline:
        time.sleep(0.2)
    return answered


def _go_on(watched: Sequence[Child], engines: Engines, *, is_dead: bool) -> None:
    """Serve further rounds, unless the engine has died, until one of the processes ends, or is stopped."""
    number = 0
    while True:
        pause_ends_s = time.monotonic() + GENTLY_S
        while time.monotonic() < pause_ends_s:
            for child in watched if is_dead else (*watched, *engines.children):
                child.check()
            time.sleep(0.5)
        if not is_dead:
            number += 1
            engines.one_round(number)


def free_port(port: int) -> int:
    """This port, or the next free one in steps of ten: the adjacent ports are other defaults."""
    return next((each for each in range(port, port + 10 * OTHER_PORTS, 10) if _taken(each) is None), port)


def _taken(port: int) -> str | None:
    """Why no process can listen on a port; None if it is free."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            return error.strerror
    return None


def _wait_for(url: str, child: Child) -> None:
    def is_ready() -> bool:
        child.check()
        with suppress(httpx.TransportError):
            return httpx.get(url, timeout=1).is_success
        return False

    if not _waited_for(is_ready, READY_WITHIN_S):
        raise DemoError(f"the {child.name} did not answer within {READY_WITHIN_S:.0f} s; its log: {child.log}")
