"""The client of the tracer's HTTP API."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

UNAUTHORIZED, FORBIDDEN = 401, 403
HEALTH_S = 0.5
"""Maximum time for the health check of a tracer that hung, before other requests are sent."""
Row = dict[str, Any]
"""A JSON object of the API; the tracer's /docs page lists its fields."""


class TracerAway(RuntimeError):
    """The tracer gave no usable answer; the text has its URL and a remedy."""


class Tracer:
    """A client of one tracer. Every method raises TracerAway if there is no usable answer.

    The tracer's /docs page lists the paths, parameters and answers of its API.
    """

    def __init__(
        self,
        url: str,
        *,
        token_file: Path | None = None,
        ca: Path | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """
        Args:
            token_file: file with the token in its first line; read at every request, since it may be replaced.
            ca: PEM file of the CA of the tracer's certificate, if the system does not trust it.
        """
        self.url = url.rstrip("/")
        self._hangs = False
        self._token_file = token_file
        self._http = httpx.Client(
            verify=True if ca is None else ssl.create_default_context(cafile=ca),
            base_url=self.url,
            # A page refreshes every 2 s: a slower answer is useless.
            timeout=httpx.Timeout(3.0, connect=1.0),
            # The tracer is nearby: ignore a proxy for the internet.
            trust_env=False,
            transport=transport,
        )

    def get(self, path: str, **parameters: str | int) -> Any:
        """The parsed JSON answer of `/api/<path>`."""
        return self._decoded(self._response(f"/api/{path}", **parameters))

    def otlp(self, request_id: str, *, engine: str = "") -> bytes:
        """A request's spans as a trace file; empty if unknown."""
        response = self._response("/api/otlp", request=request_id, engine=engine)
        return b"" if response.status_code == 404 else response.content

    def request(self, request_id: str, *, engine: str = "") -> Row | None:
        """One request's timeline; None if the tracer does not know it."""
        # The id is chosen by the caller and may contain anything; it must remain one segment of the path.
        response = self._response(f"/api/requests/{quote(request_id, safe='')}", engine=engine)
        return None if response.status_code == 404 else self._decoded(response)

    def _response(self, path: str, **parameters: str | int) -> httpx.Response:
        """A successful response, or a 404."""
        try:
            if self._hangs:
                # Users would wait three seconds for every page and every click.
                self._http.get("/api/health", headers=self._headers(), timeout=HEALTH_S)
            response = self._http.get(path, params=parameters, headers=self._headers())
            self._hangs = False
        except httpx.HTTPError as error:
            self._hangs = isinstance(error, httpx.TimeoutException)
            raise TracerAway(f"The tracer at {self.url} {_failed(error)}") from error
        if response.status_code == UNAUTHORIZED:
            raise TracerAway(
                f"The tracer at {self.url} requires a token. Name the file that holds it with --token-file."
            )
        if response.status_code == FORBIDDEN and "WWW-Authenticate" in response.headers:
            raise TracerAway(f"The token for the tracer at {self.url} may not read. Give --token-file one that may.")
        if response.is_error and response.status_code != 404:
            raise TracerAway(f"The tracer at {self.url} answers with error {response.status_code}. See its log.")
        return response

    def _headers(self) -> dict[str, str]:
        if self._token_file is None:
            return {}
        try:
            token = self._token_file.read_text().strip().partition("\n")[0]
        except OSError as error:
            raise TracerAway(f"The token for the tracer cannot be read: {error}.") from error
        return {"authorization": f"Bearer {token}"}

    def _decoded(self, response: httpx.Response) -> Any:
        try:
            return response.raise_for_status().json()
        except (ValueError, httpx.HTTPStatusError) as error:
            raise TracerAway(
                f"The server at {self.url} is not a kvtrail tracer. Name the tracer with --tracer."
            ) from error


def _failed(error: httpx.HTTPError) -> str:
    """The failure and its remedy, as the predicate of a sentence about the tracer."""
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return (
            f"shows a certificate that is not trusted here ({error}). Name the authority that signed it with --tracer-ca, and"
            " the tracer by a name of the certificate."
        )
    if "[SSL" in str(error):
        return f"cannot be reached over TLS ({error}). If it serves without TLS, name it with http://."
    if isinstance(error, httpx.RemoteProtocolError | httpx.ReadError):
        return "closes the connection without an answer in HTTP. If it serves with TLS, name it with https://."
    if isinstance(error, httpx.ReadTimeout):
        return "does not answer in time. It may be busy: a shorter range takes less. If it hangs, restart it."
    return "does not answer. Start it with `kvtrail serve`."
