"""Profiles that are SQLite databases: rocpd, the older rocprof's results.db, Nsight Systems exports."""
