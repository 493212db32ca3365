"""Who may see the pages: the real dashboard as a process, with a token, and over TLS."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme
from click.testing import CliRunner
from processes import SLOW_S, dashboard
from starlette.requests import Request
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from kvtrail.dashboard.command import dashboard as command
from kvtrail.dashboard.login import (
    COOKIE,
    COOKIE_LIFETIME_S,
    FAILURES_S,
    MAX_FAILURES,
    Login,
    LoginMiddleware,
)
from kvtrail.refused import Refused

NO_TRACER = "http://127.0.0.1:9"
TOKEN = "a-token"


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("logins") / "tokens"
    path.write_text(f"# of the team\nother\n{TOKEN}\n")
    return path


@pytest.fixture(scope="module")
def with_token(tokens: Path) -> Iterator[str]:
    with dashboard(tokens.parent, NO_TRACER, "--login-token-file", str(tokens)) as url:
        yield url


def stream_opens(url: str, **headers: str) -> bool:
    """Whether the websocket over which Streamlit sends its pages opens."""
    address = f"ws://{url.partition('://')[2]}/_stcore/stream"
    try:
        with connect(address, additional_headers=headers, open_timeout=SLOW_S, proxy=None):
            return True
    except InvalidStatus:
        return False


def logged_in(url: str, token: str, wanted: str = "/", **options: Any) -> httpx.Response:
    return httpx.post(f"{url}/login", data={"token": token, "next": wanted}, timeout=SLOW_S, **options)


def test_nothing_is_shown_before_somebody_has_logged_in(with_token: str) -> None:
    for path in (
        "/",
        "/requests?from=1",
        "/_stcore/host-config",
        "/media/x",
        "/login",
        "//_stcore/health",
        "/_stcore/metrics",
    ):
        answer = httpx.get(f"{with_token}{path}", timeout=SLOW_S)
        assert answer.status_code == 401, path
        assert '<input type="password" name="token"' in answer.text
    assert 'value="/requests?from=1"' in httpx.get(f"{with_token}/requests?from=1", timeout=SLOW_S).text
    assert httpx.get(f"{with_token}/_stcore/health", timeout=SLOW_S).status_code == 200
    assert not stream_opens(with_token)


def test_a_token_opens_it_and_a_cookie_stands_for_it(with_token: str) -> None:
    refused = logged_in(with_token, "no-token")
    assert refused.status_code == 401
    assert "set-cookie" not in refused.headers
    answer = logged_in(with_token, TOKEN, "/requests?from=1")
    assert (answer.status_code, answer.headers["location"]) == (303, "/requests?from=1")
    assert {"HttpOnly", "SameSite=lax"} <= set(answer.headers["set-cookie"].split("; "))
    cookie = {"cookie": f"{COOKIE}={answer.cookies[COOKIE]}"}
    assert TOKEN not in cookie["cookie"]
    assert "streamlit" in httpx.get(f"{with_token}/", headers=cookie, timeout=SLOW_S).text.lower()
    assert stream_opens(with_token, **cookie)
    assert stream_opens(with_token, authorization=f"Bearer {TOKEN}")
    assert (
        httpx.get(f"{with_token}/logout", headers=cookie, timeout=SLOW_S)
        .headers["set-cookie"]
        .startswith(f'{COOKIE}="";')
    )


def test_a_token_that_is_taken_out_opens_nothing_any_more(with_token: str, tokens: Path) -> None:
    cookie = {"cookie": f"{COOKIE}={logged_in(with_token, TOKEN).cookies[COOKIE]}"}
    before = tokens.read_text()
    try:
        tokens.write_text("other\n")
        assert httpx.get(f"{with_token}/", headers=cookie, timeout=SLOW_S).status_code == 401
        tokens.unlink()
        assert logged_in(with_token, TOKEN).status_code == 401
    finally:
        tokens.write_text(before)
    assert httpx.get(f"{with_token}/", headers=cookie, timeout=SLOW_S).status_code == 200


def test_it_is_served_over_tls(tmp_path: Path, tokens: Path) -> None:
    authority = trustme.CA()
    issued, ca, cert, key = authority.issue_cert("127.0.0.1"), *(tmp_path / name for name in ("ca", "cert", "key"))
    authority.cert_pem.write_to_path(ca)
    issued.cert_chain_pems[0].write_to_path(cert)
    issued.private_key_pem.write_to_path(key)
    files = ("--tls-cert", str(cert), "--tls-key", str(key), "--login-token-file", str(tokens))
    with dashboard(tmp_path, NO_TRACER, *files, ca=ca) as url:
        answer = logged_in(url, TOKEN, verify=ssl.create_default_context(cafile=ca))
        assert "Secure" in answer.headers["set-cookie"]
        with pytest.raises(httpx.ConnectError):
            httpx.get(url, timeout=SLOW_S)


def asked(cookie: str = "", client: str = "192.0.2.1", **headers: str) -> dict[str, Any]:
    """The scope of a request."""
    given = {**headers, "cookie": f"{COOKIE}={cookie}"}
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in given.items()]
    return dict(Request({"type": "http", "headers": raw, "client": (client, 1)}).scope)


def test_a_cookie_lasts_twelve_hours_and_cannot_be_guessed(tokens: Path) -> None:
    now_s = 1_000_000.0
    login = Login(tokens, clock=lambda: now_s)
    cookie = login.cookie_for(TOKEN)
    assert cookie is not None
    assert login.admits(asked(cookie))
    for each in ("", ".", TOKEN, cookie[:-1], f"{cookie}0", "²", "é" * 5000):
        assert not login.admits({**asked(), "headers": [(b"cookie", f"{COOKIE}={each}".encode())]}), each
    now_s += COOKIE_LIFETIME_S + 1
    assert not login.admits(asked(cookie))


@pytest.mark.parametrize("wanted", ["//evil.test", "https://evil.test", "/\\evil.test", "/\nx", "", "evil"])
def test_the_login_never_redirects_to_another_site(with_token: str, wanted: str) -> None:
    assert logged_in(with_token, TOKEN, wanted).headers["location"] == "/"


def test_a_form_without_end_is_not_read(with_token: str) -> None:
    assert logged_in(with_token, "x" * 100_000).status_code == 413


def test_what_is_asked_for_is_shown_as_text(with_token: str) -> None:
    page = logged_in(with_token, "no", '/"><script>alert(1)</script>').text
    assert "<script>" not in page


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--login-token-file", "/dev/null"), ""),
        (("--tls-key", __file__), "belong together"),
    ],
)
def test_a_login_that_cannot_work_is_refused(options: tuple[str, ...], said: str) -> None:
    result = CliRunner().invoke(command, ["--host", "0.0.0.0", *options])
    assert result.exit_code in (1, 2)
    assert said in result.output


def test_a_file_without_a_token_admits_no_user(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("# none\n")
    with pytest.raises(Refused, match="holds no token"):
        Login(tmp_path / "tokens")


def test_who_gives_wrong_tokens_has_to_wait(tokens: Path) -> None:
    now_s = 1_000_000.0
    login = Login(tokens, clock=lambda: now_s)
    cookie = login.cookie_for(TOKEN, "192.0.2.1")
    for number in range(MAX_FAILURES // 2):
        assert login.cookie_for(f"guess {number}", "192.0.2.1") is None
        assert not login.admits(asked(client="192.0.2.1", authorization=f"Bearer guess {number}"))
    assert login.must_wait("192.0.2.1")
    assert login.cookie_for(TOKEN, "192.0.2.1") is None
    assert not login.admits(asked(client="192.0.2.1", authorization=f"Bearer {TOKEN}"))
    assert login.admits(asked(cookie or "", client="192.0.2.1")), "who is logged in stays so"
    assert login.cookie_for(TOKEN, "192.0.2.2") is not None
    now_s += FAILURES_S + 1
    assert login.cookie_for(TOKEN, "192.0.2.1") is not None


def test_logging_out_ends_the_session_and_no_other(tokens: Path) -> None:
    login = Login(tokens, clock=lambda: 1_000_000.0)
    mine, other = login.cookie_for(TOKEN) or "", login.cookie_for(TOKEN) or ""
    taken: list[str] = []

    async def stream(scope: Any, receive: Any, send: Any) -> None:
        while (message := await receive())["type"] != "websocket.disconnect":
            taken.append(message["text"])
            login.log_out(mine)

    async def said() -> Any:
        return {"type": "websocket.receive", "text": "a click"}

    scope = {**asked(mine), "type": "websocket"}
    asyncio.run(LoginMiddleware(stream, login)(scope, said, None))  # type: ignore[arg-type]
    assert taken == ["a click"], "an open page is closed, too"
    assert not login.admits(asked(mine))
    assert login.admits(asked(other))


def test_a_cookie_is_worth_nothing_after_the_logout(with_token: str) -> None:
    cookie = {"cookie": f"{COOKIE}={logged_in(with_token, TOKEN).cookies[COOKIE]}"}
    assert httpx.get(with_token, headers=cookie, timeout=SLOW_S).status_code == 200
    httpx.get(f"{with_token}/logout", headers=cookie, timeout=SLOW_S)
    assert httpx.get(with_token, headers=cookie, timeout=SLOW_S).status_code == 401
