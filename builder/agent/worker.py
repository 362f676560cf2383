"""A worker process: takes one task a line from stdin, answers with one JSON line on stdout, and ends when stdin closes.

It runs in the environment's own interpreter, so that bytecode is made by the Python that will run it. A task that makes an object of the store
holds that object's lock in this process: if the controller dies, the object is finished or left to the next holder, never half registered.

    {"task": "unpack", "wheel": path, "file": name, "sha256": of the wheel, or null if it was checked just now,
     "python": "3.12", "tree": digest, "donor": digest or null}
    {"task": "reuse", "installed": {"prefix", "site", "dist_info"}, "file": name, "python": "3.12", "tree": digest}
    {"task": "compile", "tree": digest, "donor": digest or null}
    {"task": "link", "target": path or null, "objects": [{"kind": "trees" | "bytecode", "name": ..., "skip": [...], "proven_ns": n}]}
    {"task": "hash", "root": path, "paths": [...]}
    {"task": "look", "root": path, "sites": [...], "paths": [...], "plain": [...]}

Answers have `"ok": true` and the task's results, or `"ok": false` with `error` and `message`. `error` is `wheel` (its sha256 is another),
`damaged` (its tree is not what was locked), `corrupt` (a tree, whose `files` changed), `os` (with `errno`) or `bug`.

Standard library only, CPython >= 3.10.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import importlib
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.agent.store import ObjectChanged, Store, StoreObject, WheelChanged, remove_readonly_tree, rename_new

if TYPE_CHECKING:
    from collections.abc import Callable

    from builder.agent.lending import Donor


def main(store_root: str) -> None:
    """Serve tasks until stdin closes.

    Args:
        store_root: Folder of the store.
    """
    os.umask(0o022)
    sys.dont_write_bytecode = True
    gc.disable()  # compiling makes millions of objects and no cycles: looking for them costs 5 %
    _die_with_parent()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever else prints, prints to stderr
    store = Store(Path(store_root))
    _load_ahead()
    for line in sys.stdin:
        answers.write(json.dumps(_answer(store, json.loads(line))) + "\n")
        try:
            answers.flush()
        except BrokenPipeError:  # the controller is gone, and with it whoever would read more than that
            os._exit(1)
    os._exit(0)  # nothing is left to tidy up: quicker than taking the interpreter apart


def _load_ahead() -> None:
    """Load what builds need while their wheels are still on the way. Whatever is wrong with a module shows in the task that needs it."""
    with contextlib.suppress(Exception):
        for module in ("bytecode", "lending", "link", "unpack"):
            importlib.import_module(f"builder.agent.{module}")


def _answer(store: Store, task: dict[str, Any]) -> dict[str, Any]:
    """The answer to a task: whatever an input makes of it, the worker lives on."""
    try:
        return {"ok": True, **_TASKS[task["task"]](store, task)}
    except OSError as error:
        return {"ok": False, "error": "os", "errno": error.errno, "message": str(error)}
    except ObjectChanged as error:
        return {"ok": False, "error": "corrupt", "files": [error.file], "message": str(error)}
    except WheelChanged as error:
        return {"ok": False, "error": "wheel", "message": str(error)}
    except ValueError as error:
        return {"ok": False, "error": "damaged", "message": str(error)}
    except Exception as error:  # noqa: BLE001 - said where the task came from
        return {"ok": False, "error": "bug", "message": f"{type(error).__name__}: {error}"}


def _die_with_parent() -> None:
    """Ask the kernel to end this process when the controller dies, so that nothing writes on behalf of nobody."""
    import ctypes  # noqa: PLC0415 - once a process
    import signal  # noqa: PLC0415

    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM, 0, 0, 0)


def _unpack(store: Store, task: dict[str, Any]) -> dict[str, Any]:
    from builder.agent.files import hash_file  # noqa: PLC0415
    from builder.agent.unpack import read_wheel  # noqa: PLC0415

    tree = store.tree(task["tree"])
    lock_name = f"tree-{task['tree'][:40]}"
    with store.lock(lock_name):
        if tree.exists:
            return {"proven_ns": tree.proven_ns(), "made": False, "files": 0, "modules_bytes": 0}
        donor = None if task["donor"] is None else _donor(store, store.tree(task["donor"]))
        if task["sha256"] is not None and (found := hash_file(task["wheel"])) != task["sha256"]:
            raise WheelChanged(f"`{task['file']}` in the wheelhouse has sha256 {found}, the lock has {task['sha256']}")
        temporary = store.temporary(lock_name)
        folder = temporary / "tree"
        folder.mkdir()
        wheel, expected = Path(task["wheel"]), task["tree"]
        contents = read_wheel(wheel, task["file"], task["python"], folder=folder, donor=donor, expected=expected)
        if contents.digest != task["tree"]:
            raise ValueError(f"the wheel gives the tree {contents.digest}, the lock has {task['tree']}")
        proven_ns = _register(temporary, folder, contents.manifest, tree)
    modules_bytes = sum(entry.size for entry in contents.files if entry.path.endswith(".py"))
    return {"proven_ns": proven_ns, "made": True, "files": len(contents.files), "modules_bytes": modules_bytes}


def _donor(store: Store, giver: StoreObject) -> Donor | None:
    """An object whose files can be linked into another: in a store that a group shares only one's own, which nobody else can change."""
    from builder.agent.lending import Donor  # noqa: PLC0415

    if store.shared and giver.exists and giver.path.stat().st_uid != os.geteuid():
        return None
    return Donor.of(giver)


def _reuse(store: Store, task: dict[str, Any]) -> dict[str, Any]:
    """Make a tree from a distribution that is installed somewhere; where it is not the locked one, that is an answer and no error."""
    from builder.agent.reuse import Installed, repack  # noqa: PLC0415

    tree = store.tree(task["tree"])
    lock_name = f"tree-{task['tree'][:40]}"
    with store.lock(lock_name):
        if tree.exists:
            return {"proven_ns": tree.proven_ns(), "made": False, "reused": True, "edited": [], "modules_bytes": 0}
        temporary = store.temporary(lock_name)
        folder = temporary / "tree"
        folder.mkdir()
        edited: tuple[str, ...] = ()
        try:
            repacked = repack(Installed(**task["installed"]), task["file"], task["python"], folder)
            edited, reason = repacked.edited, "its files are not those of the locked wheel"
            if repacked.digest == task["tree"]:
                proven_ns = _register(temporary, folder, repacked.manifest, tree)
                size = repacked.modules_bytes
                return {"proven_ns": proven_ns, "made": True, "reused": True, "edited": [], "modules_bytes": size}
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            reason = f"`{error.filename}`: {error.strerror}"
        except ValueError as error:
            reason = str(error)
        remove_readonly_tree(temporary)
    return {"made": False, "reused": False, "edited": list(edited), "reason": reason}


def _compile(store: Store, task: dict[str, Any]) -> dict[str, Any]:
    from builder.agent.bytecode import bytecode_tag, compile_tree  # noqa: PLC0415
    from builder.agent.lending import Donor  # noqa: PLC0415

    tag = bytecode_tag()
    bytecode = store.bytecode(task["tree"], tag)
    lock_name = f"bytecode-{task['tree'][:40]}"
    with store.lock(lock_name):
        if bytecode.exists:
            return {"proven_ns": bytecode.proven_ns(), "made": False, "failed": []}
        tree = store.tree(task["tree"])
        donor = None
        if task["donor"] is not None:
            bytes_of, sources = _donor(store, store.bytecode(task["donor"], tag)), Donor.of(store.tree(task["donor"]))
            if bytes_of is not None and sources is not None:
                donor = (bytes_of, sources.lines)
        temporary = store.temporary(lock_name)
        folder = temporary / "bytecode"
        folder.mkdir()
        text, failed = compile_tree(tree.path, tree.manifest_path.read_text(encoding="ascii"), folder, donor)
        proven_ns = _register(temporary, folder, text, bytecode)
    return {"proven_ns": proven_ns, "made": True, "failed": list(failed)}


def _register(temporary: Path, folder: Path, manifest_text: str, target: StoreObject) -> int:
    """Give a finished object its name. It gets its stamp later, once its data is on the disk.

    Returns:
        The ctime (ns) up to which its inodes are known to be right: that of a file written after them.
    """
    for parent, _, _ in os.walk(folder, topdown=False):
        if parent != os.fspath(folder):  # a folder without write permission cannot be moved by an ordinary user
            os.chmod(parent, 0o555)  # noqa: PTH101, S103 - quicker on many folders; the store is for every user to read
    written = temporary / "mtree"
    written.write_text(manifest_text, encoding="ascii")
    proven_ns = written.stat().st_ctime_ns
    if target.path.exists():  # without its manifest, since `exists` was false: what a crash left
        remove_readonly_tree(target.path)
    target.stamp_path.unlink(missing_ok=True)
    written.replace(target.manifest_path)
    if not rename_new(folder, target.path):
        raise FileExistsError(17, "appeared while its lock was held", os.fspath(target.path))
    target.path.chmod(0o555)
    temporary.rmdir()
    return proven_ns


def _link(store: Store, task: dict[str, Any]) -> dict[str, Any]:
    from builder.agent.link import link_object  # noqa: PLC0415

    target = None if task["target"] is None else Path(task["target"])
    owner = os.geteuid() if store.shared else None
    answers: list[dict[str, Any]] = []
    for job in task["objects"]:
        source = StoreObject(store.root / job["kind"] / job["name"])
        linked = link_object(source, target, skip=frozenset(job["skip"]), proven_ns=job["proven_ns"], owner=owner)
        answers.append(
            {
                "rehashed": linked.rehashed,
                "proven_ns": linked.proven_ns,
                "copied": linked.copied,
                "corrupt": list(linked.corrupt),
            }
        )
    return {"objects": answers}


def _hash(_store: Store, task: dict[str, Any]) -> dict[str, Any]:
    from builder.agent.files import hash_file  # noqa: PLC0415

    root = task["root"]
    digests: list[str | None] = []
    for path in task["paths"]:
        try:
            digests.append(hash_file(f"{root}/{path}"))
        except OSError:
            digests.append(None)
    return {"digests": digests}


def _look(_store: Store, task: dict[str, Any]) -> dict[str, Any]:
    import resource  # noqa: PLC0415 - as the next one: only who looks at venvs needs it

    from builder.agent.survey_files import MEMORY_BYTES, look_at_file  # noqa: PLC0415

    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(MEMORY_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))
    root, sites, plain = task["root"], task["sites"], frozenset(task["plain"])
    return {"looks": [look_at_file(root, path, sites, labels=path not in plain) for path in task["paths"]]}


_TASKS: dict[str, Callable[[Store, dict[str, Any]], dict[str, Any]]] = {
    "unpack": _unpack,
    "reuse": _reuse,
    "compile": _compile,
    "link": _link,
    "hash": _hash,
    "look": _look,
}
