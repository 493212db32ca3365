"""Who can reach an address that a process listens on. Imports nothing, since the dashboard asks, too."""

from __future__ import annotations

from ipaddress import ip_address


class Unsafe(ValueError):
    """A process will not listen like this; the text says why, and what to do."""


def is_local(host: str) -> bool:
    """Whether only this machine reaches it. A name but `localhost` may stand for an address that others reach."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


class PortTaken(RuntimeError):
    """A server could not listen; the text names the address and the option that changes it."""

    def __init__(self, where: str, why: str, option: str) -> None:
        super().__init__(f"cannot listen on {where} ({why}). Choose another: {option}")


def address(host: str, port: int) -> str:
    """An address as it stands in a URL: that of IPv6 has brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
