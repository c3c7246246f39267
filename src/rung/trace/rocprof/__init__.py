"""Files of AMD's profilers: rocprofv3, the older rocprof and rocprofv2, rocprof-compute."""
