"""One version of one package -> its wheel for the target, chosen as `builder.resolve` chooses it, without anything that it needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.resolve import ResolvedWheel, choose_file, snapshot_options
from builder.resolve_errors import failure_error
from builder.uv_compile import DEFAULT_INDEX, PYLOCK_OPTIONS, make_asker
from builder.uv_output import classify, parse_pylock
from envspec.errors import FOUND_WRONG, EnvspecError, Problem
from envspec.tags import target_tags

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from builder.uv import Uv
    from envspec.spec import Spec


def resolve_one(
    spec: Spec, name: str, version: str, *, uv: Uv, environ: Mapping[str, str], cache_dir: Path
) -> tuple[ResolvedWheel, bool]:
    """The wheel of one version of a package.

    Args:
        spec: Says the target, the snapshot and the indexes.
        name: Normalised name of the package.
        version: As PEP 440 has it.
        uv: The uv to ask.
        environ: Says, with uv.toml, where the indexes are.
        cache_dir: uv's cache.

    Returns:
        The wheel, and whether it was published after the snapshot of the spec.

    Raises:
        EnvspecError: The version has no wheel for the target, or an index cannot be asked.
    """
    asker = make_asker(
        uv=uv,
        environ=environ,
        cache_dir=cache_dir,
        python=spec.python.exact or spec.python.version,
        platform=spec.target.platform,
        glibc=spec.target.glibc,
        indexes=spec.indexes,
        strangers=False,
    )
    pins = [f"{name}=={version}"]
    ended, pylock = asker.compile(pins, ["--no-deps", *snapshot_options(spec, frozenset()), *PYLOCK_OPTIONS])
    late = ended.returncode != 0 and spec.snapshot is not None
    if late:
        ended, pylock = asker.compile(pins, ["--no-deps", *PYLOCK_OPTIONS])
    named = asker.index_of(name)
    index = named.name if named is not None else DEFAULT_INDEX
    if ended.returncode != 0:
        failure = classify(ended.stderr, secrets=asker.credentials.secrets())
        if failure.kind in {"unsatisfiable", "unknown-package", "sdist-only"}:
            raise EnvspecError(
                f"the index `{index}` has no wheel of `{name}` {version} for Python {asker.python}, {asker.platform},"
                f" glibc {asker.glibc}",
                detail=failure.sentence,
                hint="name a version that is there",
                exit_code=FOUND_WRONG,
            )
        raise failure_error(failure, asker=asker)
    tags = target_tags(python=spec.python.version, platform=spec.target.platform, glibc=spec.target.glibc)
    wheel = next(
        (choose_file(package, index, tags) for package in parse_pylock(pylock) if package.name == name),
        Problem(f"uv did not name a wheel of `{name}`"),
    )
    if isinstance(wheel, Problem):
        raise EnvspecError(wheel.message, hint=wheel.hint, exit_code=FOUND_WRONG)
    return wheel, late
