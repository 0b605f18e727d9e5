"""Suites that a DBA can read and add to: statements on the source, then what the target must have.

    # a comment
    tables public.* public.t   what is replicated; public.* where nothing is said
    setup                      tables that are there before the replication starts, up to an empty line
    create table t (id int primary key, v text)

    case a row comes
    source                     one transaction, up to an empty line
    insert into t values (1, 'a')

    agree t                    the target has every row of t, value for value, and no other
    agree t unless sqlite NaN  but on this target t has failed, and the reason has this word
    failed t ALTER             t has failed, and the reason has this word; the others go on
    resync t                   copy it again
    restart                    stop the agent and start it again
    stop, start                the same with something in between
    kill                       the same, by SIGKILL
    crash NAME                 from here on the agent kills itself at this failpoint, once; `agree` starts it again

`source@a` runs in a session called a, which stays open between the blocks: for transactions side by side.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

BLOCKS = ("setup", "source")
WORDS = ("agree", "failed", "resync", "restart", "stop", "start", "kill", "crash", "absent")


@dataclass(frozen=True, slots=True)
class Step:
    word: str
    text: str
    line: int


@dataclass(slots=True)
class Case:
    name: str
    steps: list[Step] = field(default_factory=list)


@dataclass(slots=True)
class Suite:
    name: str
    setup: list[str]
    cases: list[Case]
    tables: tuple[str, ...] = ("public.*",)

    @staticmethod
    def read(path: Path) -> Suite:
        suite = Suite(path.stem, [], [])
        lines = path.read_text().splitlines()
        at = 0
        while at < len(lines):
            line, number = lines[at].strip(), at + 1
            at += 1
            if not line or line.startswith("#"):
                continue
            word, _, rest = line.partition(" ")
            if word.partition("@")[0] in BLOCKS:
                block = []
                while at < len(lines) and lines[at].strip():
                    block.append(lines[at])
                    at += 1
                if word == "setup":
                    suite.setup.append("\n".join(block))
                else:
                    _case(suite, path, number).steps.append(Step(word, "\n".join(block), number))
            elif word == "tables":
                suite.tables = tuple(rest.split())
            elif word == "case":
                suite.cases.append(Case(rest))
            elif word in WORDS:
                _case(suite, path, number).steps.append(Step(word, rest, number))
            else:
                raise ValueError(f"{path.name}:{number}: {word!r} is no word of a suite")
        return suite


def _case(suite: Suite, path: Path, line: int) -> Case:
    if not suite.cases:
        raise ValueError(f"{path.name}:{line}: no case has begun")
    return suite.cases[-1]
