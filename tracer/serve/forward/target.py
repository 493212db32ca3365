"""Where spans go: the address, how it is spoken to, and what it is shown. Loads nothing that sends."""

from __future__ import annotations

import logging
import re
import ssl
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

logger = logging.getLogger("kvtrail")

GRPC, HTTP = "grpc", "http/protobuf"
PROTOCOLS = (GRPC, HTTP)
"""As `OTEL_EXPORTER_OTLP_PROTOCOL` calls them."""
COMPRESSIONS = ("none", "gzip")
PATH = "/v1/traces"
_HTTPS_PORT = 443
_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_VALUE = re.compile(r"[\x20-\x7e]*")


class BadTarget(ValueError):
    """Nothing can be sent to there, or not like this; the text says why."""


@dataclass(frozen=True, slots=True)
class Target:
    """A receiver of OTLP. `ca`, `certificate` and `key` are PEM files, as is usual with TLS.

    Raises:
        BadTarget: it cannot be used.
    """

    url: str
    protocol: str = GRPC
    compression: str = "none"
    headers_file: Path | None = None
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise BadTarget(f"{self.url!r} is no URL such as http://tempo:4317 or https://collector.example:4317")
        if parts.username is not None or parts.password is not None:
            raise BadTarget(
                "the URL holds a user or a password: write an `authorization` header into a headers file instead"
            )
        if self.protocol == GRPC and parts.path.strip("/"):
            raise BadTarget(f"{self.url!r} has a path, and gRPC has none; for OTLP over HTTP the protocol is {HTTP}")
        if self.port is None:
            raise BadTarget(f"{self.url!r} needs a port: OTLP is usually on 4317 ({GRPC}) or 4318 ({HTTP})")
        if (self.certificate is None) != (self.key is None):
            raise BadTarget("a client's certificate and its key belong together")
        if self.is_tls:
            self.for_http()
        elif self.ca is not None or self.certificate is not None:
            raise BadTarget(f"{self.url!r} is without TLS: certificates need https://")

    @property
    def is_tls(self) -> bool:
        return urlsplit(self.url).scheme == "https"

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int | None:
        """None if there is none, and none that is usual."""
        try:
            return urlsplit(self.url).port or (_HTTPS_PORT if self.is_tls else None)
        except ValueError as error:
            raise BadTarget(f"{self.url!r}: {error}") from error

    @property
    def address(self) -> str:
        """As gRPC takes it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def traces_url(self) -> str:
        """Where traces are posted to, as OpenTelemetry's exporters make it of an endpoint."""
        return self.url if urlsplit(self.url).path.endswith(PATH) else self.url.rstrip("/") + PATH

    def for_http(self) -> ssl.SSLContext:
        """Raises BadTarget if a file cannot be used."""
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.certificate is not None:
                context.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as error:
            files = ", ".join(map(str, filter(None, (self.ca, self.certificate, self.key))))
            raise BadTarget(f"cannot use these files for TLS: {files}: {error}") from error
        return context

    def for_grpc(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        """The contents of the files: authorities, key, certificate."""
        ca, key, certificate = (
            None if path is None else path.read_bytes() for path in (self.ca, self.key, self.certificate)
        )
        return ca, key, certificate


@dataclass(frozen=True, slots=True)
class Settings:
    """What is forwarded, and where to.

    Attributes:
        target: the receiver.
        sample: the share of requests, and of engines' minutes, that is forwarded without any other reason.
        slow_ns: a request that waited so long matters; None if none does for that.
        most_bytes: what is held may take so much memory, and what waits to be sent as much again.
    """

    target: Target
    sample: float = 1.0
    slow_ns: int | None = None
    most_bytes: int = 64 << 20


class Headers:
    """The headers of a file, one a line, `name: value`; lines that begin with `#` are none. It is read again when it has
    changed, so that a token can be replaced."""

    def __init__(self, path: Path | None) -> None:
        """Raises BadTarget if it cannot be read, or holds something else."""
        self._path = path
        self._seen = self._stamp()
        self._headers = self._read()

    def now(self) -> list[tuple[str, str]]:
        """Those of this moment; if the file cannot be used any more, those from before."""
        try:
            if (stamp := self._stamp()) != self._seen:
                self._seen, self._headers = stamp, self._read()
        except BadTarget as error:
            if self._seen:
                logger.warning("forwarding: %s; those from before are still sent", error)
            self._seen = ()
        return self._headers

    def _stamp(self) -> tuple[int, ...]:
        if self._path is None:
            return ()
        try:
            about = self._path.stat()
        except OSError as error:
            raise BadTarget(f"cannot read the headers: {error}") from error
        return about.st_mtime_ns, about.st_size, about.st_ino

    def _read(self) -> list[tuple[str, str]]:
        if self._path is None:
            return []
        try:
            lines = self._path.read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise BadTarget(f"cannot read the headers: {error}") from error
        headers = []
        for number, line in enumerate(lines, 1):
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            name, colon, value = (part.strip() for part in line.partition(":"))
            if not colon or not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
                raise BadTarget(f"{self._path}, line {number}: it must be `name: value`")  # the line may hold a secret
            headers.append((name.lower(), value))
        return headers
