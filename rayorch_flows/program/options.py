"""What ``RayModule.ray_options`` accepts, checked when it is said and without importing Ray."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from rayorch_flows.program.plan import Batching, Options, SourceLine
from rayorch_flows.program.ray_values import check_fallbacks, check_labels, check_placement_group, check_runtime_env, of
from rayorch_flows.program.recovery import RecoveryPolicy
from rayorch_flows.program.source_lines import compile_error, compile_warning
from rayorch_flows.program.values.copies import own
from rayorch_flows.program.values.type_guards import is_dict

_RESOURCE_STEP: Final = 0.0001
"""Ray keeps fractions of a resource to four digits."""


def _positive_int(value: Any) -> int:
    if type(value) is not int or value < 1:
        raise ValueError("a positive integer")
    return value


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError("a non-negative integer")
    return value


def _recovery(value: Any) -> RecoveryPolicy:
    if not isinstance(value, RecoveryPolicy):
        raise ValueError("a RecoveryPolicy, such as RecoveryPolicy.isolate_tail()")
    return value


def _batching(value: Any) -> Batching:
    try:
        return Batching(value)
    except ValueError:
        raise ValueError('"elastic" or "parent_bound"') from None


def _slow_start(value: Any) -> int:
    if value is True:
        return Options().slow_start
    if value is False:
        return 0
    if type(value) is not int or value < 1:
        raise ValueError("True, False or the first window as a positive integer")
    return value


def _deadline(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise ValueError("a positive number of seconds, or None")
    return float(value)


_OWN: Final[Mapping[str, Callable[[Any], Any]]] = {
    "replicas": _positive_int,
    "batch_size": _positive_int,
    "recovery": _recovery,
    "batching": _batching,
    "slow_start": _slow_start,
    "deadline_s": _deadline,
    "max_in_flight": _positive_int,
    "max_ready_bytes": _count,
}


def _quantity(value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise ValueError("a non-negative number")
    if 0 < value < _RESOURCE_STEP:
        raise ValueError(f"0, or at least {_RESOURCE_STEP}")


def _gpus(value: Any) -> None:
    _quantity(value)
    if value > 1 and value != int(value):
        raise ValueError("a fraction up to 1, or a whole number")


def _resources(value: Any) -> None:
    if not is_dict(value) or not all(isinstance(key, str) and key for key in value):
        raise ValueError("a dict from resource names to quantities")
    for key, quantity in value.items():
        if key in ("CPU", "GPU", "memory"):
            raise ValueError(f"other resources than {key!r}, for which there is num_cpus=, num_gpus= or memory=")
        try:
            _quantity(quantity)
        except ValueError as error:
            raise ValueError(f"{error} for {key!r}") from None


def _strategy(value: Any) -> None:
    if isinstance(value, str) and value not in ("DEFAULT", "SPREAD"):
        raise ValueError('"DEFAULT", "SPREAD" or a strategy object of ray.util.scheduling_strategies')
    if not isinstance(value, str) and not type(value).__name__.endswith("SchedulingStrategy"):
        raise ValueError('"DEFAULT", "SPREAD" or a strategy object of ray.util.scheduling_strategies')


def _bundle(value: Any) -> None:
    if type(value) is not int or value < -1:
        raise ValueError("a bundle index, or -1 for any")


def _whole(value: Any) -> None:
    _count(value)


RAY_OPTIONS: Final[Mapping[str, Callable[[Any], None]]] = {
    "num_cpus": _quantity,
    "num_gpus": _gpus,
    "memory": _quantity,
    "object_store_memory": _whole,
    "resources": _resources,
    "accelerator_type": of(str, "the name of an accelerator"),
    "runtime_env": check_runtime_env,
    "scheduling_strategy": _strategy,
    "placement_group": check_placement_group,
    "placement_group_bundle_index": _bundle,
    "placement_group_capture_child_tasks": of(bool, "True or False"),
    "label_selector": check_labels,
    "fallback_strategy": check_fallbacks,
    "enable_task_events": of(bool, "True or False"),
}
"""Actor options that are passed on; None, Ray's word for unset, is always fine."""

ENGINE_OPTIONS: Final[Mapping[str, str]] = {
    "name": "actors of a pool are replaced when they die, and have no name of their own",
    "namespace": "actors of a pool have no name of their own",
    "get_if_exists": "actors of a pool have no name of their own",
    "lifetime": "a pool lives as long as its Executor or engine host",
    "max_restarts": "the engine replaces dead actors; RecoveryPolicy(infra_retries=) bounds the retries",
    "max_task_retries": "the engine retries dispatch batches; say it with recovery=",
    "max_concurrency": "an actor runs one dispatch batch after the other; use replicas=",
    "concurrency_groups": "an actor runs one dispatch batch after the other; use replicas=",
    "max_pending_calls": "the engine queues at most max_in_flight calls at an actor",
    "allow_out_of_order_execution": "an actor runs its dispatch batches in order",
}
"""Actor options that the engine decides itself: a program that says them still runs, with a warning."""


def check_options(options: Mapping[str, Any], module: str, where: SourceLine | None) -> dict[str, Any]:
    """Validated and normalised options, without those that the engine decides itself."""
    checked: dict[str, Any] = {}
    for name, value in options.items():
        if name in ENGINE_OPTIONS:
            compile_warning(f"ray_options({name}=...) of {module} has no effect: {ENGINE_OPTIONS[name]}", where)
            continue
        check = _OWN.get(name) or RAY_OPTIONS.get(name)
        if check is None:
            raise _unknown(name, module, where)
        if value is None and name in RAY_OPTIONS:
            continue
        try:
            result = check(value)
        except ValueError as error:
            raise compile_error(
                f"ray_options({name}={value!r}) of {module}: expected {error}",
                f"Give {name}= {error}.",
                where,
            ) from None
        checked[name] = result if name in _OWN else own(value)
    return checked


def _unknown(name: str, module: str, where: SourceLine | None) -> Exception:
    known = sorted([*_OWN, *RAY_OPTIONS])
    close = difflib.get_close_matches(name, known, n=1)
    mend = f"Did you mean {close[0]}=?" if close else f"Known options: {', '.join(known)}."
    return compile_error(f"ray_options({name}=...) of {module}: neither we nor Ray know this option", mend, where)


def build_options(checked: Mapping[str, Any]) -> Options:
    """The Plan's options out of checked ones."""
    own = {name: value for name, value in checked.items() if name in _OWN}
    actor = tuple(sorted((name, value) for name, value in checked.items() if name in RAY_OPTIONS))
    return Options(**own, actor=actor)
