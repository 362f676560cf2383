"""Runs probes in an environment: by its own interpreter, on each GPU side by side, within their limits.

A probe may hang, crash, print nonsense, or leave processes behind: that makes it fail, with what it said, and touches no other. Each gets an
environment of a few variables, an empty working directory, the caches of the environment (so that what is compiled once is there the next
time), and the dynamic linker's variables as the host has them, since what they bring in is part of what is proven.

Where there is no GPU, no process is started just to say so; probes that can compile without one do, if the order says so.

Part of the agent: standard library only, CPython >= 3.10.
"""

from __future__ import annotations

import hashlib
import json
import os
import queue
import re
import secrets
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder import process
from builder.agent.driver_stub import (
    NoStub,
    build_stub,
    driver_symbols,
    ending_name,
    find_compiler,
    has_driver,
)
from builder.agent.hostfiles import run_environment
from envspec.errors import EnvspecError
from envspec.printable import printable
from envspec.probe import (
    OUTPUT_LIMIT_BYTES,
    STANDING,
    ProbeRun,
    parse_report,
    sum_up,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from builder.agent.probe_scripts import ProbeOrder, ProbeScripts
    from builder.progress import Reporter
    from envspec.probe import About, Choice

STDERR_LIMIT_BYTES = 1 << 16
STDERR_SHOWN = 4000
AHEAD = 4
"""How many probes of one GPU are started at a time, at most: one runs, the others import."""

NO_GPU = "no GPU"
MARK = "ENVSPEC_PROBE"

# As for imports, and besides what steers the compilers and libraries that are probed; nothing that may be a secret.
_KEPT_VARIABLES = re.compile(
    r"PATH|LANG|LANGUAGE|LC_[A-Z]+|TZ|USER|LOGNAME|CC|CXX|NVCC|LD_LIBRARY_PATH|LD_PRELOAD"
    r"|(?:CUDA|NVIDIA|NCCL|NVSHMEM|UCX|TRITON|TORCH|TORCHINDUCTOR|PYTORCH|FLASHINFER|SGLANG|SGL|OMP|MKL)_[A-Z0-9_]+"
)
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH")
_SCRATCH_VARIABLES = {
    "HOME": "home",
    "TMPDIR": "tmp",
    "XDG_CACHE_HOME": "home/.cache",
    "XDG_CONFIG_HOME": "home/.config",
    "XDG_DATA_HOME": "home/.local/share",
    "XDG_STATE_HOME": "home/.local/state",
}
_FIXED_VARIABLES = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "PYTHONNOUSERSITE": "1",
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # a GPU's number is the one that nvidia-smi shows
}


@dataclass(frozen=True)
class ProbedGpu:
    """A GPU that probes run on."""

    index: int
    token: str
    """What names it in CUDA_VISIBLE_DEVICES."""

    name: str
    compute: str

    def to_json(self) -> dict[str, Any]:
        """As probes are told."""
        return {"index": self.index, "name": self.name, "compute": self.compute}


@dataclass(frozen=True)
class ProbePlace:
    """Where probes run."""

    python: Path
    """The interpreter."""

    prefix: Path
    """The environment."""

    site: Path
    """Its folder of packages."""

    state: Path
    """Its folder for caches."""

    scratch: Path
    """An empty folder, which the caller deletes."""


def visible_gpus(facts: Sequence[Mapping[str, Any]], environ: Mapping[str, str]) -> tuple[ProbedGpu, ...]:
    """The GPUs that probes may use.

    Args:
        facts: Name and compute capability of each, in the order of nvidia-smi.
        environ: This process's environment; CUDA_VISIBLE_DEVICES counts, as it does for whatever runs here.
    """
    every = [
        ProbedGpu(index=index, token=str(index), name=str(gpu["name"]), compute=str(gpu["compute"]))
        for index, gpu in enumerate(facts)
    ]
    asked = environ.get("CUDA_VISIBLE_DEVICES")
    if asked is None:
        return tuple(every)
    tokens = [token.strip() for token in asked.split(",") if token.strip()]
    if all(token.isdecimal() for token in tokens):
        return tuple(every[int(token)] for token in dict.fromkeys(tokens) if int(token) < len(every))
    # By UUID: nothing here says which is which, but on all hosts that we know of the GPUs of one host are alike.
    return tuple(
        ProbedGpu(index=gpu.index, token=token, name=gpu.name, compute=gpu.compute)
        for gpu, token in zip(every, tokens, strict=False)
    )


def run_probes(
    scripts: ProbeScripts,
    choice: Choice,
    order: ProbeOrder,
    place: ProbePlace,
    gpus: Sequence[ProbedGpu],
    environ: Mapping[str, str],
    reporter: Reporter,
) -> tuple[ProbeRun, ...]:
    """Run what was chosen.

    Args:
        scripts: The sources.
        choice: Which.
        order: With what.
        place: Where.
        gpus: The GPUs of this machine that may be used.
        environ: This process's environment.
        reporter: Where progress goes.

    Returns:
        One record for each probe and GPU, in the order of the choice.

    Raises:
        OSError: The scratch folder cannot be written.
    """
    (place.scratch / "probes").mkdir()
    for name, source in scripts.sources.items():
        (place.scratch / "probes" / name).write_bytes(source)
    jobs: list[_Job] = []
    done: dict[int, ProbeRun] = {}
    for about, cases in choice.probes:
        mode, reason = _mode_of(about, order, gpus)
        targets: list[ProbedGpu | None] = list(gpus) if about.per == "gpu" and mode == "run" and about.gpus else [None]
        for gpu in targets:
            if mode == "skip":
                done[len(jobs)] = ProbeRun(id=about.id, gpu=None, mode="skip", result="skip", reason=reason)
            jobs.append(_Job(number=len(jobs), about=about, cases=cases, mode=mode, gpu=gpu))
    waiting = [job for job in jobs if job.mode != "skip"]
    folder: Path | None = None
    if waiting and not gpus:
        folder, reason = _driver_stub(place, environ)
        for job in waiting if reason else ():
            about = job.about
            done[job.number] = ProbeRun(id=about.id, gpu=None, mode="skip", result="skip", reason=reason)
        waiting = [] if reason else waiting
    if waiting:
        runner = _Runner(scripts, order, place, gpus, environ, stub=folder)
        with reporter.stage("probing", total=len(waiting), unit="probes") as advance:
            runner.run(waiting, done, advance)
    refused = [
        ProbeRun(id=name, gpu=None, mode="skip", result="fail", reason=reason) for name, reason in choice.problems
    ]
    return (*refused, *(done[number] for number in sorted(done)))


def _driver_stub(place: ProbePlace, environ: Mapping[str, str]) -> tuple[Path | None, str]:
    """A stand-in for the driver, where there is none and something of the environment is linked against it: its folder, or why there is none."""
    clean = {"PATH": environ.get("PATH", os.defpath)}
    try:
        needs = () if has_driver(place.python, environ=clean) else driver_symbols(_files_below(place.site))
    except EnvspecError as error:
        return None, error.message
    if not needs:
        return None, ""
    stub = build_stub(place.scratch / "driver_stub", needs, find_compiler(environ), environ=environ)
    return (None, stub.reason) if isinstance(stub, NoStub) else (stub.folder, "")


def _files_below(root: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(root):
        folders.sort()
        yield from (Path(folder, name) for name in sorted(files))


def _mode_of(about: About, order: ProbeOrder, gpus: Sequence[ProbedGpu]) -> tuple[str, str]:
    if len(gpus) >= about.gpus:
        return "run", ""
    if not gpus and about.compiles and order.compile:
        return "compile", ""
    return "skip", NO_GPU if not gpus else f"{len(gpus)} GPU{'s' if len(gpus) > 1 else ''} here, it needs {about.gpus}"


@dataclass(frozen=True)
class _Job:
    number: int
    about: About
    cases: tuple[str, ...]
    mode: str
    gpu: ProbedGpu | None


class _Turnstile:
    """Lets one job of a lane after the other through; a job is let through when those before it are done."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def enter(self, cancelled: Callable[[], bool]) -> bool:
        """Wait for one's turn; False if it is cancelled."""
        while not self._lock.acquire(timeout=process.POLL_S):
            if cancelled():
                return False
        return True

    def leave(self) -> None:
        """Let the next one through."""
        self._lock.release()


class _Runner:
    """Jobs in three turns: the standing ones, then those of each GPU side by side, then those of the whole host.

    On one GPU only one probe runs at a time, so that what it measures is what the GPU can do. Meanwhile the next ones import what they probe,
    which takes seconds each, and wait at the gate.
    """

    def __init__(
        self,
        scripts: ProbeScripts,
        order: ProbeOrder,
        place: ProbePlace,
        gpus: Sequence[ProbedGpu],
        environ: Mapping[str, str],
        *,
        stub: Path | None,
    ) -> None:
        self._scripts = scripts
        self._order = order
        self._place = place
        self._cancelled = threading.Event()
        self._environ = clean_environment(environ, place)
        if stub is not None:
            search = self._environ.get("LD_LIBRARY_PATH")
            self._environ["LD_LIBRARY_PATH"] = f"{stub}{os.pathsep}{search}" if search else os.fspath(stub)
        self._host_gpus = ",".join(gpu.token for gpu in gpus)

    def run(self, jobs: Sequence[_Job], done: dict[int, ProbeRun], advance: Callable[[int], None]) -> None:
        first = [job for job in jobs if job.about.id in STANDING]
        lanes: dict[int, list[_Job]] = {}
        last: list[_Job] = []
        for job in jobs:
            if job.about.id not in STANDING:
                (last if job.gpu is None else lanes.setdefault(job.gpu.index, [])).append(job)
        for turn in ([first], list(lanes.values()), [last]):
            self._side_by_side([lane for lane in turn if lane], done, advance)

    def _side_by_side(
        self, lanes: Sequence[Sequence[_Job]], done: dict[int, ProbeRun], advance: Callable[[int], None]
    ) -> None:
        errors: list[BaseException] = []

        def work(lane: queue.SimpleQueue[_Job], gate: _Turnstile) -> None:
            try:
                while not self._cancelled.is_set():
                    job = lane.get_nowait()
                    done[job.number] = self._one(job, gate)
                    advance(1)
            except queue.Empty:
                pass
            except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits
                errors.append(error)
                self._cancelled.set()

        threads: list[threading.Thread] = []
        ahead = max(1, min(AHEAD, (os.cpu_count() or 1) // max(1, len(lanes))))
        for jobs in lanes:
            lane: queue.SimpleQueue[_Job] = queue.SimpleQueue()
            for job in jobs:
                lane.put(job)
            gate = _Turnstile()
            threads += [
                threading.Thread(target=work, args=(lane, gate), daemon=True) for _ in range(min(ahead, len(jobs)))
            ]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                while thread.is_alive():
                    thread.join(process.POLL_S)
        except BaseException:
            self._cancelled.set()
            for thread in threads:
                thread.join()
            raise
        if errors:
            raise errors[0]

    def _one(self, job: _Job, gate: _Turnstile) -> ProbeRun:
        about, order = job.about, self._order
        folder = self._place.scratch / f"run-{job.number}"
        folder.mkdir()
        file = f"{about.id}.py"
        limit_s = about.limit_s(order.set)
        environ = dict(self._environ)
        if job.gpu is not None:
            environ["CUDA_VISIBLE_DEVICES"] = job.gpu.token
        elif self._host_gpus:
            environ["CUDA_VISIBLE_DEVICES"] = self._host_gpus
        asked = {
            "version": 1,
            "set": order.set,
            "mode": job.mode,
            "gpu": None if job.gpu is None else job.gpu.to_json(),
            "compute": list(order.compute),
            "seed": order.seed,
            "prefix": os.fspath(self._place.prefix),
            "site": os.fspath(self._place.site),
            "toolkit": order.toolkit,
            "cases": list(job.cases) or None,
            "gate": True,
        }
        ran = process.run_bounded(
            [os.fspath(self._place.python), "-X", "faulthandler", "-B", "-s", f"{self._place.scratch}/probes/{file}"],
            env=environ,
            cwd=folder,
            input_bytes=json.dumps(asked).encode() + b"\n",
            timeout_s=limit_s,
            stdout_limit=OUTPUT_LIMIT_BYTES,
            stderr_limit=STDERR_LIMIT_BYTES,
            mark=f"{MARK}={secrets.token_hex(16)}",  # one for each: what ends takes nothing with it that another lane runs
            gate=gate,
            cancelled=self._cancelled.is_set,
        )
        ending = ""
        if ran.returncode == process.TIMED_OUT:
            ending = f"no end after {limit_s:g} s, its limit"
        elif ran.returncode == process.CANNOT_START:
            ending = "it cannot be started"
        elif ran.returncode and not ran.cut:
            ending = f"it ended with {ending_name(ran.returncode)}"
        report = parse_report(ran.stdout, cut=ran.cut)
        result, reason = sum_up(report, ending, job.cases, mode=job.mode)
        stderr = self._hide(ran.stderr.decode("utf-8", "replace")).strip()
        return ProbeRun(
            id=about.id,
            gpu=None if job.gpu is None else job.gpu.index,
            mode=job.mode,
            result=result,
            reason=self._hide(reason),
            seconds=round(ran.seconds, 2),
            limit_s=limit_s,
            script=hashlib.sha256(self._scripts.sources[file]).hexdigest(),
            cases=report.cases,
            stderr=stderr[-STDERR_SHOWN:] if result == "fail" else "",
        )

    def _hide(self, text: str) -> str:
        """A text without the scratch folder's name, which is another one each time."""
        return printable(text.replace(f"{self._place.scratch}/", "<scratch>/"))


def clean_environment(environ: Mapping[str, str], place: ProbePlace) -> dict[str, str]:
    """The variables of a probe.

    Args:
        environ: This process's environment.
        place: Where it runs; folders of the scratch folder are made.
    """
    kept = {
        name: value
        for name, value in environ.items()
        if _KEPT_VARIABLES.fullmatch(name) and not _SECRET.search(name.partition("_")[2])
    }
    for name, folder in _SCRATCH_VARIABLES.items():
        path = place.scratch / folder
        path.mkdir(parents=True, exist_ok=True)
        kept[name] = os.fspath(path)
    return {**run_environment(place.prefix, place.state, kept), **_FIXED_VARIABLES}
