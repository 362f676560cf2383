"""Which wheels do the indexes, and folders of wheels, have of a package, and what is in them?

uv is asked for the files of `name==version`, as at lock time, and of a wheel only its directory and metadata are read. What was read is kept in
the store by the wheel's sha256, so that a second look asks nobody.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from builder.agent.store import write_new
from builder.credentials import read_credentials
from builder.download import Downloader
from builder.fetch import WantedWheel, fetch_wheels, make_client
from builder.resolve_errors import failure_error
from builder.uv_compile import DEFAULT_INDEX, PYLOCK_OPTIONS, make_asker
from builder.uv_output import classify, parse_pylock, parse_yanked
from builder.wheel_parts import RangedFile, open_archive, read_member, read_parts
from envspec.adoption.published import (
    CACHE_FORMAT,
    published_from_json,
    published_to_json,
    read_published,
    unhashed_members,
)
from envspec.adoption.spec_text import is_pinnable
from envspec.adoption.versions import parsed_version, same_version
from envspec.errors import EnvspecError
from envspec.layout import normalise_name, split_wheel_name
from envspec.spec import IndexSpec
from envspec.tags import best_wheel, target_tags

if TYPE_CHECKING:
    import io
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    import httpx

    from builder.agent.store import Store
    from builder.progress import Reporter
    from builder.uv import Uv
    from builder.uv_compile import Asker
    from builder.uv_output import OfferedWheel
    from envspec.adoption.target import AdoptedTarget
    from envspec.adoption.values import PublishedWheel

CONNECTIONS = 8
ASK_AT_ONCE = 60
"""Packages of which uv is asked at a time."""

MOST_UNHASHED = 50
"""Members that RECORD does not list, of one wheel, that are read instead."""

MOST_UNHASHED_BYTES = 4 << 20
MOST_FAILURES = 200
"""Answers of uv without a package, before no more is asked of a batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A wheel of one version that an index offers for the target."""

    name: str
    version: str
    index: str
    file: str
    sha256: str
    size: int | None
    url: str = field(repr=False)
    """Never to be shown."""


class Published:
    """Asks about published wheels; use it as a context manager, which closes its connections."""

    def __init__(
        self,
        target: AdoptedTarget,
        *,
        uv: Uv,
        store: Store,
        environ: Mapping[str, str],
        indexes: Mapping[str, str],
        wheelhouses: Sequence[Path],
        reporter: Reporter,
    ) -> None:
        """Prepare; nothing is asked yet.

        Args:
            target: For which wheels are asked.
            uv: The uv to ask.
            store: Has uv's cache and what was read of wheels before.
            environ: Says, with uv.toml, where the default index is.
            indexes: Name -> URL of further indexes.
            wheelhouses: Folders of wheels.
            reporter: Where progress goes.
        """
        self.target = target
        self._uv = uv
        self._store = store
        self._environ = environ
        self._indexes = dict(indexes)
        self._reporter = reporter
        specs = tuple(IndexSpec(name=name, url=url, packages=("*",)) for name, url in self._indexes.items())
        self._credentials = read_credentials(environ, specs)
        self._closing = contextlib.ExitStack()
        self._client: httpx.Client | None = None
        self._guard = threading.Lock()
        self._downloader = Downloader(self._shared_client, self._credentials, pause=time.sleep)
        self._tags = target_tags(python=target.python, platform=target.platform, glibc=target.glibc)
        self._loaded: dict[tuple[str, str], PublishedWheel | None] = {}
        self._urls: dict[str, str] = {}
        self._ranges: dict[str, bool] = {}
        """Server -> whether it gives parts of files."""

        self.local = {sha256: path for path, sha256 in _local_wheels(wheelhouses)}
        """sha256 -> wheel of a folder."""

        self.yanked: dict[tuple[str, str], str] = {}
        """Name and version -> reason of each version that was asked for and that an index withdrew."""

        self.problems: list[str] = []
        """Wheels that could not be looked into, for a person."""

    def __enter__(self) -> Published:  # noqa: PYI034 - as everywhere here
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def offers(self, pins: Iterable[tuple[str, str]]) -> dict[tuple[str, str], tuple[Offer, ...]]:
        """The wheels of some versions that the target accepts, from every index and folder.

        Args:
            pins: Name and version; what is no name or version is passed over.

        Returns:
            Each pin that some index has, with its wheels.

        Raises:
            EnvspecError: An index cannot be asked.
        """
        good = sorted({pin for pin in pins if is_pinnable(*pin)})
        found: dict[tuple[str, str], list[Offer]] = {}
        rounds: list[dict[str, str]] = []
        for name, version in good:  # one version of a package at a time
            for each in rounds:
                if name not in each:
                    each[name] = version
                    break
            else:
                rounds.append({name: version})
        batches = [
            dict(list(each.items())[start : start + ASK_AT_ONCE])
            for each in rounds
            for start in range(0, len(each), ASK_AT_ONCE)
        ]
        askers = [(DEFAULT_INDEX, None), *self._indexes.items()]
        with (
            self._reporter.stage("asking the index", total=len(batches) * len(askers), unit="questions") as advance,
            ThreadPoolExecutor(2) as threads,
        ):
            tasks = [threads.submit(self._ask, batch, index, url) for index, url in askers for batch in batches]
            for task in tasks:
                for pin, offers in task.result().items():
                    found.setdefault(pin, []).extend(offers)
                advance(1)
        for offer in self._local_offers(good):
            found.setdefault((offer.name, offer.version), []).append(offer)
        return {pin: tuple(offers) for pin, offers in found.items()}

    def _local_offers(self, pins: Sequence[tuple[str, str]]) -> Iterator[Offer]:
        """The wheels of folders that are of one of these versions, and that the target accepts."""
        for sha256, path in self.local.items():
            name, version, _, _ = split_wheel_name(path.name) or ("", "", "", "")
            name = normalise_name(name)
            for pin in pins:
                if pin[0] == name and _is_same(pin[1], version) and best_wheel([path.name], self._tags):
                    yield Offer(
                        name=name,
                        version=pin[1],
                        index="",
                        file=path.name,
                        sha256=sha256,
                        size=path.stat().st_size,
                        url="",
                    )

    def next_versions(self, name: str, version: str, index: str, *, newer: bool, most: int) -> list[str]:
        """The versions of a package that come before or after one, the nearest first.

        Args:
            name: Of the package.
            version: From which to go on.
            index: What the spec calls the index.
            newer: Whether to go up.
            most: How many at most.
        """
        versions: list[str] = []
        at = version
        asker = self._asker(index, [name])
        while len(versions) < most:
            options = ["--no-deps", *(["--resolution=lowest"] if newer else []), *PYLOCK_OPTIONS]
            ended, pylock = asker.compile([f"{name}{'>' if newer else '<'}{at.partition('+')[0]}"], options)
            if ended.returncode != 0:
                break
            found = next((package.version for package in parse_pylock(pylock) if package.name == name), "")
            if parsed_version(found) is None or found in versions or same_version(found, at):
                break
            versions.append(found)
            at = found
        return versions

    def newest(self, name: str) -> str:
        """The newest version of a package on the default index; empty if it has none."""
        if not is_pinnable(name, "1"):
            return ""
        ended, pylock = self._asker(DEFAULT_INDEX, [name]).compile([name], ["--no-deps", *PYLOCK_OPTIONS])
        if ended.returncode != 0:
            return ""
        return next((package.version for package in parse_pylock(pylock) if package.name == name), "")

    def preferred(self, offers: Sequence[Offer]) -> list[str]:
        """File names of wheels of one version, the one that `envspec lock` would take first."""
        left = [offer.file for offer in offers]
        ordered: list[str] = []
        while left:
            best = best_wheel(left, self._tags)
            if best is None:
                break
            ordered.append(best)
            left = [file for file in left if file != best]
        return ordered

    def load(self, offers: Iterable[Offer]) -> list[PublishedWheel]:
        """What is in some wheels; one that cannot be looked into is left out and named in `problems`."""
        wanted = {(offer.index, offer.file): offer for offer in offers}
        missing = [offer for key, offer in sorted(wanted.items()) if key not in self._loaded]
        if missing:
            with (
                self._reporter.stage("reading RECORDs", total=len(missing), unit="wheels") as advance,
                ThreadPoolExecutor(CONNECTIONS) as threads,
            ):
                for offer, wheel in zip(missing, threads.map(self._load, missing), strict=True):
                    self._loaded[offer.index, offer.file] = wheel
                    advance(1)
        return [wheel for key in sorted(wanted) if (wheel := self._loaded.get(key)) is not None]

    def read_members(self, wheel: PublishedWheel, members: Sequence[str], limit: int) -> dict[str, bytes]:
        """The contents of some files of a wheel; what cannot be read is left out.

        Args:
            wheel: One that `load` gave.
            members: Their names.
            limit: Bytes of one.
        """
        contents: dict[str, bytes] = {}
        with (
            contextlib.suppress(EnvspecError),
            self._open(wheel.file, wheel.sha256, wheel.size) as stream,
            open_archive(stream, wheel.file) as archive,
        ):
            infos = {info.orig_filename: info for info in archive.infolist()}
            for member in members:
                if member in infos:
                    contents[member] = read_member(archive, infos[member], limit, wheel.file)
        return contents

    def wheel_path(self, wheel: PublishedWheel) -> Path | None:
        """Where the whole wheel lies; None if only an index has it."""
        stored = self._store.wheel(wheel.sha256, wheel.file)
        if stored.is_file() and stored.stat().st_size == wheel.size:
            return stored
        return self.local.get(wheel.sha256)

    def bring(self, wheel: PublishedWheel) -> Path:
        """The whole wheel, fetched if it is not here.

        Raises:
            EnvspecError: It cannot be fetched, or is not the one that the index named.
        """
        return self.wheel_path(wheel) or self._fetch(wheel.file, wheel.sha256, wheel.size)

    def _shared_client(self) -> httpx.Client:
        with self._guard:
            if self._client is None:
                self._client = make_client(CONNECTIONS)
                self._closing.callback(self._client.close)
            return self._client

    def _asker(self, index: str, names: Iterable[str]) -> Asker:
        indexes: tuple[IndexSpec, ...] = ()
        if index in self._indexes:
            indexes = (IndexSpec(name=index, url=self._indexes[index], packages=tuple(sorted(names))),)
        return make_asker(
            uv=self._uv,
            environ=self._environ,
            cache_dir=self._store.uv_cache,
            python=self.target.python_exact or self.target.python,
            platform=self.target.platform,
            glibc=self.target.glibc,
            indexes=indexes,
            strangers=False,
        )

    def _ask(self, batch: Mapping[str, str], index: str, url: str | None) -> dict[tuple[str, str], list[Offer]]:
        """The wheels of one version of each of some packages on one index; what it has not is left out."""
        asker = self._asker(index, batch)
        found: dict[tuple[str, str], list[Offer]] = {}
        left = dict(batch)
        for _ in range(MOST_FAILURES):
            if not left:
                break
            pins = [f"{name}==={version}" for name, version in left.items()]
            ended, pylock = asker.compile(pins, ["--no-deps", *PYLOCK_OPTIONS])
            if ended.returncode == 0:
                for name, reason in parse_yanked(ended.stderr).items():
                    self.yanked[name, left.get(name, "")] = reason or "no reason given"
                for package in parse_pylock(pylock):
                    if package.name in left:
                        offers = [self._offer(package.name, package.version, index, wheel) for wheel in package.wheels]
                        found[package.name, left[package.name]] = [offer for offer in offers if offer is not None]
                break
            failure = classify(ended.stderr, secrets=asker.credentials.secrets())
            if failure.kind not in {"unsatisfiable", "unknown-package", "sdist-only"}:
                raise failure_error(failure, asker=asker)
            gone = (set(failure.pins) | set(failure.packages)) & left.keys() or set(failure.mentioned) & left.keys()
            if not gone:
                if len(left) == 1:
                    break
                # uv does not say which: each is asked for on its own.
                for name, version in left.items():
                    found |= self._ask({name: version}, index, url)
                break
            left = {name: version for name, version in left.items() if name not in gone}
        return found

    def _offer(self, name: str, version: str, index: str, wheel: OfferedWheel) -> Offer | None:
        if not re.fullmatch(r"[0-9a-f]{64}", wheel.sha256):
            return None
        self._urls[wheel.sha256] = wheel.url
        return Offer(
            name=name,
            version=version,
            index=index,
            file=wheel.file,
            sha256=wheel.sha256,
            size=wheel.size,
            url=wheel.url,
        )

    def _load(self, offer: Offer) -> PublishedWheel | None:
        cache = self._store.root / "cache" / "records" / f"{offer.sha256}-py{self.target.python}-{CACHE_FORMAT}.json"
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            record = json.loads(cache.read_bytes())
            return published_from_json(record, file=offer.file, index=offer.index, sha256=offer.sha256)
        try:
            wheel = self._read(offer)
        except EnvspecError as error:
            self.problems.append(f"`{offer.file}` could not be looked into: {error.message}")
            return None
        with contextlib.suppress(OSError):
            cache.parent.mkdir(parents=True, exist_ok=True)
            temporary = cache.with_name(f".{cache.name}.{os.getpid()}.{threading.get_ident()}")
            write_new(temporary, json.dumps(published_to_json(wheel), separators=(",", ":")).encode())
            temporary.replace(cache)
        return wheel

    def _read(self, offer: Offer) -> PublishedWheel:
        size = offer.size if offer.size is not None else self._size(offer)
        with self._open(offer.file, offer.sha256, size) as stream, open_archive(stream, offer.file) as archive:
            parts = read_parts(archive, offer.file)
            infos = {info.orig_filename: info for info in archive.infolist()}
            hashed = {
                member: (hashlib.sha256(content).hexdigest(), len(content))
                for member in unhashed_members(parts.members, parts.record)[:MOST_UNHASHED]
                for content in (read_member(archive, infos[member], MOST_UNHASHED_BYTES, offer.file),)
            }
        return read_published(
            file=offer.file,
            index=offer.index,
            sha256=offer.sha256,
            size=size,
            python=self.target.python,
            members=parts.members,
            record=parts.record,
            metadata=parts.metadata,
            entry_points=parts.entry_points,
            hashed=hashed,
        )

    def _size(self, offer: Offer) -> int:
        answer = self._downloader.read_range(offer.url, 0, 0, file=offer.file)
        return answer[1] if answer is not None else 0

    @contextlib.contextmanager
    def _open(self, file: str, sha256: str, size: int) -> Iterator[io.RawIOBase | io.BufferedIOBase]:
        """A wheel that is here, or those parts of it that are looked at."""
        stored = self._store.wheel(sha256, file)
        place = stored if stored.is_file() else self.local.get(sha256)
        if place is None and (not size or not self._has_ranges(file, sha256)):
            place = self._fetch(file, sha256, size)
        if place is not None:
            with place.open("rb") as whole:
                yield whole
            return
        url = self._urls[sha256]

        def read_range(first: int, last: int) -> bytes:
            answer = self._downloader.read_range(url, first, last, file=file)
            if answer is None or answer[1] != size:
                raise EnvspecError(f"`{file}` has another size on the server than the index says", input_name=file)
            return answer[0]

        yield RangedFile(read_range, size)

    def _has_ranges(self, file: str, sha256: str) -> bool:
        """Whether the server gives parts of a file; it is asked for the first byte."""
        if sha256 not in self._urls:
            raise EnvspecError(f"no index says where `{file}` is")
        origin = self._urls[sha256].split("/", 3)[2:3]
        key = origin[0] if origin else ""
        with self._guard:
            known = self._ranges.get(key)
        if known is None:
            known = self._downloader.read_range(self._urls[sha256], 0, 0, file=file) is not None
            with self._guard:
                self._ranges[key] = known
        return known

    def _fetch(self, file: str, sha256: str, size: int) -> Path:
        """The whole wheel, into the wheelhouse of the store, where the lock needs it anyway."""
        wanted = WantedWheel(file=file, sha256=sha256, size=size or None, url=self._urls[sha256])
        fetch_wheels([wanted], wheels_dir=self._store.wheels, credentials=self._credentials, reporter=self._reporter)
        return self._store.wheel(sha256, file)


def _is_same(left: str, right: str) -> bool:
    """Whether two versions are the same, local parts included."""
    one, other = parsed_version(left), parsed_version(right.replace("_", "-"))
    return one is not None and one == other


def _local_wheels(folders: Sequence[Path]) -> Iterator[tuple[Path, str]]:
    """The wheels of some folders with their sha256."""
    for folder in folders:
        try:
            paths = [folder] if folder.is_file() else sorted(folder.glob("*.whl"))
            if not folder.exists():
                raise FileNotFoundError(2, "No such file or directory")
        except OSError as error:
            raise EnvspecError(
                f"the folder of wheels cannot be read: {error.strerror}", input_name=f"--wheelhouse {folder}"
            ) from error
        if folder.is_file() and split_wheel_name(folder.name) is None:
            raise EnvspecError(
                f"`{folder.name}` is no wheel, and no folder of wheels", input_name=f"--wheelhouse {folder}"
            )
        for path in paths:
            if path.is_file() and split_wheel_name(path.name) is not None:
                with path.open("rb") as file:
                    yield path, hashlib.file_digest(file, "sha256").hexdigest()
