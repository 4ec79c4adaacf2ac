"""What AWS answers to who signs with a wrong clock.

Sources of the texts: aws/aws-cli issue 6676 and kubernetes-sigs/external-dns issue 1626 (STS, 403),
vsespb/mt-aws-glacier issue 2 (services that speak JSON), boto/boto issue 148 (EC2, behind),
aws/aws-sdk-java issue 519 (EC2, which takes it for wrong credentials).
"""

from __future__ import annotations

import time

from tests.sim.ec2.wire import DATE, ApiError, Request

MINUTES = {"sts": 15}
"""Service → by how much a signature may be off; all others: 5 minutes."""


def check(request: Request, now: float) -> None:
    """Raises what AWS, whose clock shows `now`, answers to a signature from another time."""
    minutes = MINUTES.get(request.service, 5)
    if request.signed is None or abs(request.signed - now) <= 60 * minutes:
        return
    late = request.signed < now
    if request.service == "ec2":
        if late:
            raise ApiError("RequestExpired", "Request has expired.", 400)
        text = "AWS was not able to validate the provided access credentials"
        raise ApiError("AuthFailure", text, 401)
    signed, here, edge = (
        time.strftime(DATE, time.gmtime(when))
        for when in (request.signed, now + 60 * minutes * (-1 if late else 1), now)
    )
    text = (
        f"Signature expired: {signed} is now earlier than {here} ({edge} - {minutes} min.)"
        if late
        else f"Signature not yet current: {signed} is still later than {here}"
        f" ({edge} + {minutes} min.)"
    )
    xml = request.service in ("sts", "iam")
    raise ApiError("SignatureDoesNotMatch" if xml else "InvalidSignatureException", text, 403)
