"""Values that are nobody's business are not shown: those under keys that look like secrets, those
that follow such a name, and passwords in addresses."""

from __future__ import annotations

import re
from typing import Any, Final

#: The text shown in place of a secret.
MASK: Final = "••••••"
#: A key is secret when one of its words is one of these ("db_password", "apiKey", "Set-Cookie").
SECRET_WORDS: Final = {
    *("password", "passwords", "passwd", "pwd", "passphrase", "secret", "secrets", "token"),
    *("tokens", "authorization", "auth", "bearer", "jwt", "credential", "credentials", "cookie"),
    *("cookies", "session", "sessionid", "csrf", "signature", "otp", "pin", "card", "cvv", "cvc"),
    *("iban", "ssn", "apikey", "accesskey", "privatekey", "secretkey", "pw", "dsn"),
}
#: Or when these words follow each other in it.
SECRET_PAIRS: Final = {("api", "key"), ("access", "key"), ("private", "key")}
#: Or when it ends with one of these ("db_pass"), after another word or alone.
SECRET_ENDS: Final = {"pass"}
#: Or with one of these after a word, except for the words that say which row or message is meant.
KEYS: Final = {"key", "keys"}
PLAIN_KEYS: Final = {
    *("primary", "foreign", "unique", "natural", "composite", "candidate", "lookup", "index"),
    *("idempotency", "concurrency", "partition", "routing", "sort", "order", "group", "grouping"),
    *("cache", "object", "row", "item", "record", "dedup", "deduplication", "message", "public"),
}
#: Keys under which the name of a secret stands, where its value stands under VALUE.
NAMES: Final = ("name", "key", "header", "field", "variable")
VALUE: Final = "value"
#: Deeper than this nothing is shown at all.
DEEPEST: Final = 50

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
#: The password in "scheme://user:password@host"; "host:8080/" has a port. It is bounded, or a
#: text of many beginnings would be read to its end from each.
_IN_ADDRESS = re.compile(r"""(://[^\s/:@]*:)(?!\d+[/?\#])[^\s"'<>]{1,500}@""")
_AUTHORIZATION = re.compile(r"bearer\s+\S+|basic\s+[a-z0-9+/]{6,}={1,2}", re.IGNORECASE)
_HEADER = re.compile(r"^([A-Za-z][\w.-]*)([ \t]*:[ \t]*)(?!//)\S.*$", re.MULTILINE)


def masked(value: Any, depth: int = 0) -> Any:
    """``value`` (JSON) with secrets replaced, however deep: what stands under a secret-looking
    key, after such a name (``["Authorization", "..."]``, ``{"name": "...", "value": "..."}``,
    ``"Authorization: ..."``), or as the password in an address."""
    if depth > DEEPEST:
        return MASK
    if isinstance(value, dict):
        return _masked_object(value, depth)
    if isinstance(value, list | tuple):
        if _is_secret_pair(value):
            return [value[0], MASK]
        return [masked(each, depth + 1) for each in value]
    return masked_text(value) if isinstance(value, str) else value


def masked_text(text: str) -> str:
    """``text`` without the passwords of the addresses in it, and of a header that looks secret the
    name alone."""
    if ":" in text:
        text = _IN_ADDRESS.sub(rf"\1{MASK}@", _HEADER.sub(_masked_header, text))
    return MASK if _AUTHORIZATION.fullmatch(text) else text


def is_secret(key: str) -> bool:
    """Return True if ``key`` looks like the name of a secret."""
    words = [word.lower() for word in _WORD.findall(key)]
    if any(word in SECRET_WORDS for word in words) or "".join(words) in SECRET_WORDS:
        return True
    if words and words[-1] in SECRET_ENDS:
        return True
    if len(words) > 1 and words[-1] in KEYS and words[-2] not in PLAIN_KEYS:
        return True
    return any(pair in SECRET_PAIRS for pair in zip(words, words[1:], strict=False))


def _masked_header(header: re.Match[str]) -> str:
    return f"{header[1]}{header[2]}{MASK}" if is_secret(header[1]) else header[0]


def _masked_object(value: dict[Any, Any], depth: int) -> dict[Any, Any]:
    names_secret = VALUE in value and any(
        isinstance(value.get(name), str) and is_secret(value[name]) for name in NAMES
    )
    return {
        key: MASK
        if each not in (None, "") and (is_secret(str(key)) or names_secret and key == VALUE)
        else masked(each, depth + 1)
        for key, each in value.items()
    }


def _is_secret_pair(value: list[Any] | tuple[Any, ...]) -> bool:
    """Return True for a name and its value, as some clients write headers."""
    if len(value) != 2 or value[1] in (None, "") or not isinstance(value[0], str):
        return False
    return is_secret(value[0])
