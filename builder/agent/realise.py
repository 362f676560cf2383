"""A plan -> an environment at its store path, proven.

The plan names wheels by sha256 and trees by digest. Objects (trees and their bytecode) are made by the workers or are there already; then the
environment is composed, linked, walked and given its name, or nothing is left of it.

Standard library only, CPython >= 3.10.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from builder.agent.bytecode import bytecode_path
from builder.agent.files import walk_paths, write_file
from builder.agent.hostfiles import host_files, host_links
from builder.agent.link import file_rows
from builder.agent.store import (
    Store,
    StoreObject,
    env_record_path,
    make_folder,
    remove_readonly_tree,
    rename_new,
    sync_filesystem,
    sync_folder,
    write_atomically,
)
from envspec.compose import CollisionError, Composition, compose
from envspec.errors import FOUND_WRONG, EnvspecError
from envspec.tree import decode_path, manifest_lines, parent_dirs, path_of_line, tree_digest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path
    from types import TracebackType

    from builder.agent.interpreter import Interpreter
    from builder.agent.pool import WorkerPool

SHOWN_DIFFERENCES = 10
TASKS_PER_WORKER = 3  # so that a worker that is done early finds something to do


@dataclass(frozen=True)
class PlanPart:
    """One wheel of a plan: the patched one where there is an overlay."""

    package: str
    file: str
    sha256: str
    tree: str
    donor: str = ""
    """Digest of a tree that most files can be linked from (that of the base wheel of an overlay); empty if there is none."""

    base_sha256: str = ""
    """Of the base wheel of an overlay; empty if there is no overlay."""


@dataclass(frozen=True)
class Plan:
    """Everything that decides an environment, as the agent needs it."""

    env: str
    name: str
    python: str
    """Minor version."""

    site: str
    parts: tuple[PlanPart, ...]
    """Sorted by package."""

    owners: tuple[tuple[str, str], ...] = ()
    """Pattern of a contended path, package whose file stays."""


class WheelDamaged(EnvspecError):  # noqa: N818 - it says what is the matter
    """A wheel in the wheelhouse is not what it was when it was fetched.

    Attributes:
        wheel: The file.
    """

    def __init__(self, wheel: Path, message: str) -> None:
        super().__init__(message, hint=f"delete `{wheel}`; `envspec build` fetches it again", exit_code=FOUND_WRONG)
        self.wheel = wheel


class CorruptObjects(EnvspecError):  # noqa: N818 - it says what is the matter
    """Objects of the store are not what they were.

    Attributes:
        trees: Digests of the trees concerned (for bytecode: those that it was made from).
        files: Some of the files concerned.
    """

    def __init__(self, trees: tuple[str, ...], files: tuple[str, ...]) -> None:
        super().__init__(
            f"{len(files)} file{'s' if len(files) != 1 else ''} in the store changed after being proven",
            detail="\n".join(files[:SHOWN_DIFFERENCES]),
            hint="run `envspec build --repair`: it makes the damaged objects anew from the wheelhouse",
            exit_code=FOUND_WRONG,
        )
        self.trees = trees
        self.files = files


@dataclass(frozen=True)
class Realised:
    """An environment that is complete and proven."""

    path: Path
    files: int
    """Of the site, bytecode and host files left out."""

    bytecode_sha256: str
    """Of the bytecode of all parts."""

    rehashed: int
    """Files that were read again because their change time was later than known."""


def realise(
    store: Store,
    plan: Plan,
    interpreter: Interpreter,
    pool: WorkerPool,
    *,
    proven: Mapping[tuple[str, str], int],
) -> Realised:
    """Compose, link, prove and register an environment whose objects exist.

    The caller holds `locks/env-<env id>`, and `locks/gc` shared.

    Args:
        store: The store.
        plan: What to make.
        interpreter: The Python of the environment.
        pool: Its workers.
        proven: (kind, object name) -> ctime in nanoseconds up to which this process knows the object's inodes to be right, where it
            made the object itself and so knows better than the stamp.

    Raises:
        CorruptObjects: Objects changed since they were proven.
        EnvspecError: The result is not what the lock predicts, or cannot be written.
    """
    texts = _manifests(store, plan)
    try:
        composition = compose([(part.package, texts[part.tree]) for part in plan.parts], dict(plan.owners))
    except CollisionError as error:
        raise EnvspecError(
            f"the locked wheels do not fit together: {error}",
            hint="the lock contradicts itself: restore it from version control, or delete it and run `envspec lock`",
            exit_code=FOUND_WRONG,
        ) from error
    if composition.site != plan.site:
        raise EnvspecError(
            f"the locked wheels give the site digest {composition.site}, the lock has {plan.site}",
            hint="the lock contradicts itself: restore it from version control, or delete it and run `envspec lock`",
            exit_code=FOUND_WRONG,
        )
    tag = bytecode_tag_of(interpreter)
    bytecode_texts = _bytecode_manifests(store, plan, tag)
    final = store.env(plan.env, plan.name)
    root = store.temporary(f"env-{plan.env}")
    try:
        files = host_files(
            final,
            None if store.shared else store.state(plan.env),
            env=plan.env,
            name=plan.name,
            site=plan.site,
            interpreter=interpreter,
        )
        links = host_links(interpreter)
        skipped = _with_bytecode(composition.skipped, interpreter)
        with _Linking(store, plan, tag, pool, root, skipped, proven) as linking:
            site_paths, folders = _paths(composition.manifest)  # while the workers link
            compiled, compiled_folders = _compiled_paths(plan, bytecode_texts, skipped)
            folders |= compiled_folders | parent_dirs([*files, *links])
            stamps, copied, rehashed = linking.wait()
        os.makedirs(f"{root}/bin", exist_ok=True)  # noqa: PTH103 - text
        for path, content in composition.generated.items():
            write_file(f"{root}/{path}", content, executable=False)
        for path, text in files.items():
            write_file(f"{root}/{path}", text.encode(), executable=False)
        for path, target in links.items():
            (root / path).symlink_to(target)
        bytecode_sha256 = bytecode_digest(bytecode_texts.values())
        record = _env_record(
            plan, interpreter, tag, composition, files, links, skipped, stamps, bytecode_sha256=bytecode_sha256
        )
        from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - a tenth of the start of an agent that only looks

        with ThreadPoolExecutor(1) as beside:
            syncing = beside.submit(_close_and_sync, root, folders, store.root)
            _prove(root, site_paths | compiled | files.keys() | links.keys(), folders)
            syncing.result()
        for (kind, name), moment in stamps.items():
            source = StoreObject(store.root / kind / name)
            if (kind, name) not in copied and moment > source.proven_ns():
                source.stamp(moment)
        receipts = store.receipts(plan.env)
        make_folder(receipts)
        write_atomically(receipts / "site.mtree", composition.manifest)
        write_atomically(
            env_record_path(store, plan.env, plan.name), json.dumps(record, indent=1, sort_keys=True) + "\n"
        )
        if not rename_new(root, final):
            raise EnvspecError(f"`{final}` appeared while it was being built", hint="build again")
        final.chmod(0o555)
        sync_folder(final.parent)
    finally:
        remove_readonly_tree(root)
    return Realised(
        path=final,
        files=len(site_paths),
        bytecode_sha256=bytecode_sha256,
        rehashed=rehashed,
    )


def _close_and_sync(root: Path, folders: Iterable[str], store_root: Path) -> None:
    """Take everybody's permission to write into the folders of a new tree, and bring all to the disk."""
    for folder in folders:
        os.chmod(f"{root}/{folder}", 0o555)  # noqa: PTH101, S103 - as all of the store, for every user to read
    sync_filesystem(store_root)


def bytecode_tag_of(interpreter: Interpreter) -> str:
    """The kind of bytecode that an interpreter makes and reads."""
    return f"{interpreter.cache_tag}-{interpreter.magic}"


def bytecode_digest(texts: Iterable[str]) -> str:
    """One digest of the manifests of all bytecode of an environment."""
    return hashlib.sha256("".join(sorted(tree_digest(text) for text in texts)).encode()).hexdigest()


def _manifests(store: Store, plan: Plan) -> dict[str, str]:
    """Tree digest -> manifest, each checked against its digest."""
    texts: dict[str, str] = {}
    damaged: list[str] = []
    for part in plan.parts:
        raw = store.tree(part.tree).manifest_path.read_bytes()
        if hashlib.sha256(raw).hexdigest() != part.tree:
            damaged.append(part.tree)
        texts[part.tree] = raw.decode("ascii", "replace")
    if damaged:
        raise CorruptObjects(tuple(damaged), tuple(f"trees/{tree}.mtree" for tree in damaged))
    return texts


def _bytecode_manifests(store: Store, plan: Plan, tag: str) -> dict[str, str]:
    """Tree digest -> manifest of its bytecode, each seen to be readable: no digest of it is known."""
    texts: dict[str, str] = {}
    damaged: list[str] = []
    for part in plan.parts:
        try:
            texts[part.tree] = store.bytecode(part.tree, tag).manifest_path.read_text(encoding="ascii")
            for _ in file_rows(texts[part.tree]):
                pass
        except (ValueError, KeyError):
            damaged.append(part.tree)
    if damaged:
        raise CorruptObjects(tuple(damaged), tuple(f"bytecode/{tree}-{tag}.mtree" for tree in damaged))
    return texts


def _paths(manifest_text: str) -> tuple[set[str], set[str]]:
    """Files and folders of a manifest."""
    files: set[str] = set()
    folders: set[str] = set()
    for line in manifest_lines(manifest_text):
        (folders if line.endswith(" type=dir") else files).add(path_of_line(line))
    return files, folders


def _with_bytecode(skipped: Mapping[str, frozenset[str]], interpreter: Interpreter) -> dict[str, frozenset[str]]:
    """What is skipped of each package, and the bytecode of it."""
    return {
        package: paths | {bytecode_path(path, interpreter.cache_tag) for path in paths if path.endswith(".py")}
        for package, paths in skipped.items()
    }


def _compiled_paths(
    plan: Plan, texts: Mapping[str, str], skipped: Mapping[str, frozenset[str]]
) -> tuple[set[str], set[str]]:
    """Files and folders of all bytecode."""
    paths: set[str] = set()
    folders: set[str] = set()
    for part in plan.parts:
        skip = skipped.get(part.package, frozenset())
        for line in manifest_lines(texts[part.tree]):
            path = decode_path(line[2 : line.index(" ")])
            if line.endswith(" type=dir"):
                folders.add(path)
            elif path not in skip:
                paths.add(path)
    return paths, folders


class _Linking:
    """The workers prove and link all objects, while this process does something else."""

    def __init__(
        self,
        store: Store,
        plan: Plan,
        tag: str,
        pool: WorkerPool,
        root: Path,
        skipped: Mapping[str, frozenset[str]],
        proven: Mapping[tuple[str, str], int],
    ) -> None:
        weighed: list[tuple[int, dict[str, Any]]] = []
        for part in plan.parts:
            for kind, source in (("trees", store.tree(part.tree)), ("bytecode", store.bytecode(part.tree, tag))):
                moment = max(proven.get((kind, source.path.name), 0), source.proven_ns())
                job: dict[str, Any] = {
                    "kind": kind,
                    "name": source.path.name,
                    "tree": part.tree,
                    "skip": sorted(skipped.get(part.package, ())),
                    "proven_ns": moment,
                }
                weighed.append((source.manifest_path.stat().st_size, job))
        # Few tasks of equal weight: the largest objects first, each to the lightest task.
        weights = [0] * (pool.size * TASKS_PER_WORKER)
        batches: list[list[dict[str, Any]]] = [[] for _ in weights]
        for weight, job in sorted(weighed, key=lambda each: -each[0]):
            lightest = weights.index(min(weights))
            batches[lightest].append(job)
            weights[lightest] += weight
        self._batches = [jobs for jobs in batches if jobs]
        self._futures = [
            pool.submit({"task": "link", "target": os.fspath(root), "objects": jobs}) for jobs in self._batches
        ]

    def wait(self) -> tuple[dict[tuple[str, str], int], set[tuple[str, str]], int]:
        """Wait for the workers.

        Returns:
            New stamps, (kind, object name) -> ctime in nanoseconds; the objects of which this environment has copies, so that their stamps
            hold for it alone; and how many files had to be read again.

        Raises:
            CorruptObjects: Objects changed since they were proven.
            EnvspecError: A task failed.
        """
        answers = [future.result()["objects"] for future in self._futures]
        stamps: dict[tuple[str, str], int] = {}
        corrupt_trees: list[str] = []
        corrupt_files: list[str] = []
        copied: set[tuple[str, str]] = set()
        rehashed = 0
        for jobs, answer in zip(self._batches, answers, strict=True):
            for job, linked in zip(jobs, answer, strict=True):
                stamps[job["kind"], job["name"]] = linked["proven_ns"]
                rehashed += linked["rehashed"]
                if linked["copied"]:
                    copied.add((job["kind"], job["name"]))
                if linked["corrupt"]:
                    corrupt_trees.append(job["tree"])
                    corrupt_files.extend(f"{job['kind']}/{job['name']}/{path}" for path in linked["corrupt"])
        if corrupt_files:
            raise CorruptObjects(tuple(corrupt_trees), tuple(corrupt_files))
        return stamps, copied, rehashed

    def __enter__(self) -> _Linking:  # noqa: PYI034 - typing.Self is of 3.11
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Start no further task, and wait for those that run: nobody may be linking into a tree that is then taken away."""
        from concurrent.futures import wait  # noqa: PLC0415

        wait([future for future in self._futures if not future.cancel()])


def _prove(root: Path, files: set[str], folders: set[str]) -> None:
    """See that the disk has exactly the expected paths; their contents were proven when they were linked.

    Raises:
        EnvspecError: It has not; the first differences are named.
    """
    found_files, found_folders = walk_paths(root)
    if found_files == files and found_folders == folders:
        return
    missing = sorted((files - found_files) | (folders - found_folders))
    extra = sorted((found_files - files) | (found_folders - folders))
    raise EnvspecError(
        f"the built tree is not the locked one: {len(missing)} paths are missing, {len(extra)} are too many",
        detail="\n".join(
            [f"missing  {path}" for path in missing[:SHOWN_DIFFERENCES]]
            + [f"extra    {path}" for path in extra[:SHOWN_DIFFERENCES]]
        ),
        hint="did something else write to the store? build again",
        exit_code=FOUND_WRONG,
    )


def _env_record(
    plan: Plan,
    interpreter: Interpreter,
    tag: str,
    composition: Composition,
    files: Mapping[str, str],
    links: Mapping[str, str],
    skipped: Mapping[str, frozenset[str]],
    stamps: Mapping[tuple[str, str], int],
    *,
    bytecode_sha256: str,
) -> dict[str, Any]:
    """What `receipts/<env id>/env-<name>.json` says: enough to look after the environment without the lock."""
    return {
        "version": 1,
        "env": plan.env,
        "name": plan.name,
        "site": plan.site,
        "python": {"path": os.fspath(interpreter.path), "version": interpreter.version},
        "bytecode_tag": tag,
        "bytecode_sha256": bytecode_sha256,
        "parts": [
            {
                "package": part.package,
                "file": part.file,
                "sha256": part.sha256,
                "base_sha256": part.base_sha256 or None,
                "tree": part.tree,
                "donor": part.donor or None,
            }
            for part in plan.parts
        ],
        # Up to when the inodes of this environment are proven; an object's own stamp holds for the object's inodes only.
        "proven": {f"{kind}/{name}": moment for (kind, name), moment in sorted(stamps.items())},
        "skipped": {package: sorted(paths) for package, paths in sorted(skipped.items())},
        "generated": {
            path: hashlib.sha256(content).hexdigest() for path, content in sorted(composition.generated.items())
        },
        "host_files": {path: hashlib.sha256(text.encode()).hexdigest() for path, text in sorted(files.items())},
        "host_links": dict(sorted(links.items())),
    }
