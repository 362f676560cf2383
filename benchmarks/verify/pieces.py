"""Wheels of a lock in pieces, for a machine that can be given only so much at a time; and put together there, proven by their sha256.

    python -m benchmarks.verify.pieces cut ddtree.lock --wheels STORE/wheels --image image.json --out .pieces [--piece-mib 60]
    python -m benchmarks.verify.pieces join .pieces/00 --store STORE

`image.json` is what `envspec verify --python PATH --json` said on that machine: packages that are bit for bit the locked ones there are left
out, since a build takes them from there (`--reuse`). A piece is a folder; a wheel that does not fit into one lies in several, as
`<sha256>.<part>-of-<parts>`. `join` may be called for the pieces in any order. It needs the standard library only.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomllib

if TYPE_CHECKING:
    from collections.abc import Sequence

MIB = 1 << 20
INDEX = "pieces.json"


def wanted(lock: dict[str, Any], image: dict[str, Any] | None) -> list[tuple[str, str, int]]:
    """sha256, file and size of the wheels that a machine lacks; of patched ones the base wheel, which the patched one is made from."""
    there: set[str] = set()
    if image is not None:
        (host,) = image["hosts"]
        there = {row["package"] for row in host["packages"] if row["kind"] == "locked"}
    patched = {overlay["package"] for overlay in lock.get("overlay", [])}
    return [
        (package["sha256"], package["file"], package["size"])
        for package in lock["package"]
        if package["name"] not in there or package["name"] in patched
    ]


def cut(wheels: Path, rows: Sequence[tuple[str, str, int]], out: Path, piece_bytes: int) -> list[Path]:
    """Fill folders of at most so many bytes: the largest wheels first, each where there is room.

    Raises:
        OSError: A wheel is not there, or a piece cannot be written.
    """
    parts: list[tuple[int, str, str, int, int]] = []
    for sha256, file, size in rows:
        count = -(-size // piece_bytes)
        parts += [
            (min(piece_bytes, size - part * piece_bytes), sha256, file, part, count) for part in range(max(1, count))
        ]
    room: list[int] = []
    index: list[list[dict[str, Any]]] = []
    for size, sha256, file, part, count in sorted(parts, key=lambda row: (-row[0], row[1], row[3])):
        number = next((number for number, free in enumerate(room) if free >= size), len(room))
        if number == len(room):
            room.append(piece_bytes)
            index.append([])
        room[number] -= size
        folder = out / f"{number:02}"
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{sha256}.{part:03}-of-{count:03}"
        with (wheels / sha256 / file).open("rb") as source:
            source.seek(part * piece_bytes)
            (folder / name).write_bytes(source.read(size))
        index[number].append({"name": name, "sha256": sha256, "file": file, "part": part, "parts": count})
    for number, rows_of_piece in enumerate(index):
        (out / f"{number:02}" / INDEX).write_text(json.dumps(rows_of_piece, indent=1) + "\n", encoding="utf-8")
    return [out / f"{number:02}" for number in range(len(index))]


def join(piece: Path, store: Path) -> tuple[int, int]:
    """Take a piece into a store's wheelhouse.

    Returns:
        How many wheels it completed, and how many still lack parts.

    Raises:
        ValueError: A wheel has another sha256 than it is named by.
    """
    parts = store / ".pieces"
    parts.mkdir(parents=True, exist_ok=True)
    done = lacking = 0
    for row in json.loads((piece / INDEX).read_text(encoding="utf-8")):
        (parts / row["name"]).write_bytes((piece / row["name"]).read_bytes())
        names = [f"{row['sha256']}.{part:03}-of-{row['parts']:03}" for part in range(row["parts"])]
        if not all((parts / name).is_file() for name in names):
            lacking += 1
            continue
        folder = store / "wheels" / row["sha256"]
        folder.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256()
        partial = folder / f"{row['file']}.part"
        with partial.open("wb") as target:
            for name in names:
                content = (parts / name).read_bytes()
                digest.update(content)
                target.write(content)
        if digest.hexdigest() != row["sha256"]:
            partial.unlink()
            raise ValueError(f"{row['file']} has sha256 {digest.hexdigest()}, it is named by {row['sha256']}")
        partial.chmod(0o444)
        partial.replace(folder / row["file"])
        for name in names:
            (parts / name).unlink()
        done += 1
    return done, lacking


def main(arguments: Sequence[str]) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.verify.pieces")
    verbs = parser.add_subparsers(dest="verb", required=True)
    cutter = verbs.add_parser("cut")
    cutter.add_argument("lock", type=Path)
    cutter.add_argument("--wheels", type=Path, required=True)
    cutter.add_argument("--image", type=Path)
    cutter.add_argument("--out", type=Path, required=True)
    cutter.add_argument("--piece-mib", type=int, default=60)
    joiner = verbs.add_parser("join")
    joiner.add_argument("piece", type=Path)
    joiner.add_argument("--store", type=Path, required=True)
    given = parser.parse_args(arguments)
    if given.verb == "join":
        done, lacking = join(given.piece, given.store)
        print(f"{given.piece}: {done} wheels complete, {lacking} lack parts")
        return
    lock = tomllib.loads(given.lock.read_text(encoding="utf-8"))
    image = None if given.image is None else json.loads(given.image.read_text(encoding="utf-8"))
    rows = wanted(lock, image)
    pieces = cut(given.wheels, rows, given.out, given.piece_mib * MIB)
    print(f"{len(rows)} wheels, {sum(size for _, _, size in rows) / MIB:.0f} MiB, in {len(pieces)} pieces")


if __name__ == "__main__":
    main(sys.argv[1:])
