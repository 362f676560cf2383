"""How `trace_script` says something: its JSON, its way out, and texts of objects that may be of any kind.

Goes before the source of `trace_script`, and is written under the same rules: CPython >= 3.8, and nothing imported that an interpreter has not
loaded before.
"""

import _thread
import os

TEXT_LIMIT = 4000
HIGH_FD = 983


def quoted(text):
    """A string as ASCII JSON; halves of a surrogate pair included."""
    out = ['"']
    for character in text:
        number = ord(character)
        if character in '"\\':
            out.append("\\" + character)
        elif 32 <= number < 127:
            out.append(character)
        elif number < 0x10000:
            out.append("\\u%04x" % number)
        else:
            number -= 0x10000
            out.append("\\u%04x\\u%04x" % (0xD800 | number >> 10, 0xDC00 | number & 0x3FF))
    out.append('"')
    return "".join(out)


def encoded(value):
    """A value as JSON."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, dict):
        return "{%s}" % ",".join("%s:%s" % (quoted(key), encoded(inner)) for key, inner in value.items())
    return "[%s]" % ",".join(encoded(inner) for inner in value)


class Events:
    """The way out."""

    def __init__(self, fd, reopen):
        self.fd = fd
        self.reopen = reopen
        self.owner = os.getpid()
        self.guard = _thread.RLock()
        self.identity = self.identify()

    def identify(self):
        found = os.fstat(self.fd)
        return found.st_dev, found.st_ino

    def say(self, record):
        """Write a line; a process that was forked off says nothing."""
        if os.getpid() != self.owner:
            return
        line = (encoded(record) + "\n").encode("ascii")
        with self.guard:
            try:
                same = self.identify() == self.identity
            except OSError:
                same = False
            try:
                if not same:
                    self.fd = os.open(self.reopen, os.O_WRONLY)
                    self.identity = self.identify()
                while line:
                    line = line[os.write(self.fd, line) :]
            except OSError:
                pass  # nobody listens any more


def move_up(fd):
    """A descriptor with a number that nobody hits by chance."""
    try:
        high = os.dup2(fd, HIGH_FD + fd % 32, inheritable=False)
    except OSError:
        os.set_inheritable(fd, False)  # noqa: FBT003 - it takes no keyword
        return fd
    os.close(fd)
    return high


def type_name(kind):
    module, name = getattr(kind, "__module__", ""), getattr(kind, "__qualname__", "?")
    return name if module == "builtins" or not isinstance(module, str) else "%s.%s" % (module, name)


def text_of(error):
    try:
        return str(error)[:TEXT_LIMIT]
    except BaseException:
        return "(its message cannot be had)"


def plain(value):
    """A name as text; empty if it is none."""
    try:
        if isinstance(value, (str, bytes)):
            return os.fsdecode(value)[:1000]
    except Exception:
        pass
    return ""
