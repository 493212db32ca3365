"""The page that Streamlit's script draws into: with its styles from the beginning, and with the server's address."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from starlette.applications import Starlette
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from kvtrail.dashboard.index_page import IndexPage, additions

PAGE = f"<html><head><title>Streamlit</title></head><body>{'a' * 5000}</body></html>"
AS_PAGE = {"accept": "text/html,application/xhtml+xml"}


def page(request: Request) -> Response:
    if "if-none-match" in request.headers:
        return Response(status_code=304)
    return HTMLResponse(PAGE, headers={"etag": "of another text"})


def in_parts(_: Request) -> Response:
    def parts() -> Iterator[str]:
        yield from (PAGE[:20], PAGE[20:40], PAGE[40:])

    return StreamingResponse(parts(), media_type="text/html")


def other(_: Request) -> Response:
    return JSONResponse({"text": "</head>"})


@pytest.fixture
def client() -> TestClient:
    app = Starlette(routes=[Route("/request", page), Route("/parts", in_parts), Route("/json", other)])
    return TestClient(IndexPage(GZipMiddleware(app, minimum_size=100)))


@pytest.mark.parametrize("path", ["/request", "/parts"])
def test_a_page_has_its_styles_from_the_beginning_and_after_those_of_streamlit(client: TestClient, path: str) -> None:
    answer = client.get(path, headers={**AS_PAGE, "accept-encoding": "gzip", "if-none-match": "of another text"})
    assert answer.status_code == 200
    expected = PAGE
    for end, addition in additions().items():
        expected = expected.replace(end.decode(), (addition + end).decode())
    assert answer.text == expected
    assert answer.text.index("<script>") < answer.text.index("<body>") < answer.text.index("<style>")
    assert int(answer.headers["content-length"]) == len(answer.content)
    assert "etag" not in answer.headers
    assert ".st-key-nav" in answer.text


def test_other_answers_pass_as_they_are(client: TestClient) -> None:
    assert client.get("/json", headers=AS_PAGE).json() == {"text": "</head>"}
    assert client.get("/request", headers={"accept": "*/*"}).text == PAGE
    assert client.head("/request", headers=AS_PAGE).headers["etag"] == "of another text"
    assert client.get("/nothing", headers=AS_PAGE).status_code == 404


def test_the_server_is_looked_for_where_the_page_names_end() -> None:
    text = additions()[b"</head>"].decode()
    for name in ("request", "savings", "findings"):
        assert f'"{name}"' in text
