"""Adds up ranges of message numbers with Spark.

Journals tell of ranges: 101 to 150 were published, 120 to 180 acknowledged. Which of the first are not among the
second? To spread ranges into numbers would make a row for each message. Instead one sweep goes over the numbers: each
range is a step up where it begins and a step down after its end, and the running sum of the steps is, between any two
neighbouring points, the number of ranges of each label there.

    published   ├──────────────┤                        segments   first last  published acked
    acked              ├──────────────┤         ──▶                 101  119      1       0
              101     120     150    180                            120  150      1       1
                                                                    151  180      0       1

A running sum needs the points of a queue in order in one task. So that a queue of a billion messages is not the work of
one task, numbers are cut into stretches of a million (`STRETCH_BITS`), each of which is swept by itself.

A value of a whole range, such as its time, is summed in the same way: the sum of times, divided by the number of
ranges, is their mean, and for one range its time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

STRETCH_BITS: Final = 20


def sweep(ranges: DataFrame, keys: Sequence[str], labels: Sequence[str], timed: Sequence[str] = ()) -> DataFrame:
    """Returns the segments of `ranges`, which have the columns `keys`, `first`, `last`, `label` and `ms`.

    A segment has `keys`, `first`, `last`, for each label the number of ranges that cover it, and for labels in `timed`
    a column `LABEL_ms`, the mean of their `ms`, or null. Segments without any range are left out.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    places = [*keys, "stretch"]
    steps = cut(ranges).select(
        *places,
        "label",
        "ms",
        f.inline(
            f.array(
                f.struct(f.col("first").alias("at"), f.lit(1).alias("step")),
                f.struct((f.col("last") + 1).alias("at"), f.lit(-1).alias("step")),
            )
        ),
    )
    sums = [_sum(label, f.col("step")).alias(label) for label in labels]
    sums += [_sum(label, f.col("step") * f.coalesce("ms", f.lit(0))).alias(f"{label}_ms") for label in timed]
    points = steps.repartition(*places).groupBy(*places, "at").agg(*sums)
    ordered = Window.partitionBy(*places).orderBy("at")
    so_far = ordered.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    running = [f.sum(name).over(so_far).alias(name) for name in (*labels, *(f"{label}_ms" for label in timed))]
    segments = points.select(
        *keys, f.col("at").alias("first"), (f.lead("at").over(ordered) - 1).alias("last"), *running
    )
    covered = f.greatest(*labels) if len(labels) > 1 else f.col(labels[0])
    means = {f"{label}_ms": f.when(f.col(label) > 0, f.col(f"{label}_ms") / f.col(label)) for label in timed}
    return segments.filter(f.col("last").isNotNull() & (covered > 0)).withColumns(means)


def _sum(label: str, value: Column) -> Column:
    from pyspark.sql import functions as f

    return f.sum(f.when(f.col("label") == label, value).otherwise(0))


def cut(ranges: DataFrame) -> DataFrame:
    """Cuts ranges into parts that each lie in one `stretch`."""
    from pyspark.sql import functions as f

    stretches = f.sequence(f.shiftright("first", STRETCH_BITS), f.shiftright("last", STRETCH_BITS))
    spread = ranges.filter("first <= last").withColumn("stretch", f.explode(stretches))
    begin = f.shiftleft("stretch", STRETCH_BITS)
    return spread.withColumns(
        {
            "first": f.greatest("first", begin),
            "last": f.least("last", begin + (1 << STRETCH_BITS) - 1),
        }
    )


def overlap(left: DataFrame, right: DataFrame, keys: Sequence[str], first: str, last: str) -> DataFrame:
    """Returns each pair of ranges with the same keys that share numbers: all columns of both, and the shared numbers
    `low` to `high`. `first` and `last` name the columns of `right`; those of `left` have just these names."""
    from pyspark.sql import functions as f

    ours = left.withColumn(
        "stretch", f.explode(f.sequence(f.shiftright("first", STRETCH_BITS), f.shiftright("last", STRETCH_BITS)))
    )
    theirs = right.withColumn(
        "stretch", f.explode(f.sequence(f.shiftright(first, STRETCH_BITS), f.shiftright(last, STRETCH_BITS)))
    )
    begin = f.shiftleft("stretch", STRETCH_BITS)
    return (
        ours.join(theirs, [*keys, "stretch"])
        .withColumns(
            {
                "low": f.greatest("first", first, begin),
                "high": f.least("last", last, begin + (1 << STRETCH_BITS) - 1),
            }
        )
        .filter("low <= high")
        .drop("stretch")
    )


def lives(ranges: DataFrame, cuts: DataFrame | None) -> DataFrame:
    """Returns ranges with the column `life`: how many other messages had the same number before.

    `cuts` has `id`, `stay`, `from_epoch`, `through`: messages above `through` of an epoch before `from_epoch` are lost,
    and their numbers were given again. So the life of a number is the number of cuts below it up to the epoch of the
    event. None: there are no cuts.
    """
    from pyspark.sql import functions as f

    if cuts is None:
        return ranges.withColumn("life", f.lit(0))
    known = cuts.groupBy("id", "stay").agg(f.collect_list(f.struct("from_epoch", "through")).alias("cuts"))
    before = f.filter("cuts", lambda one: one["from_epoch"] <= f.col("epoch"))
    ends = f.coalesce(f.array_sort(f.transform(before, lambda one: one["through"])), f.array().cast("array<bigint>"))
    parts = f.transform(
        f.sequence(f.lit(0), f.size("ends")),
        lambda life: f.struct(
            life.alias("life"),
            f.greatest(f.col("first"), f.get("ends", life - 1) + 1).alias("low"),
            f.least(f.col("last"), f.get("ends", life)).alias("high"),
        ),
    )
    others = [name for name in ranges.columns if name not in ("first", "last")]
    return (
        ranges.join(f.broadcast(known), ["id", "stay"], "left")
        .withColumn("ends", ends)
        .select(*others, f.inline(f.filter(parts, lambda part: part["low"] <= part["high"])))
        .withColumnsRenamed({"low": "first", "high": "last"})
    )
