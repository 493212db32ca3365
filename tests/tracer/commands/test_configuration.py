"""Options from a file, from the environment and from the command line: which counts, and what is said of a wrong one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from kvtrail.__main__ import main


def run(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(main, arguments, env=environment, catch_exceptions=False)


def written(folder: Path, text: str) -> str:
    path = folder / "kvtrail.yaml"
    path.write_text(text)
    return str(path)


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The options that `kvtrail serve` would run with."""
    options: dict[str, Any] = {}

    def serve(*, receiving: Any, **others: Any) -> None:
        options.update(others, grpc_port=receiving.grpc_port, retain_hours=receiving.retain_hours)

    monkeypatch.setattr("kvtrail.tracer.serve.server.serve", serve)
    return options


def test_the_command_line_comes_first_then_the_environment_then_the_file(tmp_path: Path, given: dict[str, Any]) -> None:
    store = tmp_path / "other.db"
    path = written(
        tmp_path,
        f"serve:\n  store: {store}\n  http-port: 1001\n  grpc_port: 1002\n  retain-hours: 24\n  allow-host: [a, b]\n",
    )
    result = run("serve", "--http-port", "1003", KVTRAIL_CONFIG=path, KVTRAIL_SERVE_GRPC_PORT="2002")
    assert result.exit_code == 0, result.output
    assert (given["http_port"], given["grpc_port"], given["retain_hours"], given["host"]) == (
        1003,
        2002,
        24,
        "127.0.0.1",
    )
    assert (given["store"], given["allow_host"]) == (store, ("a", "b"))


def test_of_what_may_be_given_several_times_one_needs_no_list(tmp_path: Path, given: dict[str, Any]) -> None:
    """As in files from before there were roles; the environment separates them as paths."""
    path = written(tmp_path, "serve:\n  token-file: /a b\n  allow-host: one\n")
    run("--config", path, "serve")
    assert ([*map(str, given["token_file"])], given["allow_host"]) == (["/a b"], ("one",))
    run("serve", KVTRAIL_SERVE_TOKEN_FILE="write=/a b:/c")
    assert [*map(str, given["token_file"])] == ["write=/a b", "/c"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("serve:\n  no-such: 1\n", "serve has no option 'no-such'; known: allow-host, "),
        ("sevre:\n  host: x\n", "there is no command 'sevre'; known: audit, check, "),
        ("- serve\n", "must have a section for each command"),
        ("serve: 4318\n", "serve must have options with values"),
        ("serve: {host: [\n", "is not YAML: while parsing"),
        ("serve:\n  http-port: many\n", "'many' is not a valid integer range (in "),
        ("serve:\n  retain-hours: -1\n", "-1.0 is not in the range 0.01<=x<=1000000 (in "),
    ],
)
def test_what_is_wrong_is_named_with_the_file(tmp_path: Path, text: str, said: str) -> None:
    path = written(tmp_path, text)
    result = run("--config", path, "serve")
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())
    assert path in result.output.replace("\n", "")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    result = run("--config", str(tmp_path / "none.yaml"), "serve")
    assert (result.exit_code, "No such file" in result.output) == (2, True)


def test_options_are_shown_with_their_sources(tmp_path: Path) -> None:
    path = written(tmp_path, "serve:\n  http-port: 1001\n  grpc_port: 1002\n  retain-hours: 24\n  allow-host: [a, b]\n")
    result = run("config", "serve", KVTRAIL_CONFIG=path, KVTRAIL_SERVE_GRPC_PORT="2002")
    assert result.exit_code == 0, result.output
    said = yaml.safe_load(result.output)["serve"]
    assert (said["http-port"], said["grpc-port"], said["retain-hours"], said["host"]) == (1001, 2002, 24, "127.0.0.1")
    assert said["allow-host"] == ["a", "b"]
    assert "http-port: 1001  # from the file" in result.output
    assert "grpc-port: 2002  # from the environment" in result.output
    assert 'host: "127.0.0.1"\n' in result.output


def test_what_is_shown_can_be_kept_as_the_file(tmp_path: Path) -> None:
    shown = run("config", "serve", KVTRAIL_SERVE_NICE="7").output
    again = run("--config", written(tmp_path, shown), "config", "serve")
    assert again.exit_code == 0, again.output
    assert yaml.safe_load(again.output) == yaml.safe_load(shown)
    assert yaml.safe_load(shown)["serve"]["nice"] == 7
