"""A Plan can be pickled, compared and sent, and nobody changes it."""

from __future__ import annotations

import dataclasses
import importlib.util
import pickle
import subprocess
import sys
from pathlib import Path

import cloudpickle
import pytest

from rayorch_flows import F, RayModule
from rayorch_flows.program.values import pickling
from tests.program.functions import Unit, program

ROOT = Path(__file__).resolve().parents[2]


def forward(self, x):
    return F.reduce(self.a(F.expand(self.b(x)), table={"k": [1]}))


def test_plain_pickle_takes_a_plan_with_a_class_of_this_function():
    class Local:
        def run(self, xs):
            return [x + 1 for x in xs]

    plan = program(lambda self, x: self.local(x), local=RayModule(Local)).compile()
    copy = pickle.loads(pickle.dumps(plan))
    assert copy.modules[0].function().run([1]) == [2]
    assert copy.semantic_fingerprint == plan.semantic_fingerprint
    assert copy.ports == plan.ports
    assert copy.domains == plan.domains
    assert copy.calls == plan.calls


@pytest.mark.parametrize("dumps", [pickle.dumps, cloudpickle.dumps])
def test_an_importable_plan_is_equal_after_pickling(dumps):
    plan = program(forward).compile()
    assert pickle.loads(dumps(plan)) == plan


def test_two_compilations_are_equal():
    assert program(forward).compile() == program(forward).compile()


def test_nothing_can_be_set():
    plan = program(forward).compile()
    for value in (plan, plan.ports[0], plan.domains[0], plan.calls[0], plan.modules[0], plan.modules[0].options):
        field = dataclasses.fields(value)[0].name
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, field, None)


def test_what_the_user_does_to_his_lists_later_does_not_reach_the_plan():
    table = {"k": [1]}
    plan = program(lambda self, x: self.a(x, table=table)).compile()
    table["k"].append(2)
    assert plan.calls[0].kwargs == (("table", {"k": [1]}),)


def test_options_set_after_compiling_do_not_reach_the_plan():
    module = RayModule(Unit)
    plan = program(lambda self, x: self.m(x), m=module).compile()
    module.ray_options(batch_size=9)
    assert plan.modules[0].options.batch_size == 1


def test_a_function_from_a_file_that_no_import_finds_travels_with_its_code(tmp_path):
    file = tmp_path / "my_flow.py"
    file.write_text("class Triple:\n    def run(self, xs):\n        return [3 * x for x in xs]\n")
    spec = importlib.util.spec_from_file_location("flow_given_as_a_file", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    try:
        plan = program(lambda self, x: self.m(x), m=RayModule(module.Triple)).compile()
        payload = cloudpickle.dumps((plan.modules[0].function, (), {}))
    finally:
        cloudpickle.unregister_pickle_by_value(module)
        del sys.modules[spec.name]
    script = "import cloudpickle, sys; f, a, k = cloudpickle.load(sys.stdin.buffer); print(f(*a, **k).run([2]))"
    out = subprocess.run([sys.executable, "-c", script], input=payload, capture_output=True, check=True, cwd=ROOT)
    assert out.stdout.strip() == b"[6]"


def test_a_function_that_an_import_finds_travels_by_name():
    payload = pickling.dumps(Unit)
    program(lambda self, x: self.a(x)).compile()
    assert pickling.dumps(Unit) == payload
    assert len(payload) < 100


class Box:
    def __init__(self, value):
        self.value = value

    def run(self, xs):
        return xs


def test_constructor_arguments_changed_after_compiling_do_not_reach_the_plan():
    config, items, box = {"a": [1]}, [{2}], Box([3])
    plan = program(lambda self, x: self.m(x), m=RayModule(Unit).pre_init(config, items=items, box=box)).compile()
    config["a"].append(9)
    items[0].add(9)
    box.value.append(9)
    module = plan.modules[0]
    kwargs = dict(module.kwargs)
    assert module.args == ({"a": [1]},)
    assert kwargs["items"] == [{2}]
    assert kwargs["box"].value == [3]


def test_an_instance_changed_after_compiling_does_not_reach_the_plan():
    box = Box([1])
    plan = program(lambda self, x: self.m(x), m=RayModule(box)).compile()
    box.value.append(2)
    assert plan.modules[0].function.value == [1]


def test_options_changed_after_they_were_said_do_not_reach_the_plan():
    env = {"env_vars": {"A": "1"}}
    plan = program(lambda self, x: self.m(x), m=RayModule(Unit).ray_options(runtime_env=env)).compile()
    env["env_vars"]["A"] = "2"
    assert dict(plan.modules[0].options.actor) == {"runtime_env": {"env_vars": {"A": "1"}}}


def test_a_container_that_holds_itself_is_copied():
    loop = []
    loop.append(loop)
    plan = program(lambda self, x: self.m(x), m=RayModule(Unit).pre_init(loop)).compile()
    copied = plan.modules[0].args[0]
    assert copied is not loop
    assert copied[0] is copied


def test_a_plan_with_a_dict_among_its_options_is_hashable():
    def make():
        return program(lambda self, x: self.m(x), m=RayModule(Unit).ray_options(resources={"tpu": 1})).compile()

    plan = make()
    assert hash(plan) == hash(pickle.loads(pickle.dumps(plan)))
