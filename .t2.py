from pathlib import Path
import tempfile
from rung.trace import rocprofv3_csv as r

d = Path(tempfile.mkdtemp())
h = d / "host1"
h.mkdir()
(
    h / "77_kernel_trace.csv"
).write_text(""""Kind","Agent_Id","Queue_Id","Stream_Id","Thread_Id","Dispatch_Id","Kernel_Id","Kernel_Name","Correlation_Id","Start_Timestamp","End_Timestamp","LDS_Block_Size","Scratch_Size","VGPR_Count","Accum_VGPR_Count","SGPR_Count","Workgroup_Size_X","Workgroup_Size_Y","Workgroup_Size_Z","Grid_Size_X","Grid_Size_Y","Grid_Size_Z"
"KERNEL_DISPATCH","Agent 4",1,0,834304,1,10,"void addition_kernel<float>(a, b)",1,1550151853029637,1550151853042437,0,0,8,0,16,64,1,1,1024,1024,1
""")
(
    h / "77_memory_copy_trace.csv"
).write_text(""""Kind","Direction","Stream_Id","Source_Agent_Id","Destination_Agent_Id","Correlation_Id","Start_Timestamp","End_Timestamp"
"MEMORY_COPY","MEMORY_COPY_HOST_TO_DEVICE",1,"Agent 0","Agent 4",952,2414192684609085,2414192684710679
"MEMORY_COPY","MEMORY_COPY_DEVICE_TO_HOST",1,"Agent 5","Agent 0",952,2414192684609085,2414192684710679
""")
t = r.read(d)
print(r.sniff(b"", d))
print(t.events.to_dicts(), t.unread, t.meta)
