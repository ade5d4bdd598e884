"""Addresses of the pages about leases."""

from __future__ import annotations

from django.urls import path, re_path

from leasing import audit_views, list_views, metrics_views, navigation, views

app_name = "leasing"

navigation.add(
    navigation.Entry(90, "leasing:audit", "Audit", "ledger", "leasing.view_auditentry"),
    navigation.Entry(
        40,
        "leasing:list",
        "Leases",
        "key",
        "leasing.view_lease",
        ("leasing:detail", "leasing:revoke"),
    ),
)

urlpatterns = [
    path("metrics", metrics_views.metrics, name="metrics"),
    path("audit/", audit_views.audit_list, name="audit"),
    re_path(r"^audit\.(?P<form>csv|json)$", audit_views.audit_export, name="export_audit"),
    path("leases/", list_views.lease_list, name="list"),
    re_path(r"^leases\.(?P<form>csv|json)$", list_views.lease_export, name="export"),
    path("leases/<str:lease_id>/events.<str:form>", views.event_export, name="export_events"),
    path("leases/<str:lease_id>/", views.lease_detail, name="detail"),
    path("leases/<str:lease_id>/revoke/", views.revoke, name="revoke"),
]
