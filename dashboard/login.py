"""Who may see the pages, where not only this machine reaches them: those who show a token, or whom a trusted proxy names.

A middleware before all of Streamlit: its pages, its websocket, its downloads. A token is shown once, in a form; a cookie then
stands for it until it is taken out of the file, for twelve hours at most. No password, account or session is kept here.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Callable, Sequence
from html import escape
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from pathlib import Path
from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocketClose

from kvtrail.tracer.serve.roles import tokens_in

Network = IPv4Network | IPv6Network

OPEN_PATH = "/_stcore/health"
"""What a kubelet asks, which has no token."""
LOGIN, LOGOUT = "/login", "/logout"
COOKIE = "kvtrail_login"
LASTS_S = 12 * 3600
LONGEST_FORM = 16 * 1024
"""Bytes of a form that is read."""
_FORM = """<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>kvtrail: log in</title>
<style>:root{{color-scheme:light dark}}body{{font:16px system-ui;max-width:24rem;margin:20vh auto;padding:0 1rem}}
input,button{{font:inherit;width:100%;box-sizing:border-box;padding:.5rem;margin:.5rem 0}}</style>
<h1>kvtrail</h1><form method="post" action="{action}"><input type="hidden" name="next" value="{next}">
<label>Token <input type="password" name="token" autocomplete="current-password" required autofocus></label>
<button>Log in</button></form><p role="alert">{said}</p>
<p>The dashboard has tokens of its own, and those of the tracer do not count here. They are the lines of its
<code>--login-token-file</code>: ask whoever runs it.</p></html>"""


class BadLogin(ValueError):
    """Nobody could log in like this; the text says why."""


class Login:
    """Who is let in.

    Attributes:
        token_file: tokens, one a line; read at every request, so that one that is taken out opens nothing any more.
        header: the header in which a proxy names who asks.
        proxies: networks from which that header is believed. From anywhere else it is a forgery.
    """

    def __init__(
        self,
        token_file: Path | None = None,
        header: str = "",
        proxies: Sequence[str] = (),
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Raises BadLogin if the file holds no token, or a network is none."""
        self.token_file, self.header, self._clock = token_file, header, clock
        try:
            self.proxies: list[Network] = [ip_network(each) for each in proxies]
        except ValueError as error:
            raise BadLogin(f"{error}") from error
        if token_file is not None and not self._tokens():
            raise BadLogin(f"{token_file} holds no token: write one a line")

    def admits(self, scope: Scope) -> bool:
        """Whether a request, or a websocket, is of somebody who has logged in."""
        headers = Headers(scope=scope)
        if self.header and headers.get(self.header) and self._is_proxy((scope.get("client") or ("",))[0]):
            return True
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self._fits(token.strip()):
            return True
        return self._is_valid(Request({**scope, "type": "http"}).cookies.get(COOKIE, ""))

    def cookie_for(self, token: str) -> str | None:
        """The value of the cookie that stands for a token; None if that token opens nothing."""
        if not self._fits(token):
            return None
        until = int(self._clock()) + LASTS_S
        return f"{until}.{_signature(token.encode(), until)}"

    def _fits(self, token: str) -> bool:
        given = token.encode()
        return any([hmac.compare_digest(given, each) for each in self._tokens()])  # noqa: C419 - all, in equal time

    def _is_valid(self, cookie: str) -> bool:
        until, _, signature = cookie.partition(".")
        if not (until.isascii() and until.isdigit() and len(until) < 16) or int(until) < self._clock():
            return False
        given = signature.encode()
        return any(hmac.compare_digest(given, _signature(each, int(until)).encode()) for each in self._tokens())

    def _is_proxy(self, host: str) -> bool:
        try:
            address = ip_address(host)
        except ValueError:
            return False
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:  # how IPv4 comes to a socket of both
            address = address.ipv4_mapped
        return any(address in network for network in self.proxies)

    def _tokens(self) -> list[bytes]:
        """None if the file is gone: then nobody is let in."""
        if self.token_file is None:
            return []
        try:
            return tokens_in(self.token_file)
        except (OSError, UnicodeDecodeError):
            return []


def _signature(token: bytes, until: int) -> str:
    return hmac.new(token, f"kvtrail dashboard until {until}".encode(), hashlib.sha256).hexdigest()


class OnlyLoggedIn:
    """Middleware that shows the form to all others, and closes their websockets."""

    def __init__(self, app: ASGIApp, login: Login) -> None:
        self._app, self._login = app, login

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket" and not self._login.admits(scope):
            await WebSocketClose(1008, "log in")(scope, receive, send)
            return
        if scope["type"] == "http" and scope["path"] != OPEN_PATH:
            answer = await self._answer(Request(scope, receive))
            if answer is not None:
                await answer(scope, receive, send)
                return
        await self._app(scope, receive, send)

    async def _answer(self, request: Request) -> Response | None:
        """What is answered here; None for Streamlit to answer."""
        path = request.url.path
        if path == LOGIN and request.method == "POST":
            return await self._logged_in(request)
        if path == LOGOUT:
            answer = RedirectResponse("/", 303)
            answer.delete_cookie(COOKIE)
            return answer
        if self._login.admits(request.scope):
            return RedirectResponse("/", 303) if path == LOGIN else None
        if self._login.token_file is None:
            return PlainTextResponse("log in at the proxy that is before this dashboard", 401)
        query = f"?{request.url.query}" if request.url.query else ""
        return _form("/" if path == LOGIN else path + query)

    async def _logged_in(self, request: Request) -> Response:
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > LONGEST_FORM:
                return PlainTextResponse("too long", 413, {"connection": "close"})
        fields = parse_qs(body.decode("utf-8", "replace"))
        wanted = _own_page(fields.get("next", ["/"])[0])
        cookie = self._login.cookie_for(fields.get("token", [""])[0].strip())
        if cookie is None:
            return _form(wanted, "This token is not valid here.")
        answer = RedirectResponse(wanted, 303)
        is_https = "https" in (request.url.scheme, request.headers.get("x-forwarded-proto"))
        answer.set_cookie(COOKIE, cookie, max_age=LASTS_S, httponly=True, samesite="lax", secure=is_https)
        return answer


def _own_page(address: str) -> str:
    """A page of ours: a path, and no other site's address, in whatever way a browser might read it."""
    is_own = address.startswith("/") and address[1:2] not in ("/", "\\") and address.isprintable()
    return address if is_own else "/"


def _form(wanted: str, said: str = "") -> HTMLResponse:
    headers = {"cache-control": "no-store", "x-frame-options": "DENY", "www-authenticate": "Bearer"}
    return HTMLResponse(_FORM.format(action=LOGIN, next=escape(wanted), said=escape(said)), 401, headers)
