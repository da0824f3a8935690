"""A device speaks MQTT, a service reads the same messages over AMQP, and answers to the device.

    python examples/mqtt_sensors.py

With AMQP_URL set, MQTT_PORT names the MQTT port of the same host.
"""

import os
import queue
from contextlib import nullcontext
from urllib.parse import urlsplit

import paho.mqtt.client as mqtt
import pika

import leveret.testing

CONFIG = "mqtt.listeners.tcp.1 = 127.0.0.1:0"


def main(url: str, mqtt_port: int) -> None:
    service = pika.BlockingConnection(pika.URLParameters(url)).channel()
    service.queue_declare("readings", durable=True)
    service.queue_bind("readings", "amq.topic", "sensors.*.temperature")

    commands: queue.Queue[str] = queue.Queue()
    subscribed: queue.Queue[bool] = queue.Queue()
    device = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id="kitchen", protocol=mqtt.MQTTv5)
    device.username_pw_set("guest", "guest")
    device.on_message = lambda client, data, message: commands.put(message.payload.decode())
    device.on_subscribe = lambda *_: subscribed.put(True)
    device.connect(urlsplit(url).hostname or "127.0.0.1", mqtt_port)
    device.loop_start()
    device.subscribe("commands/kitchen", qos=1)
    subscribed.get(timeout=30)

    device.publish("sensors/kitchen/temperature", "31.5", qos=1).wait_for_publish(30)  # Acknowledged: in the queue.
    method, _, body = service.basic_get("readings", auto_ack=True)
    print(method.routing_key, float(body))
    service.basic_publish("amq.topic", "commands.kitchen", b"open the window")
    print("the device is told to", commands.get(timeout=30))
    device.disconnect()
    device.loop_stop()
    service.connection.close()


if __name__ == "__main__":
    given = os.environ.get("AMQP_URL")
    with nullcontext() if given else leveret.testing.broker(config=CONFIG) as broker:
        main(given or broker.url, int(os.environ.get("MQTT_PORT") or broker.ports["mqtt"]))
