"""Projects with a module, or an app, of their own that is called ``tasks``.

Each project is made in a temporary folder. One process goes through all steps of the first; one
more forks a child for each of the others, which only run ``manage.py check``.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent
from typing import Any, NamedTuple

import pytest

SETTINGS = """
    from pathlib import Path

    HERE = Path(__file__).parent
    SECRET_KEY = "known to everybody, for the tests only"
    USE_TZ = True
    DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
    DATABASES = {
        "default": {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": HERE / "db.sqlite3",
            "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 20},
        }
    }
    """


# Each makes a project, and starts processes in it.
pytestmark = pytest.mark.slow


class Said(NamedTuple):
    """The output of a command, and its exit code."""

    code: int
    text: str


def make(folder: Path, files: Mapping[str, str]) -> Path:
    """Write ``files``, by their paths, into ``folder``."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
    return folder


def run(folder: Path, code: str, *args: str) -> Said:
    """Run ``code`` in ``folder`` with its modules first on the path, as ``manage.py`` has them."""
    steps = make(folder, {"steps.py": code}) / "steps.py"
    env = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
    done = subprocess.run(
        [sys.executable, steps, *args],
        cwd=folder,
        env=env | {"DJANGO_SETTINGS_MODULE": "settings"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert not done.returncode, done.stderr
    return Said(done.returncode, done.stdout)


# An app ``apps.tasks`` next to the queue

IN_STATEMENT_WINDOW = {
    "settings.py": SETTINGS
    + """
    INSTALLED_APPS = [
        "django.contrib.admin",
        "django.contrib.auth",
        "django.contrib.contenttypes",
        "django.contrib.sessions",
        "django.contrib.messages",
        "django.contrib.staticfiles",
        "apps.tasks",
        "leasing",
        "tasks",
    ]
    MIDDLEWARE = [
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.messages.middleware.MessageMiddleware",
    ]
    ROOT_URLCONF = "urls"
    LOGIN_URL = "leasing:login"
    STATIC_URL = "static/"
    TEMPLATES = [
        {
            "BACKEND": "django.template.backends.django.DjangoTemplates",
            "DIRS": [HERE / "templates"],
            "APP_DIRS": True,
            "OPTIONS": {
                "context_processors": [
                    "django.template.context_processors.request",
                    "django.contrib.auth.context_processors.auth",
                    "django.contrib.messages.context_processors.messages",
                ]
            },
        }
    ]
    """,
    "urls.py": """
    from django.contrib import admin
    from django.urls import include, path

    from leasing.api import LeasingAPI, router

    api = LeasingAPI(urls_namespace="api")
    api.add_router("", router)
    urlpatterns = [
        path("admin/", admin.site.urls),
        path("chores/", include("apps.tasks.urls")),
        path("ops/", include("leasing.urls")),
        path("ops/", include("tasks.urls")),
        path("api/", api.urls),
    ]
    """,
    "templates/tasks/list.html": "chores of the project: {{ chores|join:', ' }}",
    "apps/__init__.py": "",
    "apps/tasks/__init__.py": "",
    "apps/tasks/templates/tasks/detail.html": "one chore: {{ chore }}",
    "apps/tasks/models.py": """
    from django.db import models

    from leasing.models import Leasable


    class Task(Leasable):
        title = models.CharField(max_length=100)

        class Meta(Leasable.Meta):
            pass

        def __str__(self):
            return self.title
    """,
    "apps/tasks/admin.py": """
    from django.contrib import admin

    from apps.tasks.models import Task

    admin.site.register(Task)
    """,
    "apps/tasks/urls.py": """
    from django.shortcuts import get_object_or_404, render
    from django.urls import path

    from apps.tasks.models import Task


    def chores(request):
        return render(request, "tasks/list.html", {"chores": Task.objects.all()})


    def chore(request, pk):
        return render(request, "tasks/detail.html", {"chore": get_object_or_404(Task, pk=pk)})


    app_name = "tasks"
    urlpatterns = [path("", chores, name="list"), path("<int:pk>/", chore, name="detail")]
    """,
    "apps/tasks/tasks.py": """
    from apps.tasks.models import Task
    from tasks import handler


    @handler("chores.finish")
    def finish(context, key):
        with Task.objects.get(pk=key).hold(ttl=30):
            Task.objects.filter(pk=key).update(title="finished")
    """,
}

STEPS = """
    import io
    import json

    import django

    django.setup()

    from django.contrib.auth.models import Permission, User
    from django.core.management import call_command
    from django.test import Client
    from django.test.utils import setup_test_environment
    from django.urls import reverse

    from apps.tasks.models import Task as Chore
    from leasing.models import LeaseEvent
    from tasks.models import Task

    setup_test_environment()
    call_command("makemigrations", "tasks", verbosity=0)
    call_command("migrate", verbosity=0)
    checked = io.StringIO()
    call_command("check", fail_level="WARNING", stdout=checked)

    chore = Chore.objects.create(title="paint")
    task = Task.objects.enqueue("chores.finish", {"key": chore.pk})
    call_command("run_worker", "--drain")
    task.refresh_from_db()

    admin = Client()
    admin.force_login(User.objects.create_superuser("ada"))
    pages = {
        name: admin.get(reverse(name, args=args))
        for name, *args in (
            ["tasks:list"],
            ["tasks:detail", chore.pk],
            ["leasing_tasks:overview"],
            ["leasing_tasks:list"],
            ["leasing_tasks:detail", task.pk],
            ["leasing:list"],
            ["admin:tasks_task_changelist"],
            ["admin:tasks_task_change", chore.pk],
            ["admin:leasing_tasks_task_changelist"],
            ["admin:leasing_tasks_task_change", task.pk],
        )
    }
    leases = {
        row.lease_id: [
            admin.get(reverse("leasing:detail", args=[row.lease_id])).context["row"] == row,
            admin.get(f"/api/leases/{row.lease_id}").json()["resource"],
        ]
        for row in (task, chore)
    }
    seen = {}
    for label in ("tasks", "leasing_tasks"):
        user = User.objects.create(username=label)
        user.user_permissions.set(
            Permission.objects.filter(content_type__app_label=label, codename="view_task")
        )
        viewer = Client()
        viewer.force_login(user)
        seen[label] = viewer.get(reverse("leasing_tasks:list")).status_code

    print(json.dumps({
        "checked": checked.getvalue(),
        "tables": [Chore._meta.db_table, Task._meta.db_table],
        "keys": [chore.pk, task.pk],
        "status": task.status,
        "title": Chore.objects.get().title,
        "events": list(LeaseEvent.objects.values_list("model", "kind").order_by("pk")),
        "pages": {name: page.status_code for name, page in pages.items()},
        "chores": pages["tasks:list"].content.decode(),
        "templates": [each.name for each in pages["leasing_tasks:list"].templates],
        "leases": leases,
        "seen": seen,
    }))
    """


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the observations of a project with an app ``apps.tasks`` next to the queue."""
    said = run(make(tmp_path_factory.mktemp("beside"), IN_STATEMENT_WINDOW), STEPS)
    found: dict[str, Any] = json.loads(said.text.splitlines()[-1])
    return found


def test_an_app_called_tasks_has_tables_and_pages_beside_those_of_the_queue(
    beside: dict[str, Any],
) -> None:
    assert beside["checked"] == "System check identified no issues (0 silenced).\n"
    assert beside["tables"] == ["tasks_task", "leasing_tasks_task"]
    assert set(beside["pages"].values()) == {200}
    assert beside["chores"] == "chores of the project: finished"
    assert "leasing_tasks/list.html" in beside["templates"]
    assert "tasks/list.html" not in beside["templates"]


def test_a_task_runs_that_holds_a_row_of_the_other_app(beside: dict[str, Any]) -> None:
    assert (beside["status"], beside["title"]) == ("succeeded", "finished")
    assert beside["events"] == [["tasks.task", "acquired"], ["tasks.task", "released"]]


def test_leases_of_two_models_called_task_have_ids_of_their_own(beside: dict[str, Any]) -> None:
    chore, task = beside["keys"]
    assert beside["leases"] == {
        f"task:{task}": [True, f"/api/tasks/{task}"],
        f"tasks.task:{chore}": [True, f"tasks.task:{chore}"],
    }


def test_to_see_the_tasks_of_one_app_is_no_permission_for_those_of_the_other(
    beside: dict[str, Any],
) -> None:
    assert beside["seen"] == {"tasks": 403, "leasing_tasks": 200}


# A module in the place of the queue

CHECKS = """
    import os
    import sys
    import traceback

    from django.core.management import execute_from_command_line

    children = []
    for folder in sys.argv[1:]:
        children.append(os.fork())
        if children[-1] == 0:
            os.chdir(folder)
            sys.path[0] = folder
            output = os.open("said", os.O_CREAT | os.O_WRONLY)
            os.dup2(output, 1)
            os.dup2(output, 2)
            code = 0
            try:
                execute_from_command_line(["manage.py", "check"])
            except SystemExit as error:
                code = int(error.code or 0)
            except BaseException:
                traceback.print_exc()
                code = 1
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    for child in children:
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """

BOTH, LEASING, TASKS = '["leasing", "tasks"]', '["leasing"]', '["tasks"]'
CONFIG = '["leasing", "tasks.apps.TasksConfig"]'
INVOKE = {"tasks.py": "def build(context):\n    context.run('make')\n"}
EMAILS = {"tasks/__init__.py": "", "tasks/emails.py": "def send():\n    ..."}
APP = {
    "tasks/__init__.py": "",
    "tasks/apps.py": """
    from django.apps import AppConfig

    class ChoresConfig(AppConfig):
        name = "tasks"
    """,
}
QUEUE = "TASK_QUEUE = {'QUEUES': ['default']}"
BACKEND = "TASKS = {'default': {'BACKEND': 'tasks.backend.DatabaseBackend'}}"
THEIR_BACKEND = "TASKS = {'default': {'BACKEND': 'tasks.apps.Backend'}}"
OTHER_QUEUE = "TASK_QUEUE = 'redis://localhost'"


class Project(NamedTuple):
    """Its files, apps and another setting; and what ``manage.py check`` says of it, with its code:
    by default, that nothing is wrong."""

    files: dict[str, str]
    apps: str
    setting: str = ""
    code: int = 0
    told: tuple[str, ...] = ()


def hidden_by(found: str, *more: str) -> tuple[str, ...]:
    return (f"Python imports {found} as `tasks`", *more)


STOPPED = ("\ndjango.core.exceptions.ImproperlyConfigured: Python imports ./tasks.py",)
IS_WANTED = ("leasing.E016", "HINT: Rename that module")
PROJECTS = {
    "the queue": Project({}, BOTH, QUEUE),
    "the queue, by its configuration": Project({}, CONFIG),
    "a module that hides a queue that is wanted is an error": Project(
        INVOKE, BOTH, QUEUE, 1, hidden_by("./tasks.py", *IS_WANTED)
    ),
    "so is a package": Project(EMAILS, LEASING, QUEUE, 1, hidden_by("./tasks", *IS_WANTED)),
    "so is an app": Project(APP, BOTH, QUEUE, 1, hidden_by("./tasks", *IS_WANTED)),
    "a module that is installed and is no app is warned of": Project(
        INVOKE, BOTH, told=hidden_by("./tasks.py", "leasing.W008")
    ),
    "so is a package that is none": Project(
        EMAILS, BOTH, told=hidden_by("./tasks", "leasing.W008")
    ),
    "a backend that is hidden stops every command": Project(INVOKE, BOTH, BACKEND, 1, STOPPED),
    "so does a configuration": Project(INVOKE, CONFIG, "", 1, STOPPED),
    "a module beside leasing alone": Project(INVOKE, LEASING),
    "and a setting of the queue's name": Project(INVOKE, LEASING, OTHER_QUEUE),
    "a package beside leasing alone": Project(EMAILS, LEASING),
    "an app of the queue's name": Project(APP, BOTH),
    "an app with a backend": Project(APP, BOTH, THEIR_BACKEND),
    "who forgot leasing is told to add it": Project(
        {},
        TASKS,
        "",
        1,
        (
            "\ndjango.core.exceptions.ImproperlyConfigured: "
            'The app "tasks" needs the app "leasing": add "leasing" to INSTALLED_APPS.\n',
        ),
    ),
}


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Said]:
    """Return the output of ``manage.py check`` in each of PROJECTS."""
    folders = {}
    for name, project in PROJECTS.items():
        settings = f"{dedent(SETTINGS)}\nINSTALLED_APPS = {project.apps}\n{project.setting}\n"
        folder = tmp_path_factory.mktemp(re.sub(r"\W", "-", name))
        folders[name] = make(folder, {"settings.py": settings, **project.files})
    codes = run(tmp_path_factory.mktemp("checks"), CHECKS, *map(str, folders.values())).text
    return {
        name: Said(int(code), (folder / "said").read_text().replace(str(folder), "."))
        for (name, folder), code in zip(folders.items(), codes.split(), strict=True)
    }


@pytest.mark.parametrize("name", PROJECTS)
def test_the_checks_say_what_stands_in_the_place_of_the_queue(
    checked: dict[str, Said], name: str
) -> None:
    project = PROJECTS[name]
    if project.told:
        assert checked[name].code == project.code
        assert [each for each in project.told if each not in checked[name].text] == []
    else:
        nothing = "System check identified no issues (0 silenced).\n"
        assert checked[name] == Said(0, nothing)


def test_pytest_runs_the_tests_of_a_project_with_an_app_called_tasks(tmp_path: Path) -> None:
    model = "from django.db import models\n\nclass Chore(models.Model):\n    pass\n"
    files = {
        "settings.py": f"{dedent(SETTINGS)}\nINSTALLED_APPS = {BOTH}\n",
        "pytest.ini": "[pytest]\nDJANGO_SETTINGS_MODULE = settings\npythonpath = .\n",
        "tasks/models.py": model,
        "test_chores.py": """
    from django.apps import apps

    def test_their_app_is_installed():
        assert apps.get_app_config("tasks").get_model("chore")
    """,
    }
    make(tmp_path, {**APP, **files})

    ours = ("DATABASE_URL", "DJANGO_SETTINGS_MODULE", "PYTEST_ADDOPTS")
    env = {name: value for name, value in os.environ.items() if name not in ours}
    for pytest_ in ([sys.executable, "-m", "pytest"], [Path(sys.executable).with_name("pytest")]):
        done = subprocess.run(
            [*pytest_, "-q"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120
        )
        assert "1 passed" in done.stdout, done.stdout + done.stderr
