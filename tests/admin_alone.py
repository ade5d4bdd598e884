"""Addresses of a site that has Django's admin, and no page of ours."""

from django.contrib import admin
from django.urls import path

urlpatterns = [path("admin/", admin.site.urls)]
