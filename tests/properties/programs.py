"""Random programs: a small op list (the *spec*), and the Plan it means, built without the compiler.

Everything is read from a byte string through ``Reader``: zero bytes, and the end of the string, mean the simplest
choice, so that shrinking the bytes shrinks the program.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, TypeVar, cast

from rayorch_flows.program.plan import (
    NO_ID,
    ROOT,
    Batching,
    CallPlan,
    DomainPlan,
    InputPlan,
    ModulePlan,
    Options,
    OutputShape,
    Plan,
    PortKind,
    PortPlan,
)
from rayorch_flows.program.recovery import RecoveryPolicy

Role = Literal["value", "list", "mask", "flags"]  # flags: a list whose elements may serve as masks
LISTS: Final = ("list", "flags")
T = TypeVar("T")


class Reader:
    """Choices out of a byte string; when it is used up, every choice is 0."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def below(self, n: int) -> int:
        if self.at >= len(self.data) or n <= 1:
            return 0
        self.at += 1
        return self.data[self.at - 1] % n

    def chance(self, percent: int) -> bool:
        """False on a zero byte."""
        return self.below(256) > 255 - percent * 256 // 100

    def pick(self, options: list[T]) -> T:
        return options[self.below(len(options))]

    def weighted(self, weights: dict[str, int]) -> str:
        """The first key on a zero byte."""
        at = self.below(sum(weights.values()))
        for key, weight in weights.items():
            at -= weight
            if at < 0:
                return key
        raise AssertionError


@dataclass(frozen=True)
class Source:
    role: Role = "value"


@dataclass(frozen=True)
class Call:
    module: int
    inputs: tuple[tuple[int, bool], ...]  # (port, optional)
    roles: tuple[Role, ...]
    kwargs: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Expand:
    groups: tuple[int, ...]


@dataclass(frozen=True)
class Filter:
    source: int
    mask: int


@dataclass(frozen=True)
class Broadcast:
    ancestor: int
    like: int


@dataclass(frozen=True)
class Reduce:
    values: tuple[int, ...]
    members: int | None = None


@dataclass(frozen=True)
class Settle:
    source: int


Op = Source | Call | Expand | Filter | Broadcast | Reduce | Settle


@dataclass(frozen=True)
class Module:
    outputs: int
    options: Options = field(default_factory=Options)


@dataclass(frozen=True)
class Spec:
    """Ports are numbered in the order in which the ops make them."""

    ops: tuple[Op, ...]
    modules: tuple[Module, ...]
    outputs: tuple[int, ...]
    shape: OutputShape = OutputShape.SINGLE

    def __str__(self) -> str:
        lines: list[str] = []
        port = 0
        for op in self.ops:
            made = width(op)
            lines.append(f"  {', '.join(f'p{port + i}' for i in range(made))} = {op}")
            port += made
        lines += [f"  module {i}: {module}" for i, module in enumerate(self.modules)]
        return "\n".join([*lines, f"  return {self.outputs} as {self.shape}"])


def width(op: Op) -> int:
    """How many Ports an op makes."""
    match op:
        case Call():
            return len(op.roles)
        case Expand():
            return len(op.groups)
        case Reduce():
            return len(op.values)
        case _:
            return 1


# -- lowering --------------------------------------------------------------------------------------------------------


@dataclass
class _Lowering:
    ports: list[PortPlan] = field(default_factory=list)
    domains: list[DomainPlan] = field(default_factory=list)
    calls: list[CallPlan] = field(default_factory=list)

    def port(self, kind: PortKind, domain: int, inputs: tuple[int, ...], **fields: int) -> int:
        id = len(self.ports)
        values: dict[str, Any] = {"call": NO_ID, "index": NO_ID, "holder": id, "depth": 0} | fields
        self.ports.append(
            PortPlan(id, kind, domain, f"p{id}", inputs, as_value=False, as_group=NO_ID, as_mask=False, **values)
        )
        return id

    def mark(self, port: int, **flags: int | bool) -> None:
        holder = self.ports[port].holder
        if self.ports[holder].kind is not PortKind.REDUCE:
            self.ports[holder] = replace(self.ports[holder], **flags)

    def view(self, kind: PortKind, domain: int, inputs: tuple[int, ...]) -> int:
        of = self.ports[inputs[0]]
        return self.port(kind, domain, inputs, holder=of.holder, depth=of.depth)


def lower(spec: Spec) -> Plan:
    """The Plan of a spec: the dense form that the compiler has to produce for the same program."""
    low = _Lowering()
    low.domains.append(DomainPlan(ROOT, "root", NO_ID, 0, (), (), NO_ID))
    sources: list[int] = []
    for op in spec.ops:
        match op:
            case Source():
                sources.append(low.port(PortKind.SOURCE, ROOT, (), index=len(sources)))
            case Call():
                domain = low.ports[op.inputs[0][0]].domain
                call = len(low.calls)
                outputs = tuple(low.port(PortKind.CALL, domain, (), call=call, index=i) for i in range(len(op.roles)))
                inputs = tuple(InputPlan(port, optional) for port, optional in op.inputs)
                low.calls.append(CallPlan(call, f"c{call}", op.module, domain, inputs, outputs, op.kwargs))
                for port, _ in op.inputs:
                    low.mark(port, as_value=True)
            case Expand():
                parent = low.domains[low.ports[op.groups[0]].domain]
                domain = len(low.domains)
                ports = tuple(low.port(PortKind.EXPAND, domain, (group,)) for group in op.groups)
                low.domains.append(
                    DomainPlan(domain, f"d{domain}", parent.id, parent.depth + 1, op.groups, ports, NO_ID)
                )
                for group in op.groups:
                    low.mark(group, as_group=domain)
            case Filter():
                low.view(PortKind.FILTER, low.ports[op.source].domain, (op.source, op.mask))
                low.mark(op.mask, as_mask=True)
            case Broadcast():
                low.view(PortKind.BROADCAST, low.ports[op.like].domain, (op.ancestor,))
            case Settle():
                low.view(PortKind.SETTLE, low.ports[op.source].domain, (op.source,))
            case Reduce():
                for value in op.values:
                    of = low.ports[value]
                    domain = low.domains[of.domain]
                    members = op.values[0] if op.members is None else op.members
                    low.port(PortKind.REDUCE, domain.parent, (value, members), depth=of.depth + 1)
                    low.mark(value, as_value=True)
                    if domain.result == NO_ID:
                        low.domains[domain.id] = replace(domain, result=value)
    for port in spec.outputs:
        low.mark(port, as_value=True)
    for domain in low.domains:
        result = domain.result
        if domain.id == ROOT and low.ports[spec.outputs[0]].domain == ROOT:
            result = spec.outputs[0]
        if result == NO_ID:
            result = max(port.id for port in low.ports if port.domain == domain.id)
        elif domain.id != ROOT:
            while low.ports[result].kind is PortKind.SETTLE:
                result = low.ports[result].inputs[0]
        low.domains[domain.id] = replace(domain, result=result)
    modules = tuple(
        ModulePlan(i, f"m{i}", None, (), (), module.outputs, module.options) for i, module in enumerate(spec.modules)
    )
    return Plan(
        "random", tuple(low.domains), tuple(low.ports), tuple(low.calls), modules, tuple(sources),
        tuple(spec.outputs), spec.shape, "", "",
        layout=0 if spec.shape is OutputShape.SINGLE else tuple(range(len(spec.outputs))),
    )  # fmt: skip


# -- generation ------------------------------------------------------------------------------------------------------


@dataclass
class Made:
    domain: int
    role: Role
    expandable: bool = False
    hollow: bool = False  # may carry a Hole, so it cannot serve as a mask
    reduced: bool = False


class Generator:
    """Draws one program."""

    MAX_DEPTH = 3
    MAX_DOMAINS = 5

    def __init__(self, reader: Reader) -> None:
        self.r = reader
        self.ops: list[Op] = []
        self.made: list[Made] = []
        self.parents = [NO_ID]
        self.modules: list[Module] = []
        self.rootless: list[bool] = []  # per module: no Call in the root Domain yet

    def depth(self, domain: int) -> int:
        return 0 if domain == ROOT else 1 + self.depth(self.parents[domain])

    def ancestors(self, domain: int) -> list[int]:
        return [] if domain == ROOT else [self.parents[domain], *self.ancestors(self.parents[domain])]

    def add(self, op: Op, *made: Made) -> int:
        self.ops.append(op)
        self.made += made
        return len(self.made) - len(made)

    def ports(self, domain: int | None = None, role: Role | None = None) -> list[int]:
        """Matching Ports, the newest first."""
        return [
            i
            for i in reversed(range(len(self.made)))
            if domain in (None, self.made[i].domain) and role in (None, self.made[i].role)
        ]

    def recent(self, ports: list[int]) -> int:
        """Prefer new Ports: deep programs, not wide ones."""
        return self.r.pick(ports[:4] if not self.r.chance(25) else ports)

    # one method an op; each returns whether it could be made

    def call(self, domain: int | None = None, roles: tuple[Role, ...] | None = None) -> bool:
        first = self.recent(self.ports(domain))
        domain = self.made[first].domain
        inputs = [(first, self.r.chance(30))]
        more = range(int(self.r.weighted({"0": 6, "1": 3, "2": 1})))
        inputs += [(self.recent(self.ports(domain)), self.r.chance(30)) for _ in more]
        shared = [
            i
            for i, module in enumerate(self.modules)
            if (roles is None or module.outputs == len(roles))
            and not (domain == ROOT and module.options.batching is Batching.PARENT_BOUND)
        ]
        if shared and self.r.chance(25):
            module = self.r.pick(shared)
        else:
            module = len(self.modules)
            outputs = len(roles) if roles else 1 + (self.r.below(3) if self.r.chance(30) else 0)
            self.modules.append(Module(outputs, self.options(domain)))
        if roles is None:
            roles = tuple(self.role(value=5, list=5, mask=2, flags=1) for _ in range(self.modules[module].outputs))
        kwargs = (("stage", self.r.below(4)),) if self.r.chance(30) else ()
        made = [Made(domain, role, expandable=role in LISTS) for role in roles]
        self.add(Call(module, tuple(inputs), roles, kwargs), *made)
        return True

    def role(self, **weights: int) -> Role:
        return cast(Role, self.r.weighted(weights))

    def options(self, domain: int) -> Options:
        r = self.r
        policies = [
            RecoveryPolicy.isolate_tail(infra_retries=r.below(3)),
            RecoveryPolicy.abort(infra_retries=r.below(3)),
            RecoveryPolicy.retry_batch(max_retries=r.below(3), infra_retries=r.below(2)),
            RecoveryPolicy.retry_tail(max_retries=r.below(3), infra_retries=r.below(2)),
        ]
        bound = domain != ROOT and r.chance(40)
        return Options(
            replicas=1 + r.below(3),
            batch_size=1 + r.below(6),
            batching=Batching.PARENT_BOUND if bound else Batching.ELASTIC,
            recovery=policies[r.below(4)],
            slow_start=(0, 8, 1, 2)[r.below(4)],
            max_in_flight=1 + r.below(3),
            max_ready_bytes=(0, 0, 0, 1, 60)[r.below(5)],
        )

    def expand(self) -> bool:
        groups = [
            i for i in self.ports() if self.made[i].expandable and self.depth(self.made[i].domain) < self.MAX_DEPTH
        ]
        if not groups or len(self.parents) >= self.MAX_DOMAINS:
            return False
        first = self.recent(groups)
        parent = self.made[first].domain
        aligned = [first]
        if self.r.chance(60):
            aligned += [i for i in self.siblings(first) if i in groups and i != first]
        for i in aligned:
            self.made[i].expandable = False
        domain = len(self.parents)
        self.parents.append(parent)
        roles: list[Role] = ["mask" if self.made[i].role == "flags" else "value" for i in aligned]
        self.add(Expand(tuple(aligned)), *(Made(domain, role) for role in roles))
        return True

    def siblings(self, port: int) -> list[int]:
        """The outputs of the op that made a Port."""
        at = 0
        for op in self.ops:
            if at <= port < at + width(op):
                return list(range(at, at + width(op))) if isinstance(op, Call) else [port]
            at += width(op)
        raise AssertionError

    def masks(self, domain: int) -> list[int]:
        return [i for i in self.ports(domain, "mask") if not self.made[i].hollow]

    def filter(self) -> bool:
        domains = [d for d in range(len(self.parents)) if self.masks(d)]
        if not domains:
            if self.r.chance(50):
                return self.call(roles=("mask",)) and self.filter()
            return False
        domain = self.r.pick(domains[::-1])
        mask = self.recent(self.masks(domain))
        source = self.recent(self.ports(domain))
        self.add(Filter(source, mask), replace(self.made[source], expandable=False))
        return True

    def broadcast(self) -> bool:
        if len(self.parents) == 1:
            return False
        like = self.recent([i for i in self.ports() if self.made[i].domain != ROOT])
        domain = self.made[like].domain
        ancestor = self.recent([i for a in self.ancestors(domain) for i in self.ports(a)])
        self.add(Broadcast(ancestor, like), replace(self.made[ancestor], domain=domain, expandable=False))
        return True

    def settle(self) -> bool:
        source = self.recent(self.ports())
        made = self.made[source]
        self.add(Settle(source), replace(made, expandable=False, hollow=True))
        return True

    def reduce(self, domain: int | None = None) -> bool:
        candidates = [i for i in self.ports(domain) if self.made[i].domain != ROOT]
        if not candidates:
            return False
        first = self.recent(candidates)
        domain = self.made[first].domain
        values = [first]
        members = None
        if self.r.chance(30):
            values += [self.recent(self.ports(domain)) for _ in range(1 + self.r.below(2))]
            members = None if self.r.chance(30) else self.recent(self.ports(domain))
        elif self.r.chance(40):
            members = self.recent(self.ports(domain))
        made = Made(self.parents[domain], "value", reduced=True)
        self.add(Reduce(tuple(dict.fromkeys(values)), members), *(made for _ in dict.fromkeys(values)))
        return True

    def program(self) -> Spec:
        r = self.r
        for _ in range(1 + int(r.weighted({"0": 6, "1": 3, "2": 1}))):
            role = self.role(value=4, list=5, mask=1, flags=1)
            self.add(Source(role), Made(ROOT, role, expandable=role in LISTS))
        for _ in range(3 + r.below(15)):
            kind = r.weighted({"call": 9, "expand": 9, "filter": 4, "reduce": 3, "broadcast": 3, "settle": 2})
            getattr(self, kind)()
        self.close()
        return self.finish()

    def close(self) -> None:
        """Bring most Domains back up, the deepest first."""
        for domain in sorted(range(1, len(self.parents)), key=self.depth, reverse=True):
            if not self.r.chance(10):
                self.reduce(domain)
                if self.r.chance(30):
                    self.call(self.parents[domain])

    def finish(self) -> Spec:
        n_sources = sum(isinstance(op, Source) for op in self.ops)
        roots = [i for i in self.ports(ROOT) if i >= n_sources]
        if not roots:
            self.call(ROOT)
            roots = [len(self.made) - 1]
        below = [i for i in self.ports() if self.made[i].domain != ROOT]
        outputs = [
            self.r.pick(below if below and self.r.chance(12) else roots[:3])
            for _ in range(1 + (self.r.below(3) if self.r.chance(40) else 0))
        ]
        shape = OutputShape.SINGLE if len(outputs) == 1 and not self.r.chance(20) else OutputShape.TUPLE
        return Spec(tuple(self.ops), tuple(self.modules), tuple(outputs), shape)


def generate(reader: Reader) -> Spec:
    return Generator(reader).program()
