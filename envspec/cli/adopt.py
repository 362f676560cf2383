"""`envspec adopt`: a hand-made venv becomes a spec, patch series, and a report of what they explain."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from envspec.cli.options import JsonOption, QuietOption, StoreOption, check_path, not_empty, store_root
from envspec.cli.output import make_reporter, say, say_json
from envspec.errors import EnvspecError
from envspec.forms import NAME, quoted

if TYPE_CHECKING:
    from builder.adopting import Adopted, AdoptRequest
    from builder.progress import Reporter

_INDEX = re.compile(r"([^=]+)=(.+)", re.DOTALL)


def adopt(
    path: Annotated[str, Parameter(help="The venv: its folder, or its interpreter.")],
    *,
    out: Annotated[
        Path | None, Parameter(name="--out", help="The folder that is written; it must not be there. Default: ./NAME.")
    ] = None,
    name: Annotated[
        str, Parameter(name="--name", help="Of the environment and its spec. Default: after the venv's folder.")
    ] = "",
    host: Annotated[
        str | None,
        Parameter(
            name="--host",
            validator=not_empty,
            help="The host that has the venv: a name of ssh_config. Nothing is left there.",
        ),
    ] = None,
    wheelhouse: Annotated[
        list[Path] | None,
        Parameter(
            name="--wheelhouse",
            negative=(),
            help="A folder of wheels, or one wheel, that packages may come from; may be given several times.",
        ),
    ] = None,
    index: Annotated[
        list[str] | None,
        Parameter(
            name="--index",
            negative=(),
            help="NAME=URL of an index that is asked beside the default one; may be given several times.",
        ),
    ] = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> int:
    """Turn a hand-made venv into a spec, patches and a report: what of it `envspec build` reproduces, and what not.

    Each file is compared with the RECORDs of published wheels, for which uv is asked. Edited text becomes a patch series.
    Nothing of the venv runs. What nothing explains is listed with what to do.
    """
    from builder.adopted_folder import check_free, write_adopted  # noqa: PLC0415
    from builder.adopting import AdoptRequest  # noqa: PLC0415
    from builder.agent.store import Store  # noqa: PLC0415

    wanted = name or _name_of(path)
    if (mismatch := NAME.mismatch(wanted)) and name:
        raise EnvspecError(f"the name of the environment: {mismatch}", input_name="--name")
    if host and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", host):
        raise EnvspecError(
            f"expected a `Host` of ssh_config such as `gpu-1`, got {quoted(host)}",
            input_name="--host",
            hint="put the user, address, port and jump host into ssh_config and name that entry here",
        )
    folder = Path(os.path.abspath(out if out is not None else wanted))  # noqa: PTH100 - links stay as they are
    check_path(folder, "the folder to write")
    check_free(folder)
    request = AdoptRequest(
        name=wanted,
        host=host or "",
        folder=folder,
        store=Store(store_root(store)),
        environ=os.environ,
        indexes=_indexes(index or []),
        wheelhouses=tuple(wheelhouse or ()),
    )
    os.umask(0o022)  # as `lock` and `build` do: the store is for every user of the machine to read
    adopted = _adopt(request, path, make_reporter(quiet=quiet))
    write_adopted(folder, adopted)
    _report(adopted, folder, as_json=as_json)
    return 0


def _adopt(request: AdoptRequest, path: str, reporter: Reporter) -> Adopted:
    from builder.adopting import adopt as adopt_observed  # noqa: PLC0415
    from builder.observing import observe  # noqa: PLC0415
    from builder.venv_files import host_reader, read_venv_files  # noqa: PLC0415

    if not request.host:
        return adopt_observed(request, observe(path, reporter=reporter), read_venv_files, reporter)
    from builder.bundle import make_bundle  # noqa: PLC0415 - only where a host is meant
    from builder.session import Session  # noqa: PLC0415
    from envspec.cli.hosts import targets_of  # noqa: PLC0415
    from envspec.spec import HostSpec  # noqa: PLC0415

    (target,) = targets_of([HostSpec(name=request.host, ssh=request.host)])
    observation = observe(path, host=target, reporter=reporter)
    with Session(target.transport, make_bundle()) as session, session.kept_alive():
        return adopt_observed(request, observation, host_reader(session), reporter)


def _report(adopted: Adopted, folder: Path, *, as_json: bool) -> None:
    from envspec.adoption.report import adoption_to_json, next_commands, summary_lines  # noqa: PLC0415
    from envspec.printable import printable_line  # noqa: PLC0415

    adoption = adopted.adoption
    if as_json:
        say_json(adoption_to_json(adoption, folder=os.fspath(folder), spec=f"{adoption.name}.toml"))
        return
    say(f"written    {folder}")
    for line in summary_lines(adoption):
        say(printable_line(line))
    say(f"report     {folder / 'adopt-report.md'}")
    say(f"next       cd {shlex.quote(os.fspath(folder))} && {' && '.join(next_commands(adoption)[:2])}")


def _name_of(path: str) -> str:
    """A name after the folder of a venv; of a folder called `.venv` after the one around it."""
    parts = [part for part in Path(path).absolute().parts if part not in ("/", "bin") and not part.startswith("python")]
    for part in reversed(parts):
        if part.lower().strip(".") not in ("venv", "env", "virtualenv"):
            clean = re.sub(r"[^a-z0-9._-]+", "-", part.lower()).strip("._-")[:100]
            if not NAME.mismatch(clean):
                return clean
    return "adopted"


def _indexes(given: list[str]) -> dict[str, str]:
    """Name -> URL of the indexes that were given.

    Raises:
        EnvspecError: One is not of the form, or carries credentials.
    """
    from envspec.adoption.indexing import INDEX_NAME  # noqa: PLC0415

    found: dict[str, str] = {}
    for each in given:
        match = _INDEX.fullmatch(each)
        name, url = (match[1], match[2]) if match else ("", "")
        if not match or NAME.mismatch(name) or name in ("default", INDEX_NAME) or name in found:
            raise EnvspecError(
                f"expected NAME=URL, with a name of its own, got {quoted(each)}",
                input_name="--index",
                hint="for instance `--index pytorch=https://packages.example.org/cu130`",
            )
        if "@" in url or "?" in url or "#" in url or not url.startswith(("https://", "http://", "file://")):
            variable = f"UV_INDEX_{re.sub('[^A-Z0-9]', '_', name.upper())}"
            raise EnvspecError(
                f"the URL of the index `{name}` carries credentials, a query or a fragment, or is none",
                input_name="--index",
                hint=f"set {variable}_USERNAME and {variable}_PASSWORD, or use netrc",
            )
        found[name] = url
    return found
