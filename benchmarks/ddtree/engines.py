"""SGLang engines in processes of their own, so that several live side by side and one that dies takes nothing along.

`Engine` starts this module as a script (`python -m benchmarks.ddtree.engines`), sends one JSON object a line to its standard input and reads one
a line from a pipe. SGLang starts its scheduler with the start method `spawn`, which imports this module again in the child: that is where the
probes of `probes.py` are put in place, if the environment asks for one.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from benchmarks.ddtree import probes

if TYPE_CHECKING:
    from pathlib import Path

Outputs = list[dict[str, Any]]

COMMON = {
    "skip_tokenizer_init": True,
    "attention_backend": "triton",
    "grammar_backend": "none",
    "sampling_backend": "pytorch",
    "disable_piecewise_cuda_graph": True,
    "disable_flashinfer_autotune": True,
    "mem_fraction_static": 0.85,
    "max_total_tokens": 32768,
    "context_length": 2048,
    "max_running_requests": 48,
    "cuda_graph_bs": [1, 2, 4, 8, 16],
    "sleep_on_idle": True,
    "random_seed": 1,
    "log_level": "info",
}


class EngineDiedError(RuntimeError):
    """An engine ended, or did not answer in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Where the models are."""

    target: Path
    draft: Path


def algorithm(pair: Pair, name: str, *, budget: int = 63, graphs: bool = True, **more: Any) -> dict[str, Any]:
    """Arguments of an engine: `AR`, `DFLASH` or `DDTREE`."""
    arguments: dict[str, Any] = {"model_path": str(pair.target), **COMMON, "disable_cuda_graph": not graphs}
    if name != "AR":
        arguments |= {"speculative_algorithm": name, "speculative_draft_model_path": str(pair.draft)}
    if name == "DDTREE":
        arguments["speculative_ddtree_budget"] = budget
    return arguments | more


@dataclass(slots=True, kw_only=True)
class Engine:
    """One engine."""

    name: str
    arguments: dict[str, Any]
    log: Path
    """Where its output goes."""
    site: str = ""
    """Goes before PYTHONPATH: the folder with the `sglang` to use."""
    environment: dict[str, str] = field(default_factory=dict)
    started_s: float = 0.0
    ready: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _process: subprocess.Popen[bytes] | None = None
    _answers: int = -1
    _rest: bytes = b""

    def start(self, *, timeout_s: float = 180) -> Engine:
        """Starts and waits until it can answer."""
        self.launch()
        return self.wait(timeout_s=timeout_s)

    def launch(self) -> None:
        """Starts without waiting."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        reading, writing = os.pipe()
        path = os.pathsep.join(part for part in (self.site, os.environ.get("PYTHONPATH", "")) if part)
        environment = os.environ | {
            "PYTHONPATH": path,
            "HF_HUB_OFFLINE": "1",
            "PYTHONUNBUFFERED": "1",
            **self.environment,
        }
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.ddtree.engines", str(writing), json.dumps(self.arguments)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=(writing,),
                env=environment,
                start_new_session=True,
            )
        os.close(writing)
        atexit.register(self.stop)
        self._answers = reading
        self.started_s = time.monotonic()

    def wait(self, *, timeout_s: float = 180) -> Engine:
        """Waits for the engine that `launch` started; at once if it has answered before."""
        if not self.ready:
            self._read(timeout_s)
            self.ready = True
            self.started_s = time.monotonic() - self.started_s
        return self

    def ask(self, operation: str, *, timeout_s: float = 120, **arguments: Any) -> Any:
        """Sends one operation and returns its result; threads that ask at the same time are answered in turn."""
        with self._lock:
            if self._process is None or self._process.stdin is None:
                raise EngineDiedError(f"`{self.name}` is not running")
            try:
                self._process.stdin.write(json.dumps({"operation": operation, **arguments}).encode() + b"\n")
                self._process.stdin.flush()
            except BrokenPipeError as problem:
                raise EngineDiedError(f"`{self.name}` has ended: {self.tail()}") from problem
            return self._read(timeout_s)

    def generate(
        self,
        prompts: list[list[int]],
        *,
        new_tokens: int | list[int] = 64,
        concurrency: int = 0,
        delays_s: list[float] | None = None,
        params: dict[str, Any] | None = None,
        options: dict[str, Any] | None = None,
        timeout_s: float = 120,
    ) -> Outputs:
        """Continues prompts, greedily unless `params` says otherwise.

        Args:
            prompts: Token ids.
            new_tokens: Exactly so many, unless a stop token comes.
            concurrency: At most so many at a time; 0 sends all in one call, 1 one after the other.
            delays_s: When each is sent, from the start.
            params: Further sampling parameters.
            options: Further arguments of `Engine.generate`, as for log probabilities.
            timeout_s: For all.

        Returns:
            For each prompt `ids`, and `meta` as SGLang reports it.
        """
        counts = [new_tokens] * len(prompts) if isinstance(new_tokens, int) else new_tokens
        sampling = [
            {"temperature": 0, "ignore_eos": True, **(params or {}), "max_new_tokens": count} for count in counts
        ]
        answer = self.ask(
            "generate",
            prompts=prompts,
            sampling=sampling,
            concurrency=concurrency,
            delays_s=delays_s,
            options=options or {},
            timeout_s=timeout_s,
        )
        outputs: Outputs = answer["outputs"]
        for output in outputs:
            output["wall_s"] = answer["seconds"]
        return outputs

    def _read(self, timeout_s: float) -> Any:
        until = time.monotonic() + timeout_s
        while b"\n" not in self._rest:
            left = until - time.monotonic()
            ready = select.select([self._answers], [], [], max(0.0, left))[0]
            if not ready:
                raise EngineDiedError(f"`{self.name}` gave no answer in {timeout_s:.0f} s: {self.tail()}")
            piece = os.read(self._answers, 1 << 20)
            if not piece:
                raise EngineDiedError(f"`{self.name}` ended: {self.tail()}")
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\n")
        answer = json.loads(line)
        if "error" in answer:
            raise EngineDiedError(f"`{self.name}`: {answer['error']}")
        return answer["result"]

    def tail(self, size: int = 1500) -> str:
        """The end of its log."""
        return self.log.read_bytes()[-size:].decode(errors="replace") if self.log.exists() else ""

    def stop(self) -> None:
        """Ends it and all its processes."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if self._answers >= 0:
            os.close(self._answers)
        self._process, self._answers = None, -1


def leave_on_term() -> None:
    """Lets a time limit end this process in order, so that it takes its engines along."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


def start_all(
    engines: list[Engine], *, timeout_s: float = 240, prime: int = 1
) -> tuple[dict[str, Engine], dict[str, str]]:
    """Starts engines side by side.

    Args:
        engines: All of them.
        timeout_s: For all together.
        prime: So many first engines are waited for before the others start: kernels are compiled at the first start on a machine, and side by
            side, each engine would compile them.

    Returns:
        Those that answer, by name, and what went wrong with the others.
    """
    until = time.monotonic() + timeout_s
    alive: dict[str, Engine] = {}
    failed: dict[str, str] = {}
    for index, engine in enumerate(engines):
        engine.launch()
        if index < prime:
            with contextlib.suppress(EngineDiedError):
                engine.wait(timeout_s=timeout_s)
        time.sleep(0.3)
    for engine in engines:
        try:
            alive[engine.name] = engine.wait(timeout_s=max(1.0, until - time.monotonic()))
        except EngineDiedError as problem:
            failed[engine.name] = str(problem)
            engine.stop()
    return alive, failed


class _Serving:
    """The process with the engine."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        import sglang

        self.engine = sglang.Engine(**arguments)

    async def _one(
        self,
        prompt: list[int],
        sampling: dict[str, Any],
        options: dict[str, Any],
        gate: asyncio.Semaphore,
        delay_s: float,
    ) -> Any:
        if delay_s:
            await asyncio.sleep(delay_s)
        async with gate:
            return await self.engine.async_generate(input_ids=prompt, sampling_params=sampling, **options)

    def generate(
        self,
        *,
        prompts: list[list[int]],
        sampling: list[dict[str, Any]],
        concurrency: int,
        delays_s: list[float] | None,
        options: dict[str, Any],
    ) -> dict[str, Any]:
        start = time.perf_counter()
        if concurrency == 0 and delays_s is None:
            answers = self.engine.generate(input_ids=prompts, sampling_params=sampling, **options)
        else:
            delays = delays_s or [0.0] * len(prompts)

            async def run() -> Any:
                gate = asyncio.Semaphore(concurrency or len(prompts))
                waits = zip(prompts, sampling, delays, strict=True)
                return await asyncio.gather(
                    *(self._one(prompt, how, options, gate, delay) for prompt, how, delay in waits)
                )

            answers = self.engine.loop.run_until_complete(run())
        seconds = time.perf_counter() - start
        return {
            "seconds": seconds,
            "outputs": [{"ids": answer["output_ids"], "meta": answer["meta_info"]} for answer in answers],
        }

    def abort_half(self, *, prompts: list[list[int]], sampling: list[dict[str, Any]], after_s: float) -> dict[str, int]:
        """Sends all, and takes back every second one while it runs."""
        names = [f"abort-{time.monotonic_ns()}-{index}" for index in range(len(prompts))]

        async def run() -> list[Any]:
            sent = [
                asyncio.ensure_future(self.engine.async_generate(input_ids=prompt, sampling_params=how, rid=name))
                for prompt, how, name in zip(prompts, sampling, names, strict=True)
            ]
            await asyncio.sleep(after_s)
            for name in names[::2]:
                self.engine.tokenizer_manager.abort_request(rid=name)
            return list(await asyncio.gather(*sent, return_exceptions=True))

        answers = self.engine.loop.run_until_complete(run())
        reasons = [
            answer["meta_info"]["finish_reason"]["type"] if isinstance(answer, dict) else "error" for answer in answers
        ]
        return {reason: reasons.count(reason) for reason in set(reasons)}

    def flush(self) -> bool:
        answer = self.engine.flush_cache()
        return bool(getattr(answer, "success", answer))

    def info(self) -> Any:
        told = self.engine.get_server_info()
        return json.loads(json.dumps(told, default=str))


def _end_with_parent(parent: int) -> None:
    """Ends this process group when the process that started it is gone, even if that was killed."""
    while os.getppid() == parent:
        time.sleep(1)
    os.killpg(0, signal.SIGKILL)


def serve(writing: int, arguments: dict[str, Any]) -> None:
    """Answers operations until standard input ends."""
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    with os.fdopen(writing, "w", encoding="utf-8") as answers:

        def answer(**fields: Any) -> None:
            answers.write(json.dumps(fields, default=str) + "\n")
            answers.flush()

        try:
            serving = _Serving(arguments)
        except BaseException as problem:
            answer(error=f"{type(problem).__name__}: {problem}")
            raise
        answer(result="ready")
        for line in sys.stdin:
            asked = json.loads(line)
            operation = asked.pop("operation")
            try:
                answer(result=getattr(serving, operation)(**asked))
            except Exception as problem:  # noqa: BLE001 - the caller decides
                answer(error=f"{type(problem).__name__}: {problem}")
        serving.engine.shutdown()


if __name__ == "__mp_main__":
    probes.install(os.environ)
if __name__ == "__main__":
    serve(int(sys.argv[1]), json.loads(sys.argv[2]))
