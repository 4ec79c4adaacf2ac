"""Signatures by AWS's clock instead of this machine's. Loads botocore."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

from botocore.auth import SIGV4_TIMESTAMP, SigV4QueryAuth


class ShiftedQueryAuth(SigV4QueryAuth):  # type: ignore[misc]
    """botocore corrects no clock: what it signs for a minute is of no use a minute late."""

    ahead = 0.0
    """Seconds that this machine's clock is ahead of AWS's."""

    def _modify_request_before_signing(self, request: Any) -> None:
        now = datetime.now(timezone.utc) - timedelta(seconds=self.ahead)
        request.context["timestamp"] = now.strftime(SIGV4_TIMESTAMP)
        super()._modify_request_before_signing(request)
