"""`kvtrail replay --against`: run a recording again against a connector, and say what came of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from kvtrail.connector.commands.needs import progress, vllm_ready
from kvtrail.tracer.replay.history import load
from kvtrail.tracer.reports import terminal


def run_against(
    traces: Sequence[Path],
    *,
    against: str,
    config: Mapping[str, Any] | None = None,
    request: str | None = None,
    as_json: bool = False,
) -> int:
    """Print what came of it; returns the exit code: 0 for the same answers or only fixes, 1 for any other difference.

    Raises:
        UnusableTrace, Unusable: with what is wrong, and the reason.
    """
    vllm_ready("kvtrail replay --against")
    from kvtrail.connector.known.environment import Unusable
    from kvtrail.connector.simulate.rerun.outcome import Outcome
    from kvtrail.connector.simulate.rerun.report import report
    from kvtrail.connector.simulate.rerun.rerun import rerun

    with terminal.progress(traces) as on_bytes:
        history = load(traces, on_bytes=on_bytes)
    with progress("running again") as on_calls:
        result = rerun(history, against=against, config=config, request=request, progress=on_calls)
    terminal.echo(json.dumps(result.as_dict(), indent=2) if as_json else report(result, columns=terminal.width()))
    for file, line, reason in history.unreadable:
        click.echo(f"{file}:{line}: not read: {reason}", err=True)
    if not (result.outcomes[Outcome.SAME] or result.outcomes[Outcome.DIFFERENT]):
        raise Unusable("nothing could be compared")
    return 1 if result.differs else 0
