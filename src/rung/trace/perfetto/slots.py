"""The annotations of a Perfetto event that the event table has a column for."""

# Annotation names of rocprofv3 (all versions), rocprof-sys and our own writer, by the column that they fill.
(TS, STOP, LENGTH_NS, CORRELATION, TID, PID, AGENT, DST, SRC, STREAM, QUEUE, BYTES, DEVICE, EXTERNAL, DIMS, RANK,
 AGENT_TYPE, KERNEL, DTYPES, STRIDES, CONCRETE, SEQUENCE) = range(22)  # fmt: skip
SLOTS = {
    "begin_ns": TS,
    "end_ns": STOP,
    "delta_ns": LENGTH_NS,
    "corr_id": CORRELATION,
    "correlation_id": CORRELATION,
    "tid": TID,
    "pid": PID,
    "agent": AGENT,
    "agent_type": AGENT_TYPE,
    "dst_agent": DST,
    "src_agent": SRC,
    "stream_ID": STREAM,
    "stream_id": STREAM,
    "queue": QUEUE,
    "copy_bytes": BYTES,
    "allocation_size": BYTES,
    "bytes": BYTES,
    "device": DEVICE,
    "external_id": EXTERNAL,
    "dims": DIMS,
    "rank": RANK,
    "dtypes": DTYPES,
    "strides": STRIDES,
    "concrete": CONCRETE,
    "sequence": SEQUENCE,
    "kernel": KERNEL,
}
