"""The simulator as a process: `python -m tests.sim.ec2 FOLDER`.

Writes FOLDER/port when it answers. Ends when it is told to (SIGTERM, SIGINT) or when its standard
input does: then whoever started it is gone, and every machine goes too.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
import traceback
from functools import cache
from pathlib import Path
from typing import Any

from werkzeug.serving import WSGIRequestHandler, make_server

from tests.sim.ec2 import amended, gaps, images, leftovers, metering
from tests.sim.ec2.bill import Bill
from tests.sim.ec2.faults import Faults
from tests.sim.ec2.full import FullMachine
from tests.sim.ec2.light import LightHost
from tests.sim.ec2.loop import Loop
from tests.sim.ec2.server import Layer
from tests.sim.ec2.tunnels import LONGEST, Tunnels

_TURN = 0.1


class _Quiet(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_request(self, *args: Any, **kwargs: Any) -> None:
        """The calls are written down by the layer."""


class Control:
    """What tests may ask for."""

    def __init__(self, layer: Layer, loop: Loop, bill: Bill, tunnels: Tunnels) -> None:
        self._layer = layer
        self._tunnels = tunnels
        self._loop = loop
        self._bill = bill

    def __call__(self, verb: str, said: dict[str, Any]) -> object:
        return getattr(self, f"do_{verb}")(**said)

    def do_fault(self, **fault: Any) -> None:
        if fault["kind"] == "late":
            self._layer.late = self._layer.schedules.settling = fault["seconds"]
        elif fault["kind"] == "slow_end":
            self._layer.world.slow_end = fault["seconds"]
        elif fault["kind"] == "slow_gateway":
            self._layer.world.nat.slow_start = fault["seconds"]
            self._layer.world.nat.kept = bool(fault.get("kept"))
        elif fault["kind"] == "slow_endpoint":
            self._layer.world.endpoints.slow_start = fault["seconds"]
        elif fault["kind"] == "short_tunnels":
            self._tunnels.longest = fault["seconds"]
        elif fault["kind"] == "free_plan":
            self._layer.world.free_plan = True
        elif fault["kind"] == "price":
            self._layer.world.prices[fault["instance_type"]] = fault["value"]
        else:
            self._layer.faults.add(fault)

    def do_clear(self) -> None:
        self._layer.faults.clear()
        self._layer.world.slow_end = self._layer.world.nat.slow_start = 0.0
        self._layer.world.nat.kept = False
        self._layer.world.endpoints.slow_start = 0.0
        self._tunnels.longest = LONGEST
        self._layer.late = self._layer.schedules.settling = 0.0
        self._layer.world.prices.clear()
        self._layer.world.free_plan = False

    def do_cut_tunnels(self) -> int:
        """Ends all connections through endpoints, as a network does; how many there were."""
        return self._tunnels.cut()

    def do_tunnels(self) -> object:
        """The folder of the `aws` that opens connections through endpoints, and how many are."""
        return {"folder": self._tunnels.start(), "open": self._tunnels.count()}

    def do_policy(self, document: dict[str, Any] | None) -> None:
        self._layer.policy = document

    def do_calls(self) -> object:
        return self._layer.calls

    def do_forget(self) -> None:
        self._layer.calls.clear()

    def do_forget_ended(self) -> None:
        """As an hour after their end: EC2 does not show machines any more."""
        for region in gaps.regions():
            for reservation in gaps.backend(region).reservations.values():
                kept = [one for one in reservation.instances if one.state != "terminated"]
                reservation.instances[:] = kept

    def do_refill(self) -> None:
        """As if no call had been made for long: what EC2 rations may be called again."""
        self._layer.buckets.clear()

    def do_grant(self, code: str, vcpus: float) -> None:
        self._layer.world.granted[code] = vcpus

    def do_left(self) -> list[str]:
        return leftovers.everything(self._layer.world, self._layer.schedules)

    def do_schedules(self) -> object:
        """Group → instance → when it ends."""
        return {
            group.name: {name: one["at"] for name, one in group.schedules.items()}
            for group in self._layer.schedules.groups.values()
        }

    def do_group_tags(self) -> object:
        """Group of schedules → its tags."""
        return {group.name: group.tags for group in self._layer.schedules.groups.values()}

    def do_ahead(self, seconds: float) -> None:
        self._layer.schedules.ahead = seconds

    def do_machines(self) -> object:
        return {"machines": self._loop.state(), "failures": self._loop.failures}

    def do_bill(self) -> list[dict[str, Any]]:
        return self._bill.rows()

    def do_light(self) -> None:
        self._loop.build = LightHost

    def do_internet(self, ports: dict[str, int]) -> None:
        """What networks that are made from now on see of the internet: ports of this machine."""
        self._loop.ports = {int(there): here for there, here in ports.items()}

    def do_full(self, image: str, host: str, ports: dict[str, int]) -> None:
        forwarded = {int(there): here for there, here in ports.items()}
        self._loop.full(lambda order: FullMachine(order, image, host), forwarded)

    def do_reset(self) -> None:
        """Forgets everything, whatever it was; machines go with the next turn of the loop."""
        from moto.ec2.models import ec2_backends

        self.do_clear()
        for regions in ec2_backends.values():
            for region in regions.values():
                region.reset()
        world = self._layer.world
        tables = (world.placement_groups, world.spot_requests, world.launched, world.ending)
        more = (world.complete, world.granted, world.endpoints.all)
        for table in (*tables, *more):
            table.clear()
        world.saved.clear()
        self._bill.clear()
        self._layer.calls.clear()
        self._layer.buckets.clear()
        self._layer.births.clear()
        self._layer.schedules.groups.clear()
        self._layer.schedules.failed.clear()
        self._layer.schedules.ahead = 0.0


def main() -> int:
    folder = Path(sys.argv[1])
    images.write(folder / "images.json")
    os.environ["MOTO_AMIS_PATH"] = str(folder / "images.json")
    from moto.core import responses
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

    gc.freeze()  # a third of its processor time went into looking for garbage in moto's models
    gc.set_threshold(100_000)
    world, faults, bill = gaps.World(), Faults(), Bill()
    amended.install(world)
    metering.install(world, bill)
    # Each request looked through moto's folders and through all methods of a class.
    moto = DomainDispatcherApplication(create_backend_app)
    moto.get_backend_for_host = cache(moto.get_backend_for_host)
    responses.method_names_from_class = cache(responses.method_names_from_class)
    layer = Layer(moto, world, faults)
    loop = Loop(folder / "machines", world, faults, prefix="sim")
    world.saved.folder = folder
    world.saved.find_pid = lambda id: loop.state()[id]["pid"]
    layer.control = Control(layer, loop, bill, Tunnels(folder, layer, loop.connect))
    server = make_server("127.0.0.1", 0, layer, threaded=True, request_handler=_Quiet)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: over.set())
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    fresh = folder / "port.new"
    fresh.write_text(str(server.port))
    fresh.replace(folder / "port")
    try:
        while not over.is_set():
            started = time.monotonic()
            try:
                layer.schedules.fire()
                loop.turn()
            except Exception:
                traceback.print_exc()  # one bad turn, and the next may be good
            over.wait(max(0.0, _TURN - (time.monotonic() - started)))
    finally:
        loop.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
