"""Check of the host names in HTTP requests.

A web page may map its own domain to this machine's address (DNS rebinding). Then its scripts can read this server's data: the
browser treats it as the page's own server. So a request must name a host that cannot belong to such a page: an IP address,
this machine, or a name that the operator allows. A script's request must come from a page of this server.

Starlette's `TrustedHostMiddleware` takes names with `*` as a whole first label at most: it cannot allow every address,
and does not look at `Origin`.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from fnmatch import fnmatchcase
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

FORBIDDEN = 403


class OnlyAllowedHosts:
    """Middleware that rejects requests for other hosts."""

    def __init__(self, app: ASGIApp, allowed: Sequence[str]) -> None:
        """`allowed`: names besides addresses, `localhost` and the machine's own name; `*` matches any text."""
        own = socket.gethostname()
        self._app = app
        self._own = {name.lower() for name in ("localhost", own, socket.getfqdn(own))}
        self._allowed = [name.lower() for name in allowed]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (wrong := self._refusal(Headers(scope=scope))) is not None:
            await JSONResponse({"detail": wrong}, status_code=FORBIDDEN)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _refusal(self, headers: Headers) -> str | None:
        """Why a request is rejected; None if it is accepted."""
        asked, origin = headers.get("host", ""), headers.get("origin")
        if not self._knows(_name(asked)):
            return f"the host {asked!r} is not known here; allow it with --allow-host"
        if origin is not None and urlsplit(origin).netloc.lower() != asked.lower():
            return f"a page of {origin!r} may not query this server"
        return None

    def _knows(self, name: str) -> bool:
        return name in self._own or _is_address(name) or any(fnmatchcase(name, each) for each in self._allowed)


def _name(host: str) -> str:
    """A Host header without its port; empty if it is invalid."""
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
