"""The process of the embedded Prefect server: serves until it is told to stop, or until nobody uses it any more."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

from rayorch_flows.orchestration.server import prefect_server
from rayorch_flows.orchestration.settings.home import Home

CHECK_EVERY_S: Final = 2.0


def watch_users(home: Home) -> None:
    """End this process once nobody uses it: no living user in the state, another server there, or no home any more."""
    while True:
        time.sleep(CHECK_EVERY_S)
        try:
            wanted = _is_wanted(home)
        except OSError:
            wanted = home.root.is_dir()
        if not wanted:
            os.kill(os.getpid(), signal.SIGTERM)
            return


def _is_wanted(home: Home) -> bool:
    with prefect_server.locked(home):
        state = prefect_server.read_state(home)
        if state is None or state.process.pid != os.getpid():
            return False
        if state.live_users():
            return True
        prefect_server.write_state(home, None)
        return False


def take_write_locks_first() -> None:
    """Let every writing transaction of SQLite take its lock when it begins, and so wait for its turn.

    Prefect begins most of them as readers; when another one has written in between, SQLite refuses the first write at
    once ("database is locked"), the client gets a 503, and comes again after two seconds or more.
    """
    from prefect.server.database.configurations import AioSqliteConfiguration

    begin: Any = AioSqliteConfiguration.begin_transaction

    def begin_immediate(self: Any, session: Any, with_for_update: bool = True) -> Any:
        return begin(self, session, with_for_update=True)

    setattr(AioSqliteConfiguration, "begin_transaction", begin_immediate)  # noqa: B010 - seen by no type checker


def main(root: str, descriptor: str) -> None:
    home = Home(Path(root))
    threading.Thread(target=watch_users, args=(home,), daemon=True).start()
    import uvicorn
    from prefect.server.api.server import create_app

    take_write_locks_first()
    config = uvicorn.Config(create_app(final=True), log_level="warning", timeout_graceful_shutdown=3)
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=int(descriptor))])


if __name__ == "__main__":
    main(*sys.argv[1:3])
