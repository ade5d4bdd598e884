"""System check: the module ``tasks`` is the queue of this distribution, and no other.

Python searches the folder of ``manage.py`` first. A ``tasks.py`` or ``tasks/`` there, as in the
tutorials of Invoke and Celery, is imported in place of the queue, and Django accepts any module as
an app: nothing fails until a command is unknown. No such module replaces ``leasing``, so the check
is here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.core.exceptions import ImproperlyConfigured

QUEUE = "tasks"
#: Both packages of the distribution are installed side by side.
QUEUE_FOLDER = Path(__file__).parents[2] / QUEUE
#: A package that has one of these is an app of the project, which may have the name ``tasks``.
PARTS_OF_AN_APP = frozenset(
    ("apps", "management", "migrations", "models", "tasks", "templates", "templatetags")
    + ("urls", "views")
)

REMEDY = (
    "Rename that module, or move it out of the folder of manage.py, which Python searches first. "
    "Invoke finds a renamed module by `--collection`."
)


@register(Tags.compatibility)
def check_queue_module(**kwargs: Any) -> list[CheckMessage]:
    """Report another module in the place of the queue.

    An error where the settings ask for the queue (TASK_QUEUE, or a backend of TASKS that only the
    queue has). A warning where "tasks" is installed and what is found is no app by its looks: the
    queue was meant, in all probability. Nothing for a project that has an app ``tasks`` of its
    own, or none.
    """
    found = _module_in_the_way()
    if found is None:
        return []
    # Another library's setting of that name is probably no dictionary.
    if isinstance(getattr(settings, "TASK_QUEUE", None), Mapping) or missing_backends():
        return [Error(_sentence(found), hint=REMEDY, id="leasing.E016")]
    # A package with parts that only an app has is one.
    is_app = found.is_dir() and not PARTS_OF_AN_APP.isdisjoint(p.stem for p in found.iterdir())
    if apps.is_installed(QUEUE) and not is_app:
        hint = f"{REMEDY} If the queue is not used, silence this check."
        return [Warning(_sentence(found), hint=hint, id="leasing.W008")]
    return []


def refuse_missing_backends() -> None:
    """Raise ImproperlyConfigured where TASKS names a backend of the queue, and another module is
    in its place. No check could say so: Django's own checks import the backend, and fail."""
    _refuse(missing_backends())


def refuse_missing_apps() -> None:
    """Raise ImproperlyConfigured where INSTALLED_APPS names the configuration of the queue's app,
    and another module is in its place. No check could say so: Django fails at the import."""
    _refuse(_missing(settings.INSTALLED_APPS))


def missing_backends() -> list[str]:
    """Return the backends in TASKS that should be in ``tasks``, but whose module does not exist."""
    chosen = getattr(settings, "TASKS", None)
    entries = chosen.values() if isinstance(chosen, Mapping) else ()
    return _missing(entry.get("BACKEND") for entry in entries if isinstance(entry, Mapping))


def _missing(paths: Iterable[Any]) -> list[str]:
    under = [path for path in paths if isinstance(path, str) and path.startswith(f"{QUEUE}.")]
    return [path for path in under if not _exists(path)]


def _refuse(missing: Sequence[str]) -> None:
    if missing and (found := _module_in_the_way()):
        raise ImproperlyConfigured(f"{_sentence(found)} {REMEDY}")


def _exists(path: str) -> bool:
    try:
        return find_spec(path.rpartition(".")[0]) is not None
    except ImportError:
        return False


def _module_in_the_way() -> Path | None:
    """The file or the folder that is imported as ``tasks``, unless it is the queue's."""
    try:
        spec = find_spec(QUEUE)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    places = folders or [Path(spec.origin or QUEUE)]
    # Installers may link the files of a package or its folder: compare the targets of links.
    ours = QUEUE_FOLDER.resolve()
    return None if ours in [place.resolve() for place in places] else places[0]


def _sentence(found: Path) -> str:
    return f"Python imports {found} as `tasks` instead of the task queue of django-leasing."
