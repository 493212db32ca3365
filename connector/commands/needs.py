"""What the commands that run vLLM share: vLLM itself, ready to be used, and options."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

_DRAWN_EVERY = 200
"""Steps, or calls, after which a progress bar is drawn anew."""


def vllm_ready(command: str) -> None:
    """Import vLLM, quietly, in this process.

    Raises:
        click.ClickException: it is not installed; the text says so.
    """
    from kvtrail.connector.simulate import tiny_model

    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    tiny_model.prepare_environment()
    try:
        import vllm  # noqa: F401
    except ImportError as missing:
        raise click.ClickException(
            f"`{command}` runs vLLM's scheduler, and {missing.name} is not installed: install vLLM for your machine"
        ) from missing


@contextmanager
def progress(label: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar, where somebody watches; it hears how much is done, and of how much, which is known only on the way."""
    if not sys.stderr.isatty():
        yield lambda done, of: None
        return
    with click.progressbar(length=0, label=label, file=sys.stderr) as bar:

        def show(done: int, of: int) -> None:
            bar.length = of
            if done % _DRAWN_EVERY == 0 or done == of:
                bar.update(max(0, min(done, of) - bar.pos))

        yield show


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
