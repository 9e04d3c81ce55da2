"""What a program compiles to: Domains, Ports, Calls and the flags that tell what a payload is needed for."""

from __future__ import annotations

from rayorch_flows import F, Pipeline, RayModule, function
from rayorch_flows.program.plan import NO_ID, Batching, Options, OutputShape, PortKind
from rayorch_flows.program.recovery import RecoveryPolicy
from tests.program.functions import Pair, Unit, program


def port(plan, name):
    return next(p for p in plan.ports if p.name == name)


def names(plan, ids):
    return [plan.ports[i].name for i in ids]


def document(self, docs):
    pages, layouts = F.expand_aligned(*self.two(docs), name="page")
    keep = self.a(layouts)
    good = F.filter(pages, keep)
    tables = F.expand(self.b(good), name="table")
    seen = F.broadcast(good, like=tables)
    read = F.settle(self.c(tables, seen))
    gathered = F.reduce(read)
    return F.reduce(self.c(good, F.optional(gathered), stage="page"), members=keep)


def test_ids_are_places_and_inputs_come_first():
    plan = program(document).compile()
    for group in (plan.ports, plan.domains, plan.calls, plan.modules):
        assert [x.id for x in group] == list(range(len(group)))
    for p in plan.ports:
        inputs = p.inputs
        if p.kind is PortKind.CALL:
            inputs = tuple(i.port for i in plan.calls[p.call].inputs)
        assert all(i < p.id for i in inputs)
    assert all(d.parent < d.id for d in plan.domains)


def test_domains_form_the_tree_of_the_expands():
    plan = program(document).compile()
    assert [(d.name, d.parent, d.depth) for d in plan.domains] == [
        ("source", NO_ID, 0),
        ("page", 0, 1),
        ("table", 1, 2),
    ]
    page, table = plan.domains[1:]
    assert names(plan, page.groups) == ["two.0", "two.1"]
    assert names(plan, page.ports) == ["page.0", "page.1"]
    assert names(plan, table.groups) == ["b"]
    assert names(plan, table.ports) == ["table"]


def test_calls_are_named_after_the_attributes_and_carry_their_arguments():
    plan = program(document).compile()
    assert [c.name for c in plan.calls] == ["two", "a", "b", "c", "c#2"]
    assert [m.name for m in plan.modules] == ["two", "a", "b", "c"]
    last = plan.calls[4]
    assert names(plan, [i.port for i in last.inputs]) == ["filter(page.0, a)", "reduce(settle(c))"]
    assert [i.optional for i in last.inputs] == [False, True]
    assert last.kwargs == (("stage", "page"),)
    assert last.module == plan.calls[3].module
    assert last.domain == 1


def test_payloads_are_held_where_they_were_made():
    plan = program(document).compile()
    for name, holder in {
        "filter(page.0, a)": "page.0",
        "broadcast(filter(page.0, a))": "page.0",
        "settle(c)": "c",
        "reduce(settle(c))": "reduce(settle(c))",
        "page.1": "page.1",
    }.items():
        assert plan.ports[port(plan, name).holder].name == holder


def test_flags_say_what_a_payload_is_needed_for():
    plan = program(document).compile()
    flags = {p.name: (p.as_value, p.as_group, p.as_mask) for p in plan.ports}
    none = (False, NO_ID, False)
    assert flags == {
        "docs": (True, NO_ID, False),
        "two.0": (False, 1, False),
        "two.1": (False, 1, False),
        "page.0": (True, NO_ID, False),
        "page.1": (True, NO_ID, False),
        "a": (False, NO_ID, True),
        "filter(page.0, a)": none,
        "b": (False, 2, False),
        "table": (True, NO_ID, False),
        "broadcast(filter(page.0, a))": none,
        "c": (True, NO_ID, False),
        "settle(c)": none,
        "reduce(settle(c))": none,
        "c#2": (True, NO_ID, False),
        "reduce(c#2)": none,
    }


def test_a_group_that_is_also_read_is_both():
    plan = program(lambda self, x: (F.reduce(F.expand(y := self.a(x))), y)).compile()
    assert (port(plan, "a").as_value, port(plan, "a").as_group) == (True, 1)


def test_elements_that_nobody_looks_at_are_not_values():
    plan = program(lambda self, x: (F.expand(self.a(x)), x)[1]).compile()
    assert not port(plan, "a[]").as_value


def test_members_alone_are_not_values():
    def forward(self, x):
        p = F.expand(self.a(x))
        return F.reduce(p, members=self.b(p))

    assert not port(program(forward).compile(), "b").as_value


def test_a_broadcast_mask_marks_the_port_that_holds_it():
    def forward(self, x):
        p = F.expand(self.a(x))
        return F.reduce(F.filter(p, F.broadcast(F.filter(self.b(x), self.c(x)), like=p)))

    plan = program(forward).compile()
    assert {p.name for p in plan.ports if p.as_mask} == {"b", "c"}


def test_an_expanded_mask_marks_the_expanded_port():
    def forward(self, x):
        p, keep = F.expand_aligned(*self.two(x))
        return F.reduce(F.filter(p, keep))

    assert [p.name for p in program(forward).compile().ports if p.as_mask] == ["two[].1"]


def test_depth_counts_reduced_lists():
    def forward(self, x):
        p = F.expand(self.a(x))
        q = F.expand(self.b(p))
        inner = F.reduce(F.settle(q))
        return F.reduce(F.filter(inner, self.c(p)))

    plan = program(forward).compile()
    depth = {p.name: p.depth for p in plan.ports}
    assert depth["reduce(settle(b[]))"] == 1
    assert depth["filter(reduce(settle(b[])), c)"] == 1
    assert depth["reduce(filter(reduce(settle(b[])), c))"] == 2
    assert depth["b[]"] == depth["b"] == 0


def test_a_source_may_be_expanded():
    plan = program(lambda self, docs: F.reduce(self.a(F.expand(docs)))).compile()
    assert plan.domains[1].name == "docs[]"
    assert (port(plan, "docs").as_group, port(plan, "docs").as_value) == (1, False)


def test_expanding_again_gives_the_same_children():
    def forward(self, x):
        y = self.a(x)
        first, second = F.expand(y), F.expand(y)
        return F.reduce(self.b(first, second))

    plan = program(forward).compile()
    assert len(plan.domains) == 2
    assert [i.port for i in plan.calls[1].inputs] == [2, 2]


def test_sibling_domains_merge_at_their_parent():
    def forward(self, x):
        frames, audio = F.expand(self.a(x), name="frame"), F.expand(self.b(x), name="audio")
        return self.c(F.reduce(frames), F.reduce(audio))

    plan = program(forward).compile()
    assert [d.parent for d in plan.domains] == [NO_ID, 0, 0]
    assert plan.calls[2].domain == 0


def test_a_broadcast_in_the_same_domain_is_the_port_itself():
    plan = program(lambda self, x: self.a(x, F.broadcast(x, like=self.b(x)))).compile()
    assert [i.port for i in plan.calls[1].inputs] == [0, 0]
    assert not any(p.kind is PortKind.BROADCAST for p in plan.ports)


def test_reports_describe_a_domain_by_what_is_reduced_under_the_settle():
    plan = program(document).compile()
    assert plan.ports[plan.domains[2].result].name == "c"
    assert plan.ports[plan.domains[1].result].name == "c#2"
    assert plan.domains[0].result == plan.outputs[0]


def test_reports_describe_a_domain_that_is_never_reduced_by_its_last_port():
    def forward(self, x):
        p = F.expand(self.a(x))
        self.b(p)
        return self.c(x)

    plan = program(forward).compile()
    assert plan.ports[plan.domains[1].result].name == "b"


def test_outputs_of_a_child_domain_leave_the_root_its_last_port():
    plan = program(lambda self, x: self.b(F.expand(self.a(x)))).compile()
    assert plan.ports[plan.outputs[0]].domain == 1
    assert plan.ports[plan.domains[0].result].name == "a"


def test_outputs_keep_the_nesting_of_their_tuple():
    single = program(lambda self, x: self.a(x)).compile()
    assert (single.shape, single.layout, names(single, single.outputs)) == (OutputShape.SINGLE, 0, ["a"])
    one = program(lambda self, x: (self.a(x),)).compile()
    assert (one.shape, one.layout) == (OutputShape.TUPLE, (0,))
    nested = program(lambda self, x: (self.a(x), (x, (self.b(x), x)))).compile()
    assert nested.layout == (0, (1, (2, 3)))
    assert names(nested, nested.outputs) == ["a", "x", "b", "x"]


def test_several_outputs_are_several_ports():
    plan = program(lambda self, x: self.two(x)).compile()
    assert names(plan, plan.calls[0].outputs) == ["two.0", "two.1"]
    assert [port(plan, f"two.{i}").index for i in (0, 1)] == [0, 1]


def test_a_port_may_come_by_keyword():
    plan = program(lambda self, x, y: self.a(x, other=y, mode=3)).compile()
    assert [(i.port, i.name) for i in plan.calls[0].inputs] == [(0, ""), (1, "other")]
    assert plan.calls[0].kwargs == (("mode", 3),)


def test_dead_calls_stay():
    plan = program(lambda self, x: (self.a(x), self.b(x))[0]).compile()
    assert [c.name for c in plan.calls] == ["a", "b"]


def test_one_module_in_several_calls_is_one_pool():
    plan = program(lambda self, x: self.a(self.a(x, stage="one"), stage="two")).compile()
    assert [c.module for c in plan.calls] == [0, 0]
    assert len(plan.modules) == 1


def test_modules_are_found_in_containers_nested_programs_and_classes():
    class Inner(Pipeline):
        def __init__(self):
            self.model = RayModule(Unit)

        def forward(self, x):
            return self.model(x)

    class Outer(Pipeline):
        shared = RayModule(Unit)

        def __init__(self):
            self.heads = [RayModule(Unit), RayModule(Unit)]
            self.by_name = {"low": RayModule(Unit)}
            self.inner = Inner()

        def forward(self, x):
            x = self.inner.forward(self.shared(x))
            return self.by_name["low"](self.heads[1](x)), RayModule(Pair).returns(2)(x)

    plan = Outer().compile()
    assert [m.name for m in plan.modules] == ["shared", "inner.model", "heads[1]", "by_name[low]", "Pair"]
    assert plan.name == "Outer"


def test_a_program_may_compile_another_one_while_it_is_traced():
    inner = program(lambda self, x: self.a(x))

    def forward(self, x):
        assert len(inner.compile().calls) == 1
        return self.b(x)

    assert [c.name for c in program(forward).compile().calls] == ["b"]


def test_the_forms_of_a_function():
    @function
    def double(xs):
        return [2 * x for x in xs]

    @function(num_outputs=2)
    def split(xs):
        return xs, xs

    class Callable:
        def __call__(self, xs):
            return xs

    modules = {
        "double": double,
        "split": split,
        "callable": RayModule(Callable),
        "instance": RayModule(Unit(3)),
        "anonymous": RayModule(lambda xs: xs),
    }

    def forward(self, x):
        return self.double(x), self.split(x), self.callable(x), self.instance(x), self.anonymous(x)

    plan = program(forward, **modules).compile()
    assert [m.name for m in plan.modules] == list(modules)
    assert [m.outputs for m in plan.modules] == [1, 2, 1, 1, 1]


def test_options_arrive_and_default():
    module = RayModule(Unit).ray_options(
        replicas=2,
        batch_size=8,
        batching="parent_bound",
        recovery=RecoveryPolicy.isolate_tail(),
        slow_start=16,
        deadline_s=2,
        max_in_flight=1,
        max_ready_bytes=1000,
        num_gpus=0.5,
        num_cpus=2,
        resources=None,
    )
    plan = program(lambda self, x: F.reduce(self.m(F.expand(self.a(x)))), m=module).compile()
    assert plan.modules[0].options == Options()
    assert plan.modules[1].options == Options(
        2,
        8,
        Batching.PARENT_BOUND,
        RecoveryPolicy.isolate_tail(),
        16,
        2.0,
        1,
        1000,
        (("num_cpus", 2), ("num_gpus", 0.5)),
    )


def test_constructor_arguments_arrive_and_a_second_pre_init_replaces_the_first():
    module = RayModule(Unit).pre_init(1, x=2).pre_init(3, y=4)
    plan = program(lambda self, x: self.m(x), m=module).compile()
    assert (plan.modules[0].args, plan.modules[0].kwargs) == ((3,), (("y", 4),))


def test_every_port_and_call_knows_its_line():
    plan = program(document).compile()
    assert all(p.where and p.where.file.endswith("test_wiring.py") for p in plan.ports)
    assert port(plan, "settle(c)").where.text == "read = F.settle(self.c(tables, seen))"
    assert plan.calls[0].where.text.startswith("pages, layouts")
    assert plan.modules[0].where.file.endswith("functions.py")
