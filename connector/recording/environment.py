"""OpenTelemetry's variables, checked: one that cannot be used is named in the log, and counts as unset.

Whoever runs an engine must not lose it to a typing error in what observes it. The SDK's exporters raise for some of these
values and misread others; they are given an environment without them.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

logger = logging.getLogger("vllm.kvtrail")

PROTOCOLS = {"grpc": 4317, "http/protobuf": 4318}
"""The protocols that spans can be sent by, and OTLP's port of each."""
_SAMPLERS = (
    "always_on", "always_off", "traceidratio", "parentbased_always_on", "parentbased_always_off", "parentbased_traceidratio",
)  # fmt: skip
_OTLP = re.compile(r"OTEL_EXPORTER_OTLP_(?:TRACES_)?(?=[A-Z])(?!METRICS_|LOGS_)")
_HEADER = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+=[\x20-\x7e]*")
_logged: set[str] = set()
"""What has been logged in this process."""

Wrong = str | None
"""What a variable must be, if it is not; else None."""


def usable(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment without the variables of OpenTelemetry's that cannot be used. Each of those is named in the log, once
    in a process."""
    good = dict(environ)
    for name, value in environ.items():
        if not name.startswith("OTEL_"):
            continue
        if not value.strip():
            del good[name]  # as the specification has it
        elif name.endswith("_HEADERS") and _OTLP.match(name):
            _check_headers(name, good)
        elif wrong := _wrong(name, value.strip()):
            del good[name]
            _log(f"{name} is {value!r}, but must be {wrong}; it counts as unset")
    _check_endpoint(good)
    _check_compression(good)
    return good


def protocol(environ: Mapping[str, str]) -> str:
    """How spans are sent: gRPC, as in vLLM and the SDK, if unset."""
    return _of_traces("PROTOCOL", environ) or "grpc"


def check_exporter(environ: Mapping[str, str]) -> None:
    """Raises ImportError, with what to install, if the package that sends by this protocol is missing."""
    if not _has_exporter(protocol(environ)):
        raise ImportError(f"spans cannot be sent: pip install {_exporter(protocol(environ))}")


def endpoint(environ: Mapping[str, str]) -> str:
    """Where spans are sent."""
    return _of_traces("ENDPOINT", environ) or f"http://localhost:{PROTOCOLS[protocol(environ)]}"


def number(name: str, default: int, environ: Mapping[str, str] | None = None) -> int:
    """The number in a variable, of the environment as it is now if none is given."""
    text = (usable() if environ is None else environ).get(name)
    return default if text is None else int(text)


@contextmanager
def only(environ: Mapping[str, str]) -> Iterator[None]:
    """The SDK reads the process's environment: inside, OpenTelemetry's variables are those of this one."""
    before = {name: value for name, value in os.environ.items() if name.startswith("OTEL_")}
    for name in before:
        if name in environ:
            os.environ[name] = environ[name]
        else:
            del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(before)


def _of_traces(what: str, environ: Mapping[str, str]) -> str | None:
    return environ.get(f"OTEL_EXPORTER_OTLP_TRACES_{what}") or environ.get(f"OTEL_EXPORTER_OTLP_{what}")


def _log(text: str) -> None:
    if text not in _logged:
        _logged.add(text)
        logger.warning("kvtrail: %s", text)


def _wrong(name: str, value: str) -> Wrong:
    check = _CHECKS.get(_OTLP.sub("OTLP_", name))
    return None if check is None else check(value)


def _whole(most: int) -> Callable[[str], Wrong]:
    def check(value: str) -> Wrong:
        fits = value.isascii() and value.isdecimal() and len(value) < 20 and 0 < int(value) <= most
        return None if fits else f"a whole number from 1 to {most}"

    return check


def _seconds(value: str) -> Wrong:
    # The Python SDK reads seconds, where the specification has milliseconds.
    return None if _is_within(value, 0.001, 600) else "a number of seconds, 600 at most"


def _ratio(value: str) -> Wrong:
    return None if _is_within(value, 0, 1) else "a number from 0 to 1"


def _is_within(value: str, least: float, most: float) -> bool:
    try:
        return least <= float(value) <= most
    except ValueError:
        return False


def _one_of(*values: str) -> Callable[[str], Wrong]:
    def check(value: str) -> Wrong:
        return None if value.lower() in values else " or ".join(values)

    return check


def _protocol(value: str) -> Wrong:
    if value not in PROTOCOLS:
        return " or ".join(PROTOCOLS)
    return None if _has_exporter(value) else f"one with its package installed (pip install {_exporter(value)})"


def _exporter(protocol: str) -> str:
    """The package that sends by a protocol."""
    return f"opentelemetry-exporter-otlp-proto-{protocol.partition('/')[0]}"


def _has_exporter(protocol: str) -> bool:
    module = f"opentelemetry.exporter.otlp.proto.{protocol.partition('/')[0]}.trace_exporter"
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:
        return False


def _file(value: str) -> Wrong:
    try:
        with Path(value).open("rb") as file:
            file.read(1)
    except (OSError, ValueError) as error:
        return f"a file that can be read ({error})"
    return None


def _check_headers(name: str, good: dict[str, str]) -> None:
    """Leave out the headers that cannot be sent. Their values are secrets: no log shows them."""
    entries = [entry.strip() for entry in good[name].split(",") if entry.strip()]
    fit = [each for each in entries if _HEADER.fullmatch(each) and _is_printable(unquote(each))]
    if len(fit) < len(entries):
        _log(
            f"{len(entries) - len(fit)} of the {len(entries)} headers in {name} cannot be sent and are left out; it must be"
            " name=value, name=value, in printable ASCII"
        )
        good[name] = ",".join(fit)
        if not fit:
            del good[name]


def _is_printable(text: str) -> bool:
    return text.isascii() and text.isprintable()


def _check_endpoint(good: dict[str, str]) -> None:
    """gRPC takes many forms of addresses, HTTP only URLs."""
    is_http = protocol(good) != "grpc"
    for name in ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"):
        value = good.get(name)
        if value is None:
            continue
        try:
            parts = urlsplit(value)
            fits = not is_http or (parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0)
        except ValueError:
            fits = False
        if not fits or re.search(r"\s", value.strip()):
            del good[name]
            example = f"http://localhost:{PROTOCOLS[protocol(good)]}"
            _log(f"{name} is {value!r}, but must be an address such as {example}; it counts as unset")


def _check_compression(good: dict[str, str]) -> None:
    """What the specification allows, and the exporter for gRPC does not know."""
    value = (_of_traces("COMPRESSION", good) or "none").strip().lower()
    if protocol(good) == "grpc" and value != "gzip":
        if value != "none":
            _log(f"OTLP's compression is {value!r}, but with gRPC it must be gzip or none; it counts as unset")
        for name in ("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "OTEL_EXPORTER_OTLP_COMPRESSION"):
            good.pop(name, None)


_CHECKS: dict[str, Callable[[str], Wrong]] = {
    "OTLP_PROTOCOL": _protocol,
    "OTLP_TIMEOUT": _seconds,
    "OTLP_COMPRESSION": _one_of("gzip", "deflate", "none"),
    "OTLP_INSECURE": _one_of("true", "false"),
    "OTLP_CERTIFICATE": _file,
    "OTLP_CLIENT_KEY": _file,
    "OTLP_CLIENT_CERTIFICATE": _file,
    "OTEL_TRACES_SAMPLER": _one_of(*_SAMPLERS),
    "OTEL_TRACES_SAMPLER_ARG": _ratio,
    "OTEL_BSP_SCHEDULE_DELAY": _whole(3_600_000),
    "OTEL_BSP_MAX_QUEUE_SIZE": _whole(10_000_000),
    "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": _whole(100_000),
}
"""By variable, with `OTLP_` for `OTEL_EXPORTER_OTLP_` and `OTEL_EXPORTER_OTLP_TRACES_`: the check of its value."""
