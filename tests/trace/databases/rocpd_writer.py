"""Writes rocpd databases as rocprofv3 does, of any size, with and without views."""

import json
import sqlite3
import uuid
from pathlib import Path

from rocpd_schema import TABLES
from rocpd_views import VIEWS

NODE, GPU_AGENTS = 1432518515, (4, 5)
CATEGORIES = ("KERNEL_DISPATCH", "MEMORY_COPY", "MEMORY_ALLOCATION", "SCRATCH_MEMORY")


class Writer:
    """One process's tables in a database; several in one file are what `rocpd merge` leaves."""

    def __init__(self, path, *, pid=1000, views=True, environment="{}", command="python train.py", guid=None, gpus=2):
        self.pid = pid
        self.guid = guid or str(uuid.UUID(int=(pid << 96) | 0x7000_8000_0000_0000_0000 | pid))
        self.suffix = "_" + self.guid.replace("-", "_")
        self.path = Path(path)
        self.db = sqlite3.connect(path)
        self.db.execute("PRAGMA synchronous = OFF")
        self.db.execute("PRAGMA journal_mode = OFF")
        self.strings: dict[str, int] = {}
        self.next: dict[str, int] = {}
        for name, columns in TABLES.items():
            self.db.execute(f"CREATE TABLE `rocpd_{name}{self.suffix}` ({columns.replace('@guid@', self.guid)})")
        if views:
            for name in TABLES:
                self.db.execute(f"CREATE VIEW `rocpd_{name}` AS SELECT * FROM `rocpd_{name}{self.suffix}`")
            for name, select in VIEWS.items():
                self.db.execute(f"CREATE VIEW `{name}` AS {select}")
        for tag, value in (("schema_version", "3"), ("uuid", self.suffix), ("guid", self.guid)):
            self.insert("metadata", tag=tag, value=value)
        self.string("")
        self.insert("info_node", id=NODE, hash=NODE, machine_id="0" * 32, system_name="Linux", hostname="node0")
        self.insert(
            "info_process", id=pid, nid=NODE, ppid=1, pid=pid, start=1, end=2, command=command, environment=environment
        )
        self.insert("info_thread", id=pid, nid=NODE, ppid=1, pid=pid, tid=pid)
        self.agent(0, "CPU", 0)
        for position, agent in enumerate(GPU_AGENTS[:gpus]):
            self.agent(agent, "GPU", position)
        for number in (0, 1):
            self.insert("info_queue", id=number, nid=NODE, pid=pid, name=f"Queue {number}")
            self.insert("info_stream", id=number, nid=NODE, pid=pid, name=f"Stream {number}")
        self.insert("info_code_object", id=1, nid=NODE, pid=pid, agent_id=GPU_AGENTS[0], uri="memory://1")
        self.kernels: dict[str, int] = {}

    def agent(self, number, kind, position):
        self.insert(
            "info_agent", id=number, nid=NODE, pid=self.pid, type=kind, absolute_index=number, logical_index=number,
            type_index=position, name="gfx942" if kind == "GPU" else "AMD EPYC", product_name="AMD Instinct MI300X",
            extdata='{"cu_count": 304, "wave_front_size": 64}',
        )  # fmt: skip

    def insert(self, table, **values):
        if "id" not in values:
            values["id"] = self.next.get(table, 0) + 1
        self.next[table] = max(values["id"], self.next.get(table, 0))
        names = ", ".join(f'"{name}"' for name in values)
        marks = ", ".join("?" * len(values))
        self.db.execute(f"INSERT INTO `rocpd_{table}{self.suffix}` ({names}) VALUES ({marks})", list(values.values()))
        return values["id"]

    def string(self, text):
        if text not in self.strings:
            self.strings[text] = self.insert("string", string=text)
        return self.strings[text]

    def kernel(self, name):
        if name not in self.kernels:
            extdata = '{"size": 88, "kernel_id": 1}'
            self.kernels[name] = self.insert(
                "info_kernel_symbol", nid=NODE, pid=self.pid, code_object_id=1, kernel_name=name + ".kd",
                display_name=name, extdata=extdata,
            )  # fmt: skip
        return self.kernels[name]

    def event(self, category, stack=None, external=0, message=None):
        extdata = "{}" if message is None else json.dumps({"message": message})
        return self.insert(
            "event", category_id=self.string(category), stack_id=stack, parent_stack_id=0, correlation_id=external,
            extdata=extdata,
        )  # fmt: skip

    def _owner(self):
        return {"nid": NODE, "pid": self.pid, "tid": self.pid}

    def dispatch(self, name, start, end, *, stack=None, device=0, stream=0, external=0, counters=()):
        event = self.event("KERNEL_DISPATCH", stack, external)
        self.insert(
            "kernel_dispatch", **self._owner(), agent_id=GPU_AGENTS[device], kernel_id=self.kernel(name),
            dispatch_id=self.next.get("kernel_dispatch", 0) + 1, queue_id=1, stream_id=stream, start=start, end=end,
            workgroup_size_x=256, workgroup_size_y=1, workgroup_size_z=1, grid_size_x=1024, grid_size_y=1,
            grid_size_z=1, region_name_id=self.string(""), event_id=event,
        )  # fmt: skip
        for counter, value in counters:
            self.insert("pmc_event", event_id=event, pmc_id=self.counter(counter, device), value=value)

    def counter(self, name, device):
        key = self.next.setdefault("counters", {})  # type: ignore[arg-type]
        if (name, device) not in key:
            key[name, device] = self.insert(
                "info_pmc", nid=NODE, pid=self.pid, agent_id=GPU_AGENTS[device], target_arch="GPU", name=name,
                symbol=name, value_type="ABS",
            )  # fmt: skip
        return key[name, device]

    def region(self, category, name, start, end, *, stack=None, external=0, message=None):
        event = self.event(category, stack, external, message)
        owner, name_id = self._owner(), self.string(name)
        if start != end:
            self.insert("region", **owner, start=start, end=end, name_id=name_id, event_id=event)
        else:
            track = self.insert("track", **owner, name_id=name_id)
            self.insert("sample", track_id=track, timestamp=start, event_id=event)

    def copy(self, name, start, end, *, stack=None, source=0, target=4, stream=0, size=0, external=0):
        event = self.event("MEMORY_COPY", stack, external)
        self.insert(
            "memory_copy", **self._owner(), start=start, end=end, name_id=self.string(name), dst_agent_id=target,
            src_agent_id=source, size=size, stream_id=stream, region_name_id=self.string(""), event_id=event,
        )  # fmt: skip

    def allocation(self, kind, level, start, end, *, stack=None, agent=4, size=0, external=0):
        category = "SCRATCH_MEMORY" if level == "SCRATCH" else "MEMORY_ALLOCATION"
        self.insert(
            "memory_allocate", **self._owner(), agent_id=agent, type=kind, level=level, start=start, end=end,
            size=size, queue_id=0, stream_id=0, event_id=self.event(category, stack, external),
        )  # fmt: skip

    def many_dispatches(self, count, kernels=200):
        """Fills the dispatch and event tables inside SQLite: a second for each million."""
        names = [self.kernel(f"void kernel_{i}<float>(float*, int)") for i in range(kernels)]
        category, empty = self.string("KERNEL_DISPATCH"), self.string("")
        numbers = f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})"
        self.db.execute(
            f"INSERT INTO `rocpd_event{self.suffix}` (id, category_id, stack_id, parent_stack_id, correlation_id) "
            f"{numbers} SELECT i, {category}, i, i, 0 FROM n"
        )
        self.db.execute(
            f"INSERT INTO `rocpd_kernel_dispatch{self.suffix}` (id, nid, pid, tid, agent_id, kernel_id, dispatch_id, "
            'queue_id, stream_id, "start", "end", private_segment_size, group_segment_size, workgroup_size_x, '
            "workgroup_size_y, workgroup_size_z, grid_size_x, grid_size_y, grid_size_z, region_name_id, event_id) "
            f"{numbers} SELECT i, {NODE}, {self.pid}, {self.pid}, {GPU_AGENTS[0]}, "
            f"{names[0]} + (i * 2654435761 >> 7) % {kernels}, i, 1, i % 4, 1551000000000000 + i * 12000, "
            "1551000000000000 + i * 12000 + 1000 + (i * 40503 >> 3) % 9973, 0, 25600, 256, 1, 1, 77824, 1, 1, "
            f"{empty}, i FROM n"
        )

    def close(self):
        self.db.commit()
        self.db.close()
        return self.path

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
