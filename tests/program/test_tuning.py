"""Options of a compiled Plan change how it runs, and never what its records mean."""

from __future__ import annotations

import pytest

from rayorch_flows import CompileError, F, Pipeline, RayModule, RecoveryPolicy
from rayorch_flows.program.tuning import tuned
from tests.program.functions import Unit


class Twice(Pipeline):
    def __init__(self, **options):
        super().__init__()
        self.ocr = RayModule(Unit).ray_options(replicas=2, batch_size=4, num_cpus=0.5, **options)
        self.join = RayModule(Unit)

    def forward(self, rows):
        return self.join(self.ocr(self.ocr(rows)))


PLAN = Twice().compile()


def options(plan, name):
    return next(module.options for module in plan.modules if module.name == name)


def test_only_what_is_named_changes():
    plan = tuned(PLAN, {"ocr": {"batch_size": 16, "num_gpus": 1, "recovery": RecoveryPolicy.isolate_tail()}})
    assert options(plan, "ocr").batch_size == 16
    assert options(plan, "ocr").replicas == 2
    assert options(plan, "ocr").recovery == RecoveryPolicy.isolate_tail()
    assert dict(options(plan, "ocr").actor) == {"num_cpus": 0.5, "num_gpus": 1}
    assert options(plan, "join") == options(PLAN, "join")


def test_the_records_mean_the_same_and_another_host_runs_it():
    plan = tuned(PLAN, {"ocr": {"replicas": 3}})
    assert plan.semantic_fingerprint == PLAN.semantic_fingerprint
    assert plan.physical_fingerprint != PLAN.physical_fingerprint


def test_it_is_the_plan_that_says_so_itself():
    """Same options, same engine host, whoever says them."""
    said = Twice(num_gpus=1, max_in_flight=3).compile()
    assert tuned(PLAN, {"ocr": {"num_gpus": 1, "max_in_flight": 3}}) == said
    assert tuned(said, {"ocr": {"num_gpus": 1}}) == said
    assert tuned(PLAN, {}) == PLAN


def test_any_call_stands_for_its_module():
    assert tuned(PLAN, {"ocr#2": {"replicas": 7}}) == tuned(PLAN, {"ocr": {"replicas": 7}})
    assert options(tuned(PLAN, {"ocr": {"replicas": 7}, "ocr#2": {"replicas": 7}}), "ocr").replicas == 7


@pytest.mark.parametrize(
    ("changes", "message", "hint"),
    [
        ({"ocrr": {"replicas": 2}}, "Twice has no Call named 'ocrr'", "Did you mean 'ocr'?"),
        ({"x": {}}, "no Call named 'x'", "Its Calls are: ocr, ocr#2, join."),
        ({"ocr": {"replicas": 2}, "ocr#2": {"replicas": 3}}, "share its actors", "one of them only"),
        ({"ocr": {"replicas": 0}}, "ray_options(replicas=0) of module 'ocr'", ""),
        ({"ocr": {"batchsize": 2}}, "neither we nor Ray know", "Did you mean batch_size=?"),
    ],
)
def test_mistakes(changes, message, hint):
    with pytest.raises(CompileError) as caught:
        tuned(PLAN, changes)
    assert message in caught.value.message
    assert hint in caught.value.next_step


def test_the_expanded_form_keeps_its_ports():
    class Pages(Pipeline):
        def __init__(self):
            super().__init__()
            self.split = RayModule(Unit)
            self.read = RayModule(Unit)

        def forward(self, rows):
            return F.reduce(self.read(F.expand(self.split(rows))))

    plan = Pages().compile()
    changed = tuned(plan, {"read": {"batch_size": 9}})
    assert (changed.ports, changed.calls, changed.domains) == (plan.ports, plan.calls, plan.domains)
