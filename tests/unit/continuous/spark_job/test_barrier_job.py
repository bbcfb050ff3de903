"""What of Spark's words about a failed job is worth repeating."""

from __future__ import annotations

from epochal.continuous.spark_job.barrier_job import cause_in, headline

ABORTED = (
    "Job aborted due to stage failure: Could not recover from a failed barrier ResultStage. Most "
    "recent failure reason: Stage failed because barrier task ResultTask(0, 1) finished "
    "unsuccessfully.\n"
)
FRAMES = "\tat org.apache.spark.Thing.run(Thing.scala:1)\n\tat java.base/java.lang.Thread.run\n"


def test_a_crashed_worker_is_named_without_frames() -> None:
    crash = "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)."
    text = f"{ABORTED}{crash}\n{FRAMES}Caused by: java.io.EOFException\n{FRAMES}\t... 22 more\n"
    assert cause_in(text) == f"{crash}\nCaused by: java.io.EOFException"
    assert headline(cause_in(text)) == crash


def test_a_lost_executor_is_named() -> None:
    lost = "ExecutorLostFailure (executor 1 exited unrelated to the running tasks) Reason: killed"
    assert headline(cause_in(f"{ABORTED}{lost}\n\nDriver stacktrace:")) == lost


def test_whatever_else_spark_says_is_kept() -> None:
    assert cause_in("Job 3 cancelled as part of cancellation of all jobs") == (
        "Job 3 cancelled as part of cancellation of all jobs"
    )
    assert cause_in(ABORTED.strip()) == ABORTED.strip()
    assert headline("") == ""
