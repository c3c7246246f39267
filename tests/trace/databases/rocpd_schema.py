"""The tables and views of rocpd schema version 3 (ROCm 7.0), for databases that tests and benchmarks write.

`@guid@` stands for the guid, the default of every column of that name; tables carry it in their name as a suffix.
"""

ID = "id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT"
GUID = 'guid TEXT DEFAULT "@guid@" NOT NULL'
EXT = 'extdata JSONB DEFAULT "{}" NOT NULL'
OWNER = "nid INTEGER NOT NULL, pid INTEGER NOT NULL"
SPAN = '"start" BIGINT NOT NULL, "end" BIGINT NOT NULL'
EXTENT = " NOT NULL, ".join(f"{what}_size_{axis} INTEGER" for what in ("workgroup", "grid") for axis in "xyz")

TABLES = {
    "metadata": f"{ID}, tag TEXT NOT NULL, value TEXT NOT NULL",
    "string": f"{ID}, {GUID}, string TEXT NOT NULL UNIQUE ON CONFLICT ABORT",
    "info_node": f"{ID}, {GUID}, hash BIGINT NOT NULL UNIQUE, machine_id TEXT NOT NULL UNIQUE, system_name TEXT,"
    " hostname TEXT, release TEXT, version TEXT, hardware_name TEXT, domain_name TEXT",
    "info_process": f"{ID}, {GUID}, nid INTEGER NOT NULL, ppid INTEGER, pid INTEGER NOT NULL, init BIGINT, fini BIGINT,"
    f' "start" BIGINT, "end" BIGINT, command TEXT, environment JSONB DEFAULT "{{}}" NOT NULL, {EXT}',
    "info_thread": f"{ID}, {GUID}, nid INTEGER NOT NULL, ppid INTEGER, pid INTEGER NOT NULL, tid INTEGER NOT NULL,"
    f' name TEXT, "start" BIGINT, "end" BIGINT, {EXT}',
    "info_agent": f"{ID}, {GUID}, {OWNER}, type TEXT CHECK (type IN ('CPU', 'GPU')), absolute_index INTEGER,"
    " logical_index INTEGER, type_index INTEGER, uuid INTEGER, name TEXT, model_name TEXT, vendor_name TEXT,"
    f" product_name TEXT, user_name TEXT, {EXT}",
    "info_queue": f"{ID}, {GUID}, {OWNER}, name TEXT, {EXT}",
    "info_stream": f"{ID}, {GUID}, {OWNER}, name TEXT, {EXT}",
    "info_pmc": f"{ID}, {GUID}, {OWNER}, agent_id INTEGER, target_arch TEXT CHECK (target_arch IN ('CPU', 'GPU')),"
    " event_code INT, instance_id INTEGER, name TEXT NOT NULL, symbol TEXT NOT NULL, description TEXT,"
    ' long_description TEXT DEFAULT "", component TEXT, units TEXT DEFAULT "",'
    " value_type TEXT CHECK (value_type IN ('ABS', 'ACCUM', 'RELATIVE')), block TEXT, expression TEXT,"
    f" is_constant INTEGER, is_derived INTEGER, {EXT}",
    "info_code_object": f"{ID}, {GUID}, {OWNER}, agent_id INTEGER, uri TEXT, load_base BIGINT, load_size BIGINT,"
    f" load_delta BIGINT, storage_type TEXT CHECK (storage_type IN ('FILE', 'MEMORY')), {EXT}",
    "info_kernel_symbol": f"{ID}, {GUID}, {OWNER}, code_object_id INTEGER NOT NULL, kernel_name TEXT,"
    " display_name TEXT, kernel_object INTEGER, kernarg_segment_size INTEGER, kernarg_segment_alignment INTEGER,"
    " group_segment_size INTEGER, private_segment_size INTEGER, sgpr_count INTEGER, arch_vgpr_count INTEGER,"
    f" accum_vgpr_count INTEGER, {EXT}",
    "track": f"{ID}, {GUID}, nid INTEGER NOT NULL, pid INTEGER, tid INTEGER, name_id INTEGER, {EXT}",
    "event": f"{ID}, {GUID}, category_id INTEGER, stack_id INTEGER, parent_stack_id INTEGER, correlation_id INTEGER,"
    f' call_stack JSONB DEFAULT "{{}}" NOT NULL, line_info JSONB DEFAULT "{{}}" NOT NULL, {EXT}',
    "arg": f"{ID}, {GUID}, event_id INTEGER NOT NULL, position INTEGER NOT NULL, type TEXT NOT NULL,"
    f" name TEXT NOT NULL, value TEXT, {EXT}",
    "pmc_event": f"{ID}, {GUID}, event_id INTEGER, pmc_id INTEGER NOT NULL, value REAL DEFAULT 0.0,"
    ' extdata JSONB DEFAULT "{}"',
    "region": f"{ID}, {GUID}, {OWNER}, tid INTEGER NOT NULL, {SPAN}, name_id INTEGER NOT NULL, event_id INTEGER, {EXT}",
    "sample": f'{ID}, {GUID}, track_id INTEGER NOT NULL, "timestamp" BIGINT NOT NULL, event_id INTEGER, {EXT}',
    "kernel_dispatch": f"{ID}, {GUID}, {OWNER}, tid INTEGER, agent_id INTEGER NOT NULL, kernel_id INTEGER NOT NULL,"
    f" dispatch_id INTEGER NOT NULL, queue_id INTEGER NOT NULL, stream_id INTEGER NOT NULL, {SPAN},"
    f" private_segment_size INTEGER, group_segment_size INTEGER, {EXTENT} NOT NULL, region_name_id INTEGER,"
    f" event_id INTEGER, {EXT}",
    "memory_copy": f"{ID}, {GUID}, {OWNER}, tid INTEGER, {SPAN}, name_id INTEGER NOT NULL, dst_agent_id INTEGER,"
    " dst_address INTEGER, src_agent_id INTEGER, src_address INTEGER, size INTEGER NOT NULL, queue_id INTEGER,"
    f" stream_id INTEGER, region_name_id INTEGER, event_id INTEGER, {EXT}",
    "memory_allocate": f"{ID}, {GUID}, {OWNER}, tid INTEGER, agent_id INTEGER,"
    " type TEXT CHECK (type IN ('ALLOC', 'FREE', 'REALLOC', 'RECLAIM')),"
    f" level TEXT CHECK (level IN ('REAL', 'VIRTUAL', 'SCRATCH')), {SPAN}, address INTEGER, size INTEGER NOT NULL,"
    f" queue_id INTEGER, stream_id INTEGER, event_id INTEGER, {EXT}",
}
