"""Who can reach what a process serves: addresses of this machine alone, and files of tokens. Sidecar and dashboard ask."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path


def is_local(host: str) -> bool:
    """Whether only this machine reaches an address. A name but `localhost` may stand for an address that others reach."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def tokens_in(path: Path) -> list[bytes]:
    """The tokens of a file, one a line; lines that begin with `#` are none.

    Raises:
        OSError: it cannot be read.
        UnicodeDecodeError: it is no text.
    """
    lines = [line.strip() for line in path.read_text().splitlines()]
    return [line.encode() for line in lines if line and not line.startswith("#")]
