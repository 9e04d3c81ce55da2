"""Ways to break the engine on purpose: each replaces one snippet of the source by a wrong one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """``old`` must occur exactly once in ``file`` (under rayorch_flows/lineage)."""

    name: str
    file: str
    old: str
    new: str


MUTANTS = (
    # the fences
    Mutant(
        "a Report of a sealed or retried Grain is accepted",
        "commit.py",
        "if phase[grain] == Phase.IN_FLIGHT and generation.get(grain, 0) == sent",
        "if True",
    ),
    Mutant(
        "a Report of a Grain behind a barrier is accepted where nothing was retried",
        "commit.py",
        ".count(Phase.IN_FLIGHT) == len(grains):",
        ".count(Phase.IN_FLIGHT) >= 0:",
    ),
    Mutant(
        "a retry does not raise the generation",
        "machine.py",
        "        _count(calls.generation, grains)\n",
        "",
    ),
    Mutant(
        "a batch can be answered twice",
        "machine.py",
        "batch = self._batches.pop(batch_id, None)\n        blocks",
        "batch = self._batches.get(batch_id)\n        blocks",
    ),
    Mutant(
        "Reports of an earlier attempt at the microbatch are taken",
        "machine.py",
        "return state if state is not None and state.attempt == segment.attempt else None",
        "return state",
    ),
    Mutant(
        "a cancelled microbatch goes on",
        "machine.py",
        "state = self._active.pop(microbatch, None)\n        if state is not None:",
        "state = self._active.get(microbatch)\n        if state is None:",
    ),
    Mutant(
        "a paused microbatch is dispatched",
        "reservation.py",
        "active = [m for m in microbatches if not m.paused]",
        "active = list(microbatches)",
    ),
    # publications and phases
    Mutant(
        "a conflicting publication is accepted",
        "tables.py",
        "if held in (_U, published):",
        "if True:",
    ),
    Mutant(
        "a sealed Grain can be sealed again",
        "tables.py",
        "    (Phase.IN_FLIGHT, GrainEvent.BARRIER): Phase.SEALED,\n",
        "    (Phase.IN_FLIGHT, GrainEvent.BARRIER): Phase.SEALED,\n"
        "    (Phase.SEALED, GrainEvent.BARRIER): Phase.SEALED,\n"
        "    (Phase.SEALED, GrainEvent.RESERVE): Phase.IN_FLIGHT,\n",
    ),
    Mutant(
        "outputs are published one short",
        "propagation.py",
        "for port in self.plan.calls[call].outputs:\n            if cause",
        "for port in self.plan.calls[call].outputs[:2]:\n            if cause",
    ),
    # barriers
    Mutant(
        "a group failure raises no barrier",
        "commit.py",
        "if failure.group and domain != ROOT:",
        "if False:",
    ),
    Mutant(
        "a record failure raises a barrier",
        "commit.py",
        "if failure.group and domain != ROOT:",
        "if domain != ROOT:",
    ),
    Mutant(
        "a barrier leaks to the Domain's other Calls",
        "propagation.py",
        "        self.seal(microbatch, call, open_grains, GrainEvent.BARRIER, _SUPPRESSED, cause)\n",
        "        self.seal(microbatch, call, open_grains, GrainEvent.BARRIER, _SUPPRESSED, cause)\n"
        "        for other in self.index.domain_calls[self.plan.calls[call].domain]:\n"
        "            if other > call:\n"
        "                waiting = [g for g in siblings if microbatch.calls[other].phase[g] == Phase.WAITING]\n"
        "                self.seal(microbatch, other, waiting, GrainEvent.BARRIER, _SUPPRESSED, cause)\n",
    ),
    Mutant(
        "a barrier leaks to the next parent",
        "propagation.py",
        "siblings = microbatch.domains[self.plan.calls[call].domain].children(parent)\n",
        "siblings = microbatch.domains[self.plan.calls[call].domain].children(parent)\n"
        "        siblings = range(siblings.start, min(siblings.stop + 1, len(state.phase)))\n",
    ),
    Mutant(
        "a barrier spares Grains in flight",
        "propagation.py",
        "open_grains = [grain for grain in siblings if state.phase[grain] != Phase.SEALED]",
        "open_grains = [g for g in siblings if state.phase[g] not in (Phase.SEALED, Phase.IN_FLIGHT)]",
    ),
    Mutant(
        "a barrier spares waiting Grains",
        "propagation.py",
        "open_grains = [grain for grain in siblings if state.phase[grain] != Phase.SEALED]",
        "open_grains = [g for g in siblings if state.phase[g] not in (Phase.SEALED, Phase.WAITING)]",
    ),
    Mutant(
        "a barrier forgets to empty the queue",
        "propagation.py",
        "        state.queue.forget(parent)\n",
        "",
    ),
    Mutant(
        "rows before a group failure in its batch are kept",
        "commit.py",
        "for position, failure in sorted(failing, key=lambda item: not item[1].group):",
        "for position, failure in sorted(failing, key=lambda item: item[1].group):",
    ),
    # rules
    Mutant(
        "filter: a dropped mask passes",
        "tables.py",
        "    (_D, _P),\n    (_D, _D),\n",
        "    (_D, _P),\n    (_P, _P),\n",
    ),
    Mutant(
        "filter: the mask is reversed",
        "tables.py",
        "    (_D, _P),\n    (_D, _D),\n",
        "    (_P, _D),\n    (_D, _D),\n",
    ),
    Mutant(
        "filter: the mask decides before the source",
        "propagation.py",
        "            code: int = source_outcome[entity]\n            if code == _PRESENT:\n",
        "            code: int = source_outcome[entity]\n            if mask_outcome[entity]:\n",
    ),
    Mutant(
        "filter: a failed mask drops",
        "tables.py",
        "    (_F, _F),\n    (_S, _S),\n",
        "    (_D, _D),\n    (_S, _S),\n",
    ),
    Mutant(
        "Call: a dropped input wins over a failed one",
        "propagation.py",
        "        dropped = dropped or verdict == Verdict.DROP\n    return Verdict.DROP if dropped else Verdict.GO",
        "        if verdict == Verdict.DROP:\n            return verdict\n    return Verdict.GO",
    ),
    Mutant(
        "Call: a later failing argument does not wait for the earlier ones",
        "propagation.py",
        "        if verdict == Verdict.WAIT or verdict == Verdict.SUPPRESS:\n            return verdict\n",
        "        if verdict == Verdict.SUPPRESS:\n            return verdict\n"
        "        if verdict == Verdict.WAIT:\n            return Verdict.SUPPRESS if any(\n"
        "                t[o[entity]] == Verdict.SUPPRESS for o, t in rules\n            ) else verdict\n",
    ),
    Mutant(
        "Call: an optional dropped input drops the Grain",
        "tables.py",
        "OPTIONAL_INPUT: Final = bytes([Verdict.WAIT, Verdict.GO, Verdict.GO,",
        "OPTIONAL_INPUT: Final = bytes([Verdict.WAIT, Verdict.GO, Verdict.DROP,",
    ),
    Mutant(
        "Call: an optional failed input arrives as missing",
        "tables.py",
        "OPTIONAL_INPUT: Final = bytes([Verdict.WAIT, Verdict.GO, Verdict.GO, Verdict.SUPPRESS, Verdict.SUPPRESS])",
        "OPTIONAL_INPUT: Final = bytes([Verdict.WAIT, Verdict.GO, Verdict.GO, Verdict.GO, Verdict.SUPPRESS])",
    ),
    Mutant(
        "settle: a dropped Item becomes a hole",
        "tables.py",
        "SETTLED: Final = bytes([_U, _P, _D, _P, _P])",
        "SETTLED: Final = bytes([_U, _P, _P, _P, _P])",
    ),
    Mutant(
        "settle: a suppressed Item stays suppressed",
        "tables.py",
        "SETTLED: Final = bytes([_U, _P, _D, _P, _P])",
        "SETTLED: Final = bytes([_U, _P, _D, _P, _S])",
    ),
    Mutant(
        "expand: a failed group drops its Expansion",
        "tables.py",
        "EXPANSION: Final = bytes([_U, _P, _D, _F, _F])",
        "EXPANSION: Final = bytes([_U, _P, _D, _D, _D])",
    ),
    Mutant(
        "reduce: a failed Expansion fails",
        "tables.py",
        "REDUCED_EXPANSION: Final = bytes([_U, _P, _D, _S, _S])",
        "REDUCED_EXPANSION: Final = bytes([_U, _P, _D, _F, _F])",
    ),
    Mutant(
        "reduce: an empty Expansion is never reduced",
        "propagation.py",
        "        for target in self.index.domain_reduces[domain]:\n            self._to_reduce(",
        "        for target in self.index.domain_reduces[domain] if size else ():\n            self._to_reduce(",
    ),
    Mutant(
        "reduce: the last member is not waited for",
        "propagation.py",
        "        if at == size:\n            return _PRESENT\n",
        "        if at >= size - 1 and verdict != Verdict.SUPPRESS:\n            return _PRESENT\n",
    ),
    Mutant(
        "reduce: a dropped member's value is looked at",
        "propagation.py",
        "outcomes[first + at] != _PRESENT or (verdict",
        "(verdict",
    ),
    Mutant(
        "reduce: dropped members are gathered too",
        "columns.py",
        "if outcomes.count(OutcomeCode.PRESENT, children.start, children.stop) != len(children):",
        "if False:",
    ),
    Mutant(
        "reduce: the order of the ordinals is reversed",
        "columns.py",
        "column.lengths[level].append(len(children))",
        "children = list(reversed(children))\n                column.lengths[level].append(len(children))",
    ),
    Mutant(
        "reduce: the highest failing ordinal is the cause",
        "causes.py",
        "    for child in children:\n        if MEMBER_RULE",
        "    for child in reversed(children):\n        if MEMBER_RULE",
    ),
    Mutant(
        "Call: the last failing argument is the cause",
        "causes.py",
        "        return _first(microbatch, inputs, entity)\n    if spec.kind is PortKind.FILTER:",
        "        return _first(microbatch, reversed(list(inputs)), entity)\n    if spec.kind is PortKind.FILTER:",
    ),
    Mutant(
        "broadcast: children born after their ancestor's outcome are forgotten",
        "propagation.py",
        "                if known:\n",
        "                if known != _PRESENT:\n",
    ),
    # payloads
    Mutant(
        "list elements lie one row off",
        "propagation.py",
        'items.row[at : at + count] = array("i", range(first, first + count))',
        'items.row[at : at + count] = array("i", range(first + count - 1, first - 1, -1))',
    ),
    Mutant(
        "failed rows are not skipped in the outputs",
        "commit.py",
        "enumerate(r for r in range(size) if r not in failures)",
        "enumerate(range(size))",
    ),
    Mutant(
        "a payload is let go while a consumer still needs it",
        "retention.py",
        "last = [entity for entity in reached if left[entity] == 1]",
        "last = [entity for entity in reached if left[entity] >= 1]",
    ),
    Mutant(
        "a range of payloads is let go while a consumer still needs them",
        "retention.py",
        ".count(1) == len(reached):",
        ".count(0) == 0:",
    ),
    Mutant(
        "payloads that no consumer will run for stay until the microbatch ends",
        "machine.py",
        "holders = self._holders() if state.sweep[row] else self.index.leftover",
        "holders = self.index.leftover",
    ),
    Mutant(
        "payloads below dropped members stay until the microbatch ends",
        "index.py",
        "leftover=tuple(sorted(pinned | _late(plan))),",
        "leftover=tuple(sorted(pinned)),",
    ),
    Mutant(
        "rejected rows keep their block",
        "machine.py",
        "            self._finish(touched)\n        self._retention.let_blocks_go(blocks)",
        "            self._finish(touched)\n        self._retention.let_blocks_go(blocks[1:])",
    ),
    # scheduling and recovery
    Mutant(
        "parent-bound batches mix parents",
        "ready.py",
        "                    self._pull(parent, room, taken)\n                break\n",
        "                    self._pull(parent, room, taken)\n",
    ),
    Mutant(
        "slow start ignores its windows",
        "ready.py",
        "return min(limit, self._windows.get(parent, self._window) - self._flying.get(parent, 0))",
        "return limit",
    ),
    Mutant(
        "a large parent never lets the others go first",
        "ready.py",
        "        return self._first_waits\n",
        "        return False\n",
    ),
    Mutant(
        "a parent that let the others go first is lost",
        "ready.py",
        "        if passed:\n            heappush(self._order, passed)\n        if ignore",
        "        if ignore",
    ),
    Mutant(
        "held Grains fill every batch of an idle actor",
        "reservation.py",
        "history.worth(limit, unknown=0.0) - size",
        "limit - size",
    ),
    Mutant(
        "held Grains go along as a part of their own",
        "reservation.py",
        "groups.setdefault(microbatch.id,",
        'groups.setdefault(f"{microbatch.id} {ignore_windows}",',
    ),
    Mutant(
        "a batch overflows its limit",
        "reservation.py",
        "    limit = options.batch_size\n",
        "    limit = options.batch_size + 1\n",
    ),
    Mutant(
        "an innocent sibling is failed with the poisonous one",
        "recovery.py",
        "    if attempt.batch_size > 1:\n        return Recovery.HALVE",
        "    if attempt.batch_size > 2:\n        return Recovery.HALVE",
    ),
    Mutant(
        "a Grain whose answer died with the batch behind it is failed",
        "recovery.py",
        "AttemptFailure.WORKER_DIED and not attempt.alone",
        "AttemptFailure.NOT_STARTED and not attempt.alone",
    ),
    Mutant(
        "a suspect shares its actor",
        "reservation.py",
        "if alone and not asking.idle:",
        "if not alone and asking.idle > 99:",
    ),
    Mutant(
        "a dead actor aborts the microbatch",
        "recovery.py",
        "    if attempt.failure is not AttemptFailure.EXCEPTION:\n        if attempt.infra_failures",
        "    if attempt.failure is AttemptFailure.NOT_STARTED:\n        if attempt.infra_failures",
    ),
    Mutant(
        "a batch queued behind the dead one is blamed",
        "machine.py",
        "elif failure in (AttemptFailure.WORKER_DIED, AttemptFailure.DEADLINE):",
        "elif failure is not AttemptFailure.EXCEPTION:",
    ),
    Mutant(
        "what was to be told of a cancelled microbatch is told",
        "machine.py",
        "        self._untell(microbatch)\n",
        "",
    ),
    Mutant(
        "what was to be told of an aborted microbatch is told",
        "machine.py",
        "            self._untell(state.id)\n",
        "",
    ),
    Mutant(
        "one retry too many before an abort",
        "recovery.py",
        "return Recovery.RETRY_NOW if attempt.udf_failures < policy.max_udf_retries else Recovery.ABORT",
        "return Recovery.RETRY_NOW if attempt.udf_failures <= policy.max_udf_retries else Recovery.ABORT",
    ),
    Mutant(
        "a batch that mixes microbatches aborts them all",
        "recovery.py",
        "    if attempt.mixed:\n        return Recovery.RETRY_NOW\n    return _AFTER",
        "    return _AFTER",
    ),
    Mutant(
        "a source item is terminal before its last Grain",
        "machine.py",
        "if not state.open[row] and not state.terminal[row]]",
        "if state.open[row] <= 1 and not state.terminal[row]]",
    ),
    Mutant(
        "a child's ordinal is off by one",
        "facts.py",
        "            path.append(entity - state.first[parent])\n",
        "            path.append(entity - state.first[parent] + 1)\n",
    ),
    Mutant(
        "siblings swap their ordinals",
        "results.py",
        "for ordinal, child in enumerate(state.children(parent))]",
        "for ordinal, child in enumerate(reversed(state.children(parent)))]",
    ),
)
