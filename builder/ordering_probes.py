"""What a person asks for, and what the spec names -> which probes a verification runs."""

from __future__ import annotations

import difflib
import secrets
from typing import TYPE_CHECKING

from builder.agent.probe_scripts import ProbeOrder, read_scripts
from envspec.errors import EnvspecError, Problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from envspec.spec import Spec

SEED_BITS = 53
"""A seed is a number that every reader of JSON keeps."""


def order_probes(
    spec: Spec, *, full: bool = False, only: Sequence[str] = (), seed: int | None = None, compile_too: bool = False
) -> ProbeOrder | None:
    """Which probes a verification runs.

    Args:
        spec: The spec.
        full: Whether the full set is meant.
        only: `ID` or `ID:CASE`, as given; then these are run and no others.
        seed: Of the random inputs; None for a fresh one.
        compile_too: Whether what can be compiled without a GPU is, where there is none.

    Returns:
        None if nothing is to be run.

    Raises:
        EnvspecError: A probe that is named does not exist.
    """
    if not only and not full and not spec.verify.kernels:
        return None
    asked: dict[str, tuple[str, ...]] = {}
    for word in only:
        name, _, case = word.partition(":")
        asked[name] = (*asked.get(name, ()), *((case,) if case else ()))
    known = read_scripts().abouts
    _check_known(spec.verify.kernels, known, "[verify] kernels")
    _check_known(asked, known, "--probe")
    return ProbeOrder(
        kernels=spec.verify.kernels,
        set="full" if full else "quick",
        only=tuple(asked.items()),
        compute=() if spec.cuda is None else spec.cuda.compute,
        toolkit="" if spec.cuda is None else spec.cuda.toolkit,
        seed=secrets.randbits(SEED_BITS) if seed is None else seed,
        compile=compile_too,
    )


def probe_modules() -> dict[str, tuple[str, ...]]:
    """Id of each probe -> the modules that it is about."""
    return {name: about.modules for name, about in read_scripts().abouts.items()}


def _check_known(names: Iterable[str], known: Mapping[str, object], place: str) -> None:
    problems = []
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            problems.append(
                Problem(
                    where=place,
                    message=f"there is no probe `{name}`",
                    hint=f"did you mean `{near[0]}`?" if near else "",
                )
            )
    if problems:
        raise EnvspecError(
            "probes are named that do not exist",
            problems=tuple(problems),
            hint=f"there are {', '.join(f'`{name}`' for name in sorted(known)) or 'none'}",
        )
