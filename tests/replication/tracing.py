"""What a process asks of the kernel, in order: the calls that make a log durable, and what is confirmed.

By strace where there is one; else written down by the processes themselves, around the same calls.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import struct
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.waiting import await_true

TRACERS = ("wrapped", "strace") if shutil.which("strace") else ("wrapped",)

# Put before everything else that a process of Python imports.
WRAPPED = '''
import os

_log = os.open({log!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

def _say(*words):
    os.write(_log, (" ".join(map(str, words)) + "\\n").encode())

def _wrapped(name, words):
    real = getattr(os, name)
    def call(*given, **options):
        named = words(*given)
        done = real(*given, **options)
        _say(name, named)
        return done
    setattr(os, name, call)

_wrapped("fsync", lambda fd: os.readlink(f"/proc/self/fd/{{fd}}"))
_wrapped("link", lambda source, target: target)

class _Confirms:
    """Around what tells the server, once that is imported."""
    def find_spec(self, name, path=None, target=None):
        if name != "penstock.backends.postgres.stream":
            return None
        import sys
        from importlib.util import find_spec
        sys.meta_path.remove(self)
        spec = find_spec(name)
        run = spec.loader.exec_module
        def exec_module(module):
            run(module)
            real = module.ReplicationLink.confirm
            def confirm(link, received, durable, **options):
                _say("confirm", durable)
                real(link, received, durable, **options)
            module.ReplicationLink.confirm = confirm
        spec.loader.exec_module = exec_module
        return spec

import sys
sys.meta_path.insert(0, _Confirms())
'''


@dataclass(frozen=True, slots=True)
class Call:
    """`fsync` and `link` when they have returned, `write` and `confirm` when they began."""

    name: str
    path: str = ""
    position: int = 0


def wrap(folder: Path) -> tuple[dict[str, str], Callable[[], list[Call]]]:
    """The environment of processes that write down what they do; and what they have written."""
    folder.mkdir()
    log = folder / "calls"
    (folder / "sitecustomize.py").write_text(WRAPPED.format(log=str(log)))
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])

    def calls() -> list[Call]:
        found = [line.split(" ", 1) for line in log.read_text().splitlines()]
        return [Call(name, position=int(what)) if name == "confirm" else Call(name, what) for name, what in found]

    return {"PYTHONPATH": path}, calls


@contextmanager
def straced(log: Path, *pids: int) -> Iterator[list[Call]]:
    """What these processes have done is there when they are let go."""
    traced = "trace=write,fsync,fdatasync,link,linkat,sendto"
    command = ["strace", "-f", "-y", "-xx", "-s", "256", "-e", traced, "-o", str(log)]
    process = subprocess.Popen([*command, *(f"--attach={pid}" for pid in pids)], stderr=subprocess.DEVNULL)
    await_true(lambda: all(_tracer(pid) == process.pid for pid in pids))
    calls: list[Call] = []
    try:
        yield calls
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)
    calls += _parsed(log.read_text())


def _tracer(pid: int) -> int:
    found = re.search(r"TracerPid:\s*(\d+)", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1])


def _parsed(text: str) -> Iterator[Call]:
    begun: dict[str, str] = {}  # calls of threads that another one's came between
    for line in text.splitlines():
        pid, _, call = line.partition(" ")
        call = call.strip()
        if resumed := re.match(r"<\.\.\. (\w+) resumed>", call):
            call = begun.pop(pid, "") + call[resumed.end() :]
            if call.startswith(("write", "sendto")):
                continue  # told when it began
        elif call.endswith("<unfinished ...>"):
            begun[pid] = call.removesuffix("<unfinished ...>")
            if not call.startswith(("write", "sendto")):
                continue
        yield from _call(call)


def _call(call: str) -> Iterator[Call]:
    name = call.partition("(")[0]
    if name in ("write", "fsync", "fdatasync") and (found := re.search(r"\(\d+<([^>]*)>", call)):
        yield Call("write" if name == "write" else "fsync", _text(found[1]))
    elif name in ("link", "linkat"):
        yield Call("link", _text(re.findall(r'"([^"]*)"', call)[-1]))
    elif name == "sendto" and (found := re.search(r'"([^"]*)"', call)):
        sent = bytes.fromhex(found[1].replace("\\x", ""))
        if sent[:1] == b"d" and sent[5:6] == b"r":
            yield Call("confirm", position=struct.unpack_from(">Q", sent, 14)[0])


def _text(shown: str) -> str:
    return bytes.fromhex(shown.replace("\\x", "")).decode() if shown.startswith("\\x") else shown
