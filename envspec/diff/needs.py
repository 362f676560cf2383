"""What an environment needs of its hosts: CUDA, driver, glibc, libstdc++, libraries, Python, platform."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envspec.diff.changes import Change, Level, literal
from envspec.drivers import LEAST_OF_MAJOR, is_older, newest
from envspec.host_needs import host_libraries, least_driver
from envspec.wording import counted, joined

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envspec.diff.pairs import Pair
    from envspec.diff.sides import Side
    from envspec.lock import Lock

_SHOWN_BUILT = 6


def changes_of_needs(old: Lock, new: Lock, pairs: Sequence[Pair]) -> list[Change]:
    """What hosts have to offer that they had not, or have no longer.

    Args:
        old: The old lock.
        new: The new lock.
        pairs: The packages that changed.
    """
    return [
        *_cuda(old, new, pairs),
        *_driver(old, new),
        *_python(old, new),
        *_glibc(old, new),
        *_libstdcxx(old, new),
        *_libraries(old, new),
    ]


def needs_of_first(new: Lock) -> list[Change]:
    """What hosts have to offer for a lock that has none before it."""
    least, libraries = least_driver(new), host_libraries(new)
    stated = [("cuda-line", "CUDA", new.cuda_toolkit), ("driver", "NVIDIA driver, at least", least)]
    stated += [("python", "Python", new.python_exact or new.python), ("platform", "platform", new.platform)]
    stated += [("glibc", "glibc of every host, at least", new.glibc)]
    stated += [("cuda-compute", "compute capabilities", ", ".join(new.cuda_compute))]
    stated += [("host-library", "libraries of the host", ", ".join(libraries))]
    plain = ("python", "platform", "glibc")
    return [
        Change(kind=kind, level="note" if kind in plain else "look", new=value, text=f"{says}: {literal(value)}")
        for kind, says, value in stated
        if value
    ]


def numbers(version: str) -> tuple[int, ...]:
    """A version of numbers and dots for comparison."""
    return tuple(int(piece) for piece in version.split(".") if piece.isdecimal())


def _cuda(old: Lock, new: Lock, pairs: Sequence[Pair]) -> list[Change]:
    found = []
    if old.cuda_toolkit != new.cuda_toolkit:
        majors = [numbers(toolkit)[:1] for toolkit in (old.cuda_toolkit, new.cuda_toolkit)]
        if old.cuda_toolkit and new.cuda_toolkit:
            text = f"CUDA goes from {old.cuda_toolkit} to {new.cuda_toolkit}"
        else:
            text = (
                f"CUDA {new.cuda_toolkit}, and none before" if new.cuda_toolkit else f"CUDA {old.cuda_toolkit} is gone"
            )
        found.append(
            Change(
                kind="cuda-line",
                level="stop" if majors[0] != majors[1] else "look",
                old=old.cuda_toolkit,
                new=new.cuda_toolkit,
                text=text,
                consequences=(*_built(pairs), *_replaced(pairs)),
            )
        )
    else:
        moved = _built(pairs)
        if moved:
            found.append(
                Change(
                    kind="cuda-line",
                    level="look",
                    old=old.cuda_toolkit,
                    new=new.cuda_toolkit,
                    text=f"packages are built for another CUDA, the spec's stays {new.cuda_toolkit or 'unstated'}",
                    consequences=moved,
                )
            )
    if old.cuda_compute != new.cuda_compute:
        gone = [each for each in old.cuda_compute if each not in new.cuda_compute]
        come = [each for each in new.cuda_compute if each not in old.cuda_compute]
        said = [f"without {joined(gone)}" if gone else "", f"with {joined(come)}" if come else ""]
        found.append(
            Change(
                kind="cuda-compute",
                level="stop" if gone else "note",
                old=", ".join(old.cuda_compute),
                new=", ".join(new.cuda_compute),
                text=f"the declared compute capabilities are now {joined(new.cuda_compute) or 'none'}"
                f"{', ' + ' and '.join(filter(None, said)) if any(said) else ', in another order'}",
                consequences=("the checks no longer ask for code for what is left out",) if gone else (),
            )
        )
    return found


def _built(pairs: Sequence[Pair]) -> tuple[str, ...]:
    """The packages beside NVIDIA's that were built for another CUDA than before, torch first."""
    lines = []
    for pair in pairs:
        before, after = pair.old, pair.new
        if before and after and before.cuda and after.cuda and before.cuda != after.cuda:
            if after.name.startswith(("nvidia-", "cuda-")):
                continue
            text = (
                f"{after.name} {after.version} is built for CUDA {after.cuda}, {before.version} was for {before.cuda}"
            )
            lines.append((after.name != "torch", text))
    said = [line for _, line in sorted(lines)]
    more = len(said) - _SHOWN_BUILT
    return (*said[:_SHOWN_BUILT], *([f"and {more} more packages"] if more > 0 else []))


def _replaced(pairs: Sequence[Pair]) -> tuple[str, ...]:
    names = [pair.names for pair in pairs if pair.old and pair.new and pair.old.name != pair.new.name]
    if not names:
        return ()
    return (
        f"{counted(len(names), 'package')} of libraries for the old CUDA are replaced, such as {names[0][0]} by {names[0][1]}",
    )


def _driver(old: Lock, new: Lock) -> list[Change]:
    before, after = least_driver(old), least_driver(new)
    if before == after:
        return _driver_api(old, new)
    raised = bool(after) and (not before or is_older(before, after) or newest([before, after]) == after)
    if before and after:
        text = f"the least NVIDIA driver goes from {before} to {after}"
    else:
        text = f"an NVIDIA driver is needed now, {after} or later" if after else "no NVIDIA driver is needed any more"
    lines = []
    major = _major(new)
    if raised and major in LEAST_OF_MAJOR and LEAST_OF_MAJOR[major] == after:
        lines.append(f"every program of CUDA {major} needs driver {after} or later; on an older one no GPU is usable")
    elif raised and new.needs.driver_api:
        lines.append(f"the binaries call functions of the driver that came with CUDA {new.needs.driver_api}")
    if raised:
        lines.append("hosts below it are refused before anything is sent to them: upgrade their driver first")
    return [
        Change(
            kind="driver",
            level="stop" if raised else "note",
            old=before,
            new=after,
            text=text,
            consequences=tuple(lines),
        )
    ]


def _driver_api(old: Lock, new: Lock) -> list[Change]:
    one, other = old.needs.driver_api, new.needs.driver_api
    if one == other:
        return []
    text = f"the newest function of the driver that the binaries call is of CUDA {other or 'no known release'}, {_before(one)}"
    return [Change(kind="driver", level="note", subject="functions", old=one, new=other, text=text)]


def _major(lock: Lock) -> int:
    return next(iter(numbers(lock.cuda_toolkit)), 0)


def _python(old: Lock, new: Lock) -> list[Change]:
    found = []
    if old.python != new.python:
        found.append(
            Change(
                kind="python",
                level="stop",
                old=old.python,
                new=new.python,
                text=f"the environment's Python goes from {old.python} to {new.python}",
                consequences=(
                    f"every host needs a CPython {new.python}",
                    f"every path goes from `lib/python{old.python}` to `lib/python{new.python}`, so every wheel is unpacked anew",
                ),
            )
        )
    elif old.python_exact != new.python_exact:
        any_patch = "any patch level"
        found.append(
            Change(
                kind="python",
                level="look",
                old=old.python_exact,
                new=new.python_exact,
                text=f"Python {new.python}: {old.python_exact or any_patch} before, {new.python_exact or any_patch} now",
                consequences=("hosts with another patch level are refused",) if new.python_exact else (),
            )
        )
    if old.platform != new.platform:
        text = f"the platform goes from {old.platform} to {new.platform}"
        found.append(Change(kind="platform", level="stop", old=old.platform, new=new.platform, text=text))
    return found


def _glibc(old: Lock, new: Lock) -> list[Change]:
    found = []
    if old.glibc != new.glibc:
        raised = numbers(new.glibc) > numbers(old.glibc)
        found.append(
            Change(
                kind="glibc",
                level="stop" if raised else "note",
                subject="declared",
                old=old.glibc,
                new=new.glibc,
                text=f"the glibc that every host must have goes from {old.glibc} to {new.glibc}, as the spec declares it",
                consequences=("the spec does not say which glibc a host has; `build` asks before it sends anything",)
                if raised
                else (),
            )
        )
    before, after = old.needs.glibc, new.needs.glibc
    if before != after:
        level: Level = "look" if numbers(after) > numbers(before) else "note"
        found.append(
            Change(
                kind="glibc",
                level=level,
                subject="measured",
                old=before,
                new=after,
                text=f"the binaries need glibc {after or 'of any version'}, {_before(before)}; declared is {new.glibc}",
            )
        )
    return found


def _libstdcxx(old: Lock, new: Lock) -> list[Change]:
    found = []
    for subject, before, after in (
        ("GLIBCXX", old.needs.libstdcxx, new.needs.libstdcxx),
        ("CXXABI", old.needs.cxxabi, new.needs.cxxabi),
    ):
        if before != after:
            raised = numbers(after) > numbers(before)
            text = f"the binaries need {f'{subject}_{after}' if after else f'no {subject}'} of libstdc++, {_before(before)}"
            found.append(
                Change(
                    kind="libstdcxx",
                    level="look" if raised else "note",
                    subject=subject,
                    old=before,
                    new=after,
                    text=text,
                )
            )
    return found


def _before(value: str) -> str:
    return f"{value} before" if value else "the lock before stated none"


def _libraries(old: Lock, new: Lock) -> list[Change]:
    before, after = set(host_libraries(old)), set(host_libraries(new))
    return [
        Change(
            kind="host-library",
            level="look",
            subject=name,
            new=name,
            text=f"every host must offer {literal(name)}, which the lock before did not ask for",
            consequences=(
                "its binaries need it" if name in new.needs.libraries else "the spec declares it, no binary needs it",
            ),
        )
        for name in sorted(after - before)
    ] + [
        Change(
            kind="host-library",
            level="note",
            subject=name,
            old=name,
            text=f"{literal(name)} is no longer needed of hosts",
        )
        for name in sorted(before - after)
    ]


def raised_needs(old: Side, new: Side) -> tuple[str, ...]:
    """What hosts must have now and did not before, of which the spec does not say whether they have it."""
    if old.lock is None or new.lock is None:
        return ()
    found = []
    if numbers(new.lock.glibc) > numbers(old.lock.glibc):
        found.append(f"glibc {new.lock.glibc}")
    if old.lock.python != new.lock.python or (new.lock.python_exact and old.lock.python_exact != new.lock.python_exact):
        found.append(f"Python {new.lock.python_exact or new.lock.python}")
    found += sorted(set(host_libraries(new.lock)) - set(host_libraries(old.lock)))
    return tuple(found)
