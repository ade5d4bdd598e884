from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from django.core.management.base import CommandError
from django.db import transaction

from leasing import audit
from leasing.conf import leasing_settings
from leasing.dashboard.settlement import SETTLE
from leasing.humanize import plural
from leasing.management.base import duration
from leasing.management.subcommands import (
    AddAction,
    SubcommandsCommand,
    add_json,
    add_operator,
    operator,
    shown,
)
from leasing.models import OnceKey
from leasing.runtime.terminal import as_json, as_table, plain, suggestion
from leasing.web.export import json_parts
from leasing.web.masking import masked
from leasing.web.paging import chunks_of
from tasks import monitoring
from tasks.dashboard.operator_actions import ACTIONS
from tasks.dashboard.reconciliation import KEYS, done_once, enqueued
from tasks.diagnosis import diagnose, explain
from tasks.diagnosis.trace import read_trace
from tasks.management.acting import perform, report
from tasks.management.choosing import (
    DONE,
    FILTERS,
    add_enqueue,
    add_filters,
    add_time,
    add_verb,
    chosen_by,
    data_of,
    details_of,
    find,
    key_of,
    now,
    refuse_unasked,
    refusing,
    start_of,
)
from tasks.management.commands import workers
from tasks.management.telling import (
    columns_of,
    columns_of_attempt,
    columns_of_event,
    facts_of,
    facts_of_attempt,
)
from tasks.models import Task, TaskStatus
from tasks.querysets import TaskQuerySet


class Command(SubcommandsCommand):
    help = "List tasks, explain one, enqueue one, or act on selected tasks."

    def add_actions(self, add: AddAction) -> None:
        listing = add("list", "List tasks, newest first")
        add_filters(listing)
        listing.add_argument(
            "--limit", type=int, default=50, help="Maximum number of tasks (default 50)"
        )
        add_json(listing, "array")
        for name, says in (
            ("show", "Show one task, its diagnosis and its attempts"),
            ("explain", "Explain the state of one task"),
            ("trace", "Print what is recorded of one task, event by event"),
        ):
            one = add(name, says)
            one.add_argument("id", type=key_of, metavar="ID", help="ID of the task: 17 or task:17")
            add_json(one)
        add_enqueue(add("enqueue", "Enqueue one task"))
        add_verb(add("retry", "Make failed and cancelled tasks ready again"))
        add_verb(
            add("cancel", "Cancel tasks; running ones are asked to stop"),
            required=True,
            help="Reason, stored with the tasks and in the audit",
        )
        add_verb(add("discard", "Delete tasks that have ended"))
        keys = add("reconcile", "List keys of enqueues and of once that need someone to look")
        keys.add_argument(
            "--since",
            type=duration,
            default=7 * 86_400.0,
            metavar="DURATION",
            help="Only keys of this time: 90, 10m, 1h30m, 7d (default 7d)",
        )
        keys.add_argument("--json", action="store_true", help="Print all keys, as a JSON array")
        settle = add("settle", "Give a key of once a result, in place of work that was left")
        settle.add_argument("key", metavar="KEY", help="The key, as once got it")
        settle.add_argument("--result", required=True, metavar="JSON", help="The result")
        add_operator(settle, required=True)
        reschedule = add("reschedule", "Move waiting tasks to another queue, time or priority")
        add_verb(reschedule)
        reschedule.add_argument("--to-queue", metavar="NAME", help="Target queue")
        reschedule.add_argument("--priority", type=int, help="New priority: higher goes first")
        add_time(reschedule)
        workers.Command().add_subcommands(
            add("workers", "List workers or check one, as the command workers does"),
            "workers_action",
        )
        files = add("monitoring", "Print the Prometheus alerts or the Grafana dashboard")
        files.add_argument("file", choices=("alerts", "dashboard"))
        files.add_argument(
            "--runbook", default=monitoring.RUNBOOK, help="Base URL of the runbook pages"
        )
        runbook = add("runbook", "Print a page of the runbook, or the list of them")
        runbook.add_argument(
            "name", nargs="?", default="index", metavar="NAME", help="Page, or alert"
        )

    def execute(self, *args: Any, **options: Any) -> str | None:
        # Files of the package are printed without a database.
        self.requires_migrations_checks = options["action"] not in ("monitoring", "runbook")
        return super().execute(*args, **options)

    def handle(self, **options: Any) -> None:
        if options["action"] in DONE:
            self._act(options["action"], options)
        else:
            super().handle(**options)

    def _monitoring(self, options: dict[str, Any]) -> None:
        if options["file"] == "alerts":
            self.stdout.write(monitoring.alerts(options["runbook"]))
        else:
            self.stdout.write(monitoring.dashboard())

    def _runbook(self, options: dict[str, Any]) -> None:
        try:
            self.stdout.write(monitoring.runbook_page(options["name"]))
        except LookupError as error:
            near = suggestion(options["name"], monitoring.runbook_names())
            text = f"The runbook has no page {options['name']!r}. {near}"
            raise CommandError(text, returncode=2) from error

    def _workers(self, options: dict[str, Any]) -> None:
        command = workers.Command(self.stdout, self.stderr)  # type: ignore[arg-type]
        command.handle(**options | {"action": options["workers_action"]})

    # Looking

    def _list(self, options: dict[str, Any]) -> None:
        if options["limit"] < 1:
            raise CommandError("--limit must be at least 1.")
        tasks = list(chosen_by(options).order_by("-pk")[: options["limit"]])
        at = now()
        head = ("ID", "STATE", "NAME", "QUEUE", "ATTEMPTS", "WHEN", "HOLDER", "ARGUMENTS")
        table = [head, *(columns_of(task, at) for task in tasks)]
        none = "No task matches." if any(options[each] for each in FILTERS) else "No tasks."
        self.print_list(options, [facts_of(task) for task in tasks], table, none)

    def _show(self, options: dict[str, Any]) -> None:
        task = find(options["id"])
        diagnosis = explain(task)
        attempts = list(task.attempt_set.using(task._state.db))
        if options["json"]:
            explained = diagnosis.as_json()
            more = {name: masked(getattr(task, name)) for name in ("task_data", "task_output")}
            history = [facts_of_attempt(attempt) for attempt in attempts]
            self.stdout.write(
                as_json(facts_of(task) | more | {"diagnosis": explained, "history": history})
            )
            return
        self.stdout.write(f"task:{task.pk} {plain(task.name)}: {plain(diagnosis.headline)}")
        self.stdout.write(f"{plain(diagnosis.next)} ({diagnosis.code}, {diagnosis.severity})")
        facts = {name: shown(value) for name, value in facts_of(task).items()}
        facts["task_data"] = json.dumps(masked(task.task_data))
        if task.status == TaskStatus.SUCCEEDED:
            facts["task_output"] = json.dumps(masked(task.task_output))
        self.stdout.write(as_table([(name, value) for name, value in facts.items() if value]))
        if attempts:
            self.stdout.write("")
            self.stdout.write(as_table([columns_of_attempt(attempt) for attempt in attempts]))

    def _explain(self, options: dict[str, Any]) -> None:
        task = find(options["id"])
        diagnosis = explain(task)
        if options["json"]:
            self.stdout.write(as_json({"id": task.pk} | diagnosis.as_json()))
            return
        self.stdout.write(f"task:{task.pk} {plain(task.name)}: {diagnosis.code}")
        *answers, _ = diagnosis.answers
        named = [question for question, _ in answers]
        facts = [fact for fact in diagnosis.facts if fact[0] not in named]
        self.stdout.write(as_table([*answers, *facts]))
        for action in diagnosis.actions:
            self.stdout.write(f"{action.label}: {action.consequence}")

    def _trace(self, options: dict[str, Any]) -> None:
        task = find(options["id"])
        events = read_trace(task, with_actions=True)
        head = ("TIME", "AFTER", "EVENT", "ATTEMPT", "HOLDER", "TOKEN", "")
        table = [head, *(columns_of_event(event, task.created_at) for event in events)]
        text = f"task:{task.pk} {plain(task.name)}: {plain(diagnose(task).headline)}\n"
        self.print_result(
            options,
            {"id": task.pk, "events": [asdict(event) for event in events]},
            text + as_table(table),
        )

    def _reconcile(self, options: dict[str, Any]) -> None:
        since = options["since"]
        try:
            # Of no time there are no findings.
            moment = now() - timedelta(seconds=since) if since > 0 else None
        except (OverflowError, ValueError):  # such as inf
            moment = None
        if moment is None:
            raise CommandError(f"--since is out of bounds: {since} s.")
        found: list[Any] = []
        total = 0

        def read() -> Iterator[Sequence[Any]]:
            nonlocal total
            for rows in (enqueued(), done_once()):
                for chunk in chunks_of(rows.filter(moment__gte=moment)):
                    total += len(chunk)
                    found.extend(row for row in chunk if row.finding)
                    yield chunk

        if options["json"]:
            for part in json_parts(read(), KEYS):
                self.stdout.write(part, ending="")
        else:
            deque(read(), maxlen=0)
            head = tuple(column.name.upper() for column in KEYS)
            table = [tuple(shown(column.read(row)) for column in KEYS) for row in found]
            self.stdout.write(
                as_table([head, *table]) if found else f"{plural(total, 'key')}, nothing found."
            )
        if found:
            by_kind = Counter(row.finding.replace("_", " ") for row in found)
            said = ", ".join(f"{count} {kind}" for kind, count in sorted(by_kind.items()))
            raise CommandError(
                f"{plural(len(found), 'finding')} in {plural(total, 'key')}: {said}."
            )

    # Acting

    def _settle(self, options: dict[str, Any]) -> None:
        key = options["key"]
        try:
            result = json.loads(options["result"])
        except (ValueError, RecursionError) as error:
            raise CommandError(f"--result is not valid JSON: {error}.") from error
        rows = OnceKey.objects.home()
        row = rows.filter(key=key).first()
        if row is None:
            task = Task.objects.home().filter(idempotency_key=key).first()
            if task is not None:
                raise CommandError(
                    f"{plain(key)} is the key of the enqueue of task:{task.pk}, not of once: retry "
                    "that task or cancel it."
                )
            raise CommandError(f"There is no key {plain(key)} of once.")
        outcome = perform(SETTLE, rows, [row.pk], options, {"result": result})
        if not outcome.changed:
            raise CommandError(f"Nothing to settle: {plain(key)} is {outcome.reasons[2:]}.")
        self.print_result(options, {"settled": 1, "key": key}, f"Settled {plain(key)}.")

    def _enqueue(self, options: dict[str, Any]) -> None:
        data = data_of(options["data"])
        start = start_of(options)
        with refusing(), transaction.atomic(using=leasing_settings.DATABASE):
            task = Task.objects.enqueue(
                options["name"],
                data,
                queue=options["queue"],
                priority=options["priority"],
                scheduled_at=start,
                unique_key=options["unique_key"],
            )
            audit.record(
                operator(options),
                "enqueue",
                Task,
                keys=[task.pk],
                changed=int(not task.is_duplicate),
                reason=options["reason"],
                via="command",
            )
        is_duplicate, task = task.is_duplicate, find(task.pk)
        if is_duplicate:
            text = f"Nothing enqueued: task:{task.pk} has this unique key"
        else:
            text = f"task:{task.pk} enqueued in {plain(task.queue)}"
        text = f"{text}\n{plain(diagnose(task).headline)}"
        self.print_result(options, facts_of(task) | {"is_duplicate": is_duplicate}, text)

    def _act(self, action: str, options: dict[str, Any]) -> None:
        tasks = chosen_by(options)
        with refusing():
            if options["ids"]:
                self._act_on_some(action, tasks, options)
            else:
                refuse_unasked(action, tasks, options)
                self._act_on_all(action, tasks, options)

    def _act_on_some(self, action: str, tasks: TaskQuerySet, options: dict[str, Any]) -> None:
        said = details_of(action, options)
        every = Task.objects.home().filter(pk__in=options["ids"])
        there, chosen = (set(rows.values_list("pk", flat=True)) for rows in (every, tasks))
        if chosen:
            outcome = perform(ACTIONS[action], tasks, chosen, options, said)
            if others := len(there - chosen):
                outcome.skipped["not matching the filters"] = others
            self.print_result(options, *report(outcome, "task", DONE[action]))
        if missing := sorted(set(options["ids"]) - there):
            raise CommandError(f"There is no {', '.join(f'task:{key}' for key in missing)}.")
        if not chosen:
            raise CommandError("No task matches.")

    def _act_on_all(self, action: str, tasks: TaskQuerySet, options: dict[str, Any]) -> None:
        """Act on all tasks that match, however many: the verbs work in batches."""
        said = details_of(action, options)
        target = {"to_queue": said.get("queue"), "scheduled_at": said.get("scheduled_at")}
        target["priority"] = said.get("priority")
        filters = {each: options[each] for each in FILTERS if options[each]}
        with audit.recording(
            operator(options),
            action,
            Task,
            filter=filters | {key: value for key, value in target.items() if value is not None},
            reason=options["reason"],
            via="command",
        ) as act:
            form = {"reason": options["reason"], **said}
            act.changed = ACTIONS[action].apply(tasks, form, act.by)
        self.print_result(
            options, {DONE[action]: act.changed}, f"{plural(act.changed, 'task')} {DONE[action]}"
        )
