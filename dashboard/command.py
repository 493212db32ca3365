"""`kvtrail dashboard`."""

from __future__ import annotations

import os
import socket
import sys
from importlib.util import find_spec
from pathlib import Path

import click

from kvtrail.dashboard import palette
from kvtrail.exposure import is_local
from kvtrail.refused import Refused

DEFAULT_URL = "http://127.0.0.1:4318"
FILE = click.Path(path_type=Path, dir_okay=False, exists=True)
"""A file that exists."""
TRACER_VARIABLE = "KVTRAIL_DASHBOARD_TRACER"
"""Passes the tracer's address to the pages, which run in Streamlit's process; users may set it, too."""
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
    if login_token_file:
        _check_login(login_token_file)
    elif not (insecure or is_local(host)):
        raise Refused(
            f"on {host}, anybody who reaches this machine could read what the dashboard shows: give --login-token-file,"
            " or --insecure"
        )
    _check_port(host, port)
    scheme = "http" if tls_cert is None else "https"
    click.echo(f"Dashboard at {scheme}://{host}:{port}, reading the tracer at {tracer}. Stop it with Ctrl-C.")
    # Replaces this process, so that signals reach Streamlit itself and nothing is left running.
    files = {TOKEN_VARIABLE: token_file, CA_VARIABLE: tracer_ca, LOGIN_VARIABLE: login_token_file}
    environment = {**os.environ, TRACER_VARIABLE: tracer, TRACES_VARIABLE: traces}
    environment["FORWARDED_ALLOW_IPS"] = ""  # uvicorn's: otherwise it trusts a proxy's headers for the client's address
    environment |= {name: str(path.absolute()) for name, path in files.items() if path is not None}
    os.execve(sys.executable, arguments(host, port, tls=(tls_cert, tls_key)), environment)


def arguments(host: str, port: int, *, tls: tuple[Path | None, Path | None] = (None, None)) -> list[str]:
    """Streamlit's command line. `tls` has the files of the certificate and its key."""
    options = {
        "server.address": host,
        "server.port": str(port),
        "server.headless": "true",
        "server.fileWatcherType": "none",
        "browser.gatherUsageStats": "false",
        "client.toolbarMode": "viewer",
        "logger.hideWelcomeMessage": "true",
        # Otherwise Streamlit prints every bare string of a page, such as a constant's docstring.
        "runner.magicEnabled": "false",
        # Otherwise Streamlit collects all garbage of the process after each refresh of each tab, which took half of its time.
        "runner.postScriptGC": "false",
        "theme.paddingTop": "0",
        # For both themes: a single colour would disable the dark theme.
        **palette.streamlit_options(),
    }
    names = ("server.sslCertFile", "server.sslKeyFile")
    options |= {name: str(path.absolute()) for name, path in zip(names, tls, strict=True) if path is not None}
    app = Path(__file__).with_name("server.py")
    flags = [text for name, value in options.items() for text in (f"--{name}", value)]
    return [sys.executable, "-m", "kvtrail.dashboard.run", "run", str(app), *flags]


def _check_login(token_file: Path) -> None:
    """Raise if the file admits nobody."""
    from kvtrail.dashboard.login import BadLogin, Login

    try:
        Login(token_file)
    except BadLogin as error:
        raise Refused(f"{error}") from error


def _check_port(host: str, port: int) -> None:
    """Raise if the port is not free. Streamlit's own message is less clear and takes seconds."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As servers do: a port with connections in TIME_WAIT counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise click.ClickException(
                f"cannot listen on {host}:{port} ({error.strerror}). Choose another: --port"
            ) from error
