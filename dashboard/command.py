"""`kvtrail dashboard`: runs the dashboard."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from kvtrail.dashboard import palette
from kvtrail.exposure import is_local
from kvtrail.refused import Refused

DEFAULT_URL = "http://127.0.0.1:4318"
FILE = click.Path(path_type=Path, dir_okay=False, exists=True)
"""Option type of an existing file."""
TRACER_VARIABLE = "KVTRAIL_DASHBOARD_TRACER"
"""Passes the tracer's URL to the pages; users may also set it."""
TOKEN_VARIABLE = "KVTRAIL_DASHBOARD_TOKEN_FILE"
CA_VARIABLE = "KVTRAIL_DASHBOARD_TRACER_CA"
"""Pass the token file, and the CA file of the tracer's certificate, to the pages."""
TRACES_VARIABLE = "KVTRAIL_DASHBOARD_TRACES"
"""The same for the address of traces in Jaeger or Tempo; users may also set it."""
LOGIN_VARIABLE = "KVTRAIL_DASHBOARD_LOGIN_TOKEN_FILE"
"""The same for the login's token file."""
TRACE_ID = "{trace_id}"
"""The placeholder of the trace id in that address."""


@click.command()
@click.option(
    "--tracer",
    default=DEFAULT_URL,
    show_default=True,
    show_envvar=True,
    metavar="URL",
    help="The sidecar's HTTP address.",
)
@click.option(
    "--token-file",
    type=FILE,
    help="File with the token for the sidecar in its first line (`kvtrail serve --token-file`).",
)
@click.option(
    "--tracer-ca",
    type=FILE,
    help="PEM file of the CA of the sidecar's certificate, if the system does not trust it.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=8501, show_default=True, type=click.IntRange(1, 65535), help="Port to listen on.")
@click.option(
    "--traces",
    envvar=TRACES_VARIABLE,
    default="",
    metavar="TEMPLATE",
    help=f"Address of a trace in Jaeger, Tempo or Grafana, with {TRACE_ID} for its id; each request then links to it."
    f"  [env: {TRACES_VARIABLE}]",
)
@click.option(
    "--login-token-file",
    type=FILE,
    help="File of tokens, one per line: a visitor enters one of them, once in twelve hours. A token that is removed from the"
    " file stops working at once.",
)
@click.option(
    "--tls-cert",
    type=FILE,
    help="PEM file of the dashboard's certificate. Needs --tls-key.",
)
@click.option("--tls-key", type=FILE, help="PEM file of the certificate's key.")
@click.option(
    "--insecure",
    is_flag=True,
    help="Listen beyond this machine without login: everybody who can reach it sees all pages.",
)
def dashboard(
    tracer: str,
    host: str,
    port: int,
    traces: str,
    token_file: Path | None,
    tracer_ca: Path | None,
    login_token_file: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    insecure: bool,
) -> None:
    """Show live request timelines in the browser.

    Example: kvtrail dashboard --tracer http://127.0.0.1:4318 --port 8501

    Example: kvtrail dashboard --traces 'http://jaeger:16686/trace/{trace_id}'
    """
    if find_spec("streamlit") is None:
        raise Refused("`kvtrail dashboard` needs streamlit: pip install 'kvtrail[dashboard]'")
    if not tracer.startswith(("http://", "https://")):
        raise click.BadParameter(f"{tracer!r} is not an address: write http://HOST:PORT", param_hint="--tracer")
    if traces and not (traces.startswith(("http://", "https://")) and TRACE_ID in traces):
        raise click.BadParameter(f"{traces!r} is not an address with {TRACE_ID} in it", param_hint="--traces")
    if (tls_cert is None) != (tls_key is None):
        raise click.UsageError("--tls-cert and --tls-key belong together")
    if not (login_token_file or insecure or is_local(host)):
        raise Refused(
            f"on {host}, anybody who reaches this machine could read what the dashboard shows: give --login-token-file,"
            " or --insecure"
        )
    from starlette.middleware import Middleware
    from streamlit.starlette import App

    from kvtrail.dashboard.login import Login, LoginMiddleware

    middleware = [Middleware(LoginMiddleware, login=Login(login_token_file))] if login_token_file else []
    _check_port(host, port)
    scheme = "http" if tls_cert is None else "https"
    click.echo(f"Dashboard at {scheme}://{host}:{port}, reading the tracer at {tracer}. Stop it with Ctrl-C.")
    files = {TOKEN_VARIABLE: token_file, CA_VARIABLE: tracer_ca, LOGIN_VARIABLE: login_token_file}
    os.environ |= {name: str(path.absolute()) for name, path in files.items() if path is not None}
    os.environ |= {TRACER_VARIABLE: tracer, TRACES_VARIABLE: traces}
    os.environ["FORWARDED_ALLOW_IPS"] = ""  # uvicorn's: otherwise it trusts a proxy's headers for the client's address
    app = App(Path(__file__).with_name("app.py"), middleware=middleware)
    with suppress(KeyboardInterrupt):  # uvicorn raises it again after its shutdown
        app.run(config=streamlit_options(host, port, tls=(tls_cert, tls_key)))


def streamlit_options(host: str, port: int, *, tls: tuple[Path | None, Path | None] = (None, None)) -> dict[str, Any]:
    """Streamlit's options. `tls` has the files of the certificate and its key."""
    cert, key = (path and str(path.absolute()) for path in tls)
    return {
        "server.address": host,
        "server.port": port,
        "server.headless": True,
        "server.fileWatcherType": "none",
        "server.sslCertFile": cert,
        "server.sslKeyFile": key,
        "browser.gatherUsageStats": False,
        "client.toolbarMode": "viewer",
        "logger.hideWelcomeMessage": True,
        # Otherwise Streamlit prints every bare string of a page, such as a constant's docstring.
        "runner.magicEnabled": False,
        # Otherwise Streamlit collects all garbage of the process after each refresh of each tab, which took half of its time.
        "runner.postScriptGC": False,
        "theme.paddingTop": "0",
        # For both themes: a single colour would disable the dark theme.
        **palette.streamlit_options(),
    }


def _check_port(host: str, port: int) -> None:
    """Raise if the port is not free. Streamlit's own message is less clear and takes seconds."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As in servers, a port with connections in TIME_WAIT counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise click.ClickException(
                f"cannot listen on {host}:{port} ({error.strerror}). Choose another: --port"
            ) from error
