"""Prices and quotas: the two services that moto lacks.

The numbers are made for tests: near the real ones, and recognisable.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from clusterctl.core.text import read_toml
from tests.sim.ec2.wire import Answer, ApiError, Request, document

TABLES = read_toml(Path(__file__).with_name("market.toml"))
PRICES = TABLES["prices"]

DISKS = {"gp3": 0.08, "gp2": 0.10}  # USD for a GiB and month
ADDRESS = 0.005  # USD an hour for a public IPv4 address
NAT = {"NatGateway-Hours": ("Hrs", 0.045), "NatGateway-Bytes": ("GB", 0.046)}  # USD
TRAFFIC = 0.09  # USD for a GB to the internet

QUOTAS = TABLES["quotas"]

LOCATIONS = TABLES["locations"]
_PREFIXES = TABLES["prefixes"]


Changed = Mapping[str, float | None]
"""Prices on demand in us-east-1 that differ from the usual ones; None: nobody says it."""


def _more(region: str) -> float:
    return 1.0 if region == "us-east-1" else 1.1


def on_demand(kind: str, region: str, changed: Changed) -> float | None:
    """USD an hour of a type, as its price list has it."""
    price = {**PRICES, **changed}.get(kind)
    return None if price is None else round(price * _more(region), 10)


def spot(kind: str, zone: int, changed: Changed) -> float | None:
    """USD an hour: of the price on demand, in every zone a little more than in the one before."""
    price = {**PRICES, **changed}.get(kind)
    return None if price is None else round(price * (0.30 + 0.01 * zone), 6)


def disk(kind: str, region: str) -> float:
    """USD for a GiB and month."""
    return round(DISKS[kind] * _more(region), 10)


def faster(throughput: int, region: str) -> float:
    """USD a month for what a gp3 disk has beyond its own 125 MB/s: $0.04 each ("Amazon EBS
    pricing")."""
    return round(max(0, throughput - 125) * 0.04 * _more(region), 10)


def quota_code(instance_type: str, spot: bool) -> str:
    """The quota that instances of this type count against."""
    if instance_type.startswith(("g", "vt")):
        return "L-3819A6DF" if spot else "L-DB2E81BA"
    if instance_type.startswith("p5") and spot:
        return "L-C4BD4855"
    if instance_type.startswith("p"):
        return "L-7212CCBC" if spot else "L-417A185B"
    return "L-34B43A08" if spot else "L-1216C47A"


def service_quotas(request: Request, granted: Mapping[str, float]) -> Answer | None:
    if request.action != "GetServiceQuota":
        return None
    service, code = request.parameters["ServiceCode"], str(request.parameters["QuotaCode"])
    if service != "ec2" or code not in QUOTAS:
        raise ApiError("NoSuchResourceException", "The request failed because it is unknown")
    name, value = QUOTAS[code]
    quota = {
        "ServiceCode": service,
        "QuotaCode": code,
        "QuotaName": name,
        "Value": granted.get(code, value),
        "Unit": "None",
        "Adjustable": True,
    }
    return document({"Quota": quota})


def pricing(request: Request, changed: Changed) -> Answer | None:
    """GetProducts with TERM_MATCH filters over all that is known, as the real one does it."""
    if request.action != "GetProducts":
        return None
    wanted = request.parameters.get("Filters", [])
    service = request.parameters.get("ServiceCode")
    found = [
        json.dumps(product)
        for product in _products(changed)
        if product["serviceCode"] == service
        and all(_matches(product["product"], one["Field"], one["Value"]) for one in wanted)
    ]
    limit = int(request.parameters.get("MaxResults", 100))
    start = int(request.parameters.get("NextToken") or 0)
    page: dict[str, Any] = {"FormatVersion": "aws_v1", "PriceList": found[start : start + limit]}
    if start + limit < len(found):
        page["NextToken"] = str(start + limit)
    return document(page)


def _matches(product: Mapping[str, Any], name: str, value: str) -> bool:
    if name == "productFamily":
        return bool(product["productFamily"] == value)
    return str(product["attributes"].get(name, "")).lower() == value.lower()


def _products(changed: Changed) -> Iterator[dict[str, Any]]:
    for region, location in LOCATIONS.items():
        prefix = _PREFIXES.get(region, "")
        place = {"regionCode": region, "location": location, "locationType": "AWS Region"}
        for kind in {**PRICES, **changed}:
            price = on_demand(kind, region, changed)
            if price is None:
                continue
            for system, factor in (("Linux", 1.0), ("Windows", 1.35)):
                attributes = {
                    **place,
                    "servicecode": "AmazonEC2",
                    "instanceType": kind,
                    "operatingSystem": system,
                    "tenancy": "Shared",
                    "preInstalledSw": "NA",
                    "capacitystatus": "Used",
                    "marketoption": "OnDemand",
                    "licenseModel": "No License required",
                    "operation": "RunInstances" if system == "Linux" else "RunInstances:0002",
                    "usagetype": f"{prefix}BoxUsage:{kind}",
                }
                yield _product("AmazonEC2", "Compute Instance", attributes, "Hrs", price * factor)
        for kind in DISKS:
            attributes = {
                **place,
                "servicecode": "AmazonEC2",
                "volumeApiName": kind,
                "volumeType": "General Purpose",
                "usagetype": f"{prefix}EBS:VolumeUsage.{kind}",
            }
            yield _product("AmazonEC2", "Storage", attributes, "GB-Mo", disk(kind, region))
        speed = {
            **place,
            "servicecode": "AmazonEC2",
            "volumeApiName": "gp3",
            "usagetype": f"{prefix}EBS:VolumeP-Throughput.gp3",
        }
        # As AWS's list has it: of 1024.
        each = 1024 * 0.04 * _more(region)
        yield _product("AmazonEC2", "Provisioned Throughput", speed, "GiBps-mo", each)
        usage = f"{prefix}EBS:SnapshotUsage"
        copies = {**place, "servicecode": "AmazonEC2", "usagetype": usage}
        yield _product("AmazonEC2", "Storage Snapshot", copies, "GB-Mo", 0.05 * _more(region))
        address = {
            **place,
            "servicecode": "AmazonVPC",
            "group": "VPCPublicIPv4Address",
            "groupDescription": "Hourly charge for In-use Public IPv4 Addresses",
            "usagetype": f"{prefix}PublicIPv4:InUseAddress",
        }
        yield _product("AmazonVPC", "VpcPublicIPv4Address", address, "Hrs", ADDRESS)
        for usage, (unit, price) in NAT.items():
            gateway = {**place, "servicecode": "AmazonEC2", "usagetype": f"{prefix}{usage}"}
            yield _product("AmazonEC2", "NAT Gateway", gateway, unit, price * _more(region))
        traffic = {
            "servicecode": "AWSDataTransfer",
            "transferType": "AWS Outbound",
            "fromRegionCode": region,
            "fromLocation": location,
            "toLocation": "External",
            "usagetype": f"{prefix}DataTransfer-Out-Bytes",
        }
        yield _product("AWSDataTransfer", "Data Transfer", traffic, "GB", TRAFFIC * _more(region))


def _product(
    service: str, family: str, attributes: dict[str, str], unit: str, price: float
) -> dict[str, Any]:
    sku = "".join(filter(str.isalnum, attributes["usagetype"])).upper()
    sku += "".join(filter(str.isupper, attributes.get("operatingSystem", "")))
    dimension = {
        "unit": unit,
        "beginRange": "0",
        "endRange": "Inf",
        "rateCode": f"{sku}.JRTCKXETXF.6YS6EN2CT7",
        "pricePerUnit": {"USD": f"{price:.10f}"},
        "description": f"${price:g} per {unit}",
        "appliesTo": [],
    }
    offer = {
        "sku": sku,
        "offerTermCode": "JRTCKXETXF",
        "effectiveDate": "2026-05-01T00:00:00Z",
        "priceDimensions": {f"{sku}.JRTCKXETXF.6YS6EN2CT7": dimension},
        "termAttributes": {},
    }
    return {
        "product": {"sku": sku, "productFamily": family, "attributes": attributes},
        "serviceCode": service,
        "terms": {"OnDemand": {f"{sku}.JRTCKXETXF": offer}},
        "version": "20260501000000",
        "publicationDate": "2026-05-01T00:00:00Z",
    }
