"""The views of a rocpd database by their real names and columns, on top of one plain view a table."""


def _join(alias: str, table: str, key: str, owner: str, kind: str = "") -> str:
    return f" {kind} JOIN `rocpd_{table}` {alias} ON {alias}.id = {key} AND {alias}.guid = {owner}.guid"


def _string(key: str, name: str) -> str:
    return f"(SELECT string FROM `rocpd_string` X WHERE X.id = {key} AND X.guid = E.guid) AS {name}"


def _agent(alias: str, prefix: str) -> str:
    fields = {"abs_index": "absolute_index", "log_index": "logical_index", "type_index": "type_index", "type": "type"}
    return ", ".join(f"{alias}.{field} AS {prefix}_{name}" for name, field in fields.items())


_STACK = "E.stack_id, E.parent_stack_id, E.correlation_id AS corr_id"
_TEXT = "E.extdata, E.call_stack, E.line_info"
_SPAN = "{0}.start, {0}.end, ({0}.end - {0}.start) AS duration"
_CATEGORY = _string("E.category_id", "category")
_SYSTEM = "N.machine_id, N.system_name, N.hostname, N.release AS system_release, N.version AS system_version"


def _who(owner: str) -> str:
    return (
        _join("E", "event", f"{owner}.event_id", owner)
        + _join("P", "info_process", f"{owner}.pid", owner)
        + _join("T", "info_thread", f"{owner}.tid", owner)
    )


_KERNEL = _join("S", "info_kernel_symbol", "K.kernel_id", "K")
_QUEUES = _join("Q", "info_queue", "M.queue_id", "M", "LEFT") + _join("ST", "info_stream", "M.stream_id", "M", "LEFT")
_PMC = (
    "`rocpd_pmc_event` PE"
    + _join("I", "info_pmc", "PE.pmc_id", "PE")
    + _join("E", "event", "PE.event_id", "PE")
    + " JOIN `rocpd_kernel_dispatch` K ON K.event_id = PE.event_id AND K.guid = PE.guid"
    + _join("P", "info_process", "K.pid", "K")
)
_SAMPLE = (
    "`rocpd_sample` R"
    + _join("TR", "track", "R.track_id", "R")
    + _join("E", "event", "R.event_id", "R")
    + _join("P", "info_process", "TR.pid", "TR")
    + _join("T", "info_thread", "TR.tid", "TR")
)
_SAMPLE_HEAD = f"R.id, R.guid, {_CATEGORY}, {_string('TR.name_id', 'name')}, TR.nid, P.pid, T.tid"
_SAMPLE_TAIL = f"R.event_id, {_STACK}, {_TEXT}"
_DURATIONS = " UNION ALL ".join(
    f"SELECT N.{name} AS name, X.end - X.start AS duration FROM `rocpd_{table}` X" + _join("N", names, f"X.{key}", "X")
    for table, names, key, name in (
        ("kernel_dispatch", "info_kernel_symbol", "kernel_id", "display_name"),
        ("memory_copy", "string", "name_id", "string"),
        ("region", "string", "name_id", "string"),
    )
)
_TOP = (
    "SELECT name, count(*) AS total_calls, sum(duration) / 1000.0 AS total_duration,"
    " (sum(duration) / count(*)) / 1000.0 AS average, sum(duration) * 100.0 / (SELECT sum(duration) FROM {0})"
    " AS percentage FROM {0} GROUP BY name ORDER BY total_duration DESC"
)
_SYMBOL_EXTRA = (
    "size AS kernel_symbol_size", "kernel_id", "kernel_code_entry_byte_offset", "formatted_kernel_name",
    "demangled_kernel_name", "truncated_kernel_name", "kernel_address",
)  # fmt: skip
_SIZES = ", ".join(
    [*(f"K.grid_size_{a} AS grid_{a}" for a in "xyz"), *(f"K.workgroup_size_{a} AS workgroup_{a}" for a in "xyz")]
)


def _json(field: str) -> str:
    key, _, name = field.partition(" AS ")
    return f"json_extract(S.extdata, '$.{key}') AS {name or key}"


def _product(what: str) -> str:
    parts = [f"K.{what}_size_{axis}" for axis in "xyz"]
    return ", ".join(parts) + f", ({' * '.join(parts)}) AS {what}_size"


VIEWS = {
    "code_objects": "SELECT C.id, C.guid, C.nid, C.pid, A.absolute_index AS agent_abs_index, C.uri, C.load_base,"
    " C.load_size, C.load_delta, C.storage_type AS storage_type_str, json_extract(C.extdata, '$.size') AS"
    " code_object_size, json_extract(C.extdata, '$.storage_type') AS storage_type, json_extract(C.extdata,"
    " '$.memory_base') AS memory_base, json_extract(C.extdata, '$.memory_size') AS memory_size"
    " FROM `rocpd_info_code_object` C" + _join("A", "info_agent", "C.agent_id", "C"),
    "kernel_symbols": "SELECT S.id, S.guid, S.nid, S.pid, S.code_object_id, S.kernel_name, S.display_name,"
    " S.kernel_object, S.kernarg_segment_size, S.kernarg_segment_alignment, S.group_segment_size,"
    " S.private_segment_size, S.sgpr_count, S.arch_vgpr_count, S.accum_vgpr_count, "
    + ", ".join(map(_json, _SYMBOL_EXTRA))
    + " FROM `rocpd_info_kernel_symbol` S",
    "processes": f"SELECT N.id AS nid, {_SYSTEM}, P.guid, P.ppid, P.pid, P.init, P.start, P.end, P.fini, P.command"
    " FROM `rocpd_info_process` P" + _join("N", "info_node", "P.nid", "P"),
    "threads": f"SELECT N.id AS nid, {_SYSTEM}, P.guid, P.ppid, P.pid, T.tid, T.start, T.end, T.name"
    " FROM `rocpd_info_thread` T" + _join("P", "info_process", "T.pid", "T") + _join("N", "info_node", "T.nid", "T"),
    "regions": f"SELECT R.id, R.guid, {_CATEGORY}, S.string AS name, R.nid, P.pid, T.tid, {_SPAN.format('R')},"
    f" R.event_id, {_STACK}, {_TEXT} FROM `rocpd_region` R" + _who("R") + _join("S", "string", "R.name_id", "R"),
    "region_args": "SELECT R.id, R.guid, R.nid, P.pid, A.type, A.name, A.value FROM `rocpd_region` R"
    + _who("R")
    + " JOIN `rocpd_arg` A ON A.event_id = E.id AND A.guid = R.guid",
    "samples": f"SELECT {_SAMPLE_HEAD}, R.timestamp, {_SAMPLE_TAIL} FROM {_SAMPLE}",
    "sample_regions": f"SELECT {_SAMPLE_HEAD}, R.timestamp AS start, R.timestamp AS END, (R.timestamp - R.timestamp)"
    f" AS duration, {_SAMPLE_TAIL} FROM {_SAMPLE}",
    "regions_and_samples": "SELECT * FROM `regions` UNION ALL SELECT * FROM `sample_regions`",
    "kernels": f"SELECT K.id, K.guid, T.tid, {_CATEGORY}, {_string('K.region_name_id', 'region')}, S.display_name AS"
    f" name, K.nid, P.pid, {_agent('A', 'agent')}, S.code_object_id, K.kernel_id, K.dispatch_id, K.stream_id,"
    f" K.queue_id, Q.name AS queue, ST.name AS stream, {_SPAN.format('K')}, {_SIZES}, K.group_segment_size AS"
    " lds_size, K.private_segment_size AS scratch_size, S.arch_vgpr_count AS vgpr_count, S.accum_vgpr_count,"
    " S.sgpr_count, S.group_segment_size AS static_lds_size, S.private_segment_size AS static_scratch_size,"
    f" {_STACK} FROM `rocpd_kernel_dispatch` K"
    + _who("K")
    + _KERNEL
    + _join("A", "info_agent", "K.agent_id", "K")
    + _QUEUES.replace("M.", "K."),
    "pmc_info": "SELECT I.id, I.guid, I.nid, P.pid, A.absolute_index AS agent_abs_index, I.is_constant, I.is_derived,"
    " I.name, I.description, I.block, I.expression FROM `rocpd_info_pmc` I"
    + _join("A", "info_agent", "I.agent_id", "I")
    + _join("P", "info_process", "I.pid", "I"),
    "pmc_events": f"SELECT PE.id, PE.guid, PE.pmc_id, E.id AS event_id, {_CATEGORY}, S.display_name AS name, K.nid,"
    f" P.pid, K.dispatch_id, {_SPAN.format('K')}, I.name AS counter_name, PE.value AS counter_value FROM {_PMC}"
    + _KERNEL,
    "events_args": f"SELECT E.id AS event_id, {_CATEGORY}, E.stack_id, E.parent_stack_id, E.correlation_id,"
    " A.position AS arg_position, A.type AS arg_type, A.name AS arg_name, A.value AS arg_value, E.call_stack,"
    " E.line_info, A.extdata FROM `rocpd_event` E JOIN `rocpd_arg` A ON A.event_id = E.id AND A.guid = E.guid",
    "stream_args": "SELECT A.id AS argument_id, A.event_id, A.position AS arg_position, A.type AS arg_type, A.value AS"
    " arg_value, json_extract(A.extdata, '$.stream_id') AS stream_id, S.nid, P.pid, S.name AS stream_name, S.extdata"
    " FROM `rocpd_arg` A JOIN `rocpd_info_stream` S ON json_extract(A.extdata, '$.stream_id') = S.id AND A.guid ="
    " S.guid" + _join("P", "info_process", "S.pid", "S") + " WHERE A.name = 'stream'",
    "memory_copies": f"SELECT M.id, M.guid, {_CATEGORY}, M.nid, P.pid, T.tid, {_SPAN.format('M')}, S.string AS name,"
    f" {_string('M.region_name_id', 'region_name')}, M.stream_id, M.queue_id, ST.name AS stream_name, Q.name AS"
    f" queue_name, M.size, D.name AS dst_device, {_agent('D', 'dst_agent')}, M.dst_address, F.name AS src_device,"
    f" {_agent('F', 'src_agent')}, M.src_address, {_STACK} FROM `rocpd_memory_copy` M"
    + _who("M")
    + _join("S", "string", "M.name_id", "M")
    + _join("D", "info_agent", "M.dst_agent_id", "M")
    + _join("F", "info_agent", "M.src_agent_id", "M")
    + _QUEUES,
    "memory_allocations": f"SELECT M.id, M.guid, {_CATEGORY}, M.nid, P.pid, T.tid, {_SPAN.format('M')}, M.type, M.level,"
    f" A.name AS agent_name, {_agent('A', 'agent')}, M.address, M.size, M.queue_id, Q.name AS queue_name, M.stream_id,"
    f" ST.name AS stream_name, {_STACK} FROM `rocpd_memory_allocate` M"
    + _who("M")
    + _join("A", "info_agent", "M.agent_id", "M", "LEFT")
    + _QUEUES,
    "scratch_memory": f"SELECT M.id, M.guid, M.nid, P.pid, M.type AS operation, A.name AS agent_name,"
    f" {_agent('A', 'agent')}, M.queue_id, T.tid, json_extract(M.extdata, '$.flags') AS alloc_flags,"
    f" {_SPAN.format('M')}, M.size, M.address, E.correlation_id, {_STACK}, {_CATEGORY}, E.extdata AS event_extdata"
    " FROM `rocpd_memory_allocate` M"
    + _who("M")
    + _join("A", "info_agent", "M.agent_id", "M", "LEFT")
    + " WHERE M.level = 'SCRATCH' ORDER BY M.start",
    "counters_collection": "SELECT min(PE.id) AS id, PE.guid, K.dispatch_id, K.kernel_id, E.id AS event_id,"
    f" E.correlation_id, E.stack_id, E.parent_stack_id, P.pid, T.tid, K.agent_id, {_agent('A', 'agent')}, K.queue_id,"
    f" {_product('grid')}, S.display_name AS kernel_name, {_string('K.region_name_id', 'kernel_region')},"
    f" {_product('workgroup')}, K.group_segment_size AS lds_block_size, K.private_segment_size AS scratch_size,"
    " S.arch_vgpr_count AS vgpr_count, S.accum_vgpr_count, S.sgpr_count, I.name AS counter_name, I.symbol AS"
    " counter_symbol, I.component, I.description, I.block, I.expression, I.value_type, I.id AS counter_id,"
    " sum(PE.value) AS value, K.start, K.end, I.is_constant, I.is_derived, (K.end - K.start) AS duration,"
    f" {_CATEGORY}, K.nid, E.extdata, S.code_object_id FROM {_PMC}"
    + _KERNEL
    + _join("A", "info_agent", "K.agent_id", "K")
    + _join("T", "info_thread", "K.tid", "K")
    + " GROUP BY PE.guid, K.dispatch_id, I.name, K.agent_id",
    "top_kernels": _TOP.format("(SELECT name, duration FROM `kernels`)"),
    "busy": "SELECT G.agent_id, A.type, GpuTime, WallTime, GpuTime * 1.0 / WallTime AS Busy FROM (SELECT agent_id, guid,"
    ' sum("end" - start) AS GpuTime FROM `rocpd_kernel_dispatch` GROUP BY agent_id, guid) G JOIN (SELECT max("end") -'
    " min(start) AS WallTime FROM `rocpd_kernel_dispatch`)" + _join("A", "info_agent", "G.agent_id", "G"),
    "top": _TOP.format(f"({_DURATIONS})"),
}
