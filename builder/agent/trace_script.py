"""Imports a module or runs a script, and says what was raised on the way: run by the interpreter of the venv that is looked at.

    python -c BOOTSTRAP SOURCE EVENTS FAULTS REOPEN SIGNAL module|script TARGET [ARGUMENT...]

It belongs to no package and imports nothing of the standard library that an interpreter has not loaded before it: a module of that name may be
what is wrong, and one that was loaded here would hide it. So it brings its own writer of JSON (`trace_words`, which goes before this), and walks
tracebacks itself.

Lines of JSON go to the file descriptor EVENTS, which the code that is run does not know of. Code that closes every descriptor closes this one
too: then the pipe is opened anew by its name, REOPEN, and never is something else written to that has the same number now. At the signal, the
place where every thread is goes to FAULTS, as it does at a crash.

    {"begin": true}
    {"raised": {...}, "serial": 3, "rank": "load"}    it left the import of a module or the loading of a library
    {"left": 3}                                       it then left a module that wanted it
    {"end": {...}}                                    how it went

Any CPython >= 3.8. From 3.12 on the interpreter itself tells of exceptions that leave a frame; before, two functions of the import system
and one of ctypes are wrapped. Neither costs an import anything that can be felt.
"""

import faulthandler
import sys
import time

import _thread
import os

TYPE_CHECKING = False
if TYPE_CHECKING:  # its source goes before this one
    from builder.agent.trace_words import Events, move_up, plain, text_of, type_name

OURS = "<envspec trace>"
SYSTEM = "<frozen importlib"
BOOTSTRAP = "<frozen importlib._bootstrap>"
CHAIN_LIMIT = 50
FRAMES_LIMIT = 100
NOTED_LIMIT = {"load": 200, "missing": 200}
SEEN_LIMIT = 4000
MODULES_LIMIT = 5000
STANDARD = os.path.dirname(os.__file__) + os.sep
# Of the dynamic linker, whoever asked it.
LOADER_SAYS = [
    "cannot open shared object file",
    "undefined symbol",
    "invalid ELF header",
    "wrong ELF class",
    "file too short",
    "not found (required by",
    "failed to map segment",
    "cannot allocate memory in static TLS block",
    "cannot enable executable stack",
    "cannot read file data",
    "ELF load command",
    "ELF file",
    "symbol lookup error",
    "cannot change memory protections",
]


def loaded_by(frame):
    """The spec of the module that a frame of the import system loads; None if it is no such frame."""
    code = frame.f_code
    if code.co_name == "_load_unlocked" and code.co_filename == BOOTSTRAP:
        return frame.f_locals.get("spec")
    return None


def frames_around(frame):
    """The frames that led to one, outermost first, from the code that is run on."""
    rows = []
    while frame is not None and len(rows) < 2000:
        if frame.f_code.co_filename == OURS and frame.f_code.co_name == "run_target":
            break
        rows.append((frame, frame.f_lineno))
        frame = frame.f_back
    rows.reverse()
    return rows


def frames_below(trace):
    rows = []
    while trace is not None and len(rows) < 5000:
        rows.append((trace.tb_frame, trace.tb_lineno))
        trace = trace.tb_next
    return rows


def importing_in(rows):
    """Modules that are imported in these frames, and the place of the innermost if nothing of it was run yet."""
    names, place = [], ""
    for frame, _ in rows:
        code, spec, name = frame.f_code, loaded_by(frame), ""
        if spec is not None:
            name, place = plain(getattr(spec, "name", "")), plain(getattr(spec, "origin", ""))
        elif not code.co_filename.startswith((SYSTEM, OURS)):
            name, place = plain(frame.f_globals.get("__name__")) if code.co_name == "<module>" else "", ""
        if name and name != "__main__" and name not in names[-2:]:
            names.append(name)
    return names[-50:], place


def shown(rows, limit=FRAMES_LIMIT):
    """Frames as they are told: without those of the import system and ours."""
    told = [
        [
            plain(frame.f_code.co_filename),
            line or 0,
            frame.f_code.co_name[:200],
            plain(frame.f_globals.get("__name__"))[:300],
        ]
        for frame, line in rows
        if not frame.f_code.co_filename.startswith((SYSTEM, OURS))
    ]
    if len(told) > limit:
        return told[: limit // 4] + told[limit // 4 - limit :]
    return told


def described(error, rows, limit=FRAMES_LIMIT):
    """One exception as it is told."""
    importing, place = importing_in(rows)
    name = path = ""
    frames = shown(rows, limit)
    if isinstance(error, ImportError):
        name, path = plain(error.name), plain(error.path)
    elif isinstance(error, SyntaxError):
        path = plain(error.filename)
        if path:
            frames.append([path, error.lineno if isinstance(error.lineno, int) else 0, "", ""])
    elif isinstance(error, OSError):
        path = plain(error.filename)
    return {
        "type": type_name(type(error))[:300],
        "message": text_of(error),
        "name": name,
        "path": path or place,
        "frames": frames,
        "importing": importing,
        "relation": "",
    }


def is_standard(frames):
    """Whether the last of some frames is of the standard library."""
    return bool(frames) and frames[-1][0].startswith(STANDARD) and "-packages" + os.sep not in frames[-1][0]


class Notes:
    """Exceptions that left an import or the loading of a library."""

    def __init__(self, events):
        self.events = events
        self.seen = {}
        self.told = set()
        self.counts = dict.fromkeys(NOTED_LIMIT, 0)
        self.serial = 0
        self.busy = set()

    def note(self, error, frame, rank, path=""):
        """Tell of an exception, once, when it leaves a frame.

        The rank is `missing` of a module that is not there, which healthy packages meet by the dozen; else `load`.
        """
        thread = _thread.get_ident()
        if thread in self.busy or isinstance(error, (StopIteration, GeneratorExit)):
            return
        self.busy.add(thread)
        try:
            self._note(error, frame, rank, path)
        except Exception:
            pass  # what is looked at may be of any kind, and must not be changed by our looking
        finally:
            self.busy.discard(thread)

    def _note(self, error, frame, rank, path):
        text = text_of(error)
        known = self.seen.get(id(error))
        if known is not None and known["type"] is type(error) and known["text"] == text:
            if rank == "load" and known["rank"] == "missing":
                known["rank"] = "load"
                if known["serial"] is not None:
                    self.events.say({"left": known["serial"]})
                else:
                    self._tell(error, known, frame, path)
            return
        if len(self.seen) >= SEEN_LIMIT:
            self.seen.clear()
        known = self.seen[id(error)] = {"type": type(error), "text": text, "rank": rank, "serial": None, "record": None}
        self._tell(error, known, frame, path)

    def _tell(self, error, known, frame, path):
        rank = known["rank"]
        if self.counts[rank] >= NOTED_LIMIT[rank]:
            return
        rows = frames_around(frame.f_back) + frames_below(error.__traceback__)
        record = described(error, rows, 12 if rank == "missing" else FRAMES_LIMIT)
        if rank == "missing" and is_standard(record["frames"]):
            return  # it looks for what another platform has
        if path:
            record["path"] = path
        known["record"] = record
        asker = record["importing"][-1:] if rank != "missing" else ()
        key = (record["type"], record["message"], tuple(asker))
        if key in self.told:
            return
        self.told.add(key)
        self.counts[rank] += 1
        known["serial"] = self.serial
        self.serial += 1
        self.events.say({"raised": record, "serial": known["serial"], "rank": rank})

    def of(self, error):
        """What was noted of an exception when it left its import."""
        known = self.seen.get(id(error))
        if known is not None and known["type"] is type(error) and known["text"] == text_of(error):
            return known
        return None


def watch(notes):
    """Let the interpreter tell of exceptions. Returns what ends it."""
    monitoring = getattr(sys, "monitoring", None)
    for tool in (3, 4, 1, 5, 2) if monitoring else ():
        if monitoring.get_tool(tool) is None:
            return watch_frames(notes, monitoring, tool)
    return wrap_imports(notes)


def watch_frames(notes, monitoring, tool):
    watched = {"<module>", "_load_unlocked", "_find_and_load_unlocked", "__init__", "_handle_fromlist"}
    plain_kinds = (OSError, RuntimeError)

    def unwound(code, _offset, error):
        name = code.co_name
        if name not in watched:
            return
        if name == "<module>":
            notes.note(error, sys._getframe(1), "load")
        elif name == "__init__":
            if code.co_qualname == "CDLL.__init__" and isinstance(error, OSError):
                frame = sys._getframe(1)
                notes.note(error, frame, "load", plain(frame.f_locals.get("name")))
        elif code.co_filename == BOOTSTRAP:
            if name == "_load_unlocked":
                notes.note(error, sys._getframe(1), "load")
            elif isinstance(error, ModuleNotFoundError):
                notes.note(error, sys._getframe(1), "missing")

    def raised(_code, _offset, error):
        # Libraries that are loaded by other means than ctypes and the import system.
        if type(error) in plain_kinds:
            text = text_of(error)
            if any(words in text for words in LOADER_SAYS) and notes.of(error) is None:
                frame = sys._getframe(1)
                if not (frame.f_code.co_name == "__init__" and frame.f_code.co_qualname == "CDLL.__init__"):
                    notes.note(error, frame, "load")

    events = monitoring.events
    monitoring.use_tool_id(tool, "envspec trace")
    monitoring.register_callback(tool, events.PY_UNWIND, unwound)
    monitoring.register_callback(tool, events.RAISE, raised)
    monitoring.set_events(tool, events.PY_UNWIND | events.RAISE)

    return lambda: monitoring.get_tool(tool) == "envspec trace" and monitoring.set_events(tool, 0)


WRAPPERS = """
def _load_unlocked(spec):
    try:
        module = load(spec)
    except BaseException as error:
        tell(error, "load")
        raise
    if spec.name == "ctypes":
        loaded(module)
    return module

def _find_and_load_unlocked(name, import_):
    try:
        return find(name, import_)
    except ModuleNotFoundError as error:
        tell(error, "missing")
        raise

def __init__(self, name, *arguments, **options):
    try:
        make(self, name, *arguments, **options)
    except OSError as error:
        tell(error, "load", name)
        raise
"""


def wrap_imports(notes):
    """Wrap what loads modules, in the import system's own name: then its frames are left out of tracebacks and warnings as ever."""
    system = sys.modules["_frozen_importlib"]
    space = {"__name__": "importlib._bootstrap", "load": system._load_unlocked, "find": system._find_and_load_unlocked}
    exec(compile(WRAPPERS, BOOTSTRAP, "exec"), space)

    def tell(error, rank, path=""):
        notes.note(error, sys._getframe(1), rank, plain(path))

    def loaded(module):
        if "make" not in space:
            space["make"] = module.CDLL.__init__
            module.CDLL.__init__ = space["__init__"]

    space["tell"], space["loaded"] = tell, loaded
    system._load_unlocked = space["_load_unlocked"]
    system._find_and_load_unlocked = space["_find_and_load_unlocked"]
    if "ctypes" in sys.modules:
        loaded(sys.modules["ctypes"])
    return lambda: None


def chain_of(error, notes):
    """An exception with everything that led to it, the first one first, and the serials of those that were told before."""
    rows, serials, seen = [], [], set()

    def add(each, relation):
        if each is None or id(each) in seen or len(seen) >= CHAIN_LIMIT:
            return
        seen.add(id(each))
        if each.__context__ is not each.__cause__:
            add(each.__context__, "context")
        add(each.__cause__, "cause")
        if any(kind.__name__ == "BaseExceptionGroup" for kind in type(each).__mro__):
            for member in list(getattr(each, "exceptions", ()) or ()):
                add(member, "member")
        record = described(each, frames_below(each.__traceback__))
        known = notes.of(each)
        if known is not None and known["record"] is not None:
            # Once it is caught, a traceback has lost the frames of the import system, and those around where it was caught.
            noted = known["record"]
            record["importing"] = noted["importing"] or record["importing"]
            record["path"] = record["path"] or noted["path"]
            if len(noted["frames"]) >= len(record["frames"]):
                record["frames"] = noted["frames"]
        if known is not None and known["serial"] is not None:
            serials.append(known["serial"])
        record["relation"] = relation
        rows.append(record)

    add(error, "")
    return rows, serials


def whole_modules():
    found = []
    for name, module in list(sys.modules.items()):
        if len(found) >= MODULES_LIMIT:
            break
        try:
            inside = object.__getattribute__(module, "__dict__")
            if "." in name or name == "__main__" or getattr(inside.get("__spec__"), "_initializing", False):
                continue
            file = inside.get("__file__")
            if not isinstance(file, str):
                file = next(iter(inside.get("__path__") or ()), "")
            if isinstance(file, str) and file:
                found.append([name[:300], file[:1000]])
        except Exception:
            continue
    return sorted(found)


def mapped_libraries():
    found = set()
    try:
        with open("/proc/self/maps", "rb") as file:
            for line in file:
                place = line.rstrip(b"\n").split(None, 5)[5:]
                if place and b".so" in place[0] and len(found) < MODULES_LIMIT:
                    found.add(os.fsdecode(place[0]))
    except OSError:
        pass
    return sorted(found)


def run_target(kind, target, arguments):
    if kind == "module":
        sys.argv[:] = ["-c", *arguments]
        __import__(target)
        return
    main = type(sys)("__main__")
    main.__file__ = target
    main.__builtins__ = sys.modules["builtins"]
    main.__spec__ = None
    main.__loader__ = None
    main.__cached__ = None
    sys.modules["__main__"] = main
    sys.argv[:] = [target, *arguments]
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = os.path.dirname(os.path.realpath(target))
    with open(target, "rb") as file:
        code = compile(file.read(), target, "exec")
    exec(code, main.__dict__)


def main(events_fd, faults_fd, reopen, signal_number, kind, target, *arguments):
    events = Events(move_up(int(events_fd)), reopen)
    faults = move_up(int(faults_fd))
    faulthandler.enable(faults)
    faulthandler.register(int(signal_number), faults)
    notes = Notes(events)
    events.say({"begin": True})
    stop = watch(notes)
    end = {"ending": "ok", "code": 0, "chain": [], "serials": []}
    started = time.perf_counter()
    status = 0
    try:
        run_target(kind, target, arguments)
    except BaseException as error:
        seconds = time.perf_counter() - started
        stop()
        end["chain"], end["serials"] = chain_of(error, notes)
        end["ending"] = "exception"
        status = 1
        if isinstance(error, SystemExit):
            code = error.code
            status = code & 0xFF if isinstance(code, int) else 0 if code is None else 1
            end["code"] = status
            end["ending"] = "exit"
            if kind == "script" and status == 0:
                end.update(ending="ok", chain=[], serials=[])
    else:
        seconds = time.perf_counter() - started
        stop()
    if os.getpid() != events.owner:
        os._exit(status)
    end.update(seconds=seconds, modules=whole_modules(), mapped=mapped_libraries())
    events.say({"end": end})
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            pass
    if kind == "module":
        os._exit(status)  # what modules do at exit is not part of importing them
    raise SystemExit(status)


if __name__ == "envspec_trace":
    main(*sys.argv[1:])
