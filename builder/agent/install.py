"""Builds the environment of an unpacked bundle on this machine, without envspec: what its `install` starts.

The bundle's own order says what is built; every wheel is hashed on its way into the store, and the tree has to have the order's site digest.

Standard library only, CPython >= 3.10.
"""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.agent.build import Order, build_environment
from builder.agent.files import CHUNK_BYTES, hash_file
from builder.agent.interpreter import interpreter_for
from builder.agent.pythons import keep_python
from builder.agent.sources import is_there
from builder.agent.store import Store
from builder.agent.taking import take_wheel
from envspec.errors import COULD_NOT_LOOK, FOUND_WRONG, EnvspecError
from envspec.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from builder.agent.interpreter import Interpreter
    from builder.agent.objects import ObjectMaker
    from builder.agent.realise import Plan

USAGE = "usage: python3 install [--store FOLDER] [--python PATH] [--no-verify] [--repair]"


class Teller:
    """Says notes, one line each, and no bars."""

    def __init__(self, say: Callable[[str], object]) -> None:
        self._say = say

    def note(self, text: str) -> None:
        """Say one line."""
        self._say(f"  {text}")

    @contextmanager
    def stage(self, label: str, *, total: int, unit: str) -> Iterator[Callable[[int], None]]:
        """Say that a stage begins."""
        self._say(f"  {label}: {total} {unit}")
        yield lambda _units: None


def main(folder: str, arguments: Sequence[str], say: Callable[[str], object], tell: Callable[[str], object]) -> int:
    """Build, and say what came of it.

    Args:
        folder: The unpacked bundle.
        arguments: Of the command line.
        say: Prints a line of what came of it.
        tell: Prints a line of talk: progress and errors.

    Returns:
        The exit code.
    """
    os.umask(0o022)
    if {"--help", "-h"} & set(arguments):
        say(USAGE)
        return 0
    try:
        options = _parse(arguments)
        outcome = install(Path(folder), options, Teller(tell))
    except EnvspecError as error:
        tell(printable(f"error: {error}"))
        return error.exit_code
    except OSError as error:
        tell(printable(f"error: {error}"))
        return COULD_NOT_LOOK
    for name in ("path", "env", "site"):
        say(f"{name:8} {outcome[name]}")
    say(f"profile  generation {outcome['generation']}")
    return 0


def install(folder: Path, options: dict[str, str], teller: Teller) -> dict[str, Any]:
    """Build the environment of a bundle, and make it active.

    Args:
        folder: The unpacked bundle.
        options: `store`, `python`, `repair`, `no-verify`, where they were given.
        teller: Where progress goes.

    Raises:
        EnvspecError: It is damaged, or cannot be built here.
    """
    fields, order = _read_order(folder)
    now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    order = replace(order, now=now, repair="repair" in options, verify="no-verify" not in options)
    store = Store(Path(os.path.abspath(options.get("store") or _default_store())))  # noqa: PTH100 - links stay
    store.ensure()
    interpreter = _interpreter(store, order.plan, fields, folder, options.get("python", ""), teller)
    plan = replace(order.plan, parts=tuple(replace(part, donor="") for part in order.plan.parts))
    outcome = build_environment(
        store,
        replace(order, plan=plan),
        interpreter,
        environ=os.environ,
        provide=lambda maker: _provide(store, plan, fields["sizes"], folder, maker),
        reporter=teller,
    )
    return outcome.to_json()


def _read_order(folder: Path) -> tuple[dict[str, Any], Order]:
    """What a bundle is to build.

    Raises:
        EnvspecError: It is damaged, or was not written to its end.
    """
    index = _read_json(folder / "bundle.json")
    try:
        digests = {row["path"]: row["sha256"] for row in index["members"]}
    except (KeyError, TypeError) as error:
        raise EnvspecError(
            f"`{folder / 'bundle.json'}` is not the index of a whole bundle",
            hint="copy the bundle anew, or export it again if that did not come to its end",
            exit_code=FOUND_WRONG,
        ) from error
    if hash_file(os.fspath(folder / "order.json")) != digests.get("order.json"):
        raise EnvspecError("`order.json` is not the one of this bundle", hint="copy it anew", exit_code=FOUND_WRONG)
    fields = _read_json(folder / "order.json")
    try:
        fields["sizes"] = {str(sha256): int(size) for sha256, size in fields["sizes"].items()}
        for name in ("exact", "platform", "archive", "archive_sha256"):
            fields[name] = str(fields[name])
        return fields, Order.from_json(fields["order"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise EnvspecError(
            "`order.json` is not what this bundle's agent reads", hint="copy the bundle anew", exit_code=FOUND_WRONG
        ) from error


def _provide(store: Store, plan: Plan, sizes: dict[str, int], folder: Path, maker: ObjectMaker) -> None:
    for part in plan.parts:
        if maker.is_tree_there(part):
            maker.add(part, None)
            continue
        wheel = store.wheel(part.sha256, part.file)
        taken = not is_there(wheel, sizes[part.sha256])
        if taken:
            source = folder / "wheels" / part.sha256 / part.file
            size = sizes[part.sha256]
            take_wheel(store, part.sha256, part.file, size, _chunks(source, size), source=os.fspath(source))
        maker.add(part, wheel, checked=taken)


def _interpreter(
    store: Store, plan: Plan, fields: dict[str, Any], folder: Path, only: str, teller: Teller
) -> Interpreter:
    """The Python of the environment: one that is here, else that of the bundle."""
    exact, platform = fields["exact"], fields["platform"]
    if only and not os.path.isfile(only):  # noqa: PTH113
        raise EnvspecError(f"`{only}` is no program", input_name="--python")
    try:
        return interpreter_for(store, plan.python, exact, platform=platform, environ=os.environ, only=only)
    except EnvspecError:
        if not fields["archive"] or only:
            raise
    sha256 = fields["archive_sha256"]

    def archive() -> Path:
        path = folder / str(fields["archive"])
        if (found := hash_file(os.fspath(path))) != sha256:
            raise EnvspecError(f"`{path}` has sha256 {found}, and should have {sha256}", exit_code=FOUND_WRONG)
        return path

    path = keep_python(store, sha256, archive, plan.python, exact, note=teller.note)
    return interpreter_for(store, plan.python, exact, platform=platform, environ=os.environ, only=os.fspath(path))


def _chunks(path: Path, size: int) -> Iterator[bytes]:
    """A file, and no more of it than it should have."""
    with path.open("rb", buffering=0) as file:
        while size >= 0 and (chunk := file.read(CHUNK_BYTES)):
            size -= len(chunk)
            yield chunk


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise EnvspecError(f"`{path}` is damaged", hint="copy the bundle anew", exit_code=FOUND_WRONG) from error
    if not isinstance(value, dict):
        raise EnvspecError(f"`{path}` is damaged", hint="copy the bundle anew", exit_code=FOUND_WRONG)
    return value


def _parse(arguments: Sequence[str]) -> dict[str, str]:
    options: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if word in {"--no-verify", "--repair"}:
            options[word[2:]] = "yes"
        elif word in {"--store", "--python"} and rest:
            options[word[2:]] = rest.pop(0)
        elif word in {"--store", "--python"}:
            raise EnvspecError(f"`{word}` needs a path", hint=USAGE)
        else:
            raise EnvspecError(f"`{word}` is no option", hint=USAGE)
    return options


def _default_store() -> str:
    if os.environ.get("ENVSPEC_STORE"):
        return os.environ["ENVSPEC_STORE"]
    if os.geteuid() == 0:
        return "/opt/envspec"
    data = os.environ.get("XDG_DATA_HOME") or os.path.join(os.path.expanduser("~"), ".local", "share")  # noqa: PTH111, PTH118
    return os.path.join(data, "envspec")  # noqa: PTH118
