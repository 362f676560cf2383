"""Wheels in pieces: whatever their sizes, what is joined is what was cut, and what is damaged on the way is found."""

from __future__ import annotations

import hashlib
import random
from typing import TYPE_CHECKING

import pytest

from benchmarks.verify.pieces import cut, join, wanted

if TYPE_CHECKING:
    from pathlib import Path

SIZES = (1, 999, 1000, 1001, 2500, 10, 10, 700)


@pytest.fixture
def rows(tmp_path: Path) -> list[tuple[str, str, int]]:
    found = []
    for number, size in enumerate(SIZES):
        content = random.Random(number).randbytes(size)  # noqa: S311 - any bytes
        sha256 = hashlib.sha256(content).hexdigest()
        (tmp_path / "wheels" / sha256).mkdir(parents=True)
        (tmp_path / "wheels" / sha256 / f"w{number}.whl").write_bytes(content)
        found.append((sha256, f"w{number}.whl", size))
    return found


def test_pieces_in_any_order_give_the_same_wheels(tmp_path: Path, rows: list[tuple[str, str, int]]) -> None:
    pieces = cut(tmp_path / "wheels", rows, tmp_path / "out", 1000)
    assert all(
        sum(path.stat().st_size for path in piece.iterdir() if path.name != "pieces.json") <= 1000 for piece in pieces
    )
    for piece in reversed(pieces):
        join(piece, tmp_path / "store")
    for sha256, file, _ in rows:
        content = (tmp_path / "store" / "wheels" / sha256 / file).read_bytes()
        assert hashlib.sha256(content).hexdigest() == sha256
    assert list((tmp_path / "store" / ".pieces").iterdir()) == []


def test_a_damaged_piece_is_found(tmp_path: Path, rows: list[tuple[str, str, int]]) -> None:
    (piece,) = cut(tmp_path / "wheels", rows, tmp_path / "out", 1 << 20)
    next(path for path in piece.iterdir() if path.name.startswith(rows[4][0])).write_bytes(b"x" * 2500)
    with pytest.raises(ValueError, match="has sha256"):
        join(piece, tmp_path / "store")
    assert list((tmp_path / "store" / "wheels" / rows[4][0]).iterdir()) == []


def test_what_the_image_has_is_left_out_but_for_what_is_patched() -> None:
    lock = {
        "package": [
            {"name": name, "sha256": name, "file": f"{name}.whl", "size": 1} for name in ("torch", "sglang", "numpy")
        ],
        "overlay": [{"package": "sglang"}],
    }
    rows = [
        {"package": name, "kind": kind}
        for name, kind in (("torch", "locked"), ("sglang", "locked"), ("numpy", "edited"))
    ]
    image = {"hosts": [{"packages": rows}]}
    assert [sha256 for sha256, _, _ in wanted(lock, image)] == ["sglang", "numpy"]
    assert len(wanted(lock, None)) == 3
