"""Times of operators on CANN, taken by torch_npu's profiler. NOT TRIED ON HARDWARE: written after torch_npu 2.13.0.

That profiler reports its failures by printing them and going on, so what can be known beforehand is asked beforehand,
and afterwards the files it left are the only evidence (`cann_tables`).
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from aloft.runtime.cann_tables import read
from aloft.runtime.timing import OperatorTimes, TimingUnavailable

# Set by the msprof command for what it runs; torch_npu's profiler then does nothing.
_OTHER_PROFILER = ("PROFILER_SAMPLECONFIG", "PROFILING_MODE")


class CannTimer:
    """Device time of kernels, in seconds; their bytes and operations are not known.

    One that is replayed from a graph counts as often as it ran. Which tasks count is the profiler's choice: those of
    cores and of collectives, by its documentation, not copies.
    """

    slows_host = True  # every call is recorded: a step bound by the host would look longer than it is
    note = (
        "Timing on CANN has NOT been tried on hardware. Operators: time on the device, by torch_npu.profiler, in a "
        "second run of as many steps; the step and its parts were timed in the first, without the profiler. Bytes and "
        "operations are not known."
    )

    def __init__(self, profiler: Any = None) -> None:
        """`profiler` stands in for the module `torch_npu.profiler`.

        Raises:
            TimingUnavailable: the profiler cannot be used, with the reason.
        """
        for name in _OTHER_PROFILER:
            if os.environ.get(name):
                raise TimingUnavailable(
                    f"{name} is set, with which torch_npu.profiler records nothing; unset it, do not run under msprof."
                )
        if shutil.which("msprof") is None:
            raise TimingUnavailable(
                "torch_npu.profiler needs CANN's command msprof to read its records, and it is not on PATH; source "
                "CANN's set_env.sh, and install the toolkit where there is only the runtime."
            )
        self._profiler = _imported() if profiler is None else profiler

    @contextlib.contextmanager
    def times(self) -> Iterator[OperatorTimes]:
        """As `OperatorTimer` has it. Reading the records takes seconds to minutes at the end of the block."""
        times = OperatorTimes()
        with tempfile.TemporaryDirectory(prefix="aloft-profile-") as name, _side_effects_undone():
            with self._session(name):
                yield times
            found = read(Path(name))
        times.extend(found)
        times.note = found.note

    def _session(self, folder: str) -> Any:
        profiler = self._profiler
        try:
            options = profiler._ExperimentalConfig(
                profiler_level=profiler.ProfilerLevel.Level1,  # level 0 leaves the types of operators out
                aic_metrics=profiler.AiCMetrics.AiCoreNone,  # counters of the cores, which take time and are not read
                export_type=profiler.ExportType.Text,
            )
            handler = profiler.tensorboard_trace_handler(folder, analyse_flag=True)
            if handler is None:  # without one the profiler would write into the current folder
                raise TimingUnavailable(f"torch_npu.profiler refused the folder {folder}; what it says of it is above.")
            # Without a schedule it warns at its end of a "state RECORD"; it then does what it would do with one.
            return profiler.profile(
                activities=[profiler.ProfilerActivity.CPU, profiler.ProfilerActivity.NPU],
                experimental_config=options,
                on_trace_ready=handler,
            )
        except (AttributeError, TypeError, ValueError) as error:
            raise TimingUnavailable(f"This torch_npu.profiler is not the one known here (2.13.0): {error}.") from error


def _imported() -> Any:
    try:
        import torch_npu.profiler as profiler
    except (ImportError, OSError) as error:
        raise TimingUnavailable(f"torch_npu.profiler cannot be imported: {error}.") from error
    return profiler


@contextlib.contextmanager
def _side_effects_undone() -> Iterator[None]:
    """The profiler prints to stdout, where `--json` belongs, and sets the start method of processes for good."""
    method = multiprocessing.get_start_method(allow_none=True)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        if multiprocessing.get_start_method(allow_none=True) != method:
            multiprocessing.set_start_method(method, force=True)
