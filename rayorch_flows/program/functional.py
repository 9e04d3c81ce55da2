"""The structural primitives, to be imported as ``F``: they change shape and membership and run nothing."""

from __future__ import annotations

from rayorch_flows.program.plan import NO_ID, ROOT, PortKind
from rayorch_flows.program.ports import OptionalPort, Port
from rayorch_flows.program.source_lines import compile_error
from rayorch_flows.program.trace import Trace

__all__ = [
    "broadcast",
    "expand",
    "expand_aligned",
    "filter",
    "optional",
    "reduce",
    "reduce_aligned",
    "settle",
]

_EXPAND_MEND = {
    PortKind.EXPAND: "Its elements are Items already. Let a Call return a list for each of them, and expand that.",
    PortKind.FILTER: "Expand the Call's output and filter the children with F.filter(children, F.broadcast(mask, "
    "like=children)), or let a Call return the list from the filtered Port.",
    PortKind.BROADCAST: "Let a Call return the list from the broadcast Port, and expand that.",
    PortKind.REDUCE: "The list was just gathered. Use the child Port that was reduced, or let a Call return the list.",
    PortKind.SETTLE: "A Hole is not a list. Expand first, and settle the children.",
}


def expand(port: Port, *, name: str | None = None) -> Port:
    """From parent to child: the elements of each list become ordered child Items in a new Domain.

    ``port`` is a Call's output or a source whose values are lists. ``name`` names the Domain in reports and
    tables. Expanding the same Port again gives the same children.
    """
    trace = Trace.active("F.expand")
    return _expand(trace, (trace.own(port, "the argument of F.expand"),), "F.expand", name)[0]


def expand_aligned(*ports: Port, name: str | None = None) -> tuple[Port, ...]:
    """Several lists of one Call over the same children: element i of each belongs to child i.

    Lists of unequal length break the Function's contract.
    """
    trace = Trace.active("F.expand_aligned")
    if not ports:
        raise compile_error(
            "F.expand_aligned needs at least one Port", "Pass the outputs of one Call: F.expand_aligned(a, b)."
        )
    groups = tuple(trace.own(p, f"argument {i} of F.expand_aligned") for i, p in enumerate(ports))
    return _expand(trace, groups, "F.expand_aligned", name)


def _expand(trace: Trace, groups: tuple[int, ...], what: str, name: str | None) -> tuple[Port, ...]:
    _check_name(name, what)
    for group in groups:
        kind = trace.ports[group].kind
        if kind not in (PortKind.CALL, PortKind.SOURCE):
            raise compile_error(
                f"{what} takes a Call's output or a source, and {trace.describe(group)} is the result "
                f"of F.{kind.name.lower()}",
                _EXPAND_MEND[kind],
            )
    if len(groups) > 1:
        if len(set(groups)) < len(groups):
            raise compile_error(f"{what} was given the same Port twice", "Pass each output once.")
        if len({trace.ports[g].call for g in groups}) > 1 or trace.ports[groups[0]].kind is PortKind.SOURCE:
            names = ", ".join(trace.describe(g) for g in groups)
            raise compile_error(
                f"{what} takes outputs of one Call, but got {names}",
                "Let one Function return all the lists with .returns(n): only then they are equally long.",
            )
    taken = [trace.ports[g].as_group for g in groups]
    if all(domain == NO_ID for domain in taken):
        return trace.add_domain(groups, name)
    domain = next(d for d in taken if d != NO_ID)
    if trace.domains[domain].groups == groups:
        if name is not None and name != trace.domains[domain].name:
            raise compile_error(
                f"{trace.domain_story(domain)} exists already, and {what} would call it {name!r}",
                "Expand once, and use the expanded Port again.",
            )
        return tuple(Port(trace, port) for port in trace.domains[domain].ports)
    group = groups[taken.index(domain)]
    raise compile_error(
        f"{trace.describe(group)} was expanded before into {trace.domain_story(domain)}",
        "Use those children again, or expand all aligned outputs at once with F.expand_aligned.",
    )


def _check_name(name: object, what: str) -> None:
    if name is not None and (not isinstance(name, str) or not name.strip() or not name.isprintable()):
        raise compile_error(f"{what}(name=...) must be a string on one line, not {name!r}", 'Write name="page".')


def filter(port: Port, mask: Port) -> Port:
    """In the same Domain: an Item passes where the mask is true and is Dropped where it is false."""
    trace = Trace.active("F.filter")
    source = trace.own(port, "the first argument of F.filter")
    by = trace.own(mask, "the mask of F.filter")
    domain = trace.same_domain(
        (source, by),
        "the Port and the mask of F.filter",
        "Compute the mask from the same children, or bring it down with F.broadcast(mask, like=x).",
    )
    origin, settled = trace.origin(by)
    if trace.ports[origin].kind is PortKind.REDUCE:
        raise compile_error(
            f"the mask of F.filter is {trace.describe(by)}, whose values are lists",
            "A mask holds one boolean an Item. Let a Call turn the list into a boolean.",
        )
    if settled:
        raise compile_error(
            f"the mask of F.filter is {trace.describe(by)}, which is settled and may hold a Hole in place of a boolean",
            "Filter with the mask as it was, and settle the result: F.settle(F.filter(x, mask)).",
        )
    trace.ports[origin].as_mask = True
    return trace.add_port(
        PortKind.FILTER, domain, f"filter({trace.ports[source].name}, {trace.ports[by].name})", (source, by)
    )


def broadcast(port: Port, *, like: Port) -> Port:
    """From an ancestor to a descendant Domain, at any depth: every descendant of ``like`` sees its ancestor's Item."""
    trace = Trace.active("F.broadcast")
    source = trace.own(port, "the first argument of F.broadcast")
    target = trace.own(like, "like= of F.broadcast")
    above, below = trace.ports[source].domain, trace.ports[target].domain
    if not trace.is_ancestor(above, below):
        if trace.is_ancestor(below, above):
            mend = "Values go up with F.reduce(x); F.broadcast only goes down. Did you swap the two?"
        else:
            mend = "Reduce both to the Domain that they share, and let a Call there put them together."
        raise compile_error(
            f"F.broadcast goes from an ancestor to a descendant, but {trace.describe(source)} is in "
            f"{trace.domain_story(above)}, which is not above {trace.domain_story(below)} of {trace.describe(target)}",
            mend,
        )
    if above == below:
        return port
    return trace.add_port(PortKind.BROADCAST, below, f"broadcast({trace.ports[source].name})", (source,))


def reduce(port: Port, *, members: Port | None = None) -> Port:
    """From child to parent: the surviving Items form one list in the order of their ordinals.

    ``members`` (default: the Port itself) says which children survive; a dropped member's value is never looked at.
    """
    trace = Trace.active("F.reduce")
    value = trace.own(port, "the first argument of F.reduce")
    by = value if members is None else trace.own(members, "members= of F.reduce")
    return _reduce(trace, (value,), by, "F.reduce")[0]


def reduce_aligned(*ports: Port, members: Port | None = None) -> tuple[Port, ...]:
    """Several Ports of one Domain over one membership: element i of every list comes from the same child.

    ``members`` defaults to the first Port.
    """
    trace = Trace.active("F.reduce_aligned")
    if not ports:
        raise compile_error(
            "F.reduce_aligned needs at least one Port", "Pass Ports of one Domain: F.reduce_aligned(a, b)."
        )
    values = tuple(trace.own(p, f"argument {i} of F.reduce_aligned") for i, p in enumerate(ports))
    by = values[0] if members is None else trace.own(members, "members= of F.reduce_aligned")
    return _reduce(trace, values, by, "F.reduce_aligned")


def _reduce(trace: Trace, values: tuple[int, ...], members: int, what: str) -> tuple[Port, ...]:
    domain = trace.ports[values[0]].domain
    if domain == ROOT:
        raise compile_error(
            f"{what} goes up to the parent, and {trace.describe(values[0])} is in the root Domain, which has none",
            "Reduce what an F.expand made; a source item's own values are already where they belong.",
        )
    trace.same_domain(
        (*values, members),
        f"the Ports and members= of {what}",
        "Every reduce ends one expand: give it children of that expand only.",
    )
    ports: list[Port] = []
    for value in values:
        trace.use_as_value(value)
        ports.append(
            trace.add_port(
                PortKind.REDUCE,
                trace.domains[domain].parent,
                f"reduce({trace.ports[value].name})",
                (value, members),
            )
        )
    return tuple(ports)


def optional(port: Port) -> OptionalPort:
    """As a Call's argument: a dropped value reaches the Function as ``MISSING`` instead of dropping the Grain."""
    trace = Trace.active("F.optional")
    trace.own(port, "the argument of F.optional")
    return OptionalPort(port)


def settle(port: Port) -> Port:
    """A Failed or Suppressed Item becomes Present, with a ``Hole`` as its value; Dropped stays Dropped."""
    trace = Trace.active("F.settle")
    source = trace.own(port, "the argument of F.settle")
    node = trace.ports[source]
    return trace.add_port(PortKind.SETTLE, node.domain, f"settle({node.name})", (source,))
