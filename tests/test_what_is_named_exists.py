"""What hints, runbooks, pages and messages name is there: options, variables, commands, pages, make targets.

A reader of a finding runs an engine, a reader of a runbook's page about an alert a sidecar: an option is real where it is
one of what they run, or of a command that the sentence names.
"""

from __future__ import annotations

import ast
import importlib.util
import re
from dataclasses import fields
from functools import cache
from pathlib import Path

import click
import pytest
from opentelemetry import environment_variables
from opentelemetry.sdk import environment_variables as sdk_environment_variables

from kvtrail.__main__ import COMMANDS, main
from kvtrail.connector.recording import request_names
from kvtrail.connector.registration import TRACE
from kvtrail.connector.settings import Settings
from kvtrail.tracer.commands import configuration
from kvtrail.tracer.rules import pages

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "runbooks").glob("*.md")])
SOURCES = sorted(path for part in ("tracer", "connector", "dashboard") for path in (ROOT / part).rglob("*.py"))
VLLM = Path(importlib.util.find_spec("vllm").submodule_search_locations[0])  # type: ignore[union-attr,index]
OTHERS_OPTIONS = {
    "--enable-feature",  # Prometheus
    "--no-deps", "--wheel", "--dry-run", "--ignore-installed", "--report", "--constraint", "--require-hashes",
    "--requirement", "--quiet",  # pip and build
    "--file", "--target", "--build-context", "--build-arg", "--provenance", "--sbom", "--output",  # docker buildx
    "--radix-cache-backend",  # SGLang
}  # fmt: skip
OTHERS_VARIABLES = {
    "LMCACHE_DISABLE_BANNER", "LMCACHE_LOG_LEVEL", "LMCACHE_SAVE_UNFULL_CHUNK", "LMCACHE_TRACK_USAGE",
    "LMCACHE_USE_UPSTREAM_MP",
}  # fmt: skip
OF_TESTS = {"KVTRAIL_CONNECTOR"}
"""Read by the files that `kvtrail minimize --pytest` writes."""
_VARIABLE = re.compile(r"\b(?:KVTRAIL|OTEL|VLLM|LMCACHE)_[A-Z0-9_]*[A-Z0-9]\b")
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")


@cache
def command(name: str) -> click.Command:
    found = main.get_command(click.Context(main), name)  # type: ignore[attr-defined]
    assert found is not None, name
    return found


@cache
def options(name: str) -> frozenset[str]:
    return frozenset(each for p in command(name).params for each in (*p.opts, *p.secondary_opts)) | {
        "--help",
        "--version",
    }


@cache
def variables() -> frozenset[str]:
    """Every variable that somebody reads: a traced connector, a command, OpenTelemetry, vLLM, LMCache."""
    ours = {TRACE, *(f"KVTRAIL_{field.name.upper()}" for field in fields(Settings))} | OF_TESTS
    ours |= {configuration.VARIABLE, request_names.VARIABLE}
    for name in COMMANDS:
        for parameter in command(name).params:
            ours.add(f"KVTRAIL_{name.upper()}_{str(parameter.name).upper()}")
            ours |= {parameter.envvar} if isinstance(parameter.envvar, str) else set(parameter.envvar or ())
    theirs = {name for module in (environment_variables, sdk_environment_variables) for name in vars(module)}
    vllms = set(_VARIABLE.findall((VLLM / "envs.py").read_text()))
    return frozenset(ours | theirs | vllms | OTHERS_VARIABLES)


@cache
def benchmark_options(program: str) -> frozenset[str]:
    """The options of a program in benchmarks/."""
    source = (ROOT / "benchmarks" / program).read_text()
    return frozenset(re.findall(r'add_argument\(\s*"(--[a-z-]+)"', source))


@cache
def vllm_has(option: str) -> bool:
    """Whether vLLM's server takes an option. It names them after the fields of its configuration."""
    field = option.removeprefix("--").removeprefix("no-").replace("-", "_")
    files = (VLLM / "engine" / "arg_utils.py", *(VLLM / "entrypoints").rglob("cli_args.py"))
    return any(re.search(rf"\b{field}\b", file.read_text()) for file in files)


def said_of_a_rule(rule: str) -> str:
    page = pages.page(rule)
    return " ".join([page.hint, page.invariant, page.explanation, *page.explanations.values()])


def paragraphs(page: Path) -> list[str]:
    return re.split(r"\n\s*\n", page.read_text())


@cache
def texts(source: Path) -> list[str]:
    """The texts of a module: its docstrings and the strings that it prints, those that are put together as one."""

    def value(node: ast.AST) -> str:
        if isinstance(node, ast.Constant):
            return str(node.value) if isinstance(node.value, str) else ""
        return "".join(value(each) for each in node.values) if isinstance(node, ast.JoinedStr) else ""

    return [text for node in ast.walk(ast.parse(source.read_text())) if (text := value(node))]


def commands_in(text: str) -> list[tuple[str, str]]:
    """The calls of `kvtrail` that a text shows, each with its arguments."""
    return re.findall(r"(?:^|[`$=\s/])kvtrail ([a-z]+)((?:[ \t]+[^\s`|;&#]+)*)", text, flags=re.MULTILINE)


def wrong_options(text: str, *, here: frozenset[str] = frozenset(), where_vllm_runs: bool = True) -> list[str]:
    """The options of a text that neither a command which it names has, nor vLLM, nor what is run `here`."""
    known = here.union(*(options(name) for name, _ in commands_in(text) if name in COMMANDS)) | OTHERS_OPTIONS
    for program in {path.name for path in (ROOT / "benchmarks").glob("*.py")} & set(re.findall(r"\w+\.py", text)):
        known |= benchmark_options(program)
    return [o for o in _OPTION.findall(text) if o not in known and not (where_vllm_runs and vllm_has(o))]


def unknown_variables(text: str) -> list[str]:
    return [name for name in _VARIABLE.findall(text) if name not in variables()]


@pytest.mark.parametrize("rule", pages.files())
def test_a_hint_names_what_an_engine_takes(rule: str) -> None:
    said = said_of_a_rule(rule)
    assert not wrong_options(said)
    assert not unknown_variables(said)
    for paragraph in paragraphs(pages.files()[rule]):
        assert not wrong_options(paragraph), paragraph


def test_alerts_name_what_an_engine_or_a_sidecar_takes() -> None:
    for page in (ROOT / "docs" / "runbooks").glob("Kvtrail*.md"):
        for paragraph in paragraphs(page):
            assert not wrong_options(paragraph, here=options("serve")), (page.name, paragraph)


def test_pages_name_options_that_some_command_has() -> None:
    every = frozenset[str]().union(*(options(name) for name in COMMANDS))
    for page in PAGES:
        for paragraph in paragraphs(page):
            assert not wrong_options(paragraph, here=every), (page.name, paragraph)


def test_every_variable_that_is_named_is_read_by_somebody() -> None:
    for page in PAGES:
        assert not unknown_variables(page.read_text()), page.name
    for source in SOURCES:
        for text in texts(source):
            assert not unknown_variables(text), (source.name, text)


def test_every_call_of_kvtrail_that_is_shown_could_be_made() -> None:
    shown = [(page, text) for page in PAGES for text in [page.read_text()]]
    shown += [(source, text) for source in SOURCES for text in texts(source)]
    for where, text in shown:
        for name, arguments in commands_in(text):
            if name not in COMMANDS:
                assert not _OPTION.search(arguments), (where.name, name, arguments)
                continue
            given = [each.partition("=")[0] for each in arguments.split() if _OPTION.match(each)]
            assert set(given) <= options(name), (where.name, name, arguments)


def test_every_page_that_a_message_names_is_there() -> None:
    for source in SOURCES:
        for text in texts(source):
            for page in re.findall(r"\bdocs/[\w/-]+\.md\b", text):
                assert (ROOT / page).is_file(), (source.name, page)


def test_every_make_target_that_is_named_is_there() -> None:
    targets = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    for page in [*PAGES, ROOT / "CONTRIBUTING.md"]:
        for target in re.findall(
            r"(?:`make |^make (?=[\w-]+(?: ARGS| +#|$)))([a-z][\w-]*)", page.read_text(), flags=re.MULTILINE
        ):
            assert target in targets, (page.name, target)
