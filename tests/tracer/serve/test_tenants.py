"""The names of tenants: a file, and its errors."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from kvtrail.__main__ import main
from kvtrail.refused import Refused
from kvtrail.tracer.serve.tenants import TenantNames, read
from kvtrail.tracer.serve.watched_file import LOOK_AGAIN_S

ADAPTER = SimpleNamespace(lora_name="sql")
RED, DIGITS = "5a17c0ffee5a17c0", "0123456712345671"


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_a_file_maps_digests_to_names(tmp_path: Path) -> None:
    path = written(tmp_path / "tenants.yaml", f"{RED}: Acme GmbH\n{DIGITS}: beta  # all digits\nplain: internal\n")
    names = TenantNames(path)
    assert names.content == {RED: "Acme GmbH", DIGITS: "beta", "plain": "internal"}
    assert names.among({RED: 1, "other": 2}) == {RED: "Acme GmbH"}
    assert TenantNames().content == {}
    assert read(written(tmp_path / "empty", "")) == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- a\n- b\n", "Expected `object`, got `array`"),
        ("a: [", "while parsing"),
        ("5a17: acme\n", "Expected `str` matching regex '^([0-9a-f]{16}|plain)$' - at `key` in `$`"),
        ("5A17C0FFEE5A17C0: acme\n", "Expected `str` matching regex"),
        (f"{RED}:\n", "Expected `str` of length >= 1 - at `$[...]`"),
        (f"{RED}: [acme]\n", "Expected `str`, got `array`"),
        (f"{RED}: {'x' * 101}\n", "Expected `str` of length <= 100"),
        (f'{RED}: "a\\nb"\n', "cannot be printed"),
    ],
)
def test_a_bad_file_is_refused_with_its_name_and_the_reason(tmp_path: Path, text: str, said: str) -> None:
    path = written(tmp_path / "tenants.yaml", text)
    with pytest.raises(Refused) as refused:
        TenantNames(path)
    assert said in str(refused.value)
    assert "tenants.yaml" in str(refused.value)


def test_the_sidecar_does_not_start_with_a_bad_file(tmp_path: Path) -> None:
    path = written(tmp_path / "tenants.yaml", "5a17: acme\n")
    for command in (["serve"], ["serve", "--read-only", "--store", "clickhouse://nowhere.invalid/x"]):
        result = CliRunner().invoke(main, [*command, "--tenants", str(path)])
        assert result.exit_code == 2
        assert "Expected `str` matching regex" in " ".join(result.output.split())
    result = CliRunner().invoke(main, ["serve", "--tenants", str(tmp_path / "none")])
    assert (result.exit_code, "cannot read the tenants" in result.output) == (2, True)


def test_a_changed_file_is_read_again_and_a_bad_one_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now = [0.0]
    path = written(tmp_path / "tenants.yaml", f"{RED}: acme\n")
    names = TenantNames(path, clock=lambda: now[0])
    written(path, f"{RED}: another name\n")
    assert names.content[RED] == "acme", "it was looked at a moment ago"
    now[0] += LOOK_AGAIN_S
    assert names.content[RED] == "another name"
    written(path, "nonsense\n")
    now[0] += LOOK_AGAIN_S
    assert names.content[RED] == "another name"
    assert "its old content stays in use" in caplog.text
    os.unlink(path)
    now[0] += LOOK_AGAIN_S
    assert names.content[RED] == "another name"
