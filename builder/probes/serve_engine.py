"""One SGLang engine in a process of its own, for the probe of engines: operations as JSON lines on stdin, answers on a descriptor.

SGLang starts its schedulers with the start method `spawn`, which runs this file again in the child; so nothing happens at import, but that trees
are noted if the environment asks for it.
"""

from __future__ import annotations

import hashlib
import importlib.abc
import json
import os
import signal
import sys
import threading
import time
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType

TREES = "ENVSPEC_PROBE_TREES"
"""Variable with a folder, if trees are to be noted."""

VERIFYING = "sglang.srt.speculative.dflash_info"

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


def note_trees(folder: Path) -> None:
    """Have each rank write the digest of every tree that it verifies to a file of its own, once SGLang's module is imported."""

    class Loader(importlib.abc.Loader):
        """SGLang's own, and then the change."""

        def __init__(self, inner: importlib.abc.Loader) -> None:
            self.inner = inner

        def create_module(self, spec: ModuleSpec) -> ModuleType | None:
            return self.inner.create_module(spec)

        def exec_module(self, module: ModuleType) -> None:
            self.inner.exec_module(module)
            wrap(module)

    class Finder(importlib.abc.MetaPathFinder):
        """Finds that one module."""

        def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
            spec = PathFinder.find_spec(name, path, target) if name == VERIFYING else None
            if spec is not None and spec.loader is not None:
                spec.loader = Loader(spec.loader)
            return spec

    def wrap(module: Any) -> None:
        inner = module.DFlashVerifyInput.verify

        def verify(self: Any, *arguments: Any, **more: Any) -> Any:
            tree = getattr(self, "tree", None)
            if tree is not None:
                import torch

                digest = hashlib.sha256()
                for values in (self.draft_token, tree.parents, tree.num_nodes):
                    digest.update(values.cpu().contiguous().numpy().tobytes())
                with (folder / f"rank-{torch.distributed.get_rank()}.txt").open("a", encoding="utf-8") as out:
                    out.write(f"{digest.hexdigest()}\n")
            return inner(self, *arguments, **more)

        module.DFlashVerifyInput.verify = verify

    sys.meta_path.insert(0, Finder())


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


if os.environ.get(TREES):
    note_trees(Path(os.environ[TREES]))

if __name__ == "__main__":
    serve(int(sys.argv[1]), json.loads(sys.argv[2]))
