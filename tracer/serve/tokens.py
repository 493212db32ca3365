"""Bearer tokens in files, and what each of them opens. Imports nothing of a server, since the commands read it, too."""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from kvtrail.exposure import tokens_in
from kvtrail.tracer.serve.bind_address import Unsafe
from kvtrail.tracer.serve.watched_file import Unusable, WatchedFile


class Role(StrEnum):
    """A kind of request to the sidecar or the api."""

    WRITE = "write"
    """Send spans: what an engine, a Collector or an importer does."""
    READ = "read"
    """Ask the api, read along, and scrape the metrics: what the dashboard, scripts and Prometheus do."""


ALL = frozenset(Role)
_SPANS = "/v1/traces"


def role_of(method: str, path: str) -> Role:
    """The role that a request over HTTP needs. Sending spans is the one thing that changes anything."""
    return Role.WRITE if method == "POST" and path == _SPANS else Role.READ


@dataclass(frozen=True, slots=True)
class TokenFile:
    """A file of tokens, and what they open; all roles as a rule."""

    path: Path
    roles: frozenset[Role] = ALL

    @classmethod
    def of(cls, text: str) -> TokenFile:
        """That of `FILE` or `ROLE=FILE`.

        Raises:
            ValueError: there is no such role. A file with a name like this is written `./a=b`.
        """
        role, equals, path = text.partition("=")
        if not (equals and role.isalpha()):
            return cls(Path(text))
        if role not in [*Role]:
            raise ValueError(f"{role!r} is no role: write one of {', '.join(Role)}, as in read=FILE")
        return cls(Path(path), frozenset({Role(role)}))

    def __str__(self) -> str:
        return str(self.path) if self.roles == ALL else f"{next(iter(self.roles))}={self.path}"


def _read(path: Path) -> list[bytes]:
    """Raises Unusable."""
    try:
        tokens = tokens_in(path)
    except (OSError, UnicodeDecodeError) as error:
        raise Unusable(f"cannot read the tokens: {error}") from error
    if not tokens:
        raise Unusable(f"{path} holds no token: write one a line")
    return tokens


class Access:
    """Who may do what: a token opens the roles of each file that holds it. A role without a file is closed to all. The files
    are watched, so that tokens can be replaced while both the old and the new one count; the tokens of a file that is gone,
    or has none, open nothing."""

    def __init__(self, files: Iterable[TokenFile], *, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises Unsafe if a file cannot be read, or holds no token."""
        try:
            self._files = [
                (each.roles, WatchedFile[list[bytes]](each.path, _read, [], revoked=[], clock=clock)) for each in files
            ]
        except Unusable as error:
            raise Unsafe(str(error)) from error

    def roles(self, authorization: str | None) -> frozenset[Role]:
        """What the value of an `authorization` header opens; nothing if its token is in no file."""
        scheme, _, token = (authorization or "").partition(" ")
        given = token.strip().encode() if scheme.lower() == "bearer" else b""
        opened = [
            roles
            for roles, file in self._files
            if any([hmac.compare_digest(given, each) for each in file.content])  # noqa: C419 - all, in equal time
        ]
        return frozenset().union(*opened)
