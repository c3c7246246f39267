"""What the worker tests serve."""

import gc
import os
import random
import signal
import subprocess
import sys
import tempfile
import time

THEN = dict(os.environ)  # as it was when this was imported


class Served:
    def __init__(self) -> None:
        self.while_loading = gc.get_threshold()[0]

    def thresholds(self) -> list[int]:
        return [self.while_loading, gc.get_threshold()[0]]

    def collect_no_more(self) -> None:
        gc.disable()

    def collect_after(self, threshold: int) -> None:
        gc.set_threshold(threshold)

    def collects(self) -> bool:
        return gc.isenabled()

    def echo(self, value: object) -> object:
        print("noise on stdout")
        return value

    def fail(self) -> None:
        raise ValueError("no good")

    def fail_as_an_older_version(self) -> None:
        worker = vars(sys.modules["rung.launch.worker"])
        described = worker["describe"]
        worker["describe"] = lambda error: {key: said for key, said in described(error).items() if key != "where"}
        raise ValueError("no good")

    def fail_in_a_folder_that_is_gone(self) -> None:
        os.chdir(tempfile.mkdtemp())
        os.rmdir(os.getcwd())
        raise ValueError("no good")

    def leave(self) -> None:
        sys.exit(3)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def variable_then_and_now(self, name: str) -> list[str | None]:
        return [THEN.get(name), os.environ.get(name)]

    def imported(self) -> list[str]:
        return [*sys.modules]

    def draws(self) -> list[float]:
        """A number of Python's generator, and one of NumPy's."""
        import numpy

        return [random.random(), float(numpy.random.rand())]

    def exit_at_once(self, code: int) -> None:
        os._exit(code)

    def die(self) -> None:
        os.kill(os.getpid(), 9)

    def child(self) -> int:
        return subprocess.Popen(["sleep", "600"]).pid

    def daemon(self, stopped: bool = False) -> int:
        """A process in a session of its own, whose parent is gone."""
        code = "import subprocess; print(subprocess.Popen(['sleep', '600'], start_new_session=True, stdout=2).pid)"
        pid = int(subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True).stdout)
        if stopped:
            os.kill(pid, signal.SIGSTOP)
        return pid

    def write_to_all_descriptors(self, text: str, times: int = 1) -> None:
        for fd in range(3, 256):
            try:
                for _ in range(times):
                    os.write(fd, text.encode())
            except OSError:
                pass

    def forked_end(self) -> None:
        """A child that ends while the worker goes on."""
        if os.fork() == 0:
            os._exit(7)
