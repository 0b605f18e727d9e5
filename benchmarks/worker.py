"""One side of a benchmark in a process of its own: loads a peer's module and runs jobs from standard input.

Runs in the peer's environment: standard library only. What the tool prints goes to the log, so that
standard output carries nothing but one JSON line per job.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
import traceback


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    spec = importlib.util.spec_from_file_location("peer", sys.argv[1])
    assert spec is not None
    assert spec.loader is not None
    peer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(peer)
    settings = json.loads(sys.stdin.readline())
    state = peer.start(settings)
    for line in sys.stdin:
        begun = time.perf_counter()
        try:
            phases = peer.run(state, json.loads(line))
            answer = {"seconds": time.perf_counter() - begun, "phases": phases or {}}
        except Exception as error:  # noqa: BLE001  the harness prints it as the reason of this side
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"[-600:]}
        answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
