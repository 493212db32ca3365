"""A ClickHouse that is reached over HTTP: its own engine (chDB) behind the few words of its protocol that its client speaks.

    python clickhouse_server.py PORT FOLDER

It stands in for a server where a test ends it and starts it again. It knows no users, no settings and no compression.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import chdb


class Engine:
    """The engine, which takes one query at a time here."""

    def __init__(self, folder: Path) -> None:
        self._connection: Any = chdb.connect(str(folder))  # type: ignore[no-untyped-call]
        self._lock = threading.Lock()

    def answer(self, query: bytes, options: dict[str, str]) -> bytes:
        """The bytes of the answer. Raises RuntimeError with ClickHouse's own words."""
        parameters: dict[str, Any] = {
            name.removeprefix("param_"): value for name, value in options.items() if name.startswith("param_")
        }
        with self._lock:
            if database := options.get("database"):
                self._connection.query(f"USE `{database}`")
            head, _, data = query.partition(b"\n")
            if head.startswith(b"INSERT") and data:
                return self._insert(head.decode(), data)
            text = query.decode().removesuffix("\n FORMAT Native")
            form = "TSV" if text == query.decode() else "Native"
            return bytes(self._connection.query(text, form, params=parameters).bytes())

    def _insert(self, head: str, data: bytes) -> bytes:
        with tempfile.NamedTemporaryFile() as file:
            file.write(data)
            file.flush()
            self._connection.query(head.replace("FORMAT Native", f"FROM INFILE '{file.name}' FORMAT Native"))
        return b""


def handler(engine: Engine) -> type[BaseHTTPRequestHandler]:
    """Answers from this engine."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            options = dict(parse_qsl(urlsplit(self.path).query, keep_blank_values=True))
            query = options.pop("query", "").encode()
            body = self._body()
            try:
                answer, status = engine.answer(query + b"\n" + body if query else body, options), 200
            except Exception as error:
                answer, status = str(error).encode(), 500
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        do_GET = do_POST

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length", 0)))
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    return Handler


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), handler(Engine(Path(sys.argv[2])))).serve_forever()
