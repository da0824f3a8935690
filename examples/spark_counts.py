"""Spark reads a queue as a table. Nothing is taken out of the queue.

    python examples/spark_counts.py

With AMQP_URL set, MANAGEMENT names the management port, as host:port.
"""

import json
import os
import sys
from contextlib import nullcontext

import pika
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import leveret.testing


def main(url: str, management: str) -> None:
    channel = pika.BlockingConnection(pika.URLParameters(url)).channel()
    channel.queue_declare("sales", durable=True)
    channel.confirm_delivery()
    for number in range(90):
        sale = {"country": ("at", "de", "fr")[number % 3], "price": number}
        channel.basic_publish("", "sales", json.dumps(sale).encode(), pika.BasicProperties(delivery_mode=2))
    channel.connection.close()

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Where the packages are.
    spark = SparkSession.builder.appName("counts").config("spark.ui.enabled", "false").getOrCreate()
    sales = spark.read.format("leveret").option("servers", management).option("subscribe", "sales").load()
    rows = sales.select(F.from_json(F.col("body").cast("string"), "country string, price long").alias("sale"))
    for row in rows.groupBy("sale.country").agg(F.sum("sale.price").alias("total")).orderBy("country").collect():
        print(row.country, row.total)
    spark.stop()


if __name__ == "__main__":
    given = os.environ.get("AMQP_URL")
    config = "management_port = 0"
    with nullcontext() if given else leveret.testing.broker(where="beside", config=config) as broker:
        main(given or broker.url, os.environ.get("MANAGEMENT") or f"127.0.0.1:{broker.ports['management']}")
