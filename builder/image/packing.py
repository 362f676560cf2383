"""A lock -> the layers of its image in a layout: those that are there stay, the others are written, several at a time."""

from __future__ import annotations

import contextlib
import json
import os
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from builder.agent.archive import ArchiveDamaged
from builder.agent.files import hash_file
from builder.agent.link import file_rows
from builder.agent.store import make_folder, read_json, write_atomically
from builder.agent.unpack import read_wheel
from builder.deciding import manifest_of
from builder.image.bytecode_layer import is_module, write_bytecode_layer
from builder.image.layer import Layer, LayerOrder, LayerPart, write_layer
from builder.measure import read_facts
from envspec.compose import CollisionError, compose
from envspec.errors import FOUND_WRONG, EnvspecError
from envspec.image_plan import Module, layer_key, plan_layers
from envspec.lock import owners, parts
from envspec.oci import LAYER_TYPE, Blob, ImageLayer
from envspec.tree import tree_digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from builder.agent.store import Store
    from builder.image.layer import Compiler
    from builder.image.layout import ImageLayout
    from builder.progress import Reporter
    from envspec.compose import Composition
    from envspec.lock import Lock, Part

Result = TypeVar("Result")

SMALL_BYTES = 64 << 20
"""Wheels that are done before another process has started."""

COMPILING = 10
"""How many times longer a byte of a module takes to be compiled than a byte of a wheel to be copied."""


def pack_layers(
    lock: Lock,
    wheels: Mapping[str, Path],
    store: Store,
    layout: ImageLayout,
    reporter: Reporter,
    *,
    compiler: Compiler | None = None,
) -> tuple[ImageLayer, ...]:
    """Bring the layers of a lock into a layout.

    Args:
        lock: The lock.
        wheels: sha256 -> file, of every part.
        store: Remembers manifests, and which layer came of what.
        layout: Where they go; opened.
        reporter: Where progress goes.
        compiler: Makes the bytecode; None for no bytecode.

    Returns:
        They, from below, without the last one.

    Raises:
        EnvspecError: A wheel is not the locked one, or the lock contradicts itself.
    """
    weight = sum(part.size for part in parts(lock))
    with _Workers(weight) as workers:
        texts = _manifests(lock, wheels, store, workers, reporter)
        composition = _compose(lock, texts)
        orders = list(_orders(lock, wheels, texts, composition, compiler))
        found: dict[str, Layer] = {}
        waiting = {}
        total = sum(weight for _, weight in orders)
        with reporter.stage("packing layers", total=total, unit="bytes") as advance:
            for order, weight in sorted(orders, key=lambda row: -row[1]):
                known = remembered(store, order.key)
                if known is not None and layout.has(known.digest, known.size):
                    found[order.key] = known
                    advance(weight)
                    continue
                place = layout.temporary(order.key)
                write = write_layer if order.compiler is None else write_bytecode_layer
                waiting[workers.submit(write, order, os.fspath(place))] = (order, weight, place)
            for future in as_completed(waiting):
                order, weight, place = waiting[future]
                layer = future.result()
                layout.take(place, layer.digest)
                remember(store, order.key, layer)
                found[order.key] = layer
                advance(weight)
    return tuple(
        ImageLayer(
            blob=Blob(media_type=LAYER_TYPE, sha256=layer.digest, size=layer.size),
            diff_id=layer.diff_id,
            title=order.title,
        )
        for order, _ in orders
        for layer in (found[order.key],)
    )


def _orders(
    lock: Lock,
    wheels: Mapping[str, Path],
    texts: Mapping[str, str],
    composition: Composition,
    compiler: Compiler | None,
) -> Iterator[tuple[LayerOrder, int]]:
    """The layers, from below, each with about how much work it is: bytes of wheels."""
    modules = [
        Module(package=part.package, path=path, sha256=sha256, size=size)
        for part in (parts(lock) if compiler else ())
        for path, _, sha256, size in file_rows(texts[part.tree])
        if is_module(path) and path not in composition.skipped.get(part.package, ())
    ]
    giving = {
        path: package
        for package, paths in composition.skipped.items()
        for path in paths
        if path in composition.generated
    }
    for plan in plan_layers(lock, modules):
        names = set() if plan.modules else {part.package for part in plan.parts}
        instead = {path: content for path, content in composition.generated.items() if giving.get(path) in names}
        makes = compiler if plan.modules else None
        order = LayerOrder(
            title=plan.title,
            key=layer_key(plan, lock.python, composition.skipped, instead, makes.name if makes else ""),
            python=lock.python,
            parts=tuple(
                LayerPart(
                    package=part.package,
                    wheel=os.fspath(wheels[part.sha256]),
                    file=part.file,
                    sha256=part.sha256,
                    manifest=texts[part.tree],
                    skipped=composition.skipped.get(part.package, frozenset()),
                )
                for part in plan.parts
            ),
            instead=instead,
            compiler=makes,
            modules=frozenset(module.path for module in plan.modules),
        )
        yield order, COMPILING * sum(module.size for module in plan.modules) if makes else plan.size


def _compose(lock: Lock, texts: Mapping[str, str]) -> Composition:
    hint = "the lock contradicts itself: restore it from version control, or delete it and run `envspec lock`"
    try:
        composition = compose([(part.package, texts[part.tree]) for part in parts(lock)], owners(lock.waivers))
    except CollisionError as error:
        raise EnvspecError(
            f"the locked wheels do not fit together: {error}", hint=hint, exit_code=FOUND_WRONG
        ) from error
    if composition.site != lock.site:
        raise EnvspecError(
            f"the locked wheels give the site digest {composition.site}, the lock has {lock.site}",
            hint=hint,
            exit_code=FOUND_WRONG,
        )
    return composition


def _manifests(
    lock: Lock, wheels: Mapping[str, Path], store: Store, workers: _Workers, reporter: Reporter
) -> dict[str, str]:
    """Tree digest -> manifest, from the store where it is known, else measured."""
    texts: dict[str, str] = {}
    unknown: list[Part] = []
    for part in parts(lock):
        text = _known_manifest(store, part, lock.python)
        if text is None:
            unknown.append(part)
        else:
            texts[part.tree] = text
    if unknown:
        with reporter.stage("measuring", total=len(unknown), unit="wheels") as advance:
            futures = {
                workers.submit(_measure, os.fspath(wheels[part.sha256]), part.file, part.sha256, lock.python): part
                for part in sorted(unknown, key=lambda each: -each.size)
            }
            for future in as_completed(futures):
                part, text = futures[future], future.result()
                if tree_digest(text) != part.tree:
                    raise EnvspecError(
                        f"{part.file} gives the tree {tree_digest(text)}, the lock has {part.tree}",
                        hint="restore the lock from version control, or delete it and run `envspec lock`",
                        exit_code=FOUND_WRONG,
                    )
                texts[part.tree] = text
                with contextlib.suppress(OSError):  # a store that cannot be written measures again
                    make_folder(store.facts)
                    write_atomically(_measured(store, part.tree), text)
                advance(1)
    return texts


def _known_manifest(store: Store, part: Part, python: str) -> str | None:
    for path in (store.tree(part.tree).manifest_path, _measured(store, part.tree)):
        with contextlib.suppress(OSError, UnicodeDecodeError):
            text = path.read_text(encoding="ascii")
            if tree_digest(text) == part.tree:
                return text
    facts = read_facts(store.facts, part.sha256, python)
    text = "" if facts is None else manifest_of(facts)
    return text if tree_digest(text) == part.tree else None


def _measure(wheel: str, file: str, sha256: str, python: str) -> str:
    if (found := hash_file(wheel)) != sha256:
        raise EnvspecError(
            f"the wheel {file} in the store has sha256 {found}, the lock has {sha256}",
            input_name=wheel,
            hint="remove that file: it is fetched again",
            exit_code=FOUND_WRONG,
        )
    try:
        return read_wheel(Path(wheel), file, python).manifest
    except ArchiveDamaged as error:
        raise EnvspecError(f"{file}: {error}", input_name=wheel, exit_code=FOUND_WRONG) from error


def _measured(store: Store, tree: str) -> Path:
    """Where a manifest lies that was measured for an export, and not for a lock or a build."""
    return store.facts / f"tree-{tree}.mtree"


def _memory(store: Store, key: str) -> Path:
    return store.facts / f"layer-{key}.json"


def remembered(store: Store, key: str) -> Layer | None:
    """The layer that came of something before.

    Args:
        store: What was exported from.
        key: Digest of all that decides the layer.
    """
    fields = read_json(_memory(store, key))
    try:
        return None if fields is None else Layer(**{name: fields[name] for name in ("digest", "size", "diff_id")})
    except (KeyError, TypeError):
        return None


def remember(store: Store, key: str, layer: Layer) -> None:
    """Leave word of which blob came of what; a store that cannot be written forgets it."""
    with contextlib.suppress(OSError):
        make_folder(store.facts)
        write_atomically(_memory(store, key), json.dumps(asdict(layer)) + "\n")


class _Workers:
    """Processes for what is large; what is small is done at once."""

    def __init__(self, weight_bytes: int) -> None:
        self._pool = None
        if weight_bytes > SMALL_BYTES:
            self._pool = ProcessPoolExecutor(len(os.sched_getaffinity(0)), mp_context=get_context("spawn"))

    def __enter__(self) -> _Workers:  # noqa: PYI034 - as everywhere here
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def submit(self, work: Callable[..., Result], *arguments: object) -> Future[Result]:
        """Do something, here and now or in another process."""
        if self._pool is not None:
            return self._pool.submit(work, *arguments)
        future: Future[Result] = Future()
        try:
            future.set_result(work(*arguments))
        except Exception as error:  # noqa: BLE001 - carried to whoever waits
            future.set_exception(error)
        return future
