"""Values that are nobody's business are not shown: those under keys that look like secrets."""

from __future__ import annotations

import re
from typing import Any, Final

#: What is shown in place of a secret.
MASK: Final = "••••••"
#: A key is secret when one of its words is one of these ("db_password", "apiKey", "Set-Cookie").
SECRET_WORDS: Final = {
    *("password", "passwords", "passwd", "pwd", "passphrase", "secret", "secrets", "token"),
    *("tokens", "authorization", "auth", "bearer", "jwt", "credential", "credentials", "cookie"),
    *("cookies", "session", "sessionid", "csrf", "signature", "otp", "pin", "card", "cvv", "cvc"),
    *("iban", "ssn", "apikey", "accesskey", "privatekey", "secretkey"),
}
#: Or when these words follow each other in it.
SECRET_PAIRS: Final = {("api", "key"), ("access", "key"), ("private", "key")}
#: Deeper than this nothing is shown at all.
DEEPEST: Final = 50

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")


def masked(value: Any, depth: int = 0) -> Any:
    """``value`` (JSON) with what stands under secret-looking keys replaced, however deep."""
    if depth > DEEPEST:
        return MASK
    if isinstance(value, dict):
        return {
            key: MASK if is_secret(str(key)) and each not in (None, "") else masked(each, depth + 1)
            for key, each in value.items()
        }
    if isinstance(value, list | tuple):
        return [masked(each, depth + 1) for each in value]
    return value


def is_secret(key: str) -> bool:
    """Whether ``key`` looks as if a secret stood under it."""
    words = [word.lower() for word in _WORD.findall(key)]
    if any(word in SECRET_WORDS for word in words) or "".join(words) in SECRET_WORDS:
        return True
    return any(pair in SECRET_PAIRS for pair in zip(words, words[1:], strict=False))
