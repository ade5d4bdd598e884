"""Addresses of the demo site."""

from django.contrib import admin
from django.contrib.auth.views import LoginView, LogoutView
from django.urls import include, path
from django.views.generic import TemplateView

from leasing.api import LeasingAPI, bad_request
from leasing.api import router as leasing_router
from project import views
from tasks.api import router as tasks_router

api = LeasingAPI(urls_namespace="api")
api.add_router("", leasing_router)
api.add_router("", tasks_router)

handler400 = bad_request  # a wrong Host is answered in JSON below /api/
urlpatterns = [
    path("", TemplateView.as_view(template_name="home.html"), name="home"),
    path("ops/demo/crash/", views.crash, name="demo_crash"),
    path("ops/demo/crash-child/", views.crash_child, name="demo_crash_child"),
    path("ops/demo/freeze/", views.freeze, name="demo_freeze"),
    path("ops/", include("leasing.urls")),
    path("ops/", include("tasks.urls")),
    path("api/", api.urls),
    path("admin/", admin.site.urls),
    path("login/", LoginView.as_view(), name="login"),
    path("logout/", LogoutView.as_view(), name="logout"),
]
