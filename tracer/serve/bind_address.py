"""The addresses that the sidecar listens on."""

from __future__ import annotations

import socket


class PortTaken(RuntimeError):
    """A server could not listen; the text names the address and the option that changes it."""


def address(host: str, port: int) -> str:
    """An address in the form of a URL: IPv6 addresses have brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def bound(host: str, port: int, option: str = "--http-port") -> socket.socket:
    """A socket bound to the address. It is created first, so that a taken port leaves nothing behind. Port 0 chooses a free
    port.

    Raises:
        PortTaken: it is in use or does not belong to this machine; the text names the `option` that changes it.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise PortTaken(
            f"cannot listen on {address(host, port)} ({error.strerror}). Choose another: {option}"
        ) from error
    return listener
