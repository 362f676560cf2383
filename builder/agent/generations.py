"""Which environment is active: profiles and their generations.

A profile is a link to one of its numbered generations, a generation a link to an environment. Activation makes the next generation and swaps
the profile by rename, so that whoever looks sees the old one or the new one, never none.

Standard library only, CPython >= 3.10.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass

from builder.agent.store import Store, make_folder, read_json, sync_folder, write_atomically
from envspec.errors import EnvspecError

TYPE_CHECKING = False  # that of `typing` costs an agent 2 of its 30 ms
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any


@dataclass(frozen=True)
class Generation:
    """One activation of an environment."""

    name: str
    """Of the profile."""

    number: int
    env: str
    site: str
    created: str
    """RFC 3339 in UTC."""

    lock_sha256: str
    """Of the lock's bytes that it was built from."""

    spec_sha256: str
    """Of the spec's bytes; empty if it was built from a lock alone."""

    active: bool
    path: Path
    """Of the environment."""


def list_generations(store: Store, name: str) -> tuple[Generation, ...]:
    """All generations of a profile, oldest first; empty if there is no such profile."""
    folder = store.root / "generations" / name
    active = active_number(store, name)
    found: list[Generation] = []
    try:
        entries = sorted(folder.glob("*.json"))
    except OSError:
        return ()
    for entry in entries:
        if not entry.stem.isdecimal():
            continue
        fields = read_json(entry)
        generation = None if fields is None else _generation(store, name, int(entry.stem), fields, active)
        if generation is not None:
            found.append(generation)
    return tuple(sorted(found, key=lambda generation: generation.number))


def active_number(store: Store, name: str) -> int:
    """Number of a profile's active generation; 0 if there is none."""
    try:
        target = os.readlink(store.root / "profiles" / name)  # noqa: PTH115 - text
    except OSError:
        return 0
    number = target.rpartition("/")[2]
    return int(number) if number.isdecimal() else 0


def active_generation(store: Store, name: str) -> Generation | None:
    """The active generation of a profile: a few small reads, so that a build of what is there already is quick."""
    number = active_number(store, name)
    fields = read_json(store.root / "generations" / name / f"{number}.json") if number else None
    return None if fields is None else _generation(store, name, number, fields, number)


def _generation(store: Store, name: str, number: int, fields: dict[str, Any], active: int) -> Generation | None:
    try:
        return Generation(
            name=name,
            number=number,
            env=fields["env"],
            site=fields["site"],
            created=fields["created"],
            lock_sha256=fields["lock_sha256"],
            spec_sha256=fields["spec_sha256"],
            active=number == active,
            path=store.env(fields["env"], name),
        )
    except (KeyError, TypeError):
        return None


def activate(
    store: Store, name: str, *, env: str, site: str, lock_sha256: str, spec_sha256: str, created: str
) -> Generation:
    """Make an environment the active one of its profile.

    If it is active already, its generation stays and only learns of the lock that it equals.

    Args:
        store: The store.
        name: Of the profile.
        env: The env id; the environment is in the store, complete and proven.
        site: Its site digest.
        lock_sha256: Of the lock's bytes.
        spec_sha256: Of the spec's bytes.
        created: Now, RFC 3339 in UTC.

    Raises:
        OSError: The store cannot be written.
    """
    with store.lock(f"profile-{_lock_part(name)}"):
        current = active_generation(store, name)
        folder = store.root / "generations" / name
        make_folder(folder)
        fields = {"env": env, "site": site, "created": created, "lock_sha256": lock_sha256, "spec_sha256": spec_sha256}
        if current is not None and current.env == env:
            fields["created"] = current.created
            write_atomically(folder / f"{current.number}.json", json.dumps(fields, sort_keys=True) + "\n")
            number = current.number
        else:
            taken = [int(entry.stem) for entry in folder.glob("*.json") if entry.stem.isdecimal()]
            number = max(taken, default=0) + 1
            _replace_link(folder / str(number), f"../../envs/{env}-{name}")
            write_atomically(folder / f"{number}.json", json.dumps(fields, sort_keys=True) + "\n")
            _switch(store, name, number)
    generation = _generation(store, name, number, fields, number)
    if generation is None:
        raise AssertionError("a generation that was just written can be read")
    return generation


def roll_back(store: Store, name: str, number: int | None) -> Generation:
    """Make an earlier generation the active one.

    Args:
        store: The store.
        name: Of the profile.
        number: Which generation; None for the one before the active one.

    Raises:
        EnvspecError: There is no such generation, or its environment is gone.
    """
    with store.lock("gc", shared=True), store.lock(f"profile-{_lock_part(name)}"):
        generations = list_generations(store, name)
        active = active_number(store, name)
        if number is None:
            earlier = [generation for generation in generations if generation.number < active]
            if not earlier:
                raise EnvspecError(
                    f"`{name}` has no generation before {active or 'the first build'}",
                    hint="`envspec generations` lists what there is",
                )
            chosen = earlier[-1]
        else:
            matching = [generation for generation in generations if generation.number == number]
            if not matching:
                there = ", ".join(str(generation.number) for generation in generations) or "none"
                raise EnvspecError(
                    f"`{name}` has no generation {number}; there is: {there}", hint="`envspec generations` lists them"
                )
            chosen = matching[0]
        if not chosen.path.is_dir():
            raise EnvspecError(
                f"the environment of generation {chosen.number}, `{chosen.path}`, is gone",
                hint="check out the lock of that time and build it again",
            )
        _switch(store, name, chosen.number)
    return next(each for each in list_generations(store, name) if each.number == chosen.number)


def remove_generation(store: Store, name: str, number: int) -> None:
    """Forget a generation that is not active; the environment stays until gc."""
    folder = store.root / "generations" / name
    (folder / f"{number}.json").unlink(missing_ok=True)
    with contextlib.suppress(FileNotFoundError):
        (folder / str(number)).unlink()


def profile_names(store: Store) -> tuple[str, ...]:
    """Every profile that has generations."""
    try:
        return tuple(sorted(entry.name for entry in (store.root / "generations").iterdir() if entry.is_dir()))
    except FileNotFoundError:
        return ()


def _switch(store: Store, name: str, number: int) -> None:
    _replace_link(store.root / "profiles" / name, f"../generations/{name}/{number}")


def _replace_link(link: Path, target: str) -> None:
    temporary = link.with_name(
        f".{link.name}.new"
    )  # one name: the holder of the profile's lock removes what a killed one left
    with contextlib.suppress(FileNotFoundError):
        temporary.unlink()
    temporary.symlink_to(target)
    temporary.replace(link)
    sync_folder(link.parent)


def _lock_part(name: str) -> str:
    """A profile's name as part of a lock's name."""
    return name.replace("_", "__").replace(".", "_-")
