"""A secret key of this installation's own."""

import os
import secrets
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile

from django.core.exceptions import ImproperlyConfigured


def kept_key(path: Path) -> str:
    """The key kept in ``path``, made at the first call and readable by its owner only.

    Processes that start together agree on one key. Raises ``ImproperlyConfigured`` where the
    file can be neither read nor made.
    """
    try:
        if not path.exists():
            with NamedTemporaryFile("w", dir=path.parent) as draft:
                draft.write(secrets.token_urlsafe(48))
                draft.flush()
                with suppress(FileExistsError):  # another process was first: its key counts
                    os.link(draft.name, path)
        return path.read_text()
    except OSError as error:
        raise ImproperlyConfigured(
            f"Set SECRET_KEY: no key can be stored here ({error})."
        ) from error
