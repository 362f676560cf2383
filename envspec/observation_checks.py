"""Is what a host sent an observation? Each value has its type and its range, or all of it is refused."""

from __future__ import annotations

import dataclasses
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from envspec.observed import Observation, ObservedDistribution, ObservedFile

if typing.TYPE_CHECKING:
    from envspec.facts import StartupHook

KINDS = frozenset({"file", "link", "missing", "other", "unreadable"})
LONGEST_PATH = 8192
MOST_NUMBER = 1 << 63
_SHA256 = re.compile(r"[0-9a-f]{64}|")
_HOST_TEXTS = ("glibc", "driver", "cuda", "system", "hostname")

Check = Callable[[Any], bool]


def checked_observation(observation: Observation) -> Observation:
    """The observation itself, if every value of it is one.

    Raises:
        ValueError: One is not.
    """
    for field in dataclasses.fields(observation):
        if field.name != "distributions":
            _require(_field_checks(Observation)[field.name], getattr(observation, field.name), field.name)
    _check_files(observation.strays, "strays")
    _check_hooks(observation.stray_hooks)
    for site in observation.sites:
        if site:
            _check_inside(site)
    host = observation.host
    if any(not isinstance(host.get(name), str) for name in _HOST_TEXTS):
        raise ValueError("`host` lacks a text")
    gpus = host.get("gpus")
    if not isinstance(gpus, list) or not all(
        isinstance(gpu, dict) and isinstance(gpu.get("name"), str) and isinstance(gpu.get("compute"), str)
        for gpu in gpus
    ):
        raise ValueError("`gpus` are none")
    if observation.bytes_read < 0 or observation.files_seen < 0:
        raise ValueError("a negative number")
    for distribution in observation.distributions:
        checked_distribution(distribution)
    return observation


def checked_distribution(distribution: ObservedDistribution) -> ObservedDistribution:
    """The distribution itself, if every value of it is one.

    Raises:
        ValueError: One is not.
    """
    for name, check in _field_checks(ObservedDistribution).items():
        _require(check, getattr(distribution, name), name)
    _check_inside(distribution.folder)
    _check_files(distribution.files, distribution.folder)
    _check_hooks(distribution.hooks)
    for binary in distribution.binaries.binaries:
        _check_path(binary.path)
    return distribution


def _require(check: Check, value: Any, name: str) -> None:  # noqa: ANN401 - any JSON value
    if not check(value):
        raise ValueError(f"`{name}` is of another type")


def _check_files(files: tuple[ObservedFile, ...], where: str) -> None:
    for file in files:
        _check_path(file.path)
        if file.kind not in KINDS:
            raise ValueError(f"a file of {where} of the kind `{file.kind[:20]}`")
        if not _SHA256.fullmatch(file.sha256) or not _SHA256.fullmatch(file.recorded):
            raise ValueError(f"a digest of {where} that is none")
        if file.size < -1 or file.recorded_size < -1 or file.links < 0:
            raise ValueError(f"a size of {where} that is none")


def _check_hooks(hooks: tuple[StartupHook, ...]) -> None:
    for hook in hooks:
        _check_inside(hook.path)
        if not _SHA256.fullmatch(hook.sha256):
            raise ValueError("the digest of a hook that is none")


def _check_path(path: str) -> None:
    """A path of RECORD may lead out, and is absolute then."""
    if path.startswith("/"):
        _check_inside(path[1:])
    else:
        _check_inside(path)


def _check_inside(path: str) -> None:
    if len(path) > LONGEST_PATH or "\0" in path:
        raise ValueError("a path that is none")
    if not path or path[0] in "./" or "/." in path or "//" in path or path[-1] == "/":
        parts = path.split("/")
        if "" in parts or "." in parts or ".." in parts:
            raise ValueError("a path that is not in its shortest form")


@cache
def _field_checks(kind: type) -> dict[str, Check]:
    hints = typing.get_type_hints(kind, vars(sys.modules[kind.__module__]) | {"Mapping": Mapping})
    return {name: _check_of(hint) for name, hint in hints.items() if not name.startswith("_")}


@cache
def _check_of(hint: Any) -> Check:  # noqa: ANN401 - one answer for each kind of type
    """Whether a value is of a type, all that it holds included."""
    if hint is Any:
        return lambda _value: True
    if hint is bool:
        return lambda value: value is True or value is False
    if hint is int:
        return lambda value: type(value) is int and -MOST_NUMBER < value < MOST_NUMBER
    if hint is str:
        return lambda value: type(value) is str
    if hint is types.NoneType:
        return lambda value: value is None
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        several = [_check_of(each) for each in arguments]
        return lambda value: any(check(value) for check in several)
    if origin is tuple and arguments[1:] == (...,):
        each = _check_of(arguments[0])
        return lambda value: type(value) is tuple and all(map(each, value))
    if origin is tuple:
        return _tuple_check(tuple, [_check_of(argument) for argument in arguments])
    if origin is Mapping:
        key, inner = _check_of(arguments[0]), _check_of(arguments[1])
        return lambda value: (
            type(value) is dict and all(key(name) and inner(content) for name, content in value.items())
        )
    if isinstance(hint, type) and issubclass(hint, tuple):
        return _tuple_check(hint, list(_field_checks(hint).values()))
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        fields = list(_field_checks(hint).items())
        return lambda value: type(value) is hint and all(check(getattr(value, name)) for name, check in fields)
    raise TypeError(f"values of {hint} cannot be checked")


def _tuple_check(kind: Any, checks: list[Check]) -> Check:  # noqa: ANN401 - tuple or a kind of it
    def is_one(value: Any) -> bool:  # noqa: ANN401 - any JSON value
        if type(value) is not kind or len(value) != len(checks):
            return False
        return all(check(each) for check, each in zip(checks, value, strict=True))

    return is_one
