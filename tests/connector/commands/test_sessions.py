"""What the commands that run a session of `check` share."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from kvtrail.connector.commands.sessions import own_folder


def test_no_session_writes_into_the_folder_of_an_earlier_one(tmp_path: Path) -> None:
    wanted = tmp_path / "kvtrail-check"
    names = []
    for _ in range(3):
        with own_folder(wanted) as folder:
            (folder / "report.json").write_text("{}")
        names.append(folder.name)
    assert names == ["kvtrail-check", "kvtrail-check-2", "kvtrail-check-3"]


def test_an_existing_folder_without_a_report_is_used_and_stays(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with own_folder(tmp_path) as folder:
        assert folder == tmp_path
    assert (tmp_path / "notes.txt").exists()


def test_a_session_that_writes_nothing_leaves_no_folder(tmp_path: Path) -> None:
    with own_folder(tmp_path / "new" / "one") as folder:
        assert folder.is_dir()
    assert not folder.exists()


def test_a_folder_that_cannot_be_written_to_ends_the_command_before_the_session(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(click.exceptions.Exit) as ended, own_folder(tmp_path / "file" / "folder"):
        pytest.fail("the session began")
    assert ended.value.exit_code == 2
    assert f"Error: {tmp_path / 'file' / 'folder'}: " in capsys.readouterr().err
