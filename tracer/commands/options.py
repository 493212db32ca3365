"""What several commands check alike about their options."""

from __future__ import annotations

import click

from kvtrail.tracer.detect.rules import Rule, all_rules


def rule_named(name: str) -> Rule:
    """The rule with this id.

    Raises:
        click.BadParameter: there is none; the text lists the rules.
    """
    known = {rule.id: rule for rule in all_rules()}
    if name not in known:
        raise click.BadParameter(f"there is no rule {name!r}. The rules are: {', '.join(known)}")
    return known[name]


def known_rule(context: click.Context, parameter: click.Parameter, name: str | None) -> str | None:
    """Callback of an option that names a rule: the name, once it is known to be one."""
    return None if name is None else rule_named(name).id
