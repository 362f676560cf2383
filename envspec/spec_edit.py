"""Changes to the text of a spec that keep everything else byte for byte: comments, order, spacing."""

from __future__ import annotations

import copy
from typing import Any

from envspec.errors import EnvspecError
from envspec.forms import normalise_name, quoted
from envspec.spec_toml import CONFLICT_HINT, canonical_specifier
from envspec.toml_reading import nearest, read_document


def set_specifier(text: str, package: str, specifier: str, *, input_name: str = "") -> str:
    r"""The text of a spec with another version of a package in [packages], whichever way it is written there.

    Args:
        text: Of the spec.
        package: In any spelling.
        specifier: PEP 440; empty or `*` for any version.
        input_name: For errors: `ddtree.toml`.

    Returns:
        The text, in which only that value differs.

    Raises:
        EnvspecError: The text is not TOML, the package is not in [packages], or the specifier is none.

    Example:
        >>> set_specifier('[packages]\ntorch = "==2.10.0"  # with CUDA 13\n', "Torch", "==2.11.0")
        '[packages]\ntorch = "==2.11.0"  # with CUDA 13\n'
    """
    import tomlkit  # noqa: PLC0415 - too slow to import for every start
    from tomlkit.exceptions import TOMLKitError  # noqa: PLC0415

    try:
        wanted = canonical_specifier(specifier) or "*"
    except ValueError as exc:
        raise EnvspecError(f"{quoted(package)}: {exc}", input_name=input_name) from None
    before = read_document(text, input_name=input_name, kind="spec", conflict_hint=CONFLICT_HINT).root.get("packages")
    packages = before if isinstance(before, dict) else {}
    key = next((key for key in packages if normalise_name(key) == normalise_name(package)), None)
    if key is None:
        likely = nearest(normalise_name(package), packages)
        raise EnvspecError(
            f"{quoted(package)} is not in [packages]",
            input_name=input_name,
            hint=f"did you mean `{likely}`?" if likely else "",
        )
    expected = copy.deepcopy(packages)
    field = "version" if isinstance(packages[key], dict) else ""
    _set(expected, key, field, wanted)
    try:
        document = tomlkit.parse(text)
        _set(document["packages"], key, field, wanted)
        edited = tomlkit.dumps(document)
        after = read_document(edited, input_name=input_name, kind="spec", conflict_hint="").root.get("packages")
    except (TOMLKitError, EnvspecError, RecursionError):
        after = None
        edited = ""
    if after != expected:
        raise EnvspecError(
            f"`packages.{key}` is written in a way that cannot be changed without changing more",
            input_name=input_name,
            hint=f"write `{wanted}` there by hand",
        )
    return edited


def _set(packages: Any, key: str, field: str, wanted: str) -> None:  # noqa: ANN401 - a dict, or tomlkit's kinds of it
    """Put the version where it is: in the table of a package, or in its place."""
    if field:
        packages[key][field] = wanted
    else:
        packages[key] = wanted
