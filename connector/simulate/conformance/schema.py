"""The JSON schema of the report, made of its types: `docs/conformance/report.schema.json`."""

from __future__ import annotations

import json
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

from kvtrail.connector.simulate.conformance.report import SCHEMA_VERSION, Report

_PLAIN = {str: "string", bool: "boolean", int: "integer", float: "number", NoneType: "null"}


def schema() -> dict[str, Any]:
    """The schema, of draft 2020-12. Nothing may be missing in a report, and nothing may be more."""
    made = _of(Report)
    made["properties"]["schema_version"] = {"const": SCHEMA_VERSION}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "kvtrail conformance report", **made}


def as_json() -> str:
    return json.dumps(schema(), indent=2) + "\n"


def _of(hint: Any) -> dict[str, Any]:
    if is_typeddict(hint):
        fields = get_type_hints(hint, include_extras=True)
        described = {} if hint.__doc__ in (None, dict.__doc__) else {"description": hint.__doc__}
        return {
            **described,
            "type": "object",
            "properties": {name: _of(each) for name, each in fields.items()},
            "required": [name for name in fields if name in hint.__required_keys__],
            "additionalProperties": False,
        }
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return {**_of(hint.__origin__), "description": hint.__metadata__[0]}
    if origin is Literal:
        return {"enum": list(parts)}
    if origin in (Union, UnionType):
        return {"anyOf": [_of(each) for each in parts]}
    if origin is list:
        return {"type": "array", "items": _of(parts[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": True if parts[1] is Any else _of(parts[1])}
    return {"type": _PLAIN[hint]}


if __name__ == "__main__":
    print(as_json(), end="")
