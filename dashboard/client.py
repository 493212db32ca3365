"""The one client of the tracer's HTTP api."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import httpx

DEFAULT_URL = "http://127.0.0.1:4318"
Row = dict[str, Any]
"""One JSON object of the api; the tracer's /docs page lists its fields."""


class TracerAway(RuntimeError):
    """The tracer cannot be asked; the text says where it was expected and what to do."""


class Tracer:
    """Asks one tracer. Every method raises TracerAway when there is no usable answer."""

    def __init__(self, url: str, *, transport: httpx.BaseTransport | None = None) -> None:
        self.url = url.rstrip("/")
        self._http = httpx.Client(
            base_url=self.url,
            # A page refreshes every 2 s: an answer that takes longer is of no use to it.
            timeout=httpx.Timeout(3.0, connect=1.0),
            # A sidecar is a neighbour. A proxy meant for the internet would only stand between the two.
            trust_env=False,
            transport=transport,
        )

    def health(self) -> Row:
        """How the tracer is, and which recorders it hears."""
        return self._object("/api/health")

    def overview(self, *, window_s: int) -> Row:
        """What happened within the last `window_s` seconds, and in all."""
        return self._object("/api/overview", window_s=window_s)

    def requests(self, *, search: str = "", status: str = "", verdict: str = "", limit: int = 200) -> list[Row]:
        """Accounts of requests, latest first."""
        return self._list("/api/requests", search=search, status=status, verdict=verdict, limit=limit)

    def requests_of_trace(self, trace_id: str, *, limit: int = 200) -> list[Row]:
        """Accounts of the requests of a trace, latest first: one, unless a caller's trace holds several."""
        # The search finds parts of ids as well, which may look like a trace's.
        return [found for found in self.requests(search=trace_id, limit=limit) if found["trace_id"] == trace_id]

    def lanes(self, **window: str | int) -> Row:
        """Requests, phases, findings and gaps of a window of time; the tracer's `/api/lanes` names the parameters."""
        return self._object("/api/lanes", **window)

    def findings(self, *, limit: int = 100, **which: str | int) -> list[Row]:
        """Findings, latest first; `which` are the api's filters, such as `rule` and `since_ns`."""
        return self._list("/api/findings", limit=limit, **which)

    def findings_trend(self, **which: str | int) -> Row:
        """How many findings there are, by rule and time."""
        return self._object("/api/findings/trend", **which)

    def rules(self) -> list[Row]:
        """The rules: what is checked."""
        return self._list("/api/rules")

    def efficiency(self, **which: str | int) -> Row:
        """What the offload is worth, over a window of time."""
        return self._object("/api/efficiency", **which)

    def fleet(self) -> Row:
        """The engines and their recorders."""
        return self._object("/api/fleet")

    def file(self, kind: str, request_id: str, *, engine: str = "") -> bytes:
        """A request as a file: its spans (`otlp`), or its story for Perfetto (`perfetto`); empty when it is not known."""
        response = self._response(f"/api/{kind}", request=request_id, engine=engine)
        return b"" if response.status_code == 404 else response.content

    def request(self, request_id: str, *, engine: str = "") -> Row | None:
        """One request's timeline; None when the tracer knows no such request."""
        # The id is the caller's own text: it must stay one segment of the path, whatever is in it.
        answer = self._get(f"/api/requests/{quote(request_id, safe='')}", engine=engine)
        return None if answer is None else _expect(answer, dict, self.url)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _object(self, path: str, **parameters: str | int) -> Row:
        answer: Row = _expect(self._get(path, **parameters), dict, self.url)
        return answer

    def _list(self, path: str, **parameters: str | int) -> list[Row]:
        answer: list[Row] = _expect(self._get(path, **parameters), list, self.url)
        return answer

    def _get(self, path: str, **parameters: str | int) -> Any:
        """The answer as data; None for 404."""
        response = self._response(path, **parameters)
        if response.status_code == 404:
            return None
        try:
            return response.json()
        except ValueError as error:
            raise _stranger(self.url) from error

    def _response(self, path: str, **parameters: str | int) -> httpx.Response:
        """An answer, or a 404."""
        try:
            response = self._http.get(path, params=parameters)
        except httpx.HTTPError as error:
            raise TracerAway(f"The tracer at {self.url} does not answer. Start it with `kvtrail serve`.") from error
        if response.is_error and response.status_code != 404:
            raise TracerAway(
                f"The tracer at {self.url} answers with the error {response.status_code}. Its log says more."
            )
        return response


def _expect(answer: Any, kind: type, url: str) -> Any:
    if not isinstance(answer, kind):
        raise _stranger(url)
    return answer


def _stranger(url: str) -> TracerAway:
    return TracerAway(f"Something else than a kvtrail tracer answers at {url}. Name the tracer with --tracer.")
