"""The code of one function in a form that formatting, comments, docstrings, annotations and file names do not change.

The form is the syntax tree where the source file still says what is loaded in memory, else the bytecode.
"""

from __future__ import annotations

import ast
import dis
import linecache
import os
import site
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType
from typing import Any, Final

from rayorch_flows.program.values.type_guards import is_list, is_set, is_tuple

_FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_GLOBALS: Final = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
_LOADS: Final = (*_GLOBALS, "LOAD_FAST", "LOAD_DEREF", "LOAD_CLOSURE")
_DROPPED_FIELDS: Final = frozenset(
    {"ctx", "type_comment", "kind", "annotation", "returns", "type_params", "type_ignores"}
)


Path = tuple[str, ...]
"""Names joined by dots: ``("helpers", "text", "clean")``."""


@dataclass(frozen=True, slots=True, order=True)
class Import:
    """An import statement inside a function: the module, and the paths that the function follows in it."""

    module: str
    level: int
    paths: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class CodeText:
    """``text`` stands for the code; ``names`` are the globals it reads, each with the paths it follows from there."""

    text: str
    names: tuple[tuple[str, tuple[Path, ...]], ...]
    imports: tuple[Import, ...]


@lru_cache(maxsize=8192)
def code_text(code: CodeType) -> CodeText:
    """The stable form of one code object and of those nested in it."""
    node = _node_of(code)
    paths: set[tuple[bool, Path]] = set()
    for part in _nested(code):
        paths.update(_paths(part))
    if node is None:
        text = "bytecode:" + _bytecode(code)
        imports: set[Import] = set()
    else:
        text = "syntax:" + canonical(node)
        for decorator in getattr(node, "decorator_list", []):
            paths.update(_paths(compile(ast.Expression(decorator), "", "eval")))
        imports = set(_imports(node, {path for _, path in paths}))
    names: dict[str, set[Path]] = {}
    for is_global, path in paths:
        if is_global:
            names.setdefault(path[0], set()).add(path[1:])
    return CodeText(text, tuple((n, tuple(sorted(p))) for n, p in sorted(names.items())), tuple(sorted(imports)))


def _paths(code: CodeType) -> Iterator[tuple[bool, Path]]:
    """What the code looks up by name, with the attributes that follow at once; and whether it starts at a global."""
    path: list[str] = []
    is_global = False
    for instruction in dis.get_instructions(code):
        if path and instruction.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            path.append(str(instruction.argval))
            continue
        if path and instruction.opname not in ("CACHE", "PUSH_NULL", "EXTENDED_ARG"):
            yield is_global, tuple(path)
            path = []
        if any(load in instruction.opname for load in _LOADS):  # also fused: STORE_FAST_LOAD_FAST
            is_global = instruction.opname.startswith(_GLOBALS)
            name = instruction.argval
            path = [str(name[-1] if is_tuple(name) else name)]
    if path:
        yield is_global, tuple(path)


def canonical(node: ast.AST) -> str:
    """A syntax tree as text, the same on every Python version that we support; the outer name is left out."""
    out: list[str] = []
    _write(node, out, outer=True)
    return "".join(out)


def _write(node: Any, out: list[str], outer: bool = False) -> None:
    if is_list(node):
        out.append("[")
        for item in node:
            _write(item, out)
            out.append(",")
        out.append("]")
        return
    if not isinstance(node, ast.AST):
        out.append(repr(node))
        return
    if isinstance(node, ast.AnnAssign) and node.value is None and isinstance(node.target, ast.Name):
        out.append("declared")
        return
    out.append(type(node).__name__ if not isinstance(node, ast.AnnAssign) else "Assign")
    out.append("(")
    for name in node._fields:
        value: Any = getattr(node, name, None)
        if name in _DROPPED_FIELDS or value is None or value == [] or (outer and name == "name"):
            continue
        if isinstance(node, ast.AnnAssign):
            if name == "simple":
                continue
            if name == "target":
                name, value = "targets", [value]
        if name == "body" and is_list(value):
            value = _without_docstring(node, value)
        out.append(name)
        out.append("=")
        _write(value, out)
        out.append(" ")
    out.append(")")


def _without_docstring(node: ast.AST, body: Sequence[Any]) -> Sequence[Any]:
    if (
        isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        and isinstance(body[0], ast.Expr)
        and isinstance(body[0].value, ast.Constant)
        and isinstance(body[0].value.value, str)
    ):
        return body[1:] or [ast.Pass()]
    return body


def _imports(node: ast.AST, paths: set[Path]) -> Iterator[Import]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Import):
            for alias in inner.names:
                bound = alias.asname or alias.name.partition(".")[0]
                module = alias.name if alias.asname else bound
                yield Import(module, 0, tuple(sorted(p[1:] for p in paths if p[0] == bound)))
        elif isinstance(inner, ast.ImportFrom):
            for alias in inner.names:
                bound = alias.asname or alias.name
                tails = sorted((alias.name, *p[1:]) for p in paths if p[0] == bound)
                yield Import(inner.module or "", inner.level, tuple(tails))


# -- from code to syntax ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class _File:
    lines: list[str]
    functions: dict[tuple[str, int], list[_FunctionNode]]
    code: dict[tuple[str, int], list[CodeType]]


_FILES: dict[str, _File] = {}


def _node_of(code: CodeType) -> _FunctionNode | None:
    file = _file(code.co_filename)
    if file is None:
        return None
    key = (code.co_name, code.co_firstlineno)
    nodes = file.functions.get(key, [])
    loaded = [c for c in file.code.get(key, []) if _bytecode(c) == _bytecode(code)]
    if not nodes or not loaded:
        return None  # the file says something else by now
    if len(nodes) == 1:
        return nodes[0]
    starts = [
        (line, column)
        for line, _, column, end in code.co_positions()
        if line is not None and column is not None and (column or end)
    ]
    inside = [n for n in nodes if isinstance(n, ast.Lambda) and starts and _covers(n.body, starts)]
    return max(inside, key=lambda n: (n.body.lineno, n.body.col_offset), default=None)


def _covers(body: ast.expr, starts: list[tuple[int, int]]) -> bool:
    first = (body.lineno, body.col_offset)
    end = (body.end_lineno or body.lineno, body.end_col_offset or 0)
    return all(first <= start < end for start in starts)


def _file(name: str) -> _File | None:
    linecache.checkcache(name)
    lines = linecache.getlines(name)
    known = _FILES.get(name)
    if known is not None and known.lines == lines:
        return known
    if not lines:
        return None
    source = "".join(lines)
    try:
        tree = ast.parse(source)
        compiled = compile(tree, name, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return None
    file = _File(lines, {}, {})
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            file.functions.setdefault((node.name, first), []).append(node)
        elif isinstance(node, ast.Lambda):
            file.functions.setdefault(("<lambda>", node.lineno), []).append(node)
    for code in _nested(compiled):
        file.code.setdefault((code.co_name, code.co_firstlineno), []).append(code)
    _FILES[name] = file
    return file


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


@lru_cache(maxsize=8192)
def _bytecode(code: CodeType) -> str:
    return repr(
        (
            code.co_code.hex(),
            tuple(_constant(c) for c in code.co_consts),
            code.co_names,
            code.co_varnames,
            code.co_freevars,
            code.co_argcount,
            code.co_kwonlyargcount,
            code.co_posonlyargcount,
        )
    )


def _constant(value: Any) -> str:
    if isinstance(value, CodeType):
        return _bytecode(value)
    if is_set(value):
        return "frozenset" + repr(sorted(_constant(v) for v in value))
    if is_tuple(value):
        return "(" + ",".join(_constant(v) for v in value) + ")"
    return repr(value)


# -- whose code it is ------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _library_roots() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    roots = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib") if name in paths}
    roots.update(site.getsitepackages())
    roots.add(site.getusersitepackages())
    return tuple(os.path.realpath(root) + os.sep for root in roots)


@lru_cache(maxsize=8192)
def in_library(file: str) -> bool:
    """Whether a file belongs to Python or to an installed package rather than to the user."""
    if file.startswith("<frozen"):
        return True
    return os.path.realpath(file).startswith(_library_roots())


def is_standard(module: str) -> bool:
    return module.partition(".")[0] in sys.stdlib_module_names
