"""An OCI image layout on disk: blobs by digest, an index, and what another one has that ours builds on.

What is read is an input like any other: small documents with a limit, digests checked, nothing followed out of the folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from builder.agent.files import hash_file
from builder.agent.store import process_mark, remove_dead_temporaries, sync_filesystem, write_atomically, write_new
from builder.outputs import alone_in
from envspec.errors import FOUND_WRONG, EnvspecError
from envspec.oci import (
    CONFIG_TYPE,
    INDEX_TYPE,
    LAYOUT_TEXT,
    MANIFEST_TYPE,
    REF_NAME,
    Blob,
    Document,
    config_document,
    document_bytes,
    index_document,
    ref_name,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DOCUMENT_LIMIT_BYTES = 4 << 20
"""Of an index, a manifest or a configuration: what registries take."""

_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_LAYER_TYPE = re.compile(r"application/vnd\.oci\.image\.layer\.v1\.tar(\+gzip|\+zstd)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseImage:
    """The image below."""

    folder: Path
    manifest: Blob
    config: Document
    layers: tuple[Document, ...]
    """Descriptors."""


class ImageLayout:
    """A layout that is written to. Blobs come first; the index names them at the end, so that a reader never misses one."""

    def __init__(self, root: Path) -> None:
        """Name it; nothing is touched.

        Args:
            root: Its folder.
        """
        self.root = root
        self.blobs = root / "blobs" / "sha256"
        self.written_bytes = 0

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Make it if it is not there, and keep other writers out.

        Raises:
            EnvspecError: The folder is something else.
            OSError: It cannot be made.
        """
        with alone_in(self.root):
            self._begin()
            self.blobs.mkdir(parents=True, exist_ok=True)
            remove_dead_temporaries(self.blobs)
            try:
                yield
            finally:
                for leftover in self.blobs.glob(f".envspec-{process_mark()}-*"):
                    leftover.unlink(missing_ok=True)

    def _begin(self) -> None:
        """Make an empty layout of an empty folder, so that whatever is killed leaves one that the next export goes on with.

        Raises:
            EnvspecError: It is neither.
        """
        if (self.root / "oci-layout").is_file():
            return
        remove_dead_temporaries(self.root)
        if any(self.root.iterdir()):
            raise EnvspecError(
                f"`{self.root}` is not empty, and no OCI image layout",
                hint="name an empty or a new folder, or a file that ends with `.tar`",
            )
        write_atomically(self.root / "oci-layout", LAYOUT_TEXT)

    def blob(self, sha256: str) -> Path:
        """Where a blob lies or will lie."""
        return self.blobs / sha256

    def has(self, sha256: str, size: int) -> bool:
        """Whether a blob is there, whole and right."""
        try:
            path = self.blob(sha256)
            return path.lstat().st_size == size and hash_file(os.fspath(path)) == sha256
        except OSError:
            return False

    def temporary(self, name: str) -> Path:
        """Where a blob is written before its digest is known."""
        path = self.blobs / f".envspec-{process_mark()}-{name}"
        path.unlink(missing_ok=True)
        return path

    def take(self, source: Path, sha256: str) -> None:
        """Give a written blob its name."""
        self.written_bytes += source.stat().st_size
        source.replace(self.blob(sha256))

    def add(self, media_type: str, content: bytes) -> Blob:
        """Add a blob that is in memory, unless it is there."""
        blob = Blob.of(media_type, content)
        if not self.has(blob.sha256, blob.size):
            place = self.temporary("document")
            write_new(place, content)
            self.take(place, blob.sha256)
        return blob

    def copy_from(self, folder: Path, descriptor: Document) -> None:
        """Take a blob of another layout, checked by its digest.

        Raises:
            EnvspecError: It is not what its digest says.
            OSError: It cannot be read.
        """
        sha256, size = _digest_of(descriptor), int(descriptor["size"])
        if self.has(sha256, size):
            return
        beside = self.temporary("base")
        digest = hashlib.sha256()
        copied = 0
        with _open_blob(folder, sha256) as source, beside.open("xb") as target:
            while chunk := source.read(1 << 20):
                digest.update(chunk)
                copied += len(chunk)
                target.write(chunk)
        if (digest.hexdigest(), copied) != (sha256, size):
            beside.unlink()
            raise EnvspecError(
                f"a blob of the base has sha256 {digest.hexdigest()} and {copied} bytes, its name says {sha256} and {size}",
                input_name=os.fspath(folder),
                hint="fetch the base again",
                exit_code=FOUND_WRONG,
            )
        self.take(beside, sha256)

    def publish(self, entries: dict[str, Document]) -> None:
        """Name images in the index; entries of other names stay.

        Args:
            entries: Name -> descriptor.

        Raises:
            EnvspecError: The index that is there cannot be read.
        """
        kept: list[Document] = []
        if (self.root / "index.json").exists():
            index = _read_document(self.root / "index.json", os.fspath(self.root))
            there = index.get("manifests")
            if not isinstance(there, list) or not all(
                isinstance(each, dict) and isinstance(each.get("digest"), str) for each in there
            ):
                raise _no_layout(self.root, "its index has no manifests")
            kept = [each for each in there if ref_name(each) not in entries]
        ours = [
            {**entry, "annotations": {**entry.get("annotations", {}), REF_NAME: name}}
            for name, entry in entries.items()
        ]
        try:
            content = document_bytes(index_document([*kept, *ours]))
        except (ValueError, TypeError) as error:  # half of a surrogate pair, or no number
            raise _no_layout(self.root, f"its index has what JSON has not: {error}") from error
        sync_filesystem(self.root)
        write_atomically(self.root / "index.json", content)


def read_base(reference: str, platform_architecture: str) -> BaseImage:
    """The image of a layout.

    Args:
        reference: Its folder, or `FOLDER:NAME`.
        platform_architecture: As OCI calls it: `amd64`.

    Raises:
        EnvspecError: There is no such image, it is for another machine, or its documents are none.
    """
    from pathlib import Path  # noqa: PLC0415 - beside its only use

    folder, name = Path(reference), ""
    if not folder.is_dir() and ":" in reference:
        place, _, name = reference.rpartition(":")
        folder = Path(place)
    if not (folder / "oci-layout").is_file():
        raise EnvspecError(
            f"`{folder}` is no OCI image layout",
            input_name="--base",
            hint="`skopeo copy docker://IMAGE oci:FOLDER:NAME` makes one",
        )
    try:
        return _read_base(folder, name, platform_architecture)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _no_layout(folder, f"{type(error).__name__}: {str(error)[:100]}") from error
    except OSError as error:
        raise _no_layout(folder, f"`{error.filename}` cannot be read: {error.strerror}") from error


def _read_base(folder: Path, name: str, platform_architecture: str) -> BaseImage:
    index = _read_document(folder / "index.json", os.fspath(folder))
    found = _choose(folder, index, name, platform_architecture)
    if found.get("mediaType") == INDEX_TYPE:
        found = _choose(folder, _read_blob(folder, found), "", platform_architecture)
    if found.get("mediaType") != MANIFEST_TYPE:
        raise _no_layout(folder, f"`{found.get('mediaType')}` is no image of OCI")
    manifest = _read_blob(folder, found)
    layers, config_descriptor = manifest.get("layers"), manifest.get("config")
    if not isinstance(layers, list) or not isinstance(config_descriptor, dict):
        raise _no_layout(folder, "its manifest has no layers or no configuration")
    if config_descriptor.get("mediaType") != CONFIG_TYPE:
        raise _no_layout(folder, f"`{config_descriptor.get('mediaType')}` is no image of OCI")
    for layer in layers:
        if not isinstance(layer, dict) or _LAYER_TYPE.fullmatch(str(layer.get("mediaType"))) is None:
            raise _no_layout(folder, f"`{str(layer)[:200]}` is no layer of OCI")
        _digest_of(layer)
    config = _read_blob(folder, config_descriptor)
    _check_config(folder, config, len(layers), platform_architecture)
    kept = tuple({key: layer[key] for key in ("mediaType", "digest", "size")} for layer in layers)
    blob = Blob(media_type=MANIFEST_TYPE, sha256=_digest_of(found), size=int(found["size"]))
    return BaseImage(folder=folder, manifest=blob, config=config, layers=kept)


def _check_config(folder: Path, config: Document, layers: int, architecture: str) -> None:
    rootfs, inner = config.get("rootfs"), config.get("config") or {}
    ids = rootfs.get("diff_ids") if isinstance(rootfs, dict) else None
    if not isinstance(ids, list) or len(ids) != layers or not all(_DIGEST.fullmatch(str(each)) for each in ids):
        raise _no_layout(folder, "its configuration does not fit its layers")
    if not isinstance(inner, dict) or not all(isinstance(word, str) for word in inner.get("Env") or []):
        raise _no_layout(folder, "its configuration has variables that are none")
    document_bytes(
        config_document(config, (), platform="linux-x86_64", environ={}, path="", labels={})
    )  # can it be built on?
    labels = inner.get("Labels") or {}
    if not isinstance(labels, dict) or not isinstance(config.get("history") or [], list):
        raise _no_layout(folder, "its configuration cannot be read")
    if (config.get("os"), config.get("architecture")) != ("linux", architecture):
        raise EnvspecError(
            f"the base is for {config.get('os')}/{config.get('architecture')}, the lock for linux/{architecture}",
            input_name="--base",
            exit_code=FOUND_WRONG,
        )
    if "io.envspec.env" in labels:
        raise EnvspecError(
            f"the base has an environment already, {labels['io.envspec.env']}",
            input_name="--base",
            hint="name the image that it was made from: two environments in one place would mix",
        )


def _choose(folder: Path, index: Document, name: str, architecture: str) -> Document:
    manifests = [each for each in index.get("manifests") or [] if isinstance(each, dict) and "subject" not in each]
    if name:
        manifests = [each for each in manifests if ref_name(each) == name]
    if len(manifests) > 1:
        platforms = [each for each in manifests if (each.get("platform") or {}).get("architecture") == architecture]
        manifests = platforms or manifests
    if len(manifests) != 1:
        names = ", ".join(f"`{ref_name(each)}`" for each in manifests[:10])
        raise EnvspecError(
            f"`{folder}` has {len(manifests)} images{f' named `{name}`' if name else ''}{f': {names}' if names else ''}",
            input_name="--base",
            hint="name one: `--base FOLDER:NAME`",
        )
    return manifests[0]


def _digest_of(descriptor: Document) -> str:
    match = _DIGEST.fullmatch(str(descriptor.get("digest")))
    if match is None or not isinstance(descriptor.get("size"), int):
        raise EnvspecError(
            f"`{str(descriptor.get('digest'))[:100]}` is no digest of sha256 with a size", input_name="--base"
        )
    return match[1]


@contextlib.contextmanager
def _open_blob(folder: Path, sha256: str) -> Iterator[Any]:
    fd = os.open(folder / "blobs" / "sha256" / sha256, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        yield file


def _read_blob(folder: Path, descriptor: Document) -> Document:
    sha256 = _digest_of(descriptor)
    try:
        return _read_document(folder / "blobs" / "sha256" / sha256, os.fspath(folder), sha256)
    except FileNotFoundError as error:
        raise _no_layout(folder, f"the blob {sha256} is missing") from error


def _read_document(path: Path, input_name: str, sha256: str = "") -> Document:
    with path.open("rb") as file:
        raw = file.read(DOCUMENT_LIMIT_BYTES + 1)
    found = hashlib.sha256(raw).hexdigest()
    if sha256 and found != sha256:
        raise EnvspecError(
            f"a document has sha256 {found}, its name says {sha256}", input_name=input_name, exit_code=FOUND_WRONG
        )
    try:
        value = json.loads(raw) if len(raw) <= DOCUMENT_LIMIT_BYTES else None
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise EnvspecError(f"`{path.name}` is no JSON object that an image has", input_name=input_name)
    return value


def _no_layout(folder: Path, reason: str) -> EnvspecError:
    return EnvspecError(f"`{folder}` cannot be used as an image: {reason}", input_name=os.fspath(folder))
