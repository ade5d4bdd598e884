"""Addresses of a site that has its pages in other places."""

from __future__ import annotations

from django.contrib import admin
from django.urls import include, path

from project import views

urlpatterns = [
    path("harbour/office/leases-of/", include("leasing.urls")),
    path("harbour/office/tasks-of/", include("tasks.urls")),
    path("harbour/demo/crash/", views.crash, name="demo_crash"),
    path("harbour/demo/crash-child/", views.crash_child, name="demo_crash_child"),
    path("harbour/demo/freeze/", views.freeze, name="demo_freeze"),
    path("harbour/admin/", admin.site.urls),
]
