"""Writes what was adopted: a folder that appears complete or not at all, where nothing was before."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from builder.agent.store import process_mark, remove_dead_temporaries, sync_folder, write_new
from builder.outputs import writing
from envspec.adoption.indexing import INDEX_FOLDER, index_page
from envspec.adoption.report import readme_text, report_markdown
from envspec.adoption.spec_text import series_path
from envspec.errors import FOUND_WRONG, EnvspecError

if TYPE_CHECKING:
    from pathlib import Path

    from builder.adopting import Adopted

REPORT = "adopt-report.md"


def check_free(folder: Path) -> None:
    """See that a folder can be written: it is not there, or empty.

    Raises:
        EnvspecError: Something is there.
    """
    if folder.is_symlink() or (folder.exists() and (not folder.is_dir() or any(folder.iterdir()))):
        raise EnvspecError(
            f"`{folder}` is there already{' and is not empty' if folder.is_dir() else ''}; nothing is written over",
            hint="give another folder with `--out`",
            exit_code=FOUND_WRONG,
        )


def write_adopted(folder: Path, adopted: Adopted) -> None:
    """Write spec, overlays, report, and the wheels that no index has.

    Args:
        folder: Where; absolute.
        adopted: What.

    Raises:
        EnvspecError: Something is there by now, or it cannot be written.
    """
    check_free(folder)
    with writing(folder):
        _write(folder, adopted)


def _write(folder: Path, adopted: Adopted) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    remove_dead_temporaries(folder.parent)
    temporary = folder.parent / f".envspec-{process_mark()}-adopt"
    temporary.mkdir(mode=0o755)
    try:
        for path, content in _files(adopted).items():
            place = temporary / path
            place.parent.mkdir(parents=True, exist_ok=True)
            write_new(place, content)
        for wheel, source in adopted.wheels:
            shutil.copyfile(source, temporary / INDEX_FOLDER / wheel.name / wheel.file)
        check_free(folder)
        temporary.rename(folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    sync_folder(folder.parent)


def _files(adopted: Adopted) -> dict[str, bytes]:
    """Path -> content of everything but wheels. Names are normalised names of packages, and file names of wheels."""
    adoption = adopted.adoption
    texts = {f"{adoption.name}.toml": adoption.spec_text, REPORT: report_markdown(adoption)}
    files = {path: text.encode("utf-8", "backslashreplace") for path, text in texts.items()}
    for overlay in adoption.overlays:
        series = series_path(overlay.package)
        beside = series.rpartition("/")[0]
        files[series] = f"{overlay.patch_name}\n".encode()
        files[f"{beside}/{overlay.patch_name}"] = overlay.patch
        files[f"{beside}/README.md"] = readme_text(adoption, overlay.package).encode("utf-8", "backslashreplace")
    for wheel, _ in adopted.wheels:
        page = index_page([(wheel.file, wheel.sha256)])
        files[f"{INDEX_FOLDER}/{wheel.name}/index.html"] = page.encode()
    return files
