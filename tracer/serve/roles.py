"""What a token opens. Imports nothing of a server, since the commands read it, too."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


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


def tokens_in(path: Path) -> list[bytes]:
    """The tokens of a file, one a line; lines that begin with `#` are none.

    Raises:
        OSError: it cannot be read.
        UnicodeDecodeError: it is no text.
    """
    lines = [line.strip() for line in path.read_text().splitlines()]
    return [line.encode() for line in lines if line and not line.startswith("#")]


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
