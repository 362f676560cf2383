"""A lock -> an OCI image: in a layout that may hold others, or in one file."""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from builder.agent.hostfiles import cache_environment, host_files, host_links
from builder.agent.interpreter import Interpreter, interpreter_for
from builder.agent.pythons import find_python, unpack
from builder.agent.store import process_mark, remove_dead_temporaries, remove_readonly_tree, sync_folder
from builder.building import check_overlays, uv_path
from builder.host_building import PinnedFile
from builder.image.layer import FOLDER_MODE, Compiler, Layer, TarLayer
from builder.image.layout import ImageLayout, read_base
from builder.image.packing import pack_layers, remember, remembered
from builder.image.tar_headers import END, FILE, FOLDER, padding, tar_header
from builder.outputs import check_output, is_archive, writing
from builder.supplying import HostSupply
from envspec.canonical import record_sha256
from envspec.errors import EnvspecError
from envspec.image_plan import IMAGE_ROOT, IMAGE_STORE, LAYER_RECIPE
from envspec.lock import parts
from envspec.oci import (
    ARCHITECTURES,
    CONFIG_TYPE,
    EMPTY,
    EMPTY_TYPE,
    LAYER_TYPE,
    MANIFEST_TYPE,
    SBOM_ENDING,
    SBOM_TYPE,
    Blob,
    ImageLayer,
    config_document,
    document_bytes,
    manifest_document,
    sbom_document,
)
from envspec.tree import parent_dirs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from builder.agent.store import Store
    from builder.building import BuildRequest
    from builder.image.layout import BaseImage
    from builder.progress import Reporter
    from envspec.lock import Lock

STATE_MODE = 0o1777
"""Of the folder for compilers' caches: a container may run as any user."""

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageOrder:
    """What image is wanted."""

    output: Path
    """A folder with a layout, or a file whose name ends with `.tar`."""

    tag: str
    """Its name in the layout."""

    base: str = ""
    """Layout of the image below, `FOLDER` or `FOLDER:NAME`; empty if there is none."""

    python: str = ""
    """Path of the interpreter in the image; empty for that of the pinned archive, or `/usr/bin/python3.N`."""

    sbom: str = ""
    """The bill of materials."""

    bytecode: bool = True
    """Whether it has the bytecode of its modules."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedImage:
    """An image that is written."""

    digest: str
    """sha256 of its manifest."""

    layers: tuple[ImageLayer, ...]
    """Ours, from below."""

    size: int
    """Of all its layers, those of the base included."""

    written_bytes: int
    """What was not there."""

    python: str
    """Path of its interpreter."""

    bytecode: str
    """Version of the Python that made its bytecode; empty if there is none."""


def export_image(request: BuildRequest, order: ImageOrder, reporter: Reporter) -> ExportedImage:
    """Write the image of a lock.

    Args:
        request: Whose lock.
        order: What is wanted.
        reporter: Where progress goes.

    Raises:
        EnvspecError: A wheel cannot be had or is not the locked one, the base cannot be used, or the output is something else or cannot be
            written.
    """
    output = order.output
    check_output(output)
    base = read_base(order.base, ARCHITECTURES[request.lock.platform]) if order.base else None
    with writing(output):
        if not is_archive(output):
            return _export(request, order, base, ImageLayout(output), reporter)
        output.parent.mkdir(parents=True, exist_ok=True)
        remove_dead_temporaries(output.parent)
        folder = output.with_name(f".envspec-{process_mark()}-image")
        remove_readonly_tree(folder)
        try:
            exported = _export(request, order, base, ImageLayout(folder), reporter)
            _write_archive(folder, output)
        finally:
            remove_readonly_tree(folder)
        return exported


def _export(
    request: BuildRequest, order: ImageOrder, base: BaseImage | None, layout: ImageLayout, reporter: Reporter
) -> ExportedImage:
    lock = request.lock
    series = check_overlays(lock, request.folder, request.lock_name)
    with layout.opened(), HostSupply(request, series, reporter) as supply:
        wanted = [part.sha256 for part in parts(lock)]
        wheels = {sha256: future.result() for sha256, future in supply.ask(wanted).items()}
        with _pinned_python(request, order, layout) as pinned:
            compiler = _compiler(request, pinned) if order.bytecode else None
            layers = list(pack_layers(lock, wheels, request.store, layout, reporter, compiler=compiler))
            python = order.python or f"/usr/bin/python{lock.python}"
            if pinned is not None:
                layers.insert(0, _python_layer(pinned, request.store, layout))
                python = f"{pinned.prefix}/{pinned.python.relative_to(pinned.folder)}"
        layers.append(_last_layer(lock, python, layout))
        if base is not None:
            for descriptor in base.layers:
                layout.copy_from(base.folder, descriptor)
        labels = _labels(request, compiler)
        image = _add_manifest(request, base, layers, labels, layout)
        platform = {"os": "linux", "architecture": ARCHITECTURES[lock.platform]}
        entries = {order.tag: image.to_json(platform=platform)}
        if order.sbom:
            layout.add(EMPTY_TYPE, EMPTY)
            bill = sbom_document(layout.add(SBOM_TYPE, order.sbom.encode()), image)
            entries[f"{order.tag}{SBOM_ENDING}"] = layout.add(MANIFEST_TYPE, document_bytes(bill)).to_json(
                artifactType=SBOM_TYPE
            )
        layout.publish(entries)
    return ExportedImage(
        digest=image.sha256,
        layers=tuple(layers),
        size=sum(layer.blob.size for layer in layers)
        + sum(int(each["size"]) for each in (base.layers if base else ())),
        written_bytes=layout.written_bytes,
        python=python,
        bytecode=compiler.version if compiler else "",
    )


def _add_manifest(
    request: BuildRequest,
    base: BaseImage | None,
    layers: Sequence[ImageLayer],
    labels: dict[str, str],
    layout: ImageLayout,
) -> Blob:
    """Add the configuration and the manifest of an image whose layers are there."""
    lock = request.lock
    config = config_document(
        base.config if base else None,
        layers,
        platform=lock.platform,
        environ={
            **cache_environment(Path(IMAGE_STORE, "state", lock.env)),
            "VIRTUAL_ENV": IMAGE_ROOT,
            "PYTHONDONTWRITEBYTECODE": "1",
        },
        path=f"{IMAGE_ROOT}/bin",
        labels=labels,
    )
    below = {"org.opencontainers.image.base.digest": base.manifest.digest} if base else {}
    manifest = manifest_document(
        layout.add(CONFIG_TYPE, document_bytes(config)), base.layers if base else (), layers, {**labels, **below}
    )
    return layout.add(MANIFEST_TYPE, document_bytes(manifest))


def _labels(request: BuildRequest, compiler: Compiler | None) -> dict[str, str]:
    lock = request.lock
    made = {"io.envspec.bytecode": compiler.name} if compiler else {}
    return {
        **made,
        "org.opencontainers.image.title": lock.name,
        "org.opencontainers.image.version": lock.env,
        "io.envspec.name": lock.name,
        "io.envspec.env": lock.env,
        "io.envspec.site": lock.site,
        "io.envspec.lock": request.lock_sha256,
        "io.envspec.python": lock.python_exact or lock.python,
    }


def _last_layer(lock: Lock, python: str, layout: ImageLayout) -> ImageLayer:
    """What differs with each env id."""
    interpreter = Interpreter(
        path=Path(python),
        version=lock.python_exact or lock.python,
        implementation="cpython",
        cache_tag="",
        magic="",
        soabi="",
        ext_suffixes=(),
        libc="",
        machine="",
        base_prefix="",
    )
    state = f"{IMAGE_STORE}/state/{lock.env}"[1:]
    links = {f"{IMAGE_ROOT[1:]}/{path}": target for path, target in host_links(interpreter).items()}
    links[f"{IMAGE_STORE[1:]}/envs/{lock.env}-{lock.name}"] = f"../{Path(IMAGE_ROOT).name}"
    links[f"{IMAGE_STORE[1:]}/profiles/{lock.name}"] = f"../{Path(IMAGE_ROOT).name}"
    files = host_files(
        Path(IMAGE_ROOT), Path(f"/{state}"), env=lock.env, name=lock.name, site=lock.site, interpreter=interpreter
    )
    place = layout.temporary("last")
    with place.open("xb") as stream:
        tar = TarLayer(stream)
        tar.folders(parent_dirs([*links, *(f"{IMAGE_ROOT[1:]}/{path}" for path in files), state]))
        tar.folders({state}, mode=STATE_MODE)
        for path, text in sorted(files.items()):
            tar.file(f"{IMAGE_ROOT[1:]}/{path}", text.encode(), mode=0o444)
        for path, target in sorted(links.items()):
            tar.link(path, target)
        layer = tar.finish()
    return _taken(layout, place, layer, "activation")


def _taken(layout: ImageLayout, place: Path, layer: Layer, title: str) -> ImageLayer:
    if layout.has(layer.digest, layer.size):
        place.unlink()
    else:
        layout.take(place, layer.digest)
    return _image_layer(layer, title)


def _image_layer(layer: Layer, title: str) -> ImageLayer:
    return ImageLayer(
        blob=Blob(media_type=LAYER_TYPE, sha256=layer.digest, size=layer.size), diff_id=layer.diff_id, title=title
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pinned:
    """The archive with a Python that the spec pins, unpacked."""

    sha256: str
    folder: Path
    python: Path
    """In `folder`."""

    @property
    def prefix(self) -> str:
        """Where it lies in the image."""
        return f"{IMAGE_STORE}/pythons/{self.sha256}"


@contextlib.contextmanager
def _pinned_python(request: BuildRequest, order: ImageOrder, layout: ImageLayout) -> Iterator[_Pinned | None]:
    """The Python that the image gets; None if it has one already."""
    if order.python or not request.spec.python.archive:
        yield None
        return
    archive, folder = PinnedFile.of(request), layout.temporary("python")
    folder.mkdir()
    try:
        unpack(archive.path, folder)
        yield _Pinned(sha256=archive.sha256, folder=folder, python=find_python(folder, request.lock.python))
    finally:
        remove_readonly_tree(folder)


def _compiler(request: BuildRequest, pinned: _Pinned | None) -> Compiler:
    """The Python that makes the bytecode: that of the image, or one like it here.

    Raises:
        EnvspecError: There is none.
    """
    lock, here = request.lock, f"linux-{os.uname().machine}"
    try:
        found = interpreter_for(
            request.store,
            lock.python,
            lock.python_exact,
            platform=here,
            environ=request.environ,
            uv=uv_path(request.environ),
            may_install=not request.offline,
            only=os.fspath(pinned.python) if pinned is not None and lock.platform == here else "",
        )
    except EnvspecError as error:
        error.hint = "; ".join(filter(None, (error.hint, "`--no-bytecode` makes an image without bytecode")))
        raise
    return Compiler(path=os.fspath(found.path), version=found.version, cache_tag=found.cache_tag, magic=found.magic)


def _python_layer(pinned: _Pinned, store: Store, layout: ImageLayout) -> ImageLayer:
    """The pinned Python as a layer."""
    key = record_sha256(LAYER_RECIPE, [("python archive", pinned.sha256)])
    known = remembered(store, key)
    if known is not None and layout.has(known.digest, known.size):
        return _image_layer(known, "Python")
    place = layout.temporary("layer")
    with place.open("xb") as stream:
        tar = TarLayer(stream)
        _add_tree(tar, pinned.folder, pinned.prefix[1:])
        layer = tar.finish()
    remember(store, key, layer)
    return _taken(layout, place, layer, "Python")


def _add_tree(tar: TarLayer, folder: Path, prefix: str) -> None:
    """Add an unpacked archive: folders, then files and links by their paths."""
    found = sorted(folder.rglob("*"))
    places = {f"{prefix}/{path.relative_to(folder)}" for path in found if path.is_dir() and not path.is_symlink()}
    tar.folders(places | parent_dirs([f"{prefix}/x"]))
    for path in found:
        place, status = f"{prefix}/{path.relative_to(folder)}", path.lstat()
        if stat.S_ISLNK(status.st_mode):
            tar.link(place, os.fspath(path.readlink()))
        elif stat.S_ISREG(status.st_mode):
            with path.open("rb") as file:
                mode = 0o555 if status.st_mode & 0o111 else 0o444
                tar.stream(place, iter(lambda: file.read(_CHUNK_BYTES), b""), mode=mode, size=status.st_size)


def _write_archive(folder: Path, output: Path) -> None:
    """A layout as one tar; each blob goes as it is copied, so that no disk needs room for two images."""
    beside = output.with_name(f".envspec-{process_mark()}-archive")
    beside.unlink(missing_ok=True)
    try:
        with beside.open("xb") as stream:
            for name in ("blobs/", "blobs/sha256/"):
                stream.write(tar_header(name, kind=FOLDER, mode=FOLDER_MODE))
            blobs = sorted(path for path in (folder / "blobs" / "sha256").iterdir() if not path.name.startswith("."))
            for path in (folder / "oci-layout", folder / "index.json", *blobs):
                size = path.stat().st_size
                name = os.fspath(path.relative_to(folder))
                stream.write(tar_header(name, kind=FILE, mode=0o644, size=size))
                with path.open("rb") as file:
                    while chunk := file.read(_CHUNK_BYTES):
                        stream.write(chunk)
                stream.write(padding(size))
                path.unlink()
            stream.write(END)
            stream.flush()
            os.fsync(stream.fileno())
        beside.replace(output)
        with contextlib.suppress(OSError):
            sync_folder(output.parent)
    finally:
        beside.unlink(missing_ok=True)
