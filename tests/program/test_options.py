"""ray_options: checked where it is said, without Ray."""

from __future__ import annotations

import pytest

from rayorch_flows import CompileError, Pipeline, RayModule, RecoveryMode, RecoveryPolicy
from rayorch_flows.program.options import build_options
from tests.program.functions import Unit

REFUSED = [
    ("replicas", 0),
    ("replicas", True),
    ("replicas", 1.5),
    ("batch_size", 0),
    ("batch_size", "8"),
    ("recovery", "abort"),
    ("batching", "greedy"),
    ("slow_start", 0),
    ("slow_start", 1.5),
    ("deadline_s", 0),
    ("deadline_s", -1),
    ("deadline_s", True),
    ("deadline_s", float("inf")),
    ("max_in_flight", 0),
    ("max_ready_bytes", -1),
    ("max_ready_bytes", 1.5),
    ("num_cpus", -1),
    ("num_cpus", "2"),
    ("num_cpus", float("nan")),
    ("num_gpus", 1.5),
    ("num_gpus", 0.00001),
    ("memory", -5),
    ("object_store_memory", 1.5),
    ("resources", ["a"]),
    ("resources", {"a": -1}),
    ("resources", {"GPU": 1}),
    ("resources", {1: 1}),
    ("resources", {"": 1}),
    ("runtime_env", "env"),
    ("runtime_env", {"env_vars": {"A": 1}}),
    ("runtime_env", {"pip": 3}),
    ("runtime_env", {"pip": "no-such-file.txt"}),
    ("runtime_env", {"pip": ["a"], "conda": "b"}),
    ("runtime_env", {"working_dir": "/no/such/folder"}),
    ("runtime_env", {"working_dir": "s3://bucket/folder"}),
    ("runtime_env", {"py_modules": "x"}),
    ("runtime_env", {"excludes": "x"}),
    ("runtime_env", {"pipp": ["a"]}),
    ("placement_group", "x"),
    ("label_selector", {"a b": "c"}),
    ("label_selector", {"a": "c d"}),
    ("label_selector", {"": "a"}),
    ("fallback_strategy", [1]),
    ("fallback_strategy", [{"label_selector": {"a b": "c"}}]),
    ("accelerator_type", 3),
    ("scheduling_strategy", "RANDOM"),
    ("scheduling_strategy", 3),
    ("label_selector", {"a": 1}),
    ("label_selector", "a"),
    ("placement_group_bundle_index", -2),
    ("enable_task_events", 1),
]


@pytest.mark.parametrize(("name", "value"), REFUSED)
def test_a_value_that_does_not_fit(name, value):
    with pytest.raises(CompileError) as caught:
        RayModule(Unit).ray_options(**{name: value})  # here
    assert f"ray_options({name}=" in caught.value.message
    assert "expected" in caught.value.message
    assert caught.value.where.endswith("# here")


@pytest.mark.parametrize(
    ("name", "hint"), [("batchsize", "batch_size="), ("gpus", "num_gpus="), ("qqq", "Known options")]
)
def test_an_option_that_nobody_knows(name, hint):
    with pytest.raises(CompileError, match="neither we nor Ray know") as caught:
        RayModule(Unit).ray_options(**{name: 1})
    assert hint in caught.value.next_step


ACCEPTED = [
    {"num_cpus": 0},
    {"num_gpus": 0.5},
    {"num_gpus": 2},
    {"num_gpus": 2.0},
    {"memory": 1e9},
    {"resources": {"tpu": 1}},
    {"runtime_env": {"env_vars": {"A": "1"}}},
    {"scheduling_strategy": "SPREAD"},
    {"accelerator_type": "A100"},
    {"runtime_env": {"pip": ["a"], "excludes": ["x"], "working_dir": "s3://bucket/code.zip", "env_vars": None}},
    {"runtime_env": {"conda": "science"}},
    {"placement_group": "default"},
    {"label_selector": {"zone": "a"}},
    {"label_selector": {"ray.io/zone": "!in(a, b)", "c": "!d"}},
    {"fallback_strategy": [{"label_selector": {"zone": "b"}}]},
    {"placement_group_bundle_index": -1},
]


@pytest.mark.parametrize("options", ACCEPTED, ids=str)
def test_what_is_passed_on_to_ray(options):
    module = RayModule(Unit).ray_options(**options)
    assert build_options(module.options).actor == tuple(options.items())


def test_none_is_unset():
    assert build_options(RayModule(Unit).ray_options(num_cpus=None, deadline_s=None).options).actor == ()


@pytest.mark.parametrize(("given", "window"), [(True, 8), (False, 0), (32, 32)])
def test_slow_start(given, window):
    assert build_options(RayModule(Unit).ray_options(slow_start=given).options).slow_start == window


def test_a_second_call_adds_to_the_first():
    options = build_options(RayModule(Unit).ray_options(batch_size=4, replicas=2).ray_options(replicas=3).options)
    assert (options.batch_size, options.replicas) == (4, 3)


@pytest.mark.parametrize("name", ["name", "lifetime", "max_restarts", "max_task_retries", "max_concurrency"])
def test_what_the_engine_decides_is_a_warning_and_goes_no_further(name):
    with pytest.warns(UserWarning, match="has no effect") as caught:
        module = RayModule(Unit).ray_options(**{name: 1})
    assert caught[0].filename.endswith("test_options.py")
    assert module.options == {}


def test_our_table_and_that_of_the_installed_ray_name_the_same_options():
    ray_options = pytest.importorskip("ray._common.ray_option_utils")
    from rayorch_flows.program.options import ENGINE_OPTIONS, RAY_OPTIONS

    known = {name for name in ray_options.actor_options if not name.startswith("_")}
    assert known <= RAY_OPTIONS.keys() | ENGINE_OPTIONS.keys() | {"enable_tensor_transport"}
    assert RAY_OPTIONS.keys() <= known


def test_what_our_table_accepts_the_installed_ray_accepts():
    ray_options = pytest.importorskip("ray._common.ray_option_utils")
    environments = pytest.importorskip("ray.runtime_env")
    for options in ACCEPTED:
        ray_options.validate_actor_options(options, in_options=False)
        environments.RuntimeEnv(**options.get("runtime_env", {}))


def test_the_fields_of_a_runtime_environment_are_those_of_the_installed_ray():
    environments = pytest.importorskip("ray.runtime_env")
    from rayorch_flows.program.ray_values import _FIELDS

    known = {name.removeprefix("_") for name in environments.RuntimeEnv.known_fields}
    assert known >= _FIELDS.keys()
    assert known - _FIELDS.keys() <= {"inject_current_ray", "ray_commit", "ray_release", "rocprof_sys"}


def test_what_the_installed_ray_refuses_in_runtime_environments_and_labels_is_refused():
    ray_options = pytest.importorskip("ray._common.ray_option_utils")
    environments = pytest.importorskip("ray.runtime_env")
    for name, value in REFUSED:
        if name == "runtime_env" and isinstance(value, dict) and "pipp" not in value:
            with pytest.raises((ValueError, TypeError)):
                environments.RuntimeEnv(**value)
        elif name in ("label_selector", "fallback_strategy"):
            with pytest.raises((ValueError, TypeError)):
                ray_options.validate_actor_options({name: value}, in_options=False)


def test_the_numbers_that_the_installed_ray_refuses_are_refused():
    ray_options = pytest.importorskip("ray._common.ray_option_utils")
    for name, value in [("num_cpus", -1), ("num_gpus", 0.00001), ("resources", {"GPU": 1}), ("runtime_env", "env")]:
        assert (name, value) in REFUSED
        with pytest.raises((ValueError, TypeError)):
            ray_options.validate_actor_options({name: value}, in_options=False)


def test_a_recovery_mode_is_checked_and_may_be_a_string():
    assert RecoveryPolicy("retry_tail").udf_mode is RecoveryMode.RETRY_TAIL  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'abort', 'retry_batch', 'retry_tail', 'isolate_tail', not 'explode'"):
        RecoveryPolicy("explode")  # type: ignore[arg-type]


def test_a_bundle_of_no_placement_group():
    class One(Pipeline):
        def __init__(self):
            super().__init__()
            self.unit = RayModule(Unit).ray_options(placement_group_bundle_index=5)  # here

        def forward(self, x):
            return self.unit(x)

    with pytest.raises(CompileError, match="together with a group") as caught:
        One().compile()
    assert caught.value.where.endswith("# here")
