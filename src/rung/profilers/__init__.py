"""Who records. One file a profiler, each with `plan(request) -> Plan`; `run.run` executes any plan, `collect` finds and
reads what it wrote."""
