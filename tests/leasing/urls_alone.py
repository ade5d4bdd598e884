"""A site that has the pages about leases and nothing else, under a prefix of its own."""

from django.urls import include, path

urlpatterns = [path("deep/inside/", include("leasing.urls"))]
