"""A cache in a bucket: S3 and what speaks like it, Google Cloud Storage, Azure; `<prefix>/<sha256>/<file>`, locks under `<prefix>/locks/`.

The layout is that of `builder.caches.folder`, so a public bucket is an HTTP folder too. obstore does the talking, and finds credentials as the
vendors' own tools do; it is an extra (`envspec[objects]`) and imported only where a bucket is asked.
"""

from __future__ import annotations

import configparser
import contextlib
import hashlib
import re
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.caches.kept_locks import lock_wheels, unreadable_lock
from builder.caches.protocol import (
    CONNECTIONS,
    LOCK_LIMIT_BYTES,
    MOST_LOCKS,
    MOST_WHEELS,
    Body,
    CachedLock,
    CachedWheel,
    CacheError,
)
from builder.caches.together import together
from builder.caches.web import CREDENTIALS_HINT, SILENCE_S, read_blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from builder.caches.protocol import LockFile
    from envspec.spec import CacheSpec

PIECE_BYTES = 8 << 20
"""Of one request. Each has `PIECE_TIMEOUT_S`: who gives fewer bytes in that time is too slow."""

PIECE_TIMEOUT_S = 60
URL_LIVES_S = 6 * 3600
"""How long an address is good that hosts are given."""

LOCKS = "locks"
_CHECKS = CONNECTIONS * 2


class Bucket:
    """See the module's docstring; methods are those of `builder.caches.protocol.Cache`."""

    kind = "bucket"
    locks_first = True

    def __init__(self, spec: CacheSpec, environ: Mapping[str, str]) -> None:
        """Prepare; nothing is connected yet.

        Raises:
            CacheError: obstore is not installed, or does not take the configuration.
        """
        self.name = spec.name
        self._to_hosts = spec.to_hosts
        try:
            import obstore  # noqa: PLC0415 - an extra, and slow to import
            from obstore import exceptions  # noqa: PLC0415
        except ImportError:
            raise CacheError(
                spec.name,
                "it is a bucket, and obstore is not installed",
                kind="unusable",
                hint="install envspec with its extra: `envspec[objects]`",
            ) from None
        self._obstore = obstore
        self._refusals: tuple[type[Exception], ...] = (
            exceptions.PermissionDeniedError,
            exceptions.UnauthenticatedError,
            PermissionError,
        )
        self._failures: tuple[type[Exception], ...] = (exceptions.BaseError, OSError, ValueError)
        with self._telling("it cannot be opened"):
            self._bucket = _open(spec, environ)

    def has(self, wheels: Sequence[CachedWheel]) -> frozenset[str]:
        """As `Cache`."""
        there = together(lambda wheel: self._size(_place(wheel)) == wheel.size, wheels, most=_CHECKS)
        return frozenset(wheel.sha256 for wheel, is_there in zip(wheels, there, strict=True) if is_there)

    @contextlib.contextmanager
    def fetch(self, wheel: CachedWheel, offset: int) -> Iterator[Body]:
        """As `Cache`, in pieces."""
        yield Body(start=offset, blocks=self._pieces(wheel, offset))

    def store(self, wheel: CachedWheel, path: Path, advance: Callable[[int], None]) -> None:
        """As `Cache`: what is uploaded in parts is there when the last one is."""
        try:
            with self._telling(f"it does not take `{wheel.file}`"):
                blocks = read_blocks(str(path), 0, advance, PIECE_BYTES)
                self._obstore.put(self._bucket, _place(wheel), blocks, chunk_size=PIECE_BYTES)
        except CacheError:
            # In Azure who is first with the last part takes away the parts that others have sent for the same wheel.
            if self._size(_place(wheel)) != wheel.size:
                raise

    def store_lock(self, lock: LockFile) -> None:
        """As `Cache`."""
        place = f"{LOCKS}/{hashlib.sha256(lock.content).hexdigest()}.lock"
        if self._size(place) != len(lock.content):
            with self._telling("it does not take the lock"):
                self._obstore.put(self._bucket, place, lock.content, use_multipart=False)

    def locks(self) -> tuple[CachedLock, ...]:
        """As `Cache`."""
        found = []
        for meta in self._listed(f"{LOCKS}/", MOST_LOCKS):
            name = str(meta["path"]).rpartition("/")[2]
            if re.fullmatch(r"[0-9a-f]{64}\.lock", name):
                if meta["size"] > LOCK_LIMIT_BYTES:
                    raise unreadable_lock(self.name, name)
                with self._telling(f"its lock `{name[:16]}…` cannot be read"):
                    content = bytes(self._obstore.get(self._bucket, f"{LOCKS}/{name}").bytes())
                found.append(lock_wheels(self.name, name, content, meta["last_modified"].timestamp()))
        return tuple(found)

    def all_wheels(self) -> tuple[CachedWheel, ...]:
        """As `Cache`."""
        found = []
        for meta in self._listed(None, MOST_WHEELS):
            place = re.fullmatch(r"([0-9a-f]{64})/([^/]+)", str(meta["path"]))
            if place:
                found.append(CachedWheel(sha256=place[1], file=place[2], size=meta["size"]))
        return tuple(sorted(found, key=lambda wheel: (wheel.sha256, wheel.file)))

    def details(self, wheels: Sequence[CachedWheel]) -> tuple[CachedWheel, ...]:
        """They are known."""
        return tuple(wheels)

    def delete(self, wheels: Sequence[CachedWheel], locks: Sequence[CachedLock]) -> None:
        """As `Cache`."""
        places = [f"{LOCKS}/{lock.id}" for lock in locks] + [_place(wheel) for wheel in wheels]
        with self._telling("it deletes nothing"):
            for place in places:
                with contextlib.suppress(FileNotFoundError):
                    self._obstore.delete(self._bucket, place)

    def public_urls(self, wheels: Sequence[CachedWheel]) -> dict[str, str]:
        """Addresses that are signed for some hours: no credential goes to anybody."""
        if not self._to_hosts:
            return {}
        try:
            urls = self._obstore.sign(
                self._bucket, "GET", [_place(wheel) for wheel in wheels], timedelta(seconds=URL_LIVES_S)
            )
        except self._failures:  # those credentials cannot sign: the wheels go through here
            return {}
        return {wheel.sha256: str(url) for wheel, url in zip(wheels, urls, strict=True)}

    def close(self) -> None:
        """As `Cache`: nothing stays open."""

    def _pieces(self, wheel: CachedWheel, offset: int) -> Iterator[bytes]:
        while offset < wheel.size:
            end = min(offset + PIECE_BYTES, wheel.size)
            with self._telling(f"`{wheel.file}` cannot be read"):
                piece = bytes(self._obstore.get_range(self._bucket, _place(wheel), start=offset, end=end))
            if len(piece) != end - offset:
                raise CacheError(self.name, f"`{wheel.file}` is shorter there", kind="unlike")
            yield piece
            offset = end

    def _size(self, place: str) -> int | None:
        with self._telling("it cannot be asked"):
            try:
                return int(self._obstore.head(self._bucket, place)["size"])
            except FileNotFoundError:
                return None

    def _listed(self, prefix: str | None, most: int) -> list[Any]:
        found: list[Any] = []
        with self._telling("it does not say what is in it"):
            for chunk in self._obstore.list(self._bucket, prefix):
                found += chunk
                if len(found) > most:
                    raise CacheError(self.name, f"it has more than {most:,} objects", kind="unusable")
        return found

    @contextlib.contextmanager
    def _telling(self, what: str) -> Iterator[None]:
        """Errors of obstore as ours. Their texts have URLs, and are not repeated."""
        try:
            yield
        except CacheError:
            raise
        except FileNotFoundError as error:
            raise CacheError(self.name, f"{what}: it is not there", kind="absent") from error
        except self._refusals as error:
            raise CacheError(
                self.name,
                f"{what}: it refuses the credentials, or needs some",
                kind="refused",
                hint=CREDENTIALS_HINT,
            ) from error
        except self._failures as error:
            kind, reason, hint = _reason(str(error))
            raise CacheError(self.name, f"{what}: {reason}", kind=kind, hint=hint) from error


def _place(wheel: CachedWheel) -> str:
    return f"{wheel.sha256}/{wheel.file}"


def _reason(said: str) -> tuple[Any, str, str]:
    """Kind, reason and hint for what obstore says."""
    said, _, settings = said.partition("\n\n")
    if re.search(r"\bkind: Timeout\b", settings):  # which its sentence does not say
        return "slow", "it does not answer in time", ""
    if re.search(
        r"ExpiredToken|InvalidAccessKeyId|SignatureDoesNotMatch|TokenExpired|\b40[13]\b|[Cc]redential|metadata", said
    ):
        return "refused", "it refuses the credentials, or there are none", CREDENTIALS_HINT
    if re.search(r"Account must be specified", said):
        return "unusable", "nobody says in which account it is", "set `AZURE_STORAGE_ACCOUNT_NAME`"
    if re.search(r"NoSuchBucket", said):
        return "unusable", "there is no such bucket", ""
    return (
        "lost",
        "it cannot be reached, or broke off",
        "look at the network, and at the region and endpoint of the bucket",
    )


def _open(spec: CacheSpec, environ: Mapping[str, str]) -> Any:  # noqa: ANN401 - a store of obstore
    from obstore.store import AzureStore, GCSStore, S3Store  # noqa: PLC0415 - an extra

    scheme, _, rest = spec.url.partition("://")
    bucket, _, prefix = rest.partition("/")
    plain = spec.endpoint.startswith("http://")
    options: dict[str, Any] = {
        "prefix": prefix or None,
        "client_options": {
            "connect_timeout": "5s",
            "read_timeout": f"{SILENCE_S:g}s",
            "timeout": f"{PIECE_TIMEOUT_S}s",
            **({"allow_http": True} if plain else {}),
        },
        "retry_config": {"max_retries": 2, "retry_timeout": timedelta(seconds=SILENCE_S)},
    }
    if scheme == "gs":
        if spec.endpoint:
            options["base_url"] = spec.endpoint
        return GCSStore(bucket, **options)
    if spec.endpoint:
        options["endpoint"] = spec.endpoint
    if scheme == "az":
        return AzureStore(bucket, **options)
    profile: dict[str, Any] = dict(_aws_profile(environ))
    region = spec.region or environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or profile.pop("region", "")
    profile.pop("region", None)
    return S3Store(bucket, region=region or "us-east-1", **options, **profile)


def _aws_profile(environ: Mapping[str, str]) -> dict[str, str]:
    """What the files of Amazon's tools say for the user's profile; no keys where the environment has some."""
    home = Path(environ["HOME"]) if environ.get("HOME") else Path.home()
    name = environ.get("AWS_PROFILE") or "default"
    places = (
        (environ.get("AWS_SHARED_CREDENTIALS_FILE") or home / ".aws" / "credentials", name),
        (environ.get("AWS_CONFIG_FILE") or home / ".aws" / "config", name if name == "default" else f"profile {name}"),
    )
    found: dict[str, str] = {}
    for path, section in places:
        parser = configparser.RawConfigParser()
        try:
            parser.read(path, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError):
            continue
        if parser.has_section(section):
            found = {**parser[section], **found}
    keys = {
        "access_key_id": found.get("aws_access_key_id", ""),
        "secret_access_key": found.get("aws_secret_access_key", ""),
        "session_token": found.get("aws_session_token", ""),
    }
    if environ.get("AWS_ACCESS_KEY_ID") or not keys["access_key_id"]:
        keys = {}
    return {key: value for key, value in {**keys, "region": found.get("region", "")}.items() if value}
