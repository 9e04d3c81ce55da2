"""Stable digests of values and of the code that they lead to.

Two processes, two checkouts and two file names give the same digest for the same code and values; another constant,
helper, base class, closure or argument gives another one. The user's own code counts by its text, followed through
the globals, closures, defaults and base classes that it names, and the containers among them; libraries count by name
only. Not followed: what is reached only through ``getattr`` or ``globals()``, the state of objects in globals that are
neither plain data nor dataclasses, and files that a Function reads.
"""

from __future__ import annotations

import ast
import copyreg
import dataclasses
import enum
import functools
import hashlib
import importlib
import importlib.util
import re
import types
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import PurePath
from typing import Any, Final, cast

from rayorch_flows.program.identity.source_code import Path, code_text, in_library, is_standard
from rayorch_flows.program.values.type_guards import is_dict, is_list, is_set

_OURS: Final = "rayorch_flows"
_OUR_ENGINE: Final = frozenset({"", "program", "lineage", "runtime", "records", "orchestration", "errors", "cli"})
_MAX_OBJECTS: Final = 20_000
"""After so many functions and classes the rest counts by name, so that no one waits for a whole library."""

_PLAIN: Final = (bool, int, float, complex, str, bytes, type(None), type(...))


class Unstable(Exception):
    """A value that has no stable digest."""


def digest(*values: Any, packages: Iterable[str] = ()) -> str:
    """One digest over values; code of the top-level ``packages`` counts by its text wherever it is installed."""
    digester = _Digester(frozenset(packages))
    for value in values:
        digester.value(value)
    return digester.finish()


def top_package(value: Any) -> str:
    """The top-level package in which a function, a class or an instance's class was written."""
    module = getattr(value, "__module__", None) or type(value).__module__
    return str(module).partition(".")[0]


class _Digester:
    def __init__(self, packages: frozenset[str]) -> None:
        self._hash = hashlib.sha256()
        self._packages = packages
        self._seen: dict[int, int] = {}
        self._alive: list[Any] = []
        self._queue: deque[Any] = deque()
        self._open: list[int] = []

    def finish(self) -> str:
        while self._queue:
            item = self._queue.popleft()
            if isinstance(item, type):
                self._class(item)
            else:
                self._function(item)
        return self._hash.hexdigest()

    def _put(self, kind: str, text: str | bytes = b"") -> None:
        data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
        self._hash.update(f"{kind}:{len(data)}:".encode())
        self._hash.update(data)

    # -- values -----------------------------------------------------------------------------------------------

    def value(self, value: Any) -> None:
        """An argument, a closure cell, a default: everything in it counts."""
        if isinstance(value, enum.Enum):
            self._named_or_code(type(value))
            self._put("member", value.name)
        elif isinstance(value, _PLAIN) and type(value) in _PLAIN:
            self._put(type(value).__name__, repr(value))
        elif isinstance(value, types.FunctionType | type):
            self._named_or_code(value)
        elif isinstance(value, types.ModuleType):
            self._put("module", value.__name__)
        elif isinstance(value, PurePath):
            self._put("path", str(value))
        elif isinstance(value, re.Pattern):
            pattern = cast("re.Pattern[Any]", value)
            self._put("pattern", repr((pattern.pattern, pattern.flags)))
        else:
            self._inside(value, lambda: self._compound(value))

    def _inside(self, value: Any, take: Callable[[], None]) -> None:
        """Take a value apart; where it holds itself, say how far up it is."""
        if id(value) in self._open:
            self._put("cycle", str(len(self._open) - self._open.index(id(value))))
            return
        self._open.append(id(value))
        self._alive.append(value)
        take()
        self._open.pop()

    def _compound(self, value: Any) -> None:
        kind = cast("type[Any]", type(value))
        if is_list(value) and kind in (list, tuple):
            self._put(kind.__name__, str(len(value)))
            for item in value:
                self.value(item)
        elif is_dict(value) and kind is dict:
            self._put("dict", str(len(value)))
            for key, item in value.items():
                self.value(key)
                self.value(item)
        elif is_set(value) and kind in (set, frozenset):
            self._put("set", ",".join(sorted(digest(v, packages=self._packages) for v in value)))
        elif isinstance(value, types.MethodType):
            self._put("method")
            self.value(value.__self__)
            self.value(value.__func__)
        elif isinstance(value, types.BuiltinFunctionType):
            self._put("builtin", f"{value.__module__}.{value.__qualname__}")
        elif isinstance(value, functools.partial):
            self._put("partial")
            partial = cast("functools.partial[Any]", value)
            for part in (partial.func, partial.args, dict(sorted(partial.keywords.items()))):
                self.value(part)
        elif hasattr(value, "__array_interface__") and hasattr(value, "tobytes"):
            self._array(value)
        elif (wrapped := getattr(value, "__wrapped__", None)) is not None:
            self._put("wrapper", kind.__qualname__)
            self.value(wrapped)
        else:
            self._reduced(value)

    def _array(self, value: Any) -> None:
        self._put("array", repr((value.dtype.str, value.shape)))
        if value.dtype.hasobject:
            self.value(value.tolist())
        else:
            self._put("bytes", value.tobytes())

    def _reduced(self, value: Any) -> None:
        """Any other object, as pickle would take it apart."""
        try:
            reduce = copyreg.dispatch_table.get(cast("type[Any]", type(value)))
            parts = reduce(value) if reduce is not None else value.__reduce_ex__(4)
        except Exception as error:
            text = repr(value)
            if " at 0x" in text:
                raise Unstable(f"{type(value).__name__}: {error}") from error
            self._put("repr", text)
            return
        if isinstance(parts, str):
            self._put("global", parts)
            return
        self._put("object", str(len(parts)))
        for part in parts[:2]:
            self.value(part)
        for part in cast("tuple[Any, ...]", parts[2:]):
            self.value(list(part) if hasattr(part, "__next__") else part)

    # -- code -------------------------------------------------------------------------------------------------

    def _is_users(self, value: Any) -> bool:
        module = getattr(value, "__module__", None) or ""
        package = module.partition(".")[0]
        if _is_engine(module):
            return False
        if package in self._packages:
            return True
        if isinstance(value, types.FunctionType):
            return not in_library(value.__code__.co_filename)
        if package == "builtins" or is_standard(package):
            return False
        return not _module_in_library(package)

    def _named_or_code(self, value: Any) -> None:
        """A function or a class: by its text if it is the user's, else by name."""
        seen = self._seen.get(id(value))
        if seen is not None:
            self._put("ref", str(seen))
        elif not self._is_users(value) or len(self._seen) >= _MAX_OBJECTS:
            self._put("named", f"{value.__module__}.{value.__qualname__}")
            wrapped = getattr(value, "__wrapped__", None)
            if isinstance(wrapped, types.FunctionType):
                self._named_or_code(wrapped)
            registered = getattr(value, "registry", None)  # of functools.singledispatch
            if isinstance(registered, types.MappingProxyType):
                self._registered(cast("types.MappingProxyType[type, Any]", registered))
        else:
            self._seen[id(value)] = len(self._seen)
            self._put("code", str(len(self._seen)))
            self._alive.append(value)
            self._queue.append(value)

    def _registered(self, implementations: types.MappingProxyType[type, Any]) -> None:
        for kind in sorted(implementations, key=lambda kind: f"{kind.__module__}.{kind.__qualname__}"):
            self._put("registered", f"{kind.__module__}.{kind.__qualname__}")
            self._ambient(implementations[kind])

    def _function(self, function: types.FunctionType) -> None:
        text = code_text(function.__code__)
        self._put("function", text.text)
        self.value(function.__defaults__)
        self.value(dict(sorted((function.__kwdefaults__ or {}).items())))
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            if name == "__class__":
                continue  # the class that holds the method, which is being digested
            self._put("cell", name)
            try:
                self.value(cell.cell_contents)
            except ValueError:
                self._put("empty")
        for name, paths in text.names:
            if name in function.__globals__:
                self._put("name", name)
                self._ambient(function.__globals__[name], paths)
        for statement in text.imports:
            package = function.__globals__.get("__package__") or ""
            module = _import_users(statement.module, statement.level, package)
            if module is not None:
                self._put("import", statement.module)
                self._ambient(module, statement.paths)

    def _class(self, kind: type[Any]) -> None:
        self._put("class", str(len(kind.__bases__)))
        for base in kind.__bases__:
            self.value(base)
        if type(kind) is not type:
            self.value(type(kind))
        members: dict[str, enum.Enum] = dict(kind.__members__) if issubclass(kind, enum.Enum) else {}
        for member, constant in members.items():
            self._put("member", member)
            self._ambient(constant.value)
        self._fields(kind)
        for name, item in sorted(vars(kind).items()):
            if not members or (name not in members and not name.startswith("_")):
                self._member(name, item)

    def _fields(self, kind: type) -> None:
        """What a dataclass or a model says in annotations; its generated methods are left out."""
        if "__dataclass_fields__" in vars(kind):
            for field in dataclasses.fields(cast("Any", kind)):
                self._put("field", f"{field.name}:{_annotation(field.type)}")
                self._ambient(field.default)
                self._ambient(field.default_factory)
        models: Any = vars(kind).get("__pydantic_fields__")
        if isinstance(models, dict):
            for name, field in cast("dict[str, Any]", models).items():
                self._put("field", f"{name}:{_annotation(field.annotation)}")
                self._ambient(field.default)

    def _member(self, name: str, item: Any) -> None:
        if isinstance(item, staticmethod | classmethod):
            self._put("static" if isinstance(item, staticmethod) else "class", name)
            self._ambient(cast("Any", item).__func__)
        elif isinstance(item, property):
            self._put("property", name)
            for part in (item.fget, item.fset, item.fdel):
                self._ambient(part)
        elif isinstance(item, functools.cached_property):
            self._put("property", name)
            self._ambient(item.func)
        elif isinstance(item, types.FunctionType):
            file = item.__code__.co_filename
            generated = name.startswith("__") and (file.startswith(("<string>", "<attrs")) or in_library(file))
            if not generated:
                self._put("method", name)
                self._ambient(item)
        elif not (name.startswith("__") and name.endswith("__")) and name != "_abc_impl":
            self._put("attribute", name)
            self._ambient(item)

    def _ambient(self, value: Any, paths: Iterable[Path] = ()) -> None:
        """What code finds around it, a global or a class attribute: code and plain data count, objects by type.

        Of a module only what lies at the end of ``paths`` counts.
        """
        if isinstance(value, types.ModuleType):
            if _is_engine(value.__name__) or in_library(getattr(value, "__file__", None) or "<frozen>"):
                self._put("module", value.__name__)
                return
            for name in sorted({path[0] for path in paths if path} & vars(value).keys()):
                self._put("attribute", name)
                self._ambient(vars(value)[name], [path[1:] for path in paths if path[:1] == (name,)])
        elif _is_data(value) or isinstance(value, types.FunctionType | type | types.MethodType | functools.partial):
            self.value(value)
        elif (parts := _parts(value)) is not None:
            self._inside(value, lambda: self._holds(parts))
        elif hasattr(value, "__wrapped__") or isinstance(value, types.BuiltinFunctionType):
            self._compound(value)
        else:
            self._put("instance")
            self._named_or_code(cast("type[Any]", type(value)))

    def _holds(self, parts: list[Any]) -> None:
        """A container that code finds around it, of code and objects too: a dispatch table, a registry."""
        self._put("holds", str(len(parts)))
        for part in parts:
            self._ambient(part)


def _parts(value: Any) -> list[Any] | None:
    """What a container holds, in an order that is the same in every process; None if it is none."""
    if is_dict(value):
        return [part for item in value.items() for part in item]
    if is_list(value):
        return list(value)
    if is_set(value):
        return sorted(value, key=lambda part: str(getattr(part, "__qualname__", None) or type(part).__qualname__))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [type(value), *(getattr(value, field.name, None) for field in dataclasses.fields(value))]
    if isinstance(value, functools.singledispatchmethod):
        return [cast("Any", value).dispatcher]
    if isinstance(value, functools.partialmethod):
        partial = cast("functools.partialmethod[Any]", value)
        return [partial.func, partial.args, dict(sorted(partial.keywords.items()))]
    return None


def _is_engine(module: str) -> bool:
    """Whether a module is part of this project's machinery, whose releases do not change what a program means."""
    package, _, rest = module.partition(".")
    return package == _OURS and rest.partition(".")[0] in _OUR_ENGINE


def _is_data(value: Any, depth: int = 20) -> bool:
    if isinstance(value, (*_PLAIN, enum.Enum, PurePath, re.Pattern)):
        return True
    if depth == 0:
        return False
    if is_dict(value):
        return all(_is_data(k, depth - 1) and _is_data(v, depth - 1) for k, v in value.items())
    if is_list(value) or is_set(value):
        return all(_is_data(v, depth - 1) for v in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return all(_is_data(getattr(value, f.name, None), depth - 1) for f in dataclasses.fields(value))
    return hasattr(value, "__array_interface__") and hasattr(value, "tobytes")


def _annotation(annotation: Any) -> str:
    if isinstance(annotation, str):
        return ast.unparse(ast.parse(annotation, mode="eval"))
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


@functools.lru_cache(maxsize=4096)
def _module_in_library(package: str) -> bool:
    try:
        module = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return False
    return module is not None and module.origin is not None and in_library(module.origin)


def _import_users(name: str, level: int, package: str) -> types.ModuleType | None:
    """A module that a function imports when it runs, if it is the user's."""
    try:
        absolute = importlib.util.resolve_name("." * level + name, package or None) if level else name
        top = absolute.partition(".")[0]
        if is_standard(top) or top == _OURS or _module_in_library(top):
            return None
        return importlib.import_module(absolute)
    except Exception:
        return None
