"""Addresses of the pages about leases."""

from __future__ import annotations

from django.urls import path

from leasing import list_views, navigation, views

app_name = "leasing"

navigation.add(
    navigation.Entry(
        40,
        "leasing:list",
        "Leases",
        "key",
        "leasing.view_lease",
        ("leasing:detail", "leasing:revoke"),
    )
)

urlpatterns = [
    path("leases/", list_views.lease_list, name="list"),
    path("leases/<str:lease_id>/", views.lease_detail, name="detail"),
    path("leases/<str:lease_id>/revoke/", views.revoke, name="revoke"),
]
