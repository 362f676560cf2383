"""Where the parts of a plan come from on a host: the store, an installed distribution that has every locked byte, or the controller.

Part of the agent: standard library only, CPython >= 3.10.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from builder.agent.generations import active_generation
from builder.agent.observe import read_env_record
from builder.agent.receive import Receiver, Wanted, sweep_incoming
from envspec.errors import EnvspecError

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future
    from pathlib import Path

    from builder.agent.objects import ObjectMaker
    from builder.agent.realise import Plan, PlanPart
    from builder.agent.serve import Agent
    from builder.agent.store import Store

REPACKED_BYTES_A_SECOND = 300e6  # only the ratio to other tasks matters


@dataclass
class Sources:
    """What there is to take from, and what came of it."""

    sizes: dict[str, int]
    """sha256 of each wheel of the plan -> bytes."""

    reuse: tuple[Path, ...] = ()
    """Venvs of this machine."""

    reused: list[str] = field(default_factory=list)
    not_reused: list[dict[str, Any]] = field(default_factory=list)


def provide(agent: Agent, plan: Plan, sources: Sources, maker: ObjectMaker) -> None:
    """Hand every part to the maker: what is there at once, the rest as it comes.

    Args:
        agent: Whose store, and whose controller.
        plan: What is to be made.
        sources: Where from; told what was reused.
        maker: Who makes it.
    """
    missing: dict[str, PlanPart] = {}
    similar = similar_trees(agent.store, plan)
    for part in plan.parts:
        wheel = agent.store.wheel(part.sha256, part.file)
        if maker.is_tree_there(part):
            maker.add(replace(part, donor=""), None)
            continue
        donor = part.donor or similar.get(part.package, "")
        if donor:
            maker.add(replace(part, tree=donor, donor=""), None)
        wanted = replace(part, donor=donor)
        if is_there(wheel, sources.sizes[part.sha256]):
            maker.add(wanted, wheel)
        else:
            missing[part.sha256] = wanted
    trials = _try_reuse(plan.python, sources, maker, missing)
    _receive(agent, sources, maker, {sha256: part for sha256, part in missing.items() if sha256 not in trials})
    edited: dict[str, PlanPart] = {}
    for sha256, (venv, future) in trials.items():
        part, answer = missing[sha256], future.result()
        if answer["reused"]:
            sources.reused.append(part.package)
            maker.add_reused(replace(part, donor=""), answer)
        else:
            row = {"package": part.package, "venv": venv, "edited": answer["edited"], "reason": answer["reason"]}
            sources.not_reused.append(row)
            edited[sha256] = part
    _receive(agent, sources, maker, edited)


def similar_trees(store: Store, plan: Plan) -> dict[str, str]:
    """Package -> the tree of it in the environment that is active now: of another patch or version most files are the same.

    Only a donor: what comes of it is proven by the lock's digest, and nothing but the files that are equal is taken.
    """
    generation = active_generation(store, plan.name)
    if generation is None:
        return {}
    try:
        record = read_env_record(store, generation.env, plan.name)
        trees = {str(part["package"]): str(part["tree"]) for part in record.fields["parts"]}
    except (EnvspecError, KeyError, TypeError):
        return {}
    return {package: tree for package, tree in trees.items() if store.tree(tree).exists}


def _try_reuse(
    python: str, sources: Sources, maker: ObjectMaker, missing: dict[str, PlanPart]
) -> dict[str, tuple[str, Future[dict[str, Any]]]]:
    """Let the workers repack what is installed and has the right name and version."""
    if not sources.reuse or not missing:
        return {}
    from builder.agent.reuse import find_installed, wheel_key  # noqa: PLC0415 - rarely needed

    installed = [(venv, find_installed(venv, python)) for venv in sources.reuse]
    trials = {}
    for sha256, part in missing.items():
        key = wheel_key(part.file)
        for venv, there in installed:
            if key in there and not part.base_sha256:  # nobody has installed what an overlay makes
                weight_s = sources.sizes[sha256] / REPACKED_BYTES_A_SECOND
                trials[sha256] = (str(venv), maker.reuse(part, asdict(there[key]), weight_s))
                break
    return trials


def _receive(agent: Agent, sources: Sources, maker: ObjectMaker, missing: dict[str, PlanPart]) -> None:
    """Have the controller send what is missing."""
    if missing:
        arrived = receive_missing(
            agent, sources.sizes, missing, lambda part, wheel: maker.add(part, wheel, checked=True)
        )
        for sha256, part in missing.items():
            if sha256 not in arrived:  # another build got it while this one waited
                maker.add(part, agent.store.wheel(sha256, part.file))


def receive_missing(
    agent: Agent, sizes: dict[str, int], missing: dict[str, PlanPart], on_arrived: Callable[[PlanPart, Path], None]
) -> list[str]:
    """Have the controller send those wheels that are not in the wheelhouse.

    Args:
        agent: Whose store, and whose controller.
        sizes: sha256 -> bytes.
        missing: sha256 -> part.
        on_arrived: Told each part and its wheel as it is in place, from the reading thread.

    Returns:
        The sha256 of what was sent.
    """
    wanted = [Wanted(part.sha256, part.file, sizes[part.sha256]) for part in missing.values()]
    return _receive_wheels(agent, wanted, lambda sha256, wheel: on_arrived(missing[sha256], wheel))


def keep_wheels(agent: Agent, rows: list[dict[str, Any]]) -> list[str]:
    """Have the controller send those wheels that are not in the wheelhouse, to keep them for others.

    Args:
        agent: Whose store, and whose controller.
        rows: `sha256`, `file` and `size` of each.

    Returns:
        The sha256 of what was sent.

    Raises:
        EnvspecError: A row is not that of a wheel: its names become paths.
    """
    wanted = [Wanted(str(row["sha256"]), str(row["file"]), int(row["size"])) for row in rows]
    for each in wanted:
        if not re.fullmatch(r"[0-9a-f]{64}", each.sha256) or not re.fullmatch(r"[^/\x00]+\.whl", each.file):
            raise EnvspecError(f"not a wheel: {each.sha256[:80]!a} {each.file[:80]!a}")
    return _receive_wheels(agent, wanted, lambda _sha256, _wheel: None)


def _receive_wheels(agent: Agent, wanted: list[Wanted], on_arrived: Callable[[str, Path], None]) -> list[str]:
    with agent.store.lock("incoming", waiting=agent.note):
        agent.receiver = Receiver(agent.store, lambda rows: agent.event({"need": rows}))
        try:
            missing = [each for each in wanted if not is_there(agent.store.wheel(each.sha256, each.file), each.size)]
            agent.receiver.receive(missing, on_arrived)
            sweep_incoming(agent.store)
        finally:
            agent.receiver = None
    return [each.sha256 for each in missing]


def is_there(wheel: Path, size: int) -> bool:
    """Whether a wheel is in the wheelhouse; its sha256 is checked by the worker that reads it."""
    return wheel.is_file() and wheel.stat().st_size == size
