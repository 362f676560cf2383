"""A few worker processes, each with one task at a time.

Standard library only, CPython >= 3.10.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import queue
import re
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.agent.realise import CorruptObjects, WheelDamaged
from builder.process import start_worker
from envspec.errors import FOUND_WRONG, EnvspecError

if TYPE_CHECKING:
    import subprocess
    from types import TracebackType

STOP_TIMEOUT_S = 5.0
"""How long all workers together may take to finish what they are at, before they are killed."""

# glibc gives large buffers back to the kernel after each use, and the kernel clears them anew: a third of all kernel time of a build.
_KEEP_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(256 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(256 << 20),
    "MALLOC_TOP_PAD_": str(16 << 20),
}
_START = "import sys; sys.path.append(sys.argv[1]); from builder.agent.worker import main; main(sys.argv[2])"


class WorkerPool:
    """Worker processes of one interpreter; to be created in the main thread, since they end with the thread that started them.

    Example:
        with WorkerPool(interpreter, store_root, pass_fds=(lock_fd,)) as pool:
            answer = pool.submit({"task": "hash", "root": root, "paths": paths}).result()
    """

    def __init__(
        self, python: Path, store_root: Path, *, pass_fds: tuple[int, ...] = (), size: int | None = None
    ) -> None:
        """Start the workers.

        Args:
            python: The interpreter that they run.
            store_root: Folder of the store.
            pass_fds: Descriptors of locks that must be held as long as any worker lives.
            size: How many; by default one for each core that this process may use.

        Raises:
            EnvspecError: The interpreter does not start.
        """
        home, home_fds = _code_home()
        argv = [os.fspath(python), "-I", "-S", "-B", "-c", _START, os.fspath(home), os.fspath(store_root)]
        environment = {"PATH": os.defpath, "PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8", **_KEEP_MEMORY}
        self._workers: list[subprocess.Popen[str]] = []
        self._idle: queue.SimpleQueue[subprocess.Popen[str]] = queue.SimpleQueue()
        count = size or len(os.sched_getaffinity(0))
        try:
            for _ in range(count):
                worker = start_worker(argv, env=environment, pass_fds=(*pass_fds, *home_fds))
                self._workers.append(worker)
                self._idle.put(worker)
        except OSError as error:
            self._stop()
            raise EnvspecError(f"the interpreter `{python}` does not start: {error}") from error
        self.size = count
        self._waiting: queue.PriorityQueue[tuple[float, int, dict[str, Any], Future[dict[str, Any]]]] = (
            queue.PriorityQueue()
        )
        self._numbers = itertools.count()
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="worker")

    def __enter__(self) -> WorkerPool:  # noqa: PYI034 - typing.Self is of 3.11
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._threads.shutdown(wait=kind is None, cancel_futures=kind is not None)
        while not self._waiting.empty():
            self._waiting.get_nowait()[3].cancel()
        self._stop()
        self._threads.shutdown(wait=True)

    def submit(self, task: dict[str, Any], *, weight_s: float = 0.0) -> Future[dict[str, Any]]:
        """Give a task to the next idle worker.

        Args:
            task: As `builder.agent.worker` knows it.
            weight_s: About how many seconds it takes. Of the tasks that wait the longest one starts first, so that no long one is left for the
                end, when the other workers have nothing to do any more; of equal ones the first that came.
        """
        future: Future[dict[str, Any]] = Future()
        self._waiting.put((-weight_s, next(self._numbers), task, future))
        self._threads.submit(self._run_next)
        return future

    def _run_next(self) -> None:
        _, _, task, future = self._waiting.get_nowait()
        if not future.set_running_or_notify_cancel():
            return
        try:
            answer = self._call(task)
        except BaseException as error:  # noqa: BLE001 - carried to whoever waits for the task
            future.set_exception(error)
        else:
            future.set_result(answer)

    def _call(self, task: dict[str, Any]) -> dict[str, Any]:
        worker = self._idle.get()
        if worker.stdin is None or worker.stdout is None:
            raise RuntimeError("a worker has no pipes")
        try:
            worker.stdin.write(json.dumps(task) + "\n")
            worker.stdin.flush()
            line = worker.stdout.readline()
        except OSError:
            line = ""
        self._idle.put(worker)
        if not line.endswith("\n"):
            raise EnvspecError(
                f"a worker process ended in the middle of `{task['task']}`",
                hint="see its messages above; was it killed for lack of memory?",
            )
        answer: dict[str, Any] = json.loads(line)
        if not answer["ok"]:
            raise _error_of(task, answer)
        return answer

    def _stop(self) -> None:
        for worker in self._workers:
            if worker.stdin is not None:
                with contextlib.suppress(OSError):
                    worker.stdin.close()
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for worker in self._workers:
            try:
                worker.wait(timeout=max(0.0, deadline - time.monotonic()))
            except Exception:  # noqa: BLE001 - whatever happens, it has to end
                worker.kill()
                worker.wait()
            if worker.stdout is not None:
                worker.stdout.close()


def _error_of(task: dict[str, Any], answer: dict[str, Any]) -> EnvspecError:
    subject = task.get("file") or task.get("tree") or ""
    if answer["error"] == "corrupt":
        return CorruptObjects((task["tree"],), tuple(answer["files"]))
    if answer["error"] == "wheel":
        return WheelDamaged(Path(task["wheel"]), answer["message"])
    if answer["error"] == "damaged" and task["task"] == "unpack":
        return EnvspecError(
            f"{subject}: {answer['message']}",
            hint="this version of envspec lays the wheel out differently than the one that locked: delete the lock and run `envspec lock`",
            exit_code=FOUND_WRONG,
        )
    of_what = f" of `{subject}`" if subject else ""
    hints = {
        errno.ENOSPC: "free some space in the store (`envspec gc`)",
        errno.EXDEV: "the store's trees, bytecode, envs and .tmp must lie on one file system",
    }
    return EnvspecError(
        f"{task['task']}{of_what} failed: {answer['message']}",
        hint="this is a bug in envspec: report it"
        if answer["error"] == "bug"
        else hints.get(answer.get("errno", 0), ""),
    )


def _code_home() -> tuple[Path, tuple[int, ...]]:
    """Where this code comes from, for `sys.path`, and the descriptors that this place lives by.

    On a host the agent runs from a file without a name (memfd): its bytes are those whose digest was checked, whoever may write to the store.
    """
    match = re.match(r"/proc/self/fd/(\d+)/", __file__)
    if match:
        return Path(match[0]), (int(match[1]),)
    return Path(__file__).resolve().parents[2], ()


def own_interpreter() -> Path:
    """The interpreter that runs this process: good for tasks that make no bytecode."""
    return Path(sys.executable)
