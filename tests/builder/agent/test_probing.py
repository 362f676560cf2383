"""Probes run by the runner: what they say, and what becomes of those that hang, crash, print nonsense or print without end."""

from __future__ import annotations

import json
import os
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from builder.agent.probe_scripts import ProbeOrder, choose_probes, has_module, scripts_of
from builder.agent.probing import ProbedGpu, ProbePlace, clean_environment, run_probes, visible_gpus
from builder.progress import SilentReporter
from tests.support.fake_probes import PASSES, script

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from envspec.probe import ProbeRun

GPUS = (
    ProbedGpu(index=0, token="0", name="H200", compute="9.0"),
    ProbedGpu(index=1, token="1", name="H200", compute="9.0"),
)


def order(*kernels: str, **changes: Any) -> ProbeOrder:
    return ProbeOrder(
        **{
            "kernels": kernels,
            "set": "quick",
            "only": (),
            "compute": ("9.0", "12.0"),
            "toolkit": "13.0",
            "seed": 7,
            "compile": False,
            **changes,
        }
    )


class Bench:
    """Runs fakes with the Python of the tests, in an environment of one folder."""

    def __init__(self, folder: Path) -> None:
        self.site = folder / "env" / "lib" / "site-packages"
        self.site.mkdir(parents=True)
        (folder / "scratch").mkdir()
        self.place = ProbePlace(
            python=Path(sys.executable),
            prefix=folder / "env",
            site=self.site,
            state=folder / "state",
            scratch=folder / "scratch",
        )

    def run(
        self,
        sources: Mapping[str, bytes],
        wanted: ProbeOrder,
        gpus: Sequence[ProbedGpu] = (),
        environ: Mapping[str, str] = os.environ,
    ) -> tuple[ProbeRun, ...]:
        scripts = scripts_of({f"{name}.py": source for name, source in sources.items()})
        choice = choose_probes(scripts, wanted, self.site)
        return run_probes(scripts, choice, wanted, self.place, gpus, environ, SilentReporter())

    def one(self, body: str, **changes: Any) -> ProbeRun:
        (run,) = self.run({"fake": script("fake", body, **changes)}, order("fake"))
        return run


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_probe_that_passes_has_its_cases_and_figures(bench: Bench) -> None:
    run = bench.one(PASSES)
    assert (run.id, run.gpu, run.mode, run.result, run.reason, run.stderr) == ("fake", None, "run", "pass", "", "")
    (case,) = run.cases
    assert [(figure.name, figure.value, figure.bound, figure.of, figure.unit) for figure in case.figures] == [
        ("relative_error", 0.001, 0.01, None, ""),
        ("speed", 500.0, None, 989.0, "TFLOP/s"),
    ]
    assert len(run.script) == 64


def test_a_probe_is_told_what_the_contract_says(bench: Bench) -> None:
    run = bench.one(
        "assert asked['seed'] == 7 and asked['mode'] == 'run' and asked['gpu'] is None and asked['version'] == 1\n"
        "assert asked['compute'] == ['9.0', '12.0'] and asked['toolkit'] == '13.0' and asked['cases'] is None\n"
        "assert asked['set'] == 'quick' and asked['site'].startswith(asked['prefix'])\n"
        "assert os.listdir('.') == [] and 'kit' not in sys.modules\n" + PASSES
    )
    assert run.result == "pass", run.stderr


BAD: dict[str, tuple[str, str]] = {
    "fails": ('say("one", "fail", "error 0.5")\nend()', "one: error 0.5"),
    "fails twice": (
        'say("one", "fail", "error 0.5")\nsay("two", "fail", "x")\nsay("three")\nend()',
        "one: error 0.5 (and 1 more)",
    ),
    "segfault": (
        'say("one")\nimport ctypes\nctypes.string_at(0)',
        "it ended with SIGSEGV after the case `one`",
    ),
    "abort at once": ("os.abort()", "it ended with SIGABRT before its first case"),
    "exit code": ('say("one")\nsys.exit(3)', "it ended with rc 3 after the case `one`"),
    "exit code after the end": (PASSES + "\nsys.exit(3)", "it ended with rc 3 after the case `one`"),
    "no end": ('say("one")', "it ended without saying so after the case `one`"),
    "nothing": ("", "it ended without saying so before its first case"),
    "exception": (
        "raise RuntimeError('CUDA error: an illegal memory access')",
        "it ended with rc 1 before its first case",
    ),
    "no JSON": ("print('hello')", "what it printed cannot be read: line 2 is no line of a report"),
    "a list": ("print('[]')", "line 2 is no line of a report: no object"),
    "a deep value": ("print('[' * 3000)", "line 2 is no line of a report"),
    "a long line": (
        'sys.stdout.write(json.dumps({"case": "x" * 70000}) + "\\n")',
        "line 2 is no line of a report: it has 70",
    ),
    "a result of its own": ('say("one", "perfect")\nend()', "a result is 'perfect'"),
    "a case twice": ('say("one")\nsay("one")\nend()', "the case `one` a second time"),
    "a wrong count": ('say("one")\ntold = 5\nend()', "it counts 5 cases, there are 1"),
    "more after the end": (PASSES + '\nsay("late")', "something after the end"),
    "a name that a terminal obeys": ('say("\\x1b[2J")\nend()', "a case's name is odd"),
    "nan that passes": (
        'say("one", relative_error={"value": float("nan"), "bound": 0.1})\nend()',
        "one: it claims to pass, but `relative_error` is nan",
    ),
    "inf that passes": (
        'say("one", speed={"value": float("inf")})\nend()',
        "one: it claims to pass, but `speed` is inf",
    ),
    "beyond its bound": (
        'say("one", relative_error={"value": 0.2, "bound": 0.1})\nend()',
        "one: it claims to pass, but `relative_error` is 0.2, the bound 0.1",
    ),
    "a bound that is none": (
        'say("one", relative_error={"value": 0.2, "bound": float("nan")})\nend()',
        "a number is nan",
    ),
    "endless cases": ('while True: say("case-%d" % told)', "more than 1000 cases"),
    "endless bytes without a line": ("while True: sys.stdout.write('y' * 4096)", "it printed more than 4194304 bytes"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_probe_that_goes_wrong_fails_and_says_how(bench: Bench, name: str) -> None:
    body, reason = BAD[name]
    run = bench.one(body)
    assert run.result == "fail"
    assert reason in run.reason, run.reason
    assert run.reason.isprintable()


def test_a_hanging_probe_is_stopped_at_its_limit_with_all_that_it_started(bench: Bench, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    body = (
        f"import subprocess\nlog = open({str(pids)!r}, 'w')\n"
        "for own_session in (False, True):\n"
        "    child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=own_session)\n"
        "    log.write('%d\\n' % child.pid)\n"
        "log.close()\nsay('one')\nimport time\ntime.sleep(600)"
    )
    run = bench.one(body, quick_s=2)
    assert run.result == "fail"
    assert run.reason == "no end after 2 s, its limit after the case `one`"
    assert [case.case for case in run.cases] == ["one"]
    assert not any(Path(f"/proc/{pid}").exists() and _runs(int(pid)) for pid in pids.read_text().split())


def _runs(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def test_a_child_that_holds_the_pipes_does_not_hold_the_runner(bench: Bench) -> None:
    run = bench.one(PASSES + "\nif os.fork() == 0:\n    import time\n    time.sleep(600)")
    assert run.result == "pass"


def test_a_child_that_prints_without_end_to_stderr_does_not_hold_the_runner(bench: Bench) -> None:
    run = bench.one(PASSES + "\nif os.fork() == 0:\n    while True: sys.stderr.write('noise ' * 100)")
    assert run.result == "pass"


def test_the_end_of_stderr_is_kept_without_what_a_terminal_obeys(bench: Bench) -> None:
    run = bench.one("sys.stderr.write('x' * 200000 + '\\x1b[31mthe last words\\n')\nsys.exit(1)")
    assert run.stderr.endswith("\\x1b[31mthe last words")
    assert len(run.stderr) <= 4100


def test_a_crash_shows_where_python_was(bench: Bench) -> None:
    run = bench.one("def deep():\n    import ctypes\n    ctypes.string_at(0)\ndeep()")
    assert "Segmentation fault" in run.stderr
    assert "in deep" in run.stderr
    assert str(bench.place.scratch) not in run.stderr


def test_without_a_gpu_no_process_is_started(bench: Bench, tmp_path: Path) -> None:
    body = f"open({str(tmp_path / 'ran')!r}, 'w')\n" + PASSES
    (run,) = bench.run({"fake": script("fake", body, gpus=1, compiles=True)}, order("fake"))
    assert (run.mode, run.result, run.reason, run.cases) == ("skip", "skip", "no GPU", ())
    assert not (tmp_path / "ran").exists()


def test_what_compiles_without_a_gpu_does_if_asked_to(bench: Bench) -> None:
    body = "assert asked['mode'] == 'compile'\nsay('kernel-sm90', 'compiled', registers={'value': 32})\nend()"
    source = script("fake", body, gpus=1, compiles=True)
    (run,) = bench.run({"fake": source}, order("fake", compile=True))
    assert (run.mode, run.result) == ("compile", "compiled"), run.stderr


def test_a_probe_of_two_gpus_says_how_many_it_needs(bench: Bench) -> None:
    (run,) = bench.run({"fake": script("fake", PASSES, gpus=2)}, order("fake"), GPUS[:1])
    assert (run.result, run.reason) == ("skip", "1 GPU here, it needs 2")


def test_each_gpu_runs_its_probes_side_by_side(bench: Bench, tmp_path: Path) -> None:
    """Each of the two waits until the other has begun: one after the other, they would hang."""
    pipe = tmp_path / "meeting"
    os.mkfifo(pipe)
    body = (
        f"index = asked['gpu']['index']\nwith open({str(pipe)!r}, 'w' if index else 'r') as meeting:\n"
        "    meeting.write('x') if index else meeting.read(1)\n"
        "say('met', visible={'value': os.environ['CUDA_VISIBLE_DEVICES']})\nend()"
    )
    sources = {"fake": script("fake", body, gpus=1, per="gpu", quick_s=20)}
    runs = bench.run(sources, order("fake"), GPUS)
    assert [(run.gpu, run.result) for run in runs] == [(0, "pass"), (1, "pass")]
    assert [run.cases[0].figures[0].value for run in runs] == ["0", "1"]


def test_standing_probes_go_first_and_those_of_the_host_last(bench: Bench, tmp_path: Path) -> None:
    log = tmp_path / "log"
    names = {"driver": {}, "libraries": {}, "per_gpu": {"gpus": 1, "per": "gpu"}, "whole_host": {"gpus": 1}}
    sources = {
        name: script(name, f"open({str(log)!r}, 'a').write('{name}\\n')\n" + PASSES, **changes)  # type: ignore[arg-type]
        for name, changes in names.items()
    }
    bench.run(sources, order("whole_host", "per_gpu"), GPUS[:1])
    names_run = log.read_text().split()
    assert (set(names_run[:2]), names_run[2:]) == ({"driver", "libraries"}, ["per_gpu", "whole_host"])


def test_probes_of_one_gpu_get_ready_together_and_run_one_at_a_time(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each begins before it is let through, and sees that the other did; each makes a file that the other must not find."""
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    busy = str(tmp_path / "busy")
    sources = {}
    for mine, other in (("one", "two"), ("two", "one")):
        begun, awaited = str(tmp_path / mine), str(tmp_path / other)
        body = (
            f"while not os.path.exists({awaited!r}): pass\nos.close(os.open({busy!r}, os.O_CREAT | os.O_EXCL))\n"
            f"say('alone')\nos.unlink({busy!r})\nend()"
        )
        sources[mine] = script(mine, body, before=f"open({begun!r}, 'w').close()", gpus=1, per="gpu", quick_s=20)
    runs = bench.run(sources, order("one", "two"), GPUS[:1])
    assert [(run.id, run.result) for run in runs] == [("one", "pass"), ("two", "pass")]


def test_a_probe_that_never_gets_ready_does_not_keep_the_others_out(bench: Bench) -> None:
    sources = {
        "stuck": script("stuck", PASSES, before="import time\ntime.sleep(600)", gpus=1, per="gpu", quick_s=1),
        "other": script("other", PASSES, gpus=1, per="gpu"),
    }
    runs = bench.run(sources, order("stuck", "other"), GPUS[:1])
    assert [(run.id, run.result) for run in runs] == [("stuck", "fail"), ("other", "pass")]
    assert runs[0].reason == "no end after 1 s, its limit before its first case"


def test_one_probe_that_crashes_touches_no_other(bench: Bench) -> None:
    sources = {"one": script("one", "os.abort()"), "two": script("two", PASSES)}
    assert [run.result for run in bench.run(sources, order("one", "two"))] == ["fail", "pass"]


def test_a_probe_of_the_full_set_waits_for_it(bench: Bench) -> None:
    sources = {"engine": script("engine", PASSES, set="full"), "other": script("other", PASSES)}
    scripts = scripts_of({f"{name}.py": source for name, source in sources.items()})
    quick = choose_probes(scripts, order("engine"), bench.site)
    assert (quick.probes, quick.left_out) == ((), (("engine", "only in the full set"),))
    full = choose_probes(scripts, order("engine", set="full"), bench.site)
    assert [about.id for about, _ in full.probes] == ["engine", "other"]
    named = choose_probes(scripts, order(only=(("engine", ()),)), bench.site)
    assert [about.id for about, _ in named.probes] == ["engine"]


def test_a_probe_whose_module_is_not_there_is_left_out_unless_it_is_named(bench: Bench) -> None:
    sources = {"fake": script("fake", PASSES, modules=["absent"])}
    scripts = scripts_of({f"{name}.py": source for name, source in sources.items()})
    full = choose_probes(scripts, order(set="full"), bench.site)
    assert full.left_out == (("fake", "the environment has no `absent`"),)
    (run,) = bench.run(sources, order("fake"))
    assert (run.result, run.reason, run.mode) == ("fail", "the environment has no `absent`", "skip")
    (bench.site / "absent").mkdir()
    assert has_module(bench.site, "absent")


def test_only_the_cases_that_are_asked_for_are_wanted_and_a_missing_one_is_a_failure(bench: Bench) -> None:
    body = "for case in asked['cases'] or ('one', 'two'):\n    if case in ('one', 'two'): say(case)\nend()"
    sources = {"fake": script("fake", body)}
    (run,) = bench.run(sources, order(only=(("fake", ("two",)),)))
    assert ([case.case for case in run.cases], run.result) == (["two"], "pass")
    (again,) = Bench(bench.place.prefix / "again").run(sources, order(only=(("fake", ("three",)),)))
    assert (again.result, again.reason) == ("fail", "it has no case `three`")


def test_skipped_cases_are_counted_beside_those_that_pass(bench: Bench) -> None:
    run = bench.one('say("one")\nsay("fp8", "skip", "needs 8.9")\nsay("fp4", "skip", "needs 10.0")\nend()')
    assert (run.result, run.reason) == ("pass", "skipped fp8 and 1 more: needs 8.9")
    assert Bench(bench.place.prefix / "b").one('say("fp8", "skip", "needs 8.9")\nend()').result == "skip"


def test_the_environment_of_a_probe_has_no_secret_and_the_linker_s_variables(bench: Bench) -> None:
    given = {
        "PATH": "/usr/bin",
        "LD_LIBRARY_PATH": "/opt/cuda/lib64",
        "HF_TOKEN": "secret",
        "SGLANG_API_KEY": "secret",
        "AWS_PROFILE": "x",
        "NCCL_SOCKET_IFNAME": "eth0",
        "PYTHONPATH": "/somewhere",
        "TRITON_CACHE_DIR": "/mine",
    }
    clean = clean_environment(given, bench.place)
    assert clean["LD_LIBRARY_PATH"] == "/opt/cuda/lib64"
    assert clean["NCCL_SOCKET_IFNAME"] == "eth0"
    assert clean["TRITON_CACHE_DIR"] == str(bench.place.state / "triton")
    assert "secret" not in clean.values()
    assert {"PYTHONPATH", "AWS_PROFILE"} & clean.keys() == set()
    assert clean["HOME"].startswith(str(bench.place.scratch))


@pytest.mark.parametrize(
    ("asked", "tokens"),
    [(None, ["0", "1", "2"]), ("2,0", ["2", "0"]), ("", []), ("7", []), ("GPU-aa,GPU-bb", ["GPU-aa", "GPU-bb"])],
)
def test_only_visible_gpus_are_probed(asked: str | None, tokens: list[str]) -> None:
    facts = [{"name": "H200", "compute": "9.0"}] * 3
    environ = {} if asked is None else {"CUDA_VISIBLE_DEVICES": asked}
    assert [gpu.token for gpu in visible_gpus(facts, environ)] == tokens


class Interrupted(BaseException):
    """As a signal raises it."""


class Interrupting(SilentReporter):
    """Interrupts the main thread's wait as soon as the bar is shown."""

    @contextmanager
    def stage(self, label: str, *, total: int, unit: str) -> Iterator[Any]:
        def advance(_units: int) -> None:
            raise Interrupted

        yield advance


def test_an_interruption_stops_what_runs(bench: Bench) -> None:
    sources = {
        "quick": script("quick", PASSES, gpus=1, per="gpu"),
        "slow": script("slow", "import time\ntime.sleep(600)", gpus=1),
    }
    scripts = scripts_of({f"{name}.py": source for name, source in sources.items()})
    wanted = order("quick", "slow")
    choice = choose_probes(scripts, wanted, bench.site)
    with pytest.raises(Interrupted):
        run_probes(scripts, choice, wanted, bench.place, GPUS[:1], os.environ, Interrupting())
    assert threading.active_count() == 1


def test_orders_survive_json() -> None:
    wanted = order("torch", only=(("torch", ("a", "b")),))
    assert ProbeOrder.from_json(json.loads(json.dumps(wanted.to_json()))) == wanted


@pytest.mark.parametrize(
    "source",
    [
        b"ABOUT = {}",
        b"ABOUT = {'id': open('x')}",
        script("other", ""),
        script("fake", "", per="planet"),
        script("fake", "", set="some"),
    ],
)
def test_a_probe_that_describes_itself_wrongly_is_refused(source: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        scripts_of({"fake.py": source})
