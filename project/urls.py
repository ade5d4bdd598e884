"""Addresses of the demo site: of the lease service, the task service, or both."""

from django.conf import settings
from django.contrib import admin
from django.urls import URLPattern, URLResolver, include, path
from django.views.generic import RedirectView, TemplateView

from leasing import api as leasing_api
from project.services import LEASES, TASKS, name_of

api = leasing_api.LeasingAPI(
    urls_namespace="api", title=name_of(settings.SERVICES, both="Leases and tasks")
)
ops: list[URLPattern | URLResolver] = [path("", include("leasing.urls"))]

if LEASES in settings.SERVICES:
    api.add_router("", leasing_api.router)
else:
    # A client that acquired its leases here, and not at the lease service, would exclude nobody.
    api.add_router("", leasing_api.health_router)

if TASKS in settings.SERVICES:
    from project import views
    from tasks.api import router as tasks_router

    api.add_router("", tasks_router)
    ops = [
        path("demo/crash/", views.crash, name="demo_crash"),
        path("demo/crash-child/", views.crash_child, name="demo_crash_child"),
        path("demo/freeze/", views.freeze, name="demo_freeze"),
        *ops,
        path("", include("tasks.urls")),
    ]
else:
    ops = [path("", RedirectView.as_view(pattern_name="leasing:list")), *ops]

handler400 = leasing_api.bad_request  # a wrong Host is answered in JSON below /api/
urlpatterns = [
    path("", TemplateView.as_view(template_name="home.html"), name="home"),
    path("ops/", include(ops)),
    path("api/", api.urls),
    path("admin/", admin.site.urls),
]
