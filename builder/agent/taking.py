"""Takes a wheel that is at hand into the wheelhouse: under its name only with the sha256 that it is named by.

Standard library only, CPython >= 3.10.
"""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

from builder.agent.store import make_folder, remove_readonly_tree, sync_folder
from envspec.errors import FOUND_WRONG, EnvspecError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from builder.agent.store import Store


def take_wheel(store: Store, sha256: str, file: str, size: int, chunks: Iterable[bytes], *, source: str) -> Path:
    """Put a wheel into the wheelhouse.

    Args:
        store: The store.
        sha256: Of the wheel.
        file: Its name.
        size: In bytes.
        chunks: Its content; is read to its end, whatever comes.
        source: Where it comes from, for a message.

    Returns:
        Where it lies.

    Raises:
        EnvspecError: It is not what it is named.
        OSError: It cannot be written.
    """
    target = store.wheel(sha256, file)
    lock_name = f"taken-{sha256[:40]}"
    with store.lock(lock_name):
        folder = store.temporary(lock_name)
        try:
            beside = folder / "wheel"
            digest = hashlib.sha256()
            length = 0
            with beside.open("xb", buffering=0) as out:
                for chunk in chunks:
                    digest.update(chunk)
                    length += len(chunk)
                    view = memoryview(chunk)
                    while view:
                        view = view[out.write(view) :]
                os.fchmod(out.fileno(), 0o444)
                os.fsync(out.fileno())
            if (digest.hexdigest(), length) != (sha256, size):
                raise EnvspecError(
                    f"{file} has sha256 {digest.hexdigest()} and {length} bytes, the lock has {sha256} and {size}",
                    input_name=source,
                    hint="get it anew: it is damaged, or not what it says",
                    exit_code=FOUND_WRONG,
                )
            make_folder(target.parent)
            _move(beside, target)
            sync_folder(target.parent)
        finally:
            remove_readonly_tree(folder)
    return target


def _move(source: Path, target: Path) -> None:
    """Rename; where the wheelhouse lies on another disk than the rest of the store, copy under another name first."""
    import shutil  # noqa: PLC0415 - beside its only use

    try:
        source.replace(target)
    except OSError:
        beside = target.with_name(f".{target.name}")
        shutil.copyfile(source, beside)
        beside.chmod(0o444)
        beside.replace(target)
