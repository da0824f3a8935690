"""Several streaming queries that are started at once in a new session.

Spark keeps the environment of a Python data source in one map for the whole driver. Each streaming query puts four
settings into it when it starts, in a thread of its own and without a lock (`PythonStreamingSourceRunner.init`). If two
of the first queries put the same one at once, the map counts an entry twice, and from then on no task of this source
can be started: "Task serialization failed: IllegalStateException: Illegal size 5 of collection, expected 6". Entries
that are there already are only replaced, which does no harm. So they are put before the first query starts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark_leveret import LeveretDataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS: Final = ("SPARK_LOCAL_DIRS", "SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE", "SPARK_PYTHON_RUNTIME")


def prepare_streams(spark: SparkSession) -> None:
    """Makes a session ready for several streaming queries that are started at once. Call it before the first one. With
    Spark Connect it does nothing: there the driver is the server's."""
    session = getattr(spark, "_jsparkSession", None)
    if session is None:
        return
    source = session.sessionState().dataSourceManager().lookupDataSource(LeveretDataSource.name())
    environment = source.dataSourceCls().envVars()
    for name in SETTINGS:
        environment.putIfAbsent(name, "")
