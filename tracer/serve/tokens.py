"""Bearer tokens in files, and the roles that they grant. Imports no server code, since commands import it, too."""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from kvtrail.exposure import tokens_in
from kvtrail.refused import Refused
from kvtrail.tracer.serve.watched_file import WatchedFile


class Role(StrEnum):
    """A kind of request to the sidecar or the API."""

    WRITE = "write"
    """Send spans: what an engine, a Collector or an importer does."""
    READ = "read"
    """Query the API and scrape the metrics: what the dashboard, scripts and Prometheus do."""


ALL = frozenset(Role)
_SPANS = "/v1/traces"


def role_of(method: str, path: str) -> Role:
    """The role that an HTTP request needs. Only sending spans changes data."""
    return Role.WRITE if method == "POST" and path == _SPANS else Role.READ


@dataclass(frozen=True, slots=True)
class TokenFile:
    """A file of tokens, and the roles that they grant; by default all."""

    path: Path
    roles: frozenset[Role] = ALL

    @classmethod
    def of(cls, text: str) -> TokenFile:
        """Parse `FILE` or `ROLE=FILE`.

        Raises:
            ValueError: there is no such role. Write a file with a name like this as `./a=b`.
        """
        role, equals, path = text.partition("=")
        if not (equals and role.isalpha()):
            return cls(Path(text))
        if role not in [*Role]:
            raise ValueError(f"{role!r} is not a role: write one of {', '.join(Role)}, as in read=FILE")
        return cls(Path(path), frozenset({Role(role)}))

    def __str__(self) -> str:
        return str(self.path) if self.roles == ALL else f"{next(iter(self.roles))}={self.path}"


def _read(path: Path) -> list[bytes]:
    """Raises Refused."""
    try:
        tokens = tokens_in(path)
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"cannot read the tokens: {error}") from error
    if not tokens:
        raise Refused(f"{path} holds no token: write one a line")
    return tokens


class Access:
    """Grants roles to tokens: a token has the roles of each file that contains it. Without a file, no token has a role. The
    files are watched, so that tokens can be rotated while both the old and the new one are valid. If a file is removed or
    empty, its old tokens are revoked."""

    def __init__(self, files: Iterable[TokenFile], *, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises Refused if a file cannot be read, or holds no token."""
        self._files = [
            (each.roles, WatchedFile[list[bytes]](each.path, _read, [], revoked=[], clock=clock)) for each in files
        ]

    def roles(self, authorization: str | None) -> frozenset[Role]:
        """The roles that an `authorization` header grants; none if its token is in no file."""
        scheme, _, token = (authorization or "").partition(" ")
        given = token.strip().encode() if scheme.lower() == "bearer" else b""
        opened = [
            roles
            for roles, file in self._files
            if any([hmac.compare_digest(given, each) for each in file.content])  # noqa: C419 - compare all, in constant time
        ]
        return frozenset().union(*opened)
