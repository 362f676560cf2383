"""A project as a user has one: a spec, an overlay, wheels on an index, a store; and the command line, run in processes of its own.

    with LocalIndex(folder / "wheels", credentials=USER) as index:
        project = Project(folder, index)
        project.wheel("alpha", "1.0", {"alpha/__init__.py": "x = 1\n"})
        project.write_spec({"alpha": "==1.0"}, imports=["alpha"])
        assert project.run("lock").code == 0

Nothing of the developer's own configuration reaches the command line: HOME is a folder of the project, PATH has the system's programs and the
Python that runs the tests, and of uv there is only where it lies. The environment's Python is that of the tests.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.local_index import LocalIndex
from tests.support.wheels import make_wheel

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

REPOSITORY = Path(__file__).resolve().parents[2]
PYTHON_MINOR = f"{sys.version_info.major}.{sys.version_info.minor}"
PLATFORM = f"linux-{os.uname().machine}"
SITE_PACKAGES = f"lib/python{PYTHON_MINOR}/site-packages"
CREDENTIALS = ("j.doe", "s3cr3t/of+jane")
LIMIT_S = 120.0

_AUDITED = """
import os, sys
log = os.open(sys.argv.pop(1), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
watched = {"subprocess.Popen", "os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "socket.connect", "socket.getaddrinfo"}
sys.addaudithook(lambda event, args: os.write(log, (event + "\\n").encode()) if event in watched else None)
from envspec.cli import main
main()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What a run of the command line gave."""

    code: int
    stdout: str
    stderr: str
    events: tuple[str, ...] = ()
    """What it did to the world beyond files (audit events), if it was asked to watch."""

    @property
    def text(self) -> str:
        """Everything that a person saw."""
        return self.stdout + self.stderr

    def json(self) -> dict[str, Any]:
        """The one JSON object on stdout."""
        value = json.loads(self.stdout)
        assert isinstance(value, dict)
        assert value["version"] == 1
        return value

    def host(self) -> dict[str, Any]:
        """The only host's record in the JSON object."""
        (host,) = self.json()["hosts"]
        assert isinstance(host, dict)
        return host


class Project:
    """See the module's docstring."""

    def __init__(self, folder: Path, index: LocalIndex | None, *, store: Path | None = None) -> None:
        """Make the folders.

        Args:
            folder: Where the project lies: `spec/`, `wheels/`, `store/`, `home/`.
            index: Serves `wheels/`; None if there is no index.
            store: Where the store lies, if not in `folder`.
        """
        self.folder = folder
        self.index = index
        self.spec_folder = folder / "spec"
        self.spec_path = self.spec_folder / "demo.toml"
        self.lock_path = self.spec_folder / "demo.lock"
        self.wheels = folder / "wheels"
        self.store = store or folder / "store"
        self.home = folder / "home"
        self.environment: dict[str, str] = {}
        """Variables of every run."""
        for made in (self.spec_folder, self.wheels, self.home, folder / "bin"):
            made.mkdir(parents=True, exist_ok=True)
        link = folder / "bin" / f"python{PYTHON_MINOR}"
        if not link.is_symlink():
            link.symlink_to(base_python())

    # The inputs.

    def wheel(self, name: str, version: str, files: Mapping[str, bytes | str] | None = None, **more: Any) -> Path:
        """Put a wheel on the index; arguments are those of `make_wheel`."""
        return make_wheel(self.wheels, name, version, files, **more)

    def write_spec(
        self,
        packages: Mapping[str, str],
        *,
        imports: Sequence[str] = (),
        top: str = "",
        python: str = "",
        glibc: str = "2.17",
        more: str = "",
    ) -> None:
        """Write the spec.

        Args:
            packages: Name -> specifier.
            imports: Of [verify].
            top: Further lines before the first table.
            python: Further lines of [python].
            glibc: Of [target].
            more: Further tables.
        """
        lines = ["envspec = 1", 'name = "demo"', top, "[python]", f'version = "{PYTHON_MINOR}"', python, "[target]"]
        lines += [f'platform = "{PLATFORM}"', f'glibc = "{glibc}"', "[packages]"]
        lines += [f'{name} = "{specifier}"' for name, specifier in packages.items()]
        if imports:
            lines += ["[verify]", f"imports = {json.dumps(list(imports))}"]
        self.spec_path.write_text("\n".join([*lines, more, ""]), encoding="utf-8")

    def write_patch(
        self, path: str, before: str, after: str, *, name: str = "0001-change.patch", line: int = 1
    ) -> None:
        """Write the only patch of `overlays/series`: one line of a file, without context.

        Args:
            path: The file, below site-packages.
            before: The line as the wheel has it.
            after: The line that replaces it.
            name: Of the patch.
            line: Its number, from 1.
        """
        overlays = self.spec_folder / "overlays"
        overlays.mkdir(exist_ok=True)
        (overlays / name).write_text(
            f"Change a line\n\n--- a/{path}\n+++ b/{path}\n@@ -{line} +{line} @@\n-{before}\n+{after}\n",
            encoding="utf-8",
        )
        (overlays / "series").write_text(f"{name}\n", encoding="utf-8")

    # The command line.

    def environ(self, **changes: str | None) -> dict[str, str]:
        """The variables of a run; None takes one away."""
        values: dict[str, str | None] = {
            "PATH": os.pathsep.join([str(self.folder / "bin"), "/usr/bin", "/bin"]),
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "COLUMNS": "100",
            "UV": uv_program(),
            "UV_PYTHON_DOWNLOADS": "never",
            "ENVSPEC_STORE": str(self.store),
            "PYTHONPATH": str(REPOSITORY),
        }
        if self.index is not None:
            values["UV_DEFAULT_INDEX"] = (
                self.index.url if self.index.credentials is None else self.index.url_with_credentials
            )
        values.update(self.environment)
        values.update(changes)
        return {name: value for name, value in values.items() if value is not None}

    def run(
        self,
        *arguments: str | Path,
        cwd: Path | None = None,
        before: Sequence[str] = (),
        watch: bool = False,
        limit_s: float = LIMIT_S,
        **changes: str | None,
    ) -> Ran:
        """Run the command line to its end.

        Args:
            arguments: Of `envspec`.
            cwd: Where; by default the spec's folder.
            before: A command that starts it: `["setpriv", "--reuid=nobody"]`.
            watch: Whether to record the processes that it starts and the connections that it makes itself.
            limit_s: When it is ended.
            changes: Of the environment variables; None takes one away.
        """
        events = self.folder / "events.log"
        events.unlink(missing_ok=True)
        start = ["-c", _AUDITED, str(events)] if watch else ["-m", "envspec"]
        done = subprocess.run(
            [*before, sys.executable, *start, *map(str, arguments)],
            cwd=cwd or self.spec_folder,
            env=self.environ(**changes),
            capture_output=True,
            encoding="utf-8",
            check=False,
            timeout=limit_s,
        )
        assert "Traceback (most recent call last)" not in done.stderr or arguments[:1] == ("run",), done.stderr
        seen = tuple(events.read_text().splitlines()) if events.exists() else ()
        return Ran(code=done.returncode, stdout=done.stdout, stderr=done.stderr, events=seen)

    def start(self, *arguments: str | Path, **changes: str | None) -> subprocess.Popen[str]:
        """Start the command line in a process group of its own."""
        return subprocess.Popen(
            [sys.executable, "-m", "envspec", *map(str, arguments)],
            cwd=self.spec_folder,
            env=self.environ(**changes),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            start_new_session=True,
        )

    def good(self, *arguments: str | Path, **more: Any) -> Ran:
        """Run, and see that it ends with 0."""
        ran = self.run(*arguments, **more)
        assert ran.code == 0, ran.text
        return ran

    def declare_hosts(self, hosts: Mapping[str, Mapping[str, Any]]) -> None:
        """Declare hosts in the spec, in place of those that it declares.

        Args:
            hosts: Name -> keys and values.
        """
        text = self.spec_path.read_text(encoding="utf-8").partition("\n[hosts.")[0]
        for name, keys in hosts.items():
            text += f"\n[hosts.{name}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items())
        self.spec_path.write_text(text, encoding="utf-8")

    # What is there afterwards.

    def lock_text(self) -> str:
        """The lock."""
        return self.lock_path.read_text(encoding="utf-8")

    def active(self) -> Path | None:
        """The active environment; None if there is none."""
        link = self.store / "profiles" / "demo"
        return link.resolve() if link.exists() else None

    def site(self, path: str) -> Path:
        """A file below site-packages of the active environment."""
        active = self.active()
        assert active is not None
        return active / SITE_PACKAGES / path

    def environments(self) -> list[str]:
        """Names of all environments in the store."""
        return sorted(path.name for path in (self.store / "envs").iterdir()) if (self.store / "envs").exists() else []

    def leftovers(self) -> list[str]:
        """What is half-made, in the store and beside the spec."""
        found = [path for folder in (self.store / ".tmp",) if folder.exists() for path in folder.iterdir()]
        found += [
            path for path in self.spec_folder.iterdir() if path.name.startswith(".") or path.name.endswith(".tmp")
        ]
        return sorted(str(path.relative_to(self.folder)) for path in found)


def make_writable(folder: Path) -> None:
    """Give a store's folders back to their owner's pen, for a test that copies or breaks them."""
    for parent, _, _ in os.walk(folder):
        Path(parent).chmod(0o755)


def copy_tree(original: Path, folder: Path) -> None:
    """Copy a folder with its links: what is one file in a store stays one file."""
    subprocess.run(["/usr/bin/env", "cp", "-a", "--", original, folder], check=True)


def remove_tree(folder: Path) -> None:
    """Delete a folder of a store; one that is not there is no error."""
    make_writable(folder)
    shutil.rmtree(folder, ignore_errors=True)


def snapshot_of(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every file of a folder: mode and content (target, for a link)."""
    return {
        str(path.relative_to(folder)): (
            path.lstat().st_mode,
            os.fsencode(path.readlink()) if path.is_symlink() else path.read_bytes(),
        )
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


@contextmanager
def serve(folder: Path, **options: Any) -> Iterator[Project]:
    """A project whose index asks for credentials; the options are those of `LocalIndex`."""
    (folder / "wheels").mkdir(parents=True, exist_ok=True)
    with LocalIndex(folder / "wheels", **{"credentials": CREDENTIALS, **options}) as index:
        yield Project(folder, index)


@functools.cache
def base_python() -> Path:
    """The Python that runs the tests, outside any virtual environment."""
    return Path(os.path.realpath(getattr(sys, "_base_executable", sys.executable)))


@functools.cache
def uv_program() -> str:
    """uv itself, and not a shim that starts it: the shim would cost more than uv."""
    found = os.environ.get("UV") or shutil.which("uv")
    if found is None:
        pytest.fail("these tests need uv: put it in PATH, or name it in UV")
    done = subprocess.run(
        [
            found,
            "run",
            "--no-project",
            "--no-config",
            "--offline",
            sys.executable,
            "-c",
            "import os; print(os.environ['UV'])",
        ],
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    return done.stdout.strip() or found
