"""A cache in an OCI registry: each wheel is a blob whose digest is the wheel's sha256; a lock is the manifest of an artifact that holds them.

Any registry of the distribution specification 1.0 or later will do, and any tool of it reads what is there: `oras pull` gives the wheels. The
manifest keeps the blobs from the registry's own garbage collection. https://github.com/opencontainers/distribution-spec, read 2026-11-30.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from builder.caches.protocol import CONNECTIONS, MOST_LOCKS, CachedLock, CachedWheel, CacheError, too_many_locks
from builder.caches.registry_keys import RegistryKeys
from builder.caches.together import together
from builder.caches.web import Web, read_blocks
from builder.uv_output import is_plain_file_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from builder.caches.protocol import Body, LockFile
    from envspec.spec import CacheSpec

MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
ARTIFACT_TYPE = "application/vnd.envspec.lock.v1"
LOCK_TYPE = "application/vnd.envspec.lock.v1+toml"
WHEEL_TYPE = "application/vnd.envspec.wheel.v1+zip"
EMPTY_TYPE = "application/vnd.oci.empty.v1+json"
EMPTY = b"{}"
TITLE = "org.opencontainers.image.title"
CREATED = "org.opencontainers.image.created"
NAME, ENV, SITE = "dev.envspec.name", "dev.envspec.env", "dev.envspec.site"
MANIFEST_LIMIT_BYTES = 8 << 20
UPLOAD_TRIES = 4
MOST_TAGS = 100_000
_PUSH_HINT = "does its configuration allow uploads, and your login to write there?"
_TAGS_HINT = (
    "nothing was deleted: a tag that is not known may need any wheel; give the wheels a repository of their own"
)
_DELETE_HINT = "allow deletion in the registry's configuration (docker-registry: `storage.delete.enabled: true`)"


class Registry:
    """See the module's docstring; methods are those of `builder.caches.protocol.Cache`."""

    kind = "OCI registry"
    locks_first = False

    def __init__(
        self,
        spec: CacheSpec,
        environ: Mapping[str, str],
        *,
        now_s: Callable[[], float] = time.time,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """Prepare; nothing is connected yet.

        Args:
            spec: The cache.
            environ: Where logins are looked for.
            now_s: This machine's clock, in seconds since 1970.
            pause: Waits so many seconds.
        """
        self.name = spec.name
        authority, _, repository = spec.url.removeprefix("oci://").partition("/")
        plain = spec.plain_http or is_loopback(authority)
        self._base = f"{'http' if plain else 'https'}://{authority}/v2/{repository}"
        self._keys = RegistryKeys(authority, environ, plain=plain)
        self._web = Web(spec.name, self._base, self._keys)
        self._to_hosts = spec.to_hosts
        self._now_s = now_s
        self._pause = pause

    def has(self, wheels: Sequence[CachedWheel]) -> frozenset[str]:
        """As `Cache`."""
        there = together(lambda wheel: self._has(wheel.sha256, wheel.size), wheels, most=CONNECTIONS)
        return frozenset(wheel.sha256 for wheel, is_there in zip(wheels, there, strict=True) if is_there)

    def fetch(self, wheel: CachedWheel, offset: int) -> AbstractContextManager[Body]:
        """As `Cache`."""
        return self._web.body(self._blob(wheel.sha256), offset, wheel.file)

    def store(self, wheel: CachedWheel, path: Path, advance: Callable[[int], None]) -> None:
        """As `Cache`: the registry compares the digest before it has the blob."""
        for tries_left in reversed(range(UPLOAD_TRIES)):
            told = 0

            def tell(units: int) -> None:
                nonlocal told
                told += units
                advance(units)

            try:
                self._upload(wheel, str(path), tell)
            except CacheError as error:
                advance(-told)  # they go again
                if error.kind != "lost" or not tries_left:
                    raise
            else:
                return

    def store_lock(self, lock: LockFile) -> None:
        """Tag a manifest of the lock and its wheels; the same lock is tagged once."""
        digest = hashlib.sha256(lock.content).hexdigest()
        tag = f"{re.sub('[^A-Za-z0-9_.-]', '-', lock.name)[:60]}-{lock.env}-{digest[:16]}"
        if self._web.ask("HEAD", self._manifest(tag), headers={"Accept": MANIFEST_TYPE}).status_code == 200:
            return
        for content in (EMPTY, lock.content):
            if not self._has(hashlib.sha256(content).hexdigest(), len(content)):
                self._upload_bytes(content)
        created = datetime.fromtimestamp(int(self._now_s()), timezone.utc).isoformat().replace("+00:00", "Z")
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "artifactType": ARTIFACT_TYPE,
            "config": _descriptor(EMPTY_TYPE, hashlib.sha256(EMPTY).hexdigest(), len(EMPTY)),
            "layers": [
                _descriptor(LOCK_TYPE, digest, len(lock.content), lock.file),
                *(_descriptor(WHEEL_TYPE, wheel.sha256, wheel.size, wheel.file) for wheel in lock.wheels),
            ],
            "annotations": {CREATED: created, NAME: lock.name, ENV: lock.env, SITE: lock.site},
        }
        self._put_manifest(tag, json.dumps(manifest, indent=1).encode())

    def _put_manifest(self, tag: str, content: bytes) -> None:
        """Tag a manifest. While another upload of a blob ends, a registry may not see the blob for a moment."""
        for pause_s in (0.2, 1.0, 0.0):
            response = self._web.ask(
                "PUT", self._manifest(tag), headers={"Content-Type": MANIFEST_TYPE}, content=content
            )
            if response.status_code in {200, 201}:
                return
            lacks_blobs = response.status_code == 400 and b"BLOB_UNKNOWN" in response.content
            if not lacks_blobs and response.status_code != 404:
                raise self._web.error(
                    f"it does not take the lock's manifest (status {response.status_code})", "unusable", _PUSH_HINT
                )
            self._pause(pause_s)
        raise self._web.error("wheels vanished while it was pushed to: somebody cleans up there", "lost", "push again")

    def locks(self) -> tuple[CachedLock, ...]:
        """Every tag of the repository that is one of ours."""
        return tuple(self._read_lock(tag) for tag in self._tags())

    def all_wheels(self) -> tuple[CachedWheel, ...]:
        """The wheels of all tagged locks: a registry does not say what else it has, and cleans that up itself."""
        found: dict[str, CachedWheel] = {}
        for tag in self._tags():
            for wheel in _wheels_of(self._read_manifest(tag)):
                found[wheel.sha256] = wheel
        return tuple(found[sha256] for sha256 in sorted(found))

    def details(self, wheels: Sequence[CachedWheel]) -> tuple[CachedWheel, ...]:
        """They are known."""
        return tuple(wheels)

    def delete(self, wheels: Sequence[CachedWheel], locks: Sequence[CachedLock]) -> None:
        """Delete the manifests, then the blobs that no other one names; the space is free after the registry's own garbage collection."""
        for lock in locks:
            response = self._web.ask("HEAD", self._manifest(lock.id), headers={"Accept": MANIFEST_TYPE})
            digest = response.headers.get("Docker-Content-Digest", "")
            if response.status_code == 200 and re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
                self._delete(self._manifest(digest))
        for wheel in wheels:
            self._delete(self._blob(wheel.sha256))

    def public_urls(self, wheels: Sequence[CachedWheel]) -> dict[str, str]:
        """As `Cache`: none where the user has a login, since anybody else may be refused."""
        if not self._to_hosts or self._keys.known:
            return {}
        return {wheel.sha256: self._blob(wheel.sha256) for wheel in wheels}

    def close(self) -> None:
        """As `Cache`."""
        self._web.close()

    def _blob(self, sha256: str) -> str:
        return f"{self._base}/blobs/sha256:{sha256}"

    def _manifest(self, reference: str) -> str:
        return f"{self._base}/manifests/{reference}"

    def _has(self, sha256: str, size: int) -> bool:
        response = self._web.ask("HEAD", self._blob(sha256), headers={"Accept-Encoding": "identity"})
        return response.status_code == 200 and response.headers.get("Content-Length", str(size)) == str(size)

    def _begin_upload(self) -> str:
        response = self._web.ask("POST", f"{self._base}/blobs/uploads/", headers={"Content-Length": "0"})
        location = response.headers.get("Location", "")
        if response.status_code != 202 or not location:
            raise self._web.error(f"it takes no uploads (status {response.status_code})", "unusable", _PUSH_HINT)
        return self._web.join(response, location)

    def _upload(self, wheel: CachedWheel, path: str, tell: Callable[[int], None]) -> None:
        """One upload; where the connection breaks the registry is asked how much arrived, and the rest is sent."""
        location, offset = self._begin_upload(), 0
        while True:
            headers = {
                "Content-Type": "application/octet-stream",
                "Content-Length": str(wheel.size - offset),
                **({"Content-Range": f"{offset}-{wheel.size - 1}"} if offset else {}),
            }
            blocks = functools.partial(read_blocks, path, offset, tell)
            try:
                response = self._web.ask("PATCH", location, headers=headers, content=blocks)
            except CacheError as error:
                arrived = self._arrived(location) if error.kind == "lost" else 0
                if not offset < arrived < wheel.size:
                    raise
                offset = arrived
                continue
            if response.status_code not in {201, 202, 204}:
                raise self._web.error(f"it takes no uploads (status {response.status_code})", "unusable", _PUSH_HINT)
            self._end_upload(self._web.join(response, response.headers.get("Location", location)), wheel.sha256)
            return

    def _arrived(self, location: str) -> int:
        try:
            response = self._web.ask("GET", location)
        except CacheError:
            return 0
        stated = re.fullmatch(r"(?:bytes=)?0-(\d{1,18})", response.headers.get("Range", ""))
        return int(stated[1]) + 1 if response.status_code == 204 and stated else 0

    def _end_upload(self, location: str, sha256: str) -> None:
        joint = "&" if urlsplit(location).query else "?"
        response = self._web.ask("PUT", f"{location}{joint}digest=sha256:{sha256}", headers={"Content-Length": "0"})
        if response.status_code not in {201, 204}:
            raise self._web.error(
                f"it does not take what was uploaded (status {response.status_code})", "lost", "push again"
            )

    def _upload_bytes(self, content: bytes) -> None:
        location = self._begin_upload()
        joint = "&" if urlsplit(location).query else "?"
        response = self._web.ask(
            "PUT",
            f"{location}{joint}digest=sha256:{hashlib.sha256(content).hexdigest()}",
            headers={"Content-Type": "application/octet-stream", "Content-Length": str(len(content))},
            content=content,
        )
        if response.status_code not in {201, 204}:
            raise self._web.error(f"it takes no uploads (status {response.status_code})", "unusable", _PUSH_HINT)

    def _delete(self, place: str) -> None:
        response = self._web.ask("DELETE", place)
        if response.status_code not in {200, 202, 204, 404}:
            raise self._web.error(f"it deletes nothing (status {response.status_code})", "unusable", _DELETE_HINT)

    def _tags(self) -> tuple[str, ...]:
        """The tags that look like ours."""
        found: list[str] = []
        url = f"{self._base}/tags/list?n=1000"
        while True:
            response = self._web.ask("GET", url)
            if response.status_code == 404:
                break
            try:
                found += [str(tag) for tag in response.json()["tags"] or ()]
            except (ValueError, KeyError, TypeError, RecursionError):
                raise self._web.error("it does not list its tags", "unlike") from None
            more = re.match(r"<([^>]+)>;\s*rel=\"?next", response.headers.get("Link", ""))
            if more is None:
                break
            if len(found) > MOST_TAGS:
                raise self._web.error(f"it has more than {MOST_TAGS:,} tags", "unusable", _TAGS_HINT)
            url = self._web.join(response, more[1])
        ours = {tag for tag in found if re.fullmatch(r"[A-Za-z0-9_.-]+-[a-z2-7]{32}-[0-9a-f]{16}", tag)}
        if len(ours) > MOST_LOCKS:
            raise too_many_locks(self.name)
        return tuple(sorted(ours))

    def _read_manifest(self, tag: str) -> dict[str, Any]:
        response = self._web.ask(
            "GET", self._manifest(tag), headers={"Accept": MANIFEST_TYPE}, limit_bytes=MANIFEST_LIMIT_BYTES
        )
        try:
            value = response.json()
            if (
                response.status_code == 200
                and value["artifactType"] == ARTIFACT_TYPE
                and isinstance(value["layers"], list)
            ):
                return dict(value)
        except (ValueError, KeyError, TypeError, RecursionError):
            pass
        raise self._web.error(
            f"its tag `{tag}` is not the manifest of a lock", "unlike", "delete the tag if nobody wants it"
        )

    def _read_lock(self, tag: str) -> CachedLock:
        manifest = self._read_manifest(tag)
        notes = manifest.get("annotations")
        notes = notes if isinstance(notes, dict) else {}
        try:
            stored = datetime.fromisoformat(str(notes.get(CREATED))).timestamp()
        except ValueError:
            stored = 0.0
        wheels = frozenset(wheel.sha256 for wheel in _wheels_of(manifest))
        return CachedLock(id=tag, name=str(notes.get(NAME)), wheels=wheels, stored_s=stored)


def is_loopback(authority: str) -> bool:
    """Whether a host and port is on this machine: docker too speaks to such registries without TLS."""
    host = urlsplit(f"//{authority}").hostname or ""
    return host in {"localhost", "::1"} or re.fullmatch(r"127(?:\.\d{1,3}){3}", host) is not None


def _descriptor(media_type: str, sha256: str, size: int, title: str = "") -> dict[str, Any]:
    annotations = {"annotations": {TITLE: title}} if title else {}
    return {"mediaType": media_type, "digest": f"sha256:{sha256}", "size": size, **annotations}


def _wheels_of(manifest: Mapping[str, Any]) -> Iterable[CachedWheel]:
    for layer in manifest["layers"]:
        digest = re.fullmatch(r"sha256:([0-9a-f]{64})", str(layer.get("digest", "")) if isinstance(layer, dict) else "")
        if digest and layer.get("mediaType") == WHEEL_TYPE and isinstance(layer.get("size"), int):
            notes = layer.get("annotations")
            title = str(notes.get(TITLE, "")) if isinstance(notes, dict) else ""
            file = title if title.endswith(".whl") and is_plain_file_name(title) else ""
            yield CachedWheel(sha256=digest[1], file=file, size=max(layer["size"], 0))
