"""Outages, throttling and expired credentials: they strike every call for a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from tests.support.kinesis.client_errors import client_error, no_answer

if TYPE_CHECKING:
    from tests.provers.simulation.job.process_run import ProcessRun
    from tests.provers.simulation.kinesis.service.service_state import ServiceState

__all__ = ("Outages",)


@final
class Outages:
    """Say what every call meets: an outage, a throttle, credentials that are too old.

    Args:
        state: The state of the service.
    """

    def __init__(self, state: ServiceState) -> None:
        self._state = state
        self._credentials = 0
        self._down_until = 0.0
        self._throttled_until = 0.0
        self._throttle = ""

    def go_down(self, seconds: float) -> None:
        """Give no answer for some seconds."""
        self._down_until = max(self._down_until, self._state.now + seconds)

    def throttle(self, code: str, seconds: float) -> None:
        """Refuse every call for some seconds.

        Args:
            code: With which error.
            seconds: For how long.
        """
        self._throttle, self._throttled_until = code, self._state.now + seconds

    def pass_by(self) -> None:
        """Let an outage and a throttle be over."""
        self._down_until = self._throttled_until = 0.0

    def rotate(self) -> None:
        """Let the credentials that are in use expire."""
        self._credentials += 1

    def give_credentials(self, run: ProcessRun) -> None:
        """Let a process have the newest credentials."""
        run.credentials = self._credentials

    def check(self, run: ProcessRun, action: str) -> None:
        """Let a call of a process pass.

        A process in which not everything has worked once has new credentials anyway: it takes a
        refusal for a mistake in its setup.

        Args:
            run: The process that calls.
            action: The name of the call.

        Raises:
            ClientError: It is refused.
            BotoCoreError: There is no answer.
        """
        if not run.settled:
            self.give_credentials(run)
        refusal = self._refusal(run, action)
        if refusal is not None:
            run.hindered = True
            raise refusal

    def _refusal(self, run: ProcessRun, action: str) -> Exception | None:
        refusal = ""
        now = self._state.now
        if now < self._down_until:
            return no_answer(self._state.random)
        if run.credentials < self._credentials:
            refusal = "ExpiredTokenException"
        elif now < self._throttled_until:
            refusal = self._throttle
        error: Exception | None = client_error(refusal, action) if refusal else None
        return error
