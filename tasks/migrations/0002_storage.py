"""Storage options of PostgreSQL for the table whose every row is soon updated twice, and for its
indexes."""

from typing import Any

from django.db import migrations

OPTIONS = {
    # Room on the page for the next versions of a row: heartbeats stay there, and touch no index.
    # Many of what is claimed and ended stays there too: after a drain the table is smaller than
    # one whose pages were fuller.
    "fillfactor": 60,
    # Claims and ends leave dead rows where the next claim looks: by default a table of ten
    # million finished tasks would keep two million of them.
    "autovacuum_vacuum_scale_factor": 0.01,
    "autovacuum_vacuum_threshold": 1000,
    # A plan made for an empty queue is a bad one for a full queue.
    "autovacuum_analyze_scale_factor": 0.02,
}
#: Room on the pages of the index in which each claim and each end makes an entry beside that which
#: the row has already: otherwise each page is full by then, and is cleared or split.
INDEXES = {"leasing_tasks_task_pkey": 40}


def set_options(apps: Any, schema_editor: Any) -> None:
    if schema_editor.connection.vendor == "postgresql":
        options = ", ".join(f"{name} = {value}" for name, value in OPTIONS.items())
        schema_editor.execute(f"ALTER TABLE leasing_tasks_task SET ({options})")
        for index, percent in INDEXES.items():
            schema_editor.execute(f"ALTER INDEX {index} SET (fillfactor = {percent})")


def reset_options(apps: Any, schema_editor: Any) -> None:
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute(f"ALTER TABLE leasing_tasks_task RESET ({', '.join(OPTIONS)})")
        for index in INDEXES:
            schema_editor.execute(f"ALTER INDEX {index} RESET (fillfactor)")


class Migration(migrations.Migration):
    dependencies = [("leasing_tasks", "0001_initial")]

    operations = [migrations.RunPython(set_options, reset_options)]
