"""Follow the tutorial: ``python -m tests.tutorial``.

docs/tutorial.md is read from top to bottom, in an empty folder, and its second page after it. Its
commands are typed, its files written, its pages opened and its processes killed; what is seen is
compared with what the page says. The words tell where and how:

- "terminal 2" in the paragraph before a block: its commands are typed there, and last; else in 1,
  where commands end. Output is that of the terminal named before it, or of the latest command.
- "Add to `file`", "at the end of `file`": the code is appended; else it is the whole file.
- "Press Ctrl-C in terminal 2" and "Ctrl-Z" do that.
- "Open <http://127.0.0.1:8000/...>" opens a page, on which everything bold in the same paragraph
  has to be.

A `text` block is what is printed, with any times, names of processes and tokens in place of those
shown, and `...` for what is left out. One that is shown again stands for the same one again: so the
page's own process ids and tokens can be typed.
"""

from __future__ import annotations

import re
import sqlite3
import tempfile
import time
from pathlib import Path

from tests.machine import SHOWN_SITE, Block, Machine, blocks_of, machine_in, show, title
from tests.plugin import ROOT
from tests.postgres import OPTIONS, Server, serve

PAGES = (ROOT / "docs" / "tutorial.md", ROOT / "docs" / "tutorial-postgresql.md")
#: The page of the scenario, which ``tests/test_demo.py`` plays.
SCENARIO = ROOT / "docs" / "tutorial-scenario.md"
#: The distributions that the tutorial installs besides what every project has.
DISTRIBUTIONS = ("psycopg", "psycopg-binary")
#: A server that keeps what it has acknowledged, as that of a reader does. Else each command warns.
DURABLE = {**OPTIONS, "fsync": "on", "synchronous_commit": "on"}
#: The environment, which is there already.
PREPARED = ("mkdir ", "cd ", "python3 -m venv ", "source ")
#: What differs from one run to the next, and how it looks.
VARIABLES = {
    "time": r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?",
    "name": r"[\w.@-]+(?::\d+:[0-9a-f]{8}){1,2}\b",
    "token": r"\b\d{16}\b",
    "duration": r"\b\d+(?:\.\d+)? ?(?:ms|s|min)\b",
    # What a worker had not baked when it was killed, nor has at its end.
    "loaf": r"\bloaf (?:[4-79]|[1-9]\d+)\b",
    # The last column of a list of workers. After the greatest, process ids go on at 300.
    "pid": r"(?<= )\d{3,}$",
}
VARIABLE = re.compile("|".join(f"(?P<{name}>{form})" for name, form in VARIABLES.items()), re.M)
#: Of these, what can be typed, and stands for the same thing all along the page.
KNOWN = ("name", "token", "pid")
ACTION = re.compile(
    r"Press Ctrl-(?P<key>[CZ]) in\s+terminal (?P<there>\d)"
    rf"|Open\s+<http://{SHOWN_SITE}(?P<page>[^>]*)>"
)
TYPED_HERE = "terminal 1"


class Reader:
    """Somebody who follows the tutorial."""

    def __init__(self, machine: Machine, server: Server) -> None:
        self._machine = machine
        self._server = server
        self._is_signed_in = False
        #: The terminal of the latest command, and the output of the latest in terminal 1.
        self._latest = TYPED_HERE
        self._seen = ""
        #: The length of each other terminal that has been compared.
        self._read: dict[str, int] = {}
        #: Process ids, names and tokens: the page's, and those of this run.
        self._real: dict[str, str] = {}
        #: The command that waits for the code to type into it.
        self._shell = ""
        #: The terminal of the web server, and the code that it has not loaded.
        self._server_terminal = ""
        self._changed = False

    def follow(self, blocks: list[Block]) -> None:
        """Do what the page says."""
        for block in blocks:
            for heading in re.findall(r"^## (.*)$", block.words, re.MULTILINE):
                title(heading)
            self._act(block.words)
            terminal = terminal_in(block.words)
            match block.language:
                case "console":
                    self._latest = terminal or TYPED_HERE
                    for line in block.text.splitlines():
                        self._type(line, self._latest)
                case "py" if self._shell:
                    self._seen = self._machine.run(self._shell, stdin=self._with_real(block.text))
                    self._shell = ""
                case "py":
                    is_more = re.search(r"\bAdd\s+to\b|\bat\s+the\s+end\s+of\b", block.words)
                    text = self._with_server(block.text)
                    self._machine.write(block.file, text, append=bool(is_more))
                    self._changed = True
                case "text":
                    self._compare(block.text, terminal or self._latest)

    def _act(self, words: str) -> None:
        """Do what the words say."""
        for paragraph in paragraphs(words):
            for found in ACTION.finditer(paragraph):
                if found["page"]:
                    self._open(found["page"], re.findall(r"\*\*(.+?)\*\*", paragraph))
                elif found["key"] == "C":
                    self._machine.stop(f"terminal {found['there']}")
                else:
                    self._suspend(f"terminal {found['there']}")

    def _type(self, line: str, terminal: str) -> None:
        line = self._with_real(line)
        if line.startswith("curl"):
            self._reload()
        if line.startswith(PREPARED):
            show(f"$ {line}")
        elif line == "fg":
            self._machine.resume(terminal)
        elif line.startswith("kill -9 "):
            self._machine.kill(int(line.split()[2]))
        elif line == "python manage.py shell":
            self._shell = line
        elif terminal == TYPED_HERE:
            self._seen = self._machine.run(line)
        else:
            self._read[terminal] = 0
            self._machine.start(line, terminal, ends=line.startswith("curl"))
            if line.endswith("runserver"):
                self._server_terminal, self._changed = terminal, False

    def _reload(self) -> None:
        """Load what was written since, as the development server does by itself; this one is
        started without that, which would be two processes."""
        if self._server_terminal and self._changed:
            self._machine.stop(self._server_terminal)
            self._type("python manage.py runserver", self._server_terminal)
            self._wait_for("Quit the server", "Quit the server", self._server_terminal)

    def _suspend(self, terminal: str) -> None:
        # Between two statements: one that was stopped in a transaction would keep SQLite's only
        # write lock, which is another story than the tutorial's.
        path = self._machine.folder / "db.sqlite3"
        while True:
            self._machine.suspend(terminal)
            database = sqlite3.connect(path, timeout=0, isolation_level=None)
            try:
                database.execute("BEGIN IMMEDIATE")
                database.execute("ROLLBACK")
                return
            except sqlite3.OperationalError:
                self._machine.resume(terminal)
            finally:
                database.close()

    def _open(self, path: str, expected: list[str]) -> None:
        self._reload()
        page = self._machine.get(path) if self._is_signed_in else self._machine.sign_in(path)
        self._is_signed_in = True
        text = re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", page))
        missing = [each for each in expected if " ".join(each.split()) not in text]
        assert not missing, f"{path} lacks {missing}:\n{text}"

    # What is seen

    def _compare(self, expected: str, terminal: str) -> None:
        if terminal == TYPED_HERE:
            found = re.fullmatch(self.pattern(expected), tidy(self._seen))
            assert found, f"Expected\n{expected}\nwas\n{self._seen}"
        else:
            # What lasts may log something else in between.
            lines = [line for line in expected.splitlines() if line != "..."]
            found = self._wait_for(self.pattern("\n...\n".join(lines)), expected, terminal)
        for shown, real in zip(names_in(expected), found.groups(), strict=True):
            self._learn(shown, real)

    def _wait_for(self, pattern: str, expected: str, terminal: str) -> re.Match[str]:
        matches: list[re.Match[str]] = []

        def is_printed() -> bool:
            printed = tidy(self._machine.printed(terminal))
            match = re.compile(pattern).search(printed, self._read[terminal])
            matches.extend([match] if match else [])
            return bool(match)

        self._machine.wait(is_printed, f"{terminal} prints\n{expected}")
        self._read[terminal] = matches[0].end()
        show(f"{terminal}:", matches[0][0])
        return matches[0]

    def pattern(self, expected: str) -> str:
        """Return the pattern of everything that may be printed for ``expected``. Its groups are
        the names and tokens."""
        pattern, end, text = "", 0, tidy(expected)
        for variable in VARIABLE.finditer(text):
            pattern += re.escape(text[end : variable.start()])
            form = VARIABLES[str(variable.lastgroup)]
            if variable.lastgroup in KNOWN:
                known = self._real.get(variable[0])
                pattern += f"({re.escape(known) if known else form.removesuffix('$')})"
            else:
                pattern += form
            end = variable.end()
        pattern += re.escape(text[end:])
        # Three points: any lines, or none, or anything within a line.
        pattern = re.sub(r"(?m)^\\\.\\\.\\\.\\\n", r"(?:(?s:.*?)\n)??", pattern)
        pattern = re.sub(r"\\\n\\\.\\\.\\\.\Z", r"(?:\n(?s:.*))?", pattern)
        return pattern.replace(re.escape("..."), ".*?")

    def _learn(self, shown: str, real: str) -> None:
        assert self._real.setdefault(shown, real) == real, f"{shown} was {self._real[shown]}"
        if ":" in shown:  # the process id in a name
            self._learn(shown.split(":")[1], real.split(":")[1])

    def _with_real(self, line: str) -> str:
        """Put the ids and tokens of this run in place of the page's."""
        return re.sub(r"\b\d{4,}\b", lambda found: self._real.get(found[0], found[0]), line)

    def _with_server(self, text: str) -> str:
        """Put the address of the server of this run in place of the page's."""
        host = str(self._server.folder)
        for name, real in {"NAME": "postgres", "USER": "postgres", "HOST": host}.items():
            text = re.sub(rf'^    "{name}": ".*"', f'    "{name}": "{real}"', text, flags=re.M)
        return text


def paragraphs(words: str) -> list[str]:
    """Return the paragraphs of the words before a block."""
    return re.split(r"\n\s*\n", words.strip())


def terminal_in(words: str) -> str:
    """Return the terminal that the paragraph before a block names last, or nothing."""
    named = re.findall(r"\bterminal\s+(\d)", paragraphs(words)[-1], re.IGNORECASE)
    return f"terminal {named[-1]}" if named else ""


def tidy(text: str) -> str:
    """Return what is printed without the blanks of columns."""
    return "\n".join(re.sub(r" {2,}", "  ", line.strip()) for line in text.strip().splitlines())


def names_in(expected: str) -> list[str]:
    """Return the names of processes and the tokens of a text."""
    found = VARIABLE.finditer(tidy(expected))
    return [each[0] for each in found if each.lastgroup in KNOWN]


def read_page() -> list[Block]:
    """Return the blocks of the tutorial, without its scenario, which needs a checkout."""
    return [block for page in PAGES for block in blocks_of(page.read_text())]


def read_scenario() -> str:
    """Return the output of the scenario as its page shows it."""
    _, shown = blocks_of(SCENARIO.read_text())
    return shown.text


def follow(folder: Path) -> None:
    """Follow the tutorial in ``folder``."""
    with serve(DURABLE) as server, machine_in(folder, *DISTRIBUTIONS) as machine:
        Reader(machine, server).follow(read_page())


def main() -> None:
    """Follow the tutorial in a temporary folder."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        follow(Path(folder))
    title(f"All as it should be, in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
