"""Send the header of SECURE_CSP on Django 5.2, as ContentSecurityPolicyMiddleware of Django 6
does."""

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.utils.deprecation import MiddlewareMixin

HEADER = "Content-Security-Policy"


class ContentSecurityPolicyMiddleware(MiddlewareMixin):
    """Send the policy of ``SECURE_CSP`` with every response that has none of its own."""

    def process_response(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:
        policy = "; ".join(
            f"{directive} {' '.join(sources)}" for directive, sources in settings.SECURE_CSP.items()
        )
        response.headers.setdefault(HEADER, policy)
        return response
