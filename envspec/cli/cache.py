"""`envspec cache`: wheels of the lock into caches and from them, what they have, and what of it can go."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path  # noqa: TC003 - the command line reads the annotations
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from envspec.cli.hosts import amount
from envspec.cli.options import JsonOption, QuietOption, SpecOption, StoreOption, read_inputs, store_root
from envspec.cli.output import error_to_json, make_reporter, print_error, say, say_json
from envspec.errors import COULD_NOT_LOOK, FOUND_WRONG, EnvspecError
from envspec.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from builder.building import BuildRequest
    from builder.caches.checking import CacheGarbage, Checked
    from builder.caches.protocol import Cache, CachedWheel, LockFile
    from builder.caches.pushing import Pushed
    from envspec.cli.options import Inputs
    from envspec.lock import Lock
    from envspec.spec import CacheSpec, Spec

OneName = Annotated[str | None, Parameter(help="Name of a cache. Default: the only one.")]
SomeNames = Annotated[list[str] | None, Parameter(help="Names of caches. Default: all, in their order.")]
SHOWN = 20


def push(
    name: OneName = None,
    /,
    *,
    spec: SpecOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> int:
    """Put the wheels of the lock into a cache, patched ones included: only what it lacks.

    What this machine lacks is fetched and patched first. Each wheel is hashed before it goes. A push that was interrupted is gone on with.
    """
    os.umask(0o022)
    from builder.building import check_overlays  # noqa: PLC0415
    from builder.caches.pushing import push as push_to  # noqa: PLC0415
    from builder.supplying import HostSupply  # noqa: PLC0415

    inputs, request = _request(spec, store)
    chosen = _only(_caches(request.spec), name)
    series = check_overlays(request.lock, request.folder, request.lock_name)
    reporter = make_reporter(quiet=quiet)
    with _opened(chosen, request.spec) as cache, HostSupply(request, series, reporter) as supply:
        pushed = push_to(cache, _lock_file(inputs, request.lock), supply, reporter)
    if as_json:
        say_json({"caches": [_pushed_to_json(pushed)]})
    else:
        sent = amount(sum(wheel.size for wheel in pushed.sent))
        say(f"{pushed.cache}  {len(pushed.sent)} of {len(pushed.wheels)} wheels sent, {sent}; it has all of them")
    return 0


def pull(
    name: SomeNames = None,
    /,
    *,
    spec: SpecOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> int:
    """Bring the wheels of the lock from caches into the store; no index is asked, and nothing is built.

    The exit code is 1 if no cache gives one of them.
    """
    os.umask(0o022)
    from builder.caches.kept_locks import wheels_of  # noqa: PLC0415
    from builder.caches.pushing import pull as pull_from  # noqa: PLC0415

    _, request = _request(spec, store)
    chosen = _several(_caches(request.spec), name)
    pulled = pull_from(chosen, wheels_of(request.lock), request, make_reporter(quiet=quiet))
    if as_json:
        say_json(
            {
                "wheels": len(pulled.wheels),
                "pulled": [_wheel_to_json(wheel) for wheel in pulled.got],
                "pulled_bytes": sum(wheel.size for wheel in pulled.got),
                "missing": [_wheel_to_json(wheel) for wheel in pulled.missing],
            }
        )
    else:
        got = amount(sum(wheel.size for wheel in pulled.got))
        there = len(pulled.wheels) - len(pulled.got) - len(pulled.missing)
        say(f"{len(pulled.got)} of {len(pulled.wheels)} wheels pulled, {got}; {there} were there")
        _say_wheels("missing", pulled.missing)
    return FOUND_WRONG if pulled.missing else 0


def check(
    name: SomeNames = None,
    /,
    *,
    deep: Annotated[
        bool, Parameter(name="--deep", negative=(), help="Read every byte, and compare its sha256.")
    ] = False,
    spec: SpecOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> int:
    """Say what caches have of the lock: what is there, what is missing, what is damaged.

    The exit code is 1 if anything is missing or damaged, and 2 if a cache cannot be asked.
    """
    from builder.caches.checking import check as look_at  # noqa: PLC0415
    from builder.caches.kept_locks import wheels_of  # noqa: PLC0415

    _, request = _request(spec, store)
    wheels = wheels_of(request.lock)
    reporter = make_reporter(quiet=quiet)
    records: list[dict[str, Any]] = []
    code = 0
    for each in _several(_caches(request.spec), name):
        try:
            with _opened(each, request.spec) as cache:
                checked = look_at(cache, wheels, deep=deep, reporter=reporter)
        except EnvspecError as error:
            code = COULD_NOT_LOOK
            print_error(error, as_json=False)
            records.append({"cache": each.name, "error": error_to_json(error)})
            continue
        if (checked.missing or checked.damaged) and code == 0:
            code = FOUND_WRONG
        records.append(_checked_to_json(checked))
        if not as_json:
            _say_checked(checked)
    if as_json:
        say_json({"caches": records})
    return code


def gc(
    name: OneName = None,
    /,
    *,
    keep: Annotated[
        int | None,
        Parameter(
            name="--keep",
            validator=Number(gte=0),
            help="Forget all locks of this environment in the cache but the newest N. Default: none is forgotten.",
        ),
    ] = None,
    lock: Annotated[
        list[Path] | None,
        Parameter(name="--lock", negative=(), help="A further lock whose wheels stay; may be given several times."),
    ] = None,
    dry_run: Annotated[
        bool, Parameter(name="--dry-run", negative=(), help="Say what would be removed, and remove nothing.")
    ] = False,
    spec: SpecOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> int:
    """Remove wheels from a cache that no lock names: neither one that was pushed there, nor the one here.

    Locks of other environments in the cache always stay, with their wheels.
    """
    from builder.caches.checking import find_cache_garbage  # noqa: PLC0415
    from builder.caches.kept_locks import wheels_of  # noqa: PLC0415
    from builder.caches.together import apart  # noqa: PLC0415

    inputs = read_inputs(spec)
    store_root(store)
    wanted, here = inputs.parse_spec(), inputs.parse_lock()
    chosen = _only(_caches(wanted), name)
    locks = [here, *(_read_lock(path) for path in lock or ())]
    needed = frozenset(wheel.sha256 for each in locks for wheel in wheels_of(each))
    reporter = make_reporter(quiet=quiet)
    with _opened(chosen, wanted) as cache:
        reporter.note(f"looking at {cache.name}")
        garbage = apart(lambda: find_cache_garbage(cache, needed, here.name, keep))
        if not dry_run:
            apart(lambda: cache.delete(garbage.wheels, garbage.locks))
    if not as_json:
        _say_garbage(garbage, dry_run=dry_run)
    else:
        say_json(
            {
                "cache": chosen.name,
                "dry_run": dry_run,
                "removed": [_wheel_to_json(wheel) for wheel in garbage.wheels],
                "freed_bytes": garbage.freed_bytes,
                "forgotten": [each.id for each in garbage.locks],
                "kept_wheels": garbage.kept_wheels,
                "kept_locks": garbage.kept_locks,
            }
        )
    return 0


def _request(spec: Path | None, store: Path | None) -> tuple[Inputs, BuildRequest]:
    from builder.agent.store import Store  # noqa: PLC0415
    from envspec.cli.build import build_request  # noqa: PLC0415

    inputs = read_inputs(spec)
    return inputs, build_request(inputs, Store(store_root(store)), "", "", repair=False)


def _caches(spec: Spec) -> tuple[CacheSpec, ...]:
    from builder.caches.opening import configured_caches  # noqa: PLC0415

    found = configured_caches(spec, os.environ)
    if not found:
        raise EnvspecError(
            "no cache is declared",
            hint="add `[[caches]]` to the spec, or to `envspec/config.toml` of your configuration",
        )
    return found


def _only(caches: Sequence[CacheSpec], name: str | None) -> CacheSpec:
    if name is not None:
        return _several(caches, [name])[0]
    if len(caches) > 1:
        listed = ", ".join(f"`{each.name}`" for each in caches)
        raise EnvspecError(f"{len(caches)} caches are declared: {listed}", hint="name one of them")
    return caches[0]


def _several(caches: Sequence[CacheSpec], names: list[str] | None) -> tuple[CacheSpec, ...]:
    known = {each.name: each for each in caches}
    for name in names or ():
        if name not in known:
            listed = ", ".join(f"`{each}`" for each in known)
            raise EnvspecError(f"no cache `{name}` is declared", hint=f"there are {listed}")
    return tuple(each for each in caches if not names or each.name in names)


@contextlib.contextmanager
def _opened(chosen: CacheSpec, spec: Spec) -> Iterator[Cache]:
    from builder.caches.opening import open_cache  # noqa: PLC0415

    cache = open_cache(chosen, spec, os.environ)
    try:
        yield cache
    finally:
        cache.close()


def _lock_file(inputs: Inputs, lock: Lock) -> LockFile:
    from builder.caches.kept_locks import lock_file  # noqa: PLC0415

    return lock_file(lock, inputs.lock_name, inputs.lock_bytes or b"")


def _read_lock(path: Path) -> Lock:
    from envspec.lock_toml import parse_lock  # noqa: PLC0415

    try:
        text = path.read_bytes().decode("utf-8", "surrogateescape")
    except OSError as error:
        raise EnvspecError(f"the lock `{path}` cannot be read: {error.strerror}") from error
    return parse_lock(text, input_name=path.name)


def _say_checked(checked: Checked) -> None:
    how = "every byte was read" if checked.deep else "by name and size"
    total = len(checked.there) + len(checked.missing) + len(checked.damaged)
    say(f"{checked.cache}  {len(checked.there)} of {total} wheels are there ({how})")
    _say_wheels("missing", checked.missing)
    for each in checked.damaged[:SHOWN]:
        say(f"  damaged  {each.wheel.file}: {each.reason}")
    if len(checked.damaged) > SHOWN:
        say(f"  and {len(checked.damaged) - SHOWN} more, which `--json` has")


def _say_wheels(word: str, wheels: Sequence[CachedWheel]) -> None:
    for wheel in wheels[:SHOWN]:
        say(f"  {word}  {wheel.file}")
    if len(wheels) > SHOWN:
        say(f"  and {len(wheels) - SHOWN} more, which `--json` has")


def _say_garbage(garbage: CacheGarbage, *, dry_run: bool) -> None:
    for wheel in garbage.wheels:
        say(f"  {printable(wheel.file) or wheel.sha256}")
    for lock in garbage.locks:
        say(f"  lock {lock.id}")
    verb = "would be removed" if dry_run else "are removed"
    kept = f"{garbage.kept_wheels} wheels of {garbage.kept_locks} locks stay"
    say(f"{len(garbage.wheels)} wheels {verb}, {amount(garbage.freed_bytes)}; {kept}")


def _pushed_to_json(pushed: Pushed) -> dict[str, Any]:
    return {
        "cache": pushed.cache,
        "kind": pushed.kind,
        "wheels": len(pushed.wheels),
        "sent": [_wheel_to_json(wheel) for wheel in pushed.sent],
        "sent_bytes": sum(wheel.size for wheel in pushed.sent),
    }


def _checked_to_json(checked: Checked) -> dict[str, Any]:
    return {
        "cache": checked.cache,
        "kind": checked.kind,
        "deep": checked.deep,
        "there": len(checked.there),
        "missing": [_wheel_to_json(wheel) for wheel in checked.missing],
        "damaged": [{**_wheel_to_json(each.wheel), "reason": each.reason} for each in checked.damaged],
    }


def _wheel_to_json(wheel: CachedWheel) -> dict[str, Any]:
    return {"file": wheel.file or None, "sha256": wheel.sha256, "size": wheel.size}
