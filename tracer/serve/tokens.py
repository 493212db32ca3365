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
_SCHEME = "bearer "


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


class Tokens:
    """The tokens of a file, one a line; lines that begin with `#` are none. The file is watched, so that tokens can be
    replaced while both the old and the new one count. While it is gone or has none, nobody is admitted."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises Unsafe if the file cannot be read, or holds no token."""
        try:
            self._file: WatchedFile[list[bytes]] = WatchedFile(path, _read, revoked=[], clock=clock)
        except Unusable as error:
            raise Unsafe(str(error)) from error

    def admit(self, authorization: str | None) -> bool:
        """Whether the value of an `authorization` header holds one of the tokens."""
        tokens, given = self._file.content, authorization or ""
        if not given.lower().startswith(_SCHEME):
            return False
        token = given[len(_SCHEME) :].strip().encode()
        return any([hmac.compare_digest(token, each) for each in tokens])  # noqa: C419 - all, in equal time


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
    """Who may do what: a token opens the roles of each file that holds it. A role without a file is closed to all."""

    def __init__(self, files: Iterable[TokenFile]) -> None:
        """Raises Unsafe if a file cannot be read, or holds no token."""
        self._files = [(each.roles, Tokens(each.path)) for each in files]

    def roles(self, authorization: str | None) -> frozenset[Role]:
        """What the value of an `authorization` header opens; nothing if its token is in no file."""
        opened = [roles for roles, tokens in self._files if tokens.admit(authorization)]
        return frozenset().union(*opened)
