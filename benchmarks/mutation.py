"""Small changes of source code, one at a time: a comparison, a constant, an operator, a condition or a statement."""

from __future__ import annotations

import ast
import copy
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
_CALCULATED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
_CALLED = {"min": "max", "max": "min", "all": "any", "any": "all", "reversed": "list"}


@dataclass(frozen=True, slots=True)
class Mutant:
    """A changed module.

    Attributes:
        name: the module, the line, and what was changed.
        module: its name.
        source: all of it.
    """

    name: str
    module: str
    source: str


def by_hand(module: str, source: str, what: str, before: str, after: str) -> Mutant:
    """A change that somebody has thought of.

    Raises:
        ValueError: the code before it is not there once; then it has to be thought of again.
    """
    if source.count(before) != 1:
        raise ValueError(f"{module} has {source.count(before)} times {before!r}: {what}")
    return Mutant(f"{module.rpartition('.')[2]}: {what}", module, source.replace(before, after))


def drawn(module: str, source: str, count: int, functions: Sequence[str], seed: int) -> list[Mutant]:
    """`count` changes of the bodies of these functions, the same for a seed."""
    tree = ast.parse(source)
    places = [place for function in _functions(tree, functions) for place in _places(function)]
    chosen = random.Random(f"{module}/{seed}").sample(range(len(places)), k=min(count, len(places)))
    return [_mutant(module, tree, number, functions) for number in sorted(chosen)]


def _functions(tree: ast.Module, names: Sequence[str]) -> list[ast.FunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name in names]


def _places(function: ast.FunctionDef) -> Iterator[tuple[ast.AST, str]]:
    """What can be changed: a node, and how. What is said in errors and logs is left alone."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr) or _is_said(node):
            continue
        waiting += list(ast.iter_child_nodes(node))
        if isinstance(node, ast.Compare) and type(node.ops[0]) in _COMPARED:
            yield node, "compare"
        elif isinstance(node, ast.BinOp) and type(node.op) in _CALCULATED:
            yield node, "calculate"
        elif isinstance(node, ast.Constant) and type(node.value) is int:
            yield node, "count"
        elif isinstance(node, ast.If | ast.IfExp):
            yield node, "negate"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _CALLED:
            yield node, "call"
        elif isinstance(node, ast.AugAssign) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
            yield node, "drop"


def _is_said(node: ast.AST) -> bool:
    """Whether it is a docstring or a line of the log."""
    return isinstance(node, ast.Expr) and (
        isinstance(node.value, ast.Constant) or ast.unparse(node).startswith("logger.")
    )


def _mutant(module: str, tree: ast.Module, number: int, functions: Sequence[str]) -> Mutant:
    changed = copy.deepcopy(tree)
    places = [place for function in _functions(changed, functions) for place in _places(function)]
    node, how = places[number]
    before = ast.unparse(node).splitlines()[0]
    match node:
        case ast.Compare():
            node.ops[0] = _COMPARED[type(node.ops[0])]()
        case ast.BinOp():
            node.op = _CALCULATED[type(node.op)]()
        case ast.Constant():
            node.value = int(node.value) + 1  # type: ignore[arg-type]
        case ast.If() | ast.IfExp():
            node.test = ast.UnaryOp(ast.Not(), node.test)
        case ast.Call(func=ast.Name() as called):
            called.id = _CALLED[called.id]
        case ast.AugAssign() | ast.Expr():
            _drop(changed, node)
    after = "nothing" if how == "drop" else ast.unparse(node).splitlines()[0]
    line = getattr(node, "lineno", 0)
    name = f"{module.rpartition('.')[2]}:{line} {before[:60]} -> {after[:60]}"
    return Mutant(name, module, ast.unparse(ast.fix_missing_locations(changed)))


def _drop(tree: ast.Module, statement: ast.stmt) -> None:
    for node in ast.walk(tree):
        for _, body in ast.iter_fields(node):
            if isinstance(body, list) and statement in body:
                body[body.index(statement)] = ast.copy_location(ast.Pass(), statement)
