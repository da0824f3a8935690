"""A driver of its own, for a cluster of Spark's or for Spark Connect: reads a stream, and copies it to a queue.

    python -m tests.system.spark.elsewhere plan.json

Prints, as its last line, how many messages a batch has read. The copy stops in the middle of each task, having made the
file `reached`, until somebody opens the pipe `go`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

STOP_AT = 32_000  # Spark hands on ten thousand together, and not at once: some of the first are published by then.


def main() -> None:
    from pyspark.sql import SparkSession

    plan = json.loads(Path(sys.argv[1]).read_text())
    reached, go = Path(plan["reached"]), Path(plan["go"])
    builder = SparkSession.builder
    for name, value in plan["config"].items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    count = spark.read.format("leveret").options(**plan["batch"]).schema("offset long").load().count()

    def gate(batches: Iterator[Any]) -> Iterator[Any]:
        seen = 0
        for batch in batches:
            seen += batch.num_rows
            if seen > STOP_AT:
                reached.touch()
                go.open().close()  # A pipe: until somebody has it open for writing.
            yield batch

    messages = spark.readStream.format("leveret").options(**plan["source"]).schema("body binary").load()
    writer = messages.mapInArrow(gate, "body binary").writeStream.format("leveret").options(**plan["sink"])
    writer.option("checkpointLocation", plan["checkpoint"]).trigger(availableNow=True).start().awaitTermination()
    print(json.dumps({"rows": count, "session": type(spark).__module__}))
    spark.stop()


if __name__ == "__main__":
    main()
