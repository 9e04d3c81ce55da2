"""A spec as a real Pipeline, written with the public API of this library or of another one with the same API."""

from __future__ import annotations

import hashlib
import importlib
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from rayorch_flows.program.plan import OutputShape
from tests.properties.programs import Broadcast, Call, Expand, Filter, Reduce, Settle, Source, Spec
from tests.runtime.functions import wait_for

LENGTHS = (1, 2, 0, 3, 2, 1, 4, 0)


class Symbolic:
    """A Function whose results, failures, lists and masks follow from its arguments alone; it waits for the file
    ``gate``, if there is to be one."""

    def __init__(
        self,
        library: str = "rayorch_flows",
        seed: int = 0,
        record: int = 0,
        group: int = 0,
        delay_s: float = 0.0,
        gate: Path | None = None,
    ) -> None:
        self.library = importlib.import_module(library)
        self.seed = seed
        self.record = record
        self.group = group
        self.delay_s = delay_s
        self.gate = gate

    def run(self, *columns: list[Any], call: int, roles: tuple[str, ...], stage: int = 0) -> Any:
        time.sleep(self.delay_s)
        if self.gate is not None:
            wait_for(self.gate.exists, 300)
        rows = [self.row(args, call, roles, stage) for args in zip(*columns, strict=True)]
        if len(roles) == 1:
            return [row[0] for row in rows]
        return tuple([row[i] for row in rows] for i in range(len(roles)))

    def row(self, args: tuple[Any, ...], call: int, roles: tuple[str, ...], stage: int = 0) -> tuple[Any, ...]:
        digest = hashlib.md5(repr((self.seed, call, stage, args)).encode()).hexdigest()
        odds = int(digest[:4], 16)
        if odds % 256 < self.record:
            return (self.library.RecordFailure(f"record {digest[:8]}"),) * len(roles)
        if odds // 256 < self.group:
            return (self.library.GroupFailure(f"group {digest[:8]}"),) * len(roles)
        length = LENGTHS[int(digest[4:6], 16) % len(LENGTHS)]
        return tuple(self.output(f"{call}.{i}:{digest[:12]}", role, length) for i, role in enumerate(roles))

    def output(self, value: str, role: str, length: int) -> Any:
        if role == "mask":
            return odd(value)
        if role == "list":
            return [f"{value}/{i}" for i in range(length)]
        if role == "flags":
            return [odd(f"{value}/{i}") for i in range(length)]
        return value


def odd(value: str) -> bool:
    return hashlib.md5(value.encode()).digest()[0] % 3 > 0


def pipeline(
    spec: Spec, library: str = "rayorch_flows", options: bool = True, infra_retries: int | None = None, **pre_init: Any
) -> Any:
    """The Pipeline of a spec; ``options=False`` leaves the modules' physical options to the library."""
    lib: Any = importlib.import_module(library)
    n_sources = sum(isinstance(op, Source) for op in spec.ops)
    names = [f"s{i}" for i in range(n_sources)]

    def init(self: Any) -> None:
        lib.Pipeline.__init__(self)
        for i, module in enumerate(spec.modules):
            made = lib.RayModule(Symbolic).pre_init(library, **pre_init)
            if options:
                o = module.options
                recovery = o.recovery if infra_retries is None else replace(o.recovery, infra_retries=infra_retries)
                made = made.ray_options(
                    replicas=o.replicas, batch_size=o.batch_size, batching=o.batching.value, recovery=recovery,
                    num_cpus=0,
                    slow_start=o.slow_start or False, max_in_flight=o.max_in_flight, max_ready_bytes=o.max_ready_bytes,
                )  # fmt: skip
            else:
                made = made.ray_options(replicas=1, batch_size=3, num_cpus=0.1)
            setattr(self, f"m{i}", made.returns(module.outputs))

    def wire(self: Any, sources: tuple[Any, ...]) -> Any:
        f = lib.F
        left = list(sources)
        ports: list[Any] = []
        calls = 0
        for op in spec.ops:
            match op:
                case Source():
                    ports.append(left.pop(0))
                case Call():
                    args = [f.optional(ports[p]) if optional else ports[p] for p, optional in op.inputs]
                    made = getattr(self, f"m{op.module}")(*args, call=calls, roles=op.roles, **dict(op.kwargs))
                    calls += 1
                    ports += made if len(op.roles) > 1 else [made]
                case Expand():
                    aligned = len(op.groups) > 1
                    groups = [ports[g] for g in op.groups]
                    ports += f.expand_aligned(*groups) if aligned else [f.expand(groups[0])]
                case Filter():
                    ports.append(f.filter(ports[op.source], ports[op.mask]))
                case Broadcast():
                    ports.append(f.broadcast(ports[op.ancestor], like=ports[op.like]))
                case Settle():
                    ports.append(f.settle(ports[op.source]))
                case Reduce():
                    members = {} if op.members is None else {"members": ports[op.members]}
                    values = [ports[v] for v in op.values]
                    aligned = len(values) > 1
                    ports += f.reduce_aligned(*values, **members) if aligned else [f.reduce(values[0], **members)]
        outputs = tuple(ports[p] for p in spec.outputs)
        return outputs if spec.shape is OutputShape.TUPLE else outputs[0]

    forward = eval(f"lambda self, {', '.join(names)}: wire(self, ({', '.join(names)},))", {"wire": wire})
    return type("Random", (lib.Pipeline,), {"__init__": init, "forward": forward})()
