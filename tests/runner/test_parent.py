"""What a forked engine process keeps of its parent's sockets; how a server ends whose engine was killed."""

from __future__ import annotations

import asyncio
import os
import socket
from types import SimpleNamespace

import pytest

from aloft.runner import parent


def is_open(one: socket.socket) -> bool:
    return os.path.exists(f"/proc/self/fd/{one.fileno()}")


def test_ports_are_closed_and_connections_stay():
    """A child closes what listens on TCP, or is bound to and will; its connections and other sockets stay."""
    bound, listening = socket.socket(), socket.socket()
    for port in (bound, listening):
        port.bind(("127.0.0.1", 0))
    listening.listen(1)
    connection = socket.create_connection(listening.getsockname())
    fresh, (here, there) = socket.socket(), socket.socketpair()
    child = os.fork()
    if child == 0:
        parent._close_ports()
        kept = all(is_open(s) for s in (connection, fresh, here, there))
        os._exit(0 if kept and not is_open(bound) and not is_open(listening) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    for opened in (bound, listening, connection, fresh, here, there):
        opened.close()


@pytest.mark.parametrize(
    ("served", "asked", "exitcode", "status"),
    [(True, False, -9, 70), (True, True, -9, 0), (True, False, 0, 0), (True, False, None, 0), (False, False, -9, 0)],
)
def test_a_server_at_its_end_looks_for_itself_whether_its_engine_was_killed(served, asked, exitcode, status):
    """The thread that watches engines may not have run since; nobody has asked the server to end."""
    child = os.fork()
    if child == 0:
        parent._orphaned.clear()
        parent._served, parent._asked = served, asyncio.Event()
        if asked:
            parent._asked.set()
        parent._engines = [SimpleNamespace(exitcode=exitcode)]
        parent._leave_at_once()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == status
