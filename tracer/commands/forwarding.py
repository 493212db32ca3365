"""The options of `kvtrail serve` that say what it forwards, and where to."""

from __future__ import annotations

from collections.abc import Callable, Collection
from ipaddress import ip_address
from pathlib import Path
from typing import Any, TypeVar

import click

from kvtrail.tracer.serve.forward.target import COMPRESSIONS, PROTOCOLS, BadTarget, Settings, Target

_FILE = click.Path(path_type=Path, dir_okay=False)
_MS = 10**6
_MIB = 1 << 20
_OPTIONS = (
    click.option(
        "--forward-to",
        metavar="URL",
        help="Send spans and findings on to this OTLP receiver: http://tempo:4317, or https:// for TLS.",
    ),
    click.option(
        "--forward-protocol",
        type=click.Choice(PROTOCOLS),
        default=PROTOCOLS[0],
        show_default=True,
        help="The protocol of the receiver.",
    ),
    click.option(
        "--forward-compression",
        type=click.Choice(COMPRESSIONS),
        default=COMPRESSIONS[0],
        show_default=True,
        help="Compression of the requests.",
    ),
    click.option(
        "--forward-headers-file",
        type=_FILE,
        help="File of headers, or gRPC metadata, to send: one per line, `name: value`. It is reloaded when it has changed.",
    ),
    click.option(
        "--forward-ca", type=_FILE, help="PEM file of the authorities of its certificate, if the system has none."
    ),
    click.option("--forward-cert", type=_FILE, help="PEM file of a client certificate. Needs --forward-key."),
    click.option("--forward-key", type=_FILE, help="PEM file of its key."),
    click.option(
        "--forward-sample",
        type=click.FloatRange(0, 1),
        default=1.0,
        show_default=True,
        help="Share of the requests without a finding, a failure or a long wait to forward. 1 forwards everything, 0 only"
        " what matters.",
    ),
    click.option(
        "--forward-slow-ms",
        type=click.IntRange(min=1),
        help="A request matters, too, if it waited this many milliseconds without a break.",
    ),
    click.option(
        "--forward-memory-mib",
        type=click.IntRange(min=1),
        default=64,
        show_default=True,
        help="MiB of spans to hold until their requests end, and again to queue until they are sent.",
    ),
)
_Command = TypeVar("_Command", bound=Callable[..., Any])


def options(command: _Command) -> _Command:
    """Add the options to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def settings(values: dict[str, Any]) -> Settings | None:
    """What the options say; takes them out of `values`. None if nothing is to be forwarded.

    Raises:
        click.UsageError: they do not go together.
    """
    given = {name: values.pop(name) for name in list(values) if name.startswith("forward_")}
    files = {name: given[f"forward_{name}"] for name in ("headers_file", "ca", "cert", "key")}
    if given["forward_to"] is None:
        if needless := [name for name, path in files.items() if path is not None]:
            raise click.UsageError(f"--forward-{needless[0].replace('_', '-')} needs --forward-to")
        return None
    try:
        target = Target(
            given["forward_to"],
            protocol=given["forward_protocol"],
            compression=given["forward_compression"],
            headers_file=files["headers_file"],
            ca=files["ca"],
            certificate=files["cert"],
            key=files["key"],
        )
    except BadTarget as error:
        raise click.UsageError(f"--forward-to: {error}") from error
    slow_ms = given["forward_slow_ms"]
    return Settings(
        target,
        sample=given["forward_sample"],
        slow_ns=None if slow_ms is None else slow_ms * _MS,
        most_bytes=given["forward_memory_mib"] * _MIB,
    )


def is_own(target: Target, host: str, ports: Collection[int]) -> bool:
    """Whether the receiver is the sidecar that listens on these ports: it would send everything to itself, for ever."""
    return target.port in ports and (target.host in (host, "localhost") or _is_loopback(target.host))


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
