"""Addresses of the pages about leases."""

from __future__ import annotations

from django.contrib.auth.views import LogoutView
from django.urls import path, re_path

from leasing.views import audit, lease, lists, metrics, stores
from leasing.views.login import Login
from leasing.web import navigation

app_name = "leasing"

navigation.add(
    navigation.Entry(90, "leasing:audit", "Audit", "ledger", "leasing.view_auditentry"),
    navigation.Entry(
        40,
        "leasing:list",
        "Leases",
        "key",
        "leasing.view_lease",
        ("leasing:detail", "leasing:revoke", "leasing:settle", "leasing:stores"),
    ),
)

urlpatterns = [
    path("login/", Login.as_view(), name="login"),
    path("logout/", LogoutView.as_view(next_page="leasing:login"), name="logout"),
    path("metrics", metrics.metrics, name="metrics"),
    path("audit/", audit.audit_list, name="audit"),
    re_path(r"^audit\.(?P<form>csv|json)$", audit.audit_export, name="export_audit"),
    path("leases/", lists.lease_list, name="list"),
    re_path(r"^leases\.(?P<form>csv|json)$", lists.lease_export, name="export"),
    path("stores/", stores.store_list, name="stores"),
    path("leases/<str:lease_id>/events.<str:form>", lease.event_export, name="export_events"),
    path("leases/<str:lease_id>/", lease.lease_detail, name="detail"),
    path("leases/<str:lease_id>/revoke/", lease.revoke, name="revoke"),
    path("leases/<str:lease_id>/settle/", lease.settle, name="settle"),
]
