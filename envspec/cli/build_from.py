"""`envspec build --from`: spec, lock and wheels out of a bundle."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from envspec.bundles import SPEC_FOLDER
from envspec.cli.build import build_inputs
from envspec.cli.options import check_path, read_inputs
from envspec.cli.output import make_reporter
from envspec.errors import FOUND_WRONG, EnvspecError

if TYPE_CHECKING:
    from pathlib import Path

    from builder.agent.store import Store
    from builder.building import BuildRequest
    from envspec.cli.build import Wanted
    from envspec.cli.options import Inputs


def build_from(bundle: Path, spec: Path | None, place: Store, wanted: Wanted) -> int:
    """Build what a bundle has.

    Args:
        bundle: The folder or the tar.
        spec: The spec that it has to be of; None if any will do.
        place: The store of this machine.
        wanted: What is asked for.

    Returns:
        The exit code.

    Raises:
        EnvspecError: It is no bundle, is damaged, or has another spec or lock.
    """
    check_path(bundle, "the bundle")
    from builder.agent.store import remove_readonly_tree  # noqa: PLC0415
    from builder.image.bundle_taking import take_spec, take_wheels  # noqa: PLC0415

    place.ensure()
    reporter = make_reporter(quiet=wanted.quiet)
    with place.lock("gc", shared=True, waiting=reporter.note), place.lock("bundle", waiting=reporter.note):
        folder = place.temporary("bundle")
        try:
            index = take_spec(bundle, folder)
            inputs = read_inputs(folder / index.spec)
            if spec is not None:
                _check_same(read_inputs(spec), inputs, os.fspath(bundle))

            def bring(request: BuildRequest) -> None:
                take_wheels(bundle, request, reporter)

            return build_inputs(inputs, place, replace(wanted, offline=True), bring=bring)
        finally:
            remove_readonly_tree(folder)


def _check_same(ours: Inputs, theirs: Inputs, bundle: str) -> None:
    """See that a bundle has the spec and the lock that are here.

    Raises:
        EnvspecError: It has others.
    """
    pairs = (
        (ours.spec_path.name, ours.spec_bytes, theirs.spec_bytes),
        (ours.lock_name, ours.lock_bytes, theirs.lock_bytes),
    )
    other = [name for name, here, there in pairs if here != there]
    if other:
        raise EnvspecError(
            f"the bundle has another {' and another '.join(f'`{name}`' for name in other)} than the one here",
            input_name=bundle,
            hint=f"export it anew from these, or build what it has without `--spec` (its files lie in `{SPEC_FOLDER}`)",
            exit_code=FOUND_WRONG,
        )
