"""Which ready Grains leave together: FIFO across microbatches, slow start, the shrinking tail, the byte budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf
from typing import Final

from rayorch_flows.lineage.facts import CallState, Microbatch
from rayorch_flows.lineage.index import PlanIndex
from rayorch_flows.lineage.ready import ReadyQueue
from rayorch_flows.lineage.tables import Phase
from rayorch_flows.program.plan import Batching, Options

_WORTH: Final = 4
"""How many times its fixed cost the rows of a dispatch batch should be worth: it is then a fifth of the whole."""


@dataclass(slots=True)
class CallHistory:
    """What a Call has cost so far, over all microbatches.

    ``rows`` and ``nbytes`` give what a Grain will add to the byte budget; ``overhead_rows``, told by whoever has a
    clock, is the fixed cost of a dispatch batch in rows (infinite: not known yet).
    """

    rows: int = 0
    nbytes: int = 0
    overhead_rows: float = inf

    def mean_bytes(self) -> float | None:
        return self.nbytes / self.rows if self.rows else None

    def worth(self, limit: int, *, unknown: float, times: float = _WORTH) -> int:
        """Rows worth so many ``times`` a batch's fixed cost, at most ``limit``; a share of it while ``unknown``."""
        return ceil(unknown * limit if self.overhead_rows == inf else min(times * self.overhead_rows, limit))


@dataclass(frozen=True, slots=True)
class Reservation:
    """Grains of one Call to dispatch together, by microbatch, in the order in which they leave; ``alone`` as in the
    dispatch batch."""

    call: int
    groups: tuple[tuple[Microbatch, list[int]], ...]
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Asking:
    """Who asks for a dispatch batch. ``idle``: actors that hold none, the asking one among them; 0 if it holds one.
    ``draining``: no microbatch is to come."""

    idle: int
    workers: int
    draining: bool


def reserve(
    index: PlanIndex,
    microbatches: Sequence[Microbatch],
    live_bytes: Sequence[int],
    history: Sequence[CallHistory],
    module: int,
    asking: Asking,
) -> Reservation | None:
    """The next dispatch batch of one module's actors, or None; ``microbatches`` in order of admission.

    Calls that share the module take turns by oldest ready Grain. The Grains are removed from their queues. A single
    Grain under suspicion of having taken an actor down waits for one that holds nothing, and what is behind it waits
    too, or the actors would never run dry.
    """
    options = index.plan.modules[module].options
    active = [m for m in microbatches if not m.paused]
    for call, ready in _by_age(index, active, module):
        for urgent in (True, False):
            if (found := _recovery_group(ready, call, urgent=urgent)) is not None:
                microbatch, group = found
                alone = len(group) == 1 and group[0] in microbatch.calls[call].infra_failures
                if alone and not asking.idle:
                    return None
                _take_recovery_group(index, microbatch, call, group, urgent=urgent)
                return Reservation(call, ((microbatch, group),), alone)
            if not urgent:
                break
            limit = _limit(index, active, ready, live_bytes, history, call, asking)
            if limit and (groups := _fill(ready, options, history[call], call, limit, idle=asking.idle > 0)):
                return Reservation(call, groups)
    return None


def _by_age(index: PlanIndex, active: Sequence[Microbatch], module: int) -> list[tuple[int, list[Microbatch]]]:
    """Calls of the module and the microbatches where they have ready Grains, the one with the oldest first."""
    calls = [(c, ready) for c in index.module_calls[module] if (ready := [m for m in active if m.calls[c].ready])]
    if len(calls) < 2:
        return calls
    ages: dict[int, int] = {}
    for call, ready in calls:
        oldest = [n for m in ready if (n := m.calls[call].queue.oldest()) is not None]
        ages[call] = min(oldest, default=0)
    return sorted(calls, key=lambda found: ages[found[0]])


def _recovery_group(ready: Sequence[Microbatch], call: int, *, urgent: bool) -> tuple[Microbatch, list[int]] | None:
    """The next exact group of a recovery queue, less the Grains that a barrier has sealed since."""
    for microbatch in ready:
        state = microbatch.calls[call]
        groups = state.urgent if urgent else state.tail
        while groups:
            groups[0] = [grain for grain in groups[0] if state.phase[grain] == Phase.READY]
            if groups[0]:
                return microbatch, groups[0]
            groups.popleft()
    return None


def _take_recovery_group(
    index: PlanIndex, microbatch: Microbatch, call: int, group: list[int], *, urgent: bool
) -> None:
    state = microbatch.calls[call]
    (state.urgent if urgent else state.tail).popleft()
    parents = microbatch.domains[index.plan.calls[call].domain].parent
    for grain in group:
        state.queue.dispatched(parents[grain], 1)


def _fill(
    ready: Sequence[Microbatch], options: Options, history: CallHistory, call: int, limit: int, *, idle: bool
) -> tuple[tuple[Microbatch, list[int]], ...]:
    """Up to ``limit`` Grains: the oldest microbatch first, filled up from the next; siblings only if parent-bound.

    For an idle actor, windows are ignored where they give nothing, or fewer Grains than a batch's fixed cost is worth:
    the next idle actor would take the held ones anyway, as a batch of their own.
    """
    parent_bound = options.batching is Batching.PARENT_BOUND
    groups: dict[str, tuple[Microbatch, list[int]]] = {}
    size = 0
    for ignore_windows in (False, True) if idle else (False,):
        room = limit if not size else history.worth(limit, unknown=0.0) - size
        for microbatch in ready:
            queue = microbatch.calls[call].queue
            if room <= 0 or (parent_bound and size):
                break
            if queue.size and (queue.open or ignore_windows):
                grains = queue.take(room, ignore_windows=ignore_windows)
                groups.setdefault(microbatch.id, (microbatch, []))[1].extend(grains)
                size += len(grains)
                room -= len(grains)
    return tuple(groups.values())


def _limit(
    index: PlanIndex,
    active: Sequence[Microbatch],
    ready: Sequence[Microbatch],
    live_bytes: Sequence[int],
    history: Sequence[CallHistory],
    call: int,
    asking: Asking,
) -> int:
    """How many Grains may leave now: the batch size, less when work is short, less under the byte budget."""
    options = index.plan.modules[index.plan.calls[call].module].options
    limit = options.batch_size
    if options.batching is Batching.ELASTIC:
        queues = [m.calls[call].queue for m in ready]
        queued = sum(queue.size for queue in queues)
        # Where a full batch for every actor and one more are queued, tail or not makes no difference.
        short = queued < limit * (1 + asking.workers)
        tail = short and asking.draining and not _more_to_come(index, active, call)
        limit = _share(queues, queued, limit, history[call], asking, tail=tail)
    if limit and options.max_ready_bytes:
        limit = min(limit, _byte_room(index, active, live_bytes, history, options, call))
    return limit


def _share(
    queues: Sequence[ReadyQueue], queued: int, limit: int, history: CallHistory, asking: Asking, *, tail: bool
) -> int:
    """The dispatch batch for one actor out of queues that may not fill all of them.

    Short work is dealt out in shares, to idle actors only, so that they finish together and nothing waits behind a
    running batch. A busy actor can wait until the windows let a batch go that is worth its fixed cost. At the tail a
    share is for every actor, and may be as little as the fixed cost: there is nothing else to do. Before it a share is
    for those that are idle now. While the cost is unknown, a share is no less than three quarters of the limit: sizes
    have to vary for it to show.
    """
    enough = queued >= limit * asking.workers if tail else queued >= limit * (1 + asking.idle)
    if not asking.idle:
        worthy = sum(queue.open for queue in queues) >= history.worth(limit, unknown=1.0)
        return limit if enough and worthy else 0
    if tail and enough:
        return limit
    share = -(-queued // (asking.workers if tail else asking.idle))
    return min(limit, max(1, share, history.worth(limit, unknown=0.75, times=1 if tail else _WORTH)))


def _more_to_come(index: PlanIndex, active: Sequence[Microbatch], call: int) -> bool:
    """Whether unfinished Grains upstream can still make this Call work."""
    return any(microbatch.calls[upstream].unsealed for microbatch in active for upstream in index.upstream[call])


def _byte_room(
    index: PlanIndex,
    active: Sequence[Microbatch],
    live_bytes: Sequence[int],
    history: Sequence[CallHistory],
    options: Options,
    call: int,
) -> int:
    """Grains that fit into what is left of the budget; one is always allowed when nothing downstream can move."""
    states = [m.calls[call] for m in active]
    in_flight = sum(state.in_flight for state in states)
    mean = history[call].mean_bytes()
    if mean is None:
        return 0 if in_flight else 1
    room = int((options.max_ready_bytes - live_bytes[call]) / mean) - in_flight if mean else options.batch_size
    if room > 0:
        return room
    stuck = not in_flight and not any(_moving(m.calls[d]) for m in active for d in index.downstream[call])
    return 1 if stuck else 0


def _moving(state: CallState) -> bool:
    return bool(state.ready or state.in_flight)
