"""Token login for a dashboard that other machines can reach. A proxy that authenticates users may send a token itself.

A middleware in front of all of Streamlit: pages, websocket and downloads. A token is entered once, in a form; a random cookie
then replaces it for twelve hours, until its user logs out, the token is removed from the file, or the dashboard restarts.
Wrong tokens cause a wait.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Callable
from html import escape
from pathlib import Path
from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketClose

from kvtrail.exposure import tokens_in
from kvtrail.refused import Refused
from kvtrail.tracer.events.bounded import BoundedDict

OPEN_PATH = "/_stcore/health"
"""The path of health checks, which send no token."""
LOGIN, LOGOUT = "/login", "/logout"
COOKIE = "kvtrail_login"
COOKIE_LIFETIME_S = 12 * 3600
MAX_FORM_BYTES = 16 * 1024
MAX_FAILURES, FAILURES_S = 10, 60.0
"""Maximum number of wrong tokens from one address, and the period in seconds; then its tokens are ignored until the period
has passed."""
MAX_REMEMBERED = 10_000
"""Maximum number of addresses with wrong tokens, and of cookies of logged-in users."""
_FORM = """<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>kvtrail: log in</title>
<style>:root{{color-scheme:light dark}}body{{font:16px system-ui;max-width:24rem;margin:20vh auto;padding:0 1rem}}
input,button{{font:inherit;width:100%;box-sizing:border-box;padding:.5rem;margin:.5rem 0}}</style>
<h1>kvtrail</h1><form method="post" action="{action}"><input type="hidden" name="next" value="{next}">
<label>Token <input type="password" name="token" autocomplete="current-password" required autofocus></label>
<button>Log in</button></form><p role="alert">{message}</p>
<p>The dashboard has tokens of its own, and those of the tracer do not count here. They are the lines of its
<code>--login-token-file</code>: ask whoever runs it.</p></html>"""


class Login:
    """Decides who is admitted.

    Attributes:
        token_file: tokens, one per line; read at every request, so that a removed token stops working at once.
    """

    def __init__(self, token_file: Path, *, clock: Callable[[], float] = time.time) -> None:
        """Raises Refused if the file has no token."""
        self.token_file, self._clock = token_file, clock
        self._failures: BoundedDict[str, list[float]] = BoundedDict(MAX_REMEMBERED)
        """The times of wrong tokens, by address."""
        self._sessions: BoundedDict[str, tuple[str, float]] = BoundedDict(MAX_REMEMBERED)
        """By cookie: the entered token, and the cookie's expiry."""
        if not self._tokens():
            raise Refused(f"{token_file} holds no token: write one a line")

    def admits(self, scope: Scope) -> bool:
        """Whether a request or websocket comes from a logged-in user."""
        scheme, _, token = Headers(scope=scope).get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self._takes(token.strip(), address_of(scope)):
            return True
        cookie = Request({**scope, "type": "http"}).cookies.get(COOKIE, "")
        token, until_s = self._sessions.get(cookie, ("", 0.0))
        return self._clock() <= until_s and self._is_token(token)

    def cookie_for(self, token: str, host: str = "") -> str | None:
        """A new cookie for a token from this address; None if it is invalid, or the address must wait."""
        if not self._takes(token, host):
            return None
        cookie = secrets.token_urlsafe()
        self._sessions[cookie] = token, self._clock() + COOKIE_LIFETIME_S
        return cookie

    def log_out(self, cookie: str) -> None:
        """Invalidate this cookie."""
        self._sessions.pop(cookie, None)

    def must_wait(self, host: str) -> bool:
        """Whether tokens from this address are ignored now because of too many wrong ones."""
        since = self._clock() - FAILURES_S
        return len([at for at in self._failures.get(host, ()) if at > since]) >= MAX_FAILURES

    def _takes(self, token: str, host: str) -> bool:
        if self.must_wait(host):
            return False
        if self._is_token(token):
            return True
        self._failures[host] = [*self._failures.get(host, [])[1 - MAX_FAILURES :], self._clock()]
        self._failures.move_to_end(host)
        return False

    def _is_token(self, token: str) -> bool:
        given = token.encode()
        return any([hmac.compare_digest(given, each) for each in self._tokens()])  # noqa: C419 - compares all, in constant time

    def _tokens(self) -> list[bytes]:
        """The valid tokens; none if the file is unreadable, so that nobody is admitted."""
        try:
            return tokens_in(self.token_file)
        except (OSError, UnicodeDecodeError):
            return []


def address_of(scope: Scope) -> str:
    """The address that a request comes from."""
    return str((scope.get("client") or ("",))[0])


class LoginMiddleware:
    """Shows the login form to everybody else, and closes their websockets."""

    def __init__(self, app: ASGIApp, login: Login) -> None:
        self._app, self._login = app, login

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket" and not self._login.admits(scope):
            await WebSocketClose(1008, "log in")(scope, receive, send)
            return
        if scope["type"] == "websocket":
            receive = self._while_admitted(scope, receive)
        if scope["type"] == "http" and scope["path"] != OPEN_PATH:
            answer = await self._answer(Request(scope, receive))
            if answer is not None:
                await answer(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _while_admitted(self, scope: Scope, receive: Receive) -> Receive:
        """The messages of a websocket while its user is admitted; then the websocket is closed."""

        async def received() -> Message:
            message = await receive()
            is_over = message["type"] == "websocket.receive" and not self._login.admits(scope)
            return {"type": "websocket.disconnect", "code": 1008} if is_over else message

        return received

    async def _answer(self, request: Request) -> Response | None:
        """The middleware's own answer; None if Streamlit answers."""
        path = request.url.path
        if path == LOGIN and request.method == "POST":
            return await self._log_in(request)
        if path == LOGOUT:
            self._login.log_out(request.cookies.get(COOKIE, ""))
            answer = RedirectResponse("/", 303)
            answer.delete_cookie(COOKIE)
            return answer
        if self._login.admits(request.scope):
            return RedirectResponse("/", 303) if path == LOGIN else None
        query = f"?{request.url.query}" if request.url.query else ""
        return _form("/" if path == LOGIN else path + query)

    async def _log_in(self, request: Request) -> Response:
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > MAX_FORM_BYTES:
                return PlainTextResponse("too long", 413, {"connection": "close"})
        fields = parse_qs(body.decode("utf-8", "replace"))
        wanted = _own_page(fields.get("next", ["/"])[0])
        host = address_of(request.scope)
        if self._login.must_wait(host):
            text = "too many wrong tokens came from your address: wait a minute"
            return PlainTextResponse(text, 429, {"retry-after": f"{FAILURES_S:.0f}"})
        cookie = self._login.cookie_for(fields.get("token", [""])[0].strip(), host)
        if cookie is None:
            return _form(wanted, "This token is not valid here.")
        answer = RedirectResponse(wanted, 303)
        is_https = "https" in (request.url.scheme, request.headers.get("x-forwarded-proto"))
        answer.set_cookie(COOKIE, cookie, max_age=COOKIE_LIFETIME_S, httponly=True, samesite="lax", secure=is_https)
        return answer


def _own_page(address: str) -> str:
    """The URL if every browser parses it as a path on this site, else `/`."""
    is_own = address.startswith("/") and address[1:2] not in ("/", "\\") and address.isprintable()
    return address if is_own else "/"


def _form(wanted: str, message: str = "") -> HTMLResponse:
    headers = {"cache-control": "no-store", "x-frame-options": "DENY", "www-authenticate": "Bearer"}
    return HTMLResponse(_FORM.format(action=LOGIN, next=escape(wanted), message=escape(message)), 401, headers)
