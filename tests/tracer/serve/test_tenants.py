"""The names of tenants: a file, its errors, and the command that computes digests."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from kvtrail.__main__ import main
from kvtrail.connector.tracing.identity import identity_of
from kvtrail.tracer.model.tenants import digest_of
from kvtrail.tracer.serve.tenants import LOOK_AGAIN_S, BadTenants, TenantNames, read

ADAPTER = SimpleNamespace(lora_name="sql")
RED, DIGITS = "5a17c0ffee5a17c0", "0123456712345671"


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_a_file_maps_digests_to_names(tmp_path: Path) -> None:
    path = written(tmp_path / "tenants.yaml", f"{RED}: Acme GmbH\n{DIGITS}: beta  # all digits\nplain: internal\n")
    names = TenantNames(path)
    assert (names.of(RED), names.of(DIGITS), names.of("plain"), names.of("b10eb10eb10eb10e")) == (
        "Acme GmbH", "beta", "internal", None,
    )  # fmt: skip
    assert names.among({RED: 1, "other": 2}) == {RED: "Acme GmbH"}
    assert TenantNames().of(RED) is None
    assert read(written(tmp_path / "empty", "")) == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- a\n- b\n", "must be lines of `DIGEST: NAME`"),
        ("a: [", "are no YAML"),
        ("5a17: acme\n", "'5a17' is no digest of a tenant, which has 16 digits from 0 to f"),
        ("5A17C0FFEE5A17C0: acme\n", "is no digest of a tenant"),
        (f"{RED}:\n", f"the name of {RED} must be a text of 1 to 100 characters"),
        (f"{RED}: [acme]\n", "must be a text"),
        (f"{RED}: {'x' * 101}\n", "must be a text"),
        (f'{RED}: "a\\nb"\n', "must be a text"),
    ],
)
def test_a_bad_file_is_refused_with_its_name_and_the_reason(tmp_path: Path, text: str, said: str) -> None:
    path = written(tmp_path / "tenants.yaml", text)
    with pytest.raises(BadTenants) as refused:
        TenantNames(path)
    assert said in str(refused.value)
    assert "tenants.yaml" in str(refused.value)


def test_the_sidecar_does_not_start_with_a_bad_file(tmp_path: Path) -> None:
    path = written(tmp_path / "tenants.yaml", "5a17: acme\n")
    for command in (["serve"], ["serve", "--read-only", "--store", "clickhouse://nowhere.invalid/x"]):
        result = CliRunner().invoke(main, [*command, "--tenants", str(path)])
        assert result.exit_code == 2
        assert "'5a17' is no digest" in result.output
    result = CliRunner().invoke(main, ["serve", "--tenants", str(tmp_path / "none")])
    assert (result.exit_code, "cannot read the tenants" in result.output) == (2, True)


def test_a_changed_file_is_read_again_and_a_bad_one_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now = [0.0]
    path = written(tmp_path / "tenants.yaml", f"{RED}: acme\n")
    names = TenantNames(path, clock=lambda: now[0])
    written(path, f"{RED}: another name\n")
    assert names.of(RED) == "acme", "it was looked at a moment ago"
    now[0] += LOOK_AGAIN_S
    assert names.of(RED) == "another name"
    written(path, "nonsense\n")
    now[0] += LOOK_AGAIN_S
    assert names.of(RED) == "another name"
    assert "the names stay as they were" in caplog.text
    os.unlink(path)
    now[0] += LOOK_AGAIN_S
    assert names.of(RED) == "another name"


@pytest.mark.parametrize(
    ("arguments", "salt", "request_of"),
    [
        ([], "s3cret\n", SimpleNamespace(lora_request=None, cache_salt="s3cret")),
        (["--adapter", "sql"], "s3cret", SimpleNamespace(lora_request=ADAPTER, cache_salt="s3cret")),
        (["--adapter", "sql", "--no-salt"], "", SimpleNamespace(lora_request=ADAPTER, cache_salt=None)),
    ],
)  # fmt: skip
def test_the_command_prints_the_digest_that_a_recorder_records(
    arguments: list[str], salt: str, request_of: SimpleNamespace
) -> None:
    result = CliRunner().invoke(main, ["tenant", *arguments], input=salt)
    assert (result.exit_code, result.output) == (0, f"{identity_of(request_of)}\n")
    assert result.output != CliRunner().invoke(main, ["tenant"], input="another").output


def test_without_salt_and_adapter_the_tenant_is_plain() -> None:
    assert digest_of("", "") == "plain"
    result = CliRunner().invoke(main, ["tenant"], input="\n")
    assert (result.exit_code, "such requests are the tenant `plain`" in result.output) == (2, True)
