"""Access control: bearer tokens for HTTP and gRPC, if token files are configured, and TLS certificates."""

from __future__ import annotations

import ssl
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from kvtrail.exposure import is_local
from kvtrail.refused import Refused
from kvtrail.tracer.serve.tokens import Access, Role, role_of

OPEN_PATHS = frozenset({"/healthz", "/readyz"})
"""Paths of a kubelet's probes, which send no token."""
UNAUTHORIZED, FORBIDDEN = 401, 403
_WANTED = "a token is required: send `authorization: Bearer <token>`"


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files: the sidecar's certificate chain, its key, and the CAs for client certificates, if these are required."""

    certificate: Path
    key: Path
    client_authorities: Path | None = None

    def for_grpc(self) -> Any:
        """The credentials of a gRPC server."""
        pair = (self.key.read_bytes(), self.certificate.read_bytes())
        authorities = None if self.client_authorities is None else self.client_authorities.read_bytes()
        return grpc.ssl_server_credentials([pair], authorities, require_client_auth=authorities is not None)

    def for_uvicorn(self) -> dict[str, Any]:
        """The settings of `uvicorn.Config`."""
        settings: dict[str, Any] = {"ssl_certfile": str(self.certificate), "ssl_keyfile": str(self.key)}
        if self.client_authorities is not None:
            settings |= {"ssl_ca_certs": str(self.client_authorities), "ssl_cert_reqs": ssl.CERT_REQUIRED}
        return settings

    def check(self) -> None:
        """Raises Refused if a file cannot be used."""
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.certificate, self.key)
            if self.client_authorities is not None:
                context.load_verify_locations(self.client_authorities)
        except (OSError, ssl.SSLError) as error:
            files = ", ".join(map(str, filter(None, (self.certificate, self.key, self.client_authorities))))
            raise Refused(f"cannot use these files for TLS: {files}: {error}") from error


class OnlyWithToken:
    """Middleware that rejects HTTP requests without a token for the required role."""

    def __init__(self, app: ASGIApp, tokens: Access) -> None:
        self._app = app
        self._tokens = tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            wanted = role_of(scope["method"], scope["path"])
            opened = self._tokens.roles(Headers(scope=scope).get("authorization"))
            if wanted not in opened:
                code, challenge = UNAUTHORIZED, "Bearer"
                if opened:
                    code, challenge = FORBIDDEN, f'Bearer error="insufficient_scope", scope="{wanted}"'
                headers = {"WWW-Authenticate": challenge, "connection": "close"}
                await JSONResponse({"detail": _refusal(opened, wanted)}, code, headers)(scope, receive, send)
                return
        await self._app(scope, receive, send)


class TokenInterceptor(grpc.ServerInterceptor):  # type: ignore[misc]  # grpc has no types
    """Rejects gRPC calls without a token of the role `write`: every gRPC call sends spans."""

    def __init__(self, tokens: Access) -> None:
        self._tokens = tokens
        self._unknown = _refusing(grpc.StatusCode.UNAUTHENTICATED, _WANTED)
        self._forbidden = _refusing(grpc.StatusCode.PERMISSION_DENIED, _refusal({Role.READ}, Role.WRITE))

    def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        opened = self._tokens.roles(dict(handler_call_details.invocation_metadata).get("authorization"))
        if Role.WRITE in opened:
            return continuation(handler_call_details)
        return self._forbidden if opened else self._unknown


def _refusal(opened: Collection[Role], wanted: Role) -> str:
    return f"this token may not {wanted}: use a token that may" if opened else _WANTED


def _refusing(code: grpc.StatusCode, text: str) -> Any:
    def refuse(requests: Any, context: grpc.ServicerContext) -> None:
        context.abort(code, text)

    return grpc.stream_unary_rpc_method_handler(refuse)  # a stream: the message is never read


def check_bind_address(host: str, tokens: Access | None, *, insecure: bool) -> None:
    """Raises Refused if anybody on the network could read the served data, unless that is declared as intended."""
    if tokens is not None or insecure or is_local(host):
        return
    raise Refused(f"on {host}, anybody who reaches this machine could read and write: set --token-file, or --insecure")
