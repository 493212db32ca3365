"""Access to a served port, for the sidecar and the dashboard: whether an address can be reached only from this machine, and
files of tokens."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path


def is_local(host: str) -> bool:
    """Whether an address can be reached only from this machine. Names other than `localhost` may resolve to any address."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def tokens_in(path: Path) -> list[bytes]:
    """The tokens in a file, one per line; lines that begin with `#` are comments.

    Raises:
        OSError: it cannot be read.
        UnicodeDecodeError: it is not text.
    """
    lines = [line.strip() for line in path.read_text().splitlines()]
    return [line.encode() for line in lines if line and not line.startswith("#")]
