"""The generator of tasks: whether it is to run."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import F, Q

from leasing.db.routing import RoutedManager
from leasing.fencing import FencedModel
from leasing.functions import DbNow


class GeneratorDesiredState(FencedModel):
    """The one row with the desired state of the generator, and the revision that one observed. Its
    fence refuses a generator that another has replaced."""

    id = models.PositiveSmallIntegerField(primary_key=True, default=1, editable=False)
    wanted = models.BooleanField(default=False)
    #: Rises with each start and stop.
    revision = models.PositiveIntegerField(default=0)
    changed_by = models.CharField(max_length=200, blank=True, default="")
    changed_at = models.DateTimeField(db_default=DbNow())
    reason = models.CharField(max_length=500, blank=True, default="")
    #: The latest revision that the generator has seen, and which process that was.
    acknowledged_revision = models.PositiveIntegerField(default=0)
    acknowledged_by = models.CharField(max_length=200, blank=True, default="")
    acknowledged_at = models.DateTimeField(null=True, default=None)

    objects: ClassVar = RoutedManager()  # type: ignore[assignment]

    class Meta:
        base_manager_name = "objects"
        verbose_name = "desired generator state"
        permissions: ClassVar = [("control_generator", "Can start and stop the generator")]
        constraints: ClassVar = [
            models.CheckConstraint(name="leasing_tasks_generator_single", condition=Q(id=1)),
            models.CheckConstraint(
                name="leasing_tasks_generator_acked",
                condition=Q(acknowledged_revision__lte=F("revision")),
            ),
        ]

    def __str__(self) -> str:
        return "started" if self.wanted else "stopped"
