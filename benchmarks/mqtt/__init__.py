"""Measurements of MQTT: Leveret beside Mosquitto, and RabbitMQ with its plugin. Imports `ruler`."""
