"""A real Grid Engine: qmaster and two execd, on hosts of ours."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from tests.conftest import require
from tests.sim.batch import NODES, Batch
from tests.sim.machines import until

SLOTS = 4
"""Per node, whatever this machine has."""

_ROOT = Path("/var/lib/gridengine")
_SHARE = Path("/usr/share/gridengine")
_BOOTSTRAP = """\
Version: 6.2
admin_user              none
default_domain          none
ignore_fqdn             false
spooling_method         berkeleydb
spooling_lib            libspoolb
spooling_params         /var/spool/gridengine/spooldb
binary_path             /usr/sbin
qmaster_spool_dir       /var/spool/gridengine/qmaster
security_mode           none
listener_threads        2
worker_threads          2
scheduler_threads       1
"""
_PE = """\
pe_name            {name}
slots              99
user_lists         NONE
xuser_lists        NONE
start_proc_args    NONE
stop_proc_args     NONE
allocation_rule    {rule}
control_slaves     TRUE
job_is_first_task  FALSE
urgency_slots      min
accounting_summary FALSE
qsort_args         NONE
"""


class Sge(Batch):
    """`mpi` (round robin) and `fill` are the parallel environments, `main.q` is the queue."""

    programs = ("sge_qmaster", "sge_execd", "qsub", "qrsh", "qconf", "ip", "unshare", "sshd", "ss")

    def _start(self) -> None:
        cell, spool = self.folder / "cell", self.folder / "spool"
        (cell / "common").mkdir(parents=True)
        for name in ("qmaster/job_scripts", "spooldb", "execd"):
            (spool / name).mkdir(parents=True)
        (cell / "common" / "bootstrap").write_text(_BOOTSTRAP)
        (cell / "common" / "act_qmaster").write_text("login\n")
        conf = (_SHARE / "default-configuration").read_text()
        conf = re.sub(r"(min_[ug]id\s+)\d+", r"\g<1>0", conf)
        conf = re.sub(r"(load_report_time\s+)\S+", r"\g<1>00:00:02", conf)
        conf = re.sub(r"(reporting_params.*flush_time=)\S+", r"\g<1>00:00:01", conf)
        (self.folder / "configuration").write_text(conf)
        self.machines.start(["login", *NODES])
        mounts = [
            (cell, str(_ROOT / "default")),
            (spool, "/var/spool/gridengine"),
            (self.folder / "configuration", str(_SHARE / "default-configuration")),
            (self.machines.shared_home(), "/etc/passwd"),
        ]
        self.machines.ready(dict.fromkeys(self.machines.hosts, mounts))
        login = self.login
        init = str(_SHARE / "scripts" / "init_cluster")
        login.run(init, str(_ROOT), "default", "/var/spool/gridengine/spooldb", "root")
        for machine in self.machines.hosts.values():
            machine.run("mkdir", "-p", "/run/gridengine")
        foreground = {"SGE_ND": "1", "SGE_ROOT": str(_ROOT), "SGE_CELL": "default"}
        login.daemon(require("sge_qmaster"), env=foreground)
        until(lambda: "login" in login.run("qconf", "-sh", check=False), 60, "no qmaster")
        login.run("qconf", "-as", "login")
        for name in NODES:
            login.run("qconf", "-ah", name)
            self.machines.hosts[name].daemon(require("sge_execd"), env=foreground)
        until(self._registered, 60, "no execd")
        self._configure()
        until(self._open, 60, f"the queue did not open: {login.run('qstat', '-f')}")

    def _registered(self) -> bool:
        return set(NODES) <= set(self.login.run("qconf", "-sel", check=False).split())

    def _configure(self) -> None:
        def file(name: str, text: str) -> str:
            path = self.folder / name
            path.write_text(text)
            return str(path)

        login = self.login
        login.run("qconf", "-Ap", file("mpi", _PE.format(name="mpi", rule="$round_robin")))
        login.run("qconf", "-Ap", file("fill", _PE.format(name="fill", rule="$fill_up")))
        group = f"group_name @allhosts\nhostlist {' '.join(NODES)}\n"
        login.run("qconf", "-Ahgrp", file("hosts.group", group))
        scheduler = login.run("qconf", "-ssconf")
        for name, value in (
            ("schedule_interval", "0:0:1"),
            ("flush_submit_sec", "1"),
            ("flush_finish_sec", "1"),
            ("load_adjustment_decay_time", "0:0:0"),
            ("job_load_adjustments", "NONE"),
        ):
            scheduler = re.sub(rf"(?m)^({name}\s+).*$", rf"\g<1>{value}", scheduler)
        login.run("qconf", "-Msconf", file("scheduler", scheduler))
        queue = login.run("qconf", "-sq")
        for name, value in (
            ("qname", "main.q"),
            ("hostlist", "@allhosts"),
            ("slots", str(SLOTS)),
            ("pe_list", "mpi fill"),
            ("load_thresholds", "NONE"),
            ("rerun", "FALSE"),
            ("shell", "/bin/sh"),
            ("notify", "00:00:20"),
        ):
            queue = re.sub(rf"(?m)^({name}\s+).*$", rf"\g<1>{value}", queue)
        login.run("qconf", "-Aq", file("main.q", queue))

    def _open(self) -> bool:
        said = self.login.run("qstat", "-f", check=False)
        rows = [line.split() for line in said.splitlines() if line.startswith("main.q@")]
        return len(rows) == len(NODES) and all(len(row) == 5 for row in rows)

    def stop(self) -> None:
        super().stop()
        shutil.rmtree(self.folder / "spool", ignore_errors=True)
