"""Any venv, here or on a host -> what was seen of it.

    observation = observe("/srv/venv")
    results = on_hosts(targets, observation_of("/srv/venv"), ...)

A host sends its answer as raw bytes; nothing of it is trusted: it has limits, and every value is checked. Nothing is left on the host: the
agent runs from memory, and does not even make a store.
"""

from __future__ import annotations

import contextlib
import gc
import os
from typing import TYPE_CHECKING, Any

from builder.cubin_notes import toolkit_release
from builder.progress import SilentReporter
from envspec.errors import EnvspecError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from builder.agent.survey import Survey, VenvLook
    from builder.hosts import Target, Visit
    from builder.progress import Advance, Reporter
    from builder.session import Session
    from envspec.observed import Observation

MOST_DISTRIBUTIONS = 20_000


def observe(
    path: str, *, host: Target | None = None, reporter: Reporter | None = None, remember: bool = True
) -> Observation:
    """Observe a venv of this machine or of a host.

    Args:
        path: Its folder, its interpreter, or its folder of packages.
        host: Where it is; None for this machine.
        reporter: Where progress goes.
        remember: Whether what did not change since the last look is not read again; on a host everything is read, and nothing kept.

    Raises:
        EnvspecError: There is no Python environment, or the host cannot be asked.
    """
    reporter = reporter or SilentReporter()
    if host is not None:
        return _observe_there(path, host, reporter)
    return finish_look(begin_look(path, reporter), remember=remember).observation


def begin_look(path: str, reporter: Reporter) -> VenvLook:
    """List a venv of this machine, and look at what is around it; nothing of it is read yet. For the arguments see `observe`.

    Raises:
        EnvspecError: There is no Python environment.
    """
    from builder.agent.survey import VenvLook as OneLook  # noqa: PLC0415 - not where a host is asked

    with _without_collection():
        return OneLook(path, os.environ, reporter)


def finish_look(look: VenvLook, *, remember: bool = True) -> Survey:
    """Read what is to be read of it.

    Args:
        look: As `begin_look` gives it.
        remember: As in `observe`.
    """
    with _without_collection():
        return look.survey(release_of=toolkit_release, remember=remember)


def observation_of(path: str) -> Callable[[Visit], Observation]:
    """Work for `on_hosts`: observe a venv there.

    Args:
        path: As in `observe`, on the host.
    """

    def work(visit: Visit) -> Observation:
        return visit.with_session(lambda session: _ask(session, visit, path))

    return work


@contextlib.contextmanager
def _without_collection() -> Iterator[None]:
    """Half a million values are made, and no cycles: looking for them would take a fifth of the time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _observe_there(path: str, host: Target, reporter: Reporter) -> Observation:
    from builder.bundle import make_bundle  # noqa: PLC0415 - only where a host is asked
    from builder.hosts import Visit  # noqa: PLC0415

    with contextlib.ExitStack() as bars, _without_collection():
        visit = Visit(target=host, bundle=make_bundle(), progress=_Bars(reporter, bars))
        return observation_of(path)(visit)


def _ask(session: Session, visit: Visit, path: str) -> Observation:
    from builder.host_verbs import ask  # noqa: PLC0415

    found: list[Observation] = []

    def take(size: int, chunks: Iterator[bytes]) -> None:
        from builder.hosts import checked  # noqa: PLC0415

        visit.progress.show("taking what was seen")
        if found:
            raise ValueError("a second observation")
        found.append(checked(visit.target.spec.name, "the venv", lambda: read_observation(size, chunks)))

    ask(session, visit, "observe", {"path": path}, f"looking at {path}", on_raw=take)
    if not found:
        raise EnvspecError(f"`{visit.target.spec.name}` sent no observation", hint="is the host what it should be?")
    return found[0]


def read_observation(size: int, chunks: Iterator[bytes]) -> Observation:
    """What a host sent, as a value.

    Args:
        size: Bytes that it announced.
        chunks: They.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: It is no observation, or too much.
    """
    from builder.agent.survey_files import with_releases  # noqa: PLC0415
    from builder.agent.survey_wire import DEFLATED_LIMIT_BYTES, inflated  # noqa: PLC0415
    from envspec.observation_checks import checked_observation  # noqa: PLC0415
    from envspec.observed import distribution_from_json, observation_from_json  # noqa: PLC0415

    if size > DEFLATED_LIMIT_BYTES:
        raise ValueError(f"it has {size} bytes, at most {DEFLATED_LIMIT_BYTES} are taken")
    records = inflated(chunks)
    packed = _next(records)["packed"]
    for cubins in packed.values():
        if not all(type(flags) is int and type(payload) is str for flags, payload in cubins):
            raise ValueError("a cubin that is none")
    head: dict[str, Any] = _next(records)
    count = head["distributions"]
    if not isinstance(count, int) or not 0 <= count <= MOST_DISTRIBUTIONS:
        raise ValueError("a number of distributions that is none")
    distributions = []
    for _ in range(count):
        record = _next(records)
        with_releases(record["binaries"], packed, toolkit_release)
        distributions.append(distribution_from_json(record))
    with_releases(head["stray_binaries"], packed, toolkit_release)
    if next(records, None) is not None:
        raise ValueError("more distributions than it announced")
    head["distributions"] = []
    return checked_observation(observation_from_json(head, distributions))


def _next(records: Iterator[dict[str, Any]]) -> dict[str, Any]:
    try:
        return next(records)
    except StopIteration:
        raise ValueError("it is cut off") from None


class _Bars:
    """The progress of one host as that of this machine is shown (`builder.progress.HostProgress`)."""

    def __init__(self, reporter: Reporter, bars: contextlib.ExitStack) -> None:
        self._reporter = reporter
        self._bars = bars
        self._label = ""
        self._done = 0
        self._advance: Advance = lambda _units: None

    def show(self, text: str) -> None:
        """Say a line."""
        self._reporter.note(text)

    def amount(self, label: str, done: int, total: int, unit: str) -> None:
        """Show a bar for each label."""
        if label != self._label:
            self._bars.close()
            self._label, self._done = label, 0
            self._advance = self._bars.enter_context(self._reporter.stage(label, total=total, unit=unit))
        if done > self._done:
            self._advance(done - self._done)
            self._done = done

    def end(self, text: str, *, good: bool) -> None:
        """Nothing is said: whoever asked says it."""
