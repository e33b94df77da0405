"""Several processes on one virtual host: shared accounts, shared memory, what remains after a kill, fork."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from running import PROGRAMS, environment

MIB = 1 << 20


def peer(*arguments: str, **settings: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "peers.py", *arguments],
        cwd=PROGRAMS,
        env=environment(**{"ALOFT_HBM_GIB": "0.5", **settings}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline().strip()


def say(process: subprocess.Popen[str], text: str = "") -> None:
    assert process.stdin
    process.stdin.write(text + "\n")
    process.stdin.flush()


def ask(**settings: str) -> int:
    process = peer("free", **settings)
    answer = line(process)
    process.communicate(timeout=60)
    return int(answer)


def leftovers() -> set[str]:
    names = set(os.listdir("/dev/shm")) | set(os.listdir("/tmp"))
    return {n for n in names if "aloft" in n.lower() or "npu" in n.lower()}


def test_processes_share_a_devices_account_and_a_killed_one_leaves_nothing() -> None:
    before = leftovers()
    holder = peer("hold")
    assert int(line(holder)) == (512 - 64) * MIB
    assert ask() == (512 - 64) * MIB
    assert ask(PEER_DEVICE="1") == 512 * MIB
    assert ask(ALOFT_HOST="another") == 512 * MIB
    available = memory_available()
    holder.send_signal(signal.SIGKILL)
    holder.wait(timeout=30)
    assert ask() == 512 * MIB
    assert leftovers() == before
    deadline = time.monotonic() + 5  # 64 MiB come back to the host (others may use some meanwhile)
    while memory_available() < available and time.monotonic() < deadline:
        time.sleep(0.05)


def memory_available() -> int:
    for row in Path("/proc/meminfo").read_text().splitlines():
        if row.startswith("MemAvailable"):
            return int(row.split()[1]) * 1024
    raise AssertionError("no MemAvailable")


def test_memory_is_shared_by_key_with_the_processes_named() -> None:
    owner = peer("share")
    key = line(owner)
    importer = peer("import", key)
    refused, pid = line(importer).split()
    assert refused == "207006"
    say(owner, pid)
    assert line(owner) == "allowed"
    say(importer)
    assert line(importer) == "7 7"
    assert line(importer) == "closed"
    say(owner)
    assert line(owner) == "99"
    for process in (owner, importer):
        process.communicate(timeout=60)
        assert process.returncode == 0


def test_fork_before_use_works_and_after_use_says_why_not() -> None:
    done = subprocess.run(
        [sys.executable, "forked.py"],
        cwd=PROGRAMS,
        env=environment(ALOFT_HBM_GIB="1"),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0 and "fine" in done.stdout, done.stdout + done.stderr
