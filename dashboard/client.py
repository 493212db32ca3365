"""The client of the tracer's HTTP API."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

UNAUTHORIZED, FORBIDDEN = 401, 403
HEALTH_S = 0.5
"""In this time a tracer that had hung must answer that it is alive, before it is asked anything else."""
Row = dict[str, Any]
"""A JSON object of the API; the tracer's /docs page lists its fields."""


class TracerAway(RuntimeError):
    """The tracer gave no usable answer; the text has its address and a remedy."""


class Tracer:
    """A client of one tracer. Every method raises TracerAway if there is no usable answer."""

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
            token_file: has the token in its first line; read at every request, since it may be replaced.
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

    def health(self) -> Row:
        """The tracer's state, and the recorders that send to it."""
        return self._object("/api/health")

    def status(self, **filters: str | int) -> Row:
        """What is wrong in a time range, in sentences, worst first; and the rules with findings."""
        return self._object("/api/status", **filters)

    def totals(self) -> Row:
        """Totals over all requests and findings that are stored."""
        return self._object("/api/totals")

    def requests(self, *, limit: int = 200, **filters: str | int) -> list[Row]:
        """Accounts of requests, latest first; `filters` are the API's, such as `search` and `sort`."""
        return self._list("/api/requests", limit=limit, **filters)

    def requests_of_trace(self, trace_id: str, *, limit: int = 200) -> list[Row]:
        """Accounts of the requests of a trace, latest first; several if the caller's trace has several."""
        # The search also matches parts of request ids, which may look like a trace id.
        return [row for row in self.requests(search=trace_id, limit=limit) if row["trace_id"] == trace_id]

    def lanes(self, **parameters: str | int) -> Row:
        """Requests, phases, findings and gaps of a time range; `parameters` are those of `/api/lanes`."""
        return self._object("/api/lanes", **parameters)

    def findings(self, *, limit: int = 100, **filters: str | int) -> list[Row]:
        """Findings, latest first; `filters` are the API's, such as `rule` and `since_ns`."""
        return self._list("/api/findings", limit=limit, **filters)

    def findings_trend(self, **filters: str | int) -> Row:
        """Counts of findings by rule and time."""
        return self._object("/api/findings/trend", **filters)

    def findings_by_rule(self, **filters: str | int) -> list[Row]:
        """The rules with findings in a time range, and what they did."""
        return self._list("/api/findings/rules", **filters)

    def rules(self) -> list[Row]:
        """The active rules."""
        return self._list("/api/rules")

    def efficiency(self, **filters: str | int) -> Row:
        """What the offload saves, over a time range."""
        return self._object("/api/efficiency", **filters)

    def markers(self, **filters: str | int) -> list[Row]:
        """What happened in a time range that may explain a change: deploys, deaths, resets."""
        return self._list("/api/markers", **filters)

    def changes(self, **parameters: str | int) -> Row:
        """What changed at a moment, and which requests explain it; `parameters` are those of `/api/changes`."""
        return self._object("/api/changes", **parameters)

    def waste(self, **parameters: str | int) -> Row:
        """What was computed although a cache had held it; `parameters` are those of `/api/waste`."""
        return self._object("/api/waste", **parameters)

    def latency(self, **parameters: str | int) -> Row:
        """How long requests took, over time; `parameters` are those of `/api/latency`."""
        return self._object("/api/latency", **parameters)

    def latency_measures(self, **parameters: str | int) -> Row:
        """The time of requests in each phase, and their tokens by cause."""
        return self._object("/api/latency/measures", **parameters)

    def latency_groups(self, **parameters: str | int) -> Row:
        """The largest groups of requests, by `by`."""
        return self._object("/api/latency/groups", **parameters)

    def fleet(self) -> Row:
        """The engines and their recorders."""
        return self._object("/api/fleet")

    def otlp(self, request_id: str, *, engine: str = "") -> bytes:
        """A request's spans as a trace file; empty if unknown."""
        response = self._response("/api/otlp", request=request_id, engine=engine)
        return b"" if response.status_code == 404 else response.content

    def request(self, request_id: str, *, engine: str = "") -> Row | None:
        """One request's timeline; None if the tracer does not know it."""
        # The id is chosen by the caller and may contain anything; it must remain one segment of the path.
        response = self._response(f"/api/requests/{quote(request_id, safe='')}", engine=engine)
        return None if response.status_code == 404 else self._decoded(response, dict)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _object(self, path: str, **parameters: str | int) -> Row:
        answer: Row = self._decoded(self._response(path, **parameters), dict)
        return answer

    def _list(self, path: str, **parameters: str | int) -> list[Row]:
        answer: list[Row] = self._decoded(self._response(path, **parameters), list)
        return answer

    def _response(self, path: str, **parameters: str | int) -> httpx.Response:
        """A successful response, or a 404."""
        try:
            if self._hangs:
                # Its readers would wait three seconds for every page and every click.
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

    def _decoded(self, response: httpx.Response, expected: type) -> Any:
        try:
            answer = None if response.status_code == 404 else response.json()
        except ValueError:
            answer = None
        if not isinstance(answer, expected):
            raise TracerAway(f"The server at {self.url} is not a kvtrail tracer. Name the tracer with --tracer.")
        return answer


def _failed(error: httpx.HTTPError) -> str:
    """The failure and its remedy, as the predicate of a sentence about the tracer."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return (
                f"shows a certificate that is not trusted here ({cause.verify_message}). Name the authority that signed it"
                " with --tracer-ca, and the tracer by a name of the certificate."
            )
        if isinstance(cause, ssl.SSLError):
            return f"cannot be reached over TLS ({cause.reason}). If it serves without TLS, name it with http://."
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, httpx.RemoteProtocolError | httpx.ReadError):
        return "closes the connection without an answer in HTTP. If it serves with TLS, name it with https://."
    if isinstance(error, httpx.ReadTimeout):
        return "does not answer in time. It may be busy: a shorter range takes less. If it hangs, restart it."
    return "does not answer. Start it with `kvtrail serve`."
