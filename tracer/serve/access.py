"""Who may speak to the sidecar: those who show a token, where there is a file of tokens; and the certificates of TLS."""

from __future__ import annotations

import hmac
import logging
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from kvtrail.tracer.serve.exposure import Unsafe, is_local

logger = logging.getLogger("kvtrail")

OPEN_PATHS = frozenset({"/healthz", "/readyz"})
"""What a kubelet asks, which has no token."""
LOOK_AGAIN_S = 1.0
"""How often the file of tokens is looked at."""
UNAUTHORIZED = 401
_SCHEME = "bearer "
_WANTED = "a token is wanted here: send `authorization: Bearer <token>`"


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files: the sidecar's certificate with those above it, its key, and the authorities that must have signed a client's
    certificate, if it must have one."""

    certificate: Path
    key: Path
    client_authorities: Path | None = None

    def for_grpc(self) -> grpc.ServerCredentials:
        """Raises Unsafe if a file cannot be used."""
        self.check()
        chain = [(self.key.read_bytes(), self.certificate.read_bytes())]
        if self.client_authorities is None:
            return grpc.ssl_server_credentials(chain)
        return grpc.ssl_server_credentials(chain, self.client_authorities.read_bytes(), require_client_auth=True)

    def for_uvicorn(self) -> dict[str, Any]:
        """The settings of `uvicorn.Config`."""
        settings: dict[str, Any] = {"ssl_certfile": str(self.certificate), "ssl_keyfile": str(self.key)}
        if self.client_authorities is not None:
            settings |= {"ssl_ca_certs": str(self.client_authorities), "ssl_cert_reqs": ssl.CERT_REQUIRED}
        return settings

    def check(self) -> None:
        """Raises Unsafe if a file cannot be used."""
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.certificate, self.key)
            if self.client_authorities is not None:
                context.load_verify_locations(self.client_authorities)
        except (OSError, ssl.SSLError) as error:
            files = ", ".join(map(str, filter(None, (self.certificate, self.key, self.client_authorities))))
            raise Unsafe(f"cannot use these files for TLS: {files}: {error}") from error


class Tokens:
    """The tokens of a file, one a line; lines that begin with `#` are none. It is read again when it has changed, so that
    tokens can be replaced while both the old and the new one count."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises Unsafe if the file cannot be read, or holds no token."""
        self._path = path
        self._clock = clock
        self._seen = self._stamp()
        self._tokens = self._read()
        self._looked_s = clock()

    def admit(self, authorization: str | None) -> bool:
        """Whether the value of an `authorization` header holds one of the tokens."""
        self._look()
        given = authorization or ""
        if not given.lower().startswith(_SCHEME):
            return False
        token = given[len(_SCHEME) :].strip().encode()
        return any([hmac.compare_digest(token, each) for each in self._tokens])  # noqa: C419 - all, in equal time

    def _look(self) -> None:
        if self._clock() - self._looked_s < LOOK_AGAIN_S:
            return
        self._looked_s = self._clock()
        try:
            stamp = self._stamp()
            if stamp != self._seen:
                self._tokens, self._seen = self._read(), stamp
                logger.info("the tokens in %s have changed", self._path)
        except Unsafe as error:
            logger.warning("%s; those from before still count", error)
            self._seen = ()

    def _stamp(self) -> tuple[int, ...]:
        try:
            about = self._path.stat()
        except OSError as error:
            raise Unsafe(f"cannot read the tokens: {error}") from error
        return about.st_mtime_ns, about.st_size, about.st_ino

    def _read(self) -> list[bytes]:
        try:
            lines = [line.strip() for line in self._path.read_text().splitlines()]
        except (OSError, UnicodeDecodeError) as error:
            raise Unsafe(f"cannot read the tokens: {error}") from error
        tokens = [line.encode() for line in lines if line and not line.startswith("#")]
        if not tokens:
            raise Unsafe(f"{self._path} holds no token: write one a line")
        return tokens


class OnlyWithToken:
    """Middleware that refuses HTTP requests without a token."""

    def __init__(self, app: ASGIApp, tokens: Tokens) -> None:
        self._app = app
        self._tokens = tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (
            scope["type"] == "http"
            and scope["path"] not in OPEN_PATHS
            and not self._tokens.admit(Headers(scope=scope).get("authorization"))
        ):
            refused = {"WWW-Authenticate": "Bearer", "connection": "close"}
            await JSONResponse({"detail": _WANTED}, UNAUTHORIZED, refused)(scope, receive, send)
            return
        await self._app(scope, receive, send)


class TokenInterceptor(grpc.ServerInterceptor):  # type: ignore[misc]  # grpc has no types
    """Refuses calls over gRPC without a token."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._refusal = grpc.unary_unary_rpc_method_handler(_refuse)

    def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        metadata = dict(handler_call_details.invocation_metadata)
        return (
            continuation(handler_call_details) if self._tokens.admit(metadata.get("authorization")) else self._refusal
        )


def _refuse(request: Any, context: grpc.ServicerContext) -> None:
    context.abort(grpc.StatusCode.UNAUTHENTICATED, _WANTED)


def check_exposure(host: str, tokens: Tokens | None, *, insecure: bool) -> None:
    """Raises Unsafe where anybody on the network could read what is served, and nobody has said that this is meant."""
    if tokens is not None or insecure or is_local(host):
        return
    raise Unsafe(
        f"on {host}, anybody who reaches this machine could read and write here: give --token-file, or say --insecure"
    )
