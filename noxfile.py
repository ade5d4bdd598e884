"""The suite under each pair of Python and Django, in an environment of its own: ``make matrix``."""

import nox

PAIRS = ("3.11/5.2", "3.12/5.2", "3.12/6.1", "3.13/6.0")
PYTEST = ("python", "-m", "pytest", "--numprocesses", "3", "--dist", "worksteal")

nox.options.reuse_existing_virtualenvs = True
nox.options.error_on_missing_interpreters = True


@nox.session(venv_backend="venv")
@nox.parametrize(["python", "django"], [nox.param(*pair.split("/"), id=pair) for pair in PAIRS])
def suite(session: nox.Session, django: str) -> None:
    """Run everything on both databases."""
    session.install("--upgrade", "pip>=25.1")  # --group
    extras = "postgres,api,client,backport" if django == "5.2" else "postgres,api,client"
    session.install(
        "--editable", f".[{extras}]", "--group", "test", f"Django=={django}.*", silent=True
    )
    for database in ("postgresql", "sqlite"):
        session.run(*PYTEST, "--db", database, *session.posargs)
