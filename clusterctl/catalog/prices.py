"""Prices of EC2 with their dates, for when AWS cannot be asked."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars per hour in us-east-1 (disks: per GiB and month); where and when it was read."""

    dollars: float
    source: str
    date: str


PRICE_REGION = "us-east-1"

_LIST = (
    "https://github.com/aws/karpenter-provider-aws/blob/031e72b6099630e960dacb88b48a7e9bb780945f/"
    "pkg/providers/pricing/zz_generated.pricing_aws.go"
)  # AWS's own project, generated from AWS's price list
_LESSON = "https://github.com/ChiefGyk3D/Clouds-Against-Humanity/wiki/Provider-AWS-Cost-Lesson"
_NAT = "https://github.com/chime/terraform-aws-alternat"

PRICES = {
    **{
        kind: Price(dollars, _LIST, "2026-01-19")
        for kind, dollars in {
            "c7i.xlarge": 0.1785,
            "t3.micro": 0.0104,
            "t3.small": 0.0208,
            "t3.medium": 0.0416,
            "t3.large": 0.0832,
            "t3.xlarge": 0.1664,
            "g4dn.xlarge": 0.526,
            "g4dn.2xlarge": 0.752,
            "g4dn.4xlarge": 1.204,
            "g4dn.8xlarge": 2.176,
            "g4dn.12xlarge": 3.912,
            "g4dn.16xlarge": 4.352,
            "g4ad.xlarge": 0.37853,
            "g4ad.2xlarge": 0.54117,
            "g4ad.4xlarge": 0.867,
            "g4ad.8xlarge": 1.734,
            "g4ad.16xlarge": 3.468,
            "g5.xlarge": 1.006,
            "g5.2xlarge": 1.212,
            "g5.4xlarge": 1.624,
            "g5.8xlarge": 2.448,
            "g5.12xlarge": 5.672,
            "g5.16xlarge": 4.096,
            "g5.24xlarge": 8.144,
            "g5.48xlarge": 16.288,
            "g6.xlarge": 0.8048,
            "g6.2xlarge": 0.9776,
            "g6.4xlarge": 1.3232,
            "g6.8xlarge": 2.0144,
            "g6.12xlarge": 4.6016,
            "g6.16xlarge": 3.3968,
            "g6.24xlarge": 6.6752,
            "g6.48xlarge": 13.3504,
            "p4d.24xlarge": 21.957642,
            "p5.48xlarge": 55.04,
            "p5en.48xlarge": 63.296,
        }.items()
    },
    "gp3 GiB-month": Price(0.08, _LESSON, "2026-10-16"),
    "public IPv4": Price(0.005, _LESSON, "2026-10-16"),
    "NAT gateway": Price(0.045, _NAT, "2026-11-23"),
    "GB through a NAT gateway": Price(0.045, _NAT, "2026-11-23"),
}
"""On-demand Linux, disks and addresses, for when the pricing API cannot be asked. What is not here
is shown as `?`."""
