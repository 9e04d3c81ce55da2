"""What a program may not say: each error names the Port, the Call and the user's line, and how to mend it."""

from __future__ import annotations

import copy
import io
import pickle
import threading

import pytest

from rayorch_flows import CompileError, F, Pipeline, Port, RayModule, function
from rayorch_flows.program import trace as trace_module
from tests.program.functions import Unit, program


def branch(self, x):
    y = self.a(x)
    if y:  # here
        return y
    return x


def loop(self, x):
    for y in self.a(x):  # here
        self.b(y)
    return x


def length(self, x):
    n = len(self.a(x))  # here
    return self.a(x, n=n)


def compare(self, x):
    y = self.a(x)
    return self.b(x) if y == 3 else y  # here


def compare_ports(self, x):
    return self.b(x) if x != self.a(x) else x  # here


def less(self, x):
    return self.a(x) if self.b(x) < 0.5 else x  # here


def member(self, x):
    return self.a(x) if 3 in x else x  # here


def index(self, x):
    return self.a(x[0])  # here


def calculate(self, x):
    return self.a(x + 1)  # here


def calculate_the_other_way(self, x):
    return self.a(1 - x)  # here


def call(self, x):
    return x(3)  # here


def copy_it(self, x):
    pickle.dumps(x)  # here


def reduce_root(self, x):
    y = self.a(x)
    return F.reduce(y)  # here


def members_elsewhere(self, x):
    p = F.expand(self.a(x), name="page")
    q = F.expand(self.b(x), name="table")
    return F.reduce(p, members=q)  # here


def members_of_parent(self, x):
    p = F.expand(self.a(x), name="page")
    q = F.expand(self.b(p), name="table")
    return F.reduce(q, members=p)  # here


def aligned_elsewhere(self, x):
    p = F.expand(self.a(x), name="page")
    q = F.expand(self.b(x), name="table")
    return F.reduce_aligned(p, q)  # here


def mixed_domains(self, x):
    p = F.expand(self.a(x), name="page")
    return self.b(x, p)  # here


def mixed_siblings(self, x):
    p = F.expand(self.a(x), name="frame")
    q = F.expand(self.b(x), name="audio")
    return self.c(p, q)  # here


def broadcast_up(self, x):
    p = F.expand(self.a(x), name="page")
    return F.broadcast(p, like=x)  # here


def broadcast_sideways(self, x):
    p = F.expand(self.a(x), name="frame")
    q = F.expand(self.b(x), name="audio")
    return F.broadcast(p, like=q)  # here


def mask_of_parent(self, x):
    p = F.expand(self.a(x), name="page")
    return F.filter(p, self.b(x))  # here


def mask_of_lists(self, x):
    return F.filter(x, F.reduce(F.expand(self.a(x))))  # here


def mask_of_lists_below(self, x):
    m = F.reduce(F.expand(self.a(x)))
    p = F.expand(self.b(x))
    return F.filter(p, F.broadcast(m, like=p))  # here


def settled_mask(self, x):
    m = F.settle(self.a(x))
    return F.filter(x, m)  # here


def settled_mask_below(self, x):
    m = F.settle(self.a(x))
    p = F.expand(self.b(x))
    return F.filter(p, F.broadcast(F.filter(m, self.a(x)), like=p))  # here


def expand_expanded(self, x):
    return F.expand(F.expand(self.a(x)))  # here


def expand_filtered(self, x):
    return F.expand(F.filter(self.a(x), self.b(x)))  # here


def expand_reduced(self, x):
    return F.expand(F.reduce(F.expand(self.a(x))))  # here


def expand_settled(self, x):
    return F.expand(F.settle(self.a(x)))  # here


def expand_broadcast(self, x):
    p = F.expand(self.a(x))
    return F.expand(F.broadcast(self.b(x), like=p))  # here


def expand_again_differently(self, x):
    u, v = self.two(x)
    F.expand_aligned(u, v)
    return F.expand(v)  # here


def expand_under_two_names(self, x):
    y = self.a(x)
    F.expand(y, name="page")
    return F.expand(y, name="sheet")  # here


def one_name_for_two(self, x):
    F.expand(self.a(x), name="page")
    return F.expand(self.b(x), name="page")  # here


def empty_name(self, x):
    return F.expand(self.a(x), name=" ")  # here


def aligned_of_two_calls(self, x):
    return F.expand_aligned(self.a(x), self.b(x))  # here


def aligned_sources(self, x, y):
    return F.expand_aligned(x, y)  # here


def aligned_twice(self, x):
    y = self.a(x)
    return F.expand_aligned(y, y)  # here


def aligned_nothing(self, x):
    return F.expand_aligned()  # here


def reduce_nothing(self, x):
    return F.reduce_aligned()  # here


def optional_elsewhere(self, x):
    return F.reduce(F.optional(F.expand(self.a(x))))  # here


def no_port(self, x):
    return F.settle("x")  # here


def call_without_port(self, x):
    return self.a(stage="x")  # here


def static_positional(self, x):
    return self.a(x, 3)  # here


def port_in_a_list(self, x):
    return self.a(x, others=[x])  # here


def unpicklable_static(self, x):
    return self.a(x, lock=threading.Lock())  # here


def wrong_keyword(self, x):
    return self.two(x, stage="text")  # here


CASES = {
    branch: ("Port 'a' (Domain 'source', Call 'a'", "condition", "F.filter"),
    loop: ("Port 'a'", "iterated", "F.expand"),
    length: ("Port 'a'", "length", "inside a Function"),
    compare: ("Port 'a'", "compared", "F.filter"),
    compare_ports: ("Port 'x'", "compared", "F.filter"),
    less: ("Port 'b'", "compared", "F.filter"),
    member: ("Port 'x'", "searched", "inside a Function"),
    index: ("Port 'x'", "indexed with 0", "F.expand"),
    calculate: ("Port 'x'", "calculated", "inside a Function"),
    calculate_the_other_way: ("Port 'x'", "calculated", "inside a Function"),
    call: ("Port 'x'", "called", "RayModule"),
    copy_it: ("Port 'x'", "pickled", "inside forward"),
    reduce_root: ("Port 'a'", "root Domain", "F.expand"),
    members_elsewhere: ("Domain 'page'", "Domain 'table'", "F.expand of b at line", "ends one expand"),
    members_of_parent: ("Domain 'page'", "Domain 'table'", "ends one expand"),
    aligned_elsewhere: ("Domain 'page'", "Domain 'table'", "ends one expand"),
    mixed_domains: ("the arguments of Unit", "the root Domain", "Domain 'page'", "F.broadcast(x, like=y)"),
    mixed_siblings: ("Domain 'frame'", "Domain 'audio'", "F.reduce"),
    broadcast_up: ("Port 'page'", "not above the root Domain", "swap"),
    broadcast_sideways: ("Domain 'frame'", "Domain 'audio'", "Reduce both"),
    mask_of_parent: ("Port 'page'", "Port 'b'", "F.broadcast(mask, like=x)"),
    mask_of_lists: ("Port 'reduce(a[])'", "lists", "boolean"),
    mask_of_lists_below: ("Port 'broadcast(reduce(a[]))'", "lists", "boolean"),
    settled_mask: ("Port 'settle(a)'", "Hole", "F.settle(F.filter(x, mask))"),
    settled_mask_below: ("is settled", "Hole"),
    expand_expanded: ("Port 'a[]'", "result of F.expand", "Items already"),
    expand_filtered: ("Port 'filter(a, b)'", "F.filter(children"),
    expand_reduced: ("Port 'reduce(a[])'", "just gathered"),
    expand_settled: ("Port 'settle(a)'", "A Hole is not a list"),
    expand_broadcast: ("Port 'broadcast(b)'", "Let a Call return the list"),
    expand_again_differently: ("Port 'two.1'", "expanded before", "F.expand_aligned"),
    expand_under_two_names: ("Domain 'page'", "'sheet'", "Expand once"),
    one_name_for_two: ("already a Domain 'page'", "its own name"),
    empty_name: ("name=...", "' '"),
    aligned_of_two_calls: ("Port 'a'", "Port 'b'", ".returns(n)"),
    aligned_sources: ("Port 'x'", "Port 'y'", ".returns(n)"),
    aligned_twice: ("same Port twice", "once"),
    aligned_nothing: ("at least one Port",),
    reduce_nothing: ("at least one Port",),
    optional_elsewhere: ("F.optional(...)", "self.module(F.optional(x))"),
    no_port: ("must be a Port, not str ('x')",),
    call_without_port: ("Unit was called without a Port",),
    static_positional: ("argument 1 of Unit", "int", "self.module(x, name=3)"),
    port_in_a_list: ("'others'", "holds a Port inside a list", "argument of its own"),
    unpicklable_static: ("static argument 'lock' of Call 'a'", "cannot be pickled", "__init__"),
    wrong_keyword: ("Pair cannot be called", "stage", "run(self, *columns"),
}


@pytest.mark.parametrize("forward", CASES, ids=lambda f: f.__name__)
def test_a_broken_rule_is_named_with_its_line_and_its_mend(forward):
    with pytest.raises(CompileError) as caught:
        program(forward).compile()
    text = str(caught.value)
    for fragment in CASES[forward]:
        assert fragment in text
    assert "test_compile_errors.py:" in caught.value.where
    assert caught.value.where.endswith("# here")
    assert caught.value.next_step


RETURNS = {
    "nothing": (lambda self, x: None, "not nothing"),
    "a list": (lambda self, x: [self.a(x)], "not list"),
    "a dict": (lambda self, x: {"a": x}, "not dict"),
    "an empty tuple": (lambda self, x: (), "not tuple"),
    "a value": (lambda self, x: 3, "not int (3)"),
    "a value inside a tuple": (lambda self, x: (x, 3), "not int (3)"),
    "an optional": (lambda self, x: F.optional(x), "not OptionalPort"),
}


@pytest.mark.parametrize("name", RETURNS)
def test_forward_returns_ports(name):
    forward, fragment = RETURNS[name]
    with pytest.raises(CompileError, match="must return a Port or a non-empty tuple of Ports") as caught:
        program(forward).compile()
    assert fragment in str(caught.value)
    assert "test_compile_errors.py:" in caught.value.where


SIGNATURES = {
    "no source": (lambda self: None, "has no source"),
    "star": (lambda self, *docs: docs[0], r"parameter '\*docs'"),
    "keyword": (lambda self, docs, *, dpi=3: docs, "parameter 'dpi=3'"),
    "keywords": (lambda self, docs, **rest: docs, r"parameter '\*\*rest'"),
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_forward_takes_one_positional_parameter_a_source(name):
    forward, match = SIGNATURES[name]
    with pytest.raises(CompileError, match=match):
        program(forward).compile()


def test_a_pipeline_without_forward():
    with pytest.raises(CompileError, match="has no forward"):
        Pipeline().compile()


def test_a_port_that_leaks_into_another_program():
    kept = []

    def keep(self, docs):
        kept.append(docs)
        return docs

    program(keep).compile()
    with pytest.raises(CompileError) as caught:
        program(lambda self, x: self.a(kept[0])).compile()  # the leak
    assert "Port 'docs' (Domain 'source'" in caught.value.message
    assert "another program ('Program')" in caught.value.message
    assert caught.value.where.endswith("# the leak")


def test_a_port_that_leaks_out_of_an_earlier_trace_of_the_same_program():
    def keep(self, x):
        self.kept = getattr(self, "kept", x)
        return self.a(self.kept)

    pipeline = program(keep)
    pipeline.compile()
    with pytest.raises(CompileError, match="another program"):
        pipeline.compile()


@pytest.mark.parametrize("use", [lambda: RayModule(Unit)(3), lambda: F.expand(3)])  # type: ignore[arg-type]
def test_calls_and_primitives_outside_forward(use):
    with pytest.raises(CompileError, match=r"outside Pipeline\.forward"):
        use()


def test_a_port_made_by_hand():
    with pytest.raises(CompileError, match="cannot be made by hand"):
        Port(3, 4)  # type: ignore[arg-type]


def test_a_forward_that_never_ends(monkeypatch):
    monkeypatch.setattr(trace_module, "MAX_PORTS", 500)

    def endless(self, x):
        while True:
            x = self.a(x)

    with pytest.raises(CompileError, match=r"more than 500 Ports"):
        program(endless).compile()


def test_a_forward_that_calls_itself():
    def again(self, x):
        return self.forward(self.a(x))

    with pytest.raises(CompileError, match="does not end"):
        program(again).compile()


def test_errors_of_forward_itself_stay_what_they_are():
    def broken(self, x):
        return self.nothing_of_that_name(x)

    with pytest.raises(AttributeError, match="nothing_of_that_name"):
        program(broken).compile()


def test_an_attribute_of_a_port_says_what_a_port_is():
    with pytest.raises(AttributeError, match="stands for values that exist only when the program runs"):
        program(lambda self, x: self.a(x.pages)).compile()


class Nothing:
    pass


class Generator:
    def run(self, xs):
        yield from xs


class Async:
    async def run(self, xs):
        return xs


BAD_FUNCTIONS = {
    "class without run": (Nothing, "has no run method"),
    "number": (3, "has no run method"),
    "instance without run": (Nothing(), "has no run method"),
    "generator": (Generator, "is a generator"),
    "async": (Async, "is async"),
    "module": (RayModule(Unit), "is a RayModule already"),
}


@pytest.mark.parametrize("name", BAD_FUNCTIONS)
def test_what_is_no_function(name):
    udf, message = BAD_FUNCTIONS[name]
    with pytest.raises(CompileError) as caught:
        RayModule(udf)  # here
    assert message in str(caught.value).replace("it has no run", "has no run")
    assert caught.value.where.endswith("# here")


class Strict:
    def __init__(self, path, *, dpi=200):
        self.path = path

    def run(self, xs):
        return xs


def test_constructor_arguments_that_do_not_fit():
    with pytest.raises(CompileError, match=r"Strict.__init__ does not take .*'colour'") as caught:
        RayModule(Strict).pre_init("x", colour=3)  # here
    assert caught.value.where.endswith("# here")


def test_constructor_arguments_that_were_forgotten():
    module = RayModule(Strict)  # here
    with pytest.raises(CompileError, match=r"module 'strict' cannot construct Strict.*'path'") as caught:
        program(lambda self, x: self.strict(x), strict=module).compile()
    assert caught.value.where.endswith("# here")
    assert "pre_init" in caught.value.next_step


def test_a_port_as_a_constructor_argument():
    with pytest.raises(CompileError, match="pre_init argument 0 of Unit is a Port"):
        program(lambda self, x: RayModule(Unit).pre_init(x)(x)).compile()


class Holder:
    def __init__(self, value):
        self.value = value


def in_a_closure(self, x):
    return RayModule(lambda xs: [x for _ in xs])(x)  # here


def in_an_object(self, x):
    return RayModule(Unit).pre_init(Holder(x))(x)  # here


def copied(self, x):
    return copy.copy(self.a(x))  # here


@pytest.mark.parametrize("forward", [in_a_closure, in_an_object, copied])
def test_a_hidden_port_is_told_at_the_users_line(forward):
    with pytest.raises(CompileError) as caught:
        program(forward).compile()
    assert caught.value.where.endswith("# here"), caught.value


def test_a_function_that_cannot_be_pickled():
    lock = threading.Lock()

    def hold(xs):
        with lock:
            return xs

    module = function(hold)  # here
    with pytest.raises(CompileError, match=r"the Function hold of module 'locked' cannot be pickled") as caught:
        program(lambda self, x: self.locked(x), locked=module).compile()
    assert caught.value.where.endswith("# here")


def test_a_constructor_argument_that_cannot_be_pickled():
    module = RayModule(Unit).pre_init(stream=io.TextIOWrapper(io.BytesIO()))
    with pytest.raises(CompileError, match=r"pre_init argument 'stream' of module 'odd' cannot be pickled"):
        program(lambda self, x: self.odd(x), odd=module).compile()


def test_a_value_without_a_stable_fingerprint():
    view = memoryview(b"it can be pickled, and says nothing but its address")
    with pytest.raises(CompileError, match="static argument 'view' of Call 'a' has no stable fingerprint"):
        program(lambda self, x: self.a(x, view=view)).compile()


def test_parent_bound_needs_a_parent():
    module = RayModule(Unit).ray_options(batching="parent_bound")
    good = program(lambda self, x: F.reduce(self.bound(F.expand(self.a(x)))), bound=module)
    assert good.compile()
    bad = program(lambda self, x: self.bound(x), bound=module)
    with pytest.raises(CompileError, match="Call 'bound' is in the root Domain") as caught:
        bad.compile()
    assert 'batching="elastic"' in caught.value.next_step


def test_the_number_of_outputs_may_not_change_between_calls():
    def forward(self, x):
        y, _ = self.two(x)
        self.two.returns(1)
        return self.two(y)

    with pytest.raises(CompileError, match="returned 2 outputs in an earlier Call and 1"):
        program(forward).compile()


@pytest.mark.parametrize("count", [0, -1, 1.5, True, "2"])
def test_counts_of_outputs(count):
    with pytest.raises(CompileError, match="positive integer"):
        RayModule(Unit).returns(count)
    with pytest.raises(CompileError, match="positive integer"):
        RayModule(Unit, num_outputs=count)


def test_an_unused_source_is_a_warning_at_its_line():
    with pytest.warns(UserWarning, match="source 'y' of Program is never used") as caught:
        program(lambda self, x, y: self.a(x)).compile()
    assert caught[0].filename.endswith("test_compile_errors.py")


def test_constructor_arguments_of_a_plain_function_are_a_warning():
    with pytest.warns(UserWarning, match="has no effect"):
        RayModule(len).pre_init(3)


@pytest.mark.parametrize("name", ["", " ", "two\nlines", "tab\t", 3])
def test_a_domain_is_named_on_one_line(name):
    with pytest.raises(CompileError, match="must be a string on one line"):
        program(lambda self, x: F.reduce(F.expand(self.a(x), name=name))).compile()
