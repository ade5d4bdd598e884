"""Mutants that no test can tell from the original, each with the reason."""

from __future__ import annotations

EXPLAINED: dict[str, str] = {
    "leasing.db.sql.TOLD: >= in `ASE WHEN w.wanted_until > {now} THEN pg_notify('{`": (
        "One notification more, in the microsecond in which the last who waits gives up."
    ),
    "leasing.models.lease.LeaseQuerySet._announce_free:"
    " lease.wanted_until >= lease.released_at for lease.wanted_until > lease.released_at": (
        "One notification more, in the microsecond in which the last who waits gives up."
    ),
    "tasks.fleet.hand_back.hand_back: without .running()": (
        "What has ended has no deadline ahead, and both verbs look: this is for the index."
    ),
    "tasks.querysets.base.TaskRows.prunable:"
    " unique_until__lt=DbNow() for unique_until__lte=DbNow()": (
        "A task is pruned a microsecond later."
    ),
    "tasks.querysets.duplicates._with_a_key_of: without _connector=Q.OR in .Q": (
        "A look that saves an insert in vain, which the constraints of the keys refuse."
    ),
    "tasks.querysets.claim_key.ClaimKeyQuerySet.remember:"
    " answered_at__lt=after(-REMEMBERED_FOR) for answered_at__lte=after(-REMEMBERED_FOR)": (
        "A key is forgotten a microsecond later."
    ),
    "tasks.querysets.outbox.OutboxQuerySet.discard:"
    " without the lock of unprotected(rows).order_by('pk')": (
        "Where no other table refers to messages, Django deletes by the condition itself."
    ),
    "tasks.querysets.worker.WorkerVerbs.take: are_keyed for are_keyed and seats.room": (
        "A transaction in vain: where there is no room nothing is granted."
    ),
    "tasks.querysets.relay.RelayVerbs.window: full for full and found.is_full": (
        "Another look in vain, behind the last task of the queue."
    ),
    "tasks.querysets.schedule.SlotQuerySet.prune:"
    " at__lte=DbNow() - SLOTS_KEPT_FOR for at__lt=DbNow() - SLOTS_KEPT_FOR": (
        "A slot is pruned a microsecond sooner."
    ),
    "tasks.querysets.relay.RelayVerbs.mark_published: "
    "published_at__lt=after(-timedelta(seconds=patience))"
    " for published_at__lte=after(-timedelta(seconds=patience))": (
        "A message is late one microsecond later."
    ),
    "tasks.querysets.operator.OperatorVerbs.discard: pk__gte=last for pk__gt=last": (
        "The last task of a batch is deleted: it is not found again."
    ),
    "tasks.querysets.schedule.ScheduleQuerySet._free_moment:"
    " without schedule=schedule in .filter": (
        "Where another schedule has a slot in the same microsecond, this one has the next."
    ),
    "leasing.querysets.LeasableQuerySet._locked_keys: without pk__in=keys in .filter": (
        "Of all that is read, what was locked is looked up."
    ),
    "leasing.querysets.LeasableQuerySet.was_released_by_holder: without pk=row.pk in .filter": (
        "A grant is of one row: the key is for the index."
    ),
    "tasks.querysets.base.TaskRows.ended_by_holders: without task=OuterRef('pk') in .filter": (
        "A grant is of one row: the key is for the index."
    ),
    "leasing.stores.portable.grant: without pk__in=list(before) in .filter": (
        "A grant is of one row: the keys are for the index."
    ),
    "leasing.querysets.LeasableQuerySet.raise_tokens: without released_at=None in .filter": (
        "What was released is not revoked again: it is only kept from being locked."
    ),
    "leasing.models.lease.LeaseQuerySet._refuse_if_held: graced_until >= "
    "current.now for graced_until > current.now": (
        "In the microsecond in which the grace ends, a row that somebody else has locked "
        "is refused instead of tried again."
    ),
    "leasing.models.lease.LeaseQuerySet.mark_wanted: "
    "wanted_until__lte=after(timedelta(seconds=2 * MAX_PAUSE)) for "
    "wanted_until__lt=after(timedelta(seconds=2 * MAX_PAUSE))": (
        "A mark is renewed a microsecond sooner."
    ),
    "tasks.querysets.duplicates._store_if_new: _with_a_key_of(rows, new).exists() for "
    "connection.features.has_select_for_update and _with_a_key_of(rows, new).exists()": (
        "On SQLite a look that saves an insert in vain, which the constraints of the keys refuse."
    ),
    "tasks.querysets.duplicates._replace: not waiting.update(**_replacing(task, "
    "keep_time)) for present is None or not waiting.update(**_replacing(task, "
    "keep_time))": ("Where none waits, none is updated: it saves the statement."),
    "tasks.querysets.ends._store: without pk__in=keys in .filter": (
        "A grant is of one row: the keys are for the index."
    ),
    "tasks.querysets.recovery._spared: at > task.acquired_at for at >= task.acquired_at": (
        "Another is lost in the microsecond of the claim, with the process before of that name."
    ),
    "tasks.querysets.recovery._spared:"
    " without task__in=set().union(*lost_with.values()) in .filter": (
        "Of all that is counted, the tasks in question are looked up."
    ),
    "tasks.querysets.operator._gone: without pk__in=[task.pk for task in tasks] in .filter": (
        "Of all that is read, the tasks in question are looked up."
    ),
    "tasks.querysets.outbox.OutboxQuerySet.prune: published_at__lte=after(-kept) for "
    "published_at__lt=after(-kept)": ("A message is pruned a microsecond sooner."),
    "tasks.querysets.recovery.RecoveryVerbs.note_refused: without pk=row.pk in .filter": (
        "A grant is of one row: the key is for the index."
    ),
    "tasks.querysets.recovery.RecoveryVerbs._sweep_if_due: age > task_settings.SWEEP_EVERY for age "
    ">= task_settings.SWEEP_EVERY": ("A claim sweeps a moment later."),
    "tasks.querysets.recovery.take_from_holders: without `if task.status == TaskStatus.READY`": (
        "One notification more: a worker looks once in vain."
    ),
    "tasks.querysets.relay.RelayVerbs.window: "
    "published_at__lt=after(-timedelta(seconds=patience)) for "
    "published_at__lte=after(-timedelta(seconds=patience))": (
        "A message is late one microsecond later."
    ),
    "tasks.querysets.relay.RelayVerbs.window: found.is_full for full and found.is_full": (
        "Another look at the same tasks, in which nothing more is chosen."
    ),
    "tasks.querysets.relay._running_by_key: without concurrency_key__in=keys in .filter": (
        "Of all that is counted, the keys in question are looked up."
    ),
    "tasks.querysets.schedule.ScheduleQuerySet.confirm: declared_at__lte=DbNow() - "
    "CONFIRMED_EVERY for declared_at__lt=DbNow() - CONFIRMED_EVERY": (
        "A declaration is confirmed a microsecond sooner."
    ),
    "leasing.models.beat.BeatEntryQuerySet.confirm: without pk=row.pk in .filter": (
        "An id is of one message: the key is for the index."
    ),
    "tasks.querysets.schedule.ScheduleQuerySet._fill: without at__in=moments in .filter": (
        "Of all that is read, the moments in question are looked up."
    ),
    "tasks.querysets.schedule.ScheduleQuerySet.pause: without pk__in=keys in .filter": (
        "A schedule that is resumed while the others are being paused is paused with them."
    ),
    "tasks.querysets.schedule.ScheduleQuerySet._free_moment: without at__gte=at in .filter": (
        "Of all that is read, the moments from now on are looked up."
    ),
    "leasing.models.lease.LeaseQuerySet._announce_free: lease.wanted_until and "
    "lease.wanted_until > lease.released_at for lease.wanted_until and lease.released_at and "
    "(lease.wanted_until > lease.released_at)": (
        "What is announced has been released or revoked, and has released_at: this is for types."
    ),
    "leasing.models.lease.LeaseQuerySet.judge: terms.preempt_after is not None"
    " for terms.preempt_after is not None or terms.request_id is not None": (
        "What was not read with the row is read once it is asked for."
    ),
    "leasing.models.lease.LeaseQuerySet.judge: terms.request_id is not None"
    " for terms.preempt_after is not None or terms.request_id is not None": (
        "What was not read with the row is read once it is asked for."
    ),
    "tasks.querysets.worker._claimed_before: without .running()": (
        "What has ended has no deadline ahead: this is for the index."
    ),
    "leasing.models.api_token.ApiTokenQuerySet.expired:"
    " expires_at__lt=DbNow() for expires_at__lte=DbNow()": (
        "A token is listed as expired a microsecond later; what is refused is judged elsewhere."
    ),
    "tasks.querysets.worker.WorkerVerbs.checkpoint:"
    " mine.exists() for number is not None and mine.exists()": (
        "Without a number the update asks for nothing but the grant: this saves a look at the row."
    ),
    "tasks.querysets.base.TaskRows.stopped: processed_at__gt=after(-STOPPED_WITHIN)"
    " for processed_at__gte=after(-STOPPED_WITHIN)": (
        "A child stops with a parent that was cancelled a microsecond less than a day ago."
    ),
    "tasks.querysets.base.TaskRows.is_bound_by_compensation:"
    " without pk=OuterRef('parent') in .filter": (
        "The key of a compensation names the parent too: the parent's own key is for the index."
    ),
    "tasks.querysets.producer.new_tasks: concurrency_key is None"
    " for concurrency_key is None and handler.concurrency_key != ''": (
        "An empty template makes no key of any data: this saves formatting it for each task."
    ),
    "tasks.querysets.producer.new_tasks: not limited_by_data"
    " for concurrency_limit is not None and (not limited_by_data)": (
        "Without a key and a limit no columns are added: this saves the call."
    ),
}
