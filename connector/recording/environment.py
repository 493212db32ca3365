"""Validation of OpenTelemetry's variables: an invalid one is named in the log, and counts as unset.

An engine must not stop because of a typing error in a variable for tracing. The SDK's exporters raise for some invalid
values and misread others; they get an environment without them.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

logger = logging.getLogger("vllm.kvtrail")

PROTOCOLS = {"grpc": 4317, "http/protobuf": 4318}
"""The protocols for sending spans, and the default OTLP port of each."""
_SAMPLERS = (
    "always_on", "always_off", "traceidratio", "parentbased_always_on", "parentbased_always_off", "parentbased_traceidratio",
)  # fmt: skip
_OTLP = re.compile(r"OTEL_EXPORTER_OTLP_(?:TRACES_)?(?=[A-Z])(?!METRICS_|LOGS_)")
_HEADER = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+=[\x20-\x7e]*")

Check = tuple[str, Callable[[str], bool]]
"""The description of valid values, and the check of a value; an exception means invalid."""


def usable(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment without invalid OpenTelemetry variables. Each of these is named in the log, once per process."""
    good = dict(environ)
    for name, value in environ.items():
        if not name.startswith("OTEL_"):
            continue
        if not value.strip():
            del good[name]  # the specification says that an empty value counts as unset
        elif name.endswith("_HEADERS") and _OTLP.match(name):
            _check_headers(name, good)
        elif (check := _CHECKS.get(_OTLP.sub("OTLP_", name))) is not None and not _fits(value.strip(), check[1]):
            del good[name]
            _log(f"{name} is {value!r}, but must be {check[0]}; it counts as unset")
    _check_endpoint(good)
    _check_compression(good)
    return good


def protocol(environ: Mapping[str, str]) -> str:
    """The protocol: gRPC if unset, as in vLLM and the SDK."""
    return _of_traces("PROTOCOL", environ) or "grpc"


def check_exporter(environ: Mapping[str, str]) -> None:
    """Check that the package that sends by this protocol is installed.

    Raises:
        ImportError: it is missing; the text has the command that installs it.
    """
    if not _has_exporter(protocol(environ)):
        raise ImportError(f"spans cannot be sent: pip install {_exporter(protocol(environ))}")


def endpoint(environ: Mapping[str, str]) -> str:
    """The endpoint of spans."""
    return _of_traces("ENDPOINT", environ) or f"http://localhost:{PROTOCOLS[protocol(environ)]}"


def number(name: str, default: int) -> int:
    """The number in a variable of the environment, or the default."""
    text = usable().get(name)
    return default if text is None else int(text)


@contextmanager
def only(environ: Mapping[str, str]) -> Iterator[None]:
    """A context in which the process's environment, which the SDK reads, has these OpenTelemetry variables."""
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


def _fits(value: str, check: Callable[[str], bool]) -> bool:
    try:
        return check(value)
    except (OSError, ValueError):
        return False


@cache
def _log(text: str) -> None:
    logger.warning("kvtrail: %s", text)


def _exporter(protocol: str) -> str:
    """The package that sends by a protocol."""
    return f"opentelemetry-exporter-otlp-proto-{protocol.partition('/')[0]}"


def _has_exporter(protocol: str) -> bool:
    module = f"opentelemetry.exporter.otlp.proto.{protocol.partition('/')[0]}.trace_exporter"
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:
        return False


def _check_headers(name: str, good: dict[str, str]) -> None:
    """Drop headers that cannot be sent. Their values are secrets and are not logged."""
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
    """gRPC accepts many forms of addresses, HTTP only URLs."""
    is_http = protocol(good) != "grpc"
    for name in ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"):
        value = good.get(name)
        if value is None:
            continue
        if not _fits(value, _is_url if is_http else _is_address):
            del good[name]
            example = f"http://localhost:{PROTOCOLS[protocol(good)]}"
            _log(f"{name} is {value!r}, but must be an address such as {example}; it counts as unset")


def _is_address(value: str) -> bool:
    return bool(urlsplit(value)) and not re.search(r"\s", value.strip())


def _is_url(value: str) -> bool:
    parts = urlsplit(value)
    return _is_address(value) and parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0


def _check_compression(good: dict[str, str]) -> None:
    """Values that the specification allows, but the gRPC exporter does not support."""
    value = (_of_traces("COMPRESSION", good) or "none").strip().lower()
    if protocol(good) == "grpc" and value != "gzip":
        if value != "none":
            _log(f"OTLP's compression is {value!r}, but with gRPC it must be gzip or none; it counts as unset")
        for name in ("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "OTEL_EXPORTER_OTLP_COMPRESSION"):
            good.pop(name, None)


def _can_read(value: str) -> bool:
    with Path(value).open("rb") as file:
        file.read(1)
    return True


def _is_whole(value: str, most: int) -> bool:
    return value.isascii() and value.isdecimal() and len(value) < 20 and 0 < int(value) <= most


def _whole(most: int) -> Check:
    return f"a whole number from 1 to {most}", lambda value: _is_whole(value, most)


def _one_of(*values: str) -> Check:
    return " or ".join(values), lambda value: value.lower() in values


_READABLE: Check = "a file that can be read", _can_read
_SENDS = f"{' or '.join(PROTOCOLS)}, with its package installed (pip install {' or '.join(map(_exporter, PROTOCOLS))})"
_CHECKS: dict[str, Check] = {
    "OTLP_PROTOCOL": (_SENDS, lambda value: value in PROTOCOLS and _has_exporter(value)),
    # The Python SDK reads seconds, where the specification has milliseconds.
    "OTLP_TIMEOUT": ("a number of seconds, 600 at most", lambda value: 0.001 <= float(value) <= 600),
    "OTLP_COMPRESSION": _one_of("gzip", "deflate", "none"),
    "OTLP_INSECURE": _one_of("true", "false"),
    "OTLP_CERTIFICATE": _READABLE,
    "OTLP_CLIENT_KEY": _READABLE,
    "OTLP_CLIENT_CERTIFICATE": _READABLE,
    "OTEL_TRACES_SAMPLER": _one_of(*_SAMPLERS),
    "OTEL_TRACES_SAMPLER_ARG": ("a number from 0 to 1", lambda value: 0 <= float(value) <= 1),
    "OTEL_BSP_SCHEDULE_DELAY": _whole(3_600_000),
    "OTEL_BSP_MAX_QUEUE_SIZE": _whole(10_000_000),
    "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": _whole(100_000),
}
"""By variable, with `OTLP_` for `OTEL_EXPORTER_OTLP_` and `OTEL_EXPORTER_OTLP_TRACES_`: the check of its value."""
