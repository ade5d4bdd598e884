"""What stands around the packages: continuous integration, templates, the drawing of the models."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.db.models import Model
from ruamel.yaml import YAML

from tests.plugin import ROOT

MODELS = [
    model
    for label in ("leasing", "leasing_tasks")
    for model in apps.get_app_config(label).get_models()
]


def read(name: str) -> Any:
    return YAML(typ="safe").load((ROOT / name).read_text())


def commands(job: dict[str, Any]) -> list[str]:
    return [step["run"] for step in job["steps"] if "run" in step]


@pytest.fixture
def jobs() -> dict[str, Any]:
    return dict(read(".github/workflows/ci.yml")["jobs"])


def test_a_pull_request_runs_the_suite_and_the_checks(jobs: dict[str, Any]) -> None:
    on = read(".github/workflows/ci.yml")["on"]

    assert "pull_request" in on and "schedule" in on
    assert "schedule" in jobs["test"]["if"]  # the night does not run it again
    assert commands(jobs["test"]) == ["make test check"]


def test_the_night_runs_the_rest(jobs: dict[str, Any]) -> None:
    assert any(".ci/run" in each for each in commands(jobs["everything"]))
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    asked = {each.split()[0] for each in jobs["night"]["strategy"]["matrix"]["command"]}
    assert asked <= targets
    assert {"mutants", "matrix", "bench"} <= asked


def test_hooks_before_a_commit_check_style_types_and_contracts() -> None:
    (repo,) = read(".pre-commit-config.yaml")["repos"]

    assert repo["repo"] == "local"  # the tools of the environment, so that versions never differ
    assert {hook["id"] for hook in repo["hooks"]} == {"ruff", "ruff-format", "mypy", "contracts"}
    assert all(hook["entry"].startswith(".venv/bin/") for hook in repo["hooks"])


def test_a_report_of_a_bug_has_what_explains_a_task_and_the_versions() -> None:
    form = read(".github/ISSUE_TEMPLATE/bug.yml")
    fields = {field["id"]: field for field in form["body"] if "id" in field}

    assert {"name", "description", "body"} <= form.keys()
    assert "manage.py tasks show" in fields["show"]["attributes"]["description"]
    assert "Django" in fields["versions"]["attributes"]["description"]
    assert fields["show"]["validations"]["required"]


DIAGRAMS = sorted((ROOT / "docs" / "diagrams").glob("*.dot"))


@pytest.mark.parametrize("diagram", DIAGRAMS, ids=lambda path: path.stem)
def test_a_diagram_is_drawn_with_each_of_its_words_and_shown(diagram: Path) -> None:
    drawing = ROOT / "docs" / "images" / f"{diagram.stem}.svg"
    texts = [
        html.unescape(each) for each in re.findall(r"<text[^>]*>([^<]*)<", drawing.read_text())
    ]
    labels = re.findall(r'label="([^"]+)"', diagram.read_text())
    pages = "".join(page.read_text() for page in (ROOT / "docs").glob("*.md"))

    drawn = {text.strip() for text in texts}
    assert {line.strip() for label in labels for line in label.split("\\n")} <= drawn, (
        "make drawing"
    )
    assert "prefers-color-scheme: dark" in drawing.read_text()
    assert f"(images/{drawing.name})" in pages


def test_every_picture_is_shown() -> None:
    pictures = {path.name for path in (ROOT / "docs" / "images").iterdir()}
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    shown = set(re.findall(r"images/([\w-]+\.\w+)", "".join(page.read_text() for page in pages)))

    assert pictures == shown


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_the_drawing_of_the_models_has_each_model_and_column(model: type[Model]) -> None:
    drawing = (ROOT / "docs" / "images" / "models.svg").read_text()
    texts = {html.unescape(text).strip() for text in re.findall(r"<text[^>]*>([^<]*)<", drawing)}

    assert model.__name__ in texts
    missing = {field.name for field in model._meta.local_fields} - texts
    assert not missing, "make drawing"
