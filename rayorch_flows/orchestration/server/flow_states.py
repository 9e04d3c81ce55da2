"""How our flow runs end when something is wrong that we can name."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec, TypeVar
from uuid import UUID

from prefect import State
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRunPolicy
from prefect.states import Failed

from rayorch_flows.errors import RayorchFlowsError
from rayorch_flows.orchestration.server.outage import patiently

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")


def in_one_message(
    run: Callable[Arguments, Awaitable[Answer]],
) -> Callable[Arguments, Awaitable[Answer | State[Any]]]:
    """Below ``@flow``: an error of ours ends the flow run as its message. Raised out of the flow, it would fill the log
    with a traceback through Prefect; as the data of the state, it still reaches whoever called the flow."""

    @functools.wraps(run)
    async def told(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Answer | State[Any]:
        try:
            return await run(*args, **kwargs)
        except RayorchFlowsError as error:
            return Failed(message=str(error), data=error)

    # Prefect would look up the names of types here instead of where the flow is written.
    told.__dict__["__signature__"] = inspect.signature(run, eval_str=True)
    return told


async def without_retries(run_id: str | None) -> None:
    """Take away what retries this flow run has left: what is in its way will not go by itself."""
    if run_id is not None:
        async with get_client() as client:
            await patiently(client.update_flow_run, UUID(run_id), empirical_policy=FlowRunPolicy(retries=0))
