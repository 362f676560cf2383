"""spec -> the wheels that uv chooses for it, and where the wheels of a lock are today.

uv resolves; this module asks it in such a way that the answer depends on the spec, on what the indexes hold and on the lock so far, and is
the same whichever mirror gave it:

- for the target's Python, platform and glibc, never for this machine's; wheels only, so that no code of a package runs;
- a package that an index of the spec names comes from that index, also where only other packages ask for it; every other one comes from
  uv's default index. A package from anywhere else is an error, as is one without a sha256;
- versions of the lock so far are kept where they still satisfy the spec;
- `snapshot` is uv's `--exclude-newer`. An index that does not say when its files were uploaded cannot be held to it: only what the spec
  pins with `==` is taken from such an index.

No URL reaches an argument of a process, an error or a log. `docs/indexes.md` is the page for users.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from builder.locate import Located, locate
from builder.resolve_errors import failure_error, stranger_error, undated_error
from builder.uv_compile import PYLOCK_OPTIONS, make_asker
from builder.uv_output import (
    Failure,
    classify,
    parse_annotations,
    parse_missing_extras,
    parse_pylock,
    parse_undated,
    parse_yanked,
)
from envspec.errors import FOUND_WRONG, EnvspecError, Problem
from envspec.tags import best_wheel, target_tags

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from packaging.tags import Tag

    from builder.uv import Uv
    from builder.uv_compile import Asker
    from builder.uv_output import Annotation, ListedPackage
    from envspec.spec import Requirement, Spec

__all__ = ["Located", "Resolution", "ResolvedWheel", "locate", "resolve"]

MOST_ROUNDS = 16  # each moves packages to the index that names them; two or three do in practice
HINT_TIMEOUT_S = 20.0  # a hint is worth no longer wait


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedWheel:
    """A wheel that was chosen."""

    name: str
    """Normalised (PEP 503)."""

    version: str
    index: str
    """Name of the spec's index, or `default`."""

    file: str
    url: str = field(repr=False)
    """Where it is today, without credentials; never to be shown."""

    sha256: str
    size: int | None
    """In bytes; None if the index does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """The answer to a spec."""

    wheels: tuple[ResolvedWheel, ...]
    """Sorted by name."""

    yanked: Mapping[str, str]
    """Name -> reason of each chosen package that is yanked; the reason may be empty."""

    required_by: Mapping[str, tuple[str, ...]]
    """Name -> names of the packages that need it, sorted; empty where only the spec does."""


def resolve(
    spec: Spec,
    *,
    uv: Uv,
    environ: Mapping[str, str],
    cache_dir: Path,
    preferences: Mapping[str, str],
    upgrade: frozenset[str],
) -> Resolution:
    """The wheels that a spec leads to today.

    Args:
        spec: What is wanted.
        uv: The uv to ask.
        environ: Says, with uv.toml, where the indexes are; see `docs/indexes.md`.
        cache_dir: uv's cache, `<store>/cache/uv`.
        preferences: Name -> version of the lock so far: kept where it still satisfies the spec.
        upgrade: Names of packages whose preference does not count.

    Raises:
        EnvspecError: There is no resolution, or an index cannot be asked.
    """
    asker = make_asker(
        uv=uv,
        environ=environ,
        cache_dir=cache_dir,
        python=spec.python.exact or spec.python.version,
        platform=spec.target.platform,
        glibc=spec.target.glibc,
        indexes=spec.indexes,
        strangers=True,
    )
    tags = target_tags(python=spec.python.version, platform=spec.target.platform, glibc=spec.target.glibc)
    kept = {name: version for name, version in preferences.items() if name not in upgrade}
    question = _Question(spec=spec, asker=asker, tags=tags, preferences=kept)
    question = replace(question, overridden=_override_wheels(question))
    for _ in range(MOST_ROUNDS):
        answer = _ask(question)
        if isinstance(answer, _Answer):
            better = question.after_answer(answer)
            if better is None:
                return _resolution(question, answer)
        else:
            better = question.after_failure(answer)
            if better is None:
                raise _failed(question, answer)
            if better.added != question.added and not question.discovered:
                better = replace(better, added=better.added | _discover(question), discovered=True)
        question = better
    raise EnvspecError(
        "the packages that [indexes] names never settle: with each of them on its index, other packages are needed",
        hint="name every package that must come from an index in [packages] too",
        exit_code=FOUND_WRONG,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """What uv is asked in one round."""

    spec: Spec
    asker: Asker
    tags: tuple[Tag, ...]
    preferences: Mapping[str, str]
    overridden: Mapping[str, ResolvedWheel] = field(default_factory=dict)
    """The wheels of overrides whose package an index names; uv is given their URLs, since an override knows no index."""

    added: frozenset[str] = frozenset()
    """Packages that only others need, but that an index names: uv takes a package from an index only where the project itself needs it."""

    dismissed: frozenset[str] = frozenset()
    """Packages that were taken out of `added` once, since nobody needed them: each gets one chance not to come back."""

    discovered: bool = False
    """Whether `_discover` had its say."""

    undated: frozenset[str] = frozenset()
    """Pinned packages whose index does not say when files were uploaded: the snapshot does not apply to them."""

    def after_answer(self, answer: _Answer) -> _Question | None:
        """The next question; None if the answer is good."""
        notes = answer.notes
        astray = frozenset(
            package.name
            for package in answer.packages
            if self.asker.index_of(package.name)
            and package.name not in self.overridden
            and self.asker.name_of(notes[package.name].index_url, package.name) is None
        )
        if astray - self._direct():
            return replace(self, added=self.added | astray)
        idle = frozenset(name for name in self.added if not notes[name].required_by) - self.dismissed
        return replace(self, added=self.added - idle, dismissed=self.dismissed | idle) if idle else None

    def after_failure(self, failure: Failure) -> _Question | None:
        """The next question; None if nothing else can be asked."""
        named = frozenset(name for name in failure.mentioned if self.asker.index_of(name)) - self._direct()
        undated = frozenset(name for name in failure.undated if self._is_pinned(name) and self.asker.index_of(name))
        if named or undated - self.undated:
            return replace(self, added=self.added | named, undated=self.undated | undated)
        return None

    def _direct(self) -> frozenset[str]:
        return self.added | {requirement.name for requirement in self.spec.packages}

    def _is_pinned(self, name: str) -> bool:
        return any(_is_exact(one.specifier) for one in (*self.spec.packages, *self.spec.overrides) if one.name == name)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    packages: tuple[ListedPackage, ...]
    notes: Mapping[str, Annotation]
    yanked: Mapping[str, str]
    undated: frozenset[str]
    missing_extras: frozenset[tuple[str, str]]


def _ask(question: _Question) -> _Answer | Failure:
    compiled = _compile(question)
    if isinstance(compiled, Failure):
        return compiled
    # The same once more, for what pylock.toml does not hold: the index and the requesters. The cache has all that it takes, unless an index
    # forbids to keep its pages.
    asker = question.asker
    requirements, options, files = _ask_for(question)
    options += ["--emit-index-annotation", "--annotation-style=split", "--no-header", "--output-file=chosen.txt"]
    files["chosen.txt"] = "".join(f"{package.name}=={package.version}\n" for package in compiled.packages)
    noted, _ = asker.compile(requirements, options, files=files, offline=True)
    if noted.returncode != 0:
        noted, _ = asker.compile(requirements, options, files=files)
        if noted.returncode != 0:
            return classify(noted.stderr, secrets=asker.credentials.secrets())
    notes = parse_annotations(noted.stdout)
    if notes.keys() != {package.name for package in compiled.packages}:
        raise EnvspecError("an index answered differently when it was asked twice", hint="run the command again")
    return replace(compiled, notes=notes)


def _compile(question: _Question, *, timeout_s: float | None = None) -> _Answer | Failure:
    """What uv chooses, without the notes."""
    requirements, options, files = _ask_for(question)
    ended, pylock = question.asker.compile(
        requirements,
        [*options, *PYLOCK_OPTIONS],
        files={**files, **_preferences_file(question.preferences)},
        timeout_s=timeout_s,
    )
    if ended.returncode != 0:
        return classify(ended.stderr, secrets=question.asker.credentials.secrets())
    return _Answer(
        packages=parse_pylock(pylock),
        notes={},
        yanked=parse_yanked(ended.stderr),
        undated=parse_undated(ended.stderr),
        missing_extras=parse_missing_extras(ended.stderr),
    )


def _ask_for(question: _Question) -> tuple[list[str], list[str], dict[str, str]]:
    """Requirements, options and files that put a question to uv."""
    spec = question.spec
    requirements = [_pep508(requirement) for requirement in spec.packages] + sorted(question.added)
    overrides = [  # with the sha256 in the URL, uv reads no more of a wheel than its METADATA
        f"{_pep508(replace(override, specifier=''))} @ {wheel.url.partition('#')[0]}#sha256={wheel.sha256}"
        if (wheel := question.overridden.get(override.name))
        else _pep508(override)
        for override in spec.overrides
    ]
    options = snapshot_options(spec, question.undated)
    if not overrides:
        return requirements, options, {}
    files = {"overrides.txt": "".join(f"{override}\n" for override in overrides)}
    return requirements, [*options, "--overrides=overrides.txt"], files


def _resolution(question: _Question, answer: _Answer) -> Resolution:
    asker = question.asker
    needed = _needed(answer.notes, {requirement.name for requirement in question.spec.packages})
    _check_extras(question.spec, answer)
    undated = answer.undated & needed
    if undated:  # another mirror, which has their dates, would give other versions
        raise undated_error(undated)
    wheels: list[ResolvedWheel] = []
    strangers: list[tuple[str, str]] = []
    problems: list[Problem] = []
    for package in answer.packages:
        if package.name not in needed:
            continue
        index = asker.name_of(answer.notes[package.name].index_url, package.name)
        if package.name in question.overridden:
            wheels.append(question.overridden[package.name])
        elif index is None:
            strangers.append((package.name, package.version))
        elif isinstance(wheel := choose_file(package, index, question.tags), Problem):
            problems.append(wheel)
        else:
            wheels.append(wheel)
    if strangers:
        raise stranger_error(strangers)
    if problems:
        raise EnvspecError(
            "an index offers wheels that cannot be locked", problems=tuple(problems), exit_code=FOUND_WRONG
        )
    return Resolution(
        wheels=tuple(sorted(wheels, key=lambda wheel: wheel.name)),
        yanked={name: reason for name, reason in answer.yanked.items() if name in needed},
        required_by={
            name: tuple(requester for requester in note.required_by if requester in needed)
            for name, note in answer.notes.items()
            if name in needed
        },
    )


def _discover(question: _Question) -> frozenset[str]:
    """Packages that an index names and that the spec may lead to, though only others need them.

    uv fails with the first package that is only there, and says nothing of the next. So it is asked once with the spec's indexes open to every
    package; of the answer only the names count, and those that turn out not to be needed are taken out again.
    """
    answer = _compile(replace(question, asker=question.asker.opened()))
    if isinstance(answer, Failure):
        return frozenset()
    return frozenset(package.name for package in answer.packages if question.asker.index_of(package.name))


def _needed(notes: Mapping[str, Annotation], direct: frozenset[str] | set[str]) -> frozenset[str]:
    """What the spec's own packages lead to. The rest is there only because it was added to the question."""
    needs: dict[str, list[str]] = {}
    for name, note in notes.items():
        for requester in note.required_by:
            needs.setdefault(requester, []).append(name)
    found: set[str] = set()
    left = [name for name in direct if name in notes]
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left += needs.get(name, ())
    return frozenset(found)


def _check_extras(spec: Spec, answer: _Answer) -> None:
    """Refuse extras of the spec that do not exist: uv leaves them out with a warning."""
    missing = [
        Problem(f"`{requirement.name}` has no extra `{extra}`", where="[packages]")
        for requirement in spec.packages
        for extra in requirement.extras
        if (requirement.name, extra) in answer.missing_extras
    ]
    if missing:
        raise EnvspecError("the spec asks for extras that do not exist", problems=tuple(missing), exit_code=FOUND_WRONG)


def choose_file(package: ListedPackage, index: str, tags: Sequence[Tag]) -> ResolvedWheel | Problem:
    """The wheel of a package that the target prefers, or why there is none that can be locked.

    Args:
        package: With the wheels that the index offers.
        index: What the lock calls the index.
        tags: Of the target, the preferred first.
    """
    file = best_wheel([wheel.file for wheel in package.wheels], tags)
    if file is None:
        return Problem(f"`{package.name}` {package.version} comes with no wheel whose name the target accepts")
    wheel = next(wheel for wheel in package.wheels if wheel.file == file)
    if not wheel.sha256:
        return Problem(
            f"the index `{index}` states no sha256 for `{file}` [unhashed]",
            hint="use an index or mirror that states it",
        )
    return ResolvedWheel(
        name=package.name,
        version=package.version,
        index=index,
        file=file,
        url=wheel.url,
        sha256=wheel.sha256,
        size=wheel.size,
    )


def _override_wheels(question: _Question) -> dict[str, ResolvedWheel]:
    """The wheels of those overrides whose package an index of the spec names."""
    named = [(override, question.asker.index_of(override.name)) for override in question.spec.overrides]
    return {override.name: _override_wheel(question, override, index.name) for override, index in named if index}


def _override_wheel(question: _Question, override: Requirement, index: str) -> ResolvedWheel:
    undated: frozenset[str] = frozenset()
    while True:
        ended, pylock = question.asker.compile(
            [_pep508(override)],
            ["--no-deps", *snapshot_options(question.spec, undated), *PYLOCK_OPTIONS],
            files=_preferences_file(question.preferences),
        )
        if ended.returncode == 0:
            break
        failure = classify(ended.stderr, secrets=question.asker.credentials.secrets())
        if undated or override.name not in failure.undated or not _is_exact(override.specifier):
            raise _failed(question, failure)
        undated = frozenset({override.name})
    wheel = choose_file(parse_pylock(pylock)[0], index, question.tags)
    if isinstance(wheel, Problem):
        raise EnvspecError(wheel.message, hint=wheel.hint, exit_code=FOUND_WRONG)
    return wheel


def _failed(question: _Question, failure: Failure) -> EnvspecError:
    """The error for a failure, with what a further question to uv can tell of it."""
    asker = question.asker
    if failure.kind == "unknown-package":
        for name in failure.packages:
            index = asker.index_of(name)
            if index is None:
                continue
            ended, _ = asker.asked_for(index.name).compile([name], ["--no-deps"])
            why = classify(ended.stderr, secrets=asker.credentials.secrets())
            if ended.returncode != 0 and why.kind in {"authentication", "network"}:
                return failure_error(why, asker=asker, refusing=index.name)
    newest = _versions_that_resolve(question, failure) if failure.kind in {"unsatisfiable", "unknown-package"} else ()
    return failure_error(failure, asker=asker, newest=newest)


def _versions_that_resolve(question: _Question, failure: Failure) -> tuple[str, ...]:
    """For each of the pins at fault the newest other version with which the spec resolves, as far as that is found out soon."""
    spec, found = question.spec, []
    for name in sorted(failure.pins)[:2]:
        loosened = tuple(
            replace(one, specifier=one.specifier.replace("===", "==").replace("==", "!=")) if one.name == name else one
            for one in spec.packages
        )
        answer = _compile(replace(question, spec=replace(spec, packages=loosened)), timeout_s=HINT_TIMEOUT_S)
        if not isinstance(answer, Failure):
            found += [f"`{one.name}` {one.version}" for one in answer.packages if one.name == name]
    return tuple(found)


def _pep508(requirement: Requirement) -> str:
    extras = f"[{','.join(requirement.extras)}]" if requirement.extras else ""
    return f"{requirement.name}{extras}{requirement.specifier}"


def _is_exact(specifier: str) -> bool:
    """Whether a specifier admits one version: `==1.0`, but not `==1.*`."""
    return specifier.startswith("==") and "*" not in specifier and "," not in specifier


def snapshot_options(spec: Spec, undated: frozenset[str]) -> list[str]:
    """Options of uv that hold it to the snapshot of a spec, if it has one.

    Args:
        spec: The spec.
        undated: Packages that the snapshot does not apply to.
    """
    if spec.snapshot is None:
        return []
    moment = spec.snapshot.isoformat().replace("+00:00", "Z")
    return [f"--exclude-newer={moment}", *(f"--exclude-newer-package={name}=false" for name in sorted(undated))]


def _preferences_file(preferences: Mapping[str, str]) -> dict[str, str]:
    """A pylock.toml in the place of uv's output: uv reads from it which versions to keep where it can."""
    if not preferences:
        return {}
    lines = ['lock-version = "1.0"', 'created-by = "envspec"']
    for name, version in sorted(preferences.items()):
        lines += ["[[packages]]", f'name = "{name}"', f'version = "{version}"']
    return {"pylock.toml": "\n".join([*lines, ""])}
