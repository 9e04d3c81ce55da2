"""Whether a Ray cluster can be used, found out with one small request before anything is started or written.

Ray itself waits for minutes where nobody listens, and for twenty seconds with a wrong token, and then does not say that
it was the token.
"""

from __future__ import annotations

import importlib
import os
import socket
from typing import Any, Final

from rayorch_flows.errors import InfrastructureError
from rayorch_flows.orchestration.settings.home import ANSWER_TIMEOUT_S

_HEAD_ALIVE: Final = ("/ray.rpc.NodeInfoGcsService/CheckAlive", b"")
_CLIENT_PING: Final = ("/ray.rpc.RayletDriver/ClusterInfo", b"\x08\x06")
"""A ``ClusterInfoRequest`` of the type PING, which starts nothing on the other side."""
_CONNECT_S: Final = ANSWER_TIMEOUT_S / 3


def expect_cluster(address: str) -> None:
    """Fail soon and clearly when no Ray cluster answers at the address, or when it does not take the token.

    Ray finds the address "auto" by itself, in the files of the machine's own cluster.
    """
    if address == "auto":
        return
    _expect_listener(address)
    if os.environ.get("RAY_USE_TLS", "0") != "1":
        _expect_admission(address)


def _expect_listener(address: str) -> None:
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise InfrastructureError(
            f"the Ray address {address!r} is no host:port",
            next_step="give host:6379, or ray://host:10001 from outside the cluster",
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S).close()
    except OSError as error:
        raise _nobody(address, error) from None


def _expect_admission(address: str) -> None:
    """Ask as Ray does, with the token that this process has."""
    import grpc

    authorization = _authorization(address)
    method, request = _CLIENT_PING if address.startswith("ray://") else _HEAD_ALIVE
    options = [("grpc.enable_http_proxy", 0)]
    with grpc.insecure_channel(address.removeprefix("ray://"), options=options) as channel:
        try:
            ask: Any = channel.unary_unary(method)
            ask(request, metadata=tuple(authorization.items()), timeout=ANSWER_TIMEOUT_S - _CONNECT_S)
        except grpc.RpcError as error:
            raise _refusal(address, error, bool(authorization)) from None


def _authorization(address: str) -> dict[str, str]:
    """The header with this process's token; none if token authentication is off."""
    raylet: Any = importlib.import_module("ray._raylet")
    loader = raylet.AuthenticationTokenLoader.instance()
    try:
        return loader.get_token_for_http_header() if loader.has_token() else {}
    except Exception as error:
        raise InfrastructureError(
            f"cannot use the Ray cluster at {address}, there is no token: {str(error).partition('. ')[0]}",
            next_step="set RAY_AUTH_TOKEN_PATH to a file with the cluster's token, or use a ray-cluster block",
        ) from None


def _refusal(address: str, error: Any, with_token: bool) -> InfrastructureError:
    code = error.code().name
    if code == "UNAUTHENTICATED":
        return InfrastructureError(
            f"cannot use the Ray cluster at {address}: "
            + ("it does not accept this token" if with_token else "it wants a token, and none was given"),
            next_step="give the cluster's token: RAY_AUTH_MODE=token with RAY_AUTH_TOKEN_PATH, or a ray-cluster block",
        )
    if code == "UNIMPLEMENTED":
        return InfrastructureError(
            f"this port of Ray is the wrong one for the address {address}",
            next_step="give host:6379 for the head's own port, ray://host:10001 for that of Ray Client",
        )
    return _nobody(address, f"{code.lower().replace('_', ' ')}: {error.details()}")


def _nobody(address: str, reason: object) -> InfrastructureError:
    return InfrastructureError(
        f"no Ray cluster answers at {address}: {reason}",
        next_step="start it, correct the address (cluster, RAY_ADDRESS), or give none to use an embedded cluster",
    )
