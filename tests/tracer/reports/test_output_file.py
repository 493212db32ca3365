"""Files that commands write, in a folder where others may write as well."""

from __future__ import annotations

import os
from pathlib import Path

import click
import pytest

from kvtrail.tracer.reports import output_file


def test_no_link_is_followed(tmp_path: Path) -> None:
    output, victim = tmp_path / "out.json", tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / f".out.json.{os.getpid()}").symlink_to(victim)
    output.symlink_to(victim)
    with output_file.opened(output) as file:
        file.write("ours")
    assert (output.is_symlink(), output.read_text(), victim.read_text()) == (False, "ours", "precious")


def test_a_link_to_nothing_is_a_file_that_exists(tmp_path: Path) -> None:
    (tmp_path / "out.json").symlink_to(tmp_path / "nothing")
    with pytest.raises(click.UsageError, match="already exists"):
        output_file.check(tmp_path / "out.json", force=False, sources=[tmp_path / "trace.jsonl"])
    output_file.check(tmp_path / "out.json", force=True, sources=[tmp_path / "trace.jsonl"])
