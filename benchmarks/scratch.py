"""The folder in which everything is measured: copies of the committed environment, a store, and the same for uv.

<work>/committed/     the spec with its lock and patches, [verify] imports left out (no lock depends on them)
<work>/patched/       the same, whose first patch is edited before each build of a new environment
<work>/store/         a store with all wheels, trees and bytecode of the committed lock
<work>/uv-cache/      uv's own cache
<work>/wheels/        the same wheels in one folder, for uv
<work>/away/          environments that were taken out of the store
<work>/ready          written when all of this is there
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tomlkit

from benchmarks.commands import CannotMeasure, Command, run
from builder.agent.generations import active_generation, list_generations, remove_generation, roll_back
from builder.agent.interpreter import find_interpreter
from builder.agent.store import Store, remove_readonly_tree
from builder.uv import find_uv
from envspec.lock_toml import parse_lock
from envspec.spec_toml import parse_spec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from envspec.lock import Lock
    from envspec.spec import Spec

NAME = "ddtree"
_DROPPED_VARIABLES = frozenset(
    {"PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "PYTHONHOME", "PYTHONPYCACHEPREFIX", "VIRTUAL_ENV", "ENVSPEC_STORE"}
)
_COMMENT_ADDED = re.compile(r"^(\+\s*# ).*$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scratch:
    """Where everything is, and how the commands are put together."""

    work: Path
    environ: Mapping[str, str]
    """Of every command that is measured."""

    envspec_path: Path
    uv_path: Path
    python: Path
    """The Python of the environments."""

    nix_hash: Path | None
    spec: Spec
    lock: Lock
    """As committed."""

    wheelhouse: Path | None
    """A folder with `<sha256>/<file>` that saves downloads."""

    @property
    def store(self) -> Store:
        """The store with everything in it."""
        return Store(self.work / "store")

    @property
    def committed(self) -> Path:
        """Folder of the committed spec."""
        return self.work / "committed"

    @property
    def patched(self) -> Path:
        """Folder of the spec whose patch is edited."""
        return self.work / "patched"

    def envspec(self, *words: str, folder: Path | None = None, store: Path | None = None) -> Command:
        """A command of envspec.

        Args:
            words: Verb and options.
            folder: Of the spec; the committed one by default.
            store: By default the one with everything in it.
        """
        spec = (folder or self.committed) / f"{NAME}.toml"
        return Command(
            shown=" ".join(["envspec", *words, "--spec", f"{NAME}.toml", "--store", "STORE"]),
            argv=(
                os.fspath(self.envspec_path),
                *words,
                "--spec",
                os.fspath(spec),
                "--store",
                os.fspath(store or self.store.root),
            ),
            environ=self.environ,
            cwd=self.work,
        )

    def uv(self, *words: str | Path, cache: Path | None = None) -> Command:
        """A command of uv, with a cache in the work folder.

        Args:
            words: Command and options; paths are shown by their last part.
            cache: By default the one that is warm.
        """
        return Command(
            shown=" ".join(["uv", *(word.name if isinstance(word, Path) else word for word in words)]),
            argv=(os.fspath(self.uv_path), *(os.fspath(word) for word in words)),
            environ={**self.environ, "UV_CACHE_DIR": os.fspath(cache or self.work / "uv-cache")},
            cwd=self.work,
        )

    def uv_new_venv(self, venv: Path, *, cache: Path | None = None) -> Command:
        """The command that makes an empty virtual environment of the same Python."""
        return self.uv("venv", "--python", self.python, "--no-python-downloads", venv, cache=cache)

    def uv_install_from_folder(self, venv: Path) -> Command:
        """The command that installs the locked wheels from a local folder."""
        words = ("pip", "install", "--no-index", "--find-links", self.work / "wheels", "--no-deps", "--require-hashes")
        return self.uv(*words, "--link-mode", "hardlink", "--python", venv, "-r", self.work / "requirements.txt")

    def uv_sync_from_index(self, venv: Path, *, cache: Path) -> Command:
        """The command that fetches, installs and compiles the locked wheels."""
        words = ("pip", "sync", "--require-hashes", "--compile-bytecode", "--python", venv)
        return self.uv(*words, self.work / "requirements.txt", cache=cache)

    def new_away(self, kind: str) -> Path:
        """A name that is not taken, for something that is of no use any more but not to be deleted yet."""
        return self.work / "away" / f"{kind}-{secrets.token_hex(8)}"

    def read_lock(self, folder: Path) -> Lock:
        """The lock of one of the folders."""
        return parse_lock((folder / f"{NAME}.lock").read_text(encoding="utf-8"), input_name=f"{NAME}.lock")

    def copy_spec(self, folder: Path, *, with_lock: bool = True) -> None:
        """Make a folder a copy of the committed spec."""
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.committed, folder)
        if not with_lock:
            (folder / f"{NAME}.lock").unlink()

    def edit_patch(self) -> None:
        """Change a comment that the first patch adds, to one that it never had, and lock that."""
        patch = min((self.patched / "overlays").rglob("*.patch"))
        text, count = _COMMENT_ADDED.subn(
            rf"\g<1>Benchmark {secrets.token_hex(8)}.", patch.read_text(encoding="utf-8"), count=1
        )
        if count == 0:
            raise CannotMeasure(f"{patch.name} adds no comment that could be edited")
        patch.write_text(text, encoding="utf-8")
        run(self.envspec("lock", folder=self.patched))

    def forget_env(self, env: str) -> None:
        """Take the newest, active environment out of the store, as if it had never been built; what it was linked from stays.

        Its folder is moved, not deleted: to remove a link moves the change time of the inode, so that the next build would hash it again.
        """
        store = self.store
        active = active_generation(store, NAME)
        if active is None or active.env != env or active.number != list_generations(store, NAME)[-1].number:
            raise CannotMeasure("the environment that was just built is not the active one")
        roll_back(store, NAME, None)
        remove_generation(store, NAME, active.number)
        shutil.rmtree(store.receipts(env))
        shutil.rmtree(store.state(env), ignore_errors=True)
        active.path.chmod(0o755)
        active.path.rename(self.new_away("env"))

    def free_bytes(self) -> int:
        """Room on the file system of the work folder."""
        return shutil.disk_usage(self.work).free


def prepare(work: Path, *, repository: Path, wheelhouse: Path | None) -> Scratch:
    """Make the work folder, or take it as an earlier run left it.

    Args:
        work: The folder; it exists.
        repository: Where the committed spec lies.
        wheelhouse: A folder with `<sha256>/<file>`; what is not there is fetched. None to fetch all.

    Raises:
        CannotMeasure: Something that is needed is not there.
    """
    environ = {name: value for name, value in os.environ.items() if name not in _DROPPED_VARIABLES}
    uv_path = _true_uv(environ)
    environ["UV"] = os.fspath(uv_path)
    (work / "away").mkdir(exist_ok=True)
    committed = work / "committed"
    if not (committed / f"{NAME}.toml").exists():
        _copy_committed(repository, committed)
    spec_text = (committed / f"{NAME}.toml").read_text(encoding="utf-8")
    lock_text = (committed / f"{NAME}.lock").read_text(encoding="utf-8")
    lock = parse_lock(lock_text, input_name=f"{NAME}.lock")
    interpreter = find_interpreter(
        lock.python,
        lock.python_exact,
        environ=environ,
        uv=os.fspath(uv_path),
        remembered=None,
        platform=lock.platform,
        may_install=True,
    )
    nix_hash = shutil.which("nix-hash")
    spec = parse_spec(spec_text, input_name=f"{NAME}.toml")
    (work / "requirements.txt").write_text(
        "".join(f"{each.name}=={each.version} --hash=sha256:{each.sha256}\n" for each in lock.packages),
        encoding="utf-8",
    )
    (work / "requirements.in").write_text(
        "".join(
            f"{each.name}{'[' + ','.join(each.extras) + ']' if each.extras else ''}{each.specifier}\n"
            for each in spec.packages
        ),
        encoding="utf-8",
    )
    return Scratch(
        work=work,
        environ=environ,
        envspec_path=Path(sys.executable).with_name("envspec"),
        uv_path=uv_path,
        python=interpreter.path,
        nix_hash=None if nix_hash is None else Path(nix_hash),
        spec=spec,
        lock=lock,
        wheelhouse=wheelhouse,
    )


def fill(scratch: Scratch) -> None:
    """Make the store with everything in it and uv's folder of wheels, unless an earlier run left them.

    Raises:
        CannotMeasure: The committed environment cannot be built.
    """
    ready = scratch.work / "ready"
    if ready.exists():
        return
    scratch.copy_spec(scratch.patched)
    store = scratch.store
    store.ensure()
    for package in scratch.lock.packages:
        source = None if scratch.wheelhouse is None else scratch.wheelhouse / package.sha256 / package.file
        if source is not None and source.is_file():
            target = store.wheel(package.sha256, package.file)
            target.parent.mkdir(exist_ok=True)
            _link_or_copy(source, target)
    run(scratch.envspec("build"))
    flat = scratch.work / "wheels"
    flat.mkdir(exist_ok=True)
    for package in scratch.lock.packages:
        _link_or_copy(store.wheel(package.sha256, package.file), flat / package.file)
    ready.touch()


def _copy_committed(repository: Path, folder: Path) -> None:
    """The committed spec, lock and patches, without the imports that a build would prove."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    shutil.copytree(repository / "overlays", folder / "overlays")
    shutil.copy2(repository / f"{NAME}.lock", folder)
    document = tomlkit.parse((repository / f"{NAME}.toml").read_text(encoding="utf-8"))
    if "verify" in document:
        document["verify"]["imports"] = []
        document["verify"].pop("kernels", None)  # probes neither
    (folder / f"{NAME}.toml").write_text(tomlkit.dumps(document), encoding="utf-8")


def _link_or_copy(source: Path, target: Path) -> None:
    with contextlib.suppress(FileExistsError):
        try:
            target.hardlink_to(source)
        except OSError as error:
            if error.errno not in {errno.EXDEV, errno.EPERM, errno.EMLINK}:
                raise
            shutil.copyfile(source, target)


def _true_uv(environ: Mapping[str, str]) -> Path:
    """The program itself: a version manager's shim in PATH would cost uv its start."""
    path = find_uv(environ).path
    with path.open("rb") as file:
        if file.read(4) == b"\x7fELF":
            return path
    from builder import process  # noqa: PLC0415 - only where uv is a shim

    asked = process.run([os.fspath(path), "run", "--no-project", "--quiet", "--", "env"], env=environ)
    told = re.search(r"^UV=(.+)$", asked.stdout, re.MULTILINE)
    return Path(told[1]) if told else path


def remove_work(work: Path) -> None:
    """Delete the work folder with its read-only trees."""
    remove_readonly_tree(work)
