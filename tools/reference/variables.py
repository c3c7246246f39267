"""Environment variables: those that Rung reads, and those that it sets."""

from __future__ import annotations

from reference.markdown import code, page, sentence, table
from rung.hardware.doctor.variables import known
from rung.rungs.environment import left, settings

# `tests/test_reference.py` searches the sources for names that are missing here.
YOURS = {
    "RUNG_CACHE": "Folder for the tables of large traces (`traces` in it) and for compiled code (`compiled`). Default: "
    "`$XDG_CACHE_HOME/rung`, else `~/.cache/rung`.",
    "RUNG_CATEGORIES": "TOML file with your own kernel families for `rung analyze`, tried before the built-in ones. Default: none.",
    "RUNG_CONFIG": "File with [default options](configuration.md). Default: `rung.toml` in the configuration folder.",
    "RUNG_COUNTERS": "TOML file with your own counter sets for `rung profile`. Default: `counters.toml` in the configuration folder.",
    "RUNG_DATA": "Folder for the history of runs and for verified recipes. Default: `$XDG_DATA_HOME/rung`, else `~/.local/share/rung`.",
    "RUNG_HISTORY": "`off`, `no`, `false` or `0`: keep no history of runs. Default: `history` in a file of options, else on.",
    "RUNG_PEAKS": "TOML file with your own rows of GPU peaks. Default: `peaks.toml` in the configuration folder.",
    "RUNG_PRESETS": "TOML file with your own presets for `rung profile`. Default: `presets.toml` in the configuration folder.",
    "RUNG_STORE": "URL of a PostgreSQL database that holds the history, as in `postgresql://USER@HOST/DATABASE`. Default: a SQLite file "
    "in the data folder.",
    "RUNG_WATCH": "Folder that the ranks of a training job write to for `rung watch`. Default: a folder in `.rung/watch`.",
}
BETWEEN = {
    "RUNG_COMPILED_SINCE": "Time from which on libraries that a worker finds cut off in torch's cache of compiled code are removed.",
    "RUNG_FILES": "Address, token and folder with which hosts bring their files home.",
    "RUNG_HOST": "Name by which other hosts reach this one, in a job over several.",
    "RUNG_HOSTS_KEY": "Proof that a process belongs to a job over several hosts.",
    "RUNG_IN_JOB": "Set in a SLURM job that Rung submitted: the command runs there and submits no further job.",
    "RUNG_STEPS": "File to which a profiled workload writes the times of its steps.",
    "RUNG_TEAM": "Address and token with which a rank finds the process that started it.",
}
OTHERS = {
    "XDG_CACHE_HOME, XDG_CONFIG_HOME, XDG_DATA_HOME": "Folders in which Rung keeps its `rung` folder. The configuration folder is "
    "`$XDG_CONFIG_HOME/rung`, else `~/.config/rung`.",
    "CUDA_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES, ROCR_VISIBLE_DEVICES": "The GPUs that Rung may use.",
    "RANK, WORLD_SIZE, LOCAL_RANK, OMPI_COMM_WORLD_…, SLURM_…": "Which rank a process is, as torchrun, MPI or SLURM say it.",
    "SLURM_JOB_ID, TORCHELASTIC_RUN_ID": "The number of the job, which names the folder that `rung watch` reads.",
    "SLURM_ARRAY_TASK_ID, SLURM_RESTART_COUNT": "The task of an array, which has folders of its own; whether SLURM started the job anew "
    "([many GPUs](../internals/many-gpus.md)).",
    "ROCM_PATH, CUDA_HOME": "Where profilers and vendor tools are, if they are not on `PATH`.",
    "TORCHINDUCTOR_CACHE_DIR": "If you set it, Rung leaves compiled code to this cache of torch's.",
    "AITER_CONFIG_GEMM_BF16": "Tables of tuned shapes for the rung `aiter-gemm`, in place of those of aiter.",
    "TRITON_INTERPRET": "`1`: Triton kernels run in the interpreter, and `rung kernels inspect` cannot compile them.",
    "MLFLOW_EXPERIMENT_NAME, MLFLOW_EXPERIMENT_ID, WANDB_PROJECT": "Where `rung report --log-to` logs. Default: `rung`.",
    "TERM, COLUMNS": "Whether Rung draws a progress line and colors (`dumb`: neither), and how wide its tables are.",
    "NO_COLOR": "If it is set and not empty, Rung prints no colors.",
}
SETS = {
    "HF_HUB_OFFLINE": "`1` for `hf:`, `timm:` and `diffusers:` targets, unless you set it: nothing is downloaded.",
    "TORCHINDUCTOR_CACHE_DIR": "For workers: `compiled` in the cache folder, unless you set it.",
    "PYTHONPYCACHEPREFIX, PYTHONDONTWRITEBYTECODE": "For workers, if torch was installed without bytecode: Rung keeps the bytecode in its cache.",
    "POLARS_MAX_THREADS, OPENBLAS_NUM_THREADS": "`1` for commands that only read traces, unless you set them.",
}


def environment() -> str:
    doctor = [row for row in known() if not row.get("unread")]
    return page(
        "Environment variables",
        "Rung needs no environment variable. The first table lists those that change where Rung keeps its files and what it reads. Options "
        "that you type each time belong in a [file of options](configuration.md).",
        "## Variables of Rung",
        table(["variable", "meaning"], [[code(name), text] for name, text in YOURS.items()]),
        "Rung passes these between its own processes. Do not set them:",
        table(["variable", "meaning"], [[code(name), text] for name, text in BETWEEN.items()]),
        "## Variables of others that Rung reads",
        table(["variable", "meaning"], [[_names(names), text] for names, text in OTHERS.items()]),
        "## Variables that Rung sets",
        table(["variable", "value"], [[_names(names), text] for names, text in SETS.items()]),
        "## Variables that rungs set",
        "A climb starts the worker processes of these rungs with the variable set. A recipe lists its variables under `[variables]`. Set them "
        "before you start your own program: `rung.apply` cannot set them afterwards. `{files}` is a folder of the climb.",
        table(
            ["rung", "variables", "GPUs"],
            [
                [
                    code(row.name),
                    ", ".join(code(f"{k}={v}") for k, v in row.env.items()),
                    {"amd": "AMD", "nvidia": "NVIDIA"}.get(row.vendor, "any"),
                ]
                for row in settings()
            ],
        ),
        "No rung sets these:",
        table(["variable", "why not"], [[code(name), text] for name, text in left().items()]),
        "## Variables that `rung doctor` checks",
        "`rung doctor` shows those that you set, and whether the value differs from the default.",
        table(
            ["variable", "GPUs", "default", "what it does", "when it matters"],
            [
                [
                    code(row["name"]),
                    {"amd": "AMD", "nvidia": "NVIDIA"}.get(row["for"], "any"),
                    code(row["default"]),
                    sentence(row["does"]),
                    sentence(row["when"]),
                ]
                for row in doctor
            ],
        ),
    )


def _names(names: str) -> str:
    return ", ".join(map(code, names.split(", ")))
