"""Options and preparations shared by the commands that run vLLM."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import click

from kvtrail.refused import Refused


def vllm_ready(command: str) -> None:
    """Import vLLM in this process, with its logging turned down. A connector in the current folder can be imported, too.

    Raises:
        Refused: it is not installed; the text says so.
    """
    from kvtrail.connector.simulate import tiny_model

    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    tiny_model.prepare_environment()
    if (here := os.getcwd()) not in sys.path:
        sys.path.append(here)  # last, so that a file here hides no package
    try:
        import vllm  # noqa: F401
    except ImportError as missing:
        raise Refused(
            f"`{command}` runs vLLM's scheduler, and {missing.name} is not installed: install vLLM for your machine"
        ) from missing


def _json_object(context: click.Context, parameter: click.Parameter, text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        value = json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"it is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise click.BadParameter("it must be a JSON object, as in kv_connector_extra_config")
    return value


CONFIG = click.option(
    "--config",
    callback=_json_object,
    metavar="JSON",
    help="The connector's kv_connector_extra_config. [default: the recorded numbers; for check, random settings of"
    " connectors that kvtrail knows]",
)
RECORDER = click.option(
    "--recorder", metavar="ID", help="The recorder to drive again, or its engine, where the trace has several."
)
