"""The cause of an engine's death, from real stderr output: quoted from reports about MLX on Metal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.engines.death import Death, conclude, read_stderr
from scheduler.processes.process import Exit
from scheduler.statistics import DeathCause

ABORT = "libc++abi: terminating due to uncaught exception of type std::runtime_error: "
METAL_MEMORY = (
    f"{ABORT}[METAL] Command buffer execution failed: Insufficient Memory"
    " (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)"
)
METAL_TIMEOUT = (
    f"{ABORT}[METAL] Command buffer execution failed: Caused GPU Timeout Error"
    " (00000002:kIOGPUCommandBufferCallbackErrorTimeout)."
)
METAL_INTERACTIVITY = "(0000000e: kIOGPUCommandBufferCallbackErrorImpactingInteractivity)"
METAL_RESOURCE = (
    f"{ABORT}[METAL] Command buffer execution failed: Invalid Resource"
    " (00000009:kIOGPUCommandBufferCallbackErrorInvalidResource)"
)
METAL_VICTIM = (
    "RuntimeError: [METAL] Command buffer execution failed: Innocent Victim"
    " (00000005:kIOGPUCommandBufferCallbackErrorInnocentVictim)."
)
METAL_IGNORED = (
    "RuntimeError: [METAL] Command buffer execution failed: Ignored (for causing prior/excessive GPU errors)"
    " (00000004:kIOGPUCommandBufferCallbackErrorSubmissionsIgnored)."
)
METAL_MALLOC = (
    "RuntimeError: [metal::malloc] Attempting to allocate 48736917632 bytes which is greater than"
    " the maximum allowed buffer size of 30150672384 bytes."
)
TRACEBACK = (
    "Traceback (most recent call last):",
    '  File "loop.py", line 1, in turn',
    "    self._step()",
)


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        (METAL_MEMORY, DeathCause.OUT_OF_MEMORY),
        (METAL_MALLOC, DeathCause.OUT_OF_MEMORY),
        ("RuntimeError: [metal::malloc] Resource limit (499000) exceeded.", DeathCause.BUFFER_LIMIT),
        ("RuntimeError: [malloc] Unable to allocate 17179869184 bytes.", DeathCause.OUT_OF_MEMORY),
        ("MemoryError", DeathCause.OUT_OF_MEMORY),
        ("terminate called after throwing an instance of 'std::bad_alloc'", DeathCause.OUT_OF_MEMORY),
        ("RuntimeError: cudaMallocAsync failed: CUDA error: out of memory", DeathCause.OUT_OF_MEMORY),
        (METAL_TIMEOUT, DeathCause.GPU_TIMEOUT),
        ("Execution was aborted. Caused GPU Timeout Error", DeathCause.GPU_TIMEOUT),
        (METAL_INTERACTIVITY, DeathCause.GPU_TIMEOUT),
        ("CUDA error: the launch timed out and was terminated", DeathCause.GPU_TIMEOUT),
        ("cudaErrorLaunchTimeout", DeathCause.GPU_TIMEOUT),
        ("cudaErrorIllegalAddress", DeathCause.GPU_ERROR),
        ("cudaMallocAsync(&data, size, stream) failed: out of memory", DeathCause.OUT_OF_MEMORY),
        ("cudaStreamSynchronize failed: an illegal memory access was encountered", DeathCause.GPU_ERROR),
        # As MLX's checks write them: the whole call, with calls in it.
        (
            "cudaMemcpyAsync( gpu_ptr<void>(out), out_ptr, nbytes, cudaMemcpyDefault, encoder.stream())"
            " failed: out of memory",
            DeathCause.OUT_OF_MEMORY,
        ),
        ("cudaGraphLaunch(graph_exec, stream_) failed: unspecified launch failure", DeathCause.GPU_ERROR),
        (
            "cublasLtMatmul(handle_, matmul_desc_, a.data<void>(), b) failed with code: 13.",
            DeathCause.GPU_ERROR,
        ),
        ("cublasLtCreate(&handle) failed with code: 3.", DeathCause.OUT_OF_MEMORY),
        ("Failed to load compiled unary_ops kernel: .", DeathCause.GPU_ERROR),
        (METAL_RESOURCE, DeathCause.GPU_ERROR),
        (METAL_VICTIM, DeathCause.GPU_VICTIM),
        (METAL_IGNORED, DeathCause.GPU_VICTIM),
    ],
)
def test_what_the_device_reported_is_recognised_wherever_it_stands(line: str, cause: DeathCause) -> None:
    """Alone, as a traceback's last line, and with more behind it; the line is kept for the operator."""
    for lines in ([line], [*TRACEBACK, line], [*TRACEBACK, line, "Fatal Python error: Aborted", "  File x"]):
        assert read_stderr(lines, -6) == Death(cause, line)


def test_the_latest_report_decides() -> None:
    """The engine survived an error of an hour ago."""
    assert read_stderr([METAL_MALLOC, "went on", METAL_TIMEOUT], -6).cause is DeathCause.GPU_TIMEOUT


def test_a_traceback_is_reported_by_its_last_line() -> None:
    """The last traceback counts where one exception led to another; text after it is not its end."""
    lines = [
        *TRACEBACK,
        "KeyError: 7",
        "",
        "During handling of the above exception, another exception occurred:",
        "",
        *TRACEBACK,
        "ValueError: no such row",
        "a library's last word",
    ]
    assert read_stderr(lines, 1) == Death(DeathCause.FAULT, "ValueError: no such row")


@pytest.mark.parametrize(
    ("returncode", "cause"),
    [
        (-9, DeathCause.KILLED),
        (-15, DeathCause.KILLED),
        (-11, DeathCause.CRASHED),
        (-7, DeathCause.CRASHED),
        (-6, DeathCause.CRASHED),
        (0, DeathCause.EXIT),
        (1, DeathCause.EXIT),
        pytest.param(None, DeathCause.KILLED, id="of another machine: its link is all that is known"),
    ],
)
def test_a_silent_death_is_classified_by_its_exit_status(returncode: int | None, cause: DeathCause) -> None:
    """Text that only resembles an error has no effect."""
    for lines in ([], ["malloc is fine", "a MemoryErrorless day", "ran out of memory of what to say"]):
        assert read_stderr(lines, returncode) == Death(cause)


def test_memory_and_the_device_tell_more_than_how_the_talk_ended() -> None:
    """Also if the engine reported the fault itself, or was never ready."""
    for seen in (DeathCause.EXIT, DeathCause.FAULT, DeathCause.START):
        assert conclude(seen, [METAL_MEMORY], Exit(-6)) == Death(DeathCause.OUT_OF_MEMORY, METAL_MEMORY)


def test_an_engine_that_was_never_ready_stays_so_for_any_other_reason() -> None:
    """With the line that gives the reason, if there is one."""
    lines = [*TRACEBACK, "ImportError: no mlx"]
    assert conclude(DeathCause.START, lines, Exit(1)) == Death(DeathCause.START, "ImportError: no mlx")
    assert conclude(DeathCause.START, [], Exit(-9)) == Death(DeathCause.START)


def test_what_we_did_to_it_ourselves_stays_so() -> None:
    """A hung engine is ended by SIGABRT, with all stacks on stderr."""
    for seen in (DeathCause.HUNG, DeathCause.STOPPED):
        assert conclude(seen, [*TRACEBACK, METAL_MEMORY], Exit(-6)) == Death(seen)


def test_who_sent_a_sigkill_follows_from_what_else_is_known() -> None:
    """An operator; the kernel, for lack of memory; or this server, whose engine closed its link and did not
    end. An exception that the engine had survived says nothing."""
    seen = DeathCause.EXIT
    survived = [*TRACEBACK, "ValueError: no such row"]
    assert conclude(seen, survived, Exit(-9)) == Death(DeathCause.KILLED)
    assert conclude(seen, survived, Exit(-9, out_of_memory=True)).cause is DeathCause.OUT_OF_MEMORY
    assert conclude(seen, survived, Exit(-9, ended_by_us=True)) == Death(DeathCause.EXIT)
    assert conclude(seen, [], Exit(-11, out_of_memory=True)) == Death(DeathCause.CRASHED)


@given(st.lists(st.text()), st.none() | st.integers(-64, 255), st.sampled_from(DeathCause))
def test_whatever_was_written_has_a_cause(lines: list[str], code: int | None, seen: DeathCause) -> None:
    """Nothing raises, and the detail is a line of stderr."""
    death = conclude(seen, lines, Exit(code))
    assert death.detail is None or death.detail in {line.strip() for line in lines}
