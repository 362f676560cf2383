"""Makes the objects that a plan needs: trees from wheels, bytecode from trees, each as soon as its wheel is there.

Unpacking and compiling run in the workers while other wheels are still on their way. A tree with a donor (the patched wheel of an overlay)
waits for the donor, and then takes everything that did not change from it.

Standard library only, CPython >= 3.10.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from builder.agent.realise import PlanPart, bytecode_tag_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future
    from pathlib import Path
    from typing import Any

    from builder.agent.interpreter import Interpreter
    from builder.agent.pool import WorkerPool
    from builder.agent.store import Store


# Only their ratio matters: they order the tasks. Measured on two cores with the 179 wheels of the first environment.
UNPACKED_BYTES_A_SECOND = 120e6  # of a wheel
COMPILED_BYTES_A_SECOND = 5e6  # of modules


class ObjectMaker:
    """Brings objects about; `wait` ends when all that was added is there.

    The methods may be called from any thread.
    """

    def __init__(
        self,
        store: Store,
        interpreter: Interpreter,
        pool: WorkerPool,
        python: str,
        on_made: Callable[[str, PlanPart], None],
    ) -> None:
        """Prepare.

        Args:
            store: The store; the caller holds `locks/gc` shared.
            interpreter: The Python of the environment.
            pool: Workers of that Python.
            python: Its minor version.
            on_made: Told the kind (`trees` or `bytecode`) and the part of each object once it is there.
        """
        self._store = store
        self._tag = bytecode_tag_of(interpreter)
        self._pool = pool
        self._python = python
        self._on_made = on_made
        self._changed = threading.Condition()
        self._running = 0
        self._error: BaseException | None = None
        self._done: set[str] = set()
        self._waiting: dict[str, list[Callable[[], None]]] = {}
        self._proven: dict[tuple[str, str], int] = {}

    def is_tree_there(self, part: PlanPart) -> bool:
        """Whether a part needs no wheel, since its tree is in the store."""
        return self._store.tree(part.tree).exists

    def add(self, part: PlanPart, wheel: Path | None, *, checked: bool = False) -> None:
        """Make a part's objects.

        Args:
            part: Which.
            wheel: Its wheel file; None if its tree is there.
            checked: Whether its sha256 was checked just now; otherwise a worker does before it is read.
        """
        with self._changed:
            self._running += 1
            if part.donor and part.donor not in self._done:
                self._waiting.setdefault(part.donor, []).append(lambda: self._unpack(part, wheel, checked=checked))
                return
        self._unpack(part, wheel, checked=checked)

    def reuse(self, part: PlanPart, installed: dict[str, str], weight_s: float) -> Future[dict[str, Any]]:
        """Try to make a part's tree from an installed distribution.

        Args:
            part: Which.
            installed: Where it is, as the worker takes it.
            weight_s: About how many seconds it takes.

        Returns:
            The worker's answer: if `reused`, the part is to be added without a wheel.
        """
        task = {"task": "reuse", "installed": installed, "file": part.file, "python": self._python, "tree": part.tree}
        return self._pool.submit(task, weight_s=weight_s)

    def add_reused(self, part: PlanPart, answer: dict[str, Any]) -> None:
        """Go on with a part whose tree was reused."""
        self._remember("trees", part.tree, answer)
        self._on_made("trees", part)
        self.add(part, None)

    def wait(self) -> dict[tuple[str, str], int]:
        """Wait until everything that was added is there.

        Returns:
            (kind, object name) -> ctime in nanoseconds up to which the inodes of objects made just now are known to be right.

        Raises:
            EnvspecError: The first error of any task; no new task is started after it.
        """
        with self._changed:
            while self._running and self._error is None:
                self._changed.wait()
            if self._error is not None:
                raise self._error
            return dict(self._proven)

    def fail(self, error: BaseException) -> None:
        """End `wait` with an error that happened elsewhere."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def _unpack(self, part: PlanPart, wheel: Path | None, *, checked: bool) -> None:
        if wheel is None:
            self._compile(part, 0)
            return
        task = {
            "task": "unpack",
            "wheel": os.fspath(wheel),
            "file": part.file,
            "sha256": None if checked else part.sha256,
            "python": self._python,
            "tree": part.tree,
            "donor": part.donor or None,
        }
        size = wheel.stat().st_size if wheel.is_file() else 0  # one that is gone is the worker's to report
        weight_s = size / UNPACKED_BYTES_A_SECOND
        self._submit(task, weight_s, lambda answer: self._unpacked(part, answer))

    def _unpacked(self, part: PlanPart, answer: dict[str, Any]) -> None:
        self._remember("trees", part.tree, answer)
        self._on_made("trees", part)
        self._compile(part, answer["modules_bytes"])

    def _compile(self, part: PlanPart, modules_bytes: int) -> None:
        if self._store.bytecode(part.tree, self._tag).exists:
            self._finish(part)
            return
        task = {"task": "compile", "tree": part.tree, "donor": part.donor or None}
        weight_s = modules_bytes / COMPILED_BYTES_A_SECOND
        self._submit(task, weight_s, lambda answer: self._compiled(part, answer))

    def _compiled(self, part: PlanPart, answer: dict[str, Any]) -> None:
        self._remember("bytecode", f"{part.tree}-{self._tag}", answer)
        self._on_made("bytecode", part)
        self._finish(part)

    def _finish(self, part: PlanPart) -> None:
        with self._changed:
            self._running -= 1
            self._done.add(part.tree)
            waiting = self._waiting.pop(part.tree, [])
            self._changed.notify_all()
        for start in waiting:
            start()

    def _remember(self, kind: str, name: str, answer: dict[str, Any]) -> None:
        if answer["made"]:
            with self._changed:
                self._proven[kind, name] = answer["proven_ns"]

    def _submit(self, task: dict[str, Any], weight_s: float, then: Callable[[dict[str, Any]], None]) -> None:
        def ended(future: Future[dict[str, Any]]) -> None:
            error = None if future.cancelled() else future.exception()
            if error is not None:
                self.fail(error)
            elif not future.cancelled():
                try:
                    then(future.result())
                except BaseException as failure:  # noqa: BLE001 - whatever it is, `wait` has to end with it
                    self.fail(failure)

        with self._changed:
            if self._error is not None:
                return
        self._pool.submit(task, weight_s=weight_s).add_done_callback(ended)
