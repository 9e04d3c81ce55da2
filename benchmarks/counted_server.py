"""The embedded Prefect server, counting what is asked of it: ``python -m benchmarks.counted_server PORT``.

``GET /counts`` answers with the number of requests by method and path, ids left out, and of messages on its sockets.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import uvicorn
from prefect.server.api.server import create_app

from rayorch_flows.orchestration.server.main import take_write_locks_first

_Message = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]
_IDS = re.compile(r"/[0-9a-f]{8}-[0-9a-f-]{27}|/key/[^/]+")


class Counted:
    """An ASGI application that counts before it hands on."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._counts: Counter[str] = Counter()

    async def __call__(self, scope: _Message, receive: _Receive, send: _Send) -> None:
        if scope["type"] == "http" and scope["path"] == "/counts":
            body = json.dumps(self._counts).encode()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": body})
            return
        name = _IDS.sub("/ID", scope.get("path", ""))
        if scope["type"] == "http":
            self._counts[f"{scope['method']} {name}"] += 1

        async def counting() -> _Message:
            message = await receive()
            if message["type"] == "websocket.receive":
                self._counts[f"message {name}"] += 1
            return message

        await self._app(scope, counting if scope["type"] == "websocket" else receive, send)


def main(port: int) -> None:
    take_write_locks_first()
    config = uvicorn.Config(Counted(create_app(final=True)), host="127.0.0.1", port=port, log_level="warning")
    uvicorn.Server(config).run()


if __name__ == "__main__":
    main(int(sys.argv[1]))
