"""One traced run in a venv: an import or a script, by the venv's own interpreter, in the environment that the user has.

What is run is what fails, so nothing is done to help it: the same variables, the same `sys.path`. It may crash, hang, exit, print without end,
close every descriptor or leave processes behind; when this returns, nothing of it runs any more, and what it said until then is kept.
Bytecode is not written (PYTHONDONTWRITEBYTECODE), there is no terminal, and nothing on stdin. No file is made: the script goes along in the
argv, what it tells comes through a pipe of its own (`trace_script`).

    record = run_traced(TraceOrder(prefix="/srv/venv", target="torchvision", timeout_s=300.0), os.environ)

The record has the form of `envspec.traced`; whoever reads it checks it, since the code that was run could have written any of it.

Part of the agent: standard library only, CPython >= 3.10.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import selectors
import signal
import time
from dataclasses import asdict, dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any

from builder import process
from builder.agent.driver_stub import ending_name
from envspec.errors import EnvspecError

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Mapping

MARK = "ENVSPEC_TRACE"
EVENTS_LIMIT_BYTES = 12 << 20
TAIL_BYTES = 1 << 16
MESSAGE_LIMIT = 400
"""Characters of a line that are kept."""

STDERR_LINES = 20
LOADER_LINES = 20
FAULT_LINES = 40
SWALLOWED_LIMIT = 200
FRAMES_LIMIT = 100
WHERE_SIGNAL = signal.SIGRTMAX - 1
"""At which the process says where it is; nobody else uses it."""

WHERE_S = 1.0
"""How long that may take."""

_BOOTSTRAP = "import sys; exec(compile(sys.argv.pop(1), '<envspec trace>', 'exec'), {'__name__': 'envspec_trace'})"
_MODULE_NAME = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")
_CLEAN_VARIABLES = re.compile(r"PATH|HOME|USER|LOGNAME|SHELL|TMPDIR|TZ|LANG|LANGUAGE|LC_[A-Z]+")
_LOADER_LINE = re.compile(
    r"ld\.so|cannot open shared object file|undefined symbol|symbol lookup error|wrong ELF class|invalid ELF header|version `[^']+' not found"
)
_FAULT_FRAME = re.compile(r'\s*File "(.*)", line (\d+|\?\?\?) in (.*)')
_FRAME_MODULE = re.compile(r"(?:site|dist)-packages/(.+)\.py$")


@dataclass(frozen=True)
class TraceOrder:
    """What is to be run, and how."""

    prefix: str
    """The venv, or its interpreter."""

    target: str
    """A module, or the path of a script: it has a slash in it, or ends with `.py`."""

    timeout_s: float
    arguments: tuple[str, ...] = ()
    cwd: str = ""
    """Where it is run, which Python puts on its path; empty for the home folder."""

    clean: bool = False
    """Whether only what names the user and the language is kept of the environment: neither LD_LIBRARY_PATH nor PYTHONPATH."""

    def to_json(self) -> dict[str, Any]:
        """The order as JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> TraceOrder:
        """The inverse of `to_json`.

        Raises:
            KeyError, TypeError, ValueError: It is none.
        """
        return cls(
            prefix=str(fields["prefix"]),
            target=str(fields["target"]),
            timeout_s=float(fields["timeout_s"]),
            arguments=tuple(str(each) for each in fields["arguments"]),
            cwd=str(fields["cwd"]),
            clean=bool(fields["clean"]),
        )


def is_script(target: str) -> bool:
    """Whether a target is meant as a script's path and not as a module's name."""
    return os.sep in target or target.endswith(".py")


def run_traced(order: TraceOrder, environ: Mapping[str, str]) -> dict[str, Any]:
    """Run it and tell what happened, in the form of `envspec.traced`.

    Args:
        order: What.
        environ: The environment that it gets, but for one variable by which it is found again and the one that forbids bytecode.

    Raises:
        EnvspecError: The target is neither the name of a module nor a script that is there.
    """
    cwd = order.cwd or environ.get("HOME") or "/"
    script = is_script(order.target)
    target = os.path.join(cwd, order.target) if script else order.target  # noqa: PTH118 - a text for the script
    if script and not os.path.isfile(target):  # noqa: PTH113
        raise EnvspecError(
            f"the script `{order.target}` is not there",
            input_name="--run",
            hint="give the path of a script on that machine",
        )
    if not script and not _MODULE_NAME.fullmatch(order.target):
        raise EnvspecError(
            f"`{order.target}` is not the name of a module",
            input_name="--run",
            hint="for a script, give a path with a slash",
        )
    python, problem = interpreter_of(order.prefix)
    if problem:
        return _record(order.target, "not started", problem)
    kept = {name: value for name, value in environ.items() if not order.clean or _CLEAN_VARIABLES.fullmatch(name)}
    mark = secrets.token_hex(16)
    try:
        with _Run(
            [python, "-c", _BOOTSTRAP, _source()],
            [str(WHERE_SIGNAL), "script" if script else "module", target, *order.arguments],
            {**kept, "PYTHONDONTWRITEBYTECODE": "1", MARK: mark},
            cwd if os.path.isdir(cwd) else "/",  # noqa: PTH112
            f"{MARK}={mark}",
        ) as run:
            run.watch(order.timeout_s)
    except OSError as error:
        return _record(order.target, "not started", f"`{python}`: {error.strerror or error}")
    return _told(order, run)


def interpreter_of(prefix: str) -> tuple[str, str]:
    """The interpreter of a venv, and why it cannot be run; one of the two is empty.

    Args:
        prefix: The venv, or its interpreter.
    """
    if os.path.isfile(prefix):  # noqa: PTH113
        return prefix, ""
    for name in ("python", "python3"):
        path = os.path.join(prefix, "bin", name)  # noqa: PTH118
        if os.path.isfile(path):  # noqa: PTH113
            return (path, "") if os.access(path, os.X_OK) else ("", f"`{path}` is not executable")
        if os.path.islink(path):  # noqa: PTH114
            return "", f"`{path}` leads to `{os.path.realpath(path)}`, which is not there"
    return "", f"`{prefix}` has no `bin/python`"


def _source() -> str:
    folder = resources.files("builder.agent")
    names = ("trace_words.py", "trace_script.py")
    return "\n".join(folder.joinpath(name).read_text(encoding="utf-8") for name in names)


class _Run:
    """A child, and what came from it until it ended."""

    def __init__(self, head: list[str], tail: list[str], env: dict[str, str], cwd: str, mark: str) -> None:
        self._mark = mark
        self.events, self.faults = bytearray(), bytearray()
        self.stdout, self.stderr = bytearray(), bytearray()
        self.printed_bytes = 0
        self.returncode = process.TIMED_OUT
        self.timed_out = False
        self.seconds = 0.0
        self.mapped: list[str] = []
        """At the end of one that hung."""
        self._pipes: list[int] = []
        try:
            for _ in range(2):
                self._pipes += os.pipe()
            events_in, events_out, faults_in, faults_out = self._pipes
            reopen = f"/proc/{os.getpid()}/fd/{events_in}"
            argv = [*head, str(events_out), str(faults_out), reopen, *tail]
            self._child = process.start_watched(argv, env=env, cwd=cwd, pass_fds=(events_out, faults_out))
        except BaseException:
            self._close()
            raise
        # Our own end of the first stays open: the child may close its end, and open it anew.
        os.close(faults_out)
        self._pipes = [events_in, faults_in, events_out]

    def __enter__(self) -> _Run:  # noqa: PYI034 - as everywhere here
        return self

    def __exit__(self, *_error: object) -> None:
        process.kill_group(self._child)  # before it is waited for: until then nothing else can have its number
        with contextlib.suppress(process.TimeoutExpired):
            self.returncode = self._child.wait(process.KILLED_WITHIN_S)
        process.kill_marked(self._mark)
        self._close()
        for stream in (self._child.stdout, self._child.stderr):
            if stream is not None:
                stream.close()

    def _close(self) -> None:
        for fd in self._pipes:
            os.close(fd)
        self._pipes = []

    def watch(self, timeout_s: float) -> None:
        """Read what comes until the child ends, or its time does."""
        child: subprocess.Popen[bytes] = self._child
        started = time.monotonic()
        deadline = started + timeout_s
        ended = False
        with selectors.DefaultSelector() as selector:
            kept = ((self.events, EVENTS_LIMIT_BYTES), (self.faults, TAIL_BYTES), (self.stdout, -1), (self.stderr, -1))
            for source, sink in zip((*self._pipes[:2], child.stdout, child.stderr), kept, strict=True):
                selector.register(source, selectors.EVENT_READ, sink)  # type: ignore[arg-type]
            while True:
                if not (ended or self.timed_out) and process.has_ended(child):
                    ended, self.seconds = True, time.monotonic() - started
                    deadline = time.monotonic() + process.DRAIN_S
                ready = selector.select(0 if ended else process.POLL_S)
                for key, _ in ready:
                    chunk = os.read(key.fd, process.READ_BYTES)
                    if chunk:
                        self._keep(chunk, *key.data)
                    else:
                        selector.unregister(key.fileobj)
                if ended and (not ready or time.monotonic() >= deadline):
                    return
                if self.timed_out and ((self.faults and not ready) or time.monotonic() >= deadline):
                    return
                if not (ended or self.timed_out) and time.monotonic() >= deadline:
                    self.timed_out, self.seconds = True, time.monotonic() - started
                    deadline = time.monotonic() + WHERE_S
                    self.mapped = _mapped_by(child.pid)
                    os.kill(child.pid, WHERE_SIGNAL)

    def _keep(self, chunk: bytes, sink: bytearray, limit: int) -> None:
        if limit < 0:
            self.printed_bytes += len(chunk)
            sink += chunk
            del sink[:-TAIL_BYTES]
        elif len(sink) < limit:
            sink += chunk[: limit - len(sink)]


def _mapped_by(pid: int) -> list[str]:
    found = set()
    with contextlib.suppress(OSError), open(f"/proc/{pid}/maps", "rb") as file:  # noqa: PTH123
        for line in file:
            place = line.rstrip(b"\n").split(None, 5)[5:]
            if place and b".so" in place[0]:
                found.add(os.fsdecode(place[0]))
    return sorted(found)[:5000]


def _told(order: TraceOrder, run: _Run) -> dict[str, Any]:
    """The record of a run that was started."""
    began, end, raised, left = _read_events(bytes(run.events))
    faults = run.faults.decode("utf-8", "replace")
    stderr = run.stderr.decode("utf-8", "replace")
    if not faults and run.returncode < 0 and "Fatal Python error:" in stderr:
        faults = stderr[stderr.rfind("Fatal Python error:") :]  # it turned faulthandler there itself
    chain: list[Any] = []
    dropped: set[int] = set()
    modules: list[Any] = []
    mapped, seconds = run.mapped, run.seconds
    if end is not None:
        ending, detail = str(end.get("ending")), ""
        if ending == "exit":
            detail = f"rc {end.get('code')}"
        chain = end.get("chain") or []
        dropped = {each for each in end.get("serials") or [] if isinstance(each, int)}
        mapped, modules = end.get("mapped") or [], end.get("modules") or []
        seconds = end.get("seconds") or seconds
        if ending == "ok" and run.timed_out:
            ending, detail = (
                "timeout",
                f"no end after {order.timeout_s:g} s: it ran to its end, and something of it goes on",
            )
        elif ending == "ok" and run.returncode < 0:
            ending, detail = "crash", f"{ending_name(run.returncode)} while the interpreter ended"
    elif run.timed_out:
        ending, detail = "timeout", f"no end after {order.timeout_s:g} s"
        chain = [_raised_by_fault("timeout", detail, _thread_of(faults))]
    elif run.returncode < 0:
        ending, detail = "crash", ending_name(run.returncode)
        said = "as the kernel does when memory runs out" if run.returncode == -signal.SIGKILL else _first_line(faults)
        chain = [_raised_by_fault(detail, said, _thread_of(faults))]
    elif began:
        ending, detail = "exit", f"rc {run.returncode}"
    else:
        lines = stderr.strip().splitlines() or ["it printed nothing"]
        ending, detail = "not started", f"the interpreter ended with rc {run.returncode}: {lines[-1][:MESSAGE_LIMIT]}"
    return {
        **_record(order.target, ending, detail),
        "chain": chain,
        "swallowed": _swallowed(raised, left, dropped),
        "messages": _messages(faults if run.returncode < 0 or run.timed_out else "", stderr, run.printed_bytes),
        "modules": modules,
        "mapped": mapped,
        "seconds": seconds,
    }


def _record(target: str, ending: str, detail: str) -> dict[str, Any]:
    return {
        "target": target,
        "ending": ending,
        "detail": detail,
        "chain": [],
        "swallowed": [],
        "messages": [],
        "modules": [],
        "mapped": [],
        "seconds": 0.0,
    }


def _read_events(
    content: bytes,
) -> tuple[bool, dict[str, Any] | None, dict[int, tuple[str, dict[str, Any]]], set[int]]:
    """What came through the pipe: whether it began, how it ended, what was raised by serial with its rank, and which of them left a module."""
    began, end = False, None
    raised: dict[int, tuple[str, dict[str, Any]]] = {}
    left: set[int] = set()
    for line in content.splitlines():
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue  # a crash may tear the last line
        match event:
            case {"begin": True}:
                began = True
            case {"raised": dict(record), "serial": int(serial), "rank": str(rank)} if serial not in raised:
                raised[serial] = (rank, record)
            case {"left": int(serial)}:
                left.add(serial)
            case {"end": dict(record)} if end is None:
                end = record
            case _:
                continue
    return began, end, raised, left


def _swallowed(
    raised: dict[int, tuple[str, dict[str, Any]]], left: set[int], dropped: set[int]
) -> list[dict[str, Any]]:
    """What was caught by whoever asked, in its order; of too many, those that a healthy import meets too are left out first."""
    rest = {serial: pair for serial, pair in raised.items() if serial not in dropped}
    first = [serial for serial, (rank, _) in rest.items() if rank != "missing" or serial in left]
    others = [serial for serial in rest if serial not in set(first)]
    chosen = sorted([*first, *others][:SWALLOWED_LIMIT])
    return [rest[serial][1] for serial in chosen]


def _messages(fault: str, stderr: str, printed_bytes: int) -> list[str]:
    lines = [line.rstrip()[:MESSAGE_LIMIT] for line in stderr.splitlines() if line.strip()]
    loader = [line for line in dict.fromkeys(lines[:-STDERR_LINES]) if _LOADER_LINE.search(line)][:LOADER_LINES]
    faults = [line.rstrip()[:MESSAGE_LIMIT] for line in fault.splitlines() if line.strip()][:FAULT_LINES]
    said = [line for line in lines[-STDERR_LINES:] if line not in set(faults)]
    if printed_bytes > 2 * TAIL_BYTES:
        said.append(f"(it printed {printed_bytes} bytes; the end of stderr is kept)")
    return [*faults, *loader, *said]


def _first_line(fault: str) -> str:
    return next((line.strip()[:MESSAGE_LIMIT] for line in fault.splitlines() if line.startswith("Fatal")), "")


def _thread_of(fault: str) -> list[list[Any]]:
    """Frames of one thread of what faulthandler wrote, outermost first: the current one, else the last, which is the main one."""
    threads: list[list[list[Any]]] = []
    current = -1
    for line in fault.splitlines():
        if "most recent call first" in line:
            current = len(threads) if line.startswith("Current thread") else current
            threads.append([])
        elif threads and (match := _FAULT_FRAME.match(line)):
            file, number, function = match.groups()
            if not file.startswith(("<frozen importlib", "<envspec trace>", "<string>")):
                module = _FRAME_MODULE.search(file)
                name = module[1].replace("/", ".").removesuffix(".__init__") if module else ""
                threads[-1].append([file, int(number) if number.isdecimal() else 0, function, name])
    if not threads:
        return []
    return threads[current][::-1][-FRAMES_LIMIT:]


def _raised_by_fault(kind: str, message: str, frames: list[list[Any]]) -> dict[str, Any]:
    """A crash or a hang in the form of an exception: its place is told the same way."""
    importing = list(dict.fromkeys(module for _, _, function, module in frames if function == "<module>" and module))
    return {
        "type": kind,
        "message": message,
        "name": "",
        "path": "",
        "frames": frames,
        "importing": importing,
        "relation": "",
    }
