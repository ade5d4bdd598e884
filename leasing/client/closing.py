"""Clients close their connections at the end of a block."""

from __future__ import annotations

from typing import Self

from leasing.client.transport import AsyncTransport, Transport


class Client:
    """A client for threads."""

    transport: Transport

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.transport.url}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self.transport.close()


class AsyncClient:
    """A client for coroutines."""

    transport: AsyncTransport

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.transport.url}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        await self.transport.aclose()
