"""Digests of values and of code."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import functools
import importlib.util
import re
import sys
import threading
from collections import OrderedDict, namedtuple
from pathlib import Path

import numpy as np
import pytest

from rayorch_flows.program.identity.digest import Unstable, digest

Point = namedtuple("Point", "x y")


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


@dataclasses.dataclass
class Settings:
    dpi: int = 200
    tags: tuple[str, ...] = ()


class Plain:
    def __init__(self, value):
        self.value = value


def add(x, y=1, *, z=2):
    return x + y + z


DIFFERENT = [
    None,
    ...,
    True,
    False,
    0,
    1,
    -1,
    1.0,
    -0.0,
    0.0,
    float("inf"),
    1j,
    "",
    "1",
    b"",
    b"1",
    [],
    (),
    {},
    set(),
    [1],
    (1,),
    {1},
    {1: 2},
    {1: 3},
    {2: 2},
    [1, 2],
    [2, 1],
    [[1], 2],
    [1, [2]],
    [[1, 2]],
    ["ab", "c"],
    ["a", "bc"],
    {"a": 1, "b": 2},
    {"b": 2, "a": 1},
    OrderedDict(a=1),
    Colour.RED,
    Colour.BLUE,
    Point(1, 2),
    Point(2, 1),
    Settings(),
    Settings(dpi=300),
    Settings,
    Plain(1),
    Plain(2),
    Plain([1]),
    Path("a"),
    Path("b"),
    re.compile("a"),
    re.compile("a", re.IGNORECASE),
    re.compile("b"),
    datetime.date(2026, 1, 1),
    datetime.date(2026, 1, 2),
    add,
    functools.partial(add, 1),
    functools.partial(add, 2),
    functools.partial(add, y=1),
    len,
    sorted,
    Plain(1).__init__,
    np.zeros(3),
    np.zeros(4),
    np.ones(3),
    np.zeros(3, dtype="float32"),
    np.zeros((3, 1)),
    np.array(["a", None], dtype=object),
    np.float64(1.5),
    int,
    str,
    dict,
]


def test_different_values_have_different_digests():
    digests = {}
    for value in DIFFERENT:
        digests.setdefault(digest(value), []).append(value)
    assert [same for same in digests.values() if len(same) > 1] == []


@pytest.mark.parametrize("value", DIFFERENT, ids=lambda v: repr(v).split(" at 0x")[0][:30])
def test_a_digest_is_the_same_twice(value):
    assert digest(value) == digest(value)


def test_values_do_not_run_into_each_other():
    assert digest("a", "b") != digest("ab") != digest(["a", "b"])


def test_sharing_makes_no_difference():
    shared = [1, 2]
    assert digest([shared, shared]) == digest([[1, 2], [1, 2]])


def test_a_value_that_holds_itself():
    loop: list = [1]
    loop.append(loop)
    other: list = [1]
    other.append(other)
    assert digest(loop) == digest(other) != digest([1, [1]])


def test_a_value_that_has_no_digest():
    with pytest.raises(Unstable, match="lock"):
        digest(threading.Lock())


def make(step, default=1):
    def inner(x, by=default):
        return x + step * by

    return inner


def test_closures_and_defaults_are_part_of_the_code():
    assert digest(make(1)) == digest(make(1))
    assert len({digest(make(1)), digest(make(2)), digest(make(1, 2))}) == 3


def test_lambdas_on_one_line_are_told_apart():
    first, second, again = (lambda x: x + 1), (lambda x: x - 1), (lambda x: x + 1)
    assert digest(first) == digest(again) != digest(second)


def test_a_lambda_inside_a_lambda_is_not_its_outer_one():
    outer = lambda: lambda x: x + 1  # noqa: E731
    assert digest(outer) != digest(outer())


def even(n):
    return n == 0 or odd(n - 1)


def odd(n):
    return n != 0 and even(n - 1)


def test_functions_that_call_each_other():
    assert digest(even) == digest(even) != digest(odd)


def wrap(fn):
    @functools.wraps(fn)
    def inner(*args):
        return fn(*args)

    return inner


@wrap
def first(x):
    return x + 1


@wrap
def second(x):
    return x + 2


@functools.lru_cache
def cached_first(x):
    return x + 1


@functools.lru_cache
def cached_second(x):
    return x + 2


def test_decorated_functions_are_followed():
    assert digest(first) != digest(second)
    assert digest(cached_first) != digest(cached_second)
    assert digest([cached_first]) == digest([cached_first])


def test_generated_code_is_told_apart_without_a_source():
    def build(text):
        names: dict = {}
        exec(f"def made(x):\n    return {text}", names)
        return names["made"]

    assert digest(build("x + 1")) == digest(build("x + 1")) != digest(build("x + 2"))


def test_generated_methods_of_a_class_are_told_apart():
    def build(text):
        names: dict = {}
        exec(f"def run(self, xs):\n    return {text}", names)
        return type("Made", (), {"run": names["run"]})

    assert digest(build("xs")) == digest(build("xs")) != digest(build("xs + xs"))


def test_a_set_in_a_constant_does_not_depend_on_the_hash_seed():
    names: dict = {}
    exec("def made(x):\n    return x in {'a', 'b', 'c'}", names)
    text = digest(names["made"])
    names = {}
    exec("def made(x):\n    return x in {'c', 'a', 'b'}", names)
    assert digest(names["made"]) == text


def members(**extra):
    """A class with the given members beside the usual ones."""
    return type("Made", (), {"SIZE": 1, "run": add, **extra})


def test_members_of_a_class_count_and_their_order_does_not():
    one = type("A", (), {"x": 1, "y": add})
    two = type("B", (), {"y": add, "x": 1})
    assert digest(one) == digest(two)
    variants = [
        members(),
        members(SIZE=2),
        members(extra=3),
        members(run=make(1)),
        members(kind=staticmethod(add)),
        members(kind=classmethod(add)),
        members(kind=property(add)),
        members(kind=functools.cached_property(add)),
        type("Made", (Plain,), {"SIZE": 1, "run": add}),
    ]
    assert len({digest(v) for v in variants}) == len(variants)


def test_the_fields_of_a_dataclass_count():
    def make_class(**fields):
        parts = [(n, t, d) for n, (t, d) in fields.items()]
        return dataclasses.make_dataclass("C", parts, namespace={"__module__": __name__})

    variants = [
        make_class(a=(int, 1)),
        make_class(a=(int, 2)),
        make_class(b=(int, 1)),
        make_class(a=(float, 1)),
        make_class(a=(int, 1), b=(int, 1)),
    ]
    assert len({digest(v) for v in variants}) == len(variants)
    assert digest(make_class(a=(int, 1))) == digest(make_class(a=(int, 1)))


def test_code_of_a_library_counts_by_name_unless_its_package_is_named():
    import cloudpickle

    by_name = digest(cloudpickle.dumps)
    assert by_name != digest(cloudpickle.dumps, packages={"cloudpickle"})
    assert by_name == digest(cloudpickle.dumps, packages={"numpy"})


REACHED = {
    "a dict": ("T = {'k': H}", "T['k'](x)"),
    "a list of lists": ("T = [[H]]", "T[0][0](x)"),
    "a set": ("T = {H, len}", "[f(x) for f in T]"),
    "a class in a dict": ("T = {'k': K}", "T['k']().go(x)"),
    "an instance in a tuple": ("T = (K(),)", "T[0].go(x)"),
    "a class attribute": ("class T:\n    table = {'k': H}", "T.table['k'](x)"),
    "a dataclass": ("@dataclasses.dataclass\nclass D:\n    f: object\nT = D(H)", "T.f(x)"),
    "a named tuple": ("class N(typing.NamedTuple):\n    f: object\nT = N(H)", "T.f(x)"),
    "a registry filled at import": (
        "T = {}\ndef register(f):\n    T[f.__name__] = f\n    return f\n@register\ndef step(x):\n    return H(x)",
        "T['step'](x)",
    ),
    "a generic function": (
        "@functools.singledispatch\ndef T(x):\n    return x\n@T.register\ndef _(x: int):\n    return H(x)",
        "T(x)",
    ),
    "a container that holds itself": ("T = {'k': H}\nT['self'] = T", "T['self']['k'](x)"),
}


@pytest.mark.parametrize("way", REACHED)
def test_code_in_the_containers_that_a_function_uses_counts(way, tmp_path):
    table, use = REACHED[way]

    def found(name, result):
        text = "import dataclasses, functools, typing\n"
        text += f"def H(x):\n    return {result}\nclass K:\n    def go(self, x):\n        return {result}\n"
        text += f"{table}\ndef run(xs):\n    return [{use} for x in xs]\n"
        path = tmp_path / name / "tables.py"
        path.parent.mkdir()
        path.write_text(text)
        spec = importlib.util.spec_from_file_location("tables", path)
        module = importlib.util.module_from_spec(spec)
        sys.modules["tables"] = module
        try:
            spec.loader.exec_module(module)
            return digest(module.run)
        finally:
            del sys.modules["tables"]

    assert found("one", "x") == found("two", "x")
    assert found("three", "-x") != found("four", "x")
