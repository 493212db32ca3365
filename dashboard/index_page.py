"""The page into which Streamlit's script draws: it gets the styles, and the address of the server.

Within the page itself they would come late: it would be drawn without its styles first, and the script would look for the
server below the address of the page, in vain.
"""

from __future__ import annotations

import json
from pathlib import Path

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kvtrail.dashboard import palette

VIEWS = Path(__file__).with_name("views")
STYLES = [Path(__file__).parent / "browser" / "style.css", Path(__file__).parent / "table" / "table.css"]
_OF_ANOTHER_ANSWER = (b"accept-encoding", b"if-none-match", b"if-modified-since")
"""Headers to which Streamlit would answer with a compressed page, or with none."""
_FIND_SERVER = """
const pages = {pages}, path = location.pathname.split("/").filter(Boolean);
if (pages.includes(path.at(-1))) path.pop();
window.__streamlit = {{ ...window.__streamlit, BACKEND_BASE_URL: [location.origin, ...path, ""].join("/") }};
"""
"""The server is where the address without the page's name leads, also below a prefix of a proxy."""


def additions() -> dict[bytes, bytes]:
    """What comes before each of these ends. The styles are in the body, since Streamlit's own come into the head one by one:
    of two rules that are equally specific the later one counts."""
    style = "\n".join([palette.style(), *(path.read_text() for path in STYLES)])
    script = _FIND_SERVER.format(pages=json.dumps(sorted(path.stem for path in VIEWS.glob("*.py"))))
    return {b"</head>": f"<script>{script}</script>".encode(), b"</body>": f"<style>{style}</style>".encode()}


class IndexPage:
    """Makes `additions` to each page of HTML. Pages are small; everything else passes as it is."""

    def __init__(self, app: ASGIApp) -> None:
        self._app, self._additions = app, additions()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        accepted = Headers(scope=scope).get("accept", "") if scope["type"] == "http" else ""
        if not (accepted.startswith("text/html") and scope["method"] == "GET"):
            await self._app(scope, receive, send)
            return
        plain = [(name, value) for name, value in scope["headers"] if name not in _OF_ANOTHER_ANSWER]
        start: Message | None = None
        body = b""

        async def take(message: Message) -> None:
            nonlocal start, body
            if message["type"] == "http.response.start" and _is_page(message):
                start = message
            elif start is None or message["type"] != "http.response.body":
                await send(message)
            else:
                body += message.get("body", b"")
                if not message.get("more_body"):
                    whole = body
                    for end, addition in self._additions.items():
                        whole = whole.replace(end, addition + end, 1)
                    headers = MutableHeaders(raw=start["headers"])
                    headers["content-length"] = str(len(whole))
                    for name in ("etag", "last-modified"):
                        del headers[name]
                    await send({**start, "headers": headers.raw})
                    await send({"type": "http.response.body", "body": whole})

        await self._app({**scope, "headers": plain}, receive, take)


def _is_page(start: Message) -> bool:
    headers = Headers(raw=start["headers"])
    return start["status"] == 200 and headers.get("content-type", "").startswith("text/html")
