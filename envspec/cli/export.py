"""`envspec export`: the lock, or the whole environment, for other tools."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from envspec import __version__
from envspec.cli.build import build_request
from envspec.cli.options import (
    JsonOption,
    QuietOption,
    SpecOption,
    StoreOption,
    check_path,
    read_inputs,
    store_root,
)
from envspec.cli.output import make_reporter, say, say_json, tell
from envspec.errors import EnvspecError

if TYPE_CHECKING:
    from builder.building import BuildRequest

Format = Literal["pylock", "requirements", "cyclonedx", "oci", "bundle"]


def export(
    *,
    format: Annotated[  # noqa: A002 - the name of the option
        Format,
        Parameter(
            name="--format",
            help="`pylock`: pylock.toml (PEP 751). `requirements`: with hashes. `cyclonedx`: an SBOM (CycloneDX 1.6, JSON). "
            "`oci`: an image. `bundle`: all that a machine without network needs.",
        ),
    ],
    output: Annotated[
        Path | None,
        Parameter(
            name=("--output", "--out", "-o"),
            help="The file to write. Default: standard output. Of an image or a bundle: a folder, or a file `*.tar`.",
        ),
    ] = None,
    wheelhouse: Annotated[
        Path | None,
        Parameter(
            name="--wheelhouse",
            help="A folder that gets every wheel, patched ones included; the exported file names them there, and no index.",
        ),
    ] = None,
    base: Annotated[
        str | None,
        Parameter(name="--base", help="Of an image: the one below, an OCI layout on disk, `FOLDER` or `FOLDER:NAME`."),
    ] = None,
    tag: Annotated[
        str | None,
        Parameter(name="--tag", help="Of an image: its name in the layout. Default: that of the environment."),
    ] = None,
    python: Annotated[
        str | None,
        Parameter(
            name="--python",
            help="Of an image: where its Python is. Default: the pinned archive's, if the spec has one, else `/usr/bin/python3.N`.",
        ),
    ] = None,
    no_bytecode: Annotated[
        bool,
        Parameter(
            name="--no-bytecode",
            negative=(),
            help="Of an image: leave bytecode out. Every container compiles then, and no Python is needed here.",
        ),
    ] = False,
    spec: SpecOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> int:
    """Write the lock for other tools: pylock.toml, requirements with hashes, a bill of materials, an OCI image, or a bundle.

    Without `--wheelhouse`, a pylock.toml has the addresses at which the configured indexes have the wheels today.

    An image or a bundle has the bytes themselves. Its layers are those of the image before where their wheels are: only what changed is written.
    """
    inputs = read_inputs(spec)
    if format in {"oci", "bundle"}:
        from envspec.cli.export_whole import Wanted, export_whole  # noqa: PLC0415 - only where it is meant

        wanted = Wanted(format=format, output=output, base=base, tag=tag, python=python, bytecode=not no_bytecode)
        if wheelhouse is not None:
            raise EnvspecError(f"`--wheelhouse` is not for `--format {format}`", hint="leave it out")
        return export_whole(inputs, wanted, store_root(store), as_json=as_json, quiet=quiet)
    given = {"--base": base, "--tag": tag, "--python": python, "--no-bytecode": no_bytecode or None}
    for option, value in given.items():
        if value is not None:
            raise EnvspecError(f"`{option}` is for images", hint="give `--format oci`, or leave it out")
    _check_paths(format, output, wheelhouse)
    from builder.agent.store import Store, write_atomically  # noqa: PLC0415

    request = build_request(inputs, Store(store_root(store)), "", "", repair=False)
    locked = request.lock
    beside = Path.cwd() if output is None else Path(os.path.abspath(output)).parent  # noqa: PTH100 - links stay
    text = _text(format, request, wheelhouse, beside, quiet=quiet)
    if output is not None:
        write_atomically(output, text)
    if as_json:
        say_json(
            {
                "format": format,
                "lock": os.fspath(inputs.lock_path),
                "env": locked.env,
                "output": None if output is None else os.fspath(output),
                "wheelhouse": None if wheelhouse is None else os.fspath(wheelhouse),
                "text": text if output is None else None,
            }
        )
    elif output is None:
        say(text.removesuffix("\n"))
    else:
        tell(f"{output}  written: {len(locked.packages)} packages")
    return 0


def _text(format_: Format, request: BuildRequest, wheelhouse: Path | None, beside: Path, *, quiet: bool) -> str:
    locked = request.lock
    if format_ == "cyclonedx":
        from envspec.export_cyclonedx import cyclonedx_text  # noqa: PLC0415

        roots = frozenset(each.name for each in request.spec.packages)
        return cyclonedx_text(locked, roots=roots, envspec_version=__version__)
    from envspec.exports import pylock_text, requirements_text  # noqa: PLC0415

    if format_ == "requirements" and wheelhouse is None:
        return requirements_text(locked, wheelhouse=None)
    from builder.exporting import fill_wheelhouse, locate_wheels  # noqa: PLC0415

    if wheelhouse is None:
        return pylock_text(locked, locate_wheels(request))
    folder = Path(os.path.abspath(wheelhouse))  # noqa: PTH100 - links stay
    places = fill_wheelhouse(request, folder, beside=beside, reporter=make_reporter(quiet=quiet))
    if format_ == "pylock":
        return pylock_text(locked, places)
    return requirements_text(locked, wheelhouse=os.path.relpath(folder, beside))


def _check_paths(format_: Format, output: Path | None, wheelhouse: Path | None) -> None:
    """See that the paths are ones that other tools take, before anything is made.

    Raises:
        EnvspecError: They are not.
    """
    from envspec.exports import PYLOCK_NAME  # noqa: PLC0415

    if output is not None:
        check_path(output, "the output")
    if wheelhouse is not None:
        check_path(wheelhouse, "the wheelhouse")
    if format_ == "cyclonedx" and wheelhouse is not None:
        raise EnvspecError("a bill of materials needs no `--wheelhouse`", hint="leave it out")
    if format_ == "pylock" and output is not None and not PYLOCK_NAME.fullmatch(output.name):
        raise EnvspecError(
            f"`{output.name}` is not a name that PEP 751 allows, and installers go by it",
            hint="call it `pylock.toml` or `pylock.NAME.toml`, NAME without a dot",
        )
    if format_ == "requirements" and wheelhouse is not None and any(char.isspace() for char in os.fspath(wheelhouse)):
        raise EnvspecError(
            f"the path of the wheelhouse, `{wheelhouse}`, has a space, which a requirements file cannot hold",
            hint="give another with `--wheelhouse DIR`",
        )
