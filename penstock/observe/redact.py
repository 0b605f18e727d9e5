"""Secrets out of everything that is printed or kept.

Whoever learns a secret registers it here; whoever prints passes its text through `redact`. What
is registered is never shown, listed or written by this module.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Any
from urllib.parse import parse_qsl, quote, quote_plus, unquote, urlsplit

MASK = "***"

# A shorter secret would be masked inside ordinary words and make every message unreadable.
MIN_LENGTH = 4

# A field or keyword whose name holds one of these holds a secret.
SECRET_WORDS = ("password", "secret", "token", "passphrase", "credential", "private_key")

# As libpq reads it: in quotes or without, a backslash takes the next character as it is.
_KEYWORD = re.compile(
    rf"\w*(?:{'|'.join(SECRET_WORDS)})\w*\s*=\s*(?:'((?:[^'\\]|\\.)*)'?|((?:[^\s\\]|\\.)+))", re.DOTALL
)

_secrets: set[str] = set()


def register(secret: str) -> None:
    """Mask `secret` from now on, also as it looks inside a URL, in JSON and in a Python repr."""
    if len(secret) < MIN_LENGTH:
        return
    forms = {secret, quote(secret, safe=""), quote_plus(secret), json.dumps(secret)[1:-1], repr(secret)[1:-1]}
    _secrets.update(form for form in forms if len(form) >= MIN_LENGTH)


def register_all(secrets: Iterable[str]) -> None:
    for secret in secrets:
        register(secret)


def register_fields(fields: Mapping[str, object]) -> None:
    """Mask what a connection's options hold: secret fields, and the secrets inside DSNs."""
    for name, value in fields.items():
        register_all(_secrets_in(name, value))


def _secrets_in(name: str, value: object) -> Iterator[str]:
    # A command that prints a password is no secret itself, and people need to see which one failed.
    named = any(word in name for word in SECRET_WORDS) and not name.endswith("_command")
    if hasattr(value, "get_secret_value"):
        value = value.get_secret_value()
        named = named or not _is_dsn(str(value))
    if isinstance(value, Mapping):
        for inner, entry in value.items():
            yield from _secrets_in(str(inner), entry)
    elif isinstance(value, str):
        if named:
            yield value
        yield from _secrets_of_dsn(value)


def _is_dsn(text: str) -> bool:
    return "://" in text or "=" in text


def _secrets_of_dsn(text: str) -> Iterator[str]:
    if "://" not in text:
        for quoted, plain in _KEYWORD.findall(text):
            yield quoted or plain
            yield re.sub(r"\\(.)", r"\1", quoted or plain, flags=re.DOTALL)
        return
    # By hand: a password that nobody percent-encoded may hold what urlsplit would stumble over.
    authority = re.split(r"[/?#]", text.partition("://")[2])[0] if "@" not in text else text.partition("://")[2]
    user, at, _ = authority.rpartition("@")
    if at and ":" in user:
        password = user.partition(":")[2]
        yield password
        yield unquote(password)
    try:
        options = parse_qsl(urlsplit(text).query)
    except ValueError:
        return
    yield from (value for name, value in options if any(word in name for word in SECRET_WORDS))


def forget() -> None:
    """Empty the register: for tests, and for a process that is done with a project."""
    _secrets.clear()


def redact(text: str) -> str:
    """`text` with every registered secret masked."""
    # Longest first: a DSN holds its own password, and masking that first would leave the rest.
    for secret in sorted(_secrets, key=len, reverse=True):
        if secret in text:
            text = text.replace(secret, MASK)
    return text


def redact_values(value: Any) -> Any:
    """The same for the strings inside a JSON value; keys stay, so that field names are stable."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {key: redact_values(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [redact_values(inner) for inner in value]
    return value


class RedactingStream:
    """A text stream that masks secrets in all that is written to it."""

    def __init__(self, stream: IO[str]) -> None:
        self.wrapped = stream

    def write(self, text: str) -> int:
        self.wrapped.write(redact(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.wrapped, name)
