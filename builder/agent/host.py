"""What there is on this machine: system, Pythons, driver, GPUs, libraries, and room for a store. Measured, not judged; nothing is left behind.

Each question may fail by itself: an answer that cannot be had is empty, with the reason in `notes`.

Standard library only, CPython >= 3.10.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import re
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder import process
from builder.agent.build import user_name
from builder.agent.driver_stub import load_errors
from builder.agent.store import write_new
from envspec.errors import EnvspecError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from builder.agent.interpreter import Interpreter
    from builder.agent.store import Store

SMI_TIMEOUT_S = 20.0
_SMI_FIELDS = "index,name,compute_cap,memory.total,driver_version"
_FICLONE = 0x40049409

# Runs in a child, since a broken driver may crash or hang whoever loads it. The numbers are CUdevice_attribute of cuda.h.
_ASK_CUDA = r"""
import ctypes, json
cuda = ctypes.CDLL("libcuda.so.1")
number = ctypes.c_int()
def ask(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    if code:
        raise SystemExit("%s gave error %d" % (name, code))
ask("cuDriverGetVersion", ctypes.byref(number))
version = "%d.%d" % (number.value // 1000, number.value % 1000 // 10)
ask("cuInit", 0)
ask("cuDeviceGetCount", ctypes.byref(number))
gpus = []
for index in range(number.value):
    device, name, parts = ctypes.c_int(), ctypes.create_string_buffer(256), []
    ask("cuDeviceGet", ctypes.byref(device), index)
    ask("cuDeviceGetName", name, 256, device)
    for attribute in (75, 76):
        ask("cuDeviceGetAttribute", ctypes.byref(number), attribute, device)
        parts.append(str(number.value))
    gpus.append({"name": name.value.decode("ascii", "replace"), "compute": ".".join(parts)})
print(json.dumps({"cuda": version, "gpus": gpus}))
"""


def host_facts(
    store: Store,
    environ: Mapping[str, str],
    *,
    find_python: Callable[[], Interpreter],
    libraries: Sequence[str] = (),
) -> dict[str, Any]:
    """Everything that a preflight wants to know.

    Args:
        store: Where the store lies or will lie.
        environ: This process's environment.
        find_python: Finds the Python of the environment, or says in an `EnvspecError` what it looked at.
        libraries: Host libraries that the environment declares.

    Returns:
        JSON; `envspec.preflight.HostFacts` has its meaning.
    """
    notes: list[str] = []
    interpreter: dict[str, Any] | None = None
    rejected: list[str] = []
    try:
        interpreter = find_python().to_json()
    except EnvspecError as error:
        rejected = [f"{problem.where}: {problem.message}" for problem in error.problems]
    return {
        **machine_facts(environ, notes),
        "uid": os.geteuid(),
        "time_s": time.time(),
        "agent_python": {"path": os.path.realpath(sys.executable), "version": platform.python_version()},
        "interpreter": interpreter,
        "rejected_pythons": rejected,
        "libraries": _libraries(libraries, interpreter, environ),
        "tools": _tools(interpreter, environ),
        "store": _store_facts(store),
        "notes": notes,
    }


def machine_facts(environ: Mapping[str, str], notes: list[str]) -> dict[str, Any]:
    """What a machine is, as receipts say it: system, driver and GPUs.

    Args:
        environ: This process's environment.
        notes: Gets what could not be found out, and why.
    """
    return {
        "hostname": platform.node(),
        "user": user_name(),
        "system": _system(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "glibc": _glibc(),
        **_driver(environ, notes),
    }


def _system() -> str:
    for path in ("/etc/os-release", "/usr/lib/os-release"):
        with contextlib.suppress(OSError):
            text = Path(path).read_text(encoding="utf-8", errors="replace")
            match = re.search(r'^PRETTY_NAME="?([^"\n]*)"?$', text, re.MULTILINE)
            if match:
                return match[1]
    return platform.system()


def _glibc() -> str:
    """Its version; empty on another C library."""
    with contextlib.suppress(ValueError, OSError):
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
        return version if name == "glibc" else ""
    return ""


def _driver(environ: Mapping[str, str], notes: list[str]) -> dict[str, Any]:
    """The NVIDIA driver and its GPUs: by nvidia-smi, else by libcuda and the kernel's files."""
    done = process.run(
        ["nvidia-smi", f"--query-gpu={_SMI_FIELDS}", "--format=csv,noheader,nounits"],
        env=dict(environ),
        timeout_s=SMI_TIMEOUT_S,
    )
    gpus: list[dict[str, Any]] = []
    driver = ""
    if done.returncode == 0:
        for line in done.stdout.splitlines():
            values = [value.strip() for value in line.split(",")]
            if len(values) == len(_SMI_FIELDS.split(",")):
                gpus.append({"name": values[1], "compute": values[2], "memory_mib": _number(values[3])})
                driver = values[4]
        return {"driver": _version_in(driver), "cuda_driver": "", "gpus": gpus}
    if done.returncode != process.CANNOT_START:
        said = (done.stdout.strip() or done.stderr.strip()).splitlines() or ["it said nothing"]
        notes.append(f"nvidia-smi ended with rc {done.returncode}: {said[0][:200]}")
    with contextlib.suppress(OSError):
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8", errors="replace")
        match = re.search(r"(?:Kernel Module[^\n]*?)\s(\d+\.\d+(?:\.\d+)?)\s", text)
        driver = match[1] if match else ""
    if not driver and not Path("/dev/nvidiactl").exists():
        return {"driver": "", "cuda_driver": "", "gpus": []}
    done = process.run([sys.executable, "-I", "-S", "-c", _ASK_CUDA], env=dict(environ), timeout_s=SMI_TIMEOUT_S)
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        said = done.stderr.strip().splitlines() or [f"rc {done.returncode}"]
        notes.append(f"libcuda.so.1 does not answer: {said[-1][:200]}")
        answer = {"cuda": "", "gpus": []}
    gpus = [{"name": gpu["name"], "compute": gpu["compute"], "memory_mib": 0} for gpu in answer["gpus"]]
    return {"driver": driver, "cuda_driver": answer["cuda"], "gpus": gpus}


def _version_in(text: str) -> str:
    match = re.match(r"\d+(?:\.\d+)*", text)
    return match[0] if match else ""


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0


def _libraries(
    sonames: Sequence[str], interpreter: Mapping[str, Any] | None, environ: Mapping[str, str]
) -> dict[str, str]:
    """Soname -> where it lies; empty if it cannot be loaded."""
    if not sonames:
        return {}
    cached = cached_libraries(environ)
    missing = [soname for soname in sonames if soname not in cached]
    failed: Mapping[str, str] = {}
    if missing:
        python = Path(interpreter["path"] if interpreter else sys.executable)
        try:
            failed = load_errors(python, missing, environ=environ)
        except EnvspecError as error:
            failed = dict.fromkeys(missing, error.message)
    return {soname: cached.get(soname, "" if soname in failed else "found by the dynamic linker") for soname in sonames}


def cached_libraries(environ: Mapping[str, str]) -> dict[str, str]:
    """Soname -> path of what the dynamic linker has in its cache for programs of this machine; empty where there is no cache."""
    cached: dict[str, str] = {}
    for program in ("ldconfig", "/sbin/ldconfig"):
        done = process.run([program, "-p"], env=dict(environ), timeout_s=SMI_TIMEOUT_S)
        if done.returncode == 0:
            kind = {"x86_64": "x86-64", "aarch64": "AArch64"}.get(platform.machine(), "")
            for soname, flags, path in re.findall(r"^\s*(\S+) \(([^)]*)\) => (\S+)$", done.stdout, re.MULTILINE):
                if kind in flags:  # a library for 32 bits has the same name
                    cached.setdefault(soname, path)
            break
    return cached


def _tools(interpreter: Mapping[str, Any] | None, environ: Mapping[str, str]) -> dict[str, str]:
    """What there is for compiling: paths, the folder of `Python.h`, the CUDA release of nvcc; each empty where there is none."""
    path = environ.get("PATH", "")
    compilers = {
        "c_compiler": ("cc", "gcc", "clang"),
        "cxx_compiler": ("c++", "g++", "clang++"),
    }
    found = {
        tool: next((place for name in names if (place := shutil.which(name, path=path))), "")
        for tool, names in compilers.items()
    }
    headers = ""
    if interpreter is not None:
        usual = f"{interpreter['base_prefix']}/include/python{'.'.join(interpreter['version'].split('.')[:2])}"
        headers = usual if Path(usual, "Python.h").is_file() else ""
    if interpreter is not None and not headers:
        ask = "import sysconfig; print(sysconfig.get_path('include'))"
        done = process.run([interpreter["path"], "-I", "-S", "-c", ask], env=dict(environ), timeout_s=SMI_TIMEOUT_S)
        folder = done.stdout.strip()
        if done.returncode == 0 and folder and Path(folder, "Python.h").is_file():
            headers = folder
    home = environ.get("CUDA_HOME") or environ.get("CUDA_PATH") or "/usr/local/cuda"
    nvcc = shutil.which("nvcc", path=f"{home}/bin") or shutil.which("nvcc", path=path)
    release = ""
    if nvcc:
        done = process.run([nvcc, "--version"], env=dict(environ), timeout_s=SMI_TIMEOUT_S)
        match = re.search(r"release (\d+\.\d+)", done.stdout)
        release = match[1] if match else ""
    return {**found, "python_headers": headers, "nvcc": release}


def _store_facts(store: Store) -> dict[str, Any]:
    root = store.root
    above = root
    while not os.path.lexists(above) and above != above.parent:
        above = above.parent
    facts: dict[str, Any] = {"path": os.fspath(root), "exists": root.is_dir(), "problem": "", "owner_uid": None}
    try:
        room = os.statvfs(above)
        facts |= {"free_bytes": room.f_bavail * room.f_frsize, "free_inodes": room.f_favail, "inodes": room.f_files}
        facts["owner_uid"] = above.stat().st_uid
    except OSError as error:
        facts |= {"free_bytes": 0, "free_inodes": 0, "inodes": 0, "problem": f"`{above}`: {error.strerror}"}
    kind, options = _mount_of(above)
    facts["filesystem"] = kind
    facts["read_only"] = "ro" in options
    try:
        store.check_format()
    except EnvspecError as error:
        facts["problem"] = error.message
    facts["writable"], facts["links"], reason = _try_writing(store, above)
    facts["problem"] = facts["problem"] or reason
    return facts


def file_system_of(path: Path) -> str:
    """The kind of the file system that a path lies on: `ext4`; empty if unknown."""
    return _mount_of(path)[0]


def _mount_of(path: Path) -> tuple[str, tuple[str, ...]]:
    """Kind and options of the file system that a path lies on."""
    best, kind, options = -1, "", ""
    with contextlib.suppress(OSError):
        real = os.path.realpath(path)
        for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            fields, _, rest = line.partition(" - ")
            place, flags = fields.split()[4:6]
            place = place.replace("\\040", " ")
            inside = place in {"/", real} or real.startswith(f"{place}/")
            if inside and len(place) >= best:  # a later mount at one place hides the earlier one
                best, kind, options = len(place), rest.split()[0], flags
    return kind, tuple(options.split(","))


def _try_writing(store: Store, above: Path) -> tuple[bool, str, str]:
    """Whether a store can be written, how files are shared in it, and why not."""
    folder = store.root / ".tmp"
    if not folder.is_dir():  # nothing is made just to look
        if above.is_dir() and os.access(above, os.W_OK | os.X_OK):
            return True, "", ""
        return False, "", f"`{store.root}` cannot be made: `{above}` cannot be written by {user_name()}"
    first, second = folder / f"probe.{os.getpid()}", folder / f"probe.{os.getpid()}-2"
    try:
        write_new(first, b"x")
    except OSError as error:
        return False, "", f"`{store.root}` cannot be written: {error.strerror}"
    links = "copy"
    try:
        with contextlib.suppress(OSError):
            os.link(first, second)
            links = "hardlink"
            second.unlink()
        write_new(second, b"")
        with contextlib.suppress(OSError), first.open("rb") as source, second.open("r+b") as target:
            fcntl.ioctl(target.fileno(), _FICLONE, source.fileno())
            links += "+reflink"
    finally:
        for path in (first, second):
            path.unlink(missing_ok=True)
    return True, links, ""
