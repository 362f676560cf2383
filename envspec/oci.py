"""The JSON documents of an OCI image (image-spec 1.1): configuration, manifest, index. Pure; the same values give the same bytes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from envspec.canonical import canonical_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar+gzip"
EMPTY_TYPE = "application/vnd.oci.empty.v1+json"
SBOM_TYPE = "application/vnd.cyclonedx+json"
LAYOUT_TEXT = b'{"imageLayoutVersion":"1.0.0"}'
EMPTY = b"{}"
REF_NAME = "org.opencontainers.image.ref.name"
EPOCH = "1970-01-01T00:00:00Z"
"""When everything was made: a time would make two equal images differ."""

SBOM_ENDING = ".sbom"
"""Of the tag of a bill of materials, after that of its image."""

ARCHITECTURES = {"linux-x86_64": "amd64", "linux-aarch64": "arm64"}
Document = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Blob:
    """What an image refers to."""

    media_type: str
    sha256: str
    size: int

    @classmethod
    def of(cls, media_type: str, content: bytes) -> Blob:
        """That of a content in memory."""
        return cls(media_type=media_type, sha256=hashlib.sha256(content).hexdigest(), size=len(content))

    @property
    def digest(self) -> str:
        """As OCI writes it."""
        return f"sha256:{self.sha256}"

    def to_json(self, **more: object) -> Document:
        """The descriptor.

        Args:
            more: Further keys, those without a value left out.
        """
        kept = {key: value for key, value in more.items() if value}
        return {"mediaType": self.media_type, "digest": self.digest, "size": self.size, **kept}


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageLayer:
    """A layer of our own in an image."""

    blob: Blob
    diff_id: str
    """sha256 of the uncompressed tar, 64 hex digits."""

    title: str
    """What it has, for people."""


def config_document(
    base: Document | None,
    layers: Sequence[ImageLayer],
    *,
    platform: str,
    environ: Mapping[str, str],
    path: str,
    labels: Mapping[str, str],
) -> Document:
    """The configuration of an image.

    Args:
        base: That of the image below; None if there is none.
        layers: Ours, from below.
        platform: `linux-x86_64` or `linux-aarch64`.
        environ: Variables that a container gets; of the base's those of other names stay.
        path: What stands before the folders of PATH.
        labels: Ours; the base's of other names stay.
    """
    below: Document = base or {}
    config: Document = dict(below.get("config") or {})
    inherited = dict(word.split("=", 1) for word in config.get("Env") or [] if "=" in word)
    default_path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    variables = {**inherited, **environ, "PATH": f"{path}:{inherited.get('PATH') or default_path}"}
    config["Env"] = [f"{name}={value}" for name, value in sorted(variables.items())]
    config["Labels"] = {**(config.get("Labels") or {}), **labels}
    lower: Document = below.get("rootfs") or {}
    diff_ids = [*(lower.get("diff_ids") or []), *(f"sha256:{layer.diff_id}" for layer in layers)]
    history = list(below.get("history") or [])
    if not history:  # where some layers have a history, all must
        history = [{"created": EPOCH, "created_by": "base image"} for _ in lower.get("diff_ids") or []]
    history += [{"created": EPOCH, "created_by": f"envspec: {layer.title}"} for layer in layers]
    return {
        "created": EPOCH,
        "architecture": ARCHITECTURES[platform],
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
        "history": history,
    }


def manifest_document(
    config: Blob, lower: Sequence[Document], layers: Sequence[ImageLayer], annotations: Mapping[str, str]
) -> Document:
    """The manifest of an image.

    Args:
        config: Its configuration.
        lower: Descriptors of the layers of the base.
        layers: Ours, from below.
        annotations: Of the image.
    """
    return {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": config.to_json(),
        "layers": [
            *lower,
            *(layer.blob.to_json(annotations={"io.envspec.title": layer.title}) for layer in layers),
        ],
        "annotations": dict(annotations),
    }


def sbom_document(sbom: Blob, image: Blob) -> Document:
    """The manifest of a bill of materials that refers to an image.

    Args:
        sbom: The bill.
        image: The image's manifest.
    """
    return {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "artifactType": SBOM_TYPE,
        "config": Blob.of(EMPTY_TYPE, EMPTY).to_json(),
        "layers": [sbom.to_json(annotations={"org.opencontainers.image.title": "bom.cdx.json"})],
        "subject": image.to_json(),
    }


def index_document(manifests: Sequence[Document]) -> Document:
    """The index of a layout.

    Args:
        manifests: Descriptors.
    """
    ordered = sorted(manifests, key=lambda each: (ref_name(each), each["digest"]))
    return {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": ordered}


def ref_name(descriptor: Document) -> str:
    """What an index calls an image; empty if it has no name. Whoever wrote the descriptor."""
    annotations = descriptor.get("annotations")
    return str(annotations.get(REF_NAME, "")) if isinstance(annotations, dict) else ""


def document_bytes(document: Document) -> bytes:
    """A document as it is written and named by its digest."""
    return canonical_json(document)
