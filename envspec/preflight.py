"""Does a host fit a lock, and is it what the spec says of it? Facts -> findings, before a byte is sent.

`docs/hosts.md` lists the findings. An error keeps the build from beginning; a warning goes with its outcome.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from envspec.drivers import is_older
from envspec.facts import Finding
from envspec.host_needs import host_libraries, least_driver
from envspec.jit import HostTools, JitDemand, jit_findings

__all__ = ["Gpu", "HostFacts", "Load", "host_libraries", "least_driver", "preflight"]

if TYPE_CHECKING:
    from collections.abc import Mapping

    from envspec.facts import Severity
    from envspec.lock import Lock
    from envspec.spec import HostSpec

CLOCK_SLACK_S = 300.0
ROOM_PER_WHEEL_BYTE = 3.6
"""Disk that an environment takes for each byte of its wheels, the wheel included: 13.0 GB for 3.7 GB with the flagship; compression differs."""

FILES_PER_PART = 500
"""Inodes for one wheel: 57,000 files and 23,000 folders and bytecode files for 179 wheels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU of a host."""

    name: str
    compute: str
    """`12.0`."""

    memory_mib: int
    """0 if it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """What was measured on a host."""

    hostname: str
    user: str
    system: str
    """`Ubuntu 24.04.1 LTS`."""

    kernel: str
    machine: str
    """`x86_64`."""

    glibc: str
    """`2.39`; empty on another C library."""

    time_s: float
    """Its clock, in seconds since 1970."""

    agent_python: str
    """Version of the Python that runs the agent."""

    python: str
    """Version of the environment's Python; empty if none was found."""

    python_path: str
    rejected_pythons: tuple[str, ...]
    """What was looked at, and why it will not do."""

    driver: str
    """Version of the NVIDIA driver; empty if there is none."""

    gpus: tuple[Gpu, ...]
    libraries: tuple[tuple[str, str], ...]
    """Soname and where it lies; empty where it cannot be loaded."""

    store: str
    store_problem: str
    """Why the store cannot be used; empty if it can."""

    writable: bool
    filesystem: str
    links: str
    """`hardlink`, `hardlink+reflink` or `copy`; empty if it was not tried."""

    free_bytes: int
    free_inodes: int
    inodes: int
    """In all; 0 where the file system does not count them."""

    notes: tuple[str, ...]
    tools: HostTools = field(default_factory=HostTools)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> HostFacts:
        """The answer of an agent as a value.

        Raises:
            KeyError, TypeError, ValueError, AttributeError: It is none.
        """
        store, interpreter = fields["store"], fields["interpreter"] or {}
        return cls(
            hostname=str(fields["hostname"]),
            user=str(fields["user"]),
            system=str(fields["system"]),
            kernel=str(fields["kernel"]),
            machine=str(fields["machine"]),
            glibc=_number_text(fields["glibc"]),
            time_s=float(fields["time_s"]),
            agent_python=str(fields["agent_python"]["version"]),
            python=str(interpreter.get("version", "")),
            python_path=str(interpreter.get("path", "")),
            rejected_pythons=tuple(str(each) for each in fields["rejected_pythons"]),
            driver=_number_text(fields["driver"]),
            gpus=tuple(
                Gpu(name=str(gpu["name"]), compute=str(gpu["compute"]), memory_mib=int(gpu["memory_mib"]))
                for gpu in fields["gpus"]
            ),
            libraries=tuple(sorted((str(soname), str(path)) for soname, path in fields["libraries"].items())),
            store=str(store["path"]),
            store_problem=str(store["problem"]),
            writable=bool(store["writable"]),
            filesystem=str(store["filesystem"]),
            links=str(store["links"]),
            free_bytes=int(store["free_bytes"]),
            free_inodes=int(store["free_inodes"]),
            inodes=int(store["inodes"]),
            notes=tuple(str(note) for note in fields["notes"]),
            tools=HostTools(
                c_compiler=str(fields["tools"]["c_compiler"]),
                cxx_compiler=str(fields["tools"]["cxx_compiler"]),
                python_headers=str(fields["tools"]["python_headers"]),
                nvcc=_number_text(fields["tools"]["nvcc"]),
            ),
        )

    def to_json(self) -> dict[str, Any]:
        """The record that `--json` prints."""
        return {
            "hostname": self.hostname,
            "user": self.user,
            "system": self.system,
            "kernel": self.kernel,
            "glibc": self.glibc or None,
            "python": {"version": self.python, "path": self.python_path} if self.python else None,
            "driver": self.driver or None,
            "gpus": [{"name": gpu.name, "compute": gpu.compute, "memory_mib": gpu.memory_mib} for gpu in self.gpus],
            "store": self.store,
            "filesystem": self.filesystem,
            "links": self.links or None,
            "free_bytes": self.free_bytes,
            "free_inodes": self.free_inodes,
            "notes": list(self.notes),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a build would bring to a host."""

    wheels: int
    """How many wheels it lacks."""

    bytes: int
    """Of those."""


def preflight(
    host: HostSpec, lock: Lock, facts: HostFacts, load: Load, *, now_s: float, jit: tuple[str, ...] = ()
) -> tuple[Finding, ...]:
    """Compare a host with what the lock needs and the spec declares.

    Args:
        host: As declared.
        lock: What is to be built.
        facts: As found.
        load: What would be sent.
        now_s: This machine's clock, in seconds since 1970.
        jit: Compilers that the spec names, as `envspec.jit` has them.

    Returns:
        Errors first.
    """
    found = [
        *_system_findings(host, lock, facts),
        *_python_findings(host, lock, facts),
        *_gpu_findings(host, lock, facts),
        *_store_findings(host, facts, load),
        *jit_findings(
            host.name,
            facts.tools,
            JitDemand(
                named=jit,
                packages=frozenset(package.name for package in lock.packages),
                python=lock.python,
                cuda=lock.cuda_toolkit,
            ),
        ),
    ]
    if abs(facts.time_s - now_s) > CLOCK_SLACK_S:
        found.append(
            _finding(
                host,
                "host-clock",
                "warning",
                f"its clock is {_duration(facts.time_s - now_s)} this machine's",
                "times of its receipts and generations come from here; set its clock all the same (`timedatectl`)",
            )
        )
    order = {"error": 0, "warning": 1, "info": 2}
    return tuple(sorted(found, key=lambda finding: order[finding.severity]))


def _finding(
    host: HostSpec,
    check: str,
    severity: Severity,
    message: str,
    hint: str,
    evidence: tuple[str, ...] = (),
) -> Finding:
    return Finding(check=check, severity=severity, subject=host.name, message=message, hint=hint, evidence=evidence)


def _system_findings(host: HostSpec, lock: Lock, facts: HostFacts) -> list[Finding]:
    found = []
    machine = lock.platform.partition("-")[2]
    if facts.machine != machine:
        found.append(
            _finding(
                host, "host-machine", "error", f"it is {facts.machine}, the lock is for {machine}", "lock for it apart"
            )
        )
    if not facts.glibc:
        found.append(_finding(host, "host-glibc", "error", "its C library is not glibc", "use a host with glibc"))
    elif _version(facts.glibc) < _version(lock.glibc):
        found.append(
            _finding(
                host,
                "host-glibc",
                "error",
                f"it has glibc {facts.glibc} ({facts.system}), the lock is for {lock.glibc} or later",
                f'declare `glibc = "{facts.glibc}"` in [target] and lock again, or upgrade the host',
            )
        )
    missing = [soname for soname, path in facts.libraries if not path]
    if missing:
        found.append(
            _finding(
                host,
                "host-libraries",
                "error",
                f"it lacks {', '.join(missing)}, which the environment needs",
                "install the packages that they are in, and run `ldconfig`",
            )
        )
    return found


def _python_findings(host: HostSpec, lock: Lock, facts: HostFacts) -> list[Finding]:
    if facts.python:
        return []
    wanted = lock.python_exact or lock.python
    where = f" at `{host.python}`" if host.python else ""
    return [
        _finding(
            host,
            "host-python",
            "error",
            f"it has no CPython {wanted}{where} for {lock.platform}",
            f"install it there (`apt-get install python{lock.python}`, or `uv python install {wanted}`), "
            "or name it: `python` of the host in the spec",
            facts.rejected_pythons[:8],
        )
    ]


def _gpu_findings(host: HostSpec, lock: Lock, facts: HostFacts) -> list[Finding]:
    found = []
    there = f"{len(facts.gpus)} ({', '.join(sorted({gpu.name for gpu in facts.gpus}))})" if facts.gpus else "none"
    if len(facts.gpus) < host.gpus:
        found.append(
            _finding(
                host,
                "host-gpus",
                "error",
                f"the spec declares {host.gpus} GPUs, {there} answered",
                "see `nvidia-smi` there; or correct `gpus` in the spec",
                facts.notes,
            )
        )
    computes = sorted({gpu.compute for gpu in facts.gpus if gpu.compute})
    if host.compute and computes and computes != [host.compute]:
        found.append(
            _finding(
                host,
                "host-compute",
                "error",
                f"the spec declares compute capability {host.compute}, its GPUs have {', '.join(computes)}",
                "correct `compute` in the spec, or name the right host",
            )
        )
    strange = [compute for compute in computes if lock.cuda_compute and compute not in lock.cuda_compute]
    if strange and not host.compute:
        found.append(
            _finding(
                host,
                "host-compute",
                "error",
                f"its GPUs have compute capability {', '.join(strange)}, the lock is for {', '.join(lock.cuda_compute)}",
                "add it to `compute` of [cuda], and lock again",
            )
        )
    least = least_driver(lock)
    if least and facts.driver and is_older(facts.driver, least):
        found.append(
            _finding(
                host,
                "host-driver",
                "error",
                f"it has the NVIDIA driver {facts.driver}, the lock needs {least} or later",
                "upgrade the driver there; `envspec check` says what asks for it",
            )
        )
    elif host.driver and facts.driver and is_older(facts.driver, host.driver):
        found.append(
            _finding(
                host,
                "host-driver",
                "error",
                f"the spec declares the NVIDIA driver {host.driver} or later, it has {facts.driver}",
                "upgrade the driver there, or correct `driver` in the spec",
            )
        )
    elif least and not facts.driver:
        found.append(
            _finding(
                host,
                "host-driver",
                "error" if host.gpus else "warning",
                f"it has no NVIDIA driver that answers, the lock needs {least} or later",
                "install one there" if host.gpus else "imports are proven with a stub of the driver, kernels are not",
                facts.notes,
            )
        )
    return found


def _store_findings(host: HostSpec, facts: HostFacts, load: Load) -> list[Finding]:
    found = []
    if not facts.writable or facts.store_problem:
        found.append(
            _finding(
                host,
                "host-store",
                "error",
                facts.store_problem or f"the store `{facts.store}` cannot be written by {facts.user}",
                "mend its permissions, or name another `store` for the host in the spec",
            )
        )
    needed = int(load.bytes * ROOM_PER_WHEEL_BYTE)
    if load.wheels and facts.free_bytes < needed:
        found.append(
            _finding(
                host,
                "host-disk",
                "error",
                f"{facts.free_bytes / 1e9:.1f} GB are free at `{facts.store}`, about {needed / 1e9:.1f} GB are needed "
                f"for {load.wheels} wheels of {load.bytes / 1e9:.1f} GB",
                "`envspec gc --host` removes what nothing uses; or name another `store` for the host",
            )
        )
    if load.wheels and facts.inodes and facts.free_inodes < load.wheels * FILES_PER_PART:
        found.append(
            _finding(
                host,
                "host-inodes",
                "error",
                f"{facts.free_inodes} inodes are free at `{facts.store}`, about {load.wheels * FILES_PER_PART} are needed",
                "remove small files there, or name a `store` on another file system",
            )
        )
    if facts.links == "copy":
        found.append(
            _finding(
                host,
                "host-links",
                "warning",
                f"the file system of the store ({facts.filesystem}) has no hard links: every environment takes its whole size",
                "name a `store` on another file system",
            )
        )
    return found


def _number_text(value: object) -> str:
    """A version of numbers and dots, or an empty string.

    Raises:
        ValueError: It is something else.
    """
    text = str(value)
    if not re.fullmatch(r"(?:\d{1,6}(?:\.\d{1,6}){0,5})?", text):
        raise ValueError(f"no version: {text[:40]}")
    return text


def _version(text: str) -> tuple[int, ...]:
    numbers = tuple(int(piece) for piece in text.split(".") if piece.isdecimal())
    return numbers or (0,)


def _duration(seconds: float) -> str:
    amount = abs(seconds)
    size, unit = next(
        (pair for pair in ((86400, "days"), (3600, "hours"), (60, "minutes")) if amount >= pair[0]), (1, "s")
    )
    return f"{amount / size:.1f} {unit} {'ahead of' if seconds > 0 else 'behind'}"
