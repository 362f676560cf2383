"""`envspec lock`: decide an environment and write it down."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from envspec.cli.options import (
    Inputs,
    JsonOption,
    QuietOption,
    SpecOption,
    StoreOption,
    StrictOption,
    read_inputs,
    store_root,
)
from envspec.cli.output import make_reporter, say, say_json, tell, tell_verdict
from envspec.errors import FOUND_WRONG, EnvspecError
from envspec.layout import normalise_name

if TYPE_CHECKING:
    from pathlib import Path

    from builder.locking import LockOutcome
    from envspec.lock import Lock
    from envspec.spec import Spec


def lock(
    *,
    check: Annotated[
        bool,
        Parameter(
            name="--check",
            negative=(),
            help="Only compare: exit 1 if the lock is stale, or a field of it is not what the spec, the patches, "
            "or wheels that were measured here say. No network, nothing is written.",
        ),
    ] = False,
    upgrade: Annotated[
        tuple[str, ...],
        Parameter(
            name="--upgrade",
            negative=(),
            help="Let this package move to its newest version; a pin in the spec moves along. Repeatable.",
        ),
    ] = (),
    renew: Annotated[
        bool,
        Parameter(
            name="--renew",
            negative=(),
            help="Judge the locked wheels anew, though neither the spec nor a patch changed; the wheels stay.",
        ),
    ] = False,
    strict: StrictOption = False,
    spec: SpecOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> int:
    """Resolve, patch, measure, check, and write the lock beside the spec.

    Nothing is written if a check finds an error. What is locked already stays as it is where the spec allows it.
    """
    inputs = read_inputs(spec)
    wanted = inputs.parse_spec()
    if check and (upgrade or renew):
        changing = "--upgrade" if upgrade else "--renew"
        raise EnvspecError(f"`--check` changes nothing, `{changing}` does", hint="give one of them")
    if check:
        return _check(inputs, wanted, store_root(store), as_json=as_json)
    from builder.agent.store import Store, write_atomically  # noqa: PLC0415
    from builder.locking import ChecksFailed, LockRequest, make_lock  # noqa: PLC0415
    from envspec.lock_toml import dump_lock, parse_lock  # noqa: PLC0415

    upgrades = frozenset(normalise_name(name) for name in upgrade)
    previous = _previous(inputs)
    request = LockRequest(
        spec=_unpinned(wanted, upgrades),
        spec_name=inputs.spec_name,
        folder=inputs.spec_path.parent,
        previous=previous,
        upgrade=_known(upgrades, wanted, previous, inputs),
        strict=strict,
        renew=renew,
        store=Store(store_root(store)),
        environ=os.environ,
    )
    try:
        outcome = make_lock(request, make_reporter(quiet=quiet))
        spec_text, outcome = _pinned_again(inputs, wanted, upgrades, outcome)
    except ChecksFailed as failure:
        tell_verdict(failure.findings)
        tell(f"error: {failure.message}")
        if as_json:
            say_json(
                {
                    "lock": os.fspath(inputs.lock_path),
                    "env": None,
                    "site": None,
                    "written": False,
                    "findings": [finding.to_json() for finding in failure.findings],
                }
            )
        return failure.exit_code
    text = dump_lock(outcome.lock)
    parse_lock(text, input_name=inputs.lock_name)  # what could not be read back must not be written
    written = text.encode() != inputs.lock_bytes
    if written:
        if spec_text is not None:
            write_atomically(inputs.spec_path, spec_text)
        write_atomically(inputs.lock_path, text)
    _report(inputs, outcome, written=written, as_json=as_json)
    return 0


def _report(inputs: Inputs, outcome: LockOutcome, *, written: bool, as_json: bool) -> None:
    decided = outcome.lock
    if as_json:
        findings = [*outcome.findings, *(finding for finding, _ in outcome.waived)]
        say_json(
            {
                "lock": os.fspath(inputs.lock_path),
                "env": decided.env,
                "site": decided.site,
                "written": written,
                "findings": [finding.to_json() for finding in findings],
            }
        )
        return
    tell_verdict(outcome.findings)
    say(f"{inputs.lock_path}  {'written' if written else 'unchanged'}: {_count(decided)}")
    say(f"env   {decided.env}")
    say(f"site  {decided.site}")


def _check(inputs: Inputs, wanted: Spec, store: Path, *, as_json: bool) -> int:
    from builder.locking import read_all_series, stale_reasons  # noqa: PLC0415

    locked = _parse(inputs, store)
    reasons = stale_reasons(wanted, locked, read_all_series(wanted, inputs.spec_path.parent))
    edited: tuple[str, ...] = ()
    unmeasured: tuple[str, ...] = ()
    if not reasons:
        edited, unmeasured = _prove(wanted, locked, store)
    if as_json:
        say_json(
            {
                "lock": os.fspath(inputs.lock_path),
                "env": locked.env,
                "site": locked.site,
                "written": False,
                "current": not reasons and not edited,
                "reasons": [*reasons, *edited],
                "unmeasured": list(unmeasured),
                "findings": [],
            }
        )
    elif not reasons and not edited:
        say(f"{inputs.lock_path}  current: {_count(locked)}")
    if unmeasured and not edited:
        tell(
            f"note: {len(unmeasured)} of {_count(locked)} were never measured here, so that what the lock says of their "
            "content was not compared; `envspec check` measures them"
        )
    for reason in reasons:
        tell(f"stale: {reason}")
    for reason in edited:
        tell(f"edited: {reason}")
    if reasons:
        tell("hint: run `envspec lock`")
    if edited:
        tell("hint: restore the lock from version control, or run `envspec lock --renew`, which judges its wheels anew")
    return FOUND_WRONG if reasons or edited else 0


def _parse(inputs: Inputs, store: Path) -> Lock:
    """The lock. Where only its env id contradicts it, the wheels of this machine may tell which digest was edited."""
    try:
        return inputs.parse_lock()
    except EnvspecError as error:
        if [each.where.partition(" ")[0] for each in error.problems] == ["env"] and inputs.lock_bytes is not None:
            from builder.lock_proving import known_otherwise  # noqa: PLC0415

            error.problems += known_otherwise(inputs.lock_bytes.decode("utf-8"), store / "wheels")
        raise


def _prove(wanted: Spec, locked: Lock, store: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The fields of a lock that are not what its wheels say, and the packages whose wheels nobody has measured here."""
    facts = store / "facts"
    if not facts.is_dir():
        return (), tuple(package.name for package in locked.packages)
    import gc  # noqa: PLC0415

    from builder.lock_proving import LockProver  # noqa: PLC0415

    gc.disable()  # as in `envspec check`
    proof = LockProver(wanted, facts).prove(locked)
    return tuple(f"`{each.where}`: {each.message}" for each in proof.problems), proof.unmeasured


def _count(lock: Lock) -> str:
    return f"{len(lock.packages)} {'packages' if len(lock.packages) != 1 else 'package'}"


def _previous(inputs: Inputs) -> Lock | None:
    return None if inputs.lock_bytes is None else inputs.parse_lock()


def _known(upgrades: frozenset[str], wanted: Spec, previous: Lock | None, inputs: Inputs) -> frozenset[str]:
    """The upgrades, if every one names a package that there is."""
    names = {requirement.name for requirement in wanted.packages}
    if previous is not None:
        names |= {package.name for package in previous.packages}
    unknown = sorted(upgrades - names)
    if unknown:
        import difflib  # noqa: PLC0415

        near = difflib.get_close_matches(unknown[0], names, n=1)
        raise EnvspecError(
            f"there is no package `{unknown[0]}` to upgrade",
            input_name=inputs.spec_name,
            hint=f"did you mean `{near[0]}`?" if near else "it is neither in [packages] nor in the lock",
        )
    return upgrades


def _unpinned(wanted: Spec, upgrades: frozenset[str]) -> Spec:
    """The spec without the exact pins of the packages that are to move."""
    return replace(
        wanted,
        packages=tuple(
            replace(requirement, specifier="")
            if requirement.name in upgrades and _is_pin(requirement.specifier)
            else requirement
            for requirement in wanted.packages
        ),
    )


def _is_pin(specifier: str) -> bool:
    return specifier.startswith("==") and "," not in specifier and "*" not in specifier


def _pinned_again(
    inputs: Inputs, wanted: Spec, upgrades: frozenset[str], outcome: LockOutcome
) -> tuple[str | None, LockOutcome]:
    """The spec's text with its pins moved, and the lock that belongs to that spec."""
    from envspec.spec import spec_digest  # noqa: PLC0415
    from envspec.spec_edit import set_specifier  # noqa: PLC0415
    from envspec.spec_toml import parse_spec  # noqa: PLC0415

    moved = [each.name for each in wanted.packages if each.name in upgrades and _is_pin(each.specifier)]
    if not moved:
        return None, outcome
    versions = {package.name: package.version for package in outcome.lock.packages}
    text = inputs.spec_bytes.decode()
    for name in moved:
        text = set_specifier(text, name, f"=={versions[name]}", input_name=inputs.spec_name)
    digest = spec_digest(parse_spec(text, input_name=inputs.spec_name))
    return text, replace(outcome, lock=replace(outcome.lock, spec_sha256=digest))
