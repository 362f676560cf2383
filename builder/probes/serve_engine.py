"""One SGLang engine in a process of its own, for the probe of engines: operations as JSON lines on stdin, answers on a descriptor.

SGLang starts its scheduler with the start method `spawn`, which runs this file again in the child; so nothing happens at import.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

# Scripts here are called like what they probe: `import torch` must not find `torch.py` of this folder.
_HERE = Path(__file__).resolve().parent
sys.path[:] = [entry for entry in sys.path if not entry or Path(entry).resolve() != _HERE]


def descendants(pid: int) -> list[int]:
    """Processes that a process has started, and theirs."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                text = (entry / "stat").read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue
            parents[int(entry.name)] = int(text.rpartition(")")[2].split()[1])
    found = [pid]
    for each in found:
        found += [child for child, parent in parents.items() if parent == each and child not in found]
    return found[1:]


def end_with(parent: int) -> None:
    """End this process and what it started when the process that started it is gone, even if that was killed."""
    while os.getppid() == parent:
        time.sleep(0.5)
    for pid in [*descendants(os.getpid()), os.getpid()]:
        os.kill(pid, signal.SIGKILL)


def serve(descriptor: int, arguments: dict[str, Any]) -> None:
    """Answer operations until stdin ends."""
    threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
    with os.fdopen(descriptor, "w", encoding="utf-8") as answers:

        def answer(**fields: Any) -> None:
            answers.write(json.dumps(fields, default=str) + "\n")
            answers.flush()

        try:
            import sglang

            engine = sglang.Engine(**arguments)
        except BaseException as problem:
            answer(error=f"{type(problem).__name__}: {problem}")
            raise
        answer(result="ready")
        for line in sys.stdin:
            asked = json.loads(line)
            try:
                out = engine.generate(
                    input_ids=asked["prompts"], sampling_params=asked["sampling"], **(asked.get("options") or {})
                )
                answer(result=[{"ids": each["output_ids"], "meta": each["meta_info"]} for each in out])
            except Exception as problem:  # noqa: BLE001 - the probe decides
                answer(error=f"{type(problem).__name__}: {problem}")
        engine.shutdown()


if __name__ == "__main__":
    serve(int(sys.argv[1]), json.loads(sys.argv[2]))
