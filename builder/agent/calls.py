"""The calls that an agent knows. Each takes plain values and gives plain values; progress goes out as events.

Part of the agent: standard library only, CPython >= 3.10.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from dataclasses import asdict, replace
from pathlib import Path

from builder.agent.generations import active_generation, list_generations, roll_back
from builder.agent.store import process_mark, remove_dead_temporaries, write_new
from builder.outcome import find_built, last_verification

TYPE_CHECKING = False  # that of `typing` costs an agent 2 of its 30 ms
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from builder.agent.generations import Generation
    from builder.agent.interpreter import Interpreter
    from builder.agent.serve import Agent

    Values = dict[str, Any]

GIVEN_CHUNK_BYTES = 1 << 20


def _facts(agent: Agent, wanted: Values) -> Values:
    from builder.agent.host import host_facts  # noqa: PLC0415 - each call loads what it needs

    place: Values = {name: str(wanted[name]) for name in ("python", "exact", "platform", "only_python")}
    anew = bool(wanted.get("anew"))
    return host_facts(
        agent.store,
        os.environ,
        find_python=lambda: _interpreter(agent, **place, anew=anew),
        libraries=wanted["libraries"],
        anew=anew,
    )


def _interpreter(
    agent: Agent, *, python: str, exact: str, platform: str, only_python: str, anew: bool = False
) -> Interpreter:
    """The Python of an environment, looked for once by each agent."""
    from builder.agent.interpreter import interpreter_for  # noqa: PLC0415

    key = (python, exact, platform, only_python)
    if key not in agent.interpreters:
        agent.interpreters[key] = interpreter_for(
            agent.store, python, exact, platform=platform, environ=os.environ, only=only_python, anew=anew
        )
    return agent.interpreters[key]


def _built(agent: Agent, wanted: Values) -> Values:
    """What a build of exactly these files left, if it is still active."""
    agent.store.check_format()
    found = find_built(
        agent.store,
        folder=Path(),
        lock_sha256=wanted["lock_sha256"],
        spec_sha256=wanted["spec_sha256"],
        patches=wanted["patches"],
        verified=wanted["verified"],
    )
    return {
        "outcome": None if found is None else found.to_json(),
        "receipt": None if found is None else found.receipt,
    }


def _missing(agent: Agent, wanted: Values) -> Values:
    """Which of a plan's wheels the host would have to get."""
    from builder.agent.build import Order  # noqa: PLC0415
    from builder.agent.packing import unpack  # noqa: PLC0415
    from builder.agent.sources import is_there  # noqa: PLC0415

    wanted = unpack(wanted["packed"])
    plan = Order.from_json(wanted["order"]).plan
    sizes: dict[str, int] = wanted["sizes"]
    there = agent.store.env(plan.env, plan.name).is_dir()
    missing = [
        part.sha256
        for part in plan.parts
        if not there
        and not agent.store.tree(part.tree).exists
        and not is_there(agent.store.wheel(part.sha256, part.file), sizes[part.sha256])
    ]
    return {"missing": missing, "env_there": there}


def _wheels(agent: Agent, wanted: Values) -> Values:
    """Which of some wheels are in the wheelhouse; their bytes are judged by whoever gets them."""
    from builder.agent.sources import is_there  # noqa: PLC0415

    return {
        "there": [
            row["sha256"]
            for row in wanted["wheels"]
            if is_there(agent.store.wheel(row["sha256"], row["file"]), row["size"])
        ]
    }


def _give(agent: Agent, wanted: Values) -> Values:
    """Send a wheel to the controller."""
    path = agent.store.wheel(wanted["sha256"], wanted["file"])
    with path.open("rb", buffering=0) as file:
        offset = int(wanted.get("offset", 0))
        size = max(0, os.fstat(file.fileno()).st_size - offset)
        file.seek(offset)
        chunks = iter(lambda: file.read(GIVEN_CHUNK_BYTES), b"")
        agent.writer.say_with({"id": agent.call_id, "raw": size}, chunks)
    return {}


def _python(agent: Agent, wanted: Values) -> Values:
    """Take a Python from the controller, if it is not there, and remember it."""
    from builder.agent.pythons import ensure_python  # noqa: PLC0415

    agent.store.ensure()
    _keep_agent(agent)
    return {"path": os.fspath(ensure_python(agent, wanted))}


def _place(agent: Agent, wanted: Values) -> Values:
    """What tells this store from others, and which of some wheels it lacks."""
    from builder.agent.passing import place_of  # noqa: PLC0415

    agent.store.ensure()
    there = set(_wheels(agent, wanted)["there"])
    missing = [row["sha256"] for row in wanted["wheels"] if row["sha256"] not in there]
    return {"place": place_of(agent.store), "missing": missing}


def _pass_on(agent: Agent, wanted: Values) -> Values:
    """Send wheels of this host straight to another one."""
    from builder.agent.passing import pass_on  # noqa: PLC0415

    return pass_on(agent, wanted)


def _stock(agent: Agent, wanted: Values) -> Values:
    """Take the wheels of a plan that this host lacks into the wheelhouse."""
    from builder.agent.build import Order  # noqa: PLC0415
    from builder.agent.sources import receive_missing  # noqa: PLC0415

    plan = Order.from_json(wanted["order"]).plan
    if wanted["place"]:
        from builder.agent.passing import check_place  # noqa: PLC0415

        check_place(agent.store, wanted["place"])
    agent.store.ensure()
    _keep_agent(agent)
    with agent.store.lock("gc", shared=True, waiting=agent.note):
        parts = {part.sha256: part for part in plan.parts if part.sha256 in frozenset(wanted["only"])}
        return {"received": receive_missing(agent, wanted["sizes"], parts, lambda _part, _wheel: None)}


def _keep_wheels(agent: Agent, wanted: Values) -> Values:
    """Take wheels into the wheelhouse, of whatever lock they are."""
    from builder.agent.sources import keep_wheels  # noqa: PLC0415

    agent.store.ensure()
    _keep_agent(agent)
    with agent.store.lock("gc", shared=True, waiting=agent.note):
        return {"received": keep_wheels(agent, wanted["wheels"])}


def _build(agent: Agent, wanted: Values) -> Values:
    from builder.agent.build import Order, build_environment  # noqa: PLC0415
    from builder.agent.packing import unpack  # noqa: PLC0415
    from builder.agent.sources import Sources, provide  # noqa: PLC0415

    wanted = {**wanted, **unpack(wanted["packed"])}
    order = Order.from_json(wanted["order"])
    sizes: dict[str, int] = wanted["sizes"]
    agent.store.ensure()
    _keep_agent(agent)
    place: Values = {name: str(wanted[name]) for name in ("exact", "platform", "only_python")}
    interpreter = _interpreter(agent, python=order.plan.python, **place)
    # Of a patched wheel most files can be taken from the base wheel's tree, where that is there; it is not sent for it.
    parts = tuple(
        part if not part.donor or agent.store.tree(part.donor).exists else replace(part, donor="")
        for part in order.plan.parts
    )
    order = replace(order, plan=replace(order.plan, parts=parts))
    sources = Sources(sizes=sizes, reuse=tuple(Path(path) for path in wanted["reuse"]))
    outcome = build_environment(
        agent.store,
        order,
        interpreter,
        environ=os.environ,
        provide=lambda maker: provide(agent, order.plan, sources, maker),
        reporter=agent,
    )
    return {
        "outcome": outcome.to_json(),
        "receipt": outcome.receipt,
        "reused": sources.reused,
        "not_reused": sources.not_reused,
    }


def _keep_agent(agent: Agent) -> None:
    """Leave the agent's file in the store, for the next time."""
    from importlib.util import MAGIC_NUMBER  # noqa: PLC0415 - each call loads what it needs

    sha256 = hashlib.sha256(agent.agent_file).hexdigest()
    folder = agent.store.root / "agents"
    place = folder / f"{sha256}.zip"
    there = b""
    with contextlib.suppress(OSError):
        there = place.read_bytes()
    if hashlib.sha256(there).hexdigest() != sha256:
        remove_dead_temporaries(folder)
        _keep(place, agent.agent_file)
    compiled = folder / f"{sha256}-{MAGIC_NUMBER.hex()}.zip"
    if not compiled.exists():
        from builder.agent.compiled import compile_agent, is_safe_to_keep  # noqa: PLC0415 - once a version

        if is_safe_to_keep(folder):
            _keep(compiled, compile_agent(agent.agent_file))


def _keep(place: Path, content: bytes) -> None:
    temporary = place.with_name(f".envspec-{process_mark()}-agent")
    write_new(temporary, content, 0o444)
    temporary.replace(place)


def _status(agent: Agent, wanted: Values) -> Values:
    from builder.agent.observe import find_drift, read_env_record  # noqa: PLC0415

    store, name = agent.store, wanted["name"]
    store.check_format()
    generation = active_generation(store, name)
    if generation is None:
        return {"generation": None, "drift": [], "python": None, "verification": None}
    record = read_env_record(store, generation.env, name)
    if wanted["deep"]:
        from builder.agent.proving import deep_drift  # noqa: PLC0415

        drift = deep_drift(store, record, agent)
    else:
        drift = find_drift(store, record)
    verification = last_verification(store, generation.env)
    return {
        "verification": None if verification is None else verification.to_json(),
        "generation": _generation(generation),
        "drift": [each.to_json() for each in drift],
        "python": record.fields["python"],
    }


def _verify(agent: Agent, wanted: Values) -> Values:
    from builder.agent.probe_scripts import ProbeOrder  # noqa: PLC0415
    from builder.agent.proving import VerifyOrder, verify_environment  # noqa: PLC0415

    order = VerifyOrder(
        name=wanted["name"],
        imports=tuple(wanted["imports"]),
        libraries=tuple(wanted["libraries"]),
        now=wanted["now"],
        deep=wanted["deep"],
        env=wanted["env"],
        probes=None if wanted["probes"] is None else ProbeOrder.from_json(wanted["probes"]),
    )
    outcome = verify_environment(agent.store, order, os.environ, agent)
    return {
        "env": outcome.env,
        "site": outcome.site,
        "path": os.fspath(outcome.path),
        "generation": outcome.generation,
        "drift": [each.to_json() for each in outcome.drift],
        "probes": [asdict(probe) for probe in outcome.probes],
        "seconds": dict(outcome.seconds),
        "receipt": outcome.receipt,
    }


def _generations(agent: Agent, wanted: Values) -> Values:
    agent.store.check_format()
    return {"generations": [_generation(each) for each in list_generations(agent.store, wanted["name"])]}


def _rollback(agent: Agent, wanted: Values) -> Values:
    agent.store.check_format()
    return {"generation": _generation(roll_back(agent.store, wanted["name"], wanted["number"]))}


def _generation(generation: Generation) -> Values:
    return {
        "number": generation.number,
        "env": generation.env,
        "site": generation.site,
        "created": generation.created,
        "active": generation.active,
        "path": os.fspath(generation.path),
        "there": generation.path.is_dir(),
    }


def _gc(agent: Agent, wanted: Values) -> Values:
    from builder.agent.collect import check_may_collect, find_garbage, remove_garbage  # noqa: PLC0415

    store = agent.store
    store.check_format()
    if not store.root.is_dir():
        return {"paths": [], "generations": [], "freed_bytes": 0, "in_use": []}
    store.ensure()
    if not wanted["dry_run"]:
        check_may_collect(store)
    with store.lock("gc", waiting=agent.note):
        garbage = find_garbage(store, keep=wanted["keep"], proc=Path("/proc"))
        if not wanted["dry_run"]:
            remove_garbage(store, garbage)
            for path in (store.root / "agents").iterdir():  # of other versions of envspec, which send their own again
                path.unlink(missing_ok=True)
            _keep_agent(agent)
    return {
        "paths": [os.fspath(path) for path in garbage.paths],
        "generations": [[name, number] for name, number in garbage.generations],
        "freed_bytes": garbage.freed_bytes,
        "in_use": [[env, pid] for env, pid in garbage.in_use],
    }


def _observe(agent: Agent, wanted: Values) -> Values:
    """Look at any venv; what was seen goes out as raw bytes. Nothing is written, not even a store."""
    from builder.agent.survey import look_at_venv  # noqa: PLC0415
    from builder.agent.survey_wire import deflated  # noqa: PLC0415

    pieces = deflated(look_at_venv(wanted["path"], os.environ, agent))
    agent.writer.say_with({"id": agent.call_id, "raw": sum(map(len, pieces))}, iter(pieces))
    return {}


def _read_files(agent: Agent, wanted: Values) -> Values:
    """Send the contents of some files of a venv, those that still have the digest that the controller knows."""
    from builder.agent.venv_files import read_venv_files  # noqa: PLC0415

    files = [(str(path), str(sha256)) for path, sha256 in wanted["files"]]
    found = list(read_venv_files(str(wanted["prefix"]), files))
    total = sum(len(content) for _, content, _ in found)
    agent.writer.say_with({"id": agent.call_id, "raw": total}, (content for _, content, _ in found))
    return {"files": [[path, len(content), reason] for path, content, reason in found]}


def _trace(agent: Agent, wanted: Values) -> Values:
    """Run an import or a script in a venv of this host. Nothing is written."""
    from builder.agent.tracing import TraceOrder, run_traced  # noqa: PLC0415

    order = TraceOrder.from_json(wanted)
    agent.note(f"running `{order.target}`")
    return run_traced(order, os.environ)


CALLS: dict[str, Callable[[Agent, Values], Values]] = {
    "facts": _facts,
    "built": _built,
    "missing": _missing,
    "wheels": _wheels,
    "give": _give,
    "place": _place,
    "pass_on": _pass_on,
    "python": _python,
    "stock": _stock,
    "keep": _keep_wheels,
    "build": _build,
    "status": _status,
    "verify": _verify,
    "generations": _generations,
    "rollback": _rollback,
    "gc": _gc,
    "observe": _observe,
    "read_files": _read_files,
    "trace": _trace,
}
