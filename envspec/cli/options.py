"""Options that several verbs share, and what they mean."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from envspec.errors import EnvspecError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from envspec.lock import Lock
    from envspec.spec import Spec

SpecOption = Annotated[
    Path | None,
    Parameter(name="--spec", help="The spec. Default: the only *.toml here that starts with `envspec = 1`."),
]
StoreOption = Annotated[
    Path | None,
    Parameter(
        name="--store",
        env_var="ENVSPEC_STORE",
        help="The store. Default: /opt/envspec for root, else ~/.local/share/envspec.",
    ),
]
JsonOption = Annotated[bool, Parameter(name="--json", negative=(), help="Print one JSON object.")]
StrictOption = Annotated[bool, Parameter(name="--strict", negative=(), help="Treat every warning as an error.")]
QuietOption = Annotated[bool, Parameter(name=("--quiet", "-q"), negative=(), help="Show no progress.")]

_SPEC_MARK = re.compile(r"^envspec\s*=", re.MULTILINE)
_HEAD_BYTES = 4096
_UNWRITABLE = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """A spec and the lock beside it, as bytes: parsing comes later, if at all."""

    spec_path: Path
    lock_path: Path
    spec_bytes: bytes
    lock_bytes: bytes | None
    """None if there is no lock."""

    @property
    def spec_name(self) -> str:
        """For messages."""
        return self.spec_path.name

    @property
    def lock_name(self) -> str:
        """For messages."""
        return self.lock_path.name

    def parse_spec(self) -> Spec:
        """The spec.

        Raises:
            EnvspecError: It is not one; every problem is listed.
        """
        from envspec.spec_toml import parse_spec  # noqa: PLC0415

        return parse_spec(_decode(self.spec_bytes, self.spec_name), input_name=self.spec_name)

    def parse_lock(self) -> Lock:
        """The lock.

        Raises:
            EnvspecError: There is none, or it is damaged.
        """
        from envspec.lock_toml import parse_lock  # noqa: PLC0415

        if self.lock_bytes is None:
            raise EnvspecError(
                f"there is no lock beside `{self.spec_name}`",
                input_name=self.lock_name,
                hint="make one with `envspec lock`",
            )
        try:
            return parse_lock(_decode(self.lock_bytes, self.lock_name), input_name=self.lock_name)
        except EnvspecError as error:
            # `envspec lock` takes its versions from the lock so far, so it refuses a damaged one like every other verb.
            if not error.hint or "envspec lock" in error.hint:
                error.hint = (
                    "restore it from version control, or delete it: `envspec lock` then decides every version anew"
                )
            raise


def not_empty(_type: object, value: object) -> None:
    """Refuse an option that was given as nothing: `--host "$NAME"` of a variable that is not set would mean this machine.

    Raises:
        ValueError: It is empty.
    """
    if value == "":
        raise ValueError("it is empty")


def read_inputs(spec: Path | None) -> Inputs:
    """Find and read the spec and its lock.

    Args:
        spec: As given by `--spec`; None to look in the current folder.

    Raises:
        EnvspecError: There is no spec, or several.
    """
    path = spec if spec is not None else find_spec(Path())
    check_path(path, "the spec")
    try:
        spec_bytes = path.read_bytes()
    except OSError as error:
        raise EnvspecError(
            f"the spec `{path}` cannot be read: {error.strerror}", hint="give the spec with `--spec PATH`"
        ) from error
    lock_path = path.with_suffix(".lock")
    if lock_path == path:
        raise EnvspecError(f"`{path}` is the name of a lock, not of a spec", hint=f"give `{path.with_suffix('.toml')}`")
    try:
        lock_bytes = lock_path.read_bytes()
    except FileNotFoundError:
        lock_bytes = None
    return Inputs(spec_path=path, lock_path=lock_path, spec_bytes=spec_bytes, lock_bytes=lock_bytes)


def find_spec(folder: Path) -> Path:
    """The only spec of a folder.

    Raises:
        EnvspecError: There is none, or there are several.
    """
    found = [path for path in sorted(folder.glob("*.toml")) if _is_spec(path)]
    if not found:
        raise EnvspecError(
            "no spec here: no *.toml in this folder starts with `envspec = 1`",
            hint="give one with `--spec PATH`, or change to its folder",
        )
    if len(found) > 1:
        names = ", ".join(f"`{path.name}`" for path in found)
        raise EnvspecError(f"{len(found)} specs here: {names}", hint="choose one with `--spec PATH`")
    return found[0]


def _is_spec(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return is_spec_head(file.read(_HEAD_BYTES))
    except OSError:
        return False


def is_spec_head(head: bytes) -> bool:
    """Whether the first bytes of a file are those of a spec."""
    before_tables = re.split(r"^\s*\[", head.decode("utf-8", "replace"), maxsplit=1, flags=re.MULTILINE)[0]
    return _SPEC_MARK.search(before_tables) is not None


def store_root(store: Path | None, environ: Mapping[str, str] = os.environ) -> Path:
    """Folder of the store: as given, else that of the kind of user; absolute.

    Args:
        store: As given by `--store` or ENVSPEC_STORE.
        environ: This process's environment.

    Raises:
        EnvspecError: The path cannot be that of a store.
    """
    if store is not None:
        root = Path(os.path.abspath(store))  # noqa: PTH100 - links stay as they are
    elif os.geteuid() == 0:
        root = Path("/opt/envspec")
    else:
        data = environ.get("XDG_DATA_HOME")
        root = Path(data) / "envspec" if data else Path.home() / ".local" / "share" / "envspec"
    check_path(root, "the store")
    if os.pathsep in os.fspath(root):
        raise EnvspecError(
            f"the path of the store, `{root}`, has a `{os.pathsep}`, which separates the folders of PATH",
            hint="give another with `--store PATH`",
        )
    return root


def check_path(path: Path, subject: str) -> None:
    """See that a path can be written down: in records, scripts and messages.

    Args:
        path: As given.
        subject: What it is of, for the message.

    Raises:
        EnvspecError: It is not UTF-8, or has control characters.
    """
    text = os.fspath(path)
    if _UNWRITABLE.search(text):
        raise EnvspecError(f"the path of {subject} is not UTF-8, or has control characters: {text!a}")


def _decode(raw: bytes, name: str) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise EnvspecError(
            f"byte {error.start} is not UTF-8", input_name=name, hint="is this the right file?"
        ) from error
