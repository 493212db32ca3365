"""Prints the documentation page of the rules."""

from kvtrail.tracer.rules import as_markdown

print(as_markdown(), end="")
