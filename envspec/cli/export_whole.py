"""`envspec export` of the bytes themselves: an OCI image, or a bundle for machines without network."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from envspec import __version__
from envspec.cli.build import build_request
from envspec.cli.hosts import amount
from envspec.cli.options import check_path
from envspec.cli.output import make_reporter, say, say_json
from envspec.errors import EnvspecError
from envspec.oci import SBOM_ENDING

if TYPE_CHECKING:
    from builder.building import BuildRequest
    from envspec.cli.options import Inputs

_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,122}")
_PYTHON = re.compile(r"/[!-~]*[^/\s]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the command line asks for."""

    format: str
    output: Path | None
    base: str | None
    tag: str | None
    python: str | None
    bytecode: bool


def export_whole(inputs: Inputs, wanted: Wanted, store_root: Path, *, as_json: bool, quiet: bool) -> int:
    """Export an image or a bundle, and say what it is.

    Args:
        inputs: The spec and its lock.
        wanted: What is asked for.
        store_root: The store's folder.
        as_json: Whether to print one JSON object.
        quiet: Whether to show no progress.

    Returns:
        The exit code.

    Raises:
        EnvspecError: It cannot be made.
    """
    output = _checked_output(wanted)
    from builder.agent.store import Store  # noqa: PLC0415

    lock_sha256 = hashlib.sha256(inputs.lock_bytes or b"").hexdigest()
    spec_sha256 = hashlib.sha256(inputs.spec_bytes).hexdigest()
    request = build_request(inputs, Store(store_root), lock_sha256, spec_sha256, repair=False)
    fields = {
        "format": wanted.format,
        "lock": os.fspath(inputs.lock_path),
        "env": request.lock.env,
        "output": os.fspath(output),
    }
    if wanted.format == "bundle":
        return _export_bundle(request, inputs.spec_path, output, fields, as_json=as_json, quiet=quiet)
    return _export_image(request, wanted, output, fields, as_json=as_json, quiet=quiet)


def _export_image(
    request: BuildRequest, wanted: Wanted, output: Path, fields: dict[str, str], *, as_json: bool, quiet: bool
) -> int:
    from builder.image.exporting import ImageOrder, export_image  # noqa: PLC0415
    from envspec.export_cyclonedx import cyclonedx_text  # noqa: PLC0415

    tag = _checked_tag(wanted.tag or request.lock.name)
    roots = frozenset(each.name for each in request.spec.packages)
    sbom = cyclonedx_text(request.lock, roots=roots, envspec_version=__version__)
    order = ImageOrder(
        output=output,
        tag=tag,
        base=wanted.base or "",
        python=wanted.python or "",
        sbom=sbom,
        bytecode=wanted.bytecode,
    )
    image = export_image(request, order, make_reporter(quiet=quiet))
    if as_json:
        layers = [
            {
                "digest": layer.blob.digest,
                "size": layer.blob.size,
                "diff_id": f"sha256:{layer.diff_id}",
                "title": layer.title,
            }
            for layer in image.layers
        ]
        more = {"image": f"sha256:{image.digest}", "tag": tag, "python": image.python, "layers": layers}
        sizes = {"size": image.size, "written": image.written_bytes}
        say_json({**fields, **more, "bytecode": image.bytecode or None, **sizes})
        return 0
    say(f"image    sha256:{image.digest}")
    say(f"tag      {tag}")
    say(f"env      {request.lock.env}")
    say(f"site     {request.lock.site}")
    say(f"python   {image.python}")
    say(f"bytecode {f'of Python {image.bytecode}' if image.bytecode else 'none'}")
    say(f"layers   {len(image.layers)}, {amount(image.size)}; written now: {amount(image.written_bytes)}")
    return 0


def _export_bundle(
    request: BuildRequest, spec_path: Path, output: Path, fields: dict[str, str], *, as_json: bool, quiet: bool
) -> int:
    from builder.image.bundle_writing import write_bundle  # noqa: PLC0415

    bundle = write_bundle(request, spec_path, output, make_reporter(quiet=quiet))
    members = bundle.index.members
    if as_json:
        rows = [{"path": each.path, "size": each.size, "sha256": each.sha256} for each in members]
        say_json({**fields, "index": bundle.index_sha256, "size": bundle.size, "members": rows})
        return 0
    say(f"bundle   {output}")
    say(f"index    sha256:{bundle.index_sha256}")
    say(f"env      {request.lock.env}")
    say(f"site     {request.lock.site}")
    say(f"members  {len(members)}, {amount(bundle.size)}")
    return 0


def _checked_tag(tag: str) -> str:
    """A tag that registries take, and that is not that of another image's bill of materials.

    Raises:
        EnvspecError: It is none.
    """
    if _TAG.fullmatch(tag) is None or tag.endswith(SBOM_ENDING):
        raise EnvspecError(
            f"`{tag}` is no tag that "
            + ("images have: it is for bills of materials" if tag.endswith(SBOM_ENDING) else "registries take"),
            input_name="--tag",
            hint="letters, digits, `.`, `_` and `-`; 123 at most, the first a letter, a digit or `_`",
        )
    return tag


def _checked_output(wanted: Wanted) -> Path:
    """The output, and all that can be wrong with the options.

    Raises:
        EnvspecError: They do not fit.
    """
    if wanted.output is None:
        raise EnvspecError(
            f"`--format {wanted.format}` needs a place", hint="give `--out FOLDER`, or `--out FILE.tar` for one file"
        )
    check_path(wanted.output, "the output")
    if wanted.format == "bundle":
        given = {
            "--base": wanted.base is not None,
            "--tag": wanted.tag is not None,
            "--python": wanted.python is not None,
            "--no-bytecode": not wanted.bytecode,
        }
        for option, is_given in given.items():
            if is_given:
                raise EnvspecError(f"`{option}` is for images", hint="give `--format oci`, or leave it out")
    if wanted.base == "":
        raise EnvspecError("`--base` names no image", hint="give `FOLDER` or `FOLDER:NAME`, or leave it out")
    if wanted.tag is not None:
        _checked_tag(wanted.tag)
    if wanted.python is not None and _PYTHON.fullmatch(wanted.python) is None:
        raise EnvspecError(f"`{wanted.python}` is no absolute path of a Python", input_name="--python")
    return Path(os.path.abspath(wanted.output))  # noqa: PTH100 - links stay
