"""Django: a view stores an order and publishes it when the transaction is committed.

    python examples/django_orders.py
"""

import json
import os
from contextlib import nullcontext

import django
import pika
from django.conf import settings
from django.db import connection as database
from django.db import transaction
from django.http import JsonResponse
from django.test import Client
from django.urls import path

import leveret.testing

settings.configure(
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=__name__,
    SECRET_KEY="example",
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    BROKER_URL=os.environ.get("AMQP_URL"),
)
django.setup()


def publish(order: dict[str, str]) -> None:
    """One connection for each request is enough for few orders; a busy site keeps one open in a thread."""
    connection = pika.BlockingConnection(pika.URLParameters(settings.BROKER_URL))
    channel = connection.channel()
    channel.queue_declare("orders", durable=True)
    channel.confirm_delivery()
    properties = pika.BasicProperties(delivery_mode=2, content_type="application/json")
    channel.basic_publish("", "orders", json.dumps(order).encode(), properties, mandatory=True)
    connection.close()


def order(request):
    wanted = json.loads(request.body)
    with transaction.atomic():
        with database.cursor() as cursor:
            cursor.execute("INSERT INTO orders VALUES (%s)", [wanted["item"]])
        # After the commit: consumers never see an order that the database does not have.
        transaction.on_commit(lambda: publish(wanted))
    return JsonResponse({"ordered": wanted["item"]}, status=201)


urlpatterns = [path("orders", order)]


def main() -> None:
    with database.cursor() as cursor:
        cursor.execute("CREATE TABLE orders (item TEXT)")
    # In production: gunicorn, and a consumer in a process of its own.
    answer = Client().post("/orders", {"item": "tea"}, content_type="application/json")
    print(answer.status_code, answer.json())
    channel = pika.BlockingConnection(pika.URLParameters(settings.BROKER_URL)).channel()
    method, _, body = channel.basic_get("orders")
    print("consumed", json.loads(body))
    channel.basic_ack(method.delivery_tag)
    channel.connection.close()


if __name__ == "__main__":
    with nullcontext() if settings.BROKER_URL else leveret.testing.broker() as broker:
        settings.BROKER_URL = settings.BROKER_URL or broker.url
        main()
