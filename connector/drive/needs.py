"""What the commands that run vLLM share: vLLM itself, ready to be used, and options."""

from __future__ import annotations

import json
import os
from typing import Any

import click


def vllm_ready(command: str) -> None:
    """Import vLLM, quietly, in this process.

    Raises:
        click.ClickException: it is not installed; the text says so.
    """
    from connector.drive import tiny

    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    tiny.prepare_environment()
    try:
        import vllm  # noqa: F401
    except ImportError as missing:
        raise click.ClickException(
            f"`{command}` runs vLLM's scheduler, and {missing.name} is not installed: install vLLM for your machine"
        ) from missing


def as_json_object(context: click.Context, parameter: click.Parameter, text: str | None) -> dict[str, Any] | None:
    """An option's value: a JSON object, as in `kv_connector_extra_config`."""
    if text is None:
        return None
    try:
        value = json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"it is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise click.BadParameter("it must be a JSON object, as in kv_connector_extra_config")
    return value
