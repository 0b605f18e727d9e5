"""Random values of every type that a replication carries, by a dice of their own: many thousands in a second.

A strategy of the fuzz of loads finds small examples of what goes wrong; here it is the number that counts. Of every
type the ends of its range are thrown as often as all that lies between them.
"""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Callable
from datetime import date, timedelta

SETUP = (
    "create extension if not exists citext",
    "create extension if not exists hstore",
    "create type mood as enum ('sad', 'ok, fine', 'it''s \"good\"')",
    "create type pair as (x int, y text)",
    "create domain positive as int check (value > 0)",
    "create domain code as varchar(8)",
    "create domain codes as text[] check (cardinality(value) < 9)",
    "create type nested as (p pair, m mood[], n positive, r int4range)",
)
MOODS = ("sad", "ok, fine", 'it\'s "good"')
LETTERS = [
    *"abcXYZ019 _-.,:;'\"\\/{}()[]<>|&=%$\t\n\r\x01\x7f",
    "ä",
    "ß",
    "ž",
    "é",
    "e\u0301",
    "日",
    "😀",
    "\u2028",
    "\ufeff",
]
WORDS = [
    "",
    "NULL",
    "null",
    "\\N",
    "{}",
    "NaN",
    "infinity",
    "t",
    "0",
    " ",
    "'",
    '"',
    "\\",
    "\\\\",
    "a,b",
    "\\x00",
    "\\.",
]
SECONDS = 86_400
DAYS = (
    *("infinity", "-infinity", "0044-03-15 BC", "4713-01-01 BC", "5874897-12-31", "20000-01-01"),
    *("0001-01-01", "9999-12-31", "1970-01-01", "2024-02-29", "0001-12-31 BC"),
)
MOMENTS = (
    *("infinity", "-infinity", "0001-01-01 00:00:00 BC", "4713-11-25 12:00:00.5 BC", "1970-01-01 00:00:00"),
    *("200000-01-01 00:00:00.1", "294246-12-31 23:59:59.999999", "1969-12-31 23:59:59.999999"),
)


class Dice(random.Random):
    """Throws the texts that the server is given."""

    def often(self) -> bool:
        return self.random() < 0.3

    def text(self, longest: int = 20) -> str:
        if self.often():
            return self.choice([word for word in WORDS if len(word) <= longest])
        return "".join(self.choices(LETTERS, k=self.randint(0, longest)))[:longest]

    def whole(self, bits: int) -> str:
        ends = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        near = (0, 1, -1, 10 ** self.randint(0, 18))
        found = self.choice((*ends, *near)) if self.often() else self.getrandbits(bits) - 2 ** (bits - 1)
        return str(min(max(found >> self.choice((0, 0, bits // 2)), ends[0]), ends[1]))

    def decimal(self, precision: int, scale: int) -> str:
        digits = self.choice((scale + 1, precision, self.randint(1, precision)))
        number = self.choice((0, 1, 10**digits - 1)) if self.often() else self.randrange(10**digits)
        sign = "-" if number and self.random() < 0.5 else ""
        return f"{sign}{number // 10**scale}.{number % 10**scale:0{scale}d}" if scale else f"{sign}{number}"

    def numeric(self) -> str:
        if self.often():
            return self.choice(["NaN", "Infinity", "-Infinity", "0", "0.00", "1e100", "-1e-100", "1.10", "1.1"])
        return self.decimal(self.choice((5, 38, 60, 100)), self.choice((0, 1, 5, 20, 40)))

    def floating(self, width: int) -> str:
        if self.often():
            ends = {32: ("1e-45", "3.4028235e38", "16777217"), 64: ("5e-324", "1.7976931348623157e308", "0.1")}[width]
            return self.choice(("NaN", "Infinity", "-Infinity", "0", "-0", "0.30000000000000004", *ends))
        exponent = self.randint(*{32: (-37, 37), 64: (-300, 300)}[width])
        return repr((self.random() - 0.5) * 10.0 ** self.choice((0, 3, exponent)))

    def day(self) -> str:
        if self.often():
            return self.choice(DAYS)
        return str(date.min + timedelta(days=self.randrange((date.max - date.min).days)))

    def clock(self) -> str:
        if self.often():
            return self.choice(["24:00:00", "00:00:00", "23:59:59.999999", "12:00:00.1", "00:00:00.000001"])
        seconds, micros = self.randrange(SECONDS), self.choice((0, 500_000, self.randrange(1_000_000)))
        return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{micros:06d}"

    def moment(self) -> str:
        if self.often():
            return self.choice(MOMENTS)
        day = self.day()
        while "inf" in day or "BC" in day or len(day) > 10:
            day = self.day()
        return f"{day} {self.clock()}"

    def zoned(self) -> str:
        found = self.moment()
        zone = self.choice(("+00", "+05:30", "-11", "+14"))
        if "inf" in found or "BC" in found or not "0002" < found < "9999":
            return found
        return found + zone

    def span(self) -> str:
        if self.often():
            return self.choice(["0", "1 day", "24 hours", "-178000000 years", "-00:00:00.000001", "1 mon -30 days"])
        months, days = (self.choice((0, self.randint(-(10**9), 10**9))) for _ in range(2))
        return f"{months} mons {days} days {self.choice((0, self.randint(-(10**17), 10**17)))} us"

    def document(self, depth: int = 2) -> object:
        kinds = ("null", "bool", "number", "text", "list", "object")
        kind = self.choice(kinds if depth else kinds[:4])
        if kind == "list":
            return [self.document(depth - 1) for _ in range(self.randint(0, 3))]
        if kind == "object":
            return {self.text(6): self.document(depth - 1) for _ in range(self.randint(0, 3))}
        return {"null": None, "bool": self.random() < 0.5, "number": int(self.whole(64)), "text": self.text()}[kind]

    def json(self) -> str:
        if self.often():
            return self.choice(['{"a":  1.0, "a": 2}', "[ ]", "1.10", "1e2", '"\\u017e"', "null", "-0", " [1 , 2]"])
        return json.dumps(self.document(), ensure_ascii=self.random() < 0.5)

    def address(self) -> str:
        mask = self.choice(("", f"/{self.randint(0, 32)}"))
        four = ".".join(str(self.randrange(256)) for _ in range(4)) + mask
        return self.choice((four, "::1", "::", f"2001:db8::{self.randrange(65536):x}", "::ffff:10.0.0.1/120"))

    def bits(self, least: int, most: int) -> str:
        return "".join(self.choices("01", k=self.randint(least, most)))

    def bytes(self, most: int) -> str:
        return "\\x" + self.randbytes(self.randint(0, most)).hex()

    def array(self, element: Callable[[], str]) -> str:
        made = [None if self.random() < 0.2 else element() for _ in range(self.randint(0, 4))]
        escaped = ["NULL" if v is None else '"' + v.replace("\\", "\\\\").replace('"', '\\"') + '"' for v in made]
        return "{" + ",".join(escaped) + "}"

    def range(self, low: int, high: int, spelled: str = "{}") -> str:
        if self.often():
            return self.choice(("empty", "(,)", f"(,{spelled.format(low)}]", f"[{spelled.format(low)},)"))
        first, ends = self.randint(low, high), self.choice(("[)", "(]", "[]", "()"))
        return f"{ends[0]}{spelled.format(first)},{spelled.format(first + self.randint(0, 1000))}{ends[1]}"

    def point(self, number: Callable[[], str] | None = None) -> str:
        number = number or (lambda: str(self.randint(-(10**9), 10**9) / 1000))
        return f"({number()},{number()})"

    def points(self) -> str:
        return ",".join(self.point() for _ in range(self.randint(1, 4)))

    def record(self, *values: str | None) -> str:
        parts = ["" if v is None else '"' + v.replace("\\", "\\\\").replace('"', '""') + '"' for v in values]
        return f"({','.join(parts)})"

    def pair(self) -> str:
        return self.record(self.choice((None, self.whole(32))), self.choice((None, self.text())))

    def lexemes(self) -> str:
        words = ["".join(self.choices("abcž' \\", k=self.randint(1, 5))) for _ in range(self.randint(0, 4))]
        told = ((word.replace("\\", "\\\\").replace("'", "''"), self.randint(1, 16383)) for word in words)
        return " ".join(f"'{word}':{place}{self.choice(('', 'A', 'B'))}" for word, place in told)

    def store(self) -> str:
        def quoted(text: str) -> str:
            return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

        made = {self.text(5): self.choice((None, self.text())) for _ in range(self.randint(0, 3))}
        return ", ".join(f"{quoted(key)}=>{'NULL' if v is None else quoted(v)}" for key, v in made.items())

    def element(self) -> str:
        text = self.text().replace("&", "&amp;").replace("<", "&lt;")
        return f"<a b='1'>{''.join(letter for letter in text if letter.isprintable())}</a>"


def kinds(target: str, version: int, dice: Dice) -> dict[str, Callable[[], str]]:
    """Every type, and what throws a value of it that the target holds."""
    made: dict[str, Callable[[], str]] = {
        "boolean": lambda: dice.choice("tf"),
        "smallint": lambda: dice.whole(16),
        "integer": lambda: dice.whole(32),
        "bigint": lambda: dice.whole(64),
        "oid": lambda: str(dice.getrandbits(32)),
        "real": lambda: dice.floating(32),
        "double precision": lambda: dice.floating(64),
        "numeric": dice.numeric,
        "numeric(38,12)": lambda: dice.decimal(38, 12),
        "numeric(12,3)": lambda: dice.decimal(12, 3),
        "numeric(60,20)": lambda: dice.decimal(60, 20),
        "numeric(5,-2)": lambda: str(dice.randint(-99_999, 99_999) * 100),
        "numeric(3,5)": lambda: f"{dice.randint(-999, 999) / 100_000:.5f}",
        "money": lambda: dice.decimal(18, 2),
        "text": dice.text,
        "varchar(20)": dice.text,
        "char(20)": dice.text,
        "name": dice.text,
        "citext": dice.text,
        '"char"': lambda: dice.choice("abXY01 _'\""),
        "code": lambda: dice.text(8),
        "bytea": lambda: dice.bytes(30),
        "date": dice.day,
        "time": dice.clock,
        "time(3)": dice.clock,
        "timetz": lambda: dice.clock() + dice.choice(("+00", "+05:30", "-15:59", "+15:59:59")),
        "timestamp": dice.moment,
        "timestamp(0)": dice.moment,
        "timestamptz": dice.zoned,
        "interval": dice.span,
        "interval(3)": dice.span,
        "uuid": lambda: str(uuid.UUID(int=dice.getrandbits(128))),
        "json": dice.json,
        "jsonb": dice.json,
        "inet": dice.address,
        "cidr": lambda: dice.choice(("10.0.0.0/8", "::/0", "2001:db8::/32", f"192.168.{dice.randrange(256)}.0/24")),
        "macaddr": lambda: dice.randbytes(6).hex(":"),
        "bit(7)": lambda: dice.bits(7, 7),
        "bit varying": lambda: dice.bits(0, 70),
        "int4range": lambda: dice.range(-(2**30), 2**30),
        "int8range": lambda: dice.range(-(2**60), 2**60),
        "numrange": lambda: dice.range(-(10**9), 10**9, "{}.10"),
        "daterange": lambda: dice.range(1000, 8000, "{}-02-28"),
        "tstzrange": lambda: dice.range(1000, 8000, "{}-02-28 12:00:00.5+03"),
        "int4multirange": lambda: "{" + ",".join(dice.range(-(2**30), 2**30) for _ in range(dice.randint(0, 3))) + "}",
        "point": lambda: dice.point(lambda: dice.floating(64)),
        "box": lambda: f"{dice.point()},{dice.point()}",
        "path": lambda: dice.choice(("[{}]", "({})")).format(dice.points()),
        "polygon": lambda: f"({dice.points()})",
        "circle": lambda: f"<{dice.point()},{dice.randint(0, 100)}>",
        "tsvector": dice.lexemes,
        "hstore": dice.store,
        "pg_lsn": lambda: f"{dice.getrandbits(32):X}/{dice.getrandbits(32):X}",
        "xid8": lambda: str(dice.getrandbits(64)),
        "mood": lambda: dice.choice(MOODS),
        "positive": lambda: str(dice.randint(1, 2**31 - 1)),
        "pair": dice.pair,
        "nested": lambda: dice.record(
            dice.pair(), dice.array(lambda: dice.choice(MOODS)), str(dice.randint(1, 99)), dice.range(0, 99)
        ),
        "codes": lambda: dice.array(dice.text),
        "boolean[]": lambda: dice.array(lambda: dice.choice("tf")),
        "integer[]": lambda: dice.array(lambda: dice.whole(32)),
        "double precision[]": lambda: dice.array(lambda: dice.floating(64)),
        "numeric[]": lambda: dice.array(dice.numeric),
        "numeric(20,5)[]": lambda: dice.array(lambda: dice.decimal(20, 5)),
        "text[]": lambda: dice.array(dice.text),
        "char(4)[]": lambda: dice.array(lambda: dice.text(4)),
        "bytea[]": lambda: dice.array(lambda: dice.bytes(9)),
        "date[]": lambda: dice.array(dice.day),
        "timestamptz[]": lambda: dice.array(dice.zoned),
        "interval[]": lambda: dice.array(dice.span),
        "uuid[]": lambda: dice.array(lambda: str(uuid.UUID(int=dice.getrandbits(128)))),
        "jsonb[]": lambda: dice.array(dice.json),
        "inet[]": lambda: dice.array(dice.address),
        "money[]": lambda: dice.array(lambda: dice.decimal(18, 2)),
        "mood[]": lambda: dice.array(lambda: dice.choice(MOODS)),
        "pair[]": lambda: dice.array(dice.pair),
    }
    if version < 18:  # the newest server here is built without it
        made["xml"] = dice.element
    if target == "sqlite":
        # It has neither NaN nor a negative zero: those are refused, each with its key.
        made |= {name: held_by_sqlite(made[name]) for name in ("real", "double precision")}
    return made


def held_by_sqlite(throw: Callable[[], str]) -> Callable[[], str]:
    def again() -> str:
        while (found := throw()) in ("NaN", "-0"):
            pass
        return found

    return again


def thrown(dice: Dice, throw: Callable[[], str], count: int) -> list[str | None]:
    """So many values, NULL among them."""
    return [None if dice.random() < 0.05 else throw() for _ in range(count)]
