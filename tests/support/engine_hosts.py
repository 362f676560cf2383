"""Hosts for engines that run envspec there: they see this checkout, and a program `envspec` that stands for an installed one."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.fleet import Fleet, need_fleet
from tests.support.projects import REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.projects import Project


@contextmanager
def engine_hosts(count: int) -> Iterator[Fleet]:
    """Hosts on loopback addresses that see the checkout and its tools."""
    need_fleet()
    with Fleet(count, pythons=(REPOSITORY, Path(sys.prefix))) as running:
        yield running


def installed(project: Project) -> Path:
    """A program that is envspec, for engines on nodes."""
    program = project.folder / "bin" / "envspec"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={REPOSITORY} exec {sys.executable} -m envspec "$@"\n')
    program.chmod(0o755)
    return program


def name_cache(project: Project, url: str) -> None:
    """Name a cache in the spec; the lock does not depend on it."""
    with project.spec_path.open("a", encoding="utf-8") as file:
        file.write(f'\n[[caches]]\nname = "near"\nurl = "{url}"\n')
