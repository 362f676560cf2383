"""What `uv pip compile` says, as values: its pylock.toml, its annotated requirements, its warnings, and why it failed.

Pure: text in, values out. Everything here comes, through uv, from indexes, so a name or a reason may be anything: what is shown is cleaned
with `shown`. The wordings are those of uv 0.13, however its lines are wrapped; a failure that is not understood is `other` and keeps uv's own
words.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal
from urllib.parse import unquote, urlsplit

import tomllib

from builder.uv import redact
from envspec.errors import EnvspecError

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = "envspec-resolution"
"""Name of the project that stands for the spec: uv's sentences begin and end with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedWheel:
    """A wheel that an index offers."""

    file: str
    """Its name: one component of a path."""

    url: str = field(repr=False)
    sha256: str
    """Empty if the index states none."""

    size: int | None
    """In bytes; None if the index does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedPackage:
    """A package that uv chose, with the wheels of it that the target accepts."""

    name: str
    version: str
    wheels: tuple[OfferedWheel, ...]
    """None if uv took the package from a URL that was given for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotation:
    """What uv notes of a package that it chose."""

    required_by: tuple[str, ...]
    """Names of the packages that need it, sorted; without the spec itself."""

    index_url: str = field(repr=False)
    """The index that it came from; empty if it came from none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why uv failed."""

    kind: Literal["authentication", "network", "offline", "unknown-package", "sdist-only", "unsatisfiable", "other"]
    packages: tuple[str, ...] = ()
    """Names that it is about: of the unknown package, or of the one without wheels."""

    sentence: str = ""
    """uv's own explanation, fit to be shown."""

    hints: tuple[str, ...] = ()
    """uv's own hints, fit to be shown."""

    chain: tuple[str, ...] = ()
    """For `sdist-only`: who asks for the package, from the one that the spec names on down to the package itself."""

    undated: frozenset[str] = frozenset()
    """Names of packages that uv left out because the index does not say when they were uploaded."""

    pins: tuple[str, ...] = ()
    """Names of packages that the spec pins with `==` and that the explanation names."""

    mentioned: frozenset[str] = frozenset()
    """Every word of the explanation that may be the name of a package."""


def parse_pylock(text: str) -> tuple[ListedPackage, ...]:
    """The packages of a pylock.toml (PEP 751) that uv wrote, in its order.

    Raises:
        EnvspecError: It does not have the form that uv gives it.
    """
    try:
        return tuple(
            ListedPackage(
                name=package["name"],
                version=package["version"],
                wheels=tuple(wheel for entry in package.get("wheels", ()) if (wheel := _wheel(entry)) is not None),
            )
            for package in tomllib.loads(text).get("packages", ())
        )
    except (tomllib.TOMLDecodeError, KeyError, TypeError, AttributeError) as error:
        raise EnvspecError(
            "uv wrote a pylock.toml that is not of the form that is expected",
            hint="use another version of uv: set the environment variable `UV` to its path",
        ) from error


def parse_annotations(text: str) -> Mapping[str, Annotation]:
    """What uv notes in `requirements.txt` format with split annotations and `--emit-index-annotation`, by name."""
    found: dict[str, Annotation] = {}
    name = index_url = ""
    requesters: list[str] = []
    for line in [*text.splitlines(), ""]:
        note = line.strip().removeprefix("#").strip()
        if line.startswith((" ", "\t")):
            if note.startswith("from "):
                index_url = note.removeprefix("from ")
            elif _NAME.fullmatch(requester := note.removeprefix("via").strip()) and requester != ROOT:
                requesters.append(requester)
            continue
        if name:
            found[name] = Annotation(required_by=tuple(sorted(set(requesters))), index_url=index_url)
        match = re.match(r"([a-z0-9-]+)(\[[^\]]*\])?(==| @ )", line)
        name, index_url, requesters = match[1] if match else "", "", []
    return found


def parse_yanked(stderr: str) -> Mapping[str, str]:
    """Name -> reason of every package whose chosen version is yanked; an empty reason if none is given."""
    found = re.finditer(
        r"^warning: `([A-Za-z0-9._-]+)==[^`]+` is yanked(?: \(reason: \"(.*)\"\))?", stderr, re.MULTILINE
    )
    return {match[1]: shown(match[2] or "") for match in found}


def parse_missing_extras(stderr: str) -> frozenset[tuple[str, str]]:
    """Name and extra of every extra that was asked for and does not exist."""
    flat = " ".join(stderr.split())
    return frozenset(
        re.findall(rf"The package `({_NAME.pattern})==[^`]*` does not have an extra named `([^`]*)`", flat)
    )


def parse_undated(stderr: str) -> frozenset[str]:
    """Names of the packages of which uv left files out because their index does not say when they were uploaded."""
    files = re.findall(r"warning: `([^`]+)` is missing an upload date", " ".join(stderr.split()))
    return frozenset(re.sub(r"[-_.]+", "-", file.partition("-")[0]).lower() for file in files)


def classify(stderr: str, *, secrets: frozenset[str] = frozenset()) -> Failure:
    """Why `uv pip compile` failed.

    Args:
        stderr: What it printed.
        secrets: What must not be shown, beside URLs.
    """
    flat = " ".join(stderr.split())
    explained = re.search(r"Because .*?(?= hint: |$)", flat)
    hints = tuple(_our_words(shown(redact(hint, secrets))) for hint in re.split(r" ?\bhint: ", flat)[1:])
    sentence = shown(redact(explained[0], secrets)).replace(ROOT, "the spec") if explained else ""
    mentioned = frozenset(_NAME.findall(explained[0])) if explained else frozenset()
    names = tuple(dict.fromkeys(re.findall(rf"({_NAME.pattern}) was not found in the package registry", flat)))

    if re.search(r"valid authentication credentials|403 Forbidden error|client error \(40[137] ", flat):
        return Failure(kind="authentication", packages=names, sentence=sentence, hints=hints)
    if re.search(r"network was disabled|--offline", flat):
        return Failure(kind="offline", packages=names, sentence=sentence, hints=hints)
    if explained is None:
        return _failure_without_explanation(stderr, flat, secrets)

    undated = parse_undated(stderr)
    pins = tuple(dict.fromkeys(re.findall(rf"{ROOT} depends on ({_NAME.pattern})(?:\[[^\]]*\])?==", explained[0])))
    sdists = re.findall(rf"Wheels are required for `({_NAME.pattern})` because building from source is disabled", flat)
    sdists += re.findall(rf"({_NAME.pattern})(?:[=<>]=?[^ ]+)? has no usable wheels", explained[0])
    if sdists:
        name = sdists[0]
        return Failure(
            kind="sdist-only",
            packages=(name,),
            sentence=sentence,
            hints=hints,
            chain=_chain(explained[0], name),
            mentioned=mentioned,
        )
    kind: Literal["unknown-package", "unsatisfiable"] = "unknown-package" if names else "unsatisfiable"
    return Failure(
        kind=kind,
        packages=names,
        sentence=sentence,
        hints=hints,
        undated=undated,
        pins=pins,
        mentioned=mentioned,
    )


def shown(text: str) -> str:
    """The text in one line without control characters, cut where it gets long: fit for a terminal, whoever wrote it."""
    clean = "".join(character if character.isprintable() else " " for character in text)
    clean = " ".join(clean.split())
    return clean if len(clean) <= _LONGEST else f"{clean[:_LONGEST]}..."


_NAME = re.compile(r"[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?")
_LONGEST = 2000


def _wheel(entry: Mapping[str, object]) -> OfferedWheel | None:
    url = str(entry["url"])
    file = unquote(urlsplit(url).path.rpartition("/")[2])
    if not is_plain_file_name(file):
        return None
    hashes = entry.get("hashes")
    sha256 = hashes.get("sha256", "") if isinstance(hashes, dict) else ""
    size = entry.get("size")
    return OfferedWheel(
        file=file,
        url=url,
        sha256=sha256 if isinstance(sha256, str) else "",
        size=size if isinstance(size, int) and size >= 0 else None,
    )


def is_plain_file_name(name: str) -> bool:
    """Whether a name is one component of a path that stays where it is put."""
    return bool(re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.+!-]*", name)) and len(name) <= 255


def _failure_without_explanation(stderr: str, flat: str, secrets: frozenset[str]) -> Failure:
    causes = [
        shown(redact(cause, secrets)) for cause in re.findall(r"^ *(?:cause|Caused by): (.*)", stderr, re.MULTILINE)
    ]
    if re.search(
        r"Failed to fetch|error sending request|HTTP status server error|Request failed|operation timed out", flat
    ):
        return Failure(kind="network", sentence=causes[-1] if causes else "")
    lines = [shown(redact(line, secrets)) for line in stderr.splitlines() if line.strip()]
    return Failure(kind="other", sentence="\n".join(lines[-12:]))


def _our_words(hint: str) -> str:
    """A hint of uv without the names of options that nobody here can set."""
    filtered = re.match(rf"`({_NAME.pattern})` was filtered by `exclude-newer`", hint)
    if filtered is None:
        return hint
    late = re.search(r"The latest version satisfying the requirement is v(\S+), published at ([^ ]+)\.", hint)
    if late is None:
        return f"`snapshot` leaves out every version of `{filtered[1]}` that would do"
    return f"`{filtered[1]}` {late[1]} was published at {late[2]}, after `snapshot`"


def _chain(sentence: str, package: str) -> tuple[str, ...]:
    """The shortest way from the spec to a package through the `depends on` of an explanation; only the package if there is none."""
    asked: dict[str, list[str]] = {}
    for requester, wanted in re.findall(
        rf"({_NAME.pattern})(?:\[[^\]]*\])?(?:[=<>!~]=?[^ ]+)? depends? on ({_NAME.pattern})", sentence
    ):
        asked.setdefault(requester, []).append(wanted)
    ways: deque[tuple[str, ...]] = deque([(ROOT,)])
    seen = {ROOT}
    while ways:
        way = ways.popleft()
        if way[-1] == package:
            return way[1:]
        for wanted in asked.get(way[-1], ()):
            if wanted not in seen:
                seen.add(wanted)
                ways.append((*way, wanted))
    return (package,)
