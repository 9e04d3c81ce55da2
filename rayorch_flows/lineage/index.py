"""What the machine looks up again and again, worked out once from the Plan."""

from __future__ import annotations

from dataclasses import dataclass

from rayorch_flows.program.plan import NO_ID, Plan, PortKind

HOLDERS = frozenset({PortKind.SOURCE, PortKind.CALL, PortKind.EXPAND})
"""Port kinds whose Items own a payload; the others look at somebody else's."""


@dataclass(frozen=True, slots=True)
class Release:
    """One value that a consumer lets go of: the holder Port, and the Domains to go down to reach it."""

    holder: int
    down: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PlanIndex:
    """Tuples indexed by Port, Call, Domain or module id.

    ``uses`` counts for each holder Port the consumers of one of its Items: a Call argument or an output each count
    one, a broadcast anywhere between counts one for the whole life of the source item. ``leftover`` are the holders
    whose Items may outlive their consumers: those under a broadcast, and what lies under a reduce that does not wait
    for the values of dropped members. ``group_uses`` counts the Domains that are expanded from a Port's list
    elements.
    """

    plan: Plan
    call_consumers: tuple[tuple[int, ...], ...]
    filters: tuple[tuple[int, ...], ...]
    broadcasts: tuple[tuple[int, ...], ...]
    expansions: tuple[tuple[int, ...], ...]
    reduces: tuple[tuple[int, ...], ...]
    settles: tuple[tuple[int, ...], ...]
    domain_ports: tuple[tuple[int, ...], ...]
    domain_calls: tuple[tuple[int, ...], ...]
    domain_children: tuple[tuple[int, ...], ...]
    domain_reduces: tuple[tuple[int, ...], ...]
    domain_broadcasts: tuple[tuple[int, ...], ...]
    domain_path: tuple[tuple[int, ...], ...]
    uses: tuple[int, ...]
    leftover: tuple[int, ...]
    call_releases: tuple[tuple[Release, ...], ...]
    output_releases: tuple[Release, ...]
    single_input: tuple[bool, ...]
    upstream: tuple[frozenset[int], ...]
    downstream: tuple[frozenset[int], ...]
    module_calls: tuple[tuple[int, ...], ...]
    group_uses: tuple[int, ...]


def build_index(plan: Plan) -> PlanIndex:
    """Index a Plan: who consumes what, who lets go of what, who is upstream of whom."""
    ports, calls, domains = plan.ports, plan.calls, plan.domains
    by_kind = {kind: _consumers(plan, kind) for kind in PortKind}
    call_consumers: list[list[int]] = [[] for _ in ports]
    for call in calls:
        for port in dict.fromkeys(i.port for i in call.inputs):
            call_consumers[port].append(call.id)
    expansions: list[list[int]] = [[] for _ in ports]
    for domain in domains:
        for group in dict.fromkeys(domain.groups):
            expansions[group].append(domain.id)

    call_releases = [tuple(r for i in call.inputs for r in _releases(plan, i.port)) for call in calls]
    output_releases = tuple(
        Release(r.holder, (*_path(plan, ports[port].domain), *r.down))
        for port in plan.outputs
        for r in _releases(plan, port)
    )
    pinned = _pinned(plan)
    uses = [0] * len(ports)
    for release in [*(r for releases in call_releases for r in releases), *output_releases]:
        uses[release.holder] += 1
    for port in pinned:
        uses[port] += 1

    upstream = _upstream(plan)
    return PlanIndex(
        plan=plan,
        call_consumers=_freeze(call_consumers),
        filters=by_kind[PortKind.FILTER],
        broadcasts=by_kind[PortKind.BROADCAST],
        expansions=_freeze(expansions),
        reduces=by_kind[PortKind.REDUCE],
        settles=by_kind[PortKind.SETTLE],
        domain_ports=tuple(tuple(p.id for p in ports if p.domain == d.id) for d in domains),
        domain_calls=tuple(tuple(c.id for c in calls if c.domain == d.id) for d in domains),
        domain_children=tuple(tuple(c.id for c in domains if c.parent == d.id) for d in domains),
        domain_reduces=tuple(
            tuple(p.id for p in ports if p.kind is PortKind.REDUCE and ports[p.inputs[0]].domain == d.id)
            for d in domains
        ),
        domain_broadcasts=tuple(
            tuple(p.id for p in ports if p.kind is PortKind.BROADCAST and p.domain == d.id) for d in domains
        ),
        domain_path=tuple(_path(plan, d.id) for d in domains),
        uses=tuple(uses),
        leftover=tuple(sorted(pinned | _late(plan))),
        call_releases=tuple(call_releases),
        output_releases=output_releases,
        single_input=tuple(len(c.inputs) == 1 for c in calls),
        upstream=upstream,
        downstream=tuple(frozenset(c.id for c in calls if d.id in upstream[c.id]) for d in calls),
        module_calls=tuple(tuple(c.id for c in calls if c.module == m.id) for m in plan.modules),
        group_uses=tuple(
            sum(port.id in {ports[g].holder for g in domain.groups} for domain in domains) for port in ports
        ),
    )


def _freeze(lists: list[list[int]]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(items) for items in lists)


def _consumers(plan: Plan, kind: PortKind) -> tuple[tuple[int, ...], ...]:
    found: list[list[int]] = [[] for _ in plan.ports]
    for port in plan.ports:
        if port.kind is kind:
            for source in dict.fromkeys(port.inputs):
                found[source].append(port.id)
    return _freeze(found)


def _path(plan: Plan, domain: int) -> tuple[int, ...]:
    """The Domains from the root (left out) down to ``domain``."""
    path: list[int] = []
    while plan.domains[domain].parent != NO_ID:
        path.append(domain)
        domain = plan.domains[domain].parent
    return tuple(reversed(path))


def _releases(plan: Plan, port: int) -> list[Release]:
    """The holder that a consumer of ``port`` keeps alive; none under a broadcast (that one is pinned)."""
    down: list[int] = []
    while plan.ports[port].kind not in HOLDERS:
        spec = plan.ports[port]
        if spec.kind is PortKind.BROADCAST:
            return []
        if spec.kind is PortKind.REDUCE:
            down.append(plan.ports[spec.inputs[0]].domain)
        port = spec.inputs[0]
    return [Release(port, tuple(down))]


def _pinned(plan: Plan) -> set[int]:
    """Holders that are consumed through some broadcast."""
    found: set[int] = set()
    for spec in plan.ports:
        if spec.kind is PortKind.BROADCAST:
            port = spec.inputs[0]
            while plan.ports[port].kind not in HOLDERS:
                port = plan.ports[port].inputs[0]
            found.add(port)
    return found


def _late(plan: Plan) -> set[int]:
    """Holders under a reduce with members of its own: Items below a dropped member may be born after the consumer."""
    return {
        release.holder
        for spec in plan.ports
        if spec.kind is PortKind.REDUCE and spec.inputs[0] != spec.inputs[1]
        for release in _releases(plan, spec.inputs[0])
    }


def _upstream(plan: Plan) -> tuple[frozenset[int], ...]:
    """For each Call the Calls whose unfinished Grains can still make it work, the membership of its Domain included."""
    port_calls: list[frozenset[int]] = []
    domain_calls: dict[int, frozenset[int]] = {0: frozenset()}
    upstream: dict[int, frozenset[int]] = {}
    for spec in plan.ports:
        before = domain_calls.get(spec.domain)
        if before is None:
            groups = plan.domains[spec.domain].groups
            parent = domain_calls[plan.domains[spec.domain].parent]
            before = parent.union(*(port_calls[g] for g in groups))
            domain_calls[spec.domain] = before
        if spec.kind is PortKind.CALL:
            call = plan.calls[spec.call]
            above = before.union(*(port_calls[i.port] for i in call.inputs))
            upstream[spec.call] = above
            port_calls.append(above | {spec.call})
        else:
            port_calls.append(before.union(*(port_calls[i] for i in spec.inputs)))
    return tuple(upstream[call.id] for call in plan.calls)
